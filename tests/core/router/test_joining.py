"""Models join a router and leave it: what it learnt stays, draws stay exact, estimates know who was there."""

from __future__ import annotations

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from tests_support import assert_drawn_with

from cabs_core.algorithms.oracles.arm_map import ArmMap, Likeness
from cabs_core.base.errors import DataError, PolicyError, RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.evaluation.ope.data import LoggedData, read_events
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router import joining
from cabs_core.router.doctor_cli import doctor
from cabs_core.router.joining import MEAN_GAIN, WORST_LOSS, NewModel, Scored, add_model, remove_model
from cabs_core.router.options import RouterOptions
from cabs_core.router.promotion import roll_back
from cabs_core.router.routed import RouteRequest
from cabs_core.router.router import Router
from cabs_core.router.scored_table import read_scored

LEARNING = ["lin_ts", "cabs_c_linear", "hier_mix", "pareto_bandit", "neural_ucb"]
STATIC = ["carrot", "kernel_ridge", "uniroute"]
#: one of each kind of static policy that knows the arms of its train split alone
TRAINED_ONLY = ["best_single", "avengers_pro", "guarded_knn", "eagle", "equirouter", "dr_policy", "mf"]


@pytest.fixture
def placed(make_bundle, tmp_path):
    """placed(policy) -> a copy of its bundle, which may be replaced."""

    def place(policy: str = "hier_mix", **options):
        folder = tmp_path / "router"
        shutil.copytree(make_bundle(policy, epsilon=0.2, **options), folder)
        return folder

    return place


@pytest.fixture
def log(tmp_path):
    events = EventLog(tmp_path / "log.sqlite")
    yield events
    events.close()


def scored(prompts, score=1.0, cost=1e-4) -> Scored:
    return Scored(list(prompts), np.full(len(prompts), score), np.full(len(prompts), cost))


def serve(router, prompts, score=lambda model: 0.5, **asked):
    made = [router.route(text, **asked) for text in prompts]
    for decision in made:
        assert router.feedback(decision.id, score=score(decision.model), cost=2e-4) == "recorded"
    return made


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*LEARNING, *STATIC, "best_single", "guarded_knn", "mf"])
def test_a_model_joins_and_leaves_every_policy(placed, log, test_prompts, policy):
    folder = placed(policy)
    router = Router.load(folder, RouterOptions(seed=1), log=log)
    before = serve(router, test_prompts[:6])
    waiting = router.route(test_prompts[20])
    learnt = router.learner.learnt
    name = add_model(folder, NewModel("new", scored=scored(test_prompts[30:42]), anyway=True), log=log)
    grown = Router.load(folder, RouterOptions(seed=1), log=log)
    assert grown.manifest.id == name != router.manifest.id and grown.arms == [*router.arms, "new"]
    late = router.route(test_prompts[21])  # the router of before serves until it is replaced
    made = serve(grown, test_prompts[44:60])
    assert set(made[0].probabilities) == set(grown.arms) and made[0].probabilities["new"] > 0.0
    assert made[0].scores["new"] > 0.5 and made[0].costs["new"] >= 0.0
    for decision in (waiting, late):  # drawn between the arms of before, scored after
        assert grown.feedback(decision.id, score=1.0, cost=1e-4) == "recorded"
    assert grown.learner.learnt >= (len(made) + 2 if grown.learns else 0) and learnt <= len(before)
    assert grown.explain(before[0].id)["models"] and grown.explain(made[0].id)["models"][-1]["model"] == "new"
    gone = next(arm for arm in router.arms if arm != grown.manifest.fallback)
    remove_model(folder, gone, log=log)
    smaller = Router.load(folder, RouterOptions(seed=1), log=log)
    assert smaller.arms == [arm for arm in grown.arms if arm != gone]
    serve(smaller, test_prompts[60:64])
    played = next(d for d in made if d.model == gone) if any(d.model == gone for d in made) else made[0]
    assert gone not in [row["model"] for row in smaller.explain(played.id)["models"]]
    assert [arms for _, _, arms in log.arm_sets()] == [router.arms, grown.arms, smaller.arms]
    assert [next(iter(c)) for c in smaller.manifest.provenance["arms"]] == ["added", "removed"]
    roll_back(folder)
    assert Router.load(folder, log=log).arms == grown.arms


