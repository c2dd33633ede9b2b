"""The profile page: complete, self-contained, and safe with any name."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_checks import POOL, misaligned, sound

from cabs_core.outcomes import make_splits
from cabs_core.validation import run_checks
from cabs_core.validation.charts import _log_ticks, _ticks, heatmap, lines, scatter
from cabs_core.validation.profile import headroom, write_profile

EVIL = "</title><script>alert(1)</script>"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "line", "rect", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "br", "line", "rect", "circle", "polyline"):
            assert self.open.pop() == tag


def test_page_is_complete_and_loads_nothing(tmp_path: Path) -> None:
    outcomes = sound()
    splits = make_splits(outcomes, POOL.split)
    checks = run_checks(
        "outcomes", misaligned(outcomes), pool=POOL, only=["alignment_blocks", "scores_in_range"]
    )
    path = write_profile(outcomes, splits, POOL, tmp_path / "deep" / "p.html", checks=checks)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base"}
    assert not re.search(r"(https?:)?//[a-z]|@import|url\(", text)
    assert sum(tag == "svg" for tag, _ in page.tags) == 5
    for name in (*outcomes.arms, *np.unique(outcomes.tasks), outcomes.content_hash(), "alignment_blocks"):
        assert str(name) in text
    assert "840 / 120 / 240" in text
    assert sorted(p.name for p in path.parent.iterdir()) == ["p.html"]


def test_page_without_splits_and_with_odd_data(tmp_path: Path) -> None:
    from dataclasses import replace

    outcomes = sound(60, 2)
    odd = replace(
        outcomes,
        costs=np.zeros((60, 2)),
        scores=np.ones((60, 2)),
        tasks=np.array(["only"] * 60),
        prompts=["same"] * 60,
    )
    Page(write_profile(odd, None, POOL, tmp_path / "p.html").read_text(encoding="utf-8"))


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    from dataclasses import replace

    outcomes = sound(300, 3)
    evil = replace(outcomes, arms=[EVIL, "b", "c"], tasks=np.array([EVIL] * 300))
    pool = POOL.model_copy(update={"title": EVIL, "description": EVIL})
    text = write_profile(evil, make_splits(evil, POOL.split), pool, tmp_path / "p.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text


def test_headroom_by_hand() -> None:
    outcomes = sound(400, 3)
    found = headroom(outcomes, (0.0, 300.0))
    for r, rho in enumerate((0.0, 300.0)):
        utility = np.clip(outcomes.scores - rho * outcomes.costs, 0, 1)
        assert found["random"][r] == pytest.approx(utility.mean())
        assert found["single"][r] == pytest.approx(max(utility[:, j].mean() for j in range(3)))
        assert found["oracle"][r] == pytest.approx(np.mean([row.max() for row in utility]))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.13, 0.87), (0, 1234), (-0.2, 0.001), (5, 5.0001), (0, 3e-7)]
)
def test_ticks_lie_inside_and_are_distinct(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low - 1e-9 <= v <= high + 1e-9 for v, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


@pytest.mark.parametrize(("low", "high"), [(-4.4, -2.3), (1.7, 2.5), (0, 6), (2.0, 2.3)])
def test_log_ticks_are_distinct(low: float, high: float) -> None:
    ticks = _log_ticks(low, high)
    assert 1 <= len(ticks) <= 10
    assert len({text for _, text in ticks}) == len(ticks)


def test_charts_escape_names() -> None:
    values = np.array([0.1, 0.5])
    for svg in (
        scatter([EVIL, "b"], values, values, [True, False], x_label=EVIL, y_label="y"),
        lines([0, 1], {EVIL: values}, x_label="x", y_label=EVIL),
        heatmap(np.eye(2), [EVIL, "b"], ["c", EVIL], low=0, high=1, what=EVIL),
    ):
        assert "<script" not in svg
        Page(svg)
