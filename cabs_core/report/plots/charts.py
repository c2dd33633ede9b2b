"""Altair charts that several pages share. Data come as frames whose column names are fixed."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from cabs_core.report.plots.theme import SHAPES, Style

#: significant digits of a number in a chart
_DIGITS = 5
#: half of the height of a label, in pixels
_HALF_LABEL = 7
#: parameter that a page sets to True if there is no room for names beside lines
NARROW = alt.param(name="narrow", value=False)


def lines(
    frame: pd.DataFrame,
    styles: dict[str, Style],
    *,
    x_title: str,
    y_title: str,
    shown: set[str] | None = None,
    choices: Sequence[tuple[str, str]] = (),
    zero_line: bool = False,
    diagonal: bool = False,
    symbols: int = 8,
    y_zero: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    height: int = 380,
) -> alt.LayerChart | alt.FacetChart:
    """Chart of lines with bands, symbols along the lines and names at their ends.

    Args:
        frame: columns series, x and y, optionally low and high for bands, and a column for each choice.
        styles: {series: style}, in the order of the legend.
        x_title, y_title: titles of the axes.
        shown: series that are drawn and named at first; None for all.
        choices: (column, value that is chosen at first). The chart draws only rows with the chosen value.
        zero_line: draw a horizontal line at 0.
        diagonal: draw a line from (0, 0) to (1, 1).
        symbols: number of symbols along a line; 0 for a symbol at every point.
        y_zero: let the y axis begin at 0.
        marks: (x, text) of vertical lines.
        height: pixels.
    """
    frame = _rounded(frame)
    columns = [column for column, _ in choices]
    frame["tick"] = _has_symbol(frame, columns, symbols)
    visible = set(styles) if shown is None else shown
    labels = end_labels(frame, visible, height, columns)
    colour, dash, shape = encodings(styles)
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickCount=6))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=y_zero), axis=alt.Axis(tickCount=6))
    hidden = alt.param(name="hidden", value=[n for n in styles if n not in visible])
    params = [hidden, NARROW, *(alt.param(name=f"{c}_chosen", value=first) for c, first in choices)]

    def chosen(rows: pd.DataFrame) -> alt.Chart:
        """Return a chart of the rows that belong to the series and choices that the reader sees."""
        chart = alt.Chart(rows).transform_filter("indexof(hidden, datum.series) < 0")
        for column, _ in choices:
            chart = chart.transform_filter(f"datum.{column} == {column}_chosen")
        return chart

    base = chosen(frame).encode(x=x, y=y, color=colour)
    layers = []
    if "low" in frame:
        band = chosen(frame).mark_area(opacity=0.14)
        layers.append(band.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour))
    if zero_line:
        layers.append(alt.Chart(pd.DataFrame({"y": [0]})).mark_rule(strokeWidth=1.2).encode(y="y:Q"))
    if diagonal:
        ends = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0]})
        layers.append(
            alt.Chart(ends).mark_line(color="var(--soft)", strokeDash=[4, 4]).encode(x="x:Q", y="y:Q")
        )
    if marks:
        marked = alt.Chart(pd.DataFrame(list(marks), columns=["x", "text"])).encode(x="x:Q")
        layers += [
            marked.mark_rule(color="var(--fg)", strokeDash=[4, 4], strokeWidth=1.2),
            marked.mark_text(align="left", dx=5, dy=8, color="var(--fg)").encode(
                text="text:N", y=alt.value(0)
            ),
        ]
    read = tooltips(frame, series=" ", x=x_title, y=y_title)
    layers += [
        base.mark_line(strokeWidth=2).encode(strokeDash=dash),
        base.transform_filter("datum.tick").mark_point(filled=True, size=55, opacity=1).encode(shape=shape),
        base.mark_point(size=160, opacity=0, filled=True).encode(tooltip=read),
        chosen(labels)
        .transform_filter("!narrow")
        .mark_text(align="left", dx=9)
        .encode(x=x, y=alt.Y("y:Q"), text="series:N", color=colour),
    ]
    return alt.layer(*layers).add_params(*params).properties(height=height)


def encodings(styles: dict[str, Style]) -> tuple[alt.Color, alt.StrokeDash, alt.Shape]:
    """Return the encodings of colour, dash and symbol by the column `series`, without legends."""
    names = list(styles)

    def scale(values: list[Any]) -> dict[str, Any]:
        return {"legend": None, "scale": alt.Scale(domain=names, range=values)}

    return (
        alt.Color("series:N", **scale([s.token for s in styles.values()])),
        alt.StrokeDash("series:N", **scale([s.dashes or [1, 0] for s in styles.values()])),
        alt.Shape("series:N", **scale([s.shape for s in styles.values()])),
    )


def tooltips(frame: pd.DataFrame, **titles: str) -> list[alt.Tooltip]:
    """Return a tooltip for each column in `titles`, and for the ends of the interval if there is one.

    Args:
        titles: {column: title in the tooltip}.
    """
    if "low" in frame:
        titles |= {"low": "95 % from", "high": "to"}
    return [alt.Tooltip(f"{c}:{'N' if c in ('series', 'name') else 'Q'}", title=t) for c, t in titles.items()]


def intervals(frame: pd.DataFrame, *, x_title: str) -> alt.LayerChart | alt.FacetChart:
    """Chart with a row for each name: a symbol, its interval, and the figure as text.

    Args:
        frame: columns name, value, low, high, text, style (a `Style`) and hollow (bool: the symbol is not
            filled). Rows are drawn in their order.
    """
    frame = _rounded(
        frame.assign(token=[s.token for s in frame["style"]], shape=[s.shape for s in frame["style"]])
    )
    frame = frame.drop(columns="style")
    order = list(frame["name"])
    y = alt.Y(
        "name:N",
        sort=order,
        title=None,
        axis=alt.Axis(grid=True, labelColor="var(--fg)", domain=False, ticks=False),
    )
    x = alt.X("value:Q", title=x_title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(frame).encode(y=y, color=alt.Color("token:N", scale=None))
    read = tooltips(frame, name=" ", value=x_title)
    shapes = alt.Shape("shape:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES)), legend=None)
    layers = [
        base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.transform_filter("!datum.hollow")
        .mark_point(filled=True, size=90, opacity=1)
        .encode(x=x, shape=shapes, tooltip=read),
        base.transform_filter("datum.hollow")
        .mark_point(filled=False, fill="var(--bg)", strokeWidth=2, size=90, opacity=1)
        .encode(x=x, shape=shapes, tooltip=read),
        base.mark_text(align="left", dx=8, color="var(--fg)").encode(
            x=alt.X("high:Q"), text="text:N", color=alt.value("var(--fg)")
        ),
    ]
    return alt.layer(*layers).properties(height=25 * len(frame))


def points(
    frame: pd.DataFrame,
    *,
    x_title: str,
    y_title: str,
    scale: alt.Scale | None = None,
    names_end: float = math.inf,
) -> list[alt.Chart]:
    """Layers of labelled points, with a broken line through the points of the front.

    The chart that takes the layers needs the parameter `NARROW`. The x axis is logarithmic unless some x is
    0.

    Args:
        frame: columns name, short (the label), x, y, front (bool: the point is dark, and named on narrow
            screens too), and optionally low and high.
        scale: scale of the x axis, if other layers share it.
        names_end: largest x that a label may reach, as long as it finds a free place. A label without a free
            place stands right of its point and may pass `names_end`.
    """
    frame = _rounded(frame)
    log = bool((frame["x"] > 0).all())
    label_x, label_y = _label_places(frame, log, 400, names_end)
    frame["label_x"] = label_x
    frame["label_y"] = label_y
    x = alt.X(
        "x:Q",
        title=x_title,
        scale=scale or cost_scale(frame["x"], log),
        axis=alt.Axis(format="$~g", tickCount=5),
    )
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(frame)
    front = base.transform_filter("datum.front")
    layers = [front.mark_line(color="var(--fg)", strokeDash=[2, 4], strokeWidth=1.2).encode(x=x, y=y)]
    if "low" in frame:
        layers.append(
            base.mark_rule(color="var(--fg)", opacity=0.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
        )
    read = tooltips(frame, name=" ", x=x_title, y=y_title)
    layers += [
        base.mark_point(filled=True, shape="square", size=80, opacity=1, color="var(--fg)").encode(
            x=x, y=y, tooltip=read, fillOpacity=alt.condition("datum.front", alt.value(1), alt.value(0.45))
        ),
        base.transform_filter("datum.front || !narrow")
        .mark_text(align="left", fontSize=11)
        .encode(x=alt.X("label_x:Q"), y=alt.Y("label_y:Q"), text="short:N"),
    ]
    return layers


def cost_scale(values: np.ndarray | pd.Series, log: bool) -> alt.Scale:
    """Return the scale of a cost axis: from 0, or logarithmic around the values with room for labels.

    Args:
        values: costs.
        log: True for a logarithmic scale.
    """
    values = np.asarray(values, dtype=float)
    if not log:
        return alt.Scale(zero=True)
    return alt.Scale(
        type="log", nice=False, domain=[_digits(values.min() / 1.3), _digits(values.max() * 1.8)]
    )


def heatmap(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, what: str, diverging: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """Chart of a matrix as shaded cells, with the numbers in the cells for at most 24 columns.

    Args:
        values: `[rows, columns]` in [0, 1], or in [-1, 1] with `diverging`.
        rows, columns: their names.
        what: name of a value in tooltips.
        diverging: give negative values another colour.
    """
    frame = pd.DataFrame(
        {
            "row": np.repeat([short(r) for r in rows], len(columns)),
            "column": np.tile([short(c) for c in columns], len(rows)),
            "value": np.asarray(values, dtype=float).ravel(),
        }
    )
    frame["text"] = [
        "" if not math.isfinite(v) else f"{v:.2f}".replace("0.", ".", 1).replace("1.00", "1")
        for v in frame["value"]
    ]
    frame["shade"] = frame["value"].abs().clip(0, 1).fillna(0)
    frame = _rounded(frame)
    x = alt.X(
        "column:N",
        sort=[short(c) for c in columns],
        title=None,
        axis=alt.Axis(labelAngle=-48, orient="top", ticks=False, domain=False),
    )
    y = alt.Y("row:N", sort=[short(r) for r in rows], title=None, axis=alt.Axis(ticks=False, domain=False))
    base = alt.Chart(frame).encode(x=x, y=y)
    sign = (
        alt.condition("datum.value < 0", alt.value("var(--c1)"), alt.value("var(--c0)"))
        if diverging
        else alt.value("var(--c0)")
    )
    read = [
        alt.Tooltip("row:N", title=" "),
        alt.Tooltip("column:N", title="and"),
        alt.Tooltip("value:Q", title=what, format=".3f"),
    ]
    layers = [
        base.mark_rect(stroke="var(--bg)", strokeWidth=1).encode(
            color=sign,
            fillOpacity=alt.FillOpacity(
                "shade:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.55]), legend=None
            ),
            tooltip=read,
        )
    ]
    if len(columns) <= 24:
        layers.append(base.mark_text(fontSize=10.5).encode(text="text:N"))
    return alt.layer(*layers).properties(height=24 * len(rows))


def bars(frame: pd.DataFrame, *, x_title: str) -> alt.LayerChart | alt.FacetChart:
    """Chart of horizontal bars with the figures at their ends.

    Args:
        frame: columns name, value, text and style (a `Style`), and optionally low and high for intervals.
    """
    frame = _rounded(frame.assign(token=[s.token for s in frame["style"]])).drop(columns="style")
    frame["end"] = frame[[c for c in ("value", "high") if c in frame]].max(axis=1).clip(lower=0)
    y = alt.Y(
        "name:N",
        sort=list(frame["name"]),
        title=None,
        axis=alt.Axis(labelColor="var(--fg)", ticks=False, domain=False),
    )
    base = alt.Chart(frame).encode(y=y)
    layers = [
        base.mark_bar(height=14, opacity=0.85).encode(
            x=alt.X("value:Q", title=x_title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
            color=alt.Color("token:N", scale=None),
            tooltip=[alt.Tooltip("name:N", title=" "), alt.Tooltip("value:Q", title=x_title)],
        )
    ]
    if "low" in frame:
        layers.append(
            base.mark_rule(color="var(--fg)", strokeWidth=1.3).encode(x=alt.X("low:Q"), x2="high:Q")
        )
    layers.append(base.mark_text(align="left", dx=6).encode(x=alt.X("end:Q"), text="text:N"))
    return alt.layer(*layers).properties(height=25 * len(frame))


def short(name: str, longest: int = 26) -> str:
    """Return a name for a label, with its middle cut out if it is longer than `longest` characters."""
    if len(name) <= longest:
        return name
    return f"{name[: longest - 11]}…{name[-10:]}"


def _digits(value: float) -> float:
    """Return a number rounded to five significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose floats have five significant digits, which keeps pages small.

    Infinite numbers become NaN. A column of floats without any finite number becomes a column of None.
    """
    frame = frame.copy()
    for column in frame.select_dtypes("floating").columns:
        frame[column] = [_digits(v) if math.isfinite(v) else None for v in frame[column]]
    return frame


def _has_symbol(frame: pd.DataFrame, by: list[str], count: int) -> pd.Series:
    """Return True for about `count` points of each line, or for all points if `count` is 0.

    Neighbouring lines have their symbols at different places.

    Args:
        by: columns that tell the lines of a series apart.
    """
    place = frame.groupby(["series", *by]).cumcount()
    size = frame.groupby(["series", *by])["x"].transform("size")
    if not count:
        return pd.Series(True, index=frame.index)
    step = (size / count).clip(lower=1).round().astype(int)
    shift = frame["series"].map({n: i for i, n in enumerate(frame["series"].unique())})
    return (place % step == shift % step) | (place == size - 1)


def end_labels(
    frame: pd.DataFrame, shown: set[str], height: int, by: Sequence[str] = (), span: float | None = None
) -> pd.DataFrame:
    """Return the places of the names at the ends of lines, at least 15 pixels apart.

    Names of lines that are not shown at first get places that the other names leave free.

    Args:
        frame: columns series, x, y and the columns `by`.
        shown: series that are drawn at first.
        height: pixels of the chart.
        by: columns that tell the lines of a series apart.
        span: range of y that the height shows; default the range of the lines that are shown.

    Returns:
        frame with the columns series, x, y and `by`, a row for each line.
    """
    by = list(by)
    ends = frame.sort_values("x").groupby(["series", *by], sort=False).tail(1)
    parts = []
    if by:
        groups = [group for _, group in ends.groupby(by)]
    else:
        groups = [ends]
    for group in groups:
        own_lines = frame
        for column in by:
            own_lines = own_lines[own_lines[column] == group[column].iloc[0]]
        inside = own_lines[own_lines["series"].isin(shown)]
        values = inside[[c for c in ("y", "low", "high") if c in inside]].to_numpy(dtype=float)
        visible_range = span
        if not visible_range and values.size:
            visible_range = float(np.nanmax(values) - np.nanmin(values))
        gap = 15 * (visible_range or 1.0) / height
        named = group[group["series"].isin(shown)].sort_values("y")
        named = named.assign(y=moved_apart(named["y"].to_numpy(dtype=float), gap))
        later = group[~group["series"].isin(shown)].sort_values("y")
        parts += [named, later.assign(y=_free_places(named["y"].tolist(), later["y"].tolist(), gap))]
    return _rounded(pd.concat(parts)[["series", "x", "y", *by]])


def moved_apart(values: np.ndarray, gap: float) -> np.ndarray:
    """Return sorted values `[n]`, moved as little as possible so that neighbours are at least `gap` apart.

    The sum of the squared moves is least (isotonic regression). The order of the values stays.
    """
    steps = gap * np.arange(len(values))
    if not len(values):
        return steps
    moved: np.ndarray = isotonic_regression(values - steps).x + steps
    return moved


def _free_places(taken: list[float], values: list[float], gap: float) -> list[float]:
    """Return for each value the nearest place that is `gap` away from all places that are taken.

    A place that was returned is taken for the values after it.
    """
    taken = list(taken)
    places = []
    for value in values:
        near = [value, *(t + side * gap for t in taken for side in (-1, 1))]
        free = [p for p in near if all(abs(p - t) >= gap * (1 - 1e-9) for t in taken)]
        places.append(min(free, key=lambda p: abs(p - value)))
        taken.append(places[-1])
    return places


class _Box(NamedTuple):
    """A rectangle in pixels that a point or a label covers."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: "_Box") -> bool:
        """Return True if both rectangles have a place in common, their borders included."""
        beside = self.right < other.left or self.left > other.right
        above = self.top < other.bottom or self.bottom > other.top
        return not (beside or above)


