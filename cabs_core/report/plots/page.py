"""Self-contained HTML pages: style, script and the drawing library are in the page, nothing is loaded."""

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

TEMPLATES = Path(__file__).parent / "templates"


def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from vl-convert, which brings them along."""
    try:
        return start_bundling().result()
    except BaseException:
        start_bundling.cache_clear()  # the disk was full, say: the next page tries again
        raise


@cache
def start_bundling() -> Future[str]:
    """Begin to make `vega_bundle` in a thread; it takes seconds, in which other threads go on."""
    return ThreadPoolExecutor(1).submit(copy_context().run, _bundle)


def _bundle() -> str:
    """The script, kept under `CABS_HOME/cache` by the versions that it comes from and its hash."""
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
    """The page of a template in `folder`, which may extend `base.html.j2` and import `macros.html.j2`.

    Args:
        values: what the template asks for; `figures`, if given, is {key: Figure or None}.
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
    """No line break between a number and its percent sign or error."""
    return text.replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
