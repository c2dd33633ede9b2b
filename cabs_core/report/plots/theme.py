"""Colours, shapes and fonts of all plots."""

import json
from dataclasses import dataclass
from typing import Any

#: CSS variable of a page -> the colour in a PNG. The page's style sheet says the colours of light and dark.
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
#: Vega's names of symbols that stay apart when small.
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
    """How a series is drawn: palette colour 0..9, dash pattern ('' or '6 3'), symbol."""

    colour: int = 0
    dash: str = ""
    shape: str = "circle"

    @property
    def token(self) -> str:
        """The colour as it stands in a specification."""
        return f"var(--c{self.colour % 10})"

    @property
    def dashes(self) -> list[int]:
        """The dash pattern in pixels."""
        return [int(part) for part in self.dash.split()]


def default_styles(names: list[str]) -> dict[str, Style]:
    """Styles for series that have none of their own: another colour and another symbol for each."""
    return {name: Style(i, "", SHAPES[i % len(SHAPES)]) for i, name in enumerate(names)}


def config(*, page: bool) -> dict[str, Any]:
    """Vega-Lite configuration of all figures."""
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
    """The specification with the colours of a PNG instead of CSS variables."""
    text = json.dumps(spec)
    for token, colour in COLOURS.items():
        text = text.replace(token, colour)
    coloured: dict[str, Any] = json.loads(text)
    return coloured
