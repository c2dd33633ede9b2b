"""Off-policy estimates: against slow references, against the truth of full tables,
against peers, and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.base.errors import DataError
from cabs_core.base.hashing import prompt_hash
from cabs_core.base.statistics.clusters import independent
from cabs_core.evaluation.ope.data import LoggedData, read_table
from cabs_core.evaluation.ope.estimators import direct, doubly_robust, snips, weights
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.evaluation.ope.intervals import error_of
from cabs_core.evaluation.ope.models import PENALTY, earlier_model, folds, outcome_model
from cabs_core.evaluation.ope.training import pseudo_outcomes, unseen

ARMS = ["a", "b", "c"]
RHO = 200.0


def table(rng, n: int):
    """A full table: features [n, 3], scores [n, 3] of 0 and 1, costs [n, 3]."""
    x = rng.normal(size=(n, 3))
    ability = x @ np.array([[1.0, -1.0, 0.2], [0.5, 0.3, -1.0], [0.0, 1.0, 0.4]]) + [0.5, 0.0, -0.3]
    scores = (rng.random((n, 3)) < 1 / (1 + np.exp(-ability))).astype(float)
    return x, scores, np.array([1e-3, 3e-4, 5e-5]) * rng.lognormal(0, 0.3, (n, 3))


def policies(x):
    """(logging, target) probabilities [n, 3]."""
    z = x[:, :3] * 1.2
    log = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    log = 0.85 * log + 0.05
    target = np.full(log.shape, 0.05)
    target[np.arange(len(x)), (-x[:, 1:2] + x[:, :1] > 0).astype(int).ravel()] = 0.9
    return log, target


def simulated(rng, full, n: int) -> tuple[LoggedData, np.ndarray]:
    rows = rng.integers(0, len(full[0]), n)
    x, scores, costs = (v[rows] for v in full)
    log, target = policies(x)
    actions = (rng.random((n, 1)) > log.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    at = np.arange(n)
    return LoggedData(
        ARMS, actions, scores[at, actions], costs[at, actions], x, rows.astype(str), log[at, actions], log
    ), target


def test_estimators_are_the_sums_they_are_named_after():
    rng = np.random.default_rng(0)
    data, target = simulated(rng, table(rng, 200), 150)
    q = rng.random((150, 3))
    w = [target[i, data.actions[i]] / data.propensities[i] for i in range(150)]
    assert np.allclose(weights(target, data.actions, data.propensities), w, rtol=1e-12)
    w = np.array(w)
    slow = sum(w[i] * data.scores[i] for i in range(150))
    assert (w * data.scores).mean() == pytest.approx(slow / 150, rel=1e-12)
    assert snips(w, data.scores) == pytest.approx(slow / sum(w), rel=1e-12)
    dr = switch = 0.0
    for i in range(150):
        model = sum(target[i, a] * q[i, a] for a in range(3))
        error = data.scores[i] - q[i, data.actions[i]]
        dr += model + w[i] * error
        switch += model + (w[i] * error if w[i] <= 2.0 else 0.0)
    played = (target, w, data.actions, data.scores, q)
    assert doubly_robust(*played).mean() == pytest.approx(dr / 150, rel=1e-12)
    assert doubly_robust(*played, 2.0).mean() == pytest.approx(switch / 150, rel=1e-12)
    assert doubly_robust(*played, 0.0).mean() == pytest.approx(direct(target, q).mean())
    assert independent(w) == pytest.approx(sum(w) ** 2 / sum(w**2))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_logging_policy_itself_is_estimated_by_its_mean(seed):
    """w = 1 for every row: SNIPS is the mean, its difference to what was played 0 without error."""
    rng = np.random.default_rng(seed)
    data, _ = simulated(rng, table(rng, 300), 200)
    evaluation = evaluate(data, data.pmf, RHO)
    row = evaluation.row("snips", "score")
    assert row.value == pytest.approx(data.scores.mean())
    assert (row.difference_low, row.difference_high) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert evaluation.mean_weight == pytest.approx(1.0) and evaluation.n_eff == pytest.approx(200.0)


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """95 % intervals over 300 logs from one full table, of utility and of its difference
    to the logging policy."""
    rng = np.random.default_rng(7)
    full = table(rng, 20_000)
    log, target = policies(full[0])
    utilities = np.clip(full[1] - RHO * full[2], 0, 1)
    truth, logged = ((p * utilities).sum(axis=1).mean() for p in (target, log))
    inside = {name: [0, 0] for name in ("snips", "dr", "switch_dr")}
    for _ in range(300):
        data, pi = simulated(rng, full, 800)
        evaluation = evaluate(data, pi, RHO)
        for name, count in inside.items():
            row = evaluation.row(name)
            count[0] += row.low <= truth <= row.high
            count[1] += row.difference_low <= truth - logged <= row.difference_high
    assert all(276 <= c <= 294 for pair in inside.values() for c in pair), inside  # 92 to 98 %


def seldom(rng, n: int, epsilon: float = 0.02, arms: int = 7):
    """A log that plays arm 0 but for epsilon, on which the target plays arm 1:
    (data, target, its true mean)."""
    pmf = np.full((n, arms), epsilon / arms)
    pmf[:, 0] += 1.0 - epsilon
    actions = (rng.random((n, 1)) > pmf.cumsum(axis=1)).sum(axis=1).clip(0, arms - 1)
    chance = np.where(np.arange(arms) == 1, 0.8, 0.4)
    scores = (rng.random(n) < chance[actions]).astype(float)
    data = LoggedData(
        [f"m{i}" for i in range(arms)],
        actions,
        scores,
        np.full(n, 1e-4),
        rng.normal(size=(n, 4)),
        np.arange(n).astype(str),
        pmf=pmf,
    )
    return data, np.tile(np.eye(arms)[1], (n, 1)), 0.8


def test_a_log_is_judged_by_its_probabilities_not_by_what_happened_to_be_drawn():
    """Rare arms that were not drawn leave weights that look well: that was no reason to trust them."""
    rng = np.random.default_rng(0)
    data, _, _ = seldom(rng, 1000)
    half = data.pmf.copy()  # plays arm 0 in nine of ten prompts, arm 1 in the rest
    rows = np.arange(1000) % 10 == 0
    target = np.eye(7)[np.where(rows, 1, 0)]
    lucky = replace(data, actions=np.zeros(1000, dtype=int), propensities=half[:, 0])
    w = weights(target, lucky.actions, lucky.propensities)
    assert independent(w) > 800  # of the weights that happened
    evaluation = evaluate(lucky, target, RHO)
    expected = 1000 / (target**2 / half).sum(axis=1).mean()
    assert evaluation.n_eff == pytest.approx(expected) and expected < 30 and not evaluation.rows
    assert "more scored decisions" in evaluation.refused
    # without the other arms' probabilities, the mean weight gives it away
    blind = replace(lucky, actions=np.where(np.arange(1000) == 5, 1, 0), pmf=None)
    assert evaluate(blind, target, RHO).refused
    # propensities of something else show in the mean weight
    data, target = simulated(rng, table(rng, 3000), 3000)
    evaluation = evaluate(replace(data, propensities=data.propensities / 2.0, pmf=None), target, RHO)
    assert "importance weights have mean" in evaluation.refused


def test_what_it_takes_is_said_in_decisions():
    rng = np.random.default_rng(1)
    data, target, _ = seldom(rng, 1000)
    evaluation = evaluate(data, target, RHO)
    assert evaluation.n_eff == pytest.approx(1000 * 0.02 / 7)
    assert "17,000 more scored decisions" in evaluation.refused


def test_no_interval_where_one_would_not_hold():
    """The direct method, SWITCH-DR with its cap in force and estimated propensities:
    a value, and why there is no more."""
    rng = np.random.default_rng(2)
    data, target, _ = seldom(rng, 1000, epsilon=0.5)
    evaluation = evaluate(data, target, RHO, switch=5.0)
    for estimator, words in (("switch_dr", "weights over 5 are cut"), ("dm", "as wrong as the model")):
        row = evaluation.row(estimator)
        assert (row.low, row.high, row.difference_low) == (None, None, None) and words in row.no_interval
    assert evaluation.row("dr").no_interval == "" and evaluation.row("dr").low < evaluation.row("dr").high
    assumed = evaluate(replace(data, propensities=None, pmf=None), target, RHO)
    assert assumed.row("dr").low is None and "were estimated" in assumed.row("dr").no_interval


def test_decisions_of_one_session_are_one_piece_of_evidence():
    """Every decision written ten times, as one cluster, has the errors of the decisions written once."""
    rng = np.random.default_rng(3)
    data, target = simulated(rng, table(rng, 1000), 600)
    data = replace(data, groups=np.arange(600).astype(str))
    again = data.take(np.repeat(np.arange(600), 10))
    sessions = np.repeat(np.arange(600), 10)
    one = evaluate(data, target, RHO).row("snips")
    ten = evaluate(again, np.repeat(target, 10, axis=0), RHO, cluster=sessions).row("snips")
    assert ten.value == pytest.approx(one.value)
    assert ten.high - ten.low == pytest.approx(one.high - one.low, rel=0.02)
    clustered = replace(again, clusters=sessions)  # as the log of a router says it
    assert evaluate(clustered, np.repeat(target, 10, axis=0), RHO).row("snips") == ten
    apart = replace(again, groups=np.arange(6000).astype(str))
    apart = evaluate(apart, np.repeat(target, 10, axis=0), RHO).row("snips")
    assert apart.high - apart.low < 0.5 * (one.high - one.low)
    with pytest.raises(DataError, match="cluster has 3 values, expected 600"):
        evaluate(data, target, RHO, cluster=np.zeros(3))


def learning_log(rng, full, n: int):
    """A log of epsilon-greedy play on running means: its probabilities depend on what it saw."""
    rows = rng.integers(0, len(full[0]), n)
    utility = np.clip(full[1] - RHO * full[2], 0, 1)
    totals, counts = np.zeros(3), np.full(3, 1e-9)
    actions, pmf = np.zeros(n, dtype=int), np.full((n, 3), 0.1)
    for t, row in enumerate(rows):
        pmf[t, int(np.argmax(totals / counts + 0.01 * rng.random(3)))] += 0.7
        a = actions[t] = rng.choice(3, p=pmf[t])
        totals[a], counts[a] = totals[a] + utility[row, a], counts[a] + 1
    at = np.arange(n)
    return LoggedData(
        ARMS,
        actions,
        full[1][rows, actions],
        full[2][rows, actions],
        full[0][rows],
        at.astype(str),
        pmf=pmf,
        adaptive=True,
    )


@pytest.mark.slow
def test_intervals_of_a_learning_policys_log_hold_at_every_length():
    """However often one looks: in at most 5 % of the logs is the truth outside at any of the looks."""
    rng = np.random.default_rng(11)
    full = table(rng, 20_000)
    utilities = np.clip(full[1] - RHO * full[2], 0, 1)
    target = np.eye(3)[(full[0][:, 0] > 0).astype(int)]
    truth = (target * utilities).sum(axis=1).mean()
    missed = 0
    for _ in range(100):
        data = learning_log(rng, full, 1600)
        # the rows' own targets, by their features
        played = np.eye(3)[(data.features[:, 0] > 0).astype(int)]
        looks = []
        for n in (200, 300, 400, 600, 800, 1200, 1600):
            evaluation = evaluate(data.take(np.arange(n)), played[:n], RHO)
            if evaluation.rows:  # refused: nothing is claimed
                row = evaluation.row("dr")
                looks.append(row.low <= truth <= row.high)
        assert len(looks) >= 3
        missed += not all(looks)
    assert missed <= 8, missed  # of 100 at a rate of 5 % or less
    whole = evaluate(data, played, RHO)
    assert whole.anytime and "learning policy" in whole.row("snips").no_interval
    fixed = evaluate(data, played, RHO, anytime=False).row("dr")
    assert whole.row("dr").high - whole.row("dr").low > 1.3 * (fixed.high - fixed.low)


def test_a_model_of_earlier_rows_knows_no_later_one():
    rng = np.random.default_rng(1)
    data, _ = simulated(rng, table(rng, 400), 300)
    q = earlier_model(data.features, data.actions, data.scores, 3)
    later = np.arange(300) >= 128
    changed = np.where(later, 1.0 - data.scores, data.scores)
    again = earlier_model(data.features, data.actions, changed, 3)
    assert np.array_equal(q[:256], again[:256]) and not np.array_equal(q[256:], again[256:])
    assert not q[:64].any() and q[64:].any()


def test_standard_errors_by_hand():
    """Against sums written out; the expected second moment is a floor."""
    rng = np.random.default_rng(0)
    m, c, e, g = rng.normal(size=40), rng.random(40), rng.normal(size=40), np.arange(40) // 2
    values = m + c * e
    sums = [sum(values[i] - values.mean() for i in range(40) if g[i] == k) for k in range(20)]
    by_hand = (sum(s**2 for s in sums) * 20 / 19) ** 0.5 / 40
    parts = [sum(m[i] - m.mean() for i in range(40) if g[i] == k) for k in range(20)]
    model = sum(s**2 for s in parts) * 20 / 19 / 1600
    expected = (model + 9.0 * sum((c * e) ** 2) / sum(c**2) / 40) ** 0.5
    assert error_of(m, c, e, g, 9.0, 40).value == pytest.approx(expected) and expected > by_hand
    assert error_of(m, c, e, g, 0.0, 40).value == pytest.approx(by_hand)
    heavy = sum(c**2) ** 2 / sum(c**4)
    wrong = (sum((c * e) ** 2) / sum(c**2) + max(e**2) / heavy) / (1 + 1 / heavy)
    assert error_of(m, c, e, g, 9.0, 40, cautious=True).value == pytest.approx(
        (model + 9.0 * wrong / 40) ** 0.5
    )
    assert np.isnan(error_of(m, c, e, np.zeros(40), 0.0, 40).half_width())


def test_the_model_has_not_seen_its_row():
    """Cross-fitting: changing an outcome does not change the model's prediction of its own group."""
    rng = np.random.default_rng(1)
    data, _ = simulated(rng, table(rng, 50), 120)
    fold = folds(data.groups)
    assert all(len(set(fold[data.groups == g])) == 1 for g in set(data.groups))
    q = outcome_model(data.features, data.actions, data.scores, 3, fold)
    changed = data.scores.copy()
    mine = data.groups == data.groups[0]
    changed[mine] = 1.0 - changed[mine]
    again = outcome_model(data.features, data.actions, changed, 3, fold)
    assert np.array_equal(q[mine], again[mine]) and not np.array_equal(q, again)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_the_expectation_over_what_is_played_is_the_full_table(seed, with_prior):
    """For one prompt, whatever the others played: sum_a mu(a) pseudo-outcomes under a = its row
    of the table, exactly."""
    rng = np.random.default_rng(seed)
    n, k = 40, 3
    x, scores, _ = table(rng, n)
    mu = rng.dirichlet(np.ones(k), size=n) * 0.94 + 0.02
    actions = np.array([rng.choice(k, p=p) for p in mu])
    prior = rng.random((n, k)) if with_prior else None
    row, at, expected = int(rng.integers(n)), np.arange(n), np.zeros(k)
    for arm in range(k):
        actions[row] = arm
        data = LoggedData(
            list("abc"), actions, scores[at, actions], np.zeros(n), x, at.astype(str), mu[at, actions]
        )
        q = cross_fitted(data, data.scores, seed) if prior is None else prior
        expected += mu[row, arm] * pseudo_outcomes(data, data.scores, q)[row]
    assert np.allclose(expected, scores[row], rtol=0, atol=1e-9)


