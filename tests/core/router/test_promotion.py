"""Who is promoted: never one that was not shown to be as good, within the margin; and what it takes is what
was said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.data.pool_files.sections import MARGIN
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.intervals import sequence_half_width
from cabs_core.router.compare_on_log import compare_policies
from cabs_core.router.promotion import Difference, judge


@given(st.floats(-0.3, 0.3), st.floats(1e-4, 0.2), st.integers(10, 100_000), st.floats(0.001, 0.2))
def test_the_interval_decides(difference: float, se: float, n: int, margin: float) -> None:
    verdict = judge(Difference(0.5, 0.5 + difference, difference, se, n), margin)
    assert verdict.promote == (verdict.low > -margin and verdict.high >= 0)
    reasons = [
        word in verdict.reason for word in ("not worse by more than", "worse beyond noise", "cannot tell")
    ]
    assert reasons[0] == verdict.promote and sum(reasons) == 1
    assert f"{max(verdict.needed - n, 1):,} more" in verdict.reason or not reasons[2]
    # so many decisions of the same spread make the interval of two equal routers narrow enough in nine of ten
    # cases
    sd = se * n**0.5
    assert margin / (sd / verdict.needed**0.5) >= 1.96 + 1.2815


def test_what_is_needed_by_a_sequence_is_more() -> None:
    fixed, always = (
        judge(Difference(0.5, 0.5, 0.0, 0.02, 400, half_width=width), 0.02)
        for width in (lambda n: 1.96, sequence_half_width)
    )
    assert 1.7 < always.needed / fixed.needed < 2.2 and not always.promote
    assert judge(Difference(0.5, 0.5, 0.0, 1e-6, 400, least=800.0), 0.02).needed == 800


def log(rng, n: int, worse: float):
    """(decisions under epsilon .3, champion, challenger): K = 4; where they differ the challenger loses
    `worse` a request."""
    base = rng.random((n, 4))
    champion = base.argmax(axis=1)
    differs = rng.random(n) < 0.5
    challenger = np.where(differs, (champion + 1) % 4, champion)
    mean = np.full((n, 4), 0.6)
    mean[np.arange(n)[differs], challenger[differs]] -= 2.0 * worse
    pmf = np.full((n, 4), 0.3 / 4) + 0.7 * np.eye(4)[champion]
    actions = (rng.random((n, 1)) > pmf.cumsum(axis=1)).sum(axis=1).clip(0, 3)
    scores = (rng.random(n) < mean[np.arange(n), actions]).astype(float)
    data = LoggedData(list("abcd"), actions, scores, np.zeros(n), base, np.arange(n).astype(str), pmf=pmf)
    return data, np.eye(4)[champion], np.eye(4)[challenger]


@pytest.mark.slow
def test_a_log_promotes_what_is_as_good_once_it_is_as_long_as_was_said_and_hardly_ever_what_is_worse() -> (
    None
):
    rng = np.random.default_rng(5)
    needed = int(np.median([compare_policies(*log(rng, 1000, 0.0), rho=0.0).needed for _ in range(5)]))
    assert 5_000 < needed < 100_000
    short, same, worse = (
        np.mean([compare_policies(*log(rng, n, gap), rho=0.0).promote for _ in range(count)])
        for n, gap, count in ((1000, 0.03, 60), (needed, 0.0, 30), (needed, 0.03, 30))
    )
    assert short <= 0.05 and worse <= 0.05 and same >= 0.8, (short, same, worse)


def test_routers_that_hardly_differ_need_no_evidence() -> None:
    """Where they play alike the estimate costs nothing, however rarely the log plays it."""
    rng = np.random.default_rng(0)
    data, champion, _ = log(rng, 400, 0.0)
    again = compare_policies(data, champion, champion, 0.0)
    assert again.promote and again.difference == 0.0 and "differ in 0.00 %" in again.reason
    few = data.take(np.arange(60))
    unsure = compare_policies(few, champion[:60], champion[:60], 0.0)
    assert not unsure.promote and "cannot tell" in unsure.reason and MARGIN == 0.02