def test_two_models_that_come_at_once_are_both_there(placed, log, test_prompts):
    folder = placed("lin_ts")
    arms = Router.load(folder, log=log).arms
    with ThreadPoolExecutor() as threads:
        came = [
            threads.submit(add_model, folder, NewModel(name, like=arms[0]), log=log)
            for name in ("new", "newer")
        ]
        assert len({one.result() for one in came}) == 2
    assert set(Router.load(folder, log=log).arms) == {*arms, "new", "newer"}


def test_what_was_learnt_stays(placed, log, test_prompts):
    folder = placed("lin_ts")
    router = Router.load(folder, RouterOptions(seed=1), log=log)
    serve(router, test_prompts[:12], lambda model: float(model == router.arms[2]))
    add_model(folder, NewModel("new", scored=scored(test_prompts[40:60])), log=log)
    grown = Router.load(folder, RouterOptions(seed=1), log=log)
    old, new = router.learner.policy.algorithm, grown.learner.policy.algorithm
    np.testing.assert_array_equal(new.models.theta[:-1], old.models.theta)
    assert len(new.models.theta) == 5 and new.models.theta[-1].any()


@pytest.mark.parametrize("policy", ["hier_mix", "kernel_ridge", "avengers_pro"])
def test_scored_prompts_say_how_good_it_is(placed, log, test_prompts, policy):
    folder = placed(policy)
    add_model(folder, NewModel("bad", scored=scored(test_prompts[:30], 0.0)), log=log)
    add_model(folder, NewModel("good", scored=scored(test_prompts[:30], 1.0, 1e-6)), log=log)
    router = Router.load(folder, RouterOptions(seed=1), log=log)
    made = router.route_many(test_prompts[40:])
    score = {arm: np.mean([d.scores[arm] for d in made]) for arm in router.arms}
    assert score["bad"] < 0.25 < 0.75 < score["good"]
    assert np.mean([d.costs["good"] for d in made]) < 1e-5
    assert np.mean([d.probabilities["good"] for d in made]) > 10 * np.mean(
        [d.probabilities["bad"] for d in made]
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", TRAINED_ONLY)
def test_a_static_policy_plays_a_twin_where_it_costs_less_and_a_dear_one_never(
    placed, log, test_prompts, policy
):
    folder = placed(policy)
    before = Router.load(folder, log=log).route_many(test_prompts[40:60])
    arms = before[0].probabilities
    twin = max(arms, key=lambda arm: sum(d.chosen == arm for d in before))
    prices = {**dict.fromkeys(arms, 1e-3), "cheap": 1e-4, "dear": 1e-2}
    for name in ("dear", "cheap"):
        add_model(folder, NewModel(name, like=twin, prices=prices), log=log)
    after = Router.load(folder, log=log).route_many(test_prompts[40:60])
    for old, new in zip(before, after, strict=True):
        assert new.chosen == "cheap" or new.chosen == old.chosen != twin
    only = Router.load(folder, log=log).route_many(test_prompts[40:42], RouteRequest(available=["dear"]))
    assert all(d.probabilities["dear"] == 1.0 for d in only)


def test_few_scored_prompts_do_not_settle_how_good_a_model_is(placed, log, test_prompts):
    folder = placed("hier_mix")
    add_model(folder, NewModel("new", scored=scored(test_prompts[:8], 0.4, 1e-4)), log=log)
    router = Router.load(folder, RouterOptions(seed=1), log=log)
    chances = []
    for prompts in (test_prompts[8:8], test_prompts[8:48]):
        serve(router, prompts, lambda model: 1.0, available=["new"])
        chances.append(np.mean([router.route(p).probabilities["new"] for p in test_prompts[60:]]))
    assert chances[0] < 0.2 and chances[1] > 0.5


@pytest.mark.slow
def test_a_better_model_is_found_although_it_joined_like_the_worst(placed, log, test_prompts):
    """The best model of all joins as like the worst one, and its scored calls say better."""
    folder = placed("hier_mix")
    router = Router.load(folder, log=log)
    worst = min(router.manifest.arms, key=lambda arm: arm["mean_score"])["name"]
    add_model(folder, NewModel("new", like=worst), log=log)
    router, shares = Router.load(folder, RouterOptions(seed=3), log=log), []
    for part in range(4):
        made = [router.route(f"{text} {part}") for text in test_prompts[:60]]
        shares.append(np.mean([decision.probabilities["new"] for decision in made]))
        for decision in made:
            score = 0.95 if decision.model == "new" else decision.scores[decision.model]
            router.feedback(decision.id, score=score, cost=decision.costs[decision.model])
    assert shares[2] > 0.7 and shares[-1] > 0.7


def test_uniroute_places_a_model_without_scored_prompts_by_the_one_it_is_like(placed, log, test_prompts):
    folder = placed("uniroute")
    arms = Router.load(folder, log=log).arms
    add_model(folder, NewModel("twin", like=arms[1]), log=log)
    means = Router.load(folder, log=log).learner.policy.algorithm.predictor.means_
    np.testing.assert_array_equal(means[:, 4], means[:, 1])


def test_a_model_like_another_has_its_scores_at_the_price_of_its_own(placed, log, test_prompts):
    folder = placed()
    first = Router.load(folder, log=log)
    prices = dict(zip(first.arms, (1e-2, 1e-3, 5e-3, 1e-4), strict=True))
    add_model(folder, NewModel("twin", like=first.arms[1], prices={**prices, "twin": 2e-3}), log=log)
    router = Router.load(folder, log=log)
    made = router.route(test_prompts[0])
    assert made.scores["twin"] == pytest.approx(made.scores[first.arms[1]])
    assert made.costs["twin"] == pytest.approx(2 * made.costs[first.arms[1]])


def test_a_model_like_one_that_joined_has_the_means_of_that_one(placed, log, test_prompts):
    folder = placed()
    add_model(folder, NewModel("joined", scored=scored(test_prompts[:30], 0.9, 2e-2)), log=log)
    add_model(folder, NewModel("twin", like="joined", prices={"joined": 1e-3, "twin": 2e-3}), log=log)
    add_model(folder, NewModel("third", like="twin"), log=log)
    arms = {arm["name"]: arm for arm in Router.load(folder, log=log).manifest.arms}
    assert arms["twin"]["mean_score"] == arms["third"]["mean_score"] == pytest.approx(0.9)
    assert arms["twin"]["mean_cost"] == arms["third"]["mean_cost"] == pytest.approx(4e-2)


def test_a_model_costs_as_much_as_the_only_one_like_it_whose_trained_model_is_gone(placed, log, test_prompts):
    folder = placed()
    trained = Router.load(folder, log=log)
    joined = scored(test_prompts[:30], 0.9, 2e-2)
    gone = next(arm for arm in trained.arms if arm != trained.manifest.fallback)
    prices = {gone: 1e-3, "heir": 5e-3}
    add_model(folder, NewModel("heir", like=gone, prices=prices), log=log)
    remove_model(folder, gone, log=log)
    router = Router.load(folder, log=log)
    anchors = router.heads.oracles.arm_map
    like_gone = Likeness(anchors.weights[router.arms.index("heir")])
    model = NewModel("new", scored=Scored(joined.prompts, joined.scores))
    assert joining.cost_factor(router, anchors, like_gone, model) == pytest.approx(5.0)
    priced = replace(model, prices={"heir": 5e-3, "new": 1e-3})
    assert joining.cost_factor(router, anchors, like_gone, priced) == pytest.approx(1.0)
    index = joining.most_alike(router, anchors, like_gone, model)
    means = joining.mean_figures(router, anchors, replace(like_gone, cost=5.0), None, index)
    assert means["mean_cost"] == pytest.approx(router.manifest.arms[index]["mean_cost"])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["hier_mix", "cabs_c_linear"])
