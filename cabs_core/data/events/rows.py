"""Tables of the event log, and how a row becomes a `Logged` or a `Reward`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.events.database import Run

#: column -> type, {serial}, {real} and {blob} differ between the two databases
DECISIONS = {
    "seq": "{serial}",
    "id": "TEXT NOT NULL UNIQUE",
    "ts": "{real} NOT NULL",
    "bundle": "TEXT NOT NULL",
    "arm": "TEXT NOT NULL",
    "p": "{real} NOT NULL",
    "rho": "{real} NOT NULL",
    "mode": "TEXT NOT NULL",
    "expected_cost": "{real}",
    "prompt_hash": "TEXT NOT NULL",
    "prompt_length": "{real} NOT NULL",
    "call_id": "TEXT",
    "response_id": "TEXT",
    "session": "TEXT",
    "kept": "TEXT",
    "caller": "TEXT",
    "input_cost": "{real}",
    "output_cost": "{real}",
    "fixed_cost": "{real}",
    "q": "{real}",
    "marked": "INTEGER",
    "cost": "{real}",
    "latency": "{real}",
    "tokens_in": "{real}",
    "tokens_out": "{real}",
    "estimated": "INTEGER",
    "unpriced": "TEXT",
    "reason": "TEXT",
    "status": "TEXT NOT NULL DEFAULT 'decided'",
    "retracted": "INTEGER NOT NULL DEFAULT 0",
}
BODIES = {
    "seq": "{key}",
    "pmf": "TEXT NOT NULL",
    "target": "TEXT NOT NULL",
    "available": "TEXT",
    "embedding": "{blob}",
    "decision": "TEXT NOT NULL",
    "prompt": "TEXT",
}
REWARDS = {
    "seq": "{serial}",
    "decision_id": "TEXT NOT NULL",
    "ts": "{real} NOT NULL",
    "score": "{real} NOT NULL",
    "cost": "{real} NOT NULL",
    "source": "TEXT NOT NULL",
    "key": "TEXT NOT NULL UNIQUE",
    "teaches": "INTEGER NOT NULL",
    "turn": "TEXT",
    "retracted": "INTEGER NOT NULL DEFAULT 0",
}
TABLES = {
    "decisions": DECISIONS,
    "bodies": BODIES,
    "rewards": REWARDS,
    "tallies": {
        "day": "INTEGER NOT NULL",
        "bundle": "TEXT NOT NULL",
        "arm": "TEXT NOT NULL",
        "status": "TEXT NOT NULL",
        "n": "BIGINT NOT NULL",
        "cost": "{real} NOT NULL",
        "rewards": "BIGINT NOT NULL",
        "PRIMARY KEY": "(day, bundle, arm, status)",
    },
    "folded": {
        "bundle": "TEXT NOT NULL",
        "arm": "TEXT NOT NULL",
        "last": "BIGINT NOT NULL",
        "seqs": "{blob} NOT NULL",
    },
    "reserved": {"name": "TEXT PRIMARY KEY", "usd": "{real} NOT NULL", "ends": "{real} NOT NULL"},
    "lease": {"name": "TEXT PRIMARY KEY", "holder": "TEXT NOT NULL", "expires": "{real} NOT NULL"},
    "about": {"name": "TEXT PRIMARY KEY", "value": "TEXT NOT NULL"},
}
#: (table, column); rows that leave the column empty are not in its index, and write no page of it
INDEXES = (
    ("decisions", "call_id"),
    ("decisions", "response_id"),
    ("decisions", "session"),
    ("decisions", "kept"),
    ("rewards", "decision_id"),
)
TYPES = {
    "sqlite": {
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "key": "INTEGER PRIMARY KEY",
        "real": "REAL",
        "blob": "BLOB",
    },
    "postgres": {
        "serial": "BIGSERIAL PRIMARY KEY",
        "key": "BIGINT PRIMARY KEY",
        "real": "DOUBLE PRECISION",
        "blob": "BYTEA",
    },
}
#: facts that come with the end of a call
ENDS = ("cost", "latency", "response_id", "tokens_in", "tokens_out", "estimated", "unpriced", "reason")
#: statuses of a call that served its request: to the end, or until the client left. Others were attempts
SERVED = ("answered", "broken")
#: statuses of calls that a model left without an answer
FAILED = ("error", "timeout")
#: statuses of decisions that no answer follows
ANSWERLESS = (*FAILED, "refused", "unused")
#: columns by which rows are looked up, and the longest name as it is: PostgreSQL's index takes 2,704 bytes
NAMED = frozenset({"id", "call_id", "response_id", "session", "kept"})
LONGEST_NAME = 512
COLUMNS = ", ".join([*(f"d.{c}" for c in DECISIONS), *(f"b.{c}" for c in BODIES if c != "seq")])
FROM = "decisions d LEFT JOIN bodies b ON b.seq = d.seq"


@dataclass(frozen=True)
class Logged:
    """A decision as it stands in the log; arrays are decoded, `decision` is JSON text for
    `Decision.from_dict`.

    session: its conversation, as `sessions` names it. kept: id of the decision whose model this turn of a
    conversation kept; pmf and target are empty then, and decision is ''. caller: name of the key that asked
    for it. input_cost: the part of expected_cost that was known before the call, that of the tokens in;
    output_cost: predicted for the tokens out, before what was learnt (`charges`); fixed_cost: what the
    fallback was expected to cost; USD. marked: whether its score was wanted, and q with which probability
    (`router.marks`); None: nothing was marked. tokens_in, tokens_out: as the upstream counted them.
    estimated: cost was not reported, so it was put together from characters and prices. unpriced:
    what the reply names and the cost does not hold, such as `tier flex, 3 searches`. reason: why the call
    failed.
    """

    seq: int
    id: str
    ts: float
    bundle: str
    arm: str
    p: float
    rho: float
    mode: str
    expected_cost: float | None
    prompt_hash: str
    prompt_length: float
    call_id: str | None
    response_id: str | None
    session: str | None
    kept: str | None
    caller: str | None
    input_cost: float | None
    output_cost: float | None
    fixed_cost: float | None
    q: float | None
    marked: bool | None
    cost: float | None
    latency: float | None
    tokens_in: float | None
    tokens_out: float | None
    estimated: bool
    unpriced: str | None
    reason: str | None
    status: str
    retracted: bool
    pmf: np.ndarray
    target: np.ndarray
    available: np.ndarray | None
    embedding: np.ndarray | None
    decision: str
    prompt: str | None


@dataclass(frozen=True)
class Reward:
    """A reward as it stands in the log.

    teaches: the first of its decision that was not taken back; later ones are kept and not learnt. turn: the
    turn of the conversation that was scored, where it is not the decision itself.
    """

    seq: int
    decision_id: str
    ts: float
    score: float
    cost: float
    source: str
    key: str
    teaches: bool
    turn: str | None
    retracted: bool


def tally(
    run: Run,
    ts: float,
    bundle: str,
    arm: str,
    status: str,
    *,
    n: int = 0,
    cost: float = 0.0,
    rewards: int = 0,
) -> None:
    """Add to the sums of a day, bundle, arm and status: calls, USD and rewards."""
    run(
        "INSERT INTO tallies (day, bundle, arm, status, n, cost, rewards) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (day, bundle, arm, status) DO UPDATE SET n = tallies.n + excluded.n, "
        "cost = tallies.cost + excluded.cost, rewards = tallies.rewards + excluded.rewards",
        (int(ts // SECONDS_PER_DAY), bundle, arm, status, n, cost, rewards),
    )


def name_of(name: str) -> str:
    """How an id that others made stands in the log: as it is, or by its SHA-256 where it is very long."""
    content = name.encode("utf-8", "backslashreplace")
    return name if len(content) <= LONGEST_NAME else f"sha256:{hashlib.sha256(content).hexdigest()}"


def body_of(row: dict[str, Any]) -> list[Any]:
    """Columns of `bodies` after `seq`, from a decision's row."""
    available, embedding = row.get("available"), row.get("embedding")
    values = {
        "pmf": json.dumps(np.asarray(row["pmf"]).tolist()),
        "target": json.dumps(np.asarray(row["target"]).tolist()),
        "available": None if available is None else json.dumps([int(x) for x in available]),
        "embedding": None if embedding is None else np.ascontiguousarray(embedding, dtype="<f4").tobytes(),
        "decision": row["decision"],
        "prompt": row.get("prompt"),
    }
    return [values[name] for name in BODIES if name != "seq"]


def embedding_of(stored: Any) -> np.ndarray:
    """The vector `[e]` float32 of a column."""
    return np.frombuffer(bytes(stored), dtype="<f4").astype(np.float32)


def logged_of(row: Sequence[Any]) -> Logged:
    """A decision from the columns of `decisions` and `bodies`."""
    item = dict(zip([*DECISIONS, *(c for c in BODIES if c != "seq")], row, strict=True))
    item["retracted"], item["estimated"] = bool(item["retracted"]), bool(item["estimated"])
    item["decision"] = item["decision"] or ""
    item["marked"] = None if item["marked"] is None else bool(item["marked"])
    for name in ("pmf", "target"):
        item[name] = np.array([] if item[name] is None else json.loads(item[name]), dtype=np.float64)
    if item["available"] is not None:
        item["available"] = np.array(json.loads(item["available"]), dtype=np.bool_)
    if item["embedding"] is not None:
        item["embedding"] = embedding_of(item["embedding"])
    return Logged(**item)


def reward_of(row: Sequence[Any]) -> Reward:
    """A reward from the columns of `rewards`."""
    item = dict(zip(REWARDS, row, strict=True))
    return Reward(**{**item, "teaches": bool(item["teaches"]), "retracted": bool(item["retracted"])})
