"""Frontier, hull and AIQ: what defines them, and AIQ by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.base.statistics.bootstrap import bootstrap_weights
from cabs_core.evaluation.metrics import frontier

points = st.lists(
    st.tuples(st.floats(0, 10, allow_subnormal=False), st.floats(0, 1, allow_subnormal=False)),
    min_size=1,
    max_size=12,
).map(lambda p: (np.array([a for a, _ in p]), np.array([b for _, b in p])))


def test_aiq_by_hand():
    # Null router (0, 0) joins the hull: (0,0), (1,.4), (3,.8); over [1, 3] the mean height is (.4 + .8) / 2.
    assert frontier.aiq([1, 3], [0.4, 0.8], 1, 3) == pytest.approx(0.6)
    # Over [1, 5] the hull is flat from 3 on: (.6 * 2 + .8 * 2) / 4.
    assert frontier.aiq([1, 3], [0.4, 0.8], 1, 5) == pytest.approx(0.7)
    # Over [0.5, 3] it starts on the segment from the null router: ((.2 + .4)/2 * .5 + .6 * 2) / 2.5.
    assert frontier.aiq([1, 3], [0.4, 0.8], 0.5, 3) == pytest.approx((0.15 + 1.2) / 2.5)
    assert frontier.aiq([2], [0.5], 2, 2) == pytest.approx(
        0.5
    )  # an interval without length: the height there


def test_cost_at_equal_accuracy_by_hand():
    # Hull (1, .4) - (3, .8): .6 is half way, cost 2. Baseline pays 4 for it: half is saved.
    assert frontier.cost_at_score([1, 3], [0.4, 0.8], 0.6) == pytest.approx(2)
    assert frontier.cost_saved([1, 3], [0.4, 0.8], 4, 0.6) == pytest.approx(0.5)
    assert frontier.cost_at_score([1, 3], [0.4, 0.8], 0.3) == pytest.approx(
        1
    )  # never below the cheapest point
    assert np.isnan(frontier.cost_at_score([1, 3], [0.4, 0.8], 0.81))
    assert np.isnan(frontier.cost_saved([1, 3], [0.4, 0.8], 0.0, 0.6))


@pytest.mark.parametrize(
    ("costs", "scores"), [([], []), ([1, 2], [0.5]), ([np.nan], [0.5]), ([-1.0], [0.5]), ([1.0], [np.inf])]
)
def test_bad_points_are_refused(costs, scores):
    with pytest.raises(ValueError):
        frontier.non_decreasing_hull(costs, scores)
    with pytest.raises(ValueError):
        frontier.pareto_mask(costs, scores)


def test_aiq_refuses_a_reversed_interval():
    with pytest.raises(ValueError, match="cost_min <= cost_max"):
        frontier.aiq([1], [0.5], 3, 1)


@given(points)
def test_hull_is_above_every_point_concave_and_increasing(p):
    costs, scores = p
    x, y = frontier.non_decreasing_hull(costs, scores)
    assert (np.diff(x) > 0).all() and (np.diff(y) > 0).all()
    height = np.interp(costs, x, y)
    assert (height >= scores - 1e-9).all()
    slopes = np.diff(y) / np.diff(x)
    assert (np.diff(slopes) <= 1e-9 * np.maximum(1, np.abs(slopes[1:]))).all()
    assert {(a, b) for a, b in zip(x, y)} <= {(a, b) for a, b in zip(costs, scores)}


@given(points)
def test_frontier_points_are_exactly_the_undominated(p):
    costs, scores = p
    slow = [
        not any(c <= a and s >= b and (c < a or s > b) for c, s in zip(costs, scores))
        for a, b in zip(costs, scores)
    ]
    assert frontier.pareto_mask(costs, scores).tolist() == slow


@given(points, st.floats(0, 5), st.floats(0.1, 5))
def test_aiq_is_the_mean_height_of_the_hull(p, low, width):
    costs, scores = p
    grid = np.linspace(low, low + width, 20001)
    heights = np.interp(grid, *frontier.non_decreasing_hull(np.append(costs, 0), np.append(scores, 0)))
    value = frontier.aiq(costs, scores, low, low + width)
    assert value == pytest.approx(heights.mean(), abs=2e-3)
    assert -1e-12 <= value <= scores.max() + 1e-12


def test_a_point_on_or_under_the_segment_of_its_neighbours_is_no_vertex():
    on_the_segment = frontier.non_decreasing_hull([1, 2, 3], [0.25, 0.5, 0.75])
    under_the_segment = frontier.non_decreasing_hull([1, 2, 3], [0.25, 0.375, 0.75])
    for costs, scores in (on_the_segment, under_the_segment):
        assert (costs.tolist(), scores.tolist()) == ([1, 3], [0.25, 0.75])


def test_the_best_score_costs_what_the_best_point_costs():
    assert frontier.cost_at_score([1, 3], [0.4, 0.8], 0.8) == 3


def test_the_error_of_aiq_is_that_of_200_draws_of_whole_clusters():
    rng = np.random.default_rng(0)
    costs = rng.gamma(2.0, 1.0, (3, 8))
    scores = rng.random((3, 8))
    plays = rng.integers(1, 5, (3, 8)).astype(float)
    clusters = np.array([0, 0, 1, 1, 2, 2, 2, 3])
    for counts, times in ((None, np.ones((3, 8))), (plays, plays)):
        values = []
        for drawn in bootstrap_weights(4, 200):
            weight = times * drawn[clusters]
            total = weight.sum(axis=1)
            points = (weight * costs).sum(axis=1) / total, (weight * scores).sum(axis=1) / total
            values.append(frontier.aiq(*points, 0.5, 3.0))
        found = frontier.aiq_bootstrap_se(costs, scores, 0.5, 3.0, plays=counts, clusters=clusters)
        assert found == pytest.approx(np.std(values, ddof=1), rel=1e-4)


def test_the_error_of_aiq_needs_two_clusters():
    costs = np.array([[1.0, 2.0], [2.0, 3.0]])
    scores = np.array([[0.1, 0.5], [0.3, 0.9]])
    assert frontier.aiq_bootstrap_se(costs, scores, 1.0, 3.0) > 0
    assert np.isnan(frontier.aiq_bootstrap_se(costs, scores, 1.0, 3.0, clusters=[5, 5]))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 4)), ((3,), (3,)), ((2, 3), (3,))])
def test_the_error_of_aiq_refuses_lists_that_are_not_one_row_a_rho(shapes):
    costs, scores = (np.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"expected \[rhos, n\] for both"):
        frontier.aiq_bootstrap_se(costs, scores, 0.0, 1.0)
