"""Small pool files, and the tables that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pools.find import load_pool_file


@pytest.fixture
def pool_file(tmp_path: Path):
    """Make a pool file from fields, beside which relative table paths are found."""

    def make(**fields: Any):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(fields), encoding="utf-8")
        return load_pool_file(path)

    return make


@pytest.fixture
def load_table(tmp_path: Path, pool_file):
    """load_table(table, suffix, **fields): outcomes of a pool whose source is a file with this table."""

    def load(table, suffix: str = ".parquet", *, layout: str = "tidy", columns=None, **fields: Any):
        path = tmp_path / f"t{suffix}"
        if isinstance(table, pa.Table):
            pq.write_table(table, path)
        elif suffix == ".parquet":
            table.to_parquet(path)
        elif suffix == ".csv":
            table.to_csv(path, index=False)
        else:
            table.to_json(path, orient="records", lines=True, double_precision=15)
        source = {"kind": "file", "path": path.name, "layout": layout, "columns": columns or {}}
        return load_outcomes(pool_file(source=source, **fields))

    return load