def cross_fitted(data: LoggedData, outcomes: np.ndarray, seed: int = 0) -> np.ndarray:
    """Predictions of a model fitted on the log itself, each by rows of other prompts."""
    return outcome_model(data.features, data.actions, outcomes, len(data.arms), folds(data.groups, seed=seed))


def slow(data: LoggedData, outcomes: np.ndarray, prior: np.ndarray | None, cap: float) -> np.ndarray:
    """Cell by cell, by least squares with the penalty as further rows."""
    n, k = len(data), len(data.arms)
    fold = folds(data.groups)
    x = data.features * 4.0 / np.sqrt(np.mean([f @ f for f in data.features]))
    out = np.empty((n, k))
    for i in range(n):
        for a in range(k):
            if prior is None:
                rows = [j for j in range(n) if fold[j] != fold[i] and data.actions[j] == a]
                y, center = outcomes[rows], np.mean([x[j] for j in rows], axis=0)
                system = np.vstack([[x[j] - center for j in rows], np.sqrt(PENALTY) * np.eye(x.shape[1])])
                target = np.concatenate([y - y.mean(), np.zeros(x.shape[1])])
                q = y.mean() + (x[i] - center) @ np.linalg.lstsq(system, target, rcond=None)[0]
            else:
                q = prior[i, a]
            played = data.actions[i] == a
            out[i, a] = q + (min(1 / data.propensities[i], cap) * (outcomes[i] - q) if played else 0.0)
    return out


