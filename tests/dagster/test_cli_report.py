"""`cabs report`: the path, the browser, and what it says when there is no report or no browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from tests_support import output_of

from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.artifacts.materialize import produce
from cabs_core.pipeline.artifacts.provenance import Recipe
from cabs_core.pipeline.pages import page_parts


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that the browser was asked for; no browser is started."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: addresses.append(url) or True)
    return addresses


def write_page(pool: str | None) -> ArtifactStore:
    store = ArtifactStore()

    def build(folder: Path) -> dict:
        (folder / "index.html").write_text("<p>page</p>")
        return {}

    produce(store, page_parts(pool), Recipe("report", pool or "", ""), build)
    return store


@pytest.mark.parametrize(("words", "pool"), [(["--pool", "tiny"], "tiny"), ([], None)])
def test_the_path_is_printed_and_opened_where_asked(
    tiny_pool: Path, opened: list[str], words: list[str], pool: str | None
) -> None:
    page = write_page(pool).root.joinpath("reports", *filter(None, [pool]), "index.html")
    for more, urls in (([], []), (["--open"], [page.as_uri()])):
        output = output_of("report", *words, *more)
        assert opened == urls and (pool is None or Path(output.strip()) == page)


@pytest.mark.parametrize(
    ("pool", "message"),
    [("tiny", "there is no report yet: run `cabs run --pool tiny` first"), ("tyni", "no pool called 'tyni'")],
)
def test_no_report_yet_says_what_to_do(tiny_pool: Path, opened: list[str], pool: str, message: str) -> None:
    assert message in output_of("report", "--pool", pool, "--open", code=2) and opened == []


@pytest.mark.parametrize("how", ["refuses", "raises"])
def test_where_no_browser_can_be_opened_the_path_is_still_printed(
    tiny_pool: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def no_browser(url: str) -> bool:
        if how == "raises":
            raise webbrowser.Error("could not locate runnable browser")
        return False

    monkeypatch.setattr(webbrowser, "open", no_browser)
    store = write_page("tiny")
    output = output_of("report", "--pool", "tiny", "--open", code=1)
    assert str(store.root / "reports" / "tiny" / "index.html") in output
