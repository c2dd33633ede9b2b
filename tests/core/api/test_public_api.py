"""The public interface: what it holds, that it is light, that every example runs, that the page lists it."""

from __future__ import annotations

import doctest
import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cabs_core
from cabs_core import (
    Request,
    build_policy,
    frontier,
    paired_difference,
    plot_frontier,
    plot_regret,
    problems_from_arrays,
    replay_many,
    synthetic_problem,
)
from cabs_core.algorithms.policies import classes
from cabs_core.algorithms.predictors import make_score_predictor
from cabs_core.algorithms.problem import replay_problem
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import policies as catalog_policies
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.evaluation.replay import replay

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.fixture(scope="module")
def problem() -> ReplayProblem:
    return synthetic_problem(n=150, K=4, d=5)


def test_contexts_of_other_size_are_played_or_refused() -> None:
    problem = synthetic_problem(n=120, K=3, d=4)
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(problem.n, 7)), rng.normal(size=(len(problem.offline_scores), 7))
    wider = problem.with_contexts(*wide)
    assert wider.dim == 7 and wider.metadata["contexts"] == "own"
    assert wider.content_hash() != problem.content_hash()
    assert (replay(wider, "lin_ucb", 300.0, 1).actions != replay(problem, "lin_ucb", 300.0, 1).actions).any()
    for x, offline in ((wide[0][:5], wide[1]), (wide[0][:, :6], wide[1]), (wide[0], wide[1][:5])):
        with pytest.raises(DataError, match=r"expected \[120, d\] and"):
            problem.with_contexts(x, offline)


def test_the_page_lists_every_name_and_no_other():
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed == cabs_core.__all__ and 20 <= len(listed) <= 26
    assert set(cabs_core.__all__) <= set(dir(cabs_core))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cabs_core.nothing


# of a router in tests/core/router: that needs a bundle
@pytest.mark.parametrize("name", [n for n in (*cabs_core.__all__, "replay") if n != "Router"])
def test_every_name_has_an_example_that_runs(name):
    public = replay if name == "replay" else getattr(cabs_core, name)
    example = [t for t in doctest.DocTestFinder(recurse=False).find(public, name) if t.examples]
    assert example, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in example:
        assert runner.run(test).failed == 0


@pytest.mark.parametrize("name", sorted(catalog_policies()))
def test_every_policy_is_a_class_that_is_its_name(name):
    title = next(key for key, value in classes.class_names().items() if value == name)
    made = getattr(cabs_core.algorithms.policies, title)
    assert made.__name__ == title and made.__doc__ and "Options" in made.__doc__
    names = list(inspect.signature(made).parameters)
    assert names[0] == "arms" and len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["hier_mix@two_models", "lin_ucb@alpha=2"])
def test_a_name_with_a_preset_or_options_has_no_class(name):
    with pytest.raises(PolicyError, match="arguments of the class"):
        classes.class_of(name)


