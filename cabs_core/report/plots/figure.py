"""A figure: one specification for page and PNG, with its text alternative and its data as a table."""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from cabs_core.base.atomic import write_bytes
from cabs_core.base.errors import DataError
from cabs_core.report.plots.theme import Style, config, fixed_colours

LARGEST_PNG = 100_000
#: of Vega-Lite, such as `6.1`
_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
_IDS = re.compile(r'(id="|url\(#)(clip|gradient)')


@dataclass(frozen=True)
class ViewChoice:
    """A choice between views: the chart's parameter `<name>_chosen`, which is `first` at first."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]
    first: str


@dataclass(frozen=True)
class FigureTable:
    """The data of a figure as text: one row a point, a line's end, or what else says the same."""

    headers: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A chart with title, caption, a text for those who do not see it, and its data.

    `chart` may have a parameter `hidden`, a list of series that are not drawn; `legend` then gives the series
    with their styles and whether they are drawn at first.
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
        # a hundred models at a hundred rounds are more rows than Altair draws unasked
        with alt.data_transformers.enable("default", max_rows=None):
            spec: dict[str, Any] = self.chart.to_dict()
        return spec

    def _sized(self, width: int | str, *, page: bool) -> dict[str, Any]:
        spec = {**self._spec, "config": config(page=page)}
        spec["padding"] = 6
        if "layer" in spec or "mark" in spec:
            spec["width"] = width
            spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        return spec

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        """For a file of its own, with fixed colours and its title."""
        return fixed_colours(self._sized(self.width, page=False)) | {"title": self.title}

    def spec(self) -> str:
        """The specification as JSON for a script element: as wide as its container."""
        text = json.dumps(self._sized("container", page=True), separators=(",", ":"), ensure_ascii=False)
        return text.replace("<", "\\u003c")

    @cached_property
    def drawing(self) -> str:
        """The first view as SVG in the page's colours: what is seen without scripts and in print."""
        svg = vl_convert.vegalite_to_svg(self._sized(self.width, page=True), vl_version=_VERSION)
        return _IDS.sub(rf"\1{self.key}-\2", svg)

    @cached_property
    def svg(self) -> bytes:
        """The first view as SVG with fixed colours, for a file of its own."""
        padding = {"left": 6, "top": 6, "bottom": 6, "right": 24}  # the viewer's font may be wider
        return vl_convert.vegalite_to_svg(self._fixed | {"padding": padding}, vl_version=_VERSION).encode()

    @cached_property
    def png(self) -> bytes:
        """The first view as PNG; the resolution is lowered, at most to 0.3, until it has less than 100 kB."""
        for scale in (1.4, 1.0, 0.8, 0.65, 0.5, 0.3):
            image = vl_convert.vegalite_to_png(self._fixed, vl_version=_VERSION, scale=scale)
            if len(image) < LARGEST_PNG:
                break
        return image

    @cached_property
    def pdf(self) -> bytes:
        """The first view as PDF with fixed colours, for a paper."""
        return vl_convert.vegalite_to_pdf(self._fixed, vl_version=_VERSION)

    def save(self, path: str | Path) -> Path:
        """Write the figure, as SVG, PDF or PNG by the name's ending; returns the path.

        Raises:
            DataError: the name ends otherwise.
        """
        path = Path(path)
        kinds = {".svg": "svg", ".pdf": "pdf", ".png": "png"}
        if path.suffix.lower() not in kinds:
            raise DataError(f"{path} ends in {path.suffix or 'nothing'}: expected one of {', '.join(kinds)}")
        return write_bytes(path, getattr(self, kinds[path.suffix.lower()]))
