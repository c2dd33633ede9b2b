"""Self-contained HTML pages. Style and script are in the page, so that it loads nothing.

A page with a figure also holds the drawing library (Vega); a page without figures does not.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from cabs_core.base.atomic import write_text
from cabs_core.base.paths import cabs_home
from cabs_core.report.plots.figure import Figure

#: folder of the base page, the macros, the style sheet and the script
TEMPLATES = Path(__file__).parent / "templates"


def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from the copies in vl-convert.

    The function waits for the thread of `start_bundling`. If the thread failed, the error is raised, and the
    next call starts another thread.
    """
    try:
        return start_bundling().result()
    except BaseException:
        start_bundling.cache_clear()  # after a full disk, for example, the next page tries again
        raise


@cache
def start_bundling() -> Future[str]:
    """Start a thread that makes the script of `vega_bundle`, which takes seconds, and return its future.

    Later calls return the same future, until `vega_bundle` finds that the thread failed.
    """
    return ThreadPoolExecutor(1).submit(copy_context().run, _bundle)


def _bundle() -> str:
    """Return the script from `CABS_HOME/cache`, or make and store it there.

    The file name has the versions that the script was made from and the hash of its contents, so that a
    damaged file is not used.
    """
    folder = cabs_home() / "cache" / "pages"
    name = f"vega-{alt.SCHEMA_VERSION}-{version('vl-convert-python')}"
    for path in folder.glob(f"{name}-*.js"):
        known = path.read_bytes()
        if path.stem.rpartition("-")[2] == hashlib.sha256(known).hexdigest():
            return known.decode("utf-8")
    text = vl_convert.javascript_bundle(  # type: ignore[call-arg]  # its stub wants the snippet, which has a default
        vl_version=alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    )
    text = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    write_text(folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()}.js", text)
    return text


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
    figures = values.get("figures", {})
    draws = any(isinstance(figure, Figure) for figure in figures.values())
    return environment.get_template(template).render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
        vega=Markup(vega_bundle()) if draws else "",
        **values,
    )


def tie(text: str) -> str:
    """Return the text in which the spaces before percent signs and around ± are no-break spaces.

    A ± with a space on one side only stays as it is. No space is added where the text has none, as between a
    number and `%` without one.
    """
    return text.replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
