"""Stage `replay`: one policy's replay at one rho, its traces saved and examined.

rho is in score units per USD.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.algorithms.problem.folds import join_folds
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.conditions import condition_that_changes
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.statistics.uncertainty import crossed_error
from cabs_core.base.utility import clipped_utility
from cabs_core.data.inputs import tuned_options
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.replay.engine import replay
from cabs_core.evaluation.replay.folds import join_results
from cabs_core.evaluation.replay.storage import StoredTrace, load_trace, save_replay_result, trace_of
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.artifacts.stages import Target
from cabs_core.pipeline.stages.progress import Progress
from cabs_core.pipeline.stages.replay_problem import fold_problems

if TYPE_CHECKING:
    from cabs_core.evaluation.replay.result import ReplayResult
    from cabs_core.pipeline.artifacts import Chain, Options
    from cabs_core.pipeline.artifacts.provenance import Record


@dataclass(frozen=True, kw_only=True)
class ReplaySummary(Summary):
    """Figures of a policy's replay at one rho.

    Attributes:
        utility, regret: means per round.
        error: standard error of the utility over trials and queries; margin: half of its 95 % interval. Both
            are 0 if they are not known.
        trials: number of trials; rounds: number of rounds in a trial.
        random_utility: mean utility of random play on the same rounds.
        arms_played: number of different arms that were played.
        uncertified: number of rounds played from a solution without certificate.
        lanes: a hash per trial, see `lane_hashes`; trace: findings of `examine`.
    """

    utility: float
    regret: float
    error: float
    margin: float
    trials: int
    rounds: int
    random_utility: float
    arms_played: int
    uncertified: int
    lanes: list[str]
    trace: dict[str, Any]


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> ReplaySummary:
    """Replay the policy online over the test split in all trials, and save its traces to the folder."""
    pool = chain.pool
    rho = target.rho or 0.0
    policy = target.policy or ""
    folds = _folds(chain, inputs)
    tell = Progress(options.notify, f"{policy} at rho {rho:g}", "rounds")
    rounds = folds.joined.n * pool.replay.trials
    result = play_folds(
        pool,
        folds,
        [tuned_options(inputs, fold).get(policy, {}) for fold in range(len(folds.problems))],
        rho,
        policy,
        pool.replay.trials,
        progress=lambda done, _: tell(done * rounds, rounds),
    )
    problem = folds.joined
    run = save_replay_result(result, problem, folder, pool=pool)
    rewards = result.rewards
    best = result.best_rewards
    error = crossed_error(result.order, rewards, problem.clusters)
    return ReplaySummary(
        rows=int(rewards.size),
        utility=float(rewards.mean()),
        regret=float((best - rewards).mean()),
        error=error.value if error.is_known else 0.0,
        margin=error.half_width() if error.is_known else 0.0,
        trials=len(rewards),
        rounds=int(rewards.shape[1]),
        random_utility=_random_utility(result, problem),
        arms_played=len(np.unique(result.actions)),
        uncertified=0 if result.uncertified is None else int(result.uncertified.sum()),
        lanes=lane_hashes(result),
        trace=examine(load_trace(folder, run), folds, pool.replay.trials, pool.replay.rounds),
    )


def play_again(chain: Chain, target: Target) -> tuple[str, str]:
    """Play the first trial of a stored replay again, and return (hash in the record, hash now).

    The stored replay may be out of date, and its files are not read. Only its record must exist.

    Raises:
        ProvenanceError: the replay is missing, or one of its inputs is missing, out of date or altered.
    """
    record, _, again = _again(chain, target, [0])
    return ReplaySummary.of(record).lanes[0], lane_hashes(again)[0]


def trace_again(chain: Chain, policy: str, rho: float) -> StoredTrace:
    """Play a replay whose trace was pruned again, and return its rounds.

    Raises:
        ProvenanceError: the replay is missing or one of its files was altered, an input is missing, out of
            date or altered, or other rounds come out than were recorded.
    """
    target = Target("replay", chain.pool, rho, policy)
    folder = chain.verified(target)
    record, problem, result = _again(chain, target, chain.pool.replay.trials)
    if lane_hashes(result) != ReplaySummary.of(record).lanes:
        raise ProvenanceError(
            f"the rounds of {record.described} were pruned, and other rounds come out today: `cabs run "
            f"--pool {chain.pool.name} --policies {policy} --force` makes them anew"
        )
    return trace_of(result, problem, folder)


def _again(
    chain: Chain, target: Target, trials: int | Sequence[int]
) -> tuple[Record, ReplayProblem, ReplayResult]:
    """Play trials of a stored replay again.

    Returns:
        The record of the replay, the problem, and the result of playing now.
    """
    inputs = chain.require(target)
    policy = target.policy or ""
    folds = _folds(chain, inputs)
    options = [tuned_options(inputs, fold).get(policy, {}) for fold in range(len(folds.problems))]
    result = play_folds(chain.pool, folds, options, target.rho or 0.0, policy, trials)
    return chain.made(target), folds.joined, result


def examine_again(chain: Chain, target: Target) -> dict[str, Any]:
    """Return the findings of `examine` on a replay's files as they are now.

    If the trace was pruned, the recorded findings are returned, and the inputs are not looked at.

    Raises:
        ProvenanceError: there is no replay, one of its files was altered, or an input of a trace that is
            still there is missing, out of date or altered.
    """
    folder = chain.verified(target)
    record = chain.made(target)
    if record.pruned:
        return ReplaySummary.of(record).trace
    folds = _folds(chain, chain.require(target))
    return examine(load_trace(folder), folds, chain.pool.replay.trials, chain.pool.replay.rounds)


@dataclass(frozen=True)
class Folds:
    """The test problems that a replay plays.

    Attributes:
        problems: one test problem per fold; joined: all of them as one, see `join_folds`.
    """

    problems: list[ReplayProblem]
    joined: ReplayProblem


def play_folds(
    pool: ModelPool,
    folds: Folds,
    options: Sequence[dict[str, Any]],
    rho: float,
    policy: str,
    trials: int | Sequence[int],
    progress: Callable[[float, str], None] | None = None,
) -> ReplayResult:
    """Play a policy on the test queries of every fold, and return one result over the joined problem.

    Each trial plays the folds one after the other, each with a policy that begins anew. The policy of a fold
    was fitted and tuned without the fold's queries. The pool gives the rounds, the condition and the seed of
    the orders. If there are several folds, the orders depend on the fold's number and not on the pool's name.

    Args:
        options: the policy's tuned options for each fold, {option: value}.
        rho: score units per USD.
        trials: number of trials, or a list of their numbers.
        progress: called with (share of all rounds that is played, text) as the replay goes on. None calls
            nothing.
    """
    if len(folds.problems) == 1:
        return play(pool, folds.joined, options[0], rho, policy, trials, progress=progress)
    results = []
    for fold, (problem, tuned) in enumerate(zip(folds.problems, options, strict=True)):
        begun = fold / len(folds.problems)

        def tell(done: float, text: str, begun: float = begun) -> None:
            if progress is not None:
                progress(begun + done / len(folds.problems), text)

        results.append(play(pool, problem, tuned, rho, policy, trials, progress=tell, seeds=f"fold {fold}"))
    return join_results(results, [p.n for p in folds.problems], pool.name)


def play(
    pool: ModelPool,
    problem: ReplayProblem,
    options: dict[str, Any],
    rho: float,
    policy: str,
    trials: int | Sequence[int],
    progress: Callable[[float, str], None] | None = None,
    *,
    seeds: str = "",
) -> ReplayResult:
    """Replay a policy over one problem, and return the result.

    The pool gives the rounds of a trial, the seed of the orders, the weight of latency and the stress
    condition. A condition that changes the data is not applied here, since the problem has it already.

    Args:
        options: the policy's tuned options, {option: value}.
        rho: score units per USD.
        trials: number of trials, or a list of their numbers.
        progress: called with (share of the rounds that is played, text) as the replay goes on. None calls
            nothing.
        seeds: name from which orders and random numbers follow, with the pool's seed. Empty takes the pool's
            name.
    """
    if condition_that_changes(pool.replay.condition, "stream"):
        condition = pool.replay.condition
    else:
        condition = "none"
    return replay(
        problem,
        policy,
        rho=rho,
        trials=trials,
        seed=pool.replay.order_seed,
        pool=seeds or pool.name,
        rounds=pool.replay.rounds,
        condition=condition,
        sessions=pool.replay.sessions if condition == "sessions" else None,
        latency_weight=pool.replay.latency_weight,
        options=options,
        progress=progress,
    )


def examine(stored: Any, folds: Folds, trials: int, rounds: int | None) -> dict[str, Any]:
    """Examine a stored replay, and return {"problems": texts, "rounds": ..., "smallest propensity": ...}.

    `problems` holds a text for each fault and is empty if the trace is sound. `rounds` is the number of
    rounds of all trials. `smallest propensity` is 0 if the trace has no rounds.

    A sound trace is complete, has existing arms, propensities in (0, 1], rewards in [0, 1] and no NaN, and
    has no query twice in a trial.

    Args:
        stored: the trace. trials, rounds: the pool's settings, which give the expected number of rounds.
    """
    problems = []
    problem = folds.joined
    expected = (trials, sum(min(rounds or p.n, p.n) for p in folds.problems))
    if stored.actions.shape != expected:
        problems.append(f"holds {stored.actions.shape} (trials, rounds), expected {expected}")
    arms = len(problem.arms)
    outside = int(((stored.actions < 0) | (stored.actions >= arms)).sum())
    if outside:
        problems.append(f"{outside} actions outside 0..{arms - 1}")
    for name in ("propensities", "rewards"):
        bad = int((~np.isfinite(getattr(stored, name))).sum())
        if bad:
            problems.append(f"{bad} {name} are not finite")
    invalid = int(((stored.propensities <= 0) | (stored.propensities > 1 + 1e-6)).sum())
    if invalid:
        problems.append(f"{invalid} propensities outside (0, 1]")
    outside = int(((stored.rewards < 0) | (stored.rewards > 1)).sum())
    if outside:
        problems.append(f"{outside} rewards outside [0, 1]")
    visits = [np.bincount(row) for row in stored.order]
    repeated = sum(int((count - 1)[count > 1].sum()) for count in visits)
    if repeated:
        problems.append(f"{repeated} rounds repeat a query of the same trial")
    return {
        "problems": problems,
        "rounds": int(stored.actions.size),
        "smallest propensity": float(np.nanmin(stored.propensities)) if stored.propensities.size else 0.0,
    }


def lane_hashes(result: ReplayResult) -> list[str]:
    """Return one hash per trial over order, actions, propensities and rewards, to compare re-runs by."""
    arrays = [a.astype("<i8") for a in (result.order, result.actions)]
    arrays += [a.astype("<f8") for a in (result.propensities, result.rewards)]
    lanes = (b"".join(a[trial].tobytes() for a in arrays) for trial in range(result.trials))
    return [hashlib.sha256(lane).hexdigest()[:32] for lane in lanes]


def _folds(chain: Chain, inputs: dict[str, Path]) -> Folds:
    """Return the test problems of a pool from the folders `inputs`, which the caller has verified."""
    record = chain.status(chain.stage("replay_problem")).record
    assert record is not None
    return _load(str(inputs["replay_problem"]), record.content)


@lru_cache(maxsize=2)
def _load(folder: str, content: str) -> Folds:
    """Load the test problems in a folder. Those of the two latest folders stay in memory.

    Args:
        folder: folder of the stage `replay_problem`.
        content: hash of the folder's files by its record. A folder with another hash is loaded anew.
    """
    problems = fold_problems(Path(folder))
    return Folds(problems, join_folds(problems))


def _random_utility(result: ReplayResult, problem: ReplayProblem) -> float:
    """Return the expected utility of uniformly random play on the rounds of a replay. Nothing is sampled.

    All arms count in every round, also those that a condition makes unavailable in it.
    """
    if result.random_rewards is not None:
        return float(result.random_rewards.mean())
    utilities = clipped_utility(
        problem.scores, problem.costs, result.rho, problem.latencies, result.latency_weight
    )
    return float(utilities.mean(axis=1)[result.order].mean())
