"""Source `logs`: decisions with their outcomes, one model a prompt, from a table or from a router's event log."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pandas as pd

from cabs_core.errors import DataError
from cabs_core.outcomes.raw import RawOutcomes
from cabs_core.outcomes.sources.file import tidy_columns
from cabs_core.pool_files.config import Source
from cabs_core.router.events import EventLog

_FIELDS = {
    "prompt": "prompt", "task": "task", "model": "model", "score": "score", "cost": "cost",
    "input_tokens": "n_input_tokens", "output_tokens": "n_output_tokens", "split": "split", "propensity": "propensity",
}  # fmt: skip
_REQUIRED = ("prompt", "model", "score")
_EVENT_LOGS = (".sqlite", ".sqlite3", ".db")


def read_logged(source: Source) -> RawOutcomes:
    """Every decision as a query of its own, named by its row, with the one cell of the model that answered.

    Args:
        source: a table (.parquet, .csv, .jsonl; columns prompt, model, score, cost and, where known, propensity), or
            the event log of a router that keeps prompts (`cabs serve --keep-prompts`).

    Raises:
        DataError: it cannot be read, a column is absent, or a value is wrong (row, column and value named).
    """
    path = Path(source.path or "")
    if path.suffix.lower() in _EVENT_LOGS:
        frame, first_row, chosen = _events(path), 1, dict[str, str]()
    else:
        frame, first_row, chosen = tidy_columns(path, source.columns, _FIELDS, _REQUIRED)
    frame["query_id"] = [str(row) for row in range(first_row, first_row + len(frame))]
    return RawOutcomes.from_tidy(frame, origin=str(path), first_row=first_row, called=chosen)


def _events(path: Path) -> pd.DataFrame:
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
    rows = [(d.prompt, d.arm, d.p, rewards.get(d.id)) for d in decisions]
    return pd.DataFrame(
        {
            "prompt": [prompt for prompt, _, _, _ in rows],
            "model": [arm for _, arm, _, _ in rows],
            "propensity": [p for _, _, p, _ in rows],
            "score": [None if r is None else r.score for _, _, _, r in rows],
            "cost": [None if r is None else r.cost for _, _, _, r in rows],
        }
    )
