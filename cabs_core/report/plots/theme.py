"""Colours, symbols and fonts of all figures.

Colours are variables of the page's style sheet, so that one drawing serves light, dark and print.
"""

import json
from dataclasses import dataclass
from typing import Any

#: {CSS variable of a page: colour in a file}; the style sheet has the colours of a light and a dark page
COLOURS = {
    "var(--c0)": "#0072b2",
    "var(--c1)": "#d55e00",
    "var(--c2)": "#00805a",
    "var(--c3)": "#b8578f",
    "var(--c4)": "#c98a00",
    "var(--c5)": "#2f93cf",
    "var(--c6)": "#6b4fbb",
    "var(--c7)": "#8c564b",
    "var(--c8)": "#7a7a7a",
    "var(--c9)": "#222222",
    "var(--fg)": "#1d2026",
    "var(--soft)": "#5b6270",
    "var(--line)": "#d9dde4",
    "var(--bg)": "#ffffff",
}
#: Vega's names of symbols that can be told apart when they are small
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
_PAGE_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


@dataclass(frozen=True)
class Style:
    """The look of a series.

    Attributes:
        colour: number of a palette colour, from 0 to 9.
        dash: lengths of dashes and gaps in pixels, such as "6 3"; empty for a solid line.
        shape: one of `SHAPES`.
    """

    colour: int = 0
    dash: str = ""
    shape: str = "circle"

    @property
    def token(self) -> str:
        """The colour as a CSS variable."""
        return f"var(--c{self.colour % 10})"

    @property
    def dashes(self) -> list[int]:
        """Lengths of dashes and gaps in pixels; empty for a solid line."""
        return [int(part) for part in self.dash.split()]


def default_styles(names: list[str]) -> dict[str, Style]:
    """Return {name: style}: series differ in colour up to 10 series, and in symbol up to 8."""
    return {name: Style(i, "", SHAPES[i % len(SHAPES)]) for i, name in enumerate(names)}


def config(*, page: bool) -> dict[str, Any]:
    """Return the Vega-Lite configuration of all figures.

    Args:
        page: True for a drawing in a page, which has no background and the fonts of the page. False for a
            drawing in a file, which has a white background and the font `sans-serif`.
    """
    quiet = {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--soft)",
        "tickColor": "var(--soft)",
        "labelFontSize": 12,
        "titleFontSize": 12.5,
        "titleFontWeight": "normal",
        "labelLimit": 230,
        "titlePadding": 8,
        "aria": False,
    }
    return {
        "background": None if page else "#ffffff",
        "font": _PAGE_FONT if page else "sans-serif",
        "aria": False,  # the figure around the drawing says what it shows
        "mark": {"aria": False},
        "view": {"stroke": None},
        "axis": quiet,
        "axisX": {"grid": False},
        "text": {"color": "var(--fg)", "fontSize": 12},
        "rule": {"color": "var(--soft)"},
        "title": {"color": "var(--fg)", "fontSize": 13, "anchor": "start", "aria": False},
        "header": {"labelColor": "var(--fg)", "titleColor": "var(--fg)"},
        "customFormatTypes": False,
    }


def fixed_colours(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification with the colours of a file in place of CSS variables."""
    text = json.dumps(spec)
    for token, colour in COLOURS.items():
        text = text.replace(token, colour)
    coloured: dict[str, Any] = json.loads(text)
    return coloured
