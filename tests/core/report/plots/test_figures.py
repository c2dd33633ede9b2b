"""Figures: one specification for page and PNG, names that do not cover each other, text that cannot become
markup."""

import json
import re
from types import SimpleNamespace

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.catalog.policies import policies
from cabs_core.report.cards import as_good
from cabs_core.report.charts import frontier_chart
from cabs_core.report.names import style
from cabs_core.report.plots.charts import NARROW, bars, heatmap, intervals, lines, moved_apart, points, short
from cabs_core.report.plots.figure import Figure, FigureTable
from cabs_core.report.plots.theme import COLOURS, SHAPES, Style, default_styles

EVIL = "</script><script>alert(1)</script>"


def curve(name: str, **columns) -> pd.DataFrame:
    x = np.arange(5.0)
    return pd.DataFrame({"series": name, "x": x, "y": x, "low": x - 1, "high": x + 1} | columns)


def figure(chart) -> Figure:
    return Figure("key", "Title", "caption", "what it shows", chart, FigureTable(["a"], [["b"]]))


@pytest.fixture(scope="module")
def charts():
    rows = pd.DataFrame(
        {
            "name": [EVIL, "b"],
            "value": [0.2, -0.1],
            "low": [0.1, -0.2],
            "high": [0.3, 0.0],
            "text": ["x", "y"],
            "style": [Style(1), Style(2)],
            "hollow": [True, False],
        }
    )
    dots = pd.DataFrame(
        {
            "name": [EVIL, "b"],
            "short": [EVIL, "b"],
            "x": [1e-4, 1e-2],
            "y": [0.3, 0.7],
            "front": [True, False],
        }
    )
    frame = pd.concat([curve(EVIL), curve("b")])
    return {
        "lines": lines(
            frame, default_styles([EVIL, "b"]), x_title="x", y_title="y", zero_line=True, diagonal=True
        ),
        "intervals": intervals(rows, x_title="x"),
        "bars": bars(rows, x_title="x"),
        "points": alt.layer(*points(dots, x_title="x", y_title="y")).add_params(NARROW),
        "heatmap": heatmap(np.eye(2), [EVIL, "b"], ["c", EVIL], what="v", diverging=True),
    }


@pytest.mark.parametrize("name", ["lines", "intervals", "bars", "points", "heatmap"])
def test_a_chart_is_drawn_for_a_page_and_as_a_small_png(charts, name):
    drawn = figure(charts[name])
    assert (
        drawn.drawing.startswith("<svg") and "<script" not in drawn.drawing and "</script" not in drawn.spec()
    )
    assert (
        'id="clip' not in drawn.drawing and "url(#clip" not in drawn.drawing
    )  # ids of two drawings must differ
    assert "graphics-symbol" not in drawn.drawing  # the figure says what it shows, not each of its parts
    assert json.loads(drawn.spec())["width"] == "container"
    assert drawn.png.startswith(b"\x89PNG") and 2_000 < len(drawn.png) < 100_000


@pytest.mark.parametrize("name", ["lines", "intervals", "bars", "points", "heatmap"])
def test_a_chart_obeys_the_schema_of_vega_lite(charts, name):
    charts[name].to_dict(validate=True)  # raises an error if it does not


def test_the_page_has_variables_where_the_png_has_colours(charts):
    drawn = figure(charts["lines"])
    used = set(re.findall(r"var\(--\w+\)", drawn.drawing + drawn.spec()))
    assert "var(--c0)" in used and used <= set(COLOURS)


def test_series_differ_by_more_than_colour():
    styles = default_styles([f"s{i}" for i in range(8)])
    assert len({s.shape for s in styles.values()}) == 8 and {s.shape for s in styles.values()} <= set(SHAPES)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.floats(0.1, 30))
def test_names_are_moved_apart_as_little_as_needed(values, gap):
    values = np.sort(values)
    placed = moved_apart(values, gap)
    assert (np.diff(placed) >= gap - 1e-9).all()
    assert placed.mean() == pytest.approx(values.mean(), abs=1e-9)
    if (np.diff(values) >= gap).all():
        assert placed == pytest.approx(values)


def test_long_names_are_cut_in_the_middle():
    assert (
        short("a" * 26) == "a" * 26
        and short("abcdefghijklmnopqrstuvwxyz0123456789", 20) == "abcdefghi…0123456789"
    )


def test_more_rows_than_altair_draws_unasked():
    frame = pd.DataFrame({"x": np.arange(6000.0), "y": np.arange(6000.0)})
    spec = json.loads(figure(alt.Chart(frame).mark_point().encode(x="x", y="y")).spec())
    assert len(next(iter(spec["datasets"].values()))) == 6000


def test_names_at_the_ends_of_lines_never_cover_each_other():
    """Whatever the intervals make of the axis, and whichever lines the reader ticks."""
    names = [f"p{i}" for i in range(9)]
    ends = pd.DataFrame({"series": names, "x": 1.0, "y": [0.70 + 0.002 * (i // 2) for i in range(9)]})
    frame = pd.concat([ends.assign(x=x, rho=x, low=0.5, high=0.9) for x in (0.1, 1.0)])
    models = pd.DataFrame({"model": ["m" * 24, "b"], "cost": [2.0, 0.1], "score": [0.7, 0.4], "front": True})
    models["low"], models["high"] = 0.1, 1.0
    spec = frontier_chart(frame, models, default_styles(names), set(names[::3])).to_dict()
    rows = [row for data in spec["datasets"].values() for row in data]
    places = sorted(row["y"] for row in rows if "end_y" in row)
    assert len(places) == 9 and np.diff(places).min() >= 15 * 0.9 / 420 * 0.999
    (name,) = [row for row in rows if row.get("short", "").startswith("m")]
    assert name["label_x"] < name["x"], "a name of a model stands left of the column of names"


@pytest.mark.parametrize("name", sorted(policies()))
def test_presets_of_a_policy_look_different(name: str) -> None:
    names = [name, *(f"{name}@{preset}" for preset in policies()[name].presets[1:])]
    assert len({style(policy) for policy in names}) == len(names)
    assert style(f"{names[-1]}@epsilon=0.1") == style(name)


@pytest.mark.parametrize(("cheapest", "title"), [(0.1, " (log scale)"), (0.0, "")])
def test_the_axis_of_costs_says_whether_it_is_logarithmic(cheapest: float, title: str) -> None:
    frame = pd.DataFrame({"rho": 1.0, "series": "a", "x": [1.0, 2.0], "y": 0.5, "low": 0.4, "high": 0.6})
    models = pd.DataFrame({"model": ["m", "n"], "cost": [cheapest, 2.0], "score": [0.4, 0.7], "front": True})
    models["low"], models["high"] = 0.1, 1.0
    spec = json.dumps(frontier_chart(frame, models, default_styles(["a"]), {"a"}).to_dict())
    titles = set(re.findall(r'"title": "(USD per 1,000 requests[^"]*)"', spec))
    assert titles == {f"USD per 1,000 requests{title}"}
    assert ('"type": "log"' in spec) == bool(title)


def test_routers_within_the_noise_are_those_that_all_pairs_together_do_not_tell_apart() -> None:
    pairs = {"b": {"significant": True, "significant_adjusted": False}, "c": {"significant_adjusted": True}}
    data = SimpleNamespace(routers=["a", "b", "c", "d"], pair=lambda policy, best: pairs.get(policy))
    assert as_good(data) == ["b"]
