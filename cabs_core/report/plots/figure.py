"""A figure with its text alternative and its data as a table. Page and files share one specification."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt

from cabs_core.base.atomic import write_bytes
from cabs_core.base.drawing import draw, draw_ahead
from cabs_core.base.errors import DataError
from cabs_core.report.plots.theme import Style, config, fixed_colours

#: version of Vega-Lite, such as `6.1`
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
#: ids in an SVG, which must differ between the figures of a page
_IDS = re.compile(r'(id="|url\(#)(clip|gradient)')


@dataclass(frozen=True)
class ViewChoice:
    """A choice between views of a figure that the reader makes.

    Attributes:
        name: the chart's parameter is `<name>_chosen`.
        label: name that the reader sees.
        options: (value of the parameter, text) of each choice.
        first: value that the parameter has at first.
    """

    name: str
    label: str
    options: tuple[tuple[str, str], ...]
    first: str


@dataclass(frozen=True)
class FigureTable:
    """The data of a figure as texts, for readers who do not see the drawing."""

    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A chart with title, caption, text alternative and data.

    Attributes:
        key: name of the figure in the page and of its files.
        title, caption: texts above and below the drawing.
        alt: text that replaces the drawing for readers who do not see it.
        chart: the Altair chart. It may have a parameter `hidden`, a list of series that are not drawn.
        table: data of the figure.
        choices: views between which the reader chooses.
        legend: (name, style, True if drawn at first) of every series.
        width: width in pixels of a file.
    """

    key: str
    title: str
    caption: str
    alt: str
    chart: Any
    table: FigureTable
    choices: tuple[ViewChoice, ...] = ()
    legend: tuple[tuple[str, Style, bool], ...] = ()
    width: int = 780

    @cached_property
    def _spec(self) -> dict[str, Any]:
        """Vega-Lite specification of the chart, without width and configuration."""
        # A hundred models at a hundred rounds are more rows than Altair allows by default. Tests check the
        # charts against the schema of Vega-Lite, because the check takes an eighth of the time of a report.
        with alt.data_transformers.enable("default", max_rows=None):
            spec: dict[str, Any] = self.chart.to_dict(validate=False)
        return spec

    def _sized(self, width: int | str, *, page: bool) -> dict[str, Any]:
        """Return the specification with a width and a configuration.

        A chart of several facets keeps its own width.

        Args:
            width: pixels, or "container" for the width of the element around the drawing.
            page: True for the colours of a page, False for those of a file.
        """
        spec = {**self._spec, "config": config(page=page)}
        spec["padding"] = 6
        if "layer" in spec or "mark" in spec:
            spec["width"] = width
            spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        return spec

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        """Specification for a file, with fixed colours and the title."""
        return fixed_colours(self._sized(self.width, page=False)) | {"title": self.title}

    def spec(self) -> str:
        """Return the specification as JSON for a script element of a page, as wide as its container."""
        text = json.dumps(self._sized("container", page=True), separators=(",", ":"), ensure_ascii=False)
        return text.replace("<", "\\u003c")

    @cached_property
    def _page_text(self) -> str:
        """Specification of `drawing` as JSON."""
        return json.dumps(self._sized(self.width, page=True))

    @cached_property
    def _file_text(self) -> str:
        """Specification of `png` and `pdf` as JSON."""
        return json.dumps(self._fixed)

    @cached_property
    def drawing(self) -> str:
        """The first view as SVG in the colours of the page, for print and for readers without scripts."""
        return _IDS.sub(rf"\1{self.key}-\2", draw("svg", VEGA_LITE, self._page_text).decode())

    def draw_ahead(self) -> None:
        """Ask the drawing process, if there is one, for `drawing`, which then takes no time."""
        draw_ahead("svg", VEGA_LITE, self._page_text)

    def draw_png_ahead(self) -> None:
        """Ask the drawing process, if there is one, for `png`, which then takes no time."""
        draw_ahead("png", VEGA_LITE, self._file_text)

    @cached_property
    def svg(self) -> bytes:
        """The first view as SVG with fixed colours, for a file."""
        padding = {"left": 6, "top": 6, "bottom": 6, "right": 24}  # the viewer's font may be wider
        return draw("svg", VEGA_LITE, json.dumps(self._fixed | {"padding": padding}))

    @cached_property
    def png(self) -> bytes:
        """The first view as PNG of less than 100 kB, as far as its resolution can be lowered."""
        return draw("png", VEGA_LITE, self._file_text)

    @cached_property
    def pdf(self) -> bytes:
        """The first view as PDF with fixed colours."""
        return draw("pdf", VEGA_LITE, self._file_text)

    def save(self, path: str | Path) -> Path:
        """Write the figure as SVG, PDF or PNG, by the ending of the file name, and return the path.

        Raises:
            DataError: the file name has another ending.
        """
        path = Path(path)
        kinds = {".svg": "svg", ".pdf": "pdf", ".png": "png"}
        if path.suffix.lower() not in kinds:
            raise DataError(f"{path} ends in {path.suffix or 'nothing'}: expected one of {', '.join(kinds)}")
        return write_bytes(path, getattr(self, kinds[path.suffix.lower()]))
