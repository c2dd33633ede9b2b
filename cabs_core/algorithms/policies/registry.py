"""Building and loading of policies by name. A policy's class is imported when it is first needed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from cabs_core.algorithms.policies.play import Stream
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.request import Offline
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.policies.state import load, read_header
from cabs_core.base.catalog.policies import policy_record, random_key
from cabs_core.base.errors import PolicyError, ProvenanceError
from cabs_core.base.streams import stream_keys


def policy_class(name: str) -> type[Policy]:
    """Return the class that implements a policy; raise PolicyError if the name is unknown.

    The name may carry a preset. A plug-in whose class is no `Policy` is refused by a PolicyError too.
    """
    cls = resolve_name(policy_record(name).path)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise PolicyError(f"policy {name!r}: {policy_record(name).path} is no subclass of cabs_core.Policy")
    return cls


def build_policy(
    name: str,
    *,
    arms: Sequence[str],
    dim: int = 0,
    rho: float = 0.0,
    offline: Offline | None = None,
    horizon: int | None = None,
    seed: int = 0,
    keys: np.ndarray | None = None,
    binary_share: float = 1.0,
    **options: Any,
) -> SafePolicy:
    """Build a policy before its first round.

    Args:
        name: `name` or `name@preset`.
        arms: names of the K arms; dim: number of context features d; rho: score units per USD.
        offline: `Offline` train split, for policies that start from it (static, warm, mixtures).
        horizon: expected number of rounds, where a setting depends on it (default 10,000).
        seed, keys: seed of the policy's random streams, or the keys themselves (`streams.stream_keys`).
        binary_share: how binary the scores are, from 0 to 1 (`base.utility.binary_share`).
        **options: options of the policy whose values differ from the preset's.

    Raises:
        PolicyError: unknown policy, preset or option, or a value out of range.

    Examples:
        >>> from cabs_core import build_policy
        >>> policy = build_policy("lin_ucb@warm", arms=["a", "b"], dim=4, rho=300.0, alpha=0.2, warm=0.0)
        >>> policy.name, policy.settings.alpha
        ('lin_ucb@warm', 0.2)
        >>> build_policy("lin_ucb", arms=["a", "b"], dim=4, alpha=-1.0)
        Traceback (most recent call last):
        cabs_core.base.errors.PolicyError: lin_ucb: option alpha: Input should be greater ...
    """
    algorithm = policy_class(name)(
        name,
        arms=arms,
        dim=dim,
        rho=rho,
        offline=offline,
        horizon=horizon,
        seed=seed,
        keys=keys,
        binary_share=binary_share,
        options=options,
    )
    return SafePolicy(algorithm)


def policy_of_trial(
    stream: Stream,
    name: str,
    *,
    seed: int,
    pool: str = "",
    trial: int = 0,
    horizon: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> SafePolicy:
    """Build the policy of one trial of a replay, before its first round.

    The policy is that of `build_policy` for the arms, contexts, rho and train split of a stream.

    Args:
        seed, pool, trial: with the policy's name and rho, they determine its random streams.
        horizon: expected number of rounds. options: options whose values differ from the preset's.

    Raises:
        PolicyError: as in `build_policy`.
    """
    algorithm = policy_class(name)(
        name,
        arms=stream.arms,
        dim=stream.shape[2],
        rho=stream.rho,
        offline=stream.offline,
        horizon=horizon,
        keys=stream_keys(seed, pool, random_key(name), f"{stream.rho:g}", trial),
        binary_share=stream.share,
        options=options,
    )
    return SafePolicy(algorithm)


def load_policy(folder: str | Path) -> SafePolicy:
    """Load the policy that `save` wrote to `folder`, with its learnt state; the files name its class.

    Raises:
        ProvenanceError: the folder holds no saved policy, or a file is damaged or missing.

    Examples:
        >>> import tempfile
        >>> from cabs_core import build_policy, load_policy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = build_policy("epsilon_greedy", arms=["a", "b"], dim=2).save(f"{folder}/policy")
        ...     print(load_policy(saved).arms)
        ['a', 'b']
    """
    name = read_header(folder)["name"]
    try:
        cls = policy_class(name)
    except PolicyError as error:
        raise ProvenanceError(f"{folder}: {str(error)[:400]}") from None
    return SafePolicy(*load(cls, folder))
