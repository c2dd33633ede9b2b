"""Options that several commands share: pool, rhos, policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from cabs_core.base.catalog.policies import check_policy_name
from cabs_core.base.catalog.regimes import REGIMES, regime_of
from cabs_core.base.errors import PoolError
from cabs_core.data.pools.completion import complete_policies, complete_pool

if TYPE_CHECKING:
    from cabs_core.data.pool_files import ModelPool
    from cabs_core.pipeline.artifacts import Chain


def takes_pool(text: str, *, required: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator by which a command takes `pool`, as `NAME` or `--pool NAME`.

    Args:
        text: help of the option `--pool`.
        required: True makes a command without a pool wrong usage. Otherwise `pool` may be None.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("name", required=False, shell_complete=complete_pool)
        @click.option("--pool", metavar="NAME", shell_complete=complete_pool, help=text)
        @wraps(command)
        def named(name: str | None, pool: str | None, **options: Any) -> None:
            if name and pool and name != pool:
                raise click.UsageError(f"two pools are named: {name} and {pool}")
            if required and not (name or pool):
                raise click.UsageError("name a pool: --pool NAME (`cabs pool list` shows them)")
            command(pool=name or pool, **options)

        return named

    return decorate


policies_option = click.option(
    "--policies",
    metavar="NAMES",
    shell_complete=complete_policies,
    help="Policies, such as lin_ucb,cabs_d_linear@literal. Default: all of the pool's.",
)


def chain_of(pool: str) -> Chain:
    """Return the chain of a pool, retired or not: its stages, with the artifacts of each on this machine.

    Raises:
        PoolError: there is no such pool, or its file is invalid.
    """
    from cabs_core.data.pools.find import find_pool  # noqa: PLC0415  (`cabs --help` is quick)
    from cabs_core.pipeline.artifacts import ArtifactStore, Chain  # noqa: PLC0415  (the same)

    return Chain(ArtifactStore(), find_pool(pool))


def parse_rhos(text: str | None, allowed: tuple[float, ...]) -> tuple[float, ...]:
    """Return the rhos that a text names, sorted and without repeats. Empty for no text, which means all.

    Args:
        text: such as `0,50,900`, or regimes such as `low,high`.
        allowed: the rhos of the pool.

    Raises:
        click.BadParameter: a word is neither a number nor a regime.
        PoolError: the pool does not have the rho, or has no rho of the regime.
    """
    if not text:
        return ()
    rhos: list[float] = []
    for word in text.replace(" ", "").split(","):
        if word in REGIMES:
            of_regime = [rho for rho in allowed if regime_of(rho, allowed) == word]
            if not of_regime:
                raise PoolError(f"no rho of the pool's replay.rhos is {word}: {_listed(allowed)}")
            rhos += of_regime
            continue
        try:
            rho = float(word)
        except ValueError:
            raise click.BadParameter(
                f"{word!r} is not a number; write --rho 0,50,900 or --rho low,high"
            ) from None
        if rho not in allowed:
            raise PoolError(f"rho {rho:g} is not among the pool's replay.rhos: {_listed(allowed)}")
        rhos.append(rho)
    return tuple(sorted(set(rhos)))


def _listed(rhos: tuple[float, ...]) -> str:
    """Join rhos as `0, 50, 900`."""
    return ", ".join(f"{rho:g}" for rho in rhos)


def parse_policies(text: str | None, pool: ModelPool) -> tuple[str, ...]:
    """Return the policies of a pool that a text such as `lin_ucb,hier_mix` names.

    Empty for no text, meaning all.

    Raises:
        PolicyError: one of the names is no policy's.
        PoolError: the pool does not have one of the policies.
    """
    return chosen_policies((text or "").split(","), pool)


def chosen_policies(names: Iterable[str], pool: ModelPool) -> tuple[str, ...]:
    """Return the policies of a pool that have these names, as the pool file writes them.

    Spaces and empty names do not count.

    Raises:
        PolicyError, PoolError: as of `parse_policies`.
    """
    words = [name.replace(" ", "") for name in names]
    chosen = tuple(check_policy_name(word) for word in words if word)
    for name in chosen:
        if name not in pool.policies:
            raise PoolError(
                f"{name} is not among the policies of pool {pool.name}: {', '.join(pool.policies)}. "
                "Add it to the pool file."
            )
    return chosen
