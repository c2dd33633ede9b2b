"""Charts as inline SVG: no script needed to see them, colours from the page's style sheet (light, dark, print)."""

from __future__ import annotations

import json

import numpy as np
from markupsafe import Markup, escape

from cabs_core.report.charts import Chart, Panel
from cabs_core.report.scale import limits, tick_text, ticks


def render(chart: Chart) -> Markup:
    """The figure's drawing: one SVG per panel (or the forest plot) and one legend for all panels."""
    if chart.rows:
        return Markup(_forest(chart))
    narrow = len(chart.panels) > 1
    parts = [_panel(chart, panel, i, narrow) for i, panel in enumerate(chart.panels)]
    return Markup(
        f'<div class="panels {"many" if narrow else "one"}" data-chart="{chart.key}">{"".join(parts)}</div>{_legend(chart)}'
    )


def _legend(chart: Chart) -> str:
    items = []
    for i, s in enumerate(chart.panels[0].series):
        sample = f'<svg viewBox="0 0 24 8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4" class="line c{s.colour}" stroke-dasharray="{s.dash}"/></svg>'
        items.append(
            f'<label><input type="checkbox" data-series="{i}"{" checked" if s.visible else ""}>{sample}{escape(s.name)}</label>'
        )
    return f'<fieldset class="legend" data-for="{chart.key}"><legend>Policies shown</legend>{"".join(items)}</fieldset>'


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _path(x, y) -> str:
    return "M" + "L".join(f"{_number(a)} {_number(b)}" for a, b in zip(x, y))