@pytest.mark.parametrize("cap", [4.0, np.inf])
@pytest.mark.parametrize("with_prior", [False, True])
def test_it_is_the_slow_reference(cap, with_prior):
    rng = np.random.default_rng(11)
    data, _ = simulated(rng, table(rng, 200), 60)
    prior = rng.random((60, 3)) if with_prior else None
    for outcomes in (data.scores, data.costs):
        q = cross_fitted(data, outcomes) if prior is None else prior
        outcomes_of_arms = pseudo_outcomes(data, outcomes, q, cap=cap)
        assert np.allclose(outcomes_of_arms, slow(data, outcomes, prior, cap), rtol=0, atol=1e-9)


def test_no_propensity_is_refused():
    rng = np.random.default_rng(13)
    data, _ = simulated(rng, table(rng, 100), 20)
    with pytest.raises(DataError, match="need propensities"):
        pseudo_outcomes(replace(data, propensities=None, pmf=None), data.scores, np.zeros((20, 3)))
    bad = data.scores.copy()
    bad[4] = np.nan
    with pytest.raises(DataError, match=r"row 5: scores is nan.* 0 to 1"):
        replace(data, scores=bad)


def test_prompts_of_the_table_are_known_by_text_and_by_hash():
    groups = np.array(["one", prompt_hash("two"), "three", prompt_hash("four")])
    n = len(groups)
    data = LoggedData(["a", "b"], np.zeros(n, dtype=int), np.zeros(n), np.zeros(n), np.zeros((n, 1)), groups)
    rows = unseen(data, ["one", "two", "five"])
    assert rows.tolist() == [2, 3]
    assert data.take(rows).groups.tolist() == groups[2:].tolist() and data.take(rows).pmf is None


