"""Figures of the marts recomputed from raw actions, and against the functions of
cabs_core.evaluation.metrics."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from built_marts import build_all, read_model
from fake_replays import SKILL, fake_pool, fake_problem, fake_result, rewrite_run, write_pool

from cabs_core.base import statistics
from cabs_core.base.catalog.policies import asset_name
from cabs_core.base.catalog.regimes import regime_of
from cabs_core.evaluation.metrics import frontier, routing
from cabs_core.evaluation.replay.storage import load_replay_result, save_replay_result
from dbt_like_sql.execute import run_tests
from dbt_like_sql.project import list_models

RHOS = (0.0, 300.0, 500.0, 900.0)


def utilities(artifacts, problem, pool, policy):
    """{rho: [trials, T] clipped utilities} from the raw actions alone."""
    by_rho = {}
    for rho in RHOS:
        raw = load_replay_result(artifacts / "replay" / pool / f"{int(rho):04d}" / asset_name(policy))
        value = np.empty(raw.actions.shape)
        for i, t in np.ndindex(*raw.actions.shape):
            row, arm = raw.order[i, t], raw.actions[i, t]
            value[i, t] = min(1.0, max(0.0, problem.scores[row, arm] - rho * problem.costs[row, arm]))
        by_rho[rho] = value
    return by_rho


def test_overall_utility_from_raw_actions(built):
    artifacts, problems, _ = built
    raw = utilities(artifacts, problems["one"], "one", "hier_mix")
    low, medium, high = (raw[0.0].mean() + raw[300.0].mean()) / 2, raw[500.0].mean(), raw[900.0].mean()
    board = read_model("mart_policy_leaderboard", artifacts, "pool = 'one' AND policy = 'hier_mix'").iloc[0]
    assert board["utility_low"] == pytest.approx(low)
    assert board["utility"] == pytest.approx((low + medium + high) / 3)
    per_trial = [
        ((raw[0.0][i].mean() + raw[300.0][i].mean()) / 2 + raw[500.0][i].mean() + raw[900.0][i].mean()) / 3
        for i in range(3)
    ]
    mart = read_model(
        "mart_utility_by_regime", artifacts, "pool = 'one' AND policy = 'hier_mix' AND regime = 'overall'"
    )
    assert mart["utility_se_trials"].item() == pytest.approx(np.std(per_trial, ddof=1) / np.sqrt(3))


def test_relative_regret_curve_from_raw_actions(built):
    artifacts, problems, _ = built
    problem = problems["one"]
    ours, reference = (utilities(artifacts, problem, "one", p) for p in ("cabs_d_linear", "lin_ucb"))
    # regret differences are utility differences, because both saw the same queries in the same order
    gaps = [(reference[r][:, :30] - ours[r][:, :30]).sum(axis=1) for r in (0.0, 300.0)]
    expected = np.mean(gaps, axis=0)
    mart = read_model(
        "mart_regret_curves",
        artifacts,
        "pool = 'one' AND policy = 'cabs_d_linear' AND regime = 'low' AND round = 30",
    ).iloc[0]
    assert mart["relative_regret"] == pytest.approx(expected.mean())
    assert mart["relative_regret_se"] == pytest.approx(expected.std(ddof=1) / np.sqrt(3))


def test_recent_regret_from_raw_actions(built):
    artifacts, problems, _ = built
    ours = utilities(artifacts, problems["one"], "one", "hier_mix")
    replays = {r: load_replay_result(artifacts / f"replay/one/{r:04.0f}/hier_mix") for r in (0.0, 300.0)}
    best = {r: np.clip(problems["one"].scores - r * problems["one"].costs, 0, 1).max(axis=1) for r in replays}
    # a checkpoint a round, so the ten before round 30 are rounds 21 to 30
    lost = [(best[r][raw.order] - ours[r])[:, 20:30].mean(axis=1) for r, raw in replays.items()]
    expected = np.mean(lost, axis=0)
    chosen = "pool = 'one' AND policy = 'hier_mix' AND regime = 'low'"
    mart = read_model("mart_regret_curves", artifacts, chosen).set_index("round")
    assert mart.loc[30, "recent_regret"] == pytest.approx(expected.mean())
    assert mart.loc[30, "recent_regret_se"] == pytest.approx(expected.std(ddof=1) / np.sqrt(3))
    assert mart["recent_regret"].isna().sum() == 10


def test_arm_share_and_money_from_raw_actions(built):
    artifacts, problems, _ = built
    problem = problems["one"]
    raw = load_replay_result(artifacts / "replay/one/0900/kernel_ridge")
    share = read_model(
        "mart_arm_shares",
        artifacts,
        "pool = 'one' AND policy = 'kernel_ridge' AND regime = 'high' AND arm = 'model-2'",
    ).iloc[0]
    assert share["share"] == pytest.approx((raw.actions == 2).mean())
    spent = [problem.costs[q, a] for q, a in zip(raw.order.ravel(), raw.actions.ravel())]
    point = read_model(
        "mart_utility_by_rho", artifacts, "pool = 'one' AND policy = 'kernel_ridge' AND rho = 900"
    ).iloc[0]
    assert point["cost_per_1000_calls"] == pytest.approx(1000 * np.mean(spent))


def test_paired_differences_are_those_of_the_metrics_room(built):
    artifacts, problems, _ = built
    a, b = (utilities(artifacts, problems["one"], "one", p) for p in ("hier_mix", "lin_ucb"))

    def overall(values):  # each regime counts the same however many rhos it has
        regimes = np.array([regime_of(rho) for rho in RHOS])
        return np.mean([np.mean(np.asarray(values)[regimes == r], axis=0) for r in set(regimes)], axis=0)

    def parts(raw):
        trials = overall([raw[r].mean(axis=1) for r in RHOS])
        order = load_replay_result(artifacts / "replay/one/0000/lin_ucb").order
        queries = np.zeros((len(RHOS), 60))
        for i, r in enumerate(RHOS):
            np.add.at(queries[i], order.ravel(), raw[r].ravel() / 3)
        return trials, overall(queries)

    (at, aq), (bt, bq) = parts(a), parts(b)
    error = statistics.mean_error(aq - bq, trials=at - bt)
    se_queries = float(statistics.standard_error(aq - bq))
    mart = read_model(
        "mart_pairwise_differences",
        artifacts,
        "pool = 'one' AND policy = 'hier_mix' AND baseline = 'lin_ucb' AND regime = 'overall'",
    ).iloc[0]
    assert mart["difference"] == pytest.approx((at - bt).mean())
    assert mart["se_trials"] == pytest.approx(statistics.standard_error(at - bt))
    assert mart["se_queries"] == pytest.approx(se_queries, rel=1e-3)  # stored in single precision
    assert mart["se"] == pytest.approx(np.hypot(mart["se_trials"], mart["se_queries"]))
    assert mart["p_value"] == pytest.approx(error.p_value((at - bt).mean()), rel=1e-2)
    assert (mart["low"], mart["high"]) == pytest.approx(error.interval((at - bt).mean()), rel=1e-3, abs=1e-6)
    assert bool(mart["significant"]) == (mart["p_value"] < 0.05)


def test_aiq_hull_and_savings_are_those_of_the_metrics_room(built):
    artifacts, _, _ = built
    points = read_model("mart_pareto_frontier", artifacts, "pool = 'one'")
    sweep = points[points["policy"] == "cabs_c_linear"]
    cost, score = sweep["cost_per_1000_calls"].to_numpy() / 1000, sweep["score"].to_numpy()
    real = points[points["kind"] != "upper bound"]["cost_per_1000_calls"] / 1000
    aiq = read_model("mart_aiq", artifacts, "pool = 'one' AND policy = 'cabs_c_linear'").iloc[0]
    assert aiq["aiq"] == pytest.approx(frontier.aiq(cost, score, real.min(), real.max()))
    hull = frontier.non_decreasing_hull(cost, score)
    assert sorted(sweep[sweep["on_own_hull"]]["score"]) == pytest.approx(sorted(hull[1]))
    routers = points[points["kind"] != "upper bound"]
    mask = frontier.pareto_mask(routers["cost_per_1000_calls"], routers["score"])
    assert (routers["on_pool_frontier"].to_numpy() == mask).all()
    saved = read_model(
        "mart_cost_savings", artifacts, "pool = 'one' AND policy = 'cabs_c_linear' AND baseline = 'lin_ucb'"
    ).iloc[0]
    target, paid = saved["target_score"], saved["baseline_cost_per_1000_calls"] / 1000
    assert saved["share_saved"] == pytest.approx(frontier.cost_saved(cost, score, paid, target))
    assert saved["performance_gain"] == pytest.approx(score.max() / target - 1)
    assert saved["performance_gain_se"] > 0
    same = read_model(
        "mart_cost_savings", artifacts, "pool = 'one' AND policy = 'lin_ucb' AND baseline = 'lin_ucb'"
    ).iloc[0]
    assert (same["performance_gain"], same["performance_gain_se"]) == (0, 0)


def test_distance_to_the_frontier_by_hand(built):
    artifacts, _, _ = built
    points = read_model("mart_pareto_frontier", artifacts, "pool = 'one' AND kind <> 'upper bound'")
    plane = points[["cost_per_1000_calls", "score"]].to_numpy()
    plane = (plane - plane.min(axis=0)) / np.ptp(plane, axis=0)
    best = plane[points["on_pool_frontier"].to_numpy()]
    mart = read_model("mart_aiq", artifacts, "pool = 'one'").set_index("policy")
    for policy, rows in points.reset_index(drop=True).groupby("policy"):
        distances = [np.hypot(*(best - plane[i]).T).min() for i in rows.index]
        assert mart["pareto_distance"][policy] == pytest.approx(np.mean(distances))
    assert mart[mart["kind"] == "upper bound"]["pareto_distance"].isna().all()


def test_gap_closed_is_a_share_of_the_way_to_full_feedback(built):
    artifacts, _, _ = built
    mart = read_model("mart_utility_by_regime", artifacts, "pool = 'one' AND regime = 'overall'").set_index(
        "policy"
    )
    u = mart["utility"]
    gap = read_model("mart_gap_closed", artifacts, "pool = 'one' AND regime = 'overall'").set_index("policy")
    for policy in ("hier_mix", "random"):
        expected = (u[policy] - u["lin_ucb"]) / (u["lin_ucb_full"] - u["lin_ucb"])
        assert gap.loc[policy, "gap_closed"] == pytest.approx(expected)
    assert gap.loc["lin_ucb", "gap_closed"] == 0 and gap.loc["lin_ucb_full", "gap_closed"] == pytest.approx(1)
    assert gap.loc["lin_ucb_full", "se"] == pytest.approx(0, abs=1e-9)


def test_ranks_leave_out_upper_bounds(built):
    artifacts, _, _ = built
    board = read_model("mart_policy_leaderboard", artifacts, "pool = 'one'").set_index("policy")
    assert board.loc[["oracle_best", "lin_ucb_full"], "rank"].isna().all()
    assert sorted(board["rank"].dropna()) == list(range(1, len(SKILL) - 1))
    assert (
        board["utility"].idxmax() == "oracle_best"
        and board.loc[board["rank"] == 1, "best_policy"].item() in board.index
    )
    assert board["complete"].all()


def test_paper_figures_stand_beside_ours_only_where_the_benchmark_is_the_same(built):
    artifacts, _, _ = built
    paper = read_model("mart_paper_comparison", artifacts)
    assert set(paper["pool"]) == {"one"} and set(paper["benchmark"]) == {"routerbench"}
    row = paper[
        (paper["policy"] == "cabs_d_linear") & (paper["regime"] == "high") & (paper["metric"] == "utility")
    ]
    assert sorted(row["paper"]) == [0.3981, 0.5466]  # MiniLM and mDeBERTa
    orderings = read_model("mart_paper_orderings", artifacts)
    assert (orderings["paper_difference"] > 0).all()
    assert (orderings["holds"] == (orderings["our_difference"] > 0)).all()
    coupled = read_model("mart_coupled_vs_decoupled", artifacts, "preset = 'practical' AND regime = 'low'")
    by = coupled.set_index("metric")
    assert by.loc["utility", ["paper_coupled", "paper_decoupled"]].tolist() == [0.6292, 0.6754]
    assert by.loc["regret", "difference"] == pytest.approx(-by.loc["utility", "difference"])


def test_latency_percentiles_are_over_single_decisions_and_throughput_over_replays(built):
    """Recomputed from the stored calls: percentiles never over trials, throughput from rounds and seconds."""
    artifacts, _, _ = built
    calls = pq.read_table(artifacts / "router/one/decisions.parquet").to_pandas()
    mart = read_model("mart_decision_latency", artifacts, "pool = 'one'").set_index("policy")
    for policy in ("lin_ucb", "hier_mix"):
        timed, row = calls[calls["policy"] == policy], mart.loc[policy]
        assert row["decisions"] == len(timed) == 40 and row["rho"] == 500
        for call in ("decide", "update"):
            expected = routing.latency_percentiles(timed[f"{call}_us"])
            assert {p: row[f"{call}_{p}_us"] for p in expected} == pytest.approx(expected)
            assert row[f"{call}_cpu_us"] == pytest.approx(timed[f"{call}_cpu_us"].mean())
            assert row[f"{call}_cpu_p99_us"] == pytest.approx(np.percentile(timed[f"{call}_cpu_us"], 99))
    assert mart.loc["random", ["decisions", "decide_p50_us"]].isna().all()  # replayed, but never timed
    trials = pq.read_table(artifacts / "replay/one/0500/random/trials.parquet").to_pandas()
    assert trials["seconds"].iloc[0] == pytest.approx(60 * 3e-5)  # as fake_result says, in every replay
    assert mart["replay_rounds_per_second"].to_numpy() == pytest.approx(1 / 3e-5)
    board = read_model("mart_policy_leaderboard", artifacts, "pool = 'one'").set_index("policy")
    assert board.loc["lin_ucb", "decide_p50_us"] == mart.loc["lin_ucb", "decide_p50_us"]


def test_preset_difference_from_raw_actions(built):
    """Mean of per-trial differences on the same queries, by hand; the error is at least that over trials."""
    artifacts, problems, _ = built
    tuned, practical = (
        utilities(artifacts, problems["one"], "one", p) for p in ("cabs_d_linear@tuned", "cabs_d_linear")
    )
    each = [(tuned[900.0][i] - practical[900.0][i]).mean() for i in range(3)]
    mart = read_model("mart_presets", artifacts, "pool = 'one' AND regime = 'high'").set_index("base_policy")
    row = mart.loc["cabs_d_linear"]
    assert row["tuned"] - row["practical"] == pytest.approx(row["tuned_minus_practical"])
    assert row["tuned_minus_practical"] == pytest.approx(np.mean(each))
    assert row["tuned_minus_practical_se"] >= np.std(each, ddof=1) / np.sqrt(3) - 1e-12


def test_stage_files_are_flattened(built):
    artifacts, _, _ = built
    oracle = read_model("mart_oracle_quality", artifacts)
    assert set(oracle["pool"]) == {"one"} and not oracle["key"].str.contains("epochs").any()
    test = oracle[oracle["file"] == "diagnostics"].set_index("key")
    assert test.loc["heads.accuracy.ridge.error", "value"] == 0.2036 and test.loc["split", "text"] == "test"
    assert test.loc["arms[1].mean_score", "value"] == 0.25
    tuning = read_model("mart_tuning", artifacts).set_index("key")
    assert tuning.loc['"cabs_d_linear@tuned".options.eta', "value"] == 0.3


def test_adjusted_p_values_are_holms_over_all_pairs_of_real_routers(built):
    artifacts, _, _ = built
    pairs = read_model("mart_pairwise_differences", artifacts, "pool = 'one' AND regime = 'overall'")
    upper = {"oracle_best", "lin_ucb_full"}
    has_upper = pairs["policy"].isin(upper) | pairs["baseline"].isin(upper)
    assert pairs.loc[has_upper, "p_adjusted"].isna().all()
    once = pairs[~has_upper & (pairs["policy"] < pairs["baseline"])]
    real = len(SKILL) - len(upper)
    assert len(once) == real * (real - 1) // 2
    np.testing.assert_allclose(once["p_adjusted"], statistics.holm(once["p_value"]))
    twice = pairs[~has_upper].set_index(["policy", "baseline"])["p_adjusted"]
    for (policy, baseline), value in twice.items():
        assert value == twice[baseline, policy]
    adjusted = pairs[pairs["significant_adjusted"].eq(True)]
    assert adjusted["significant"].all() and len(adjusted) < pairs["significant"].sum()


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory):
    """Pool `uneven`, in which hier_mix has two of four rhos, as after --rho, and pool `outdated`, in which
    one policy has one of two rhos and another was replayed on an older problem."""
    artifacts = tmp_path_factory.mktemp("incomplete")
    write_pool(artifacts, fake_pool("uneven"), n=40, policies=["random", "lin_ucb"])
    write_pool(artifacts, fake_pool("uneven"), n=40, rhos=(500.0, 900.0), policies=["hier_mix"])
    pool, folder = fake_pool("outdated"), artifacts / "replay/outdated/0000"
    problem = write_pool(artifacts, pool, n=20, rhos=(0.0, 900.0), policies=["random", "lin_ucb"])
    older = fake_problem(n=20, seed=5)
    for policy, of in (("lin_ts", problem), ("ridge", older)):
        save_replay_result(fake_result(of, policy, 0.0, pool="outdated"), of, folder / policy, pool=pool)
    rewrite_run(folder / "ridge", created_at="2001-01-01T00:00:00+00:00")
    build_all(artifacts, database=False)
    return artifacts


@pytest.mark.slow
def test_policies_are_ranked_over_the_rhos_that_all_of_them_have(incomplete):
    """A policy that was replayed at fewer rhos is neither left out of the ranking nor compared over other
    rhos."""

    def mart(name, where="true"):
        return read_model(name, incomplete, f"pool = 'uneven' AND {where}")

    board = mart("mart_policy_leaderboard").set_index("policy")
    alone = mart("mart_utility_by_rho").set_index(["policy", "rho"])["utility"]
    for policy in ("random", "lin_ucb", "hier_mix"):
        both = (alone[policy, 500.0] + alone[policy, 900.0]) / 2
        assert board.loc[policy, "utility"] == pytest.approx(both) and board.loc[policy, "rhos"] == 2
    assert board.loc["hier_mix", "rank"] == 1 and board.loc["lin_ucb", "rank"] == 2
    assert board.loc["lin_ucb", "complete"] and not board.loc["hier_mix", "complete"]
    # the one that won before, over the rhos it alone has, earns more there than the best at the shared ones
    assert alone["lin_ucb", 0.0] > board.loc["lin_ucb", "utility"]
    missing = mart("mart_missing_rhos").sort_values("rho")[["policy", "rho", "regime"]]
    assert missing.to_numpy().tolist() == [["hier_mix", 0.0, "low"], ["hier_mix", 300.0, "low"]]
    pairs = mart("mart_pairwise_differences", "regime = 'overall'")
    assert len(pairs) == 6 and set(pairs["policy"]) == {"random", "lin_ucb", "hier_mix"}
    assert mart("mart_aiq")["points"].eq(2).all()
    assert mart("mart_pareto_frontier").groupby("policy").size().eq(2).all()
    assert [t.name for t in run_tests("mart_utility_by_regime", incomplete) if not t.passed] == []


@pytest.mark.slow
def test_incomplete_and_outdated_replays(incomplete):
    """A policy without all rhos narrows what is compared; replays of an older problem are set aside and
    counted."""
    where = "pool = 'outdated'"
    board = read_model("mart_policy_leaderboard", incomplete, where).set_index("policy")
    assert "ridge" not in board.index and not board.loc["lin_ts", "complete"]
    assert board["rhos"].eq(1).all() and board["rank"].notna().all() and board.loc["lin_ucb", "complete"]
    assert read_model("mart_provenance", incomplete, where)["outdated_runs"].item() == 1
    for name in ("mart_provenance", "mart_policy_leaderboard"):
        (failed,) = [t for t in run_tests(name, incomplete) if not t.passed]
        assert failed.severity == "warn"


@pytest.mark.slow
def test_a_policy_that_is_not_installed_stays_out_of_all_marts(tmp_path):
    """Its package was removed: no row of it, no failed test, and the others are compared at all of their
    rhos."""
    write_pool(tmp_path, fake_pool(), n=20, rhos=(0.0, 500.0, 900.0), policies=["random", "lin_ucb"])
    write_pool(tmp_path, fake_pool(), n=20, rhos=(0.0,), policies=["ridge"])
    rewrite_run(tmp_path / "replay/fake/0000/ridge", policy="gone", base_policy="gone")
    build_all(tmp_path, database=False)
    assert not [t.name for m in list_models() for t in run_tests(m.name, tmp_path) if not t.passed]
    board = read_model("mart_policy_leaderboard", tmp_path)
    assert set(board["policy"]) == {"random", "lin_ucb"} and board["rhos"].eq(3).all()
    assert read_model("mart_missing_rhos", tmp_path).empty
