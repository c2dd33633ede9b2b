"""Charts that several pages share, as Altair charts. Data go in as frames; names of columns are fixed."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from cabs_core.report.plots.theme import SHAPES, Style

_DIGITS = 5
#: Set by the page where there is no room for names beside lines; the legend has them.
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
    """Lines with bands, symbols along them and their names at their ends.

    Args:
        frame: columns series, x, y; low and high for bands; one text column for each choice.
        styles: how each series is drawn; its order is that of the legend.
        shown: series drawn and named at first; None for all.
        choices: (column, first value): only rows with the parameter's value are drawn.
        symbols: number of symbols along a line; 0 for one at every point.
        marks: (x, text) of vertical lines.
    """
    frame = _rounded(frame)
    frame["tick"] = _every(frame, [c for c, _ in choices], symbols)
    visible = set(styles) if shown is None else shown
    labels = end_labels(frame, visible, height, [c for c, _ in choices])
    colour, dash, shape = encodings(styles)
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickCount=6))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=y_zero), axis=alt.Axis(tickCount=6))
    hidden = alt.param(name="hidden", value=[n for n in styles if n not in visible])
    params = [hidden, NARROW, *(alt.param(name=f"{c}_chosen", value=first) for c, first in choices)]

    def chosen(rows: pd.DataFrame) -> alt.Chart:
        """The rows of the series and choices that the reader sees."""
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
        at = alt.Chart(pd.DataFrame(list(marks), columns=["x", "text"])).encode(x="x:Q")
        layers += [
            at.mark_rule(color="var(--fg)", strokeDash=[4, 4], strokeWidth=1.2),
            at.mark_text(align="left", dx=5, dy=8, color="var(--fg)").encode(text="text:N", y=alt.value(0)),
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
    """Colour, dash and symbol of the column `series`; the page has legends of its own."""
    names = list(styles)

    def scale(values: list[Any]) -> dict[str, Any]:
        return {"legend": None, "scale": alt.Scale(domain=names, range=values)}

    return (
        alt.Color("series:N", **scale([s.token for s in styles.values()])),
        alt.StrokeDash("series:N", **scale([s.dashes or [1, 0] for s in styles.values()])),
        alt.Shape("series:N", **scale([s.shape for s in styles.values()])),
    )


def tooltips(frame: pd.DataFrame, **titles: str) -> list[alt.Tooltip]:
    """A tooltip a column, with these titles, and the interval where the frame has one."""
    if "low" in frame:
        titles |= {"low": "95 % from", "high": "to"}
    return [alt.Tooltip(f"{c}:{'N' if c in ('series', 'name') else 'Q'}", title=t) for c, t in titles.items()]


def intervals(frame: pd.DataFrame, *, x_title: str) -> alt.LayerChart | alt.FacetChart:
    """One row per name: an estimate with its interval, and the figure written beside.

    frame: columns name, value, low, high, text, style (a Style), hollow (bool); drawn in the frame's order.
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
    """Labelled points as layers, which need the parameter `NARROW`; x is logarithmic unless some x is 0.

    frame: columns name, short (the label), x, y, front (bool: dark, named on narrow screens too), optionally
    low, high.
    A broken line joins the points of the front. `scale`: of the x axis, where other layers share it;
    `names_end`: x right of which these have their names.
    """
    frame = _rounded(frame)
    log = bool((frame["x"] > 0).all())
    frame["label_x"], frame["label_y"] = _label_places(frame, log, 400, names_end)
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
    """Scale of a cost axis around the values."""
    values = np.asarray(values, dtype=float)
    if not log:
        return alt.Scale(zero=True)
    return alt.Scale(
        type="log", nice=False, domain=[_digits(values.min() / 1.3), _digits(values.max() * 1.8)]
    )


def heatmap(
    values: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, what: str, diverging: bool = False
) -> alt.LayerChart | alt.FacetChart:
    """A matrix of shaded cells with the numbers in them. Values in [0, 1], or [-1, 1] with `diverging`."""
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
    """Horizontal bars, the figure at their ends. frame: name, value, text, style; optionally low and high."""
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
    """A name for a label: cut in the middle when it is long."""
    return name if len(name) <= longest else f"{name[: longest - 11]}…{name[-10:]}"