def test_refusals_say_why():
    rng = np.random.default_rng(4)
    data, target = simulated(rng, table(rng, 500), 400)
    sure = replace(data, propensities=np.ones(400), pmf=np.eye(3)[data.actions])
    evaluation = evaluate(sure, target, RHO)
    assert "deterministic" in evaluation.refused and evaluation.rows == []
    with pytest.raises(DataError, match="deterministic"):
        evaluation.row("dr")
    assert "effective sample size" in evaluate(data.take(np.arange(20)), target[:20], RHO).refused
    pmf = data.pmf.copy()
    pmf[:, 1] += pmf[:, 2]
    pmf[:, 2] = 0.0
    hidden = replace(data, actions=np.where(data.actions == 2, 1, data.actions), pmf=pmf)
    assert "never plays" in evaluate(hidden, np.tile([0.0, 0.0, 1.0], (400, 1)), RHO).refused
    empty = data.take(np.arange(0))
    assert "no scored decision" in evaluate(empty, target[:0], RHO).refused
    with pytest.raises(DataError, match="target"):
        evaluate(data, target[:, :2], RHO)


@pytest.mark.parametrize("worth", [0.0, 1.0])
def test_what_is_never_played_widens_the_interval_by_all_that_it_may_earn(worth):
    """A quarter of the target's choices is model c, which the log never plays there;
    c earns nothing or everything."""
    held = []
    for draw in range(40):
        rng = np.random.default_rng([11, draw])
        pmf = np.tile([0.5, 0.5, 0.0], (600, 1))
        pmf[:300] = [0.3, 0.3, 0.4]
        actions = (rng.random((600, 1)) > pmf.cumsum(axis=1)).sum(axis=1)
        scores = np.where(actions == 2, worth, rng.random(600) < 0.6).astype(float)
        data = LoggedData(
            ARMS,
            actions,
            scores,
            np.full(600, 1e-4),
            rng.normal(size=(600, 2)),
            np.arange(600).astype(str),
            pmf=pmf,
        )
        evaluation = evaluate(data, np.tile([0.5, 0.0, 0.5], (600, 1)), 0.0)
        truth, played = 0.5 * 0.6 + 0.5 * worth, 0.2 * worth + 0.8 * 0.6
        for name in ("snips", "dr"):
            row = evaluation.row(name, "score")
            assert row.manski_width == pytest.approx(0.25) and row.high - row.low > 0.25
            held.append(
                (row.low <= truth <= row.high, row.difference_low <= truth - played <= row.difference_high)
            )
    assert np.mean(held, axis=0).min() > 0.9
    assert "no largest value" in evaluation.row("dr", "cost").no_interval


