"""Self-contained HTML pages. Style and script are in the page, so that it loads nothing.

A page with a figure also holds the drawing library (Vega); a page without figures does not.
"""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
from markupsafe import Markup

from cabs_core.base.atomic import write_text
from cabs_core.base.drawing import draw, draw_ahead
from cabs_core.base.paths import cabs_home
from cabs_core.report.plots.figure import VEGA_LITE, Figure

#: folder of the base page, the macros, the style sheet and the script
TEMPLATES = Path(__file__).parent / "templates"


def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from the copies in vl-convert.

    The script is kept in `CABS_HOME/cache`, because making it takes seconds. The file name has the versions
    that the script was made from and the hash of its contents, so that a damaged file is not used.
    """
    known = _kept_bundle()
    if known:
        return known
    text = _new_bundle()
    write_text(_bundles() / f"{_bundle_name()}-{hashlib.sha256(text.encode()).hexdigest()}.js", text)
    return text


def bundle_ahead() -> None:
    """Ask the drawing process, if there is one, for the script of `vega_bundle`, unless it is kept."""
    if not _kept_bundle():
        draw_ahead("script", VEGA_LITE)


@cache
def _new_bundle() -> str:
    """Make the script of `vega_bundle`, once in a process."""
    text = draw("script", VEGA_LITE).decode()
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _bundles() -> Path:
    """Return the folder of kept scripts."""
    return cabs_home() / "cache" / "pages"


def _bundle_name() -> str:
    """Return the part of the file name that tells the versions from which a script was made."""
    return f"vega-{alt.SCHEMA_VERSION}-{version('vl-convert-python')}"


def _kept_bundle() -> str:
    """Return the script that `vega_bundle` has kept, empty if there is none or if its file is damaged."""
    for path in _bundles().glob(f"{_bundle_name()}-*.js"):
        known = path.read_bytes()
        if path.stem.rpartition("-")[2] == hashlib.sha256(known).hexdigest():
            return known.decode("utf-8")
    return ""


def render_page(template: str, folder: Path, **values: Any) -> str:
    """Render a page from a template, which may extend `base.html.j2` and import `macros.html.j2`.

    Args:
        template: file name of the template.
        folder: folder of the template.
        values: values that the template reads. `figures`, which may be left out, is {key: Figure or None}.

    Returns:
        HTML of the page with its style and script. The drawing library is in the page only if a value of
        `figures` is a Figure.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tie"] = tie
    figures = [figure for figure in values.get("figures", {}).values() if isinstance(figure, Figure)]
    for figure in figures:
        figure.draw_ahead()
    return environment.get_template(template).render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
        vega=Markup(vega_bundle()) if figures else "",
        **values,
    )


def tie(text: str) -> str:
    """Return the text in which the spaces before percent signs and around ± are no-break spaces.

    A ± with a space on one side only stays as it is. No space is added where the text has none, as between a
    number and `%` without one.
    """
    return text.replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
