"""The documentation site builds strictly: no dead link, no unknown name, nothing loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="needs the extra dev")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_every_page_is_there_and_names_are_found(site: Path) -> None:
    pages = {p.stem for p in (ROOT / "docs").glob("*.md")} - {"index"}
    assert {p.parent.name for p in site.glob("*/index.html")} >= pages | {
        "contributing",
        "security",
        "changelog",
    }
    router = (site / "reference" / "router" / "index.html").read_text(encoding="utf-8")
    assert 'id="cabs_core.router.router.Router.route"' in router
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "cabs_core.router.router.Router" in index and "champion" in index.lower()
    assert (site / "objects.inv").stat().st_size > 1000


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*rel="(?:stylesheet|preload|icon)"[^>]*href="([^"]+)"', text)
        assert not [url for url in loaded if url.startswith(("http:", "https:", "//"))], page


@pytest.mark.e2e
@pytest.mark.parametrize("width", [1440, 390])
def test_main_pages_fit_and_have_no_fault_for_axe(site: Path, browser: Any, axe: Any, width: int) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page(viewport={"width": width, "height": 900}, bypass_csp=True)
        for name in (
            "",
            "results/",
            "deploy/",
            "paper/",
            "architecture/",
            "reference/evaluation/",
            "notebooks/",
        ):
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/{name}")
            page.wait_for_function("!document.querySelector('nav.md-code__nav:not([aria-label])')")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
            assert axe(page) == [], name
        page.close()
        server.shutdown()
    text = (site / "reference" / "evaluation" / "index.html").read_text(encoding="utf-8")
    assert ",</span></code></b>" not in text, (
        "a line of a docstring that describes two names shows both as names"
    )
