"""Stage `tuning`: settings of every policy chosen on the validation problem, the same budget for each."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.units import percentage
from cabs_core.data.inputs import fold_folder, folds_of, plain
from cabs_core.evaluation.replay.compile_ahead import as_compiled, start_compiling
from cabs_core.evaluation.replay.tuning import tunable, tune_policies
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target

#: files of a fold: {policy: its chosen options and their lead}, and {policy: seconds of its tuning}
CHOSEN = "tuning.json"
TIMES = "timing.json"
_EVERY_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class TuningSummary(Summary):
    """Summary of the settings that were chosen for the policies.

    Attributes:
        tuned: number of policies, with or without a grid, that were not kept from an earlier tuning.
        choices: a row for each fold and policy with a grid.
    """

    tuned: int
    choices: list[dict[str, Any]]

    def shown(self) -> dict[str, Any]:
        """Return the figures to show: number of policies with a grid, `tuned`, and `choices` as the table."""
        policies = {row["policy"] for row in self.choices}
        return {"policies": len(policies), "tuned now": self.tuned, "table": self.choices}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> TuningSummary:
    """Tune the policies whose code or inputs changed, in every fold; keep what was chosen for the others.

    With `options.force` all policies are tuned. The chosen settings and the seconds of each policy's tuning
    are written to `folder`.
    """
    keeps = () if options.force else _still_valid(chain, target)
    missing = tuple(p for p in chain.pool.policies if p not in keeps)
    # an object store has no folder of a tuning that was never made
    if keeps:
        before = chain.store.folder(target.parts)
    else:
        before = folder
    choices: list[dict[str, Any]] = []
    settings: dict[str, list[Any]] = {}
    folds = folds_of(inputs["replay_problem"])
    for fold in range(folds):
        chosen, seconds = _read(fold_folder(before, fold), keeps)
        if missing:
            problem = ReplayProblem.load(fold_folder(inputs["replay_problem"], fold) / "validation")
            if fold == 0:
                start_compiling(chain.pool.policies, problem.K, options.notify)
            tell = _tell(options, sum(map(tunable, missing)), fold, folds)
            for policy in as_compiled(missing):
                pool = chain.pool.model_copy(update={"policies": (policy,)})
                tuned = tune_policies(problem, pool, progress=tell)
                seconds |= {name: entry.pop("seconds") for name, entry in tuned.items()}
                chosen |= json.loads(json.dumps(tuned))
        chosen = {policy: chosen[policy] for policy in chain.pool.policies if policy in chosen}
        place = fold_folder(folder, fold)
        place.mkdir(exist_ok=True)
        for name, content in ((CHOSEN, chosen), (TIMES, seconds)):
            (place / name).write_text(json.dumps(content, sort_keys=True, indent=1), encoding="utf-8")
        choices += [_row(policy, entry, fold if folds > 1 else None) for policy, entry in chosen.items()]
        for policy, entry in chosen.items():
            settings.setdefault(policy, []).append(plain(entry["options"]))
    return TuningSummary(
        tuned=len(missing),
        choices=choices,
        parts={p: _digest(found if folds > 1 else found[0]) for p, found in settings.items()},
    )


def _row(policy: str, entry: dict[str, Any], fold: int | None) -> dict[str, Any]:
    """Return a row of `TuningSummary.choices`, which names the fold, from 1, if there are several."""
    numbered = {} if fold is None else {"fold": fold + 1}
    return {
        **numbered,
        "policy": policy,
        "options": json.dumps(plain(entry["options"])),
        "configurations": entry["configurations"],
        "utility": entry["utility"],
        "lead": entry["lead"],
        "lead_se": entry["lead_se"],
    }


def _tell(options: Options, policies: int, fold: int, folds: int) -> Callable[[float, str], None]:
    """Return a function that reports the progress of tuning when a policy begins, then every ten seconds.

    The function takes the finished share of one policy's tuning and a text, which begins with the policy.
    Between two reports on a policy it does nothing.

    Args:
        policies: number of policies that are tuned one after another.
    """
    last: dict[str, float] = {}
    if folds > 1:
        of_fold = f", fold {fold + 1} of {folds}"
    else:
        of_fold = ""

    def tell(done: float, text: str) -> None:
        now = time.monotonic()
        policy = text.partition(":")[0]
        if policy not in last or now - last[policy] > _EVERY_SECONDS:
            last[policy] = now
            share = (len(last) - 1 + done) / policies
            options.notify(f"{text} configurations ({percentage(share)} of the tuning{of_fold})")

    return tell


def _digest(options: Any) -> str:
    """Return a hash of tuned settings."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def _still_valid(chain: Chain, target: Target) -> tuple[str, ...]:
    """Return the policies whose entries of an earlier tuning hold.

    An entry holds if validation problem, budget, tuning code and the policy's own code did not change, and
    the files of the earlier tuning are not damaged.
    """
    status = chain.status(target)
    record = status.record
    recipe = status.recipe
    if record is None or recipe is None or chain.store.damage(target.parts, record):
        return ()
    old = record.config
    new = recipe.config
    shared = {name for name in {*old, *new} if not name.startswith("policy ")}
    if (record.inputs, record.code_version) != (recipe.inputs, recipe.code_version) or any(
        old.get(name) != new.get(name) for name in shared
    ):
        return ()
    return tuple(p for p in chain.pool.policies if old.get(f"policy {p}") == new[f"policy {p}"])


def _read(folder: Path, policies: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return ({policy: its entry}, {policy: seconds}) of these policies from an earlier tuning of a fold."""
    if not policies:
        return {}, {}
    chosen = json.loads((folder / CHOSEN).read_text(encoding="utf-8"))
    seconds = json.loads((folder / TIMES).read_text(encoding="utf-8"))
    kept = {p: chosen[p] for p in policies if p in chosen}
    return kept, {p: seconds[p] for p in policies if p in seconds}
