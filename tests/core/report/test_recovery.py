"""Regret along the stream: shown where something changes on the way, with the round of the change."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from cabs_core.base.statistics.uncertainty import half_width
from cabs_core.report.banners import limits
from cabs_core.report.data import PoolData
from cabs_core.report.findings import rq4
from cabs_core.report.names import label
from cabs_core.report.recovery import recovery


def changed(artifacts, condition="none", later=None) -> PoolData:
    """Pool `one`, as if it had been replayed under this condition."""
    data = PoolData("one", artifacts)
    settings = data.settings | {"later_models": later or {}}
    data.__dict__["info"] = data.info | {"condition": condition, "pool_settings": json.dumps(settings)}
    data.__dict__["settings"] = settings
    return data


def evidence_of(times):
    return SimpleNamespace(problem=SimpleNamespace(times=times))


def with_curves(folder, artifacts, keep):
    """The same marts, with those rows of the regret curves that `keep` takes."""
    shutil.copytree(artifacts / "marts", folder / "marts")
    path = folder / "marts" / "mart_regret_curves.parquet"
    curves = pd.read_parquet(path)
    curves[keep(curves)].to_parquet(path)
    return folder


@pytest.mark.parametrize("condition", ["none", "task_shift", "sessions"])
def test_nothing_is_drawn_where_nothing_changes_on_the_way(pages, condition):
    assert recovery(changed(pages[0], condition), None) is None


def test_models_that_change_are_marked_at_their_round(pages):
    data = changed(pages[0], later={"model-1": "model-1 (June)"})
    figure = recovery(data, evidence_of(np.repeat([0.0, 1.0], [35, 25])))
    spec = json.loads(figure.spec())
    marks = [rows for rows in spec["datasets"].values() if "text" in rows[0] and "series" not in rows[0]]
    assert marks == [[{"x": 35.0, "text": "models change"}]]
    assert "model-1 becomes model-1 (June)" in figure.caption
    lines = next(rows for rows in spec["datasets"].values() if "low" in rows[0])
    curves = data.mart("regret_curves")
    point = next(r for r in lines if r["series"] == "Hier-mix" and r["level"] == "overall" and r["x"] == 60)
    row = curves[(curves["policy"] == "hier_mix") & (curves["regime"] == "overall") & (curves["round"] == 60)]
    assert point["y"] == pytest.approx(row["recent_regret"].item(), abs=1e-4)
    spread = half_width(row["recent_regret_se"].item(), row["trials"].item())
    assert point["high"] - point["y"] == pytest.approx(spread, abs=1e-4)
    assert not any(r["series"] == "Random" for r in lines)
    assert any("model-1 changed" in text for text in limits(data, None))


def test_a_stress_condition_on_the_stream_is_drawn_too(pages):
    figure = recovery(changed(pages[0], "arms_disappear"), None)
    assert "models disappear" in figure.spec() and "Stress test" in figure.caption
    late = recovery(changed(pages[0], "delayed_rewards"), None)
    assert "1 to 200 rounds" in late.caption and len(late.table.rows) >= 4


def test_the_best_router_may_have_no_curve(pages, tmp_path):
    artifacts = with_curves(tmp_path, pages[0], lambda c: c["policy"] != "hier_mix")
    data = changed(artifacts, "drift")
    figure = recovery(data, None)
    assert "Hier-mix" not in figure.alt and "before" not in figure.alt
    assert "Hier-mix" not in rq4(data)


def test_a_router_may_lack_a_regime(pages, tmp_path):
    artifacts = with_curves(tmp_path, pages[0], lambda c: (c["policy"] != "lin_ts") | (c["regime"] != "high"))
    rows = [r for r in recovery(changed(artifacts, "drift"), None).table.rows if r[0] == label("lin_ts")]
    assert [r[1] for r in rows] == ["Mean of the regimes", "Low ρ", "Medium ρ"]