def test_without_propensities_it_is_an_assumption_and_not_far_off():
    rng = np.random.default_rng(5)
    full = table(rng, 20_000)
    _, pi = policies(full[0])
    truth = (pi * full[1]).sum(axis=1).mean()
    data, target = simulated(rng, full, 3000)
    evaluation = evaluate(replace(data, propensities=None, pmf=None), target, RHO)
    assert evaluation.assumed and abs(evaluation.row("dr", "score").value - truth) < 0.05
    assert {r.estimator for r in evaluation.rows} >= {"dm", "dr"} and evaluation.coverage == pytest.approx(
        1.0
    )


def test_without_propensities_a_model_that_was_never_played_is_not_covered():
    rng = np.random.default_rng(8)
    data, _ = simulated(rng, table(rng, 500), 400)
    unknown = replace(data, actions=np.where(data.actions == 2, 1, data.actions), propensities=None, pmf=None)
    evaluation = evaluate(unknown, np.tile([0.3, 0.2, 0.5], (400, 1)), RHO)
    assert evaluation.assumed and evaluation.coverage == pytest.approx(0.5)
    assert "50.0 %" in evaluation.refused


def test_a_users_table(tmp_path):
    """What a column may hold is tested in tests/core/data/logs."""
    frame = pd.DataFrame(
        {
            "q": ["x", "y", "x"],
            "model": ["a", "b", "a"],
            "ok": [1, 0, 1],
            "usd": [1e-3, 1e-4, 1e-3],
            "propensity": [0.5, 0.2, 0.5],
        }
    )
    frame.to_csv(tmp_path / "log.csv", index=False)
    names = {"prompt": "q", "score": "ok", "cost": "usd"}
    data = read_table(tmp_path / "log.csv", np.zeros((3, 1)), columns=names)
    assert data.arms == ["a", "b"] and data.actions.tolist() == [0, 1, 0] and len(data) == 3
    probabilities = frame.drop(columns="propensity").assign(
        pmf=['{"a": 0.5, "b": 0.5}', '{"a": 0.8, "b": 0.2}', '{"a": 1}']
    )
    data = read_table(probabilities, np.zeros((3, 1)), columns=names)
    assert data.propensities.tolist() == [0.5, 0.2, 1.0]
    with pytest.raises(DataError, match="row 3: propensities is 0"):
        read_table(probabilities.assign(model=["a", "b", "b"]), np.zeros((3, 1)), columns=names)
    with pytest.raises(DataError, match="model 'b'"):
        read_table(frame, np.zeros((3, 1)), columns=names, arms=["a", "c"])
    with pytest.raises(DataError, match="features has 4 rows, expected 3"):
        read_table(frame, np.zeros((4, 1)), columns=names)
    with pytest.raises(DataError, match="embeddings has 2 rows, expected 3"):
        read_table(frame, embeddings=np.zeros((2, 1)), columns=names)


