"""The winner is the winner over the rhos that all policies have, and the page begins with what is missing."""

import pytest
from built_marts import build_all
from fake_replays import fake_pool, write_pool

from cabs_core.base.errors import ResultError
from cabs_core.report import build_leaderboard, build_report
from cabs_core.report.data import PoolData


@pytest.mark.slow
def test_a_policy_with_more_rhos_does_not_win_for_that(tmp_path):
    """`lin_ucb` has four rhos, `hier_mix`, which is better at each, two: it used to stand outside the
    ranking."""
    pool = fake_pool()
    write_pool(tmp_path, pool, policies=["random", "lin_ucb"])
    write_pool(tmp_path, pool, rhos=(500.0, 900.0), policies=["hier_mix"])
    build_all(tmp_path)
    data = PoolData("fake", tmp_path)
    assert data.ranked == ["hier_mix", "lin_ucb", "random"] and data.missing == {"hier_mix": [0.0, 300.0]}
    text = data.missing_text()
    assert "ρ = 0, 300 left out of every comparison" in text and "hier_mix lacks 0, 300" in text
    assert "cabs run --pool fake" in text
    report = build_report("fake", tmp_path)
    assert report.summary["best_policy"] == "hier_mix" and text in report.markdown
    assert report.summary["missing"] == text  # what `cabs run` prints
    assert "Over 2 values of ρ" in report.markdown
    assert "left out of every comparison" in report.path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_nothing_is_said_where_nothing_is_missing(tmp_path):
    write_pool(tmp_path, fake_pool(), policies=["random", "lin_ucb"])
    build_all(tmp_path)
    data = PoolData("fake", tmp_path)
    assert data.missing == {} and data.missing_text() == ""
    report = build_report("fake", tmp_path)
    assert "Incomplete" not in report.markdown and "missing" not in report.summary


@pytest.mark.slow
def test_without_a_rho_in_common_there_is_no_winner(tmp_path):
    pool = fake_pool()
    write_pool(tmp_path, pool, rhos=(0.0, 300.0), policies=["lin_ucb"])
    write_pool(tmp_path, pool, rhos=(900.0,), policies=["hier_mix"])
    build_all(tmp_path)
    with pytest.raises(ResultError, match=r"no rho at which all policies were replayed.*lin_ucb lacks 900"):
        build_report("fake", tmp_path)
    assert "No ranking: no rho at which all policies" in build_leaderboard(tmp_path).path.read_text("utf-8")
