"""Source `logs`: decisions with their outcomes, one model a prompt,
from a log or from a router's event log."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.endpoints.prices import doubt_of_costs
from cabs_core.data.events.log import EventLog
from cabs_core.data.logs.read import Log, read_log
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.log import LogPool
from cabs_core.data.pool_files.prompts import PromptsPool
from cabs_core.data.pool_files.sections import Price

#: endings of a router's event log
EVENT_LOGS = (".sqlite", ".sqlite3", ".db")
_SQLITE = b"SQLite format 3\x00"
#: the task of a call that has none in a log where others have one
_NO_TASK = "none"


def is_event_log(place: str | Path) -> bool:
    """Whether a log is a router's: a PostgreSQL URL, or a SQLite file."""
    if "://" in str(place) or Path(place).suffix.lower() in EVENT_LOGS:
        return True
    if not Path(place).is_file():
        return False
    with open(place, "rb") as handle:
        return handle.read(len(_SQLITE)) == _SQLITE


def read_logged(pool_file: PoolFile) -> RawOutcomes:
    """Every decision as a query of its own, named by its row, with the one cell of the model that answered.

    Args:
        pool_file: its source is the event log of a router that keeps prompts (`cabs serve --keep-prompts`),
            or a log that `cabs_core.read_log` reads.

    Raises:
        DataError: it cannot be read, a column is absent, or a value is wrong (row, column and value named).
    """
    path = pool_file.table_path()
    if is_event_log(path):
        frame = event_frame(path)
        frame["query_id"] = [str(row) for row in range(1, 1 + len(frame))]
        return RawOutcomes.from_tidy(frame, origin=str(path))
    log = log_of_pool(pool_file)
    log.require("score")
    rows = log.details["record"]
    within = rows.groupby(rows).cumcount()  # calls of one record
    frame = pd.DataFrame(
        {
            "query_id": [f"{row}.{i}" if i else f"{row}" for row, i in zip(rows, within, strict=True)],
            **{name: log.frame[name] for name in ("prompt", "model", "score")},
        }
    )
    known = {name: log.frame[name] for name in ("cost", "propensity", "session", "task", "time")}
    known |= {f"n_{name}": log.details[name] for name in ("input_tokens", "output_tokens")}
    known |= {"split": log.details["split"]}
    for name, values in known.items():
        if values.notna().any():
            frame[name] = values.fillna(_NO_TASK) if name == "task" else values
    raw = RawOutcomes.from_tidy(frame, origin=str(path))
    receipt = asdict(log.receipt)
    receipt["notes"] = [*receipt["notes"], *_doubts(log, pool_file.pool.prices)]
    return replace(raw, report={**raw.report, "receipt": receipt})


def _doubts(log: Log, prices: Mapping[str, Price]) -> list[str]:
    """Return a note if the costs of a log may be in another unit than USD."""
    costs = log.frame["cost"].to_numpy(dtype=np.float64)
    known = ~np.isnan(costs)
    if not known.any():
        return []
    into, out = (log.details[name].to_numpy(dtype=np.float64) for name in ("input_tokens", "output_tokens"))
    price_in = np.array([prices[m].input if m in prices else np.nan for m in log.frame["model"]])
    price_out = np.array([prices[m].output if m in prices else np.nan for m in log.frame["model"]])
    by_price = (into * price_in + out * price_out) / PRICED_TOKENS
    both = known & ~np.isnan(by_price)
    expected = float(np.median(by_price[both])) if both.any() else None
    note = doubt_of_costs(float(np.median(costs[both if both.any() else known])), expected)
    return [note] if note else []


def log_of_pool(pool_file: PoolFile, *, scored: bool = True) -> Log:
    """The log that a pool's source names. scored: whether its scores are wanted."""
    pool = pool_file.pool
    assert isinstance(pool, LogPool | PromptsPool)
    source = pool.source
    columns = source.columns.chosen()
    return read_log(
        pool_file.table_path(),
        source.format,
        columns if scored else columns | {"score": None},
        pool.score_range if "score_range" in pool.model_fields_set else None,
        rows=source.rows,
        score_words=source.score_words,
        scores=pool_file.scores_path(),
    )


def event_frame(path: Path) -> pd.DataFrame:
    """The decisions of an event log; the score of one that was never scored is missing.

    So is that of a decision that was not marked, where others were (`router.marks`): nobody knows with which
    probability it came. The propensity of a marked one is that among the marked.

    Raises:
        DataError: it holds no decision, or some without their prompt.
    """
    with closing(EventLog(path, read_only=True)) as log:
        rewards = {r.decision_id: r for r in log.rewards() if r.teaches}
        decisions = [d for d in log.decisions() if d.kept is None]
    rewards = {d.id: rewards[d.id] for d in decisions if d.id in rewards and d.marked is not False}
    if not decisions:
        raise DataError(f"{path} holds no decision yet")
    without = sum(d.prompt is None for d in decisions)
    if without:
        raise DataError(
            f"{path}: {without} of {len(decisions)} decisions keep no prompt, "
            "and a pool is trained on prompts. Serve with --keep-prompts; "
            "a log without prompts can be evaluated and learnt from beside a table (router: {log: PATH})"
        )
    rows = [(d, rewards.get(d.id)) for d in decisions]
    return pd.DataFrame(
        {
            "prompt": [d.prompt for d, _ in rows],
            "model": [d.arm for d, _ in rows],
            "propensity": [json.loads(d.decision)["probability"] if d.marked else d.p for d, _ in rows],
            "session": [d.session for d, _ in rows],
            "time": [d.ts for d, _ in rows],
            "score": [None if r is None else r.score for _, r in rows],
            "cost": [None if r is None else r.cost for _, r in rows],
        }
    )
