"""Settings chosen on the validation problem, with the same budget of configurations for every method.

A method is tuned over the grid of its record in the catalog. The first configuration is its preset,
unchanged. The second, where a method has both targets, is the preset with the other `target` (utility or
score), so that no method is handicapped by what its models learn. The others are drawn without replacement
(seeded). Every configuration is replayed over the validation problem on the same orders; its value is the
mean utility over the rhos of the search. A configuration replaces the preset only if its lead, paired over
trials and queries, exceeds one standard error: with a few hundred validation queries, the largest of a dozen
noisy means is no evidence by itself. The fewer queries, the more orders (`trials_for`): what a policy earns
that starts cold depends much on the order, and with few of them it would keep its preset for want of
evidence, a weaker baseline than it need be. A smaller grid than the budget is searched whole.

Not tuned here: the presets in `FIXED_PRESETS`, which follow the paper, and policies without a grid. What knn,
ridge, kernel_ridge and carrot have to choose (k, the stack's weights, the heads) is chosen once, with the
oracles, by squared error on the same validation split; a few have nothing to choose.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import name_and_options, policy_record, random_key, split_name
from cabs_core.base.catalog.policy_record import FIXED_PRESETS
from cabs_core.base.catalog.regimes import REGIMES, is_paper_grid, regime_table
from cabs_core.base.errors import PolicyError
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.streams import stream_key
from cabs_core.evaluation.replay.engine import Progress, replay
from cabs_core.evaluation.replay.result import ReplayResult

if TYPE_CHECKING:
    from cabs_core.data.pool_files import ModelPool

#: rounds that the orders of an evaluation make together, and the least and most orders
ROUNDS, LEAST_TRIALS, MOST_TRIALS = 20_000, 3, 10
#: rhos of the search: one or two per regime
RHOS = (150.0, 550.0, 900.0)


@dataclass
class TuningResult:
    """What was tried and what was chosen.

    Attributes:
        chosen: {policy: {"options", "utility", "preset_utility", "best_utility", "lead", "lead_se",
            "configurations", "seconds"}}; lead: of the best over the preset, with its standard error.
        tried: one dict per configuration: policy, options, utility, per-rho utilities.
        untuned: {policy: why it is never tuned}.
    """

    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    untuned: dict[str, str] = field(default_factory=dict)


def tunable(policy: str) -> bool:
    """Whether a policy (with its preset) has settings that tuning may change."""
    return not why_untuned(policy)


def why_untuned(policy: str) -> str:
    """Why a policy (with its preset) is never tuned, in a few words; empty where it is; or PolicyError."""
    preset = split_name(policy)[1]
    if not policy_record(policy).tuning:
        return "its record has no settings to tune"
    if name_and_options(policy)[1]:
        return "its options are given"
    return f"preset {preset!r} follows its paper and keeps its constants" if preset in FIXED_PRESETS else ""


def trials_for(n: int) -> int:
    """Orders per evaluation on n validation queries: as many as make `ROUNDS`, within bounds."""
    return min(MOST_TRIALS, max(LEAST_TRIALS, ROUNDS // max(1, n)))


def configurations(
    policy: str, budget: int, seed: int = 0, grid: Mapping[str, Sequence[Any]] | None = None
) -> list[dict[str, Any]]:
    """At most `budget` different overrides of a policy, fewer only where its grid holds fewer.

    The first is empty, the second sets the other `target` where there is one, the rest are seeded draws.

    Args:
        grid: {option: values}; None: that of the policy's record.
    """
    if budget < 1 or not tunable(policy):
        return [{}]
    record = policy_record(policy)
    space = record.tuning if grid is None else grid
    every = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    cls = policy_class(policy)
    seen = [cls.parse(policy, {})]
    chosen: list[dict[str, Any]] = [{}]

    def take(options: dict[str, Any]) -> None:
        # options that only repeat the preset make no new configuration
        settings = cls.parse(policy, options)
        if len(chosen) < budget and settings not in seen:
            seen.append(settings)
            chosen.append(options)

    # what the models learn matters most, so the other target is tried for every method
    for target in space.get("target", ()):
        take({"target": target})
    generator = np.random.Generator(
        np.random.PCG64(int(stream_key("tuning", random_key(record.name), int(seed))[0]))
    )
    for i in generator.permutation(len(every)):
        take(every[i])
    return chosen


def tune(
    problem: ReplayProblem,
    policies: Sequence[str],
    rhos: Sequence[float] = RHOS,
    budget: int = 12,
    seed: int = 0,
    *,
    trials: int | None = None,
    fixed: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Choose settings of every tunable policy on a validation problem.

    Args:
        problem: the validation problem; the test problem must never be given.
        policies: names; those that are never tuned are in `untuned` of the result, with the reason.
        rhos: cost sensitivities to average over; budget: configurations per policy, its preset included.
        seed: of the configurations drawn and of the orders; trials: orders; None: `trials_for`.
        fixed: {policy: overrides} that every configuration of the policy gets.
        grids: {policy: {option: values}} to search instead of the grids of the catalog.

    Raises:
        PolicyError: an unknown policy, or none of them is ever tuned.

    Examples:
        >>> from cabs_core import synthetic_problem, tune
        >>> validation = synthetic_problem(n=100, K=3, d=4, name="validation")
        >>> found = tune(validation, ["lin_ucb", "ridge"], rhos=[300.0], budget=3, trials=2)
        >>> found.chosen["lin_ucb"]["configurations"], found.untuned
        (3, {'ridge': 'its record has no settings to tune'})
    """
    if isinstance(policies, str):
        policies = (policies,)
    result = TuningResult(untuned={p: why for p in dict.fromkeys(policies) if (why := why_untuned(p))})
    names = [p for p in dict.fromkeys(policies) if p not in result.untuned]
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in result.untuned.items()) or "no policy is named"
        raise PolicyError(f"there is nothing to tune. {reasons}")
    trials = trials_for(problem.n) if trials is None else trials
    for number, policy in enumerate(names):
        begin = time.perf_counter()
        records: list[dict[str, Any]] = []
        traces: list[tuple[np.ndarray, np.ndarray]] = []
        candidates = configurations(policy, budget, seed, (grids or {}).get(policy))
        for step, options in enumerate(candidates):
            extra = dict((fixed or {}).get(policy, {}))
            if "propensity" in policy_class(policy).settings_for(split_name(policy)[0]).model_fields:
                extra.setdefault("propensity", "sampled")
            runs = [
                replay(problem, policy, rho=r, trials=trials, seed=seed, options={**extra, **options})
                for r in rhos
            ]
            traces.append((np.stack([r.utilities() for r in runs]).mean(axis=0), _per_query(runs, problem.n)))
            records.append(
                {
                    "policy": policy,
                    "options": options,
                    "utility": float(traces[-1][0].mean()),
                    "by_rho": [float(r.rewards.mean()) for r in runs],
                }
            )
            if progress is not None:
                progress(
                    (number + (step + 1) / len(candidates)) / len(names),
                    f"tuning {policy}: {step + 1} of {len(candidates)}",
                )
        best = int(np.argmax([r["utility"] for r in records]))
        by_trial, by_query = (b - a for a, b in zip(traces[0], traces[best], strict=True))
        lead = float(by_trial.mean())
        lead_se = mean_error(by_query, clusters=problem.clusters, trials=by_trial).value
        winner = best if best and lead > lead_se else 0
        result.tried.extend(records)
        result.chosen[policy] = {
            "options": records[winner]["options"],
            "utility": records[winner]["utility"],
            "preset_utility": records[0]["utility"],
            "best_utility": records[best]["utility"],
            "lead": lead,
            "lead_se": lead_se,
            "configurations": len(records),
            "seconds": time.perf_counter() - begin,
        }
    return result


