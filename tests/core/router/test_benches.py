"""The measurements of a deployed router run and say what they measured."""

from __future__ import annotations

import json

import pytest

from benchmarks.deployment import simulate
from benchmarks.logs import main as measure_logs
from cabs_core.bench import decision
from cabs_core.problem import ReplayProblem
from cabs_core.router import build_bundle


@pytest.fixture(scope="module")
def problem(artifacts):
    return ReplayProblem.load(artifacts["replay_problem"] / "test")


def test_without_trouble_the_deployment_is_the_replay(make_bundle, problem, test_prompts):
    # at rho 0, where the factors of costs, which a replay does not learn, count for nothing
    bundle = make_bundle("carrot", epsilon=0.0, rho=0.0)
    found = simulate(bundle, problem, test_prompts, delay=1, never=0.0, outage=0.0)
    assert found["difference"] == pytest.approx(0.0, abs=1e-12) and found["regret"] > 0
    assert found["regret of a replay with late rewards"] == pytest.approx(found["regret"])  # it never learns


def test_with_trouble_it_says_so(make_bundle, problem, test_prompts):
    found = simulate(make_bundle("lin_ts", epsilon=0.0), problem, test_prompts, delay=20)
    assert 0 < found["scored"] < found["queries"] == problem.n
    assert found["difference"] == pytest.approx(found["regret"] - found["regret of the replay"])


@pytest.mark.slow
def test_a_budget_moves_the_spending(make_bundle, problem, test_prompts):
    folder = make_bundle("carrot", epsilon=0.0)
    low, high = (simulate(folder, problem, test_prompts, budget=b, outage=0.0) for b in (2e-4, 2e-3))
    assert low["spent"] < high["spent"] and low["mean rho"] > high["mean rho"]


def test_what_a_log_teaches_is_measured_against_the_table_alone(tiny_pool):
    argv = [
        "--pool",
        "tiny",
        "--train",
        "60",
        "--seeds",
        "2",
        "--epsilon",
        "0.5",
        "--caps",
        "1",
        "--policies",
        "ridge",
        "hier_mix",
    ]
    rows = {(r["policy"], r["trained on"]): r for r in measure_logs(argv=argv)}
    assert {k for _, k in rows} == {"table", "cap 1", "continued", "all outcomes"} and len(rows) == 7
    for policy in ("ridge", "hier_mix"):
        assert rows[policy, "table"]["difference"] == 0.0
        assert rows[policy, "cap 1"]["difference"] != 0.0  # the log was learnt from
    assert all(0.0 <= r["utility"] <= 1.0 for r in rows.values())


def test_the_parts_of_a_decision_are_timed_twice(make_bundle):
    found = decision.main(argv=["--router", str(make_bundle("carrot")), "--decisions", "5"])
    for turn in ("clock", "processor"):
        assert 0 < found[turn]["rest_p50"] < found[turn]["total_p50"] <= found[turn]["total_p99"]


@pytest.mark.slow
def test_encoders_of_one_router_are_compared_in_turns(tmp_path, bert_pool, bert_artifacts):
    build_bundle(tmp_path / "r", bert_pool, bert_artifacts, policy="hier_mix", rho=300.0)
    found = decision.main(argv=["--router", str(tmp_path / "r"), "--decisions", "5", "--encoders"])[
        "encoders"
    ]
    assert (
        found["largest difference of a vector"]["onnx"]
        <= 1e-6
        < found["largest difference of a vector"]["int8"]
    )
    assert found["other decisions than with torch"]["onnx"] == 0 and found["decisions"] == 25
    assert found["times as fast as torch"]["torch"] == 1.0


def test_a_budget_is_played_by_pacer_and_rival(problem, monkeypatch, capsys, tmp_path):
    """Targets lie between the cheapest and the dearest model; every figure of the table is one of the row."""
    from benchmarks import budgets

    monkeypatch.setattr(budgets, "problem", lambda *args: problem)
    budgets.main(
        ["--pool", "tiny", "--policies", "knn", "--trials", "2", "--json", str(tmp_path / "found.json")]
    )
    rows = json.loads((tmp_path / "found.json").read_text())
    means = problem.offline_costs.mean(axis=0)
    assert len(rows) == 3 and all(means.min() < row["target"] < means.max() for row in rows)
    printed = capsys.readouterr().out.splitlines()[2:]
    assert [
        f"{row['off port']:+.1%}" in line and f"{row['score']:.3f} ±" in line
        for row, line in zip(rows, printed, strict=True)
    ] == [True] * 3
    budgets.main(["--pool", "tiny", "--policies", "knn", "--trials", "1", "--targets", "0.001"])
    assert "| 0.001 |" in capsys.readouterr().out
