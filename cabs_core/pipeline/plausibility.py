"""Oddities of a replay, from its figures and those of related policies at the same (pool, rho)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cabs_core.base.catalog.policies import policy_record, split_name
from cabs_core.base.catalog.roles import RANDOM

if TYPE_CHECKING:
    from cabs_core.pipeline.stages.replay import ReplaySummary

#: How far the mean utility of CABS-D may lie below its better expert's before there is a warning.
EXPERT_TOLERANCE = 0.02


def oddities(policy: str, cells: Mapping[str, ReplaySummary]) -> list[str]:
    """Return warnings about one policy of a partition. Empty if nothing is odd.

    There is a warning for each of these findings:

    * Some rounds were played from a solution without certificate.
    * The mean utility is below that of random play.
    * The policy learns, and every round of every trial played the same arm.
    * The mean utility is more than `EXPERT_TOLERANCE` below that of the best of the policy's experts.
    * The policy sees the rewards of all arms, and its mean utility is below that of the policy with the same
      learner and bandit feedback.

    A difference of utilities counts only beyond two standard errors. The standard errors treat the two
    policies as independent, which for paired trials is too wide rather than too narrow.

    Args:
        policy: name of the policy, a key of `cells`.
        cells: {policy: summary of its replay} of the partition. An expert, or a policy with bandit feedback,
            that is not in the partition is not compared.
    """
    replayed = cells[policy]
    base, preset = split_name(policy)
    record = policy_record(base)
    warnings: list[str] = []
    if replayed.uncertified:
        warnings.append(f"{replayed.uncertified} rounds were played from a solution without certificate")
    if base != RANDOM and replayed.utility + 2 * replayed.error < replayed.random_utility:
        warnings.append(
            f"utility {replayed.utility:.4f} is below that of random play, {replayed.random_utility:.4f}"
        )
    if record.learns and replayed.arms_played == 1:
        warnings.append("every round of every trial played the same arm")

    def related(name: str) -> ReplaySummary | None:
        if preset in policy_record(name).presets[1:]:
            same = f"{name}@{preset}"
        else:
            same = name
        return cells.get(same) or cells.get(name)

    experts = [cell for cell in map(related, record.experts) if cell]
    if experts:
        best = max(experts, key=lambda cell: cell.utility)
        if replayed.utility + EXPERT_TOLERANCE + _margin(replayed, best) < best.utility:
            warnings.append(
                f"utility {replayed.utility:.4f} is more than {EXPERT_TOLERANCE} below the better expert's, "
                f"{best.utility:.4f}"
            )
    if record.bandit:
        bandit = related(record.bandit)
    else:
        bandit = None
    if bandit and replayed.utility + _margin(replayed, bandit) < bandit.utility:
        warnings.append(
            f"with full feedback utility is {replayed.utility:.4f}, with bandit feedback "
            f"{bandit.utility:.4f}: the same learner does worse with more information"
        )
    return warnings


def _margin(one: ReplaySummary, other: ReplaySummary) -> float:
    """Return two standard errors of the difference of two policies' utilities, taken as independent."""
    return float(2 * (one.error**2 + other.error**2) ** 0.5)
