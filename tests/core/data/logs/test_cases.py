"""Small logs as their writers write them, with what must come out: `cases/cases.json`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cabs_core import read_log
from cabs_core.base.errors import DataError
from cabs_core.evaluation.ope.data import read_table
from cabs_core.evaluation.ope.evaluate import evaluate

CASES = Path(__file__).with_name("cases")
COLUMNS = {
    "prompts": "prompt",
    "models": "model",
    "scores": "score",
    "costs": "cost",
    "propensities": "propensity",
}


def listed(name: str) -> list[dict]:
    return [pytest.param(c, id=c["file"]) for c in json.loads((CASES / name).read_text())]


@pytest.mark.parametrize("case", listed("cases.json"))
def test_a_log_as_its_writer_writes_it(case: dict) -> None:
    expect = case["expect"]
    given = {name: case[name] for name in ("columns", "score_range") if name in case}
    if "error_names" in expect:
        with pytest.raises(DataError, match=expect["error_names"]):
            read_log(CASES / case["file"], case["format"], **given)
        return
    log = read_log(CASES / case["file"], case["format"], **given)
    for name, column in COLUMNS.items():
        if name in expect:
            values = log.frame[column].astype(object).where(log.frame[column].notna(), None)
            assert values.tolist() == expect[name], name
    assert len(log) == log.receipt.kept == expect.get("kept", len(log))
    assert log.receipt.records == log.receipt.kept + sum(log.receipt.left_out.values())
    assert expect.get("receipt_says", "") in str(log.receipt)


@pytest.mark.parametrize("smallest", [1e-300, 5e-324, 1e-20])
@pytest.mark.filterwarnings("error")
def test_one_absurd_weight_is_an_estimate_or_a_refusal(tmp_path: Path, smallest: float) -> None:
    text = (CASES / "tiny_propensity.jsonl").read_text().replace("1e-300", f"{smallest:g}")
    (tmp_path / "log.jsonl").write_text(text * 5)
    data = read_table(tmp_path / "log.jsonl")
    assert data.propensities.min() == smallest
    estimates = evaluate(data, np.tile([0.5, 0.5], (len(data), 1)), 0.0)
    assert estimates.refused or all(np.isfinite(row.value) for row in estimates.rows)