def _per_query(runs: Sequence[ReplayResult], n: int) -> np.ndarray:
    total, count = np.zeros(n), np.zeros(n)
    for run in runs:
        np.add.at(total, run.order.ravel(), run.rewards.ravel())
        np.add.at(count, run.order.ravel(), 1)
    return total / np.maximum(count, 1)


def search_rhos(grid: Sequence[float]) -> list[float]:
    """The rhos of a pool's grid that the search looks at, ascending.

    On the paper's grid those nearest to `RHOS` (ties go to the smaller); else the middle of each regime.
    """
    values = sorted(grid)
    if is_paper_grid(values):
        return sorted({float(values[np.argmin(np.abs(np.array(values) - r))]) for r in RHOS})
    table = regime_table(values)
    members = [[r for r, regime in table.items() if regime == name] for name in REGIMES]
    return [rhos[len(rhos) // 2] for rhos in members if rhos]


def tune_policies(
    problem: ReplayProblem, pool: ModelPool, *, progress: Progress | None = None
) -> dict[str, dict[str, Any]]:
    """`TuningResult.chosen` for a pool's policies with the pool's budget (0: nothing is tuned).

    The rhos searched are those of `search_rhos`.
    """
    names = [name for name in pool.policies if tunable(name)]
    if not pool.tuning_budget or not names:
        return {}
    rhos, seed = search_rhos(pool.replay.rhos), pool.replay.order_seed
    return tune(problem, names, rhos, pool.tuning_budget, seed, progress=progress).chosen
