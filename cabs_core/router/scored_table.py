"""Reads the scored prompts of a new model from a user's table."""

from pathlib import Path

import numpy as np

from cabs_core.base.errors import DataError, listed
from cabs_core.router.joining import Scored


def read_scored(path: str | Path) -> Scored:
    """Read the scored prompts of a model from a table. Costs are None if the table has no column `cost`.

    Args:
        path: file of a table with the columns prompt, score (0 to 1) and, if it is known, cost (USD).

    Raises:
        DataError: the table cannot be read or has no row, a column is absent, a value is missing or out of
            range, or the packages that read tables are not installed.
    """
    try:
        # a machine that only serves has no pandas
        from cabs_core.data.tables import open_table  # noqa: PLC0415
        from cabs_core.data.tables.cells import number_column, prompt_column  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise DataError(
            f"reading {path} needs pandas and pyarrow, and {error.name} is not installed here: pip install "
            "pandas pyarrow"
        ) from None
    table = open_table(path)
    names = ["prompt", "score", *(["cost"] if table.has("cost") else [])]
    missing = [name for name in names if not table.has(name)]
    if missing:
        raise DataError(
            f"{path}: no column {missing[0]!r}; expected prompt, score (0 to 1) and, if it is known, cost "
            f"(USD). Rename or add the column. Columns are: {listed(table.names, 400)}"
        )
    frame = table.read(names)
    if frame.empty:
        raise DataError(f"{path} has no row: a model starts from at least one scored prompt")
    values = {}
    for name in names[1:]:
        column = number_column(frame[name], name, table.place(name), mapped=False)
        values[name] = column
        if np.isnan(column).any():
            row = int(np.flatnonzero(np.isnan(column))[0])
            raise DataError(
                f"{table.place(name).at(row)}: {name} is missing: give a number, or leave the row out"
            )
    prompts = prompt_column(frame["prompt"], table.place("prompt")).tolist()
    return Scored(prompts, values["score"], values.get("cost"))
