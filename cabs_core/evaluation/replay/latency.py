"""Time of single decisions, as a router makes them for live traffic.

A replay plays whole trials in compiled loops, and its speed does not show how long one request waits. Here a
policy first learns from some rounds in the replay's loops, so that its state is that of a router in use. Then
further rounds call `decide` and `update` one at a time. The first `warmup` of these are not timed, because
they compile code. BLAS and torch have one thread each, as in a replay.

Times differ between runs and machines, so they are only written to files that no result depends on.

rho is in score units per USD.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.algorithms.policies.play import Lane, Stream, play_lanes
from cabs_core.algorithms.policies.registry import policy_class, policy_of_trial
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.errors import PolicyError
from cabs_core.base.threads import one_blas_thread, one_torch_thread
from cabs_core.evaluation.replay.engine import make_stream

#: defaults for each policy and rho: number of timed calls, of untimed calls before them, and of rounds of a
#: replay before all calls
DECISIONS = 300
WARMUP = 20
LEARNED = 500
COLUMNS = ("decide_us", "decide_cpu_us", "update_us", "update_cpu_us")


@dataclass(frozen=True)
class DecisionTimes:
    """Times of single calls of one policy at one rho, each `[decisions]` float64 in microseconds.

    Attributes:
        learned: number of rounds of a replay that the policy learned from first.
        decide_us, update_us: wall time of the call.
        decide_cpu_us, update_cpu_us: processor time of the whole process during the call.
    """

    policy: str
    rho: float
    learned: int
    decide_us: np.ndarray
    decide_cpu_us: np.ndarray
    update_us: np.ndarray
    update_cpu_us: np.ndarray


def serves_online(policy: str) -> bool:
    """Return True if a policy can decide without knowing outcomes, as all but `oracle_best` can."""
    return not policy_class(policy).needs_outcomes


def time_decisions(
    problem: ReplayProblem,
    policy: str,
    rho: float,
    *,
    decisions: int = DECISIONS,
    warmup: int = WARMUP,
    learned: int = LEARNED,
    seed: int = 0,
    pool: str = "",
    latency_weight: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> DecisionTimes:
    """Time single `decide` and `update` calls of a policy on the problem's queries.

    Args:
        problem: contexts, predictions and outcomes. Queries are served again if there are too few.
        policy: name of the policy.
        rho: cost sensitivity, score units per USD.
        decisions: number of calls to time, 1 or more.
        warmup: number of untimed calls before the timed ones.
        learned: number of rounds of a replay before all calls, cut to a third of the problem's queries.
        seed, pool: seed and name of the order of trial 0 and of the policy's random streams. An empty name
            takes the problem's pool.
        latency_weight: units of score that a second is worth.
        options: options that override the policy's preset.

    Raises:
        PolicyError: the policy needs outcomes to decide, or a number is out of range.
    """
    if decisions < 1 or warmup < 0 or learned < 0:
        raise PolicyError(f"timing {policy}: decisions {decisions} must be >= 1, warmup and learned >= 0")
    if not serves_online(policy):
        raise PolicyError(
            f"{policy} looks at outcomes before it decides: there is no online call to be timed"
        )
    pool = pool or problem.pool
    stream = make_stream(problem, rho, latency_weight)
    order = query_order(seed, pool, 0, problem.n)
    learned = min(learned, problem.n // 3)
    times = np.empty((4, decisions))
    with one_blas_thread(), one_torch_thread():
        router = policy_of_trial(stream, policy, seed=seed, pool=pool, horizon=problem.n, options=options)
        if learned:
            lane = Lane.empty(order[:learned], experts=router.algorithm.experts)
            play_lanes([router], stream, [lane], 0, learned)
        for i in range(-warmup, decisions):
            row = int(order[(learned + warmup + i) % problem.n])
            spent = _serve(router, stream, row)
            if i >= 0:
                times[:, i] = spent
    return DecisionTimes(policy, float(rho), learned, *(times / 1e3))


def _serve(router: SafePolicy, stream: Stream, row: int) -> tuple[int, int, int, int]:
    """Serve one request with its outcome.

    Returns:
        Nanoseconds: wall and processor time of `decide`, then of `update`.
    """
    request = stream.request(row, 0)
    cpu_before = time.process_time_ns()
    before = time.perf_counter_ns()
    decision = router.decide(request)
    decide_wall = time.perf_counter_ns() - before
    decide_cpu = time.process_time_ns() - cpu_before
    outcome = stream.outcome(row, decision.arm, router.algorithm.full_feedback)
    cpu_before = time.process_time_ns()
    before = time.perf_counter_ns()
    router.update(decision, **outcome)
    update_wall = time.perf_counter_ns() - before
    update_cpu = time.process_time_ns() - cpu_before
    return decide_wall, decide_cpu, update_wall, update_cpu


def save_times(times: Sequence[DecisionTimes], pool: str, path: str | Path) -> Path:
    """Write a Parquet file with one row a call: pool, policy, rho, number of the call, and `COLUMNS`."""
    kinds = {"pool": pa.string(), "policy": pa.string(), "rho": pa.float64(), "decision": pa.int32()}
    schema = pa.schema(kinds | dict.fromkeys(COLUMNS, pa.float64()))
    tables = [schema.empty_table()]
    for t in times:
        n = len(t.decide_us)
        columns = {"pool": [pool] * n, "policy": [t.policy] * n, "rho": [t.rho] * n, "decision": range(n)}
        tables.append(pa.table(columns | {name: getattr(t, name) for name in COLUMNS}, schema=schema))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd", store_schema=False)
    return Path(path)
