"""One registry of all policies; classes are imported when first built, so that the registry stays light."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cabs_core.errors import PolicyError, ProvenanceError
from cabs_core.policies.names import POLICY_NAMES, PRESETS, all_policies, split_name

_STATIC = "cabs_core.policies.static"
_CLASSES = {
    "random": f"{_STATIC}:RandomPolicy",
    "best_single": f"{_STATIC}:BestSingle",
    "oracle_best": f"{_STATIC}:OracleBest",
    "knn": f"{_STATIC}:Predicted",
    "ridge": f"{_STATIC}:Predicted",
    "kernel": f"{_STATIC}:Predicted",
    "carrot": f"{_STATIC}:Carrot",
    "epsilon_greedy": "cabs_core.policies.linear.bandits:LinearBandit",
    "square_cb": "cabs_core.policies.linear.bandits:LinearBandit",
    "lin_ucb": "cabs_core.policies.linear.bandits:LinearBandit",
    "lin_ts": "cabs_core.policies.linear.bandits:LinearBandit",
    "lin_ucb_full": "cabs_core.policies.linear.full_feedback:FullFeedback",
    "cabs_c_linear": "cabs_core.policies.cabs:CabsC",
    "cabs_d_linear": "cabs_core.policies.cabs:CabsD",
    "cabs_mix": "cabs_core.policies.mix:CabsMix",
    "hier_mix": "cabs_core.policies.hier_mix:HierMix",
    "neural_ucb": "cabs_core.policies.neural.policy:NeuralUCB",
    "neural_ucb_full": "cabs_core.policies.neural.policy:NeuralUCB",
    "cabs_c_neural": "cabs_core.policies.neural.cabs:CabsCNeural",
    "cabs_d_neural": "cabs_core.policies.neural.cabs:CabsDNeural",
}


def policy_class(name: str) -> type:
    """The class that implements a policy name. Raises PolicyError for unknown names."""
    base, _ = split_name(name)
    module, _, attribute = _CLASSES[base].partition(":")
    return getattr(importlib.import_module(module), attribute)


class _Registry(Mapping[str, type]):
    """name -> class, for every policy name; presets are written name@preset and share the class."""

    def __getitem__(self, name: str) -> type:
        try:
            return policy_class(name)
        except PolicyError as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(POLICY_NAMES)

    def __len__(self) -> int:
        return len(POLICY_NAMES)

    def __contains__(self, name: object) -> bool:
        try:
            split_name(str(name))
        except PolicyError:
            return False
        return True


POLICIES = _Registry()


def build_policy(
    name: str,
    *,
    arms: Sequence[str],
    dim: int = 0,
    rho: float = 0.0,
    offline=None,
    horizon: int | None = None,
    seed: int = 0,
    keys=None,
    share: float = 1.0,
    **options: Any,
):
    """A policy before its first round.

    Args:
        name: `name` or `name@preset`.
        arms: names of the K arms; dim: number of context features d; rho: cost sensitivity.
        offline: `Offline` train split, for policies that start from it (static, warm, mixtures).
        horizon: expected number of rounds, where a setting depends on it (default 10,000).
        seed / keys: seed of its random streams, or the keys themselves (`rng.stream_keys`).
        share: how binary the scores are (`utility.binary_share`).
        **options: overrides of the preset's settings.

    Raises:
        PolicyError: unknown policy, preset or option, or a value out of range.
    """
    return policy_class(name)(
        name, arms=arms, dim=dim, rho=rho, offline=offline, horizon=horizon, seed=seed, keys=keys, share=share,
        options=options,
    )  # fmt: skip


def load_policy(folder: str | Path):
    """The policy that `save` wrote into `folder`, of whichever class."""
    try:
        name = json.loads((Path(folder) / "policy.json").read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError) as error:
        raise ProvenanceError(f"{folder}: cannot be read as a saved policy ({error!r})") from None
    return policy_class(name).load(folder)


__all__ = ["POLICIES", "PRESETS", "all_policies", "build_policy", "load_policy", "policy_class"]
