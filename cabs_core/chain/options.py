"""Options that several commands share: pool, rhos, policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cabs_core.catalog import REGIMES, check_policy_name, regime_of
from cabs_core.errors import PoolError
from cabs_core.pools.completion import complete_policies, complete_pool

if TYPE_CHECKING:
    from cabs_core.pool_files import ModelPool

Command = TypeVar("Command", bound=Callable[..., Any])


def pool_option(text: str) -> Callable[[Command], Command]:
    """The option `--pool NAME`."""
    return click.option("--pool", metavar="NAME", shell_complete=complete_pool, help=text)


pool_argument = click.argument("name", required=False, shell_complete=complete_pool)
policies_option = click.option(
    "--policies", metavar="NAMES", shell_complete=complete_policies,
    help="Policies, such as lin_ucb,cabs_d_linear@literal. Default: all of the pool's.",
)  # fmt: skip


def pool_name(argument: str | None, option: str | None) -> str:
    """The pool that was named, as `NAME` or as `--pool NAME`."""
    if argument and option and argument != option:
        raise click.UsageError(f"two pools are named: {argument} and {option}")
    if not (argument or option):
        raise click.UsageError("name a pool: --pool NAME (`cabs pool list` shows them)")
    return argument or option or ""


def parse_rhos(text: str | None, allowed: tuple[float, ...]) -> tuple[float, ...]:
    """`"0,50,900"` or `"low"` / `"medium"` / `"high"` as rhos of the pool; () without a text, which means all."""
    if not text:
        return ()
    found: list[float] = []
    for word in text.replace(" ", "").split(","):
        if word in REGIMES:
            found += [rho for rho in allowed if regime_of(rho, allowed) == word]
            continue
        try:
            rho = float(word)
        except ValueError:
            raise click.BadParameter(
                f"{word!r} is not a number; write --rho 0,50,900 or --rho low,high"
            ) from None
        if rho not in allowed:
            raise PoolError(
                f"rho {rho:g} is not among the pool's replay.rhos: {', '.join(f'{r:g}' for r in allowed)}"
            )
        found.append(rho)
    return tuple(sorted(set(found)))


def parse_policies(text: str | None, pool: ModelPool) -> tuple[str, ...]:
    """`"lin_ucb,cabs_mix"` as policies of the pool, each checked; () without a text, which means all."""
    chosen = tuple(check_policy_name(word) for word in (text or "").replace(" ", "").split(",") if word)
    for name in chosen:
        if name not in pool.policies:
            raise click.BadParameter(
                f"{name} is not among the policies of pool {pool.name}: {', '.join(pool.policies)}. "
                "Add it to the pool file."
            )
    return chosen
