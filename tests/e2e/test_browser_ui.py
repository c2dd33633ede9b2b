"""Dagster's UI in a headless browser: what a person sees of a chain that ran.

Set CABS_SCREENSHOTS to a folder to keep the pictures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from e2e_support import drop_pool, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def page(dev, chromium):
    """A browser page, after the chain of a pool has run."""
    from playwright.sync_api import sync_playwright

    if not dev.finished("dropped"):
        drop_pool(dev.home, "dropped")
    wait_for("the chain of the dropped pool", lambda: dev.finished("dropped"), 420)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"],
        )
        found = browser.new_page(viewport={"width": 1500, "height": 950})
        found.set_default_timeout(120_000)
        yield found
        browser.close()


def visit(page, dev, path: str, name: str, *texts: str) -> str:
    """Open a page, wait until every text shows, keep a screenshot, return the page's text."""
    page.goto(dev.url + path)
    for text in texts:
        page.get_by_text(text, exact=False).first.wait_for()
    page.wait_for_timeout(1500)
    folder = Path(os.environ.get("CABS_SCREENSHOTS") or dev.home / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")
    return page.inner_text("body")


#: picture: (path, texts that appear, texts of which one is there then)
PLACES = {
    "asset_graph": ("/asset-groups", ("oracles", "replay"), ()),
    "replay_partition": (
        "/assets/replay?view=partitions&partition=dropped%7C0777",
        ("Materialized", "policies", "utility", "regret", "state", "random", "best_single", "lin_ucb"), (),
    ),
    "lineage": ("/assets/replay?view=lineage", ("replay_problem", "tuning"), ()),
    "checks": ("/assets/replay?view=checks", ("plausible", "trace"), ("Succeeded", "Passed")),
    "mart": ("/assets/marts/mart_policy_leaderboard", ("Columns", "policy"), ("SQL", "sql")),
    "sensor": ("/locations/cabs/sensors/pool_files", ("pool_files",), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_place_shows_what_ran(page, dev, name: str) -> None:
    path, texts, one_of = PLACES[name]
    text = visit(page, dev, path, name, *texts)
    assert "Error" not in text.splitlines()
    assert not one_of or any(word in text for word in one_of), text


def test_a_backfill_and_its_page(page, dev) -> None:
    backfill = dev.backfill("replay", ["dropped|0000", "dropped|0777"])
    wait_for("the backfill", lambda: dev.runs_of(backfill), 120)
    text = visit(page, dev, f"/runs/b/{backfill}", "backfill", backfill[:8], "replay")
    assert "Completed" in text or "Succeeded" in text, text


def test_the_metadata_of_the_report(page, dev) -> None:
    visit(page, dev, "/assets/report?view=partitions&partition=dropped", "report_partition", "dropped")
    text = visit(page, dev, "/assets/report?view=events&partition=dropped", "report_metadata", "summary")
    assert "location" in text
    with page.context.expect_page() as opened:
        page.get_by_role("link", name=f"{dev.reports}/dropped/").first.click()
    report = opened.value
    report.get_by_role("heading").first.wait_for()
    assert report.url == f"{dev.reports}/dropped/" and "dropped" in report.title()
    report.get_by_role("link", name="All pools").first.click()
    report.wait_for_url(f"{dev.reports}/index.html")
    report.close()
