"""How long one decision takes: single online `decide` and `update` calls, the path that serves live traffic.

Replay plays whole lanes in compiled loops; its throughput says nothing about the wait of one request. Here a
policy first learns from a stretch of a seeded order (in replay's loops, so that its state is that of a router
in use), then serves further rounds one at a time. The first `warmup` of them are not timed: they compile what
is compiled on first use. One BLAS and one torch thread, as in replay.

Wall-clock figures change from run to run and machine to machine, so they belong in volatile files only.

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

#: per policy and rho: calls that are timed, rounds served untimed before them, rounds learned from before
#: those
DECISIONS, WARMUP, LEARNED = 300, 20, 500
COLUMNS = ("decide_us", "decide_cpu_us", "update_us", "update_cpu_us")


@dataclass(frozen=True)
class DecisionTimes:
    """Times of single calls of one policy at one rho, all `[decisions]` float64 in microseconds.

    Attributes:
        decide_us, update_us: wall time of the call; decide_cpu_us, update_cpu_us: processor time of the
            process.
        learned: rounds that the policy had learned from before the first timed call.
    """

    policy: str
    rho: float
    learned: int
    decide_us: np.ndarray
    decide_cpu_us: np.ndarray
    update_us: np.ndarray
    update_cpu_us: np.ndarray


def serves_online(policy: str) -> bool:
    """Whether a policy can decide without knowing outcomes (all but the best arm in hindsight)."""
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
        problem: contexts, predictions and outcomes; a query is served again when there are too few.
        decisions: calls to time, >= 1; warmup: calls before them, >= 0; learned: rounds of replay before
            those, at most a third of the problem.
        seed, pool: of the order (that of trial 0) and of the policy's random streams.
        options: settings over the policy's preset.

    Raises:
        PolicyError: the policy exists in replay only, or a number is out of range.
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
    """One request and its reward; nanoseconds (wall and processor of decide, then of update)."""
    request = stream.request(row, 0)
    wall, cpu = time.perf_counter_ns, time.process_time_ns
    cpu_start, start = cpu(), wall()
    decision = router.decide(request)
    stop, cpu_stop = wall(), cpu()
    outcome = stream.outcome(row, decision.arm, router.algorithm.full_feedback)
    cpu_again, again = cpu(), wall()
    router.update(decision, **outcome)
    end, cpu_end = wall(), cpu()
    return stop - start, cpu_stop - cpu_start, end - again, cpu_end - cpu_again


def save_times(times: Sequence[DecisionTimes], pool: str, path: str | Path) -> Path:
    """Write one row per timed round: pool, policy, rho, decision (0..), and four columns of microseconds."""
    kinds = {"pool": pa.string(), "policy": pa.string(), "rho": pa.float64(), "decision": pa.int32()}
    schema = pa.schema(kinds | dict.fromkeys(COLUMNS, pa.float64()))
    tables = [schema.empty_table()]
    for t in times:
        n = len(t.decide_us)
        columns = {"pool": [pool] * n, "policy": [t.policy] * n, "rho": [t.rho] * n, "decision": range(n)}
        tables.append(pa.table(columns | {name: getattr(t, name) for name in COLUMNS}, schema=schema))
    pq.write_table(pa.concat_tables(tables), path, compression="zstd", store_schema=False)
    return Path(path)