def _panel(chart: Chart, panel: Panel, index: int, narrow: bool) -> str:
    width, height = (420, 340) if narrow else (760, 450)
    left, right, top, bottom = 62, 14, 50 if panel.title else 34, 52 if narrow else 64
    shown = [s for s in panel.series if s.visible] or panel.series
    xs = [s.x for s in shown] + [s.markers[:, 0] for s in shown if s.markers is not None]
    ys = [v for s in shown for v in (s.y, s.low, s.high) if v is not None]
    ys += [s.markers[:, 1] for s in shown if s.markers is not None]
    x0, x1 = limits(np.concatenate(xs), pad=0.02)
    y0, y1 = limits(np.concatenate(ys), zero=panel.zero_line)

    def to_x(v):
        return left + (np.asarray(v, float) - x0) / (x1 - x0) * (width - left - right)

    def to_y(v):
        return height - bottom - (np.asarray(v, float) - y0) / (y1 - y0) * (height - top - bottom)

    name = f"{chart.key}-{index}"
    alt = chart.alt if index == 0 else f"{panel.title}: {panel.y_label} by {panel.x_label}."
    out = [
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d" data-panel="{index}">',
        f'<title id="{name}-t">{escape(" – ".join(filter(None, (chart.title, panel.title))))}</title>',
        f'<desc id="{name}-d">{escape(alt)}</desc>',
        f'<clipPath id="{name}-clip"><rect x="{left}" y="{top}" width="{width - left - right}" height="{height - top - bottom}"/></clipPath>',
    ]
    if panel.title:
        out.append(f'<text class="panel-title" x="0" y="16">{escape(panel.title)}</text>')
    y_ticks, x_ticks = ticks(y0, y1, 5), ticks(x0, x1, 4 if narrow else 6)
    y_step = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 0.1
    x_step = x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else 1
    for v in y_ticks:
        y = _number(float(to_y(v)))
        zero = " zero" if v == 0 and panel.zero_line else ""
        out.append(f'<line class="grid{zero}" x1="{left}" x2="{width - right}" y1="{y}" y2="{y}"/>')
        out.append(
            f'<text class="tick" x="{left - 7}" y="{y}" dy=".35em" text-anchor="end">{tick_text(v, y_step)}</text>'
        )
    for v in x_ticks:
        x = _number(float(to_x(v)))
        out.append(
            f'<line class="tickmark" x1="{x}" x2="{x}" y1="{height - bottom}" y2="{height - bottom + 4}"/>'
        )
        out.append(
            f'<text class="tick" x="{x}" y="{height - bottom + 8}" dy=".9em" text-anchor="middle">{tick_text(v, x_step)}</text>'
        )
    out.append(
        f'<line class="axis" x1="{left}" x2="{width - right}" y1="{height - bottom}" y2="{height - bottom}"/>'
    )
    out.append(
        f'<text class="label" x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    # The label of the y axis lies above it: it never collides with the numbers, whatever the size of the type.
    out.append(f'<text class="label" x="0" y="{top - 14}">{escape(panel.y_label)}</text>')
    data = {"x": [left, width - right, x0, x1], "y": [height - bottom, top, y0, y1], "series": []}
    out.append(f'<g clip-path="url(#{name}-clip)">')
    for i, s in enumerate(panel.series):
        hidden = "" if s.visible else ' style="display:none"'
        out.append(f'<g data-series="{i}"{hidden}>')
        px, py = to_x(s.x), to_y(s.y)
        if s.low is not None and np.any(s.high > s.low):
            band = _path(np.r_[px, px[::-1]], np.r_[to_y(s.low), to_y(s.high)[::-1]])
            out.append(f'<path class="band c{s.colour}" d="{band}Z"/>')
        out.append(f'<path class="line c{s.colour}" stroke-dasharray="{s.dash}" d="{_path(px, py)}"/>')
        if s.markers is not None:
            dots = "".join(
                f'<circle cx="{_number(a)}" cy="{_number(b)}" r="2.6"/>'
                for a, b in zip(to_x(s.markers[:, 0]), to_y(s.markers[:, 1]))
            )
            out.append(f'<g class="dots c{s.colour}">{dots}</g>')
        out.append("</g>")
        data["series"].append(
            {"name": s.name, "c": s.colour, "x": _short(s.x), "y": _short(s.y)}
            | ({"note": s.note} if s.note else {})
        )
    out.append(
        '<g class="cursor" style="display:none"><line class="crosshair"/><circle r="4"/></g></g></svg>'
    )
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<div class="panel">{"".join(out)}<script type="application/json">{text}</script></div>'


def _short(values) -> list[float]:
    return [float(f"{v:.5g}") for v in values]


def _forest(chart: Chart) -> str:
    width, row, left, right, top = 760, 25, 236, 74, 8
    height = top + row * len(chart.rows) + 62
    low, high = limits([v for r in chart.rows for v in (r.low, r.high)], pad=0.03)

    def to_x(v: float) -> float:
        return left + (v - low) / (high - low) * (width - left - right)

    out = [
        f'<svg class="plot forest" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{chart.key}-t {chart.key}-d">',
        f'<title id="{chart.key}-t">{escape(chart.title)}</title><desc id="{chart.key}-d">{escape(chart.alt)}</desc>',
    ]
    marks = ticks(low, high, 6)
    step = marks[1] - marks[0] if len(marks) > 1 else 0.1
    bottom = top + row * len(chart.rows)
    for v in marks:
        x = _number(to_x(v))
        out.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        out.append(
            f'<text class="tick" x="{x}" y="{bottom + 4}" dy=".9em" text-anchor="middle">{tick_text(v, step)}</text>'
        )
    for i, r in enumerate(chart.rows):
        y = top + row * (i + 0.5)
        out.append(
            f"<g><title>{escape(r.name)}: {r.value:.4f}, 95 % interval {r.low:.4f} to {r.high:.4f}</title>"
            f'<text class="row" x="{left - 10}" y="{y}" dy=".35em" text-anchor="end">{escape(r.name)}</text>'
            f'<line class="line c{r.colour}" x1="{_number(to_x(r.low))}" x2="{_number(to_x(r.high))}" y1="{y}" y2="{y}"/>'
            f'<circle class="point c{r.colour}{" hollow" if r.hollow else ""}" cx="{_number(to_x(r.value))}" cy="{y}" r="5"/>'
            f'<text class="value" x="{width - right + 8}" y="{y}" dy=".35em">{r.value:.3f}</text></g>'
        )
    out.append(
        f'<text class="label" x="{(left + width - right) / 2}" y="{height - 6}" text-anchor="middle">{escape(chart.x_label)}</text></svg>'
    )
    return f'<div class="panels one">{"".join(out)}</div>'
