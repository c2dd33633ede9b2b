"""Tables of the event log, and the conversion of their rows to `Logged` and `Reward`.

The types of columns differ between SQLite and PostgreSQL, so the tables name them by {serial}, {key}, {real}
and {blob}, and `TYPES` has the two versions.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np

from cabs_core.base.units import SECONDS_PER_DAY
from cabs_core.data.events.database import Run

#: Column of the table `decisions` -> type.
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
#: Column of the table `bodies` -> type.
BODIES = {
    "seq": "{key}",
    "pmf": "TEXT NOT NULL",
    "target": "TEXT NOT NULL",
    "available": "TEXT",
    "embedding": "{blob}",
    "decision": "TEXT NOT NULL",
    "prompt": "TEXT",
}
#: Column of the table `rewards` -> type.
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
    "named_tallies": {
        "day": "INTEGER NOT NULL",
        "status": "TEXT NOT NULL",
        "n": "BIGINT NOT NULL",
        "cost": "{real} NOT NULL",
        "PRIMARY KEY": "(day, status)",
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
#: (table, column) of the indexes. Rows without a value in the column are not in the index.
INDEXES = (
    ("decisions", "call_id"),
    ("decisions", "response_id"),
    ("decisions", "session"),
    ("decisions", "kept"),
    ("rewards", "decision_id"),
)
#: Database -> {placeholder in the tables: type}.
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


class CallFacts(TypedDict, total=False):
    """Facts about a call that are known when the call has ended. A fact that is None is not known.

    Attributes:
        cost: cost of the call, USD. latency: duration of the call, seconds.
        response_id: id of the model's answer.
        tokens_in: input tokens of the call. tokens_out: output tokens of the call.
        estimated: 1 if the cost was estimated from characters and prices, since none was reported.
        unpriced: charges that no price covers, in words.
        reason: why the call failed, in words.
    """

    cost: float | None
    latency: float | None
    response_id: str | None
    tokens_in: float | None
    tokens_out: float | None
    estimated: int | None
    unpriced: str | None
    reason: str | None


#: Mode of a call that the router did not decide: its model was named, or the router itself had failed.
NAMED_MODE = "named"
#: Columns of `decisions` that get their values when the call ends.
ENDS = tuple(CallFacts.__annotations__)
#: Statuses of a call that served its request, to the end or until the client left.
SERVED = ("answered", "broken")
#: Statuses of a call to which the model gave no answer.
FAILED = ("error", "timeout")
#: Statuses of a decision that no answer follows.
ANSWERLESS = (*FAILED, "refused", "unused")
#: Columns with ids by which rows are looked up.
NAMED = frozenset({"id", "call_id", "response_id", "session", "kept"})
#: Bytes of the longest id that is stored as it is. An index of PostgreSQL takes 2,704 bytes.
LONGEST_NAME = 512
#: Columns of `Logged` in a query.
COLUMNS = ", ".join([*(f"d.{c}" for c in DECISIONS), *(f"b.{c}" for c in BODIES if c != "seq")])
#: Tables of `COLUMNS` in a query.
FROM = "decisions d LEFT JOIN bodies b ON b.seq = d.seq"


@dataclass(frozen=True)
class Logged:
    """A decision, or a turn that kept the model of a decision, as it stands in the log.

    Attributes:
        seq: number of the row in the order of commits.
        id: id of the decision.
        ts: time in seconds since 1970.
        bundle: id of the bundle that decided.
        arm: model that was chosen.
        p: probability with which the model was drawn.
        rho: cost sensitivity of the decision.
        mode: how the model was chosen; `NAMED_MODE` if the router did not decide.
        expected_cost: predicted cost of the call, USD.
        prompt_hash: SHA-256 of the prompt.
        prompt_length: characters of the prompt.
        call_id: id that the client gave the call.
        response_id: id of the provider's response.
        session: hash of the conversation's name (`endpoints.request.session_key`).
        kept: id of the decision whose model this turn of a conversation kept, or the turn's own id if it was
            not drawn and kept no model. None for a decision. In such a turn pmf and target are empty and
            `decision` is ''.
        caller: name of the key that sent the request.
        input_cost: part of expected_cost for the input tokens, which was known before the call, USD.
        output_cost: predicted cost of the output tokens before learnt corrections (`charges`), USD.
        fixed_cost: cost that was expected of the fallback model, USD.
        q: probability with which a score was wanted for the decision (`router.marks`). None if the router did
            not draw marks.
        marked: True if a score was wanted. None if the router did not draw marks.
        cost: cost of the call, USD.
        latency: seconds of the call.
        tokens_in: input tokens as the upstream counted them.
        tokens_out: output tokens as the upstream counted them.
        estimated: True if the cost was not reported, and was estimated from characters and prices.
        unpriced: charges that the reply names and the cost does not contain, such as `tier flex, 3 searches`.
        reason: why the call failed.
        status: state of the call, `decided` until it ends.
        retracted: True if the decision was taken back.
        pmf: [K] probabilities of the models.
        target: [K] probabilities that the policy gave the models, before the router replaced the draw.
        available: [K] True for the models that could be chosen. None if all models could be chosen.
        embedding: vector of the prompt.
        decision: JSON text for `Decision.from_dict`.
        prompt: text of the prompt, if prompts are stored.
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

    Attributes:
        seq: number of the reward in the order of commits.
        decision_id: id of the scored decision.
        ts: time in seconds since 1970.
        score: score in [0, 1].
        cost: cost of the call, USD.
        source: who gave the score.
        key: unique key of the reward, by which a repeated request is recognised.
        teaches: True for the first reward of its decision that was not taken back. Other rewards are stored
            and not learnt.
        turn: id of the turn of the conversation that was scored, if it is not the decision itself.
        retracted: True if the reward was taken back.
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