def test_a_class_decides_as_its_name_does(tmp_path):
    from cabs_core.algorithms.policies import LinTS, LinUCB

    a = LinUCB(arms=["a", "b"], dim=3, rho=10.0, alpha=2.0)
    b = build_policy("lin_ucb", arms=["a", "b"], dim=3, rho=10.0, alpha=2.0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        request = Request(context=rng.normal(size=3))
        first, second = a.decide(request), b.decide(request)
        assert first.pmf.tolist() == second.pmf.tolist() and first.arm == second.arm
        a.update(first, score=1.0, cost=1e-3)
        b.update(second, score=1.0, cost=1e-3)
    a.save(tmp_path / "saved")
    assert LinUCB.load(tmp_path / "saved").arms == ["a", "b"]
    with pytest.raises(PolicyError, match="holds lin_ucb"):
        LinTS.load(tmp_path / "saved")
    with pytest.raises(PolicyError, match="alpha"):
        LinUCB(arms=["a", "b"], dim=3, alpha=-1.0)


def test_the_tidy_frame_is_what_replays_say(problem):
    table = replay_many(
        problem, {"a": "lin_ucb", "b": ("lin_ucb", {"alpha": 2.0}), "c": "ridge"}, [0, 300], trials=3
    )
    assert table[["policy", "rho"]].values.tolist() == [[p, r] for p in "abc" for r in (0.0, 300.0)]
    one = replay(problem, "lin_ucb", rho=300.0, trials=3, alpha=2.0)
    row = table[(table["policy"] == "b") & (table["rho"] == 300.0)].iloc[0]
    assert row["utility"] == one.rewards.mean() and row["score"] == one.score and row["cost"] == one.cost
    rows, arms = one.order.ravel(), one.actions.ravel()
    assert one.score == pytest.approx(problem.scores[rows, arms].mean())
    assert one.cost == pytest.approx(problem.costs[rows, arms].mean())
    assert row["regret"] == pytest.approx((one.best_rewards - one.rewards).mean())
    assert (table[[c for c in table if c.endswith("_se")]] >= 0).all().all()
    frame = one.to_frame()
    assert len(frame) == one.trials * one.rounds and frame["reward"].mean() == pytest.approx(one.utility)
    with pytest.raises(PolicyError, match="named twice"):
        replay_many(problem, ["ridge", "ridge"], [0])
    assert replay_many(problem, ["ridge"], 300.0, trials=1)["rho"].tolist() == [300.0]
    for rhos in ("a", [np.nan], [-1.0], None):
        with pytest.raises(PolicyError, match="replay_many: rhos is "):
            replay_many(problem, ["ridge"], rhos)
    with pytest.raises(PolicyError, match="policies is None"):
        replay_many(problem, None)


def test_a_frontier_of_unknown_costs_is_refused():
    table = pd.DataFrame({"policy": ["a", "b"], "rho": 0.0, "cost": [1.0, 2.0], "score": [0.5, 0.6]})
    for column, value in (("cost", np.nan), ("cost", -1.0), ("cost", "x"), ("score", np.inf)):
        wrong = table.astype({column: object})
        wrong.loc[1, column] = value
        with pytest.raises(DataError, match=f"{column} of policy 'b' at rho 0.0 is {value!r}"):
            frontier(wrong)
    with pytest.raises(DataError, match="not list"):
        frontier([1, 2])


@pytest.mark.parametrize(
    "change",
    [{"n": 0}, {"n": 10.5}, {"n": -3}, {"K": 0}, {"d": 1}, {"offline": -1}, {"seed": -1}]
    + [{"surrogate_quality": value} for value in (2.0, -0.1, np.nan)],
)
def test_impossible_synthetic_problems_are_refused(change):
    with pytest.raises(DataError, match=f"synthetic_problem: {next(iter(change))} is "):
        synthetic_problem(**change)


def test_differences_are_paired_and_static_ones_have_an_error(problem):
    a, b = (replay(problem, name, rho=300.0, trials=3) for name in ("ridge", "best_single"))
    difference = paired_difference(a, b)
    assert difference.value == pytest.approx(a.utility - b.utility)
    assert difference.se_trials < 1e-12 < difference.se
    assert difference.low < difference.value < difference.high
    cost = paired_difference(a, b, "cost")
    assert cost.low < cost.value < cost.high and cost.unknown == ""
    dear = replace(a, costs=np.where(a.order < 5, 50.0, a.costs))
    few = paired_difference(dear, b, "cost")
    assert np.isnan([few.low, few.high, few.p_value]).all() and "10 dearest" in str(few)
    again = paired_difference(b, a)
    assert again.value == -difference.value and again.se == pytest.approx(difference.se)
    with pytest.raises(DataError, match="not int"):
        paired_difference(a, 3)
    with pytest.raises(DataError, match="not paired"):
        paired_difference(a, replay(problem, "ridge", rho=300.0, trials=3, seed=1))
    with pytest.raises(DataError, match="not comparable"):
        paired_difference(a, replay(problem, "ridge", rho=0.0, trials=3))


def test_a_policy_of_another_library_plays_the_same_orders(problem):
    class Mean:
        """Plays the arm of the highest mean so far, at random while there is none."""

        def __init__(self):
            self.sums, self.counts = np.zeros(4), np.zeros(4)

        def predict(self, context):
            return int(np.argmax(self.sums / self.counts)) if self.counts.all() else np.full(4, 0.25)

        def learn(self, context, arm, reward, probability):
            assert 0 < probability <= 1
            self.sums[arm] += reward
            self.counts[arm] += 1

    mine = Mean()
    result, linear = replay(problem, mine, trials=3), replay(problem, "lin_ucb", trials=3)
    assert np.array_equal(result.order, linear.order) and mine.counts.sum() == 0, "every trial has a copy"
    assert np.array_equal(result.actions, replay(problem, Mean(), trials=3).actions)
    late = replay(problem, Mean(), trials=3, condition="delayed_rewards")
    assert not np.array_equal(late.actions, result.actions)
    played = result.actions, result.order
    scores, costs = (x[played[1], played[0]] for x in (problem.scores, problem.costs))
    assert np.array_equal(result.rewards, np.clip(scores - 300.0 * costs, 0.0, 1.0))
    for wrong in (7, [0.5, 0.5], "a", [2.0, -1.0, 0.0, 0.0]):
        Mean.predict = lambda self, context, wrong=wrong: wrong
        with pytest.raises(PolicyError, match="predict returned"):
            replay(problem, Mean(), trials=1)
    with pytest.raises(PolicyError, match="name of a policy"):
        replay(problem, object())


class Scales:
    """A policy that scales its context in place."""

    def __init__(self, method):
        self.method = method

    def predict(self, context):
        if self.method == "predict":
            context /= 2.0
        return 0

    def learn(self, context, arm, reward, probability):
        if self.method == "learn":
            context /= 2.0


@pytest.mark.parametrize("method", ["predict", "learn"])
def test_an_object_cannot_change_the_problem_through_its_context(problem, method) -> None:
    before = problem.contexts.copy()
    with pytest.raises(ValueError, match="read-only"):
        replay(problem, Scales(method), trials=1)
    np.testing.assert_array_equal(problem.contexts, before)


def test_a_problem_does_not_follow_the_arrays_that_it_was_made_of(problem) -> None:
    contexts, queries = problem.contexts.copy(), problem.query_ids.copy()
    static = {"ridge": problem.predicted_scores.copy()}
    made = replace(problem, contexts=contexts, query_ids=queries, static_scores=static)
    saved = made.content_hash()
    contexts[:] = 0.0
    queries[:] = "q"
    static["ridge"][:] = 0.0
    again = replace(made)
    assert again.content_hash() == saved and again.contexts.any()
    large = np.zeros((600_000, 1))
    copied = replay_problem._numbers("contexts", large)
    assert copied.nbytes > replay_problem.SMALL and np.shares_memory(copied, large), (
        "large arrays are not copied"
    )


def test_problems_without_text_from_arrays_of_ones_own():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 6))
    scores = (rng.random((400, 3)) < 1 / (1 + np.exp(-3 * x[:, :3]))).astype(float)
    made = problems_from_arrays(scores, np.full((400, 3), 1e-4), contexts=x)
    test = made["test"]
    assert test.contexts.shape == (80, 6) and set(made) == {"test", "validation"}
    assert any(np.array_equal(row, x[i]) for row in test.contexts[:1] for i in range(400))
    table = replay_many(test, ["best_single", "ridge"], [0.0], trials=2).set_index("policy")
    assert table.loc["ridge", "score"] > table.loc["best_single", "score"] + 0.1
    for bad, words in (
        ({}, "give embeddings"),
        ({"contexts": x[:5]}, "expected \\[400"),
        ({"contexts": x * np.nan}, "finite"),
        ({"embeddings": x, "split": ["train"] * 400}, "validation"),
    ):
        with pytest.raises(DataError, match=words):
            problems_from_arrays(scores, np.full((400, 3), 1e-4), **bad)
    for wrong in ([["good", "bad", "bad"]] * 400, [[1.0, 0.0, 0.0], [1.0]]):
        with pytest.raises(DataError, match="scores are no array of numbers"):
            problems_from_arrays(wrong, np.full((400, 3), 1e-4), contexts=x)
        with pytest.raises(DataError, match="costs are no array of numbers"):
            problems_from_arrays(scores, wrong, contexts=x)


