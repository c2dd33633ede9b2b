"""`cabs pool add --today` writes today's model into the copy of the pool file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cabs_core.base.errors import PoolError
from cabs_core.data.pools.registry import add_pool

POOL = "name: mine\nsource: {kind: file, path: table.csv}\npolicies: [best_single]\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    rows = [(f"prompt {i}", model, 1.0, 0.01) for i in range(20) for model in ("big", "small")]
    pd.DataFrame(rows, columns=["prompt", "model", "score", "cost"]).to_csv(
        tmp_path / "table.csv", index=False
    )
    (tmp_path / "mine.yaml").write_text(POOL, encoding="utf-8")
    return tmp_path / "mine.yaml"


def test_todays_model_is_a_field_of_the_copy_and_the_given_file_stays(file: Path) -> None:
    assert add_pool(file, "small").pool_file.pool.today == "small"
    assert file.read_text(encoding="utf-8") == POOL
    assert add_pool(file).pool_file.pool.today is None


def test_a_file_of_one_flow_mapping_is_refused_and_nothing_is_written(file: Path) -> None:
    file.write_text("{name: mine, source: {kind: file, path: table.csv}}", encoding="utf-8")
    with pytest.raises(PoolError, match="today: small"):
        add_pool(file, "small")
    assert add_pool(file).verb == "added"