def _digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy with five digits a number: a page need not carry more."""
    frame = frame.copy()
    for column in frame.select_dtypes("floating").columns:
        frame[column] = [_digits(v) if math.isfinite(v) else None for v in frame[column]]
    return frame


def _every(frame: pd.DataFrame, by: list[str], count: int) -> pd.Series:
    """True at about `count` points of each line, at other places for neighbouring lines; at all for 0."""
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
    """Places for the names at the ends of lines, 15 pixels apart where they would cover each other.

    Names of lines that are not shown at first take what the others leave free.

    frame: columns series, x, y, and one for each choice; a row for each of `series` and choices comes back.
    `span`: what the height of the chart shows; default the range of the lines that are shown.
    """
    by = list(by)
    ends = frame.sort_values("x").groupby(["series", *by], sort=False).tail(1)
    parts = []
    for _, group in ends.groupby(by) if by else [(None, ends)]:
        own_lines = frame
        for column in by:
            own_lines = own_lines[own_lines[column] == group[column].iloc[0]]
        inside = own_lines[own_lines["series"].isin(shown)]
        values = inside[[c for c in ("y", "low", "high") if c in inside]].to_numpy(dtype=float)
        seen = span or (float(np.nanmax(values) - np.nanmin(values)) if values.size else 1.0)
        gap = 15 * (seen or 1.0) / height
        named = group[group["series"].isin(shown)].sort_values("y")
        named = named.assign(y=moved_apart(named["y"].to_numpy(dtype=float), gap))
        later = group[~group["series"].isin(shown)].sort_values("y")
        parts += [named, later.assign(y=_left_free(named["y"].tolist(), later["y"].tolist(), gap))]
    return _rounded(pd.concat(parts)[["series", "x", "y", *by]])


def moved_apart(values: np.ndarray, gap: float) -> np.ndarray:
    """Rising values `[n]`, moved as little as possible (least squares) until neighbours are `gap` apart."""
    steps = gap * np.arange(len(values))
    return isotonic_regression(values - steps).x + steps if len(values) else steps


def _left_free(taken: list[float], values: list[float], gap: float) -> list[float]:
    """The values, each at the nearest place that is `gap` from all those taken, and from each other."""
    taken, places = list(taken), []
    for value in values:
        near = [value, *(t + side * gap for t in taken for side in (-1, 1))]
        free = [p for p in near if all(abs(p - t) >= gap * (1 - 1e-9) for t in taken)]
        places.append(min(free, key=lambda p: abs(p - value)))
        taken.append(places[-1])
    return places


def _label_places(
    frame: pd.DataFrame, log: bool, height: int, names_end: float
) -> tuple[list[float], list[float]]:
    """Where each name stands beside its point, in data units, so that names do not cover each other."""
    u = np.log(frame["x"].to_numpy(dtype=float)) if log else frame["x"].to_numpy(dtype=float)
    v = frame["y"].to_numpy(dtype=float)
    low, high = (
        (math.log(frame["x"].min() / 1.3), math.log(frame["x"].max() * 1.8))
        if log
        else (0.0, float(u.max()) or 1.0)
    )
    per_x = ((high - low) or 1.0) / 560
    end = min(high / per_x + 40, (math.log(names_end) if log else names_end) / per_x)
    per_y = (float(v.max() - v.min()) or 1.0) * 1.15 / height
    taken = [(a / per_x - 6, b / per_y - 6, a / per_x + 6, b / per_y + 6) for a, b in zip(u, v, strict=True)]
    xs, ys = list(u), list(v)
    for i in np.lexsort((-v, ~frame["front"].to_numpy(dtype=bool))):
        long = 6.2 * len(frame["short"].iloc[i])
        cx, cy = u[i] / per_x, v[i] / per_y
        best = None
        for dy in (0, 12, -12, 24, -24, 36, -36, 48, -48):
            for x0 in (cx + 9, cx - 9 - long):
                box = (x0, cy + dy - 7, x0 + long, cy + dy + 7)
                if box[0] < low / per_x - 4 or box[2] > end:
                    continue
                if all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken):
                    best = best or (x0, cy + dy, box)
        best = best or (cx + 9, cy, (cx + 9, cy - 7, cx + 9 + long, cy + 7))
        taken.append(best[2])
        xs[i], ys[i] = best[0] * per_x, best[1] * per_y
    return [_digits(math.exp(x) if log else x) for x in xs], [_digits(y) for y in ys]
