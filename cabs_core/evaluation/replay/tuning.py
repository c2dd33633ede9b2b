"""Choice of policies' options on the validation problem, with the same number of configurations for each.

The first configuration of a policy is its preset, unchanged. If the policy has both targets, the second is
the preset with the other `target` (utility or score), so that no policy is handicapped by what its models
learn. The others are drawn at random from the grid of the policy's record. Every configuration is replayed on
the same orders of the validation queries, and its value is the mean utility over the rhos of the search.

A configuration replaces the preset only if its lead, paired over trials and queries, exceeds one standard
error: of a few hundred queries, the largest of a dozen noisy means is no evidence by itself. Problems with
few queries have more orders (`trials_for`), since the utility of a policy that starts cold depends much on
the order.

Presets in `FIXED_PRESETS` follow the paper and are not tuned. The options of knn, ridge, kernel_ridge and
carrot are chosen together with the oracles, by squared error on the same validation queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import name_and_options, policy_record, random_key, split_name
from cabs_core.base.catalog.policy_record import FIXED_PRESETS
from cabs_core.base.catalog.regimes import REGIMES, is_paper_grid, regime_table
from cabs_core.base.errors import PolicyError
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.streams import stream_key
from cabs_core.evaluation.replay.engine import Progress, replay, rho_grid
from cabs_core.evaluation.replay.result import ReplayResult

if TYPE_CHECKING:
    from cabs_core.data.pool_files import ModelPool

#: number of rounds that the trials of a configuration have together, within the limits of trials
ROUNDS = 20_000
LEAST_TRIALS = 3
MOST_TRIALS = 10
#: rhos of the search on the paper's grid, one in each regime
RHOS = (150.0, 550.0, 900.0)


@dataclass
class TuningResult:
    """The configurations that were tried and the ones that were chosen.

    Attributes:
        chosen: `{policy: {"options", "utility", "preset_utility", "best_utility", "lead", "lead_se",
            "configurations", "seconds"}}`. `options` and `utility` are those of the chosen configuration,
            which is the best one or the preset. `lead`, with its standard error `lead_se`, is the utility of
            the best configuration less the preset's, even if the preset was chosen. Utilities are means over
            the rhos.
        tried: one dict `{"policy", "options", "utility", "by_rho"}` a configuration.
        untuned: `{policy: reason}` of the policies that are never tuned.
    """

    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    untuned: dict[str, str] = field(default_factory=dict)


def tunable(policy: str) -> bool:
    """Return True if tuning may change a policy's options, so that `why_untuned` has no reason.

    Raises:
        PolicyError: as of `why_untuned`.
    """
    return not why_untuned(policy)


def why_untuned(policy: str) -> str:
    """Return the reason why a policy is never tuned; empty if it is tuned.

    The reasons are a record without a grid, options in the policy's name, and a preset of `FIXED_PRESETS`.

    Raises:
        PolicyError: the policy or the preset is unknown, or an option in the name is malformed.
    """
    preset = split_name(policy)[1]
    if not policy_record(policy).tuning:
        return "its record has no settings to tune"
    if name_and_options(policy)[1]:
        return "its options are given"
    if preset in FIXED_PRESETS:
        return f"preset {preset!r} follows its paper and keeps its constants"
    return ""


def trials_for(n: int) -> int:
    """Number of trials for n >= 1 validation queries: as many as fit into `ROUNDS` rounds, from 3 to 10."""
    return min(MOST_TRIALS, max(LEAST_TRIALS, ROUNDS // n))


def configurations(
    policy: str, budget: int, seed: int = 0, grid: Mapping[str, Sequence[Any]] | None = None
) -> list[dict[str, Any]]:
    """Draw up to `budget` different configurations of a policy, as options that override its preset.

    The first configuration is empty. The next ones set each `target` of the grid that the preset does not
    have, the rest are random. A policy that is never tuned has the first one only.

    Args:
        policy: name of the policy, with or without preset.
        budget: number of configurations. Fewer are returned if the grid has fewer. The first one is returned
            with any budget.
        seed: seed of the random draws.
        grid: `{option: values}`. None takes the grid of the policy's record.

    Raises:
        PolicyError: the policy or an option is unknown, a value is out of range, or the grid is no mapping of
            names to lists of values.
    """
    if not tunable(policy):
        return [{}]
    record = policy_record(policy)
    space = record.tuning if grid is None else _checked_grid(policy, grid)
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

    # the target of the models matters most, so the other target is tried for every policy
    for target in space.get("target", ()):
        take({"target": target})
    generator = np.random.Generator(
        np.random.PCG64(int(stream_key("tuning", random_key(record.name), int(seed))[0]))
    )
    for i in generator.permutation(len(every)):
        take(every[i])
    return chosen


def _checked_grid(policy: str, grid: Any) -> Mapping[str, Sequence[Any]]:
    """Return the grid of a policy.

    Raises:
        PolicyError: the grid is no mapping of names to lists of values. A text is no list.
    """
    if not isinstance(grid, Mapping):
        raise PolicyError(f"tune: grids[{policy!r}] is {grid!r:.80}, expected {{option: list of values}}")
    for option, values in grid.items():
        if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
            raise PolicyError(
                f"tune: grids[{policy!r}][{option!r}] is {values!r:.80}, expected a list of values: write "
                f"[{values!r:.80}] for a single one"
            )
    return grid


def tune(
    problem: ReplayProblem,
    policies: Sequence[str],
    rhos: float | Sequence[float] = RHOS,
    budget: int = 12,
    seed: int = 0,
    *,
    trials: int | None = None,
    fixed: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Choose settings of every tunable policy on a validation problem.

    A policy with the option `propensity` is replayed with `sampled`, which plays the same arms in less time,
    unless `fixed` or the configuration sets the option.

    Args:
        problem: the validation problem; the test problem must never be given.
        policies: names of policies. The result lists those that are never tuned in `untuned`.
        rhos: cost sensitivities to average over, or a single one.
        budget: number of configurations of each policy, its preset included.
        seed: seed of the random configurations and of the orders.
        trials: number of orders. None takes `trials_for`.
        fixed: `{policy: options}` that every configuration of the policy has, unless the configuration sets
            the option itself. They are no part of the chosen options.
        grids: `{policy: {option: values}}` to search instead of the grids of the catalog.
        progress: called with the finished share and a text after every configuration.

    Raises:
        PolicyError: an unknown policy, or none of them is ever tuned; no rho, or one out of range; a grid
            that does not list the values of an option; or `problem`, `seed` or `fixed` of a wrong type.

    Examples:
        >>> from cabs_core import synthetic_problem, tune
        >>> validation = synthetic_problem(n=100, K=3, d=4, name="validation")
        >>> found = tune(validation, ["lin_ucb", "ridge"], rhos=[300.0], budget=3, trials=2)
        >>> found.chosen["lin_ucb"]["configurations"], found.untuned
        (3, {'ridge': 'its record has no settings to tune'})
    """
    if isinstance(policies, str):
        policies = (policies,)
    if not isinstance(problem, ReplayProblem):
        raise PolicyError(f"tune takes a ReplayProblem, not {type(problem).__name__}")
    grid = rho_grid("tune", rhos)
    if not grid:
        raise PolicyError("tune: rhos is empty, expected at least one rho to average over")
    seed = states.whole_number("tune", "seed", seed, -(2**63), 2**63 - 1)
    for what, settings in (("fixed", fixed), ("grids", grids)):
        if settings is not None and not isinstance(settings, Mapping):
            raise PolicyError(f"tune: {what} is {settings!r:.80}, expected a mapping with names of policies")
    for policy, options in (fixed or {}).items():
        if not isinstance(options, Mapping):
            raise PolicyError(f"tune: fixed[{policy!r}] is {options!r:.80}, expected {{option: value}}")
    reasons_of = {policy: why_untuned(policy) for policy in dict.fromkeys(policies)}
    result = TuningResult(untuned={policy: reason for policy, reason in reasons_of.items() if reason})
    names = [policy for policy, reason in reasons_of.items() if not reason]
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in result.untuned.items()) or "no policy is named"
        raise PolicyError(f"there is nothing to tune. {reasons}")
    if trials is None:
        trials = trials_for(problem.n)
    for number, policy in enumerate(names):
        begin = time.perf_counter()
        extra = dict((fixed or {}).get(policy, {}))
        if "propensity" in policy_class(policy).settings_for(split_name(policy)[0]).model_fields:
            extra.setdefault("propensity", "sampled")
        tried: list[_Tried] = []
        candidates = configurations(policy, budget, seed, (grids or {}).get(policy))
        for step, options in enumerate(candidates):
            runs = [
                replay(problem, policy, rho=rho, trials=trials, seed=seed, options={**extra, **options})
                for rho in grid
            ]
            tried.append(_Tried.of(options, runs, problem.n))
            if progress is not None:
                progress(
                    (number + (step + 1) / len(candidates)) / len(names),
                    f"tuning {policy}: {step + 1} of {len(candidates)}",
                )
        result.tried.extend(
            {
                "policy": policy,
                "options": configuration.options,
                "utility": configuration.utility,
                "by_rho": configuration.by_rho,
            }
            for configuration in tried
        )
        result.chosen[policy] = _choice(tried, problem) | {"seconds": time.perf_counter() - begin}
    return result


