"""The profile page: complete, self-contained, and safe with any name."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_checks import POOL, sound

from cabs_core.data.outcomes import make_splits
from cabs_core.data.validation.alignment import Blocks
from cabs_core.report.profile.page import headroom, write_profile

EVIL = "</title><script>alert(1)</script>"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "br", "link", "input"):
            assert self.open.pop() == tag


def test_page_is_complete_and_loads_nothing(tmp_path: Path) -> None:
    outcomes = sound()
    splits = make_splits(outcomes, POOL.split)
    path = write_profile(outcomes, splits, POOL, tmp_path / "deep" / "p.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "object", "base"}
    addresses = [v for _, a in page.tags for k, v in a.items() if k in ("href", "src")]
    assert all(a.startswith(("data:", "#")) for a in addresses), addresses
    assert sum(a.get("class") == "drawing" and len(a["aria-label"]) > 20 for _, a in page.tags) == 4
    assert len(text.encode()) < 2_500_000 and text.count('id="vega"') == 1
    for name in (*outcomes.arms, *np.unique(outcomes.tasks), outcomes.content_hash()):
        assert str(name) in text
    assert "840 / 120 / 240" in text
    assert sorted(p.name for p in path.parent.iterdir()) == ["p.html"]


def test_page_without_splits_and_with_odd_data(tmp_path: Path) -> None:
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
    outcomes = sound(300, 3)
    evil = replace(outcomes, arms=[EVIL, "b", "c"], tasks=np.array([EVIL] * 300))
    pool = POOL.model_copy(update={"title": EVIL, "description": EVIL})
    text = write_profile(evil, make_splits(evil, POOL.split), pool, tmp_path / "p.html").read_text()
    assert "<script>alert" not in text and "&lt;script&gt;" in text
    assert "</title><script" not in text.partition("</title>")[2]


def test_headroom_by_hand() -> None:
    outcomes = sound(400, 3)
    means = headroom(outcomes, (0.0, 300.0))
    for r, rho in enumerate((0.0, 300.0)):
        utility = np.clip(outcomes.scores - rho * outcomes.costs, 0, 1)
        assert means["random"][r] == pytest.approx(utility.mean())
        assert means["single"][r] == pytest.approx(max(utility[:, j].mean() for j in range(3)))
        assert means["oracle"][r] == pytest.approx(np.mean([row.max() for row in utility]))


def test_links_lead_to_the_related_pages(tmp_path: Path) -> None:
    outcomes = sound(60, 2)
    links = (("Report", "index.html"), ("All pools", "../index.html"))
    text = write_profile(outcomes, None, POOL, tmp_path / "p.html", links=links).read_text(encoding="utf-8")
    for name, address in links:
        assert f'<a href="{address}">{name}</a>' in text


@pytest.mark.parametrize("apart", [(0, 1), ()])
def test_only_blocks_that_prove_misaligned_rows_are_a_warning(
    apart: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Blocks(np.eye(5), [[0, 1], [2, 3], [4]], True, apart)
    monkeypatch.setattr("cabs_core.report.profile.page.correlation_blocks", lambda *_: blocks)
    text = write_profile(sound(60), None, POOL, tmp_path / "p.html").read_text(encoding="utf-8")
    assert "3 unrelated blocks: (1) m0, m1; (2) m2, m3; (3) m4." in text
    assert ("cannot all be about the same queries: 1, 2." in text) == bool(apart)
