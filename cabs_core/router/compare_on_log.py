"""Comparison of champion and challenger on a log, by the doubly robust difference on held-out decisions.

rho is in score units per USD.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import special

from cabs_core.base.errors import RouterError
from cabs_core.base.statistics.uncertainty import LEVEL, mean_error, share_interval
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility
from cabs_core.data.pool_files.sections import MARGIN
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.estimators import direct, weights
from cabs_core.evaluation.ope.evaluate import model_of
from cabs_core.evaluation.ope.intervals import (
    LEAST,
    effective_size,
    error_of,
    half_width,
    second_moment,
    sequence_half_width,
)
from cabs_core.evaluation.ope.models import folds
from cabs_core.router.bundle import read_manifest
from cabs_core.router.loaded import Bundle
from cabs_core.router.promotion import Comparison, Difference, judge

#: Difference in probability, summed over arms that the log never plays, from 0 to 2 and averaged over
#: decisions. If two policies differ by more on these arms, the log cannot tell.
NEVER_PLAYED = 0.01


def compare_on_log(
    champion: str | Path,
    challenger: str | Path,
    prompts: Sequence[str],
    data: LoggedData,
    *,
    margin: float = MARGIN,
) -> Comparison:
    """Compare two bundles on a log at the challenger's rho, without learning.

    The policies' own probabilities are compared, without the exploration floor that a router adds. Utility is
    judged at the challenger's rho, and each policy plays at it. A policy that cannot change rho while it
    serves plays at the rho that it was made for.

    Args:
        champion, challenger: folders of the bundles.
        prompts: texts of the log's decisions, from which neither bundle has learnt.
        data: the log's decisions.
        margin: largest loss of utility a request that is accepted.

    Raises:
        RouterError: a bundle routes between other models than the log, or the log cannot tell (see
            `compare_policies`).
    """
    rho = read_manifest(challenger).rho
    old = _probabilities(champion, prompts, data, rho)
    new = _probabilities(challenger, prompts, data, rho)
    return compare_policies(data, old, new, rho, margin=margin)


def compare_policies(
    data: LoggedData,
    old: np.ndarray,
    new: np.ndarray,
    rho: float,
    *,
    margin: float = MARGIN,
) -> Comparison:
    """Judge the doubly robust difference of two policies, `new` less `old`, by a margin.

    The estimate is linear in the probabilities, so plays that both policies share add no error. A log that is
    too short for either policy alone may be long enough for their difference. Policies that differ in so few
    decisions that `margin` cannot be lost pass without an estimate.

    Args:
        data: n decisions of a log.
        old, new: probabilities of today's arms, `[n, K]`.
        rho: score units per USD, at which utility is judged.
        margin: largest loss of utility a request that is accepted.

    Raises:
        RouterError: the log has no propensities. Moreover, unless the policies pass without an estimate: the
            log is deterministic, or the policies differ by more than `NEVER_PLAYED` in probability on arms
            that the log is known never to play.
    """
    n = len(data)
    if data.propensities is None:
        raise RouterError(
            "the log has no propensities, and no error is known for estimated ones: "
            "log the probability of every decision"
        )
    old = data.of_all(old)
    new = data.of_all(new)
    gap = new - old
    clusters = data.dependent()
    utilities = clipped_utility(data.scores, data.costs, rho)
    q = model_of(data, utilities, folds(clusters), data.adaptive)
    residuals = utilities - q[np.arange(n), data.actions]
    share = data.shares
    champion, challenger = (
        data.mean(direct(p, q) + weights(p, data.actions, data.propensities) * residuals) for p in (old, new)
    )
    # total variation distance of the two policies at every decision, and its mean
    distance = np.abs(gap).sum(axis=1) / 2.0
    differing = data.mean(distance)
    distance_error = mean_error(share * distance + (1.0 - share) * differing, clusters=clusters)
    most = share_interval(differing, distance_error, LEVEL)[1]
    if most <= margin:  # whatever the models are worth, since a decision is worth 0 to 1
        share_in_words = percentage(differing, 2)
        return Comparison(
            queries=n,
            champion=champion,
            challenger=challenger,
            difference=challenger - champion,
            se=most,
            low=-most,
            high=most,
            margin=margin,
            needed=n,
            promote=True,
            reason=f"the routers differ in {share_in_words} of {n} decisions, so by at most {most:.4f}",
        )
    if data.pmf is None:
        never_played = np.zeros_like(gap)
    else:
        never_played = gap * (data.pmf <= 0.0)
    if data.mean(np.abs(never_played).sum(axis=1)) > NEVER_PLAYED:
        raise RouterError("the log cannot tell: it never plays some of what the routers differ in")
    if (data.propensities >= 1.0 - 1e-9).all():
        raise RouterError(
            "the log cannot tell: it is deterministic. Log with exploration (epsilon of 0.1 or more)"
        )
    factor = weights(gap, data.actions, data.propensities)
    square = second_moment(gap, data.expected_pmf, share)
    size = effective_size(gap, data.expected_pmf, share)
    if data.pmf is None:  # the logged propensities alone prove little, and rarely drawn arms say nothing
        both = 2.0 * differing
        drawn = min(1.0, data.mean(np.abs(factor)) / both)
        size = min(size, drawn * n * both**2 / max(float(((share * factor) ** 2).mean()), 1e-12))
    # outside of what was seen only the difference of the policies matters
    model = share * direct(gap, q) + (1.0 - share) * (challenger - champion)
    gap_error = error_of(model, share * factor, residuals, clusters, square, size, cautious=True)
    half = half_width(gap_error, largest=2.0 * differing, sequence_at=n if data.adaptive else None)
    fixed = float(special.stdtrit(gap_error.degrees, 1.0 - LEVEL / 2.0))
    width = sequence_half_width if data.adaptive else lambda _: fixed
    difference = Difference(
        champion=champion,
        challenger=challenger,
        mean=challenger - champion,
        se=gap_error.value,
        decisions=n,
        half_width=width,
        least=n * LEAST / max(size, 1e-9),
        interval_distances=(half, half),
        method="doubly robust",
        unknown=_unknown(data, never_played, q),
    )
    return judge(difference, margin)


def _unknown(data: LoggedData, never_played: np.ndarray, q: np.ndarray) -> tuple[float, float]:
    """Return how much smaller and larger a difference may be because of arms that the log never plays.

    Such an arm may earn anything from 0 to 1, whatever its model says.

    Args:
        never_played: part of the difference in probabilities that the log never plays, `[n, K]`.
        q: modelled utilities, `[n, K]`.
    """
    gained = np.maximum(never_played, 0.0)
    lost = np.maximum(-never_played, 0.0)
    modelled = np.clip(q, 0.0, 1.0)
    rest = 1.0 - modelled
    smaller = data.mean((gained * modelled + lost * rest).sum(axis=1))
    larger = data.mean((gained * rest + lost * modelled).sum(axis=1))
    return smaller, larger


@one_blas_thread()
def _probabilities(folder: str | Path, prompts: Sequence[str], data: LoggedData, rho: float) -> np.ndarray:
    """Return the probabilities of a bundle's policy, without learning, `[n, K]` in the order of today's arms.

    A policy that cannot change rho while it serves plays at the rho that it was made for.

    Raises:
        RouterError: the bundle's models are not those of the log.
    """
    bundle = Bundle.read(folder)
    policy = bundle.policy
    names = bundle.manifest.names
    if set(names) != set(data.today):
        raise RouterError(
            f"{folder} routes between {', '.join(names)}; the log is of {', '.join(data.today)}: compare "
            "routers of the log's models"
        )
    columns = [names.index(arm) for arm in data.today]
    served = rho if policy.algorithm.any_rho_now() else None
    lengths = np.array([len(text) for text in prompts], dtype=np.float64)
    requests = bundle.heads.requests(bundle.encoder.encode(list(prompts)), lengths)
    return np.array([policy.decide(replace(request, rho=served)).pmf[columns] for request in requests])
