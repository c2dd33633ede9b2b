"""The documentation site builds strictly: no dead link, no unknown name, nothing loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="needs the extra dev")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
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
