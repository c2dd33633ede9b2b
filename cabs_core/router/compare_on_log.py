"""Champion and challenger on a log: the doubly robust difference of two routers on held-out decisions.

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
from cabs_core.router.promotion import Comparison, judge

#: the log cannot tell where it never plays more than this share of what two policies differ in
NEVER_PLAYED = 0.01


def compare_on_log(
    champion: str | Path,
    challenger: str | Path,
    prompts: Sequence[str],
    data: LoggedData,
    *,
    margin: float = MARGIN,
) -> Comparison:
    """Challenger minus champion at the challenger's rho, without learning and exploration.

    Args:
        prompts: texts of the log's decisions, which neither has learnt from.
        margin: largest loss of utility a request that is accepted.

    Raises:
        RouterError: the bundles route between other models, or the log cannot tell.
    """
    rho = read_manifest(challenger).rho
    old, new = (_probabilities(folder, prompts, data, rho) for folder in (champion, challenger))
    return compare_policies(data, old, new, rho, margin=margin)


def compare_policies(
    data: LoggedData,
    old: np.ndarray,
    new: np.ndarray,
    rho: float,
    *,
    margin: float = MARGIN,
) -> Comparison:
    """The doubly robust difference of two policies, `new` less `old`, and whether it is at least -margin.

    The estimate is linear in the probabilities, so what both play alike costs no certainty:
    a log that is too short for either alone may do for their difference.

    Args:
        old, new: [n, today's arms] probabilities. margin: as in `compare_on_log`.

    Raises:
        RouterError: the log has no propensities, is deterministic, or never plays what they differ in.
    """
    n, every = len(data), np.arange(len(data))
    if data.propensities is None:
        raise RouterError(
            "the log has no propensities, and no error is known for estimated ones: "
            "log the probability of every decision"
        )
    old, new = data.of_all(old), data.of_all(new)
    gap = new - old
    clusters = data.dependent()
    fold, utilities = folds(clusters), clipped_utility(data.scores, data.costs, rho)
    q = model_of(data, utilities, fold, data.adaptive)
    error = utilities - q[every, data.actions]
    share = data.shares
    values = [
        data.mean(direct(p, q) + weights(p, data.actions, data.propensities) * error) for p in (old, new)
    ]
    apart = np.abs(gap).sum(axis=1) / 2.0
    differing = data.mean(apart)
    differ_error = mean_error(share * apart + (1.0 - share) * differing, clusters=clusters)
    most = share_interval(differing, differ_error, LEVEL)[1]
    if most <= margin:  # whatever the models are worth: a decision is worth 0 to 1
        differs = percentage(differing, 2)
        reason = f"the routers differ in {differs} of {n} decisions, so by at most {most:.4f}"
        return Comparison(
            n, values[0], values[1], values[1] - values[0], most, -most, most, margin, n, True, reason
        )
    never = np.zeros_like(gap) if data.pmf is None else gap * (data.pmf <= 0.0)
    if data.mean(np.abs(never).sum(axis=1)) > NEVER_PLAYED:
        raise RouterError("the log cannot tell: it never plays some of what the routers differ in")
    if (data.propensities >= 1.0 - 1e-9).all():
        raise RouterError(
            "the log cannot tell: it is deterministic. Log with exploration (epsilon of 0.1 or more)"
        )
    factor = weights(gap, data.actions, data.propensities)
    here = data.expected_pmf
    square, size = second_moment(gap, here, share), effective_size(gap, here, share)
    if data.pmf is None:  # a model's word is not enough, and what was hardly drawn says nothing
        differ = 2.0 * differing
        drawn = min(1.0, data.mean(np.abs(factor)) / differ)
        size = min(size, drawn * n * differ**2 / max(float(((share * factor) ** 2).mean()), 1e-12))
    # what is never played may earn anything from 0 to 1: how much less, and more, than its model says
    gained, lost = np.maximum(never, 0.0), np.maximum(-never, 0.0)
    worth = np.clip(q, 0.0, 1.0)
    unknown = tuple(data.mean((gained * a + lost * (1.0 - a)).sum(axis=1)) for a in (worth, 1.0 - worth))
    # what was not seen can matter only where they differ
    model = share * direct(gap, q) + (1.0 - share) * (values[1] - values[0])
    gap_error = error_of(model, share * factor, error, clusters, square, size, cautious=True)
    half = half_width(gap_error, largest=2.0 * differing, sequence_at=n if data.adaptive else None)
    fixed = float(special.stdtrit(gap_error.degrees, 1.0 - LEVEL / 2.0))
    width = sequence_half_width if data.adaptive else lambda _: fixed
    return judge(
        values[0],
        values[1],
        values[1] - values[0],
        gap_error.value,
        n,
        margin,
        half_width=width,
        least=n * LEAST / max(size, 1e-9),
        reach=(half, half),
        how="doubly robust",
        unknown=(unknown[0], unknown[1]),
    )


@one_blas_thread()
def _probabilities(folder: str | Path, prompts: Sequence[str], data: LoggedData, rho: float) -> np.ndarray:
    """`[n, K]` of a bundle's policy as it stands, in the order of the log's arms."""
    bundle = Bundle.read(folder)
    policy, names = bundle.policy, bundle.manifest.names
    if set(names) != set(data.today):
        of = ", ".join(data.today)
        raise RouterError(f"{folder} routes between {', '.join(names)}; the log is of {of}")
    columns = [names.index(arm) for arm in data.today]
    served = rho if policy.algorithm.any_rho_now() else None
    lengths = np.array([len(text) for text in prompts], dtype=np.float64)
    requests = bundle.heads.requests(bundle.encoder.encode(list(prompts)), lengths)
    return np.array([policy.decide(replace(request, rho=served)).pmf[columns] for request in requests])