class DayTotals(NamedTuple):
    """The calls of a UTC day that ended.

    Attributes:
        requests: number of requests that calls of the router's choice served.
        cost: USD of all calls of the router's choice.
        named: number of served requests that the router did not decide (`NAMED_MODE`).
        named_cost: USD of all calls that the router did not decide.
    """

    requests: int = 0
    cost: float = 0.0
    named: int = 0
    named_cost: float = 0.0


def tally(
    run: Run,
    ts: float,
    bundle: str,
    arm: str,
    status: str,
    *,
    mode: str = "",
    n: int = 0,
    cost: float = 0.0,
    rewards: int = 0,
) -> None:
    """Add to the sums of a day, bundle, arm and status in the table `tallies`.

    Args:
        ts: time of the decision, seconds since 1970. Its UTC day is used.
        mode: mode of the decision. Calls and costs of `NAMED_MODE` are added in `named_tallies` as well.
        n: calls to add; negative numbers subtract.
        cost: USD to add.
        rewards: rewards to add.
    """
    run(
        "INSERT INTO tallies (day, bundle, arm, status, n, cost, rewards) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (day, bundle, arm, status) DO UPDATE SET n = tallies.n + excluded.n, "
        "cost = tallies.cost + excluded.cost, rewards = tallies.rewards + excluded.rewards",
        (int(ts // SECONDS_PER_DAY), bundle, arm, status, n, cost, rewards),
    )
    if mode == NAMED_MODE:
        run(
            "INSERT INTO named_tallies (day, status, n, cost) VALUES (?, ?, ?, ?) ON CONFLICT (day, status) "
            "DO UPDATE SET n = named_tallies.n + excluded.n, cost = named_tallies.cost + excluded.cost",
            (int(ts // SECONDS_PER_DAY), status, n, cost),
        )


def revise(run: Run) -> None:
    """Note that something has changed which a learner may have read, so that learners read the log again."""
    run("UPDATE about SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'revision'")


def name_of(name: str) -> str:
    """Return an id of a client or provider as it is stored.

    An id of more than `LONGEST_NAME` bytes is stored as its SHA-256, any other one unchanged.
    """
    content = name.encode("utf-8", "backslashreplace")
    if len(content) <= LONGEST_NAME:
        return name
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def body_of(row: dict[str, Any]) -> list[Any]:
    """Return the values of the columns of `bodies` after `seq`, from the row of a decision."""
    available = row.get("available")
    embedding = row.get("embedding")
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
    """Return the vector [e], float32, that a column holds."""
    return np.frombuffer(bytes(stored), dtype="<f4").astype(np.float32)


def logged_of(row: Sequence[Any]) -> Logged:
    """Return the decision in a row of `COLUMNS`."""
    item = dict(zip([*DECISIONS, *(c for c in BODIES if c != "seq")], row, strict=True))
    item["retracted"] = bool(item["retracted"])
    item["estimated"] = bool(item["estimated"])
    item["decision"] = item["decision"] or ""
    if item["marked"] is None:
        item["marked"] = None
    else:
        item["marked"] = bool(item["marked"])
    for name in ("pmf", "target"):
        item[name] = np.array([] if item[name] is None else json.loads(item[name]), dtype=np.float64)
    if item["available"] is not None:
        item["available"] = np.array(json.loads(item["available"]), dtype=np.bool_)
    if item["embedding"] is not None:
        item["embedding"] = embedding_of(item["embedding"])
    return Logged(**item)


def reward_of(row: Sequence[Any]) -> Reward:
    """Return the reward in a row of `rewards`."""
    item = dict(zip(REWARDS, row, strict=True))
    return Reward(**{**item, "teaches": bool(item["teaches"]), "retracted": bool(item["retracted"])})