@dataclass(frozen=True)
class _Tried:
    """A configuration with its mean utilities.

    Attributes:
        options: options that override the preset.
        by_trial: `[trials]` mean utility of each trial over the rhos and the queries.
        by_query: `[n]` mean utility of each query over the rhos and the trials; 0 for queries that were not
            played.
        by_rho: mean utility at each rho over the trials and the queries.
    """

    options: dict[str, Any]
    by_trial: np.ndarray
    by_query: np.ndarray
    by_rho: list[float]

    @classmethod
    def of(cls, options: dict[str, Any], runs: Sequence[ReplayResult], n: int) -> Self:
        """Summarise the replays of a configuration, one a rho, over n queries."""
        return cls(
            options=options,
            by_trial=np.stack([run.utilities() for run in runs]).mean(axis=0),
            by_query=_mean_by_query(runs, n),
            by_rho=[float(run.rewards.mean()) for run in runs],
        )

    @property
    def utility(self) -> float:
        """Mean utility over trials and rhos."""
        return float(self.by_trial.mean())


def _choice(tried: Sequence[_Tried], problem: ReplayProblem) -> dict[str, Any]:
    """Return the entry of `TuningResult.chosen` without `seconds`, for the best configuration or the preset.

    The preset is the first of `tried`. The best configuration is chosen if its lead exceeds one standard
    error.
    """
    preset = tried[0]
    best = tried[int(np.argmax([configuration.utility for configuration in tried]))]
    gain_by_trial = best.by_trial - preset.by_trial
    gain_by_query = best.by_query - preset.by_query
    lead = float(gain_by_trial.mean())
    lead_se = mean_error(gain_by_query, clusters=problem.clusters, trials=gain_by_trial).value
    if best is not preset and lead > lead_se:
        winner = best
    else:
        winner = preset
    return {
        "options": winner.options,
        "utility": winner.utility,
        "preset_utility": preset.utility,
        "best_utility": best.utility,
        "lead": lead,
        "lead_se": lead_se,
        "configurations": len(tried),
    }


