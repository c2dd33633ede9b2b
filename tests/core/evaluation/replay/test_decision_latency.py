"""Times of single online calls: what is called, on what, and that only real calls are counted."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from cabs_core.algorithms.policies.request import Decision
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import middle_rho
from cabs_core.evaluation.replay import latency


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=90, K=4, d=5)


def watch(monkeypatch, clock=None):
    """[(call, round of the policy, context or score)] in the order of the calls."""
    seen = []
    decide, update = SafePolicy.decide, SafePolicy.update

    def decided(self, request):
        seen.append(("decide", self.round, request.context))
        if clock:
            clock["now"] += clock["decide"]
        return decide(self, request)

    def updated(self, decision, score, cost, **more):
        seen.append(("update", self.round, (decision, score, cost, more)))
        if clock:
            clock["now"] += clock["update"]
        return update(self, decision, score, cost, **more)

    monkeypatch.setattr(SafePolicy, "decide", decided)
    monkeypatch.setattr(SafePolicy, "update", updated)
    return seen


def test_every_timed_call_is_one_decide_and_one_update_after_learning(problem, monkeypatch) -> None:
    seen = watch(monkeypatch)
    times = latency.time_decisions(problem, "lin_ucb", 300.0, decisions=25, warmup=5, learned=20)
    # the 20 learned ones ran in replay's loop
    assert [kind for kind, _, _ in seen] == ["decide", "update"] * 30
    assert seen[0][1] == 20 and times.learned == 20
    order = latency.query_order(0, problem.pool, 0, problem.n)
    rows = [int(order[(20 + i) % 90]) for i in range(30)]
    for i, row in enumerate(rows):
        assert (seen[2 * i][2] == problem.contexts[row]).all()
        decision, score, cost, more = seen[2 * i + 1][2]
        assert isinstance(decision, Decision)
        assert (score, cost) == (problem.scores[row, decision.arm], problem.costs[row, decision.arm])
        assert (more["deltas"] == problem.surrogate_deltas[row, decision.arm]).all()
    for name in latency.COLUMNS:
        values = getattr(times, name)
        assert values.shape == (25,) and np.isfinite(values).all() and (values >= 0).all()
    assert (times.decide_us > 0).all()


def test_a_decision_is_timed_apart_from_its_update_and_from_warming_up(problem, monkeypatch) -> None:
    clock = {"now": 0, "decide": 7_000, "update": 3_000}
    monkeypatch.setattr(latency.time, "perf_counter_ns", lambda: clock["now"])
    monkeypatch.setattr(latency.time, "process_time_ns", lambda: 2 * clock["now"])
    watch(monkeypatch, clock)
    times = latency.time_decisions(problem, "random", 300.0, decisions=4, warmup=3, learned=0)
    assert times.decide_us.tolist() == [7.0] * 4 and times.update_us.tolist() == [3.0] * 4
    assert times.decide_cpu_us.tolist() == [14.0] * 4 and times.update_cpu_us.tolist() == [6.0] * 4


@pytest.mark.parametrize("policy", ["best_single", "lin_ucb_full", "cabs_d_linear"])
def test_every_family_is_timed_on_its_online_path(problem, policy) -> None:
    times = latency.time_decisions(problem, policy, 300.0, decisions=120, warmup=2, learned=1000)
    # a third of the problem; queries come round again
    assert len(times.decide_us) == 120 and times.learned == 30


def test_what_cannot_be_timed_is_refused(problem) -> None:
    assert not latency.serves_online("oracle_best") and latency.serves_online("hier_mix")
    with pytest.raises(PolicyError, match="online call"):
        latency.time_decisions(problem, "oracle_best", 300.0)
    with pytest.raises(PolicyError, match="decisions 0 must be >= 1"):
        latency.time_decisions(problem, "random", 300.0, decisions=0)


def test_calls_are_counted_from_the_smallest_numbers_on(problem, monkeypatch) -> None:
    seen = watch(monkeypatch)
    times = latency.time_decisions(problem, "lin_ucb", 300.0, decisions=1, warmup=0, learned=0)
    assert len(seen) == 2 and seen[0][1] == 0 and times.learned == 0 and len(times.decide_us) == 1
    for number in ("warmup", "learned"):
        with pytest.raises(PolicyError, match="warmup and learned >= 0"):
            latency.time_decisions(problem, "random", 300.0, **{number: -1})


def test_300_decisions_after_20_untimed_and_500_learned_ones_unless_a_caller_says_otherwise(
    monkeypatch,
) -> None:
    seen = watch(monkeypatch)
    times = latency.time_decisions(synthetic_problem(n=1600, K=2, d=2, offline=20), "random", 300.0)
    assert len(times.decide_us) == 300 and times.learned == 500
    assert [kind for kind, _, _ in seen].count("decide") == 320 and seen[0][1] == 500


def test_files_hold_one_row_a_decision(problem, tmp_path) -> None:
    times = [
        latency.time_decisions(problem, p, 300.0, decisions=6, warmup=1, learned=5)
        for p in ("random", "lin_ts")
    ]
    table = pq.read_table(latency.save_times(times, "mine", tmp_path / "decisions.parquet")).to_pandas()
    assert len(table) == 12 and set(table["pool"]) == {"mine"}
    assert list(table["decision"][:6]) == list(range(6))
    assert table[table["policy"] == "lin_ts"]["update_us"].tolist() == times[1].update_us.tolist()


def test_the_middle_rho_is_one_of_the_pool() -> None:
    assert middle_rho((0.0, 50.0, 100.0)) == 50 and middle_rho((900.0, 0.0)) == 0
    assert middle_rho((300.0,)) == 300
