"""Condition `sessions`: queries as turns of conversations, what they cost, and who answers them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import DataError, PolicyError
from cabs_core.base.utility import clipped_utility, may_keep, worth_a_switch
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.outcomes.tokens import counted_tokens
from cabs_core.data.pool_files import pool_from
from cabs_core.data.pool_files.sections import Replay
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.evaluation.replay import engine, replay
from cabs_core.evaluation.replay.conditions import stream_condition, with_kept_costs
from cabs_core.evaluation.replay.sessions import ANSWER_PRICE, in_conversations, tokens_of
from cabs_core.evaluation.replay.storage import load_trace, save_replay_result

RHO = 300.0


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=160, K=4, d=5, seed=3)


@pytest.fixture(scope="module")
def counted(problem):
    """The same problem with token counts, which differ between models."""
    rng = np.random.default_rng(0)
    return replace(
        problem,
        input_tokens=rng.integers(20, 300, (problem.n, 4)),
        output_tokens=rng.integers(5, 600, (problem.n, 4)),
        input_prices=problem.costs.mean(axis=0) / 400,
    )


def talk(problem, policy, **more):
    options = {name: more.pop(name) for name in list(more) if name in Sessions.model_fields}
    return replay(problem, policy, rho=RHO, condition="sessions", sessions=options, **{"trials": 2} | more)


def by_hand(problem, result, options: Sessions):
    """(costs of what was played, all read anew, all earlier turns cached), `[trials, T]`, by the formula."""
    tokens = tokens_of(problem, options)
    costs = np.zeros((3, *result.actions.shape))
    for trial, (order, actions, turns) in enumerate(
        zip(result.order, result.actions, result.turns, strict=True)
    ):
        for t, (row, arm) in enumerate(zip(order, actions, strict=True)):
            talked = [(order[s], actions[s]) for s in range(t - turns[t], t)]
            read = sum(tokens.read[r, arm] for r, _ in talked)
            wrote = sum(tokens.written[r, a] for r, a in talked)
            cache = read + sum(tokens.written[r, a] for r, a in talked[:-1])
            price, alone = tokens.price[arm], problem.costs[row, arm]
            dear = alone + price * (read + wrote)
            cached = alone + price * (read + wrote - (1 - options.cached) * cache)
            stays = turns[t] > 0 and actions[t - 1] == arm
            costs[:, trial, t] = cached if stays else dear, dear, cached
    return costs


@pytest.mark.parametrize("policy", ["random", "ridge", "lin_ts", "lin_ucb_full", "cabs_d_linear", "hier_mix"])
def test_conversations_of_one_turn_are_the_clean_replay(problem, policy):
    clean, talked = replay(problem, policy, rho=RHO, trials=2), talk(problem, policy, turns=1)
    for name in ("order", "actions", "rewards", "costs", "best_rewards"):
        assert np.array_equal(getattr(clean, name), getattr(talked, name)), name
    np.testing.assert_allclose(clean.propensities, talked.propensities, atol=1e-7)
    assert not talked.kept.any() and not talked.turns.any() and not talked.switches_per_session().any()


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["random", "ridge", "lin_ts"]),
    st.sampled_from(["off", "tools", "session"]),
    st.floats(1, 12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.05, 1),
    st.booleans(),
)
def test_costs_are_those_of_the_formula_and_within_its_bounds(
    problem, counted, policy, sticky, turns, cached, tools, share, counts
):
    given_problem = counted if counts else problem
    options = Sessions(turns=turns, sticky=sticky, cached=cached, tools=tools, input_share=share)
    result = talk(given_problem, policy, trials=1, **options.model_dump())
    costs, most, least = by_hand(given_problem, result, options)
    np.testing.assert_allclose(result.costs, costs, rtol=1e-9, atol=1e-15)
    alone = given_problem.costs[result.order, result.actions]
    assert (result.costs <= most * (1 + 1e-9)).all() and (result.costs >= least * (1 - 1e-9)).all()
    assert (result.costs >= alone * (1 - 1e-9)).all()
    assert np.array_equal(result.costs[result.turns == 0], alone[result.turns == 0])
    assert (result.rewards <= result.best_rewards + 1e-12).all()
    assert ((0 < result.propensities) & (result.propensities <= 1)).all()
    assert (result.actions[:, 1:] == result.actions[:, :-1])[result.kept[:, 1:]].all()
    assert not result.kept[result.turns == 0].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 5), st.floats(1, 30), st.floats(0, 1), st.integers(0, 2**31))
def test_every_query_is_one_turn_of_one_conversation_of_its_task(n, kinds, turns, tools, seed):
    rng = np.random.default_rng(seed)
    tasks, times = rng.integers(kinds, size=n).astype(str), rng.integers(2, size=n).astype(float)
    order = rng.permutation(n)
    order = order[np.argsort(times[order], kind="stable")]
    rows, in_order = in_conversations(
        order, tasks, times, Sessions(turns=turns, tools=tools), np.random.default_rng(1)
    )
    assert sorted(rows) == list(range(n)) and in_order.number[0] == 0
    later = np.flatnonzero(in_order.number > 0)
    assert (tasks[rows[later]] == tasks[rows[later - 1]]).all()
    assert (times[rows[later]] == times[rows[later - 1]]).all() and (np.diff(times[rows]) >= 0).all()
    assert (in_order.number[later] == in_order.number[later - 1] + 1).all()
    assert not in_order.in_tools[in_order.number == 0].any()


def test_an_order_of_a_few_queries_mixes_no_tasks_and_times():
    tasks, times = np.array(["b", "a", "a"]), np.array([0.0, 2.0, 1.0])
    in_order = in_conversations(
        np.array([0, 1]), tasks, times, Sessions(turns=1000), np.random.default_rng(0)
    )[1]
    assert in_order.number.tolist() == [0, 0]


def test_lengths_are_geometric_with_the_mean_that_is_asked_for():
    n = 20_000
    in_order = in_conversations(
        np.arange(n), np.full(n, "a"), None, Sessions(turns=5, tools=0.3), np.random.default_rng(0)
    )[1]
    lengths = np.diff(np.append(np.flatnonzero(in_order.number == 0), n))
    assert abs(lengths.mean() - 5) < 0.25 and abs((lengths == 1).mean() - 0.2) < 0.02
    assert abs(in_order.in_tools[in_order.number > 0].mean() - 0.3) < 0.02


def test_results_depend_on_no_thread_no_company_no_chunk(monkeypatch, problem):
    for policy in ("lin_ts", "cabs_d_linear"):
        together = talk(problem, policy, trials=3, threads=3)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "CHUNK", 7)
            alone = talk(problem, policy, trials=[2], threads=1)
        for name in ("order", "actions", "propensities", "costs", "turns", "kept"):
            assert np.array_equal(getattr(together, name)[2], getattr(alone, name)[0]), name


def test_all_policies_and_all_settings_hold_the_same_conversations(problem):
    results = [talk(problem, p, sticky=s) for p in ("random", "lin_ts") for s in ("off", "session")]
    assert all(np.array_equal(results[0].order, r.order) for r in results)
    assert all(np.array_equal(results[0].turns, r.turns) for r in results)


def test_stickiness_is_the_rule_of_the_server(problem):
    scores = np.random.default_rng(0).random(problem.scores.shape)
    problem = replace(problem, static_scores={"ridge": scores})
    off, session = talk(problem, "ridge", sticky="off", turns=6), talk(problem, "ridge", turns=6)
    assert not off.kept.any() and session.kept.any() and not session.kept.all()
    assert session.switches_per_session().mean() < off.switches_per_session().mean()
    tokens = tokens_of(problem, Sessions())
    for order, actions, turns, stayed in zip(
        session.order, session.actions, session.turns, session.kept, strict=True
    ):
        for t in np.flatnonzero(turns > 0):
            talked = [(order[s], actions[s]) for s in range(t - turns[t], t)]
            last = actions[t - 1]
            written = [tokens.written[r, a] for r, a in talked]
            read = np.sum([tokens.read[r] for r, _ in talked], axis=0)
            lost = (1 - Sessions().cached) * tokens.price[last] * (read[last] + sum(written[:-1]))
            whole = problem.predicted_costs[order[t]] + tokens.price * (read + sum(written))
            pays = worth_a_switch(scores[order[t]], whole, last, RHO, lost)
            assert stayed[t] == (not pays)


def test_tools_keeps_within_loops_and_nothing_else_switches_there(problem):
    assert [may_keep(s, t) for s in ("off", "tools", "session") for t in (False, True)] == [
        *[False] * 3,
        *[True] * 3,
    ]
    assert not talk(problem, "random", sticky="tools").kept.any()
    whole = talk(problem, "random", sticky="tools", tools=1)
    assert whole.kept[whole.turns > 0].all() and not whole.switches_per_session().any()
    some = talk(problem, "random", sticky="tools", tools=0.5)
    assert 0.3 < some.kept[some.turns > 0].mean() < 0.7


def test_one_decision_has_one_feedback_the_mean_of_its_turns(problem, monkeypatch):
    updates = []
    learn = SafePolicy.update

    def spy(self, decision, score, cost, **more):
        updates.append((decision.arm, score, cost))
        return learn(self, decision, score, cost, **more)

    monkeypatch.setattr(SafePolicy, "update", spy)
    result = talk(problem, "lin_ts", trials=1)
    begins = np.flatnonzero(~result.kept[0])
    assert len(updates) == len(begins) < result.rounds
    for (arm, score, cost), part in zip(updates, np.split(np.arange(result.rounds), begins[1:]), strict=True):
        assert (result.actions[0, part] == arm).all()
        assert score == pytest.approx(result.scores[0, part].mean())
        assert cost == pytest.approx(result.costs[0, part].mean())


def test_tokens_are_the_tables_or_those_of_the_stated_share(problem, counted):
    exact = tokens_of(counted, Sessions())
    assert np.array_equal(exact.read, counted.input_tokens)
    assert np.array_equal(exact.price, counted.input_prices)
    for share in (0.25, 1.0):
        tokens = tokens_of(problem, Sessions(input_share=share))
        into, out = tokens.price * tokens.read, ANSWER_PRICE * tokens.price * tokens.written
        assert np.allclose(tokens.read[:, 0], np.maximum(problem.prompt_lengths / 4, 1))
        assert np.allclose(out, (1 - share) * problem.costs)
        offline = np.maximum(problem.offline_prompt_lengths / 4, 1)
        assert np.allclose(tokens.price * offline.mean(), share * problem.offline_costs.mean(axis=0))
        assert into.shape == out.shape
    free = replace(
        problem, costs=np.zeros_like(problem.costs), offline_costs=np.zeros_like(problem.offline_costs)
    )
    assert not tokens_of(free, Sessions()).written.any() and talk(free, "random").cost == 0
    bare = replace(problem, prompt_lengths=None, offline_prompt_lengths=None)
    assert talk(bare, "random", trials=1).cost > problem.costs.min()


def test_a_prompt_of_a_few_characters_is_one_token(problem):
    short = replace(
        problem,
        prompt_lengths=np.arange(problem.n) + 1.0,
        offline_prompt_lengths=np.full(len(problem.offline_costs), 2.0),
    )
    tokens = tokens_of(short, Sessions())
    assert tokens.read[:9, 2].tolist() == [1, 1, 1, 1, 1.25, 1.5, 1.75, 2, 2.25]
    assert tokens.price == pytest.approx(0.4 * problem.offline_costs.mean(axis=0))


def test_a_policy_that_looks_at_outcomes_plays_the_best_model_of_every_turn(problem):
    oracle = talk(problem, "oracle_best")
    assert np.array_equal(oracle.rewards, oracle.best_rewards)
    assert not oracle.kept.any() and (oracle.propensities == 1).all()
    assert (oracle.random_rewards <= oracle.best_rewards).all()


def test_seconds_count_in_rewards_and_in_what_a_policy_is_told(monkeypatch):
    slow = synthetic_problem(n=60, K=4, d=5, latencies=True)
    penalties = []
    learn = SafePolicy.update

    def spy(self, decision, score, cost, **more):
        penalties.append(more["latency_penalty"])
        return learn(self, decision, score, cost, **more)

    monkeypatch.setattr(SafePolicy, "update", spy)
    result = talk(slow, "lin_ts", trials=1, turns=3, tools=0.5, sticky="tools", latency_weight=0.2)
    at = result.order, result.actions
    rewards = clipped_utility(slow.scores[at], result.costs, RHO, slow.latencies[at], 0.2)
    np.testing.assert_allclose(result.rewards, rewards)
    rows = result.order[result.turns == 0]
    alone = clipped_utility(slow.scores[rows], slow.costs[rows], RHO, slow.latencies[rows], 0.2)
    np.testing.assert_allclose(result.best_rewards[result.turns == 0], alone.max(axis=1))
    np.testing.assert_allclose(result.random_rewards[result.turns == 0], alone.mean(axis=1))
    begins = np.flatnonzero(~result.kept[0])
    parts = np.split(0.2 * slow.latencies[at][0], begins[1:])
    assert penalties == pytest.approx([part.mean() for part in parts]) and result.kept.any()


def test_a_kept_turn_has_the_experts_weights_of_its_decision(problem):
    result = talk(problem, "cabs_d_linear", sticky="session")
    assert result.kept.any()
    for weights, kept in zip(result.meta_weights, result.kept, strict=True):
        for t in np.flatnonzero(kept):
            assert np.array_equal(weights[t], weights[t - 1])
    assert not np.isnan(result.meta_weights).any()


def test_prices_are_read_off_a_table_that_counts_tokens():
    rng = np.random.default_rng(0)
    n, prices, factor = 50, np.array([[2e-6, 8e-6], [1e-7, 4e-7]]), 3.0
    into, out = rng.integers(10, 900, (n, 2)).astype(float), rng.integers(1, 900, (n, 2)).astype(float)
    table = Outcomes(
        query_ids=np.array([f"q{i}" for i in range(n)]),
        prompts=["x"] * n,
        tasks=np.full(n, "a"),
        arms=["a", "b"],
        scores=np.ones((n, 2)),
        costs=factor * (into * prices[:, 0] + out * prices[:, 1]),
        input_tokens=into,
        output_tokens=out,
    )
    counts = counted_tokens(table, np.arange(40))
    assert counts is not None and np.allclose(counts[2], factor * prices[:, 0], rtol=1e-9)
    holes = into.copy()
    holes[0, 0] = np.nan
    filled = counted_tokens(replace(table, input_tokens=holes), np.arange(40))
    assert filled is not None and filled[0][0, 0] == pytest.approx(into[1:, 0].mean())
    holes[:20] = np.nan
    assert counted_tokens(replace(table, input_tokens=holes), np.arange(40)) is None
    assert counted_tokens(replace(table, output_tokens=None), np.arange(40)) is None


def test_what_a_model_costs_that_answers_whole_conversations(problem):
    """The yardstick of a report: the costs of a policy that always plays one model."""
    settings_ = Replay.model_validate({"trials": 2, "condition": "sessions", "rounds": 120})
    with_costs = with_kept_costs(problem, problem.pool, settings_)
    alone = talk(problem, "best_single", rounds=120)
    arm = alone.actions[0, 0]
    assert (alone.actions == arm).all() and alone.rounds == 120
    means = np.bincount(alone.order.ravel(), alone.costs.ravel(), problem.n)
    plays = np.bincount(alone.order.ravel(), minlength=problem.n)
    np.testing.assert_allclose(with_costs.costs[plays > 0, arm], means[plays > 0] / plays[plays > 0])
    assert np.array_equal(with_costs.costs[plays == 0], problem.costs[plays == 0])


def test_it_is_stored_with_its_costs(tmp_path, problem):
    result = talk(problem, "lin_ts")
    pool = pool_from({"name": "talk", "source": {"kind": "synthetic"}, "replay": {"condition": "sessions"}})
    run = save_replay_result(result, problem, tmp_path / "r", pool=pool)
    trace = load_trace(tmp_path / "r", run)
    assert np.allclose(trace.costs, result.costs, rtol=1e-6) and np.array_equal(trace.actions, result.actions)
    frame = result.to_frame()
    assert frame["turn"].tolist() == result.turns.ravel().tolist() and frame["kept"].dtype == bool
    with pytest.raises(DataError, match="sessions"):
        replay(problem, "random", trials=1).switches_per_session()


def test_the_first_rounds_of_conversations_are_those_of_a_longer_replay(problem):
    short, whole = talk(problem, "lin_ts", rounds=40), talk(problem, "lin_ts")
    for name in ("order", "actions", "turns", "kept", "costs", "random_rewards"):
        assert np.array_equal(getattr(short, name), getattr(whole, name)[:, :40]), name


def test_what_cannot_be(problem):
    with pytest.raises(PolicyError, match="condition is 'drift'"):
        replay(problem, "random", condition="drift", sessions={"turns": 2})
    with pytest.raises(PolicyError, match="turns"):
        talk(problem, "random", turns=0)
    with pytest.raises(ValueError, match="condition is 'none'"):
        Replay.model_validate({"sessions": {"turns": 2}})
    with pytest.raises(DataError, match="belong together"):
        replace(problem, input_prices=np.ones(4))

    class Mine:
        def predict(self, context):
            return 0

    with pytest.raises(PolicyError, match="subclass of Policy"):
        replay(problem, Mine(), condition="sessions")
    stream = engine.make_stream(problem, RHO)
    plan = stream_condition("drift", problem, stream, [np.arange(problem.n)], [0], seed=0, pool="p")
    assert plan.turns is None