def test_propensities_are_exact_once_a_model_has_joined(placed, log, test_prompts, policy):
    folder = placed(policy)
    add_model(folder, NewModel("new", scored=scored(test_prompts[:8], 0.7)), log=log)
    router = Router.load(folder, RouterOptions(seed=2), log=":memory:")
    drawn = router.route_many(router.predict([test_prompts[10]]) * 20_000)
    for arm in router.arms:
        p, played = (
            np.array(v) for v in zip(*((d.probabilities[arm], d.model == arm) for d in drawn), strict=True)
        )
        assert p.min() > 0.0
        assert_drawn_with(p, played)


def test_doctor_says_which_models_there_were_since_when(placed, log):
    folder = placed("lin_ts")
    arms = Router.load(folder, log=log).arms
    add_model(folder, NewModel("new", like=arms[0]), log=log)
    Router.load(folder, log=log)
    output = CliRunner().invoke(doctor, ["--router", str(folder), "--log", log.place]).output
    assert f"{', '.join([*arms, 'new'])} (new came)" in output


@pytest.mark.parametrize(
    ("seconds", "words"), [(30.0, r"here, \d+ s left"), (-90.0, r"here, ended 9\d s ago")]
)
def test_doctor_says_whether_a_lease_holds(placed, log, seconds, words):
    folder = placed("carrot")
    assert log.take_lease("here", seconds)
    output = CliRunner().invoke(doctor, ["--router", str(folder), "--log", log.place]).output
    assert re.search(f"lease: {words}", output), output


