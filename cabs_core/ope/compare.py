"""Champion and challenger on a log: the doubly robust difference of two routers, as they stand, on held-out decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cabs_core.errors import RouterError
from cabs_core.ope.data import LoggedData
from cabs_core.ope.estimators import doubly_robust, weights
from cabs_core.ope.evaluate import evaluate
from cabs_core.ope.models import folds, outcome_model, propensity_model
from cabs_core.oracles.oracles import Oracles
from cabs_core.policies import load_policy
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import Comparison
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.heads import Heads, needs_of
from cabs_core.threads import one_blas_thread
from cabs_core.utility import clipped_utility


def compare_on_log(
    champion: str | Path, challenger: str | Path, prompts: Sequence[str], data: LoggedData
) -> Comparison:
    """Challenger minus champion at the challenger's rho, without learning and exploration; errors are over prompts.

    Args:
        prompts: texts of the log's decisions, which neither has learnt from.

    Raises:
        RouterError: the bundles route between other models, or the log cannot tell.
    """
    rho = read_manifest(challenger).rho
    old, new = (_probabilities(folder, prompts, data, rho) for folder in (champion, challenger))
    found = [evaluate(data, target, rho, samples=2) for target in (old, new)]
    if refused := next((e.refused for e in found if e.refused), ""):
        raise RouterError(f"the log cannot tell: {refused}")
    fold, n = folds(data.groups), len(data)
    propensities = data.propensities
    if propensities is None:
        mu = propensity_model(data.features, data.actions, len(data.arms), fold)
        propensities = mu[np.arange(n), data.actions]
    utilities = clipped_utility(data.scores, data.costs, rho)
    q = outcome_model(data.features, data.actions, utilities, len(data.arms), fold)
    gap = new - old  # the estimate is linear in the probabilities
    lead = doubly_robust(gap, weights(gap, data.actions, propensities), data.actions, utilities, q)
    mean = float(lead.mean())
    groups = np.unique(data.groups, return_inverse=True)[1]
    by_prompt = np.bincount(groups, weights=lead - mean)
    se = float(np.sqrt((by_prompt**2).sum() * len(by_prompt) / max(len(by_prompt) - 1, 1))) / n
    low, high = mean - 1.96 * se, mean + 1.96 * se
    values = [e.row("dr").value for e in found]
    reason = (
        f"utility {values[1]:.4f} against {values[0]:.4f}, estimated from {n} held-out decisions: {mean:+.4f} ± {se:.4f} "
        f"(doubly robust); {'not worse beyond noise' if high >= 0.0 else 'worse beyond noise: the champion stays'}"
    )
    return Comparison(n, values[0], values[1], mean, se, low, high, bool(high >= 0.0), reason)


@one_blas_thread()
def _probabilities(folder: str | Path, prompts: Sequence[str], data: LoggedData, rho: float) -> np.ndarray:
    """`[n, K]` of a bundle's policy as it stands, in the order of the log's arms."""
    manifest = read_manifest(folder)
    if set(manifest.names) != set(data.arms):
        raise RouterError(
            f"{folder} routes between {', '.join(manifest.names)}; the log is of {', '.join(data.arms)}"
        )
    policy = load_policy(Path(folder) / "policy")
    heads = Heads(Oracles.load(Path(folder) / "oracles"), needs_of(policy))
    encoder = TextEncoder(manifest.encoder, manifest.identity, folder)
    columns = [manifest.names.index(arm) for arm in data.arms]
    served = rho if policy.any_rho_now() else None
    lengths = np.array([len(text) for text in prompts], dtype=np.float64)
    requests = heads.requests(encoder.encode(list(prompts)), lengths)
    return np.array([policy.decide(replace(request, rho=served)).pmf[columns] for request in requests])
