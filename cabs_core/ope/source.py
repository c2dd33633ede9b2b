"""Source `logs`: decisions with their outcomes, one model a prompt, from a table or from a router's event log."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd

from cabs_core.errors import DataError
from cabs_core.ope.traces import read_traces
from cabs_core.outcomes.raw import RawOutcomes
from cabs_core.outcomes.sources.file import tidy_columns
from cabs_core.pool_files import PoolFile
from cabs_core.router.events import EventLog
from cabs_core.tables import open_table

_FIELDS = {
    "prompt": "prompt", "task": "task", "model": "model", "score": "score", "cost": "cost",
    "input_tokens": "n_input_tokens", "output_tokens": "n_output_tokens", "split": "split", "propensity": "propensity",
    "session": "session",
}  # fmt: skip
_REQUIRED = ("prompt", "model", "score")
#: endings of a router's event log
EVENT_LOGS = (".sqlite", ".sqlite3", ".db")


def read_logged(pool_file: PoolFile) -> RawOutcomes:
    """Every decision as a query of its own, named by its row, with the one cell of the model that answered.

    Args:
        pool_file: its source is a table (.parquet, .csv, .jsonl; columns prompt, model, score, cost and, where known,
            propensity and session), the event log of a router that keeps prompts (`cabs serve --keep-prompts`), or the log of another tool
            (`source.format`).

    Raises:
        DataError: it cannot be read, a column is absent, or a value is wrong (row, column and value named).
    """
    path, source = pool_file.table_path(), pool_file.pool.source
    if source.format != "table":
        return _traces(path, pool_file)
    if path.suffix.lower() in EVENT_LOGS:
        frame = event_frame(path)
        frame["query_id"] = [str(row) for row in range(1, 1 + len(frame))]
        return RawOutcomes.from_tidy(frame, origin=str(path))
    table = open_table(path)
    frame, chosen = tidy_columns(table, source.columns, _FIELDS, _REQUIRED)
    frame["query_id"] = [str(row) for row in range(table.first_row, table.first_row + len(frame))]
    return RawOutcomes.from_tidy(
        frame,
        origin=str(path),
        first_row=table.first_row,
        score_range=pool_file.pool.score_range,
        called=chosen,
        parts=table.parts,
    )


def _traces(path: Path, pool_file: PoolFile) -> RawOutcomes:
    """Calls as another tool logged them; a query is named by its record, and its call within that if there are several."""
    source = pool_file.pool.source
    frame, left_out = read_traces(path, source.format, source.columns)
    number = frame.pop("row")
    within = number.groupby(number).cumcount()
    frame["query_id"] = [f"{row}.{i}" if i else f"{row}" for row, i in zip(number, within, strict=True)]
    raw = RawOutcomes.from_tidy(frame, origin=str(path), score_range=pool_file.pool.score_range)
    return replace(raw, report={**raw.report, "format": source.format, "left_out": left_out})


def event_frame(path: Path) -> pd.DataFrame:
    """The decisions of an event log; the score of one that was never scored is missing."""
    with closing(EventLog(path, read_only=True)) as log:
        rewards = {r.decision_id: r for r in log.rewards() if r.teaches}
        decisions = [d for d in log.decisions() if d.kept is None]
    if not decisions:
        raise DataError(f"{path} holds no decision yet")
    without = sum(d.prompt is None for d in decisions)
    if without:
        raise DataError(
            f"{path}: {without} of {len(decisions)} decisions keep no prompt, and a pool is trained on prompts. Serve with "
            "--keep-prompts; a log without prompts can be evaluated and learnt from beside a table (router: {log: PATH})"
        )
    rows = [(d, rewards.get(d.id)) for d in decisions]
    return pd.DataFrame(
        {
            "prompt": [d.prompt for d, _ in rows],
            "model": [d.arm for d, _ in rows],
            "propensity": [d.p for d, _ in rows],
            "session": [d.session for d, _ in rows],
            "score": [None if r is None else r.score for _, r in rows],
            "cost": [None if r is None else r.cost for _, r in rows],
        }
    )