def test_masked_arrays_are_refused_by_every_entrance(problem) -> None:
    """What lies below the mask is no measurement."""
    x = np.random.default_rng(0).normal(size=(60, 4))
    sound = {"scores": np.ones((60, 2)), "costs": np.full((60, 2), 1e-4), "contexts": x, "embeddings": x}
    texts = {"prompts": [f"p{i}" for i in range(60)], "tasks": ["a"] * 60}
    for name, value in (sound | texts).items():
        masked = np.ma.masked_array(value, np.arange(np.size(value)).reshape(np.shape(value)) == 3)
        with pytest.raises(DataError, match=f"{name}: a masked array"):
            problems_from_arrays(**sound | {name: masked})
    for name in ("contexts", "tasks", "surrogate_deltas"):
        with pytest.raises(DataError, match=f"problem synthetic/test: {name}: a masked array"):
            replace(problem, **{name: np.ma.masked_array(getattr(problem, name))})
    with pytest.raises(DataError, match="a masked array"):
        replace(problem, clusters=np.ma.masked_array(np.zeros(problem.n)))
    with pytest.raises(DataError, match="offline_contexts: a masked array"):
        problem.with_contexts(problem.contexts, np.ma.masked_array(problem.offline_contexts))
    with pytest.raises(DataError, match="embeddings: a masked array"):
        make_score_predictor("ridge").fit(np.ma.masked_array(x), np.ones(60), np.ones((60, 2)))
    with pytest.raises(DataError, match="scores: a masked array"):
        make_score_predictor("ridge").fit(x, np.ones(60), np.ma.masked_array(np.ones((60, 2))))


def test_figures_are_saved_in_three_forms(problem, tmp_path):
    table = replay_many(problem, ["lin_ucb", "ridge"], [0, 100, 300], trials=2)
    figure = plot_frontier(table)
    results = [replay(problem, name, trials=2) for name in ("lin_ucb", "ridge")]
    for drawn, name in ((figure, "frontier"), (plot_regret(results), "regret")):
        begins = {"svg": b"<svg", "pdf": b"%PDF", "png": b"\x89PNG"}
        for kind, magic in begins.items():
            path = drawn.save(tmp_path / f"{name}.{kind}")
            assert path.read_bytes().startswith(magic)
    with pytest.raises(DataError, match="expected one of"):
        figure.save(tmp_path / "frontier.gif")
    with pytest.raises(DataError, match="different names"):
        plot_regret([results[0], results[0]])