def _label_places(
    frame: pd.DataFrame, log: bool, height: int, names_end: float
) -> tuple[list[float], list[float]]:
    """Return x and y of the left ends of all labels, in data units, so that labels do not cover each other.

    Labels of the front are placed first, from the top. Each gets the first free place right or left of its
    point, at a growing vertical distance. If no place is free, the label stands right of its point.

    Args:
        frame: columns x, y, short (the label) and front, see `points`.
        log: True if the x axis is logarithmic.
        height: pixels of the chart.
        names_end: largest x that a label in a free place may reach.
    """
    x = frame["x"].to_numpy(dtype=float)
    y = frame["y"].to_numpy(dtype=float)
    low = 0.0
    high = float(x.max()) or 1.0
    right_end = names_end
    if log:
        low = math.log(x.min() / 1.3)
        high = math.log(x.max() * 1.8)
        right_end = math.log(names_end)
        x = np.log(x)
    x_unit = ((high - low) or 1.0) / 560
    y_unit = (float(y.max() - y.min()) or 1.0) * 1.15 / height
    first = low / x_unit - 4
    last = min(high / x_unit + 40, right_end / x_unit)
    taken = [_Box(a - 6, b - 6, a + 6, b + 6) for a, b in zip(x / x_unit, y / y_unit, strict=True)]
    label_x = list(x)
    label_y = list(y)
    for i in np.lexsort((-y, ~frame["front"].to_numpy(dtype=bool))):
        candidates = _label_boxes(x[i] / x_unit, y[i] / y_unit, 6.2 * len(frame["short"].iloc[i]))
        box = candidates[0]
        for candidate in candidates:
            fits = candidate.left >= first and candidate.right <= last
            if fits and not any(candidate.overlaps(other) for other in taken):
                box = candidate
                break
        taken.append(box)
        label_x[i] = box.left * x_unit
        label_y[i] = (box.bottom + _HALF_LABEL) * y_unit
    if log:
        label_x = [math.exp(value) for value in label_x]
    return [_digits(value) for value in label_x], [_digits(value) for value in label_y]


def _label_boxes(x: float, y: float, length: float) -> list[_Box]:
    """Return the places beside a point that a label of this length may take, in pixels, best first."""
    boxes = []
    for distance in (0, 12, -12, 24, -24, 36, -36, 48, -48):
        for left in (x + 9, x - 9 - length):
            middle = y + distance
            boxes.append(_Box(left, middle - _HALF_LABEL, left + length, middle + _HALF_LABEL))
    return boxes
