"""Shell completion of the names of pools and policies, for click's `shell_complete`.

Every command names these functions, so they import what they need when a shell asks.
"""

from typing import Any


def _pools() -> list[Any]:
    from cabs_core.data.pools.find import list_pools

    return [pool_file.pool for pool_file in list_pools()[0]]


def complete_pool(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Pools whose names begin with what was typed."""
    return [pool.name for pool in _pools() if pool.name.startswith(incomplete)]


def complete_policies(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """The last of the policies separated by commas: of the named pool's, or of all."""
    from cabs_core.base.catalog.policies import all_policies

    before, comma, last = incomplete.rpartition(",")
    # click may leave the arguments of an unfinished line unread, in ctx.args
    named = {ctx.params.get("pool"), ctx.params.get("name"), *ctx.args}
    known = [pool.policies for pool in _pools() if pool.name in named]
    names = known[0] if known else all_policies()
    taken = before.split(",")
    return [before + comma + name for name in names if name.startswith(last) and name not in taken]