@pytest.mark.peers
def test_ips_and_snips_agree_with_vw_estimators():
    pytest.importorskip("estimators")
    from estimators.bandits import ips as peer_ips
    from estimators.bandits import snips as peer_snips

    rng = np.random.default_rng(6)
    data, target = simulated(rng, table(rng, 300), 250)
    one, two = peer_ips.Estimator(), peer_snips.Estimator()
    pi = target[np.arange(250), data.actions]
    for p_log, r, p_pred in zip(data.propensities, data.scores, pi, strict=True):
        one.add_example(p_log, r, p_pred)
        two.add_example(p_log, r, p_pred)
    w = weights(target, data.actions, data.propensities)
    assert (w * data.scores).mean() == pytest.approx(one.get(), abs=1e-9)
    assert snips(w, data.scores) == pytest.approx(two.get(), abs=1e-9)


@pytest.mark.peers
def test_doubly_robust_agrees_with_coba_under_its_model():
    """It takes no predictions, and fits a model of its own, which its direct method shows:
    with that one, DR is the same."""
    pytest.importorskip("vowpalwabbit")
    filters = pytest.importorskip("coba.environments.filters")
    rng = np.random.default_rng(6)
    data, target = simulated(rng, table(rng, 300), 250)
    logged = [
        {"context": tuple(x.tolist()), "action": ARMS[a], "reward": float(r), "probability": float(p)}
        for x, a, r, p in zip(data.features, data.actions, data.scores, data.propensities, strict=True)
    ]
    model, theirs = (
        np.array([[row["rewards"](a) for a in ARMS] for row in filters.OpeRewards(kind).filter(logged)])
        for kind in ("DM", "DR")
    )
    w = weights(target, data.actions, data.propensities)
    ours = doubly_robust(target, w, data.actions, data.scores, model)
    assert np.allclose(ours, (target * theirs).sum(axis=1), rtol=0, atol=1e-9)
    assert not np.allclose(model, theirs)
