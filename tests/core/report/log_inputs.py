"""Inputs of the answer of a log, for tests."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from cabs_core.data.outcomes import Outcomes
from cabs_core.data.outcomes.splits import make_folds
from cabs_core.data.pool_files.sections import Split
from cabs_core.report.pool_answer import Inputs


def log_inputs(table: Outcomes, today: str | None = None) -> Inputs:
    """Return what the answer of a log reads; its router plays the first model in "sql", else the second."""
    pool = SimpleNamespace(
        name="calls",
        logged=True,
        today=today,
        tolerance=0.03,
        monthly_requests=100_000,
        source=SimpleNamespace(kind="logs", adaptive=False),
        split=Split(),
    )
    splits = make_folds(table, Split(), 5)
    rows = []
    for fold, split in enumerate(splits):
        for i in np.flatnonzero(split != "train"):
            model = table.arms[0] if table.tasks[i] == "sql" else table.arms[1]
            row = {"fold": fold, "part": split[i], "policy": "ridge", "rho": 10.0, "plays": 1.0}
            rows.append(row | {"query_id": str(table.query_ids[i]), "model": model})
    plays = pd.DataFrame(rows)
    tested = plays["part"] == "test"
    return Inputs(
        pool=pool,  # type: ignore[arg-type]
        table=table,
        splits=splits,
        vectors=np.random.default_rng(1).normal(size=(len(table), 6)),
        held_out_plays=plays[tested],
        validation_plays=plays[~tested],
        deployable=("ridge",),
    )
