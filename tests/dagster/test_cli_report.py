"""`cabs report`: the path, the browser, and what it says when there is no report or no browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from click.testing import CliRunner

from cabs_core.artifacts import ArtifactStore
from cabs_core.artifacts.materialize import produce
from cabs_core.artifacts.provenance import Recipe
from cabs_core.chain.pages import page_parts
from cabs_dagster.cli import main


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that the browser was asked for; no browser is started."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: found.append(url) or True)
    return found


def write_page(pool: str | None) -> ArtifactStore:
    store = ArtifactStore()

    def build(folder: Path) -> dict:
        (folder / "index.html").write_text("<p>page</p>")
        return {}

    produce(store, page_parts(pool), Recipe("report", pool or "", ""), build)
    return store


def test_the_path_is_printed_and_nothing_is_opened(tiny_pool: Path, opened: list[str]) -> None:
    store = write_page("tiny")
    done = CliRunner().invoke(main, ["report", "--pool", "tiny"])
    assert done.exit_code == 0, done.output
    page = Path(done.output.strip())
    assert page == store.root / "reports" / "tiny" / "index.html" and page.read_text() == "<p>page</p>"
    assert opened == []


def test_open_asks_the_browser_for_that_page(tiny_pool: Path, opened: list[str]) -> None:
    store = write_page("tiny")
    done = CliRunner().invoke(main, ["report", "--pool", "tiny", "--open"])
    assert done.exit_code == 0, done.output
    assert opened == [(store.root / "reports" / "tiny" / "index.html").as_uri()]


def test_without_a_pool_it_is_the_leaderboard(cabs_home: Path, opened: list[str]) -> None:
    store = write_page(None)
    done = CliRunner().invoke(main, ["report", "--open"])
    assert done.exit_code == 0, done.output
    assert opened == [(store.root / "reports" / "index.html").as_uri()]


def test_no_report_yet_says_what_to_do(tiny_pool: Path, opened: list[str]) -> None:
    done = CliRunner().invoke(main, ["report", "--pool", "tiny", "--open"])
    assert done.exit_code != 0 and opened == []
    assert "there is no report yet: run `cabs run --pool tiny` first" in done.output + str(done.exception)


def test_an_unknown_pool_is_named(tiny_pool: Path, opened: list[str]) -> None:
    done = CliRunner().invoke(main, ["report", "--pool", "tyni", "--open"])
    assert done.exit_code != 0 and opened == []
    assert "no pool called 'tyni'" in done.output + str(done.exception)


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
    done = CliRunner().invoke(main, ["report", "--pool", "tiny", "--open"])
    assert done.exit_code == 1
    assert str(store.root / "reports" / "tiny" / "index.html") in done.output
    assert "no browser could be opened here" in done.output