def test_estimates_know_which_models_were_there(placed, log, test_prompts):
    folder = placed("carrot")
    serve(Router.load(folder, RouterOptions(seed=1), log=log), test_prompts[:15])
    add_model(folder, NewModel("new", scored=scored(test_prompts[50:60]), anyway=True), log=log)
    grown = Router.load(folder, RouterOptions(seed=1), log=log)
    serve(grown, test_prompts[15:30])
    data = read_events(log, grown.arms, identity=grown.manifest.identity)
    assert len(data) == 30 and data.pmf.shape == (30, 5)
    assert not data.available[:15, 4].any() and data.available[15:].all() and not data.pmf[:15, 4].any()
    np.testing.assert_allclose(data.pmf.sum(axis=1), 1.0)
    remove_model(folder, "new", log=log)
    left = read_events(log, Router.load(folder, log=log).arms)
    assert (len(left), left.today, left.left) == (30, grown.arms[:4], ("new",))
    np.testing.assert_array_equal(left.pmf, data.pmf)
    rest = read_events(log, ["new"])
    assert len(rest) == 15
    (receipt,) = rest.receipt
    assert receipt.startswith("15 scores") and "new" in receipt


def softmax(values: np.ndarray, available: np.ndarray) -> np.ndarray:
    shares = np.where(available, np.exp(values), 0.0)
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["came", "left, of a policy that learns"])
def test_intervals_cover_across_a_change_of_arms(change):
    """The logging policy has 3 arms in one half of the log and 4 in the other: estimates are unbiased, .92 to
    .98 of the intervals hold the truth. The fourth is played most on some of the prompts."""
    rng, logs, n, covered, errors = np.random.default_rng(7), 400, 800, [], []
    came = change == "came"
    for _ in range(logs):
        x = rng.normal(size=(n, 2))
        means = 1.0 / (1.0 + np.exp(-(x @ np.array([[1.0, -1.0, 0.3, 0.8], [0.2, 0.5, -0.7, 0.4]]) + 0.2)))
        available = np.ones((n, 4), dtype=bool)
        available[slice(n // 2) if came else slice(n // 2, n), 3] = False
        slopes = x[:, :1] * np.array([[1.0, 0.0, -1.0, 0.5 if came else 3.0]])
        pmf = softmax(0.5 * slopes, available)
        target = softmax(-0.5 * slopes, available if came else available & (np.arange(4) < 3))
        actions, scores = np.empty(n, dtype=int), np.empty(n)
        for part in np.split(np.arange(n), 8):
            if "learns" in change and part[0]:
                earned = [scores[: part[0]][actions[: part[0]] == arm].mean() for arm in range(4)]
                pmf[part] = softmax(0.5 * slopes[part] + 2.0 * np.array(earned), available[part])
            actions[part] = (rng.random((len(part), 1)) > pmf[part].cumsum(axis=1)).sum(axis=1)
            scores[part] = rng.random(len(part)) < means[part, actions[part]]
        data = LoggedData(
            arms=list("abcd"),
            left=() if came else ("d",),
            actions=actions,
            scores=scores,
            costs=np.zeros(n),
            features=x,
            groups=np.arange(n).astype(str),
            pmf=pmf,
            available=available,
        )
        row = evaluate(data, target[:, : len(data.today)], rho=0.0).row("dr", "score")
        truth = float((target * means).sum(axis=1).mean())
        covered.append(row.low <= truth <= row.high)
        errors.append(row.value - truth)
    assert 0.92 <= np.mean(covered) <= 0.98
    assert abs(np.mean(errors)) < 3.0 * np.std(errors) / np.sqrt(logs)


def test_a_static_router_takes_few_scored_prompts_only_where_it_is_told_to(placed, log, test_prompts):
    folder = placed("carrot")
    before = Router.load(folder, log=log).manifest.id
    with pytest.raises(RouterError, match=rf"19 scored prompts.*{MEAN_GAIN:.3f}.*{WORST_LOSS:.3f}.*--anyway"):
        add_model(folder, NewModel("new", scored=scored(test_prompts[:19])), log=log)
    assert Router.load(folder, log=log).manifest.id == before
    add_model(folder, NewModel("twentieth", scored=scored(test_prompts[:20])), log=log)
    add_model(folder, NewModel("new", scored=scored(test_prompts[:2]), anyway=True), log=log)
    assert Router.load(folder, log=log).arms[-2:] == ["twentieth", "new"]


def test_a_random_router_refuses_a_model_like_another_and_takes_scored_prompts(placed, log, test_prompts):
    folder = placed("random")
    arms = Router.load(folder, log=log).arms
    with pytest.raises(PolicyError, match=arms[0]):
        add_model(folder, NewModel("new", like=arms[0]), log=log)
    assert Router.load(folder, log=log).arms == arms
    add_model(folder, NewModel("new", scored=scored(test_prompts[:20])), log=log)
    assert Router.load(folder, log=log).arms == [*arms, "new"]


def test_a_free_model_like_another_starts_with_the_utility_of_its_own_price(placed, log, test_prompts):
    folder = placed("lin_ts")
    router = Router.load(folder, log=log)
    serve(router, test_prompts[:12])
    cheapest = min(router.manifest.arms, key=lambda arm: arm["mean_cost"])
    margin = 1.0 - router.manifest.rho * cheapest["mean_cost"]
    assert margin > 0.0
    add_model(folder, NewModel("same", like=cheapest["name"]), log=log)
    add_model(folder, NewModel("free", like=cheapest["name"], free=True), log=log)
    theta = Router.load(folder, log=log).learner.policy.algorithm.models.theta
    known = theta[router.arms.index(cheapest["name"])]
    np.testing.assert_allclose(theta[4], known)
    np.testing.assert_allclose(theta[5], known / margin)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lin_ts", "hier_mix", "cabs_c_linear"])
def test_served_and_marked_decisions_of_a_subset_are_drawn_as_logged_after_a_join(
    placed, log, test_prompts, policy
):
    folder = placed(policy)
    arms = Router.load(folder, log=log).arms
    add_model(folder, NewModel("new", like=arms[0]), log=log)
    router = Router.load(folder, RouterOptions(seed=2, score_share=0.3, score_rule="seldom"), log=":memory:")
    some = [*arms[:2], "new"]
    predicted = router.predict([test_prompts[10]]) * 5_000
    drawn = router.route_many(predicted, RouteRequest(available=some))
    rows = {row.id: row for row in router.log.decisions()}
    for arm in some:
        p = np.array([d.probabilities[arm] for d in drawn])
        played = np.array([d.model == arm for d in drawn])
        assert_drawn_with(p, played)
        # a decision is marked with probability q, which is known for the arm that was drawn
        q = np.array([rows[d.id].q for d in drawn])[played]
        marked = np.array([d.marked for d in drawn])[played]
        assert_drawn_with(q, marked)
    assert {d.model for d in drawn} <= set(some)


def test_what_cannot_be(placed, log, test_prompts, tmp_path):
    folder = placed("lin_ts")
    router = Router.load(folder, log=log)
    some = scored(test_prompts[:8])
    for call, words in (
        (lambda: add_model(folder, NewModel(router.arms[0], scored=some), log=log), "chooses .* already"),
        (lambda: add_model(folder, NewModel("cabs-rho-3", scored=some), log=log), "the router itself"),
        (lambda: add_model(folder, NewModel(" ", scored=some), log=log), "expected a name"),
        (lambda: add_model(folder, NewModel("new ", scored=some), log=log), "no space before or after"),
        (lambda: Scored([], np.zeros(0)), "at least one"),
        (lambda: Scored(["a", "b"], np.array([1.0, np.nan])), "scores of 2 scored prompts"),
        (lambda: Scored(["a"], np.ones(1), np.array([-1.0])), "costs of 1 scored prompts"),
        (lambda: Scored(["a"], np.ones(1), np.array([np.inf])), "costs of 1 scored prompts"),
        (lambda: add_model(folder, NewModel("new"), log=log), "scored or like"),
        (lambda: add_model(folder, NewModel("new", like="nobody"), log=log), "unknown model 'nobody'"),
        (
            lambda: add_model(folder, NewModel("new", like=router.arms[0], scored=some), log=log),
            "scored or like",
        ),
        (lambda: remove_model(folder, "nobody", log=log), "unknown model 'nobody'"),
        (lambda: remove_model(folder, router.manifest.fallback, log=log), "fallback"),
    ):
        with pytest.raises(RouterError, match=words):
            call()
    table = tmp_path / "scored.csv"
    for content, words in (
        ("prompt,score\n", "no row"),
        ("prompt,score\nhello,\n", "score is missing"),
        ("prompt,score\nhello,7\n", "score is 7.*Bring scores to"),
        ("question,score\nhello,1\n", "no column 'prompt'; expected prompt, score"),
    ):
        table.write_text(content)
        with pytest.raises(DataError, match=words):
            read_scored(table)
    table.write_text("prompt,score,cost\nhello,1,0.001\nthere,0.5,0.002\n")
    read = read_scored(table)
    assert read.prompts == ["hello", "there"] and read.scores.tolist() == [1.0, 0.5]
    assert read.costs.tolist() == [0.001, 0.002]
    assert Router.load(folder, log=log).manifest.id == router.manifest.id


def test_scored_prompts_without_pandas_say_what_to_do(tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.startswith("cabs_core.data.tables")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    words = r"scored\.csv needs pandas and pyarrow, and pandas is not installed here: pip install pandas"
    with pytest.raises(DataError, match=words):
        read_scored(tmp_path / "scored.csv")


def test_the_map_of_arms():
    rng = np.random.default_rng(0)
    predicted, scores = rng.random((40, 3)), rng.random(40)
    like = Likeness.of_scores(np.column_stack([scores, predicted]), scores)
    assert like.weights[0] > 0.8 and abs(like.offset) < 0.1  # the arm that predicts it
    grown = ArmMap.trained(3).added(Likeness(np.array([0.0, 1.0, 0.0]), 0.1, 2.0))
    np.testing.assert_allclose(grown.scores(predicted)[:, 3], np.minimum(predicted[:, 1] + 0.1, 1.0))
    np.testing.assert_allclose(grown.costs_of(predicted), np.column_stack([predicted, 2 * predicted[:, 1]]))
    assert ArmMap.from_dict(grown.to_dict()).scores(predicted).tolist() == grown.scores(predicted).tolist()
    np.testing.assert_array_equal(grown.trained_scores(np.array([[0.1, 0.2, 0.3, 0.9]])), [[0.1, 0.2, 0.3]])
    left = grown.removed(1)
    np.testing.assert_array_equal(left.scores(predicted), grown.scores(predicted)[:, [0, 2, 3]])
    observed = np.array([[0.1, 0.2, 0.9]])
    np.testing.assert_array_equal(left.trained_scores(observed), [[0.1, 0.9, 0.2]])
