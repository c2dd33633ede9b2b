"""Stage `tuning`: settings of every policy chosen on the validation problem, the same budget for each."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.units import percentage
from cabs_core.data.inputs import plain
from cabs_core.evaluation.replay.compile_ahead import finish_compiling, start_compiling
from cabs_core.evaluation.replay.tuning import tune_policies
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target

_EVERY_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class TuningSummary(Summary):
    """`tuned`: number of policies tuned in this run; `choices`: a row for each policy with a grid."""

    tuned: int
    choices: list[dict[str, Any]]

    def shown(self) -> dict[str, Any]:
        return {"policies": len(self.choices), "tuned now": self.tuned, "table": self.choices}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> TuningSummary:
    """Tune the policies whose code or inputs changed; keep what was chosen for the others."""
    kept, seconds = ({}, {}) if options.force else _kept(chain, target)
    missing = tuple(p for p in chain.pool.policies if p not in kept)
    chosen = {policy: entry for policy, entry in kept.items() if entry}
    if missing:
        problem = ReplayProblem.load(inputs["replay_problem"] / "validation")
        start_compiling(chain.pool.policies, problem.K, options.notify)
        finish_compiling()
        pool = chain.pool.model_copy(update={"policies": missing})
        tuned = tune_policies(problem, pool, progress=_tell(options))
        seconds |= {policy: entry.pop("seconds") for policy, entry in tuned.items()}
        chosen |= json.loads(json.dumps(tuned))
    chosen = {policy: chosen[policy] for policy in chain.pool.policies if policy in chosen}
    for name, content in (("tuning.json", chosen), ("timing.json", seconds)):
        (folder / name).write_text(json.dumps(content, sort_keys=True, indent=1), encoding="utf-8")
    settings = {policy: plain(entry["options"]) for policy, entry in chosen.items()}
    return TuningSummary(
        tuned=len(missing),
        choices=[
            {
                "policy": policy,
                "options": json.dumps(settings[policy]),
                "configurations": entry["configurations"],
                "utility": entry["utility"],
                "lead": entry["lead"],
                "lead_se": entry["lead_se"],
            }
            for policy, entry in chosen.items()
        ],
        parts={policy: _digest(entry) for policy, entry in settings.items()},
    )


def _tell(options: Options) -> Callable[[float, str], None]:
    """Says how far it is when a policy begins, and every ten seconds."""
    last: dict[str, float] = {}

    def tell(done: float, text: str) -> None:
        now, policy = time.monotonic(), text.partition(":")[0]
        if policy not in last or now - last[policy] > _EVERY_SECONDS:
            last[policy] = now
            options.notify(f"{text} configurations ({percentage(done)} of the tuning)")

    return tell


def _digest(options: Any) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def _kept(chain: Chain, target: Target) -> tuple[dict[str, Any], dict[str, float]]:
    """({policy: its entry, or {} when it has nothing to tune}, seconds) of an earlier tuning.

    An entry holds while validation problem, budget, tuning code and the policy's own code are the same.
    """
    status = chain.status(target)
    record, recipe = status.record, status.recipe
    if record is None or recipe is None or chain.store.damage(target.parts, record):
        return {}, {}
    old, new = record.config, recipe.config
    shared = {name for name in {*old, *new} if not name.startswith("policy ")}
    if (record.inputs, record.code_version) != (recipe.inputs, recipe.code_version) or any(
        old.get(name) != new.get(name) for name in shared
    ):
        return {}, {}
    folder = chain.store.folder(target.parts)
    chosen = json.loads((folder / "tuning.json").read_text(encoding="utf-8"))
    seconds = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    same = [p for p in chain.pool.policies if old.get(f"policy {p}") == new[f"policy {p}"]]
    return {p: chosen.get(p, {}) for p in same}, {p: seconds[p] for p in same if p in seconds}