def _mean_by_query(runs: Sequence[ReplayResult], n: int) -> np.ndarray:
    """Mean utility `[n]` of each query over all its plays; 0 for queries that were not played."""
    total = np.zeros(n)
    count = np.zeros(n)
    for run in runs:
        np.add.at(total, run.order.ravel(), run.rewards.ravel())
        np.add.at(count, run.order.ravel(), 1)
    return total / np.maximum(count, 1)


def search_rhos(grid: Sequence[float]) -> list[float]:
    """Choose the rhos of a pool's grid that the search uses, ascending.

    On the paper's grid they are the nearest ones to `RHOS`, the smaller one of two equally near. On other
    grids they are the middle rho of each of the regimes low, medium and high (`base.catalog.regimes`), the
    larger one of two middle ones.
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
    """Tune a pool's policies with the pool's budget; return `TuningResult.chosen`.

    The rhos are those of `search_rhos`. The result is empty if the budget is 0 or no policy can be tuned.
    """
    names = [name for name in pool.policies if tunable(name)]
    if not pool.tuning_budget or not names:
        return {}
    found = tune(
        problem,
        names,
        rhos=search_rhos(pool.replay.rhos),
        budget=pool.tuning_budget,
        seed=pool.replay.order_seed,
        progress=progress,
    )
    return found.chosen
