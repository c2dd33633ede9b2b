"""Replay results on disk: round trip, summaries against plain loops, refusals, size."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_replays import fake_pool, fake_problem, fake_result

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.algorithms.problem.problem_files import array_hash
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import ResultError, StorageError
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.played import checkpoints
from cabs_core.evaluation.replay.storage import (
    FILES,
    load_replay_result,
    load_trace,
    save_replay_result,
    trace_of,
)


@pytest.fixture
def saved(tmp_path):
    problem = fake_problem(n=40, arms=4)
    result = fake_result(problem, "cabs_d_linear@literal", 250.0, trials=3)
    folder = tmp_path / "replay/fake/0250/cabs_d_linear__literal"
    run = save_replay_result(result, problem, folder, pool=fake_pool(paper_benchmark="sprout"))
    return problem, result, folder, run


def test_traces_come_back_as_they_were(saved):
    _, result, folder, run = saved
    stored = load_replay_result(folder)
    assert (stored.order == result.order).all() and (stored.actions == result.actions).all()
    assert stored.propensities == pytest.approx(result.propensities, abs=1e-6)
    assert stored.rewards == pytest.approx(result.rewards, abs=1e-6)
    assert stored.run == run
    assert stored.run["base_policy"] == "cabs_d_linear" and stored.run["preset"] == "literal"
    assert stored.run["paper_benchmark"] == "sprout" and stored.run["synthetic"] is True
    assert json.loads(stored.run["pool_settings"])["name"] == "fake"
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{f}.parquet" for f in FILES)


def test_summaries_agree_with_plain_loops(saved):
    problem, result, folder, _ = saved
    stored = load_replay_result(folder)
    trials, rounds = result.actions.shape
    utility = np.zeros((trials, rounds))
    score, cost = np.zeros((trials, rounds)), np.zeros((trials, rounds))
    for i in range(trials):
        for t in range(rounds):
            row, arm = result.order[i, t], result.actions[i, t]
            score[i, t], cost[i, t] = problem.scores[row, arm], problem.costs[row, arm]
            utility[i, t] = score[i, t] - 250.0 * cost[i, t]
    regret = result.best_rewards - np.clip(utility, 0, 1)
    table = stored.trials.to_pydict()
    assert table["utility"] == pytest.approx(np.clip(utility, 0, 1).mean(axis=1))
    assert table["utility_unclipped"] == pytest.approx(utility.mean(axis=1))
    assert table["regret"] == pytest.approx(regret.mean(axis=1))
    assert table["score"] == pytest.approx(score.mean(axis=1))
    assert table["cost"] == pytest.approx(cost.mean(axis=1))
    assert table["solved_rounds"] == [rounds] * trials and max(table["max_gap"]) < 1e-8
    assert table["mean_gap"] == pytest.approx(result.gaps.mean(axis=1))
    assert table["microseconds_per_round"] == pytest.approx([30.0] * trials)
    switched = [np.mean([a != b for a, b in pairwise(row)]) for row in result.actions]
    assert table["switch_rate"] == pytest.approx(switched)
    assert table["best_utility"] == pytest.approx(result.best_rewards.mean(axis=1))
    assert table["mean_propensity"] == pytest.approx(result.propensities.mean(axis=1))
    assert table["observed"] == [1] * trials and table["rounds"] == [rounds] * trials

    curve = stored.curves.to_pandas()
    last = curve[curve["round"] == rounds].sort_values("trial")
    assert last["cumulative_regret"].to_numpy() == pytest.approx(regret.sum(axis=1))
    middle = curve[(curve["round"] == 10) & (curve["trial"] == 1)]
    assert middle["cumulative_regret"].item() == pytest.approx(regret[1, :10].sum())
    assert middle["cumulative_utility"].item() == pytest.approx(np.clip(utility, 0, 1)[1, :10].sum())

    queries = stored.queries.to_pandas().set_index("query_index")
    for row in (0, 17, 39):
        assert queries.loc[row, "plays"] == trials
        assert queries.loc[row, "regret"] == pytest.approx(regret[result.order == row].mean(), abs=1e-6)
        assert queries.loc[row, "query_id"] == f"q{row}" and queries.loc[row, "cluster"] == row

    arms = stored.arms.to_pandas()
    assert arms.groupby("trial")["plays"].sum().tolist() == [rounds] * trials
    one = arms[(arms["trial"] == 2) & (arms["arm"] == "model-1")].iloc[0]
    mine = result.actions[2] == 1
    assert one["plays"] == mine.sum() and one["score"] == pytest.approx(score[2, mine].mean())
    assert one["share"] == pytest.approx(mine.mean()) and one["cost"] == pytest.approx(cost[2, mine].mean())


def test_an_arm_that_was_never_played_has_no_mean_and_a_single_play_is_one(tmp_path):
    problem = fake_problem(n=10, arms=3)
    result = fake_result(problem, "lin_ucb", 0.0, trials=1)
    actions = np.zeros_like(result.actions)
    actions[0, 4] = 2
    result = replace(result, actions=actions, rewards=problem.scores[result.order, actions])
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    arms = load_replay_result(tmp_path / "x").arms.to_pydict()
    assert arms["plays"] == [9, 0, 1] and arms["score"][1] is None and arms["cost"][1] is None
    assert arms["cost"][2] == pytest.approx(problem.costs[result.order[0, 4], 2])


def test_rewards_of_a_replay_that_pays_for_seconds_are_checked_with_the_latencies(tmp_path):
    problem = synthetic_problem(n=20, K=3, d=3, latencies=True)
    result = replay(problem, "random", 300.0, 2, latency_weight=0.1)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    at = result.order, result.actions
    unclipped = problem.scores[at] - 300.0 * problem.costs[at] - 0.1 * problem.latencies[at]
    stored = load_replay_result(tmp_path / "x").trials["utility_unclipped"].to_pylist()
    assert stored == pytest.approx(unclipped.mean(axis=1))


@pytest.mark.parametrize("policy", ["lin_ts", "oracle_best"])
def test_figures_of_a_table_with_gaps_are_estimates_unless_the_policy_saw_the_outcomes(tmp_path, policy):
    gaps = (np.arange(60)[:, None] + np.arange(3)) % 3 == 0
    problem = replace(fake_problem(arms=3), observed=np.where(gaps, 0.0, 0.5))
    result = fake_result(problem, policy, 300.0)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    table = load_replay_result(tmp_path / "x").trials.to_pydict()
    at = result.order, result.actions
    estimates = real_values(problem, 300.0)
    utility, score, cost = estimates.utility[at], estimates.score[at], estimates.cost[at]
    if policy == "oracle_best":
        utility, score, cost = result.rewards, problem.scores[at], problem.costs[at]
    expected = {
        "utility": utility,
        "utility_unclipped": score - 300.0 * cost,
        "score": score,
        "cost": cost,
        "regret": result.best_rewards - utility,
        "observed": ~gaps[at],
    }
    for name, values in expected.items():
        assert table[name] == pytest.approx(values.mean(axis=1)), name
    rewards = load_replay_result(tmp_path / "x").rewards
    assert rewards == pytest.approx(result.rewards, abs=1e-6)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_the_smallest_and_the_largest_seed_are_stored(tmp_path, seed):
    problem = synthetic_problem(n=10, K=2, d=2)
    result = replay(problem, "random", trials=1, seed=seed)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    assert load_replay_result(tmp_path / "x").run["seed"] == seed


def test_a_replay_without_solver_and_clock_has_no_figures_of_them(tmp_path):
    problem = fake_problem(n=10)
    result = replace(fake_result(problem, "lin_ts", 100.0), seconds=None, uncertified=None)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    table = load_replay_result(tmp_path / "x").trials.to_pydict()
    for name in ("seconds", "microseconds_per_round", "max_gap", "mean_gap", "switches_per_session"):
        assert table[name] == [None] * 3, name
    assert table["solved_rounds"] == table["uncertified"] == [0] * 3
    gaps = np.full((3, 10), np.nan)
    gaps[1, [2, 5]] = 0.25, 0.75
    solved = replace(result, gaps=gaps, uncertified=np.array([0, 1, 0]))
    save_replay_result(solved, problem, tmp_path / "x", pool=fake_pool())
    table = load_replay_result(tmp_path / "x").trials.to_pydict()
    assert table["max_gap"] == [None, 0.75, None] and table["mean_gap"] == [None, 0.5, None]
    assert table["solved_rounds"] == [0, 2, 0] and table["uncertified"] == [0, 1, 0]


def test_fewer_rounds_than_queries(tmp_path):
    problem = fake_problem(n=50)
    result = fake_result(problem, "lin_ts", 100.0, trials=2, rounds=20)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    stored = load_replay_result(tmp_path / "x")
    assert stored.actions.shape == (2, 20) and sum(stored.queries["plays"].to_pylist()) == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {"rewards": r.rewards + 0.1}, "do not belong together"),
        (lambda r: {"rewards": r.rewards * np.nan}, "do not belong together"),
        (lambda r: {"actions": r.actions + 100}, "expected 0..4"),
        (lambda r: {"actions": r.actions + 1}, "actions holds 1..5, expected 0..4"),
        (lambda r: {"order": r.order + 1}, "order holds 1..60, expected 0..59"),
        (lambda r: {"rewards": r.rewards + 3e-5}, "do not belong together"),
        (lambda r: {"order": r.order - 1}, "expected 0..59"),
        (lambda r: {"propensities": r.propensities[:, :-1]}, "expected \\[trials, T\\]"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, change, message):
    problem = fake_problem()
    result = fake_result(problem, "hier_mix", 300.0)
    with pytest.raises(ResultError, match=message):
        save_replay_result(replace(result, **change(result)), problem, tmp_path / "x", pool=fake_pool())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_folder_is_named(saved):
    *_, folder, _ = saved
    (folder / "arms.parquet").write_bytes(b"not parquet")
    with pytest.raises(ResultError, match=r"arms\.parquet: cannot be read"):
        load_replay_result(folder)
    (folder / "arms.parquet").unlink()
    with pytest.raises(ResultError, match="replay this partition again"):
        load_replay_result(folder)


@pytest.mark.parametrize("name", ["run", "rounds"])
def test_a_table_without_its_columns_is_named(saved, name):
    *_, folder, _ = saved
    pq.write_table(pa.table({"pool": ["p"]}), folder / f"{name}.parquet")
    with pytest.raises(ResultError, match=rf"{name}\.parquet: cannot be read .* replay this partition again"):
        load_trace(folder)


def shifted(name, by):
    def change(table):
        place = table.schema.get_field_index(name)
        values = table[name].to_numpy() + by
        field = table.schema.field(place)
        return table.set_column(place, field, pa.array(values, field.type))

    return change


@pytest.mark.parametrize(
    ("change", "different"),
    [
        (lambda t: t.slice(1), 119),
        (lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]), 119),
        (shifted("trial", 1), 80),
        (shifted("trial", -1), 80),
        (shifted("round", 1), 117),
        (shifted("round", -1), 117),
    ],
)
def test_a_trace_with_lost_repeated_or_unknown_rounds_is_named(saved, change, different):
    *_, folder, run = saved
    pq.write_table(change(pq.read_table(folder / "rounds.parquet")), folder / "rounds.parquet")
    for load in (load_replay_result, load_trace, lambda folder: load_trace(folder, run)):
        with pytest.raises(
            ResultError, match=rf"rounds\.parquet holds .* for {different} different .* each of"
        ):
            load(folder)


def test_a_record_names_the_pool_its_title_and_the_order(tmp_path):
    problem = replace(fake_problem(), pool="mine")
    result = fake_result(problem, "lin_ts", 100.0)
    run = save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    assert run["pool"] == "fake" and run["pool_title"] == "Fake pool fake"
    assert run["order_hash"] == array_hash(result.order)[:16] and len(run["order_hash"]) == 16
    unnamed = replace(result, pool="")
    run = save_replay_result(unnamed, problem, tmp_path / "x", pool=fake_pool("plain", title=""))
    assert run["pool"] == "mine" and run["pool_title"] == "plain"


def test_propensities_below_a_hundredth_are_counted(tmp_path):
    problem = fake_problem(n=10)
    result = fake_result(problem, "lin_ts", 100.0, trials=1)
    result = replace(result, propensities=np.array([[0.5] * 6 + [0.01] * 2 + [0.004, 0.009]]))
    run = save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    assert run["small_propensities"] == 0.2
    assert run["smallest_propensity"] == pytest.approx(0.004, abs=1e-8)


@pytest.mark.parametrize("condition", ["none", "sessions"])
def test_a_repeated_replay_is_the_trace_that_was_stored(tmp_path, condition):
    problem = synthetic_problem(n=20, K=3, d=3)
    result = replay(problem, "lin_ts", trials=2, condition=condition)
    pool = fake_pool(replay={"condition": condition})
    save_replay_result(result, problem, tmp_path / "x", pool=pool)
    stored = load_trace(tmp_path / "x")
    (tmp_path / "x/rounds.parquet").unlink()
    again = trace_of(result, problem, tmp_path / "x")
    assert again.run == stored.run and (again.costs is None) == (condition == "none")
    for name in ("order", "actions", "propensities", "rewards", "costs"):
        first, second = getattr(stored, name), getattr(again, name)
        assert np.array_equal(first, second) and getattr(first, "dtype", 0) == getattr(second, "dtype", 0)


def test_keys_are_stored_once_and_floats_as_split_bytes(saved):
    *_, folder, _ = saved
    columns = {}
    for name in ("rounds", "queries", "trials"):
        group = pq.ParquetFile(folder / f"{name}.parquet").metadata.row_group(0)
        for place in range(group.num_columns):
            columns[name, group.column(place).path_in_schema] = group.column(place).encodings
    for name in ("rounds", "queries"):
        for key in ("pool", "rho", "policy"):
            assert "RLE_DICTIONARY" in columns[name, key]
    assert "RLE_DICTIONARY" in columns["queries", "query_id"]
    assert "RLE_DICTIONARY" in columns["rounds", "action"]
    assert "RLE_DICTIONARY" not in columns["queries", "plays"]
    for column in (("rounds", "reward"), ("rounds", "propensity"), ("queries", "regret")):
        assert "BYTE_STREAM_SPLIT" in columns[column]
    assert "PLAIN" in columns["trials", "policy"] and "RLE_DICTIONARY" not in columns["trials", "policy"]


def test_saving_again_replaces_the_folder(saved):
    problem, result, folder, _ = saved
    save_replay_result(result, problem, folder, pool=fake_pool())
    assert load_replay_result(folder).actions.shape == result.actions.shape
    (folder / "stray.txt").write_text("a user's")
    with pytest.raises(StorageError, match=r"holds 'stray\.txt'"):
        save_replay_result(result, problem, folder, pool=fake_pool())
    assert (folder / "stray.txt").read_text() == "a user's"
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]  # no temporary folders left


def test_checkpoints():
    assert checkpoints(5).tolist() == [1, 2, 3, 4, 5]
    long = checkpoints(3559)
    assert len(long) == 100 and long[-1] == 3559 and (np.diff(long) > 0).all()
    assert checkpoints(1).tolist() == [1]


def test_expert_weights_are_kept_at_the_checkpoints(tmp_path):
    problem = fake_problem(n=300)
    result = fake_result(problem, "cabs_d_linear", 0.0, trials=2)
    first = np.linspace(0, 1, 300)
    weights = np.stack([np.stack([first, 1 - first], axis=1)] * 2)
    save_replay_result(replace(result, meta_weights=weights), problem, tmp_path / "x", pool=fake_pool())
    curve = load_replay_result(tmp_path / "x").curves.to_pandas()
    row = curve[(curve["trial"] == 1) & (curve["round"] == 150)].iloc[0]
    assert row["expert_weights"] == pytest.approx([first[149], 1 - first[149]], abs=1e-6)


def test_traces_are_compact(tmp_path):
    """A raw round holds at least 4 + 4 + 2 + 4 + 4 bytes; on disk it takes less than half of that."""
    problem = fake_problem(n=2000, arms=10)
    result = fake_result(problem, "hier_mix", 400.0, trials=10)
    save_replay_result(result, problem, tmp_path / "x", pool=fake_pool())
    size = (tmp_path / "x/rounds.parquet").stat().st_size
    assert pq.ParquetFile(tmp_path / "x/rounds.parquet").metadata.num_rows == 20_000
    assert size / 20_000 < 9


def test_equal_results_give_equal_files(tmp_path):
    problem = fake_problem()
    result = fake_result(problem, "lin_ts", 100.0)
    for name in ("a", "b"):
        save_replay_result(result, problem, tmp_path / name, pool=fake_pool())
    for name in FILES[1:]:  # run.parquet holds the time
        first, second = ((tmp_path / folder / f"{name}.parquet").read_bytes() for folder in ("a", "b"))
        assert first == second, name
