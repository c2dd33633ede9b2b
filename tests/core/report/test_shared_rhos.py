"""The winner is the winner over the rhos that all policies have, and the page begins with what is missing."""

import pytest

from cabs_core.base.errors import ResultError
from cabs_core.report import build_leaderboard, build_report
from cabs_core.report.data import PoolData


@pytest.mark.slow
def test_a_policy_with_more_rhos_does_not_win_for_that(small):
    """`lin_ucb` has four rhos, `hier_mix`, which is better at each, two: it used to stand outside the
    ranking."""
    data = PoolData("uneven", small)
    assert data.ranked == ["hier_mix", "lin_ucb", "random"] and data.missing_rhos == {
        "hier_mix": [0.0, 300.0]
    }
    text = data.missing_text()
    assert "ρ = 0, 300 left out of every comparison" in text and "hier_mix lacks 0, 300" in text
    assert "cabs run --pool uneven" in text
    report = build_report("uneven", small)
    assert report.summary["best_policy"] == "hier_mix" and text in report.markdown
    assert report.summary["missing"] == text  # what `cabs run` prints
    assert "Over 2 values of ρ" in report.markdown
    assert "left out of every comparison" in report.path.read_text(encoding="utf-8")


def test_nothing_is_said_where_nothing_is_missing(pages):
    artifacts, report, _ = pages
    data = PoolData("one", artifacts)
    assert data.missing_rhos == {} and data.missing_text() == ""
    assert "Incomplete" not in report.markdown and "missing" not in report.summary


def test_without_a_rho_in_common_there_is_no_winner(small):
    with pytest.raises(ResultError, match=r"no rho.*lin_ucb lacks 900"):
        build_report("apart", small)
    assert "No ranking: no rho at which all policies" in build_leaderboard(small).path.read_text("utf-8")
