"""Small charts as inline SVG, in the page's own colours (CSS classes), without a script or a font to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

_FONT = 12


def scatter(
    names: Sequence[str],
    x: np.ndarray,
    y: np.ndarray,
    front: Sequence[bool],
    *,
    x_label: str,
    y_label: str,
    width: int = 720,
    height: int = 420,
) -> str:
    """Points with labels on a logarithmic x axis (or a linear one if some x is 0); `front` marks the frontier."""
    left, right, top, bottom = 56, 16, 14, 46
    log = bool((x > 0).all())
    u = np.log10(x) if log else np.asarray(x, dtype=float)
    x_low, x_high = _padded(u, 0.06, 0.16)
    y_low, y_high = _padded(np.asarray(y, dtype=float), 0.08, 0.08)

    def px(value: float) -> float:
        return left + (value - x_low) / (x_high - x_low) * (width - left - right)

    def py(value: float) -> float:
        return height - bottom - (value - y_low) / (y_high - y_low) * (height - top - bottom)

    parts = _y_axis(y_low, y_high, py, left, width - right, y_label, height)
    for value, text in _log_ticks(x_low, x_high) if log else _ticks(x_low, x_high):
        parts.append(
            f'<text class="tick" x="{px(value):.1f}" y="{height - bottom + 18}" text-anchor="middle">{text}</text>'
        )
        parts.append(
            f'<line class="grid" x1="{px(value):.1f}" x2="{px(value):.1f}" y1="{top}" y2="{height - bottom}"/>'
        )
    parts.append(_x_title(x_label, (left + width - right) / 2, height - 6))
    order = [i for i in np.argsort(u) if front[i]]
    if len(order) > 1:
        path = " ".join(f"{px(u[i]):.1f},{py(y[i]):.1f}" for i in order)
        parts.append(f'<polyline class="front" points="{path}"/>')
    placed = [(px(a) - 6, py(b) - 6, px(a) + 6, py(b) + 6) for a, b in zip(u, y, strict=True)]
    for i in sorted(range(len(names)), key=lambda i: (not front[i], -y[i])):
        cx, cy = px(u[i]), py(y[i])
        kind = "dot best" if front[i] else "dot"
        parts.append(
            f'<circle class="{kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="5"><title>{escape(names[i])}: '
            f"{escape(y_label)} {y[i]:.3f}, {escape(x_label)} {x[i]:.3g}</title></circle>"
        )
        spot = _label_spot(cx, cy, short(names[i]), placed, width - right, top, height - bottom)
        if spot:
            parts.append(
                f'<text class="label" x="{spot[0]:.1f}" y="{spot[1]:.1f}" text-anchor="{spot[2]}">'
                f"{escape(short(names[i]))}</text>"
            )
    return _svg(width, height, parts, f"{y_label} against {x_label}")


def lines(
    x: Sequence[float],
    series: dict[str, np.ndarray],
    *,
    x_label: str,
    y_label: str,
    width: int = 720,
    height: int = 330,
) -> str:
    """Lines over a common x, each named at its right end; the i-th line has the CSS class `line-i`."""
    left, right, top, bottom = 56, 168, 14, 46
    values = np.concatenate(list(series.values()))
    y_low, y_high = min(0.0, float(values.min())), float(max(values.max(), 1e-9)) * 1.05
    x_low, x_high = float(min(x)), float(max(x))
    span = (x_high - x_low) or 1.0

    def px(value: float) -> float:
        return left + (value - x_low) / span * (width - left - right)

    def py(value: float) -> float:
        return height - bottom - (value - y_low) / (y_high - y_low) * (height - top - bottom)

    parts = _y_axis(y_low, y_high, py, left, width - right, y_label, height)
    for value, text in _ticks(x_low, x_high):
        parts.append(
            f'<text class="tick" x="{px(value):.1f}" y="{height - bottom + 18}" text-anchor="middle">{text}</text>'
        )
    parts.append(_x_title(x_label, (left + width - right) / 2, height - 6))
    ends = sorted(((py(float(v[-1])), name, i) for i, (name, v) in enumerate(series.items())))
    shown = -math.inf
    for end, name, i in ends:
        shown = max(end, shown + 16)
        parts.append(
            f'<text class="label line-{i}-text" x="{width - right + 8}" y="{shown + 4:.1f}">{escape(name)}</text>'
        )
    for i, (name, v) in enumerate(series.items()):
        points = " ".join(f"{px(a):.1f},{py(float(b)):.1f}" for a, b in zip(x, v, strict=True))
        parts.append(
            f'<polyline class="line line-{i}" points="{points}"><title>{escape(name)}</title></polyline>'
        )
        if len(v) == 1:
            parts.append(
                f'<circle class="line-{i}-dot" cx="{px(x[0]):.1f}" cy="{py(float(v[0])):.1f}" r="4"/>'
            )
    return _svg(width, height, parts, f"{y_label} against {x_label}")


def heatmap(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    low: float,
    high: float,
    what: str,
    diverging: bool = False,
) -> str:
    """A matrix of coloured cells with tooltips; numbers are written in the cells while they fit."""
    n, m = values.shape
    cell_w = max(16, min(44, 860 // max(m, 1)))
    cell_h = max(16, min(26, 700 // max(n, 1)))
    left = 8 + round(6.4 * max((len(short(r)) for r in rows), default=0))
    top = 14 + round(4.7 * max((len(short(c)) for c in columns), default=0))
    right = round(4.2 * max((len(short(c)) for c in columns), default=0))
    width, height = left + m * cell_w + right, top + n * cell_h + 8
    parts = []
    for j, name in enumerate(columns):
        x = left + (j + 0.5) * cell_w
        parts.append(
            f'<text class="tick" transform="translate({x:.1f},{top - 6}) rotate(-48)">{escape(short(name))}</text>'
        )
    for i, name in enumerate(rows):
        y = top + i * cell_h
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + cell_h / 2 + 4:.1f}" text-anchor="end">{escape(short(name))}</text>'
        )
        for j, column in enumerate(columns):
            value = float(values[i, j])
            colour = _colour(value, low, high, diverging)
            title = f"{escape(name)}, {escape(column)}: {escape(what)} {value:.3f}"
            x = left + j * cell_w
            parts.append(
                f'<rect class="cell" x="{x}" y="{y}" width="{cell_w - 1}" height="{cell_h - 1}" '
                f'fill="{colour[0]}"><title>{title}</title></rect>'
            )
            if cell_w >= 26 and math.isfinite(value):
                text = f"{value:.2f}".replace("0.", ".", 1).replace("1.00", "1")
                parts.append(
                    f'<text class="number" fill="{colour[1]}" x="{x + cell_w / 2 - 0.5:.1f}" '
                    f'y="{y + cell_h / 2 + 3.5:.1f}" text-anchor="middle">{text}</text>'
                )
    return _svg(width, height, parts, what)


def histogram(values: np.ndarray, *, x_label: str, width: int = 720, height: int = 220) -> str:
    """Counts over logarithmic bins of positive values."""
    values = np.asarray(values, dtype=float)
    left, right, top, bottom = 56, 16, 10, 46
    logs = np.log10(np.maximum(values, 1))
    low, high = _padded(logs, 0.02, 0.02)
    counts, edges = np.histogram(logs, bins=40, range=(low, high))

    def px(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    top_count = float(counts.max()) * 1.05

    def py(value: float) -> float:
        return height - bottom - value / top_count * (height - top - bottom)

    parts = _y_axis(0, top_count, py, left, width - right, "prompts", height)
    for count, a, b in zip(counts, edges[:-1], edges[1:], strict=True):
        parts.append(
            f'<rect class="bar" x="{px(a):.1f}" y="{py(count):.1f}" width="{max(px(b) - px(a) - 1, 0.5):.1f}" '
            f'height="{py(0) - py(count):.1f}"><title>{10**a:,.0f} to {10**b:,.0f}: {count:,}</title></rect>'
        )
    for value, text in _log_ticks(low, high):
        parts.append(
            f'<text class="tick" x="{px(value):.1f}" y="{height - bottom + 18}" text-anchor="middle">{text}</text>'
        )
    parts.append(_x_title(x_label, (left + width - right) / 2, height - 6))
    return _svg(width, height, parts, f"histogram of {x_label}")


def short(name: str, longest: int = 30) -> str:
    """A name for a label: cut in the middle when it is long."""
    return name if len(name) <= longest else f"{name[: longest - 11]}…{name[-10:]}"


def _svg(width: int, height: int, parts: list[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _x_title(text: str, x: float, y: float) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _y_axis(low: float, high: float, py, left: int, right: int, label: str, height: int) -> list[str]:
    parts = []
    for value, text in _ticks(low, high):
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{left - 7}" y="{py(value) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    middle = height / 2 - 16
    parts.append(
        f'<text class="axis" transform="translate(14,{middle:.0f}) rotate(-90)" text-anchor="middle">{escape(label)}</text>'
    )
    return parts


def _padded(values: np.ndarray, below: float, above: float) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    span = (high - low) or 1.0
    return low - below * span, high + above * span


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    step = 10 ** math.floor(math.log10((high - low) or 1.0))
    for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5):
        if (high - low) / (step * factor) <= 7:
            step *= factor
            break
    digits = len(f"{step:.10f}".rstrip("0").partition(".")[2])
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [((first + i) * step, f"{(first + i) * step:,.{digits}f}") for i in range(max(count, 0))]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):  # the coarsest that gives at least three ticks
        found = []
        for exponent in range(math.floor(low) - 1, math.ceil(high) + 1):
            for factor in factors:
                value = exponent + math.log10(factor)
                if low <= value <= high:
                    number = factor * 10.0**exponent
                    found.append((value, f"{number:,.0f}" if number >= 1 else f"{number:.3g}"))
        if len(found) >= 3:
            break
    return found[:: math.ceil(len(found) / 10)] if found else []


def _label_spot(
    cx: float,
    cy: float,
    text: str,
    placed: list[tuple[float, float, float, float]],
    right: float,
    top: float,
    bottom: float,
) -> tuple[float, float, str] | None:
    """The first free place beside the point, or None when the label would cover another."""
    wide = 6.3 * len(text)
    for dy in (4, -8, 16, -20, 28, -32):
        for anchor, x0 in (("start", cx + 9), ("end", cx - 9 - wide)):
            box = (x0, cy + dy - 11, x0 + wide, cy + dy + 3)
            inside = box[0] > 50 and box[2] < right + 8 and box[1] > top - 8 and box[3] < bottom
            free = all(box[2] < p[0] or box[0] > p[2] or box[3] < p[1] or box[1] > p[3] for p in placed)
            if inside and free:
                placed.append(box)
                return (x0 if anchor == "start" else x0 + wide, cy + dy, anchor)
    return None


def _colour(value: float, low: float, high: float, diverging: bool) -> tuple[str, str]:
    """Fill and text colour. Diverging: red below 0, white at 0, blue above; else white to blue."""
    if not math.isfinite(value):
        return "#9993", "#777"
    if diverging:
        share = max(-1.0, min(1.0, value / max(abs(low), abs(high))))
        end = (33, 92, 160) if share >= 0 else (178, 50, 44)
        share = abs(share)
    else:
        share = max(0.0, min(1.0, (value - low) / ((high - low) or 1.0)))
        end = (33, 92, 160)
    red, green, blue = (round(250 + (e - 250) * share) for e in end)
    return f"rgb({red},{green},{blue})", "#fff" if share > 0.55 else "#223"
