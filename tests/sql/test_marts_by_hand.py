"""Figures of the marts recomputed from raw actions, and against the functions of
cabs_core.evaluation.metrics."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from built_marts import build_all, build_models, read_model, run_tests
from fake_replays import (
    SKILL,
    fake_pool,
    fake_problem,
    fake_result,
    rewrite_run,
    write_pool,
    write_pool_files,
)

from cabs_core.base.catalog.policies import asset_name
from cabs_core.base.statistics import uncertainty
from cabs_core.evaluation.metrics import frontier, routing
from cabs_core.evaluation.replay.storage import load_replay_result, save_replay_result
from dbt_like_sql.runner import list_models

RHOS = (0.0, 300.0, 500.0, 900.0)


@pytest.fixture
def mart(built):
    """mart(name, column=value, ...): the rows of a model that are of pool `one` and have these values."""

    def rows(name, **values):
        table = read_model(name, built[0], "pool = 'one'")
        for column, value in values.items():
            table = table[table[column] == value]
        return table

    return rows


@pytest.fixture
def problem(built):
    return built[1]["one"]


@pytest.fixture
def replayed(built):
    """replayed(policy, rho): the raw replay in pool `one`."""
    return lambda policy, rho: load_replay_result(built[0] / f"replay/one/{rho:04.0f}/{asset_name(policy)}")


@pytest.fixture
def utilities(problem, replayed):
    """utilities(policy): {rho: [trials, T] clipped utilities} from the raw actions alone."""

    def by_rho(policy):
        values = {}
        for rho in RHOS:
            raw = replayed(policy, rho)
            played = raw.order, raw.actions
            values[rho] = np.clip(problem.scores[played] - rho * problem.costs[played], 0, 1)
        return values

    return by_rho


def over_regimes(by_rho):
    """Mean over the regimes, of which each counts the same however many rhos it has."""
    return ((by_rho[0.0] + by_rho[300.0]) / 2 + by_rho[500.0] + by_rho[900.0]) / 3


def test_overall_utility_from_raw_actions(mart, utilities):
    by_trial = {rho: values.mean(axis=1) for rho, values in utilities("hier_mix").items()}
    board = mart("mart_policy_leaderboard", policy="hier_mix").iloc[0]
    assert board["utility_low"] == pytest.approx((by_trial[0.0].mean() + by_trial[300.0].mean()) / 2)
    assert board["utility"] == pytest.approx(over_regimes(by_trial).mean())
    row = mart("mart_utility_by_regime", policy="hier_mix", regime="overall").iloc[0]
    assert row["utility_se_trials"] == pytest.approx(over_regimes(by_trial).std(ddof=1) / np.sqrt(3))


def test_relative_regret_curve_from_raw_actions(mart, utilities):
    ours, reference = utilities("cabs_d_linear"), utilities("lin_ucb")
    # regret differences are utility differences, because both saw the same queries in the same order
    gaps = [(reference[rho] - ours[rho])[:, :30].sum(axis=1) for rho in (0.0, 300.0)]
    expected = np.mean(gaps, axis=0)
    row = mart("mart_regret_curves", policy="cabs_d_linear", regime="low", round=30).iloc[0]
    assert row["relative_regret"] == pytest.approx(expected.mean())
    assert row["relative_regret_se"] == pytest.approx(expected.std(ddof=1) / np.sqrt(3))


def test_recent_regret_from_raw_actions(mart, problem, replayed, utilities):
    lost = []
    for rho in (0.0, 300.0):
        best = np.clip(problem.scores - rho * problem.costs, 0, 1).max(axis=1)
        regret = best[replayed("hier_mix", rho).order] - utilities("hier_mix")[rho]
        # a checkpoint a round, so the ten before round 30 are rounds 21 to 30
        lost.append(regret[:, 20:30].mean(axis=1))
    expected = np.mean(lost, axis=0)
    curve = mart("mart_regret_curves", policy="hier_mix", regime="low").set_index("round")
    assert curve.loc[30, "recent_regret"] == pytest.approx(expected.mean())
    assert curve.loc[30, "recent_regret_se"] == pytest.approx(expected.std(ddof=1) / np.sqrt(3))
    assert curve["recent_regret"].isna().sum() == 10


def test_arm_share_and_money_from_raw_actions(mart, problem, replayed):
    raw = replayed("kernel_ridge", 900.0)
    share = mart("mart_arm_shares", policy="kernel_ridge", regime="high", arm="model-2")["share"].item()
    assert share == pytest.approx((raw.actions == 2).mean())
    point = mart("mart_utility_by_rho", policy="kernel_ridge", rho=900.0).iloc[0]
    spent = problem.costs[raw.order, raw.actions].mean()
    assert point["cost_per_1000_calls"] == pytest.approx(1000 * spent)


def test_paired_differences_are_those_of_the_metrics_room(mart, replayed, utilities):
    order = replayed("lin_ucb", 0.0).order

    def parts(policy):
        """Means over the regimes, `[trials]` and `[queries]`."""
        by_query = {}
        for rho, values in utilities(policy).items():
            by_query[rho] = np.zeros(60)
            np.add.at(by_query[rho], order.ravel(), values.ravel() / 3)
        by_trial = {rho: values.mean(axis=1) for rho, values in utilities(policy).items()}
        return over_regimes(by_trial), over_regimes(by_query)

    (at, aq), (bt, bq) = parts("hier_mix"), parts("lin_ucb")
    error = uncertainty.mean_error(aq - bq, trials=at - bt)
    se_queries = float(uncertainty.standard_error(aq - bq))
    chosen = {"policy": "hier_mix", "baseline": "lin_ucb", "regime": "overall"}
    row = mart("mart_pairwise_differences", **chosen).iloc[0]
    assert row["difference"] == pytest.approx((at - bt).mean())
    assert row["se_trials"] == pytest.approx(uncertainty.standard_error(at - bt))
    assert row["se_queries"] == pytest.approx(se_queries, rel=1e-3)  # stored in single precision
    assert row["se"] == pytest.approx(np.hypot(row["se_trials"], row["se_queries"]))
    assert row["p_value"] == pytest.approx(error.p_value((at - bt).mean()), rel=1e-2)
    assert (row["low"], row["high"]) == pytest.approx(error.interval((at - bt).mean()), rel=1e-3, abs=1e-6)
    assert bool(row["significant"]) == (row["p_value"] < 0.05)


def test_aiq_hull_and_savings_are_those_of_the_metrics_room(mart):
    points = mart("mart_pareto_frontier")
    sweep = points[points["policy"] == "cabs_c_linear"]
    cost, score = sweep["cost_per_1000_calls"].to_numpy() / 1000, sweep["score"].to_numpy()
    routers = points[points["kind"] != "upper bound"]
    costs = routers["cost_per_1000_calls"] / 1000
    aiq = mart("mart_aiq", policy="cabs_c_linear")["aiq"].item()
    assert aiq == pytest.approx(frontier.aiq(cost, score, costs.min(), costs.max()))
    hull = frontier.non_decreasing_hull(cost, score)
    assert sorted(sweep[sweep["on_own_hull"]]["score"]) == pytest.approx(sorted(hull[1]))
    mask = frontier.pareto_mask(routers["cost_per_1000_calls"], routers["score"])
    assert (routers["on_pool_frontier"].to_numpy() == mask).all()
    saved = mart("mart_cost_savings", policy="cabs_c_linear", baseline="lin_ucb").iloc[0]
    target, paid = saved["target_score"], saved["baseline_cost_per_1000_calls"] / 1000
    assert saved["share_saved"] == pytest.approx(frontier.cost_saved(cost, score, paid, target))
    assert saved["performance_gain"] == pytest.approx(score.max() / target - 1)
    assert saved["performance_gain_se"] > 0
    same = mart("mart_cost_savings", policy="lin_ucb", baseline="lin_ucb").iloc[0]
    assert (same["performance_gain"], same["performance_gain_se"]) == (0, 0)


def test_distance_to_the_frontier_by_hand(mart):
    points = mart("mart_pareto_frontier")
    points = points[points["kind"] != "upper bound"].reset_index(drop=True)
    plane = points[["cost_per_1000_calls", "score"]].to_numpy()
    plane = (plane - plane.min(axis=0)) / np.ptp(plane, axis=0)
    best = plane[points["on_pool_frontier"].to_numpy()]
    aiq = mart("mart_aiq").set_index("policy")
    for policy, rows in points.groupby("policy"):
        distances = [np.hypot(*(best - plane[i]).T).min() for i in rows.index]
        assert aiq["pareto_distance"][policy] == pytest.approx(np.mean(distances))
    assert aiq[aiq["kind"] == "upper bound"]["pareto_distance"].isna().all()


def test_gap_closed_is_a_share_of_the_way_to_full_feedback(mart):
    utility = mart("mart_utility_by_regime", regime="overall").set_index("policy")["utility"]
    gap = mart("mart_gap_closed", regime="overall").set_index("policy")
    way = utility["lin_ucb_full"] - utility["lin_ucb"]
    for policy in ("hier_mix", "random"):
        assert gap.loc[policy, "gap_closed"] == pytest.approx((utility[policy] - utility["lin_ucb"]) / way)
    assert gap.loc["lin_ucb", "gap_closed"] == 0 and gap.loc["lin_ucb_full", "gap_closed"] == pytest.approx(1)
    assert gap.loc["lin_ucb_full", "se"] == pytest.approx(0, abs=1e-9)


def test_ranks_leave_out_upper_bounds(mart):
    board = mart("mart_policy_leaderboard").set_index("policy")
    assert board.loc[["oracle_best", "lin_ucb_full"], "rank"].isna().all()
    assert sorted(board["rank"].dropna()) == list(range(1, len(SKILL) - 1))
    assert board["utility"].idxmax() == "oracle_best"
    assert board.loc[board["rank"] == 1, "best_policy"].item() in board.index
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


def test_latency_percentiles_are_over_single_decisions_and_throughput_over_replays(built, mart):
    """Recomputed from the stored calls: percentiles never over trials, throughput from rounds and seconds."""
    artifacts, _, _ = built
    calls = pq.read_table(artifacts / "router/one/decisions.parquet").to_pandas()
    latency = mart("mart_decision_latency").set_index("policy")
    for policy in ("lin_ucb", "hier_mix"):
        timed, row = calls[calls["policy"] == policy], latency.loc[policy]
        assert row["decisions"] == len(timed) == 40 and row["rho"] == 500
        for call in ("decide", "update"):
            expected = routing.latency_percentiles(timed[f"{call}_us"])
            assert {p: row[f"{call}_{p}_us"] for p in expected} == pytest.approx(expected)
            assert row[f"{call}_cpu_us"] == pytest.approx(timed[f"{call}_cpu_us"].mean())
            assert row[f"{call}_cpu_p99_us"] == pytest.approx(np.percentile(timed[f"{call}_cpu_us"], 99))
    assert latency.loc["random", ["decisions", "decide_p50_us"]].isna().all()  # replayed, but never timed
    trials = pq.read_table(artifacts / "replay/one/0500/random/trials.parquet").to_pandas()
    assert trials["seconds"].iloc[0] == pytest.approx(60 * 3e-5)  # as fake_result says, in every replay
    assert latency["replay_rounds_per_second"].to_numpy() == pytest.approx(1 / 3e-5)
    board = mart("mart_policy_leaderboard", policy="lin_ucb").iloc[0]
    assert board["decide_p50_us"] == latency.loc["lin_ucb", "decide_p50_us"]


def test_preset_difference_from_raw_actions(mart, utilities):
    """Mean of per-trial differences on the same queries, by hand; the error is at least that over trials."""
    tuned, practical = (utilities(policy)[900.0] for policy in ("cabs_d_linear@tuned", "cabs_d_linear"))
    each = (tuned - practical).mean(axis=1)
    row = mart("mart_presets", regime="high", base_policy="cabs_d_linear").iloc[0]
    assert row["tuned"] - row["practical"] == pytest.approx(row["tuned_minus_practical"])
    assert row["tuned_minus_practical"] == pytest.approx(each.mean())
    assert row["tuned_minus_practical_se"] >= each.std(ddof=1) / np.sqrt(3) - 1e-12


def test_stage_files_are_flattened(built):
    artifacts, _, _ = built
    oracle = read_model("mart_oracle_quality", artifacts)
    assert set(oracle["pool"]) == {"one"} and not oracle["key"].str.contains("epochs").any()
    test = oracle[oracle["file"] == "diagnostics"].set_index("key")
    assert test.loc["heads.accuracy.ridge.error", "value"] == 0.2036 and test.loc["split", "text"] == "test"
    assert test.loc["arms[1].mean_score", "value"] == 0.25
    tuning = read_model("mart_tuning", artifacts).set_index("key")
    assert tuning.loc['"cabs_d_linear@tuned".options.eta', "value"] == 0.3


def test_adjusted_p_values_are_holms_over_all_pairs_of_real_routers(mart):
    pairs = mart("mart_pairwise_differences", regime="overall")
    upper = {"oracle_best", "lin_ucb_full"}
    has_upper = pairs["policy"].isin(upper) | pairs["baseline"].isin(upper)
    assert pairs.loc[has_upper, "p_adjusted"].isna().all()
    once = pairs[~has_upper & (pairs["policy"] < pairs["baseline"])]
    real = len(SKILL) - len(upper)
    assert len(once) == real * (real - 1) // 2
    np.testing.assert_allclose(once["p_adjusted"], uncertainty.holm(once["p_value"]))
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


def played(artifacts, *, rhos=(0.0, 300.0, 900.0), policies=("random", "lin_ucb", "ridge"), **replay):
    """The pool `fake` as its replays were made, which lie in `artifacts`."""
    pool = fake_pool(policies=list(policies), replay={"rhos": list(rhos), "trials": 3, **replay})
    write_pool(artifacts, pool, n=20, rhos=rhos, policies=policies)
    return pool


def test_the_pool_file_decides_what_is_compared(tmp_path):
    """Title, reference policy, rhos and policies are those of the file, even if nothing was replayed."""
    before = played(tmp_path)
    replay = before.replay.model_copy(update={"rhos": (0.0, 900.0)})
    fields = {"title": "New", "reference_policy": "random", "policies": ("random", "ridge"), "replay": replay}
    write_pool_files(tmp_path, before.model_copy(update=fields))
    build_all(tmp_path, database=False)
    assert not [t.name for m in list_models() for t in run_tests(m.name, tmp_path) if not t.passed]
    (pool,) = read_model("stg_pools", tmp_path).itertuples()
    assert (pool.title, pool.reference_policy) == ("New", "random")
    board = read_model("mart_policy_leaderboard", tmp_path)
    assert set(board["policy"]) == {"random", "ridge"} and board["complete"].all()
    regimes = read_model("mart_utility_by_regime", tmp_path, "regime = 'overall'")
    assert [list(rhos) for rhos in regimes["rho_values"]] == [[0.0, 900.0]] * 2
    assert read_model("mart_missing_rhos", tmp_path).empty
    (row,) = read_model("mart_provenance", tmp_path).itertuples()
    assert (row.runs, row.outdated_runs, row.unnamed_runs) == (4, 0, 5)


@pytest.mark.parametrize("written", [True, False])
def test_replays_in_other_orders_are_not_compared(tmp_path, written):
    """Of two order seeds the one that the pool file says counts, else that of the newest replay."""
    old = played(tmp_path)
    new = fake_pool(policies=old.policies, replay={"rhos": old.replay.rhos, "trials": 3, "order_seed": 11})
    write_pool(tmp_path, new, n=20, rhos=(0.0, 900.0), policies=["random", "ridge"])
    for folder in (tmp_path / "replay/fake").glob("*/*"):
        is_new = folder.parent.name != "0300" and folder.name != "lin_ucb"
        rewrite_run(folder, created_at=f"{2002 if is_new else 2001}-01-01T00:00:00+00:00")
    if written:
        write_pool_files(tmp_path, old)
    build_models(tmp_path, "stg_replay_runs")
    runs = read_model("stg_replay_runs", tmp_path, "is_current")
    if written:
        assert len(runs) == 5 and set(runs["rho"]) == {0.0, 300.0, 900.0}
    else:
        assert len(runs) == 4 and set(runs["policy"]) == {"random", "ridge"}


def test_a_pool_file_without_any_of_the_replays_leaves_the_figures_of_before(tmp_path):
    """They stand until the first replay at one of its rhos is made."""
    before = played(tmp_path)
    replay = before.replay.model_copy(update={"rhos": (100.0,)})
    write_pool_files(tmp_path, before.model_copy(update={"replay": replay}))
    build_models(tmp_path, "stg_replay_runs")
    assert len(read_model("stg_replay_runs", tmp_path, "is_compared")) == 9


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
