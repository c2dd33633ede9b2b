"""Shell completion of the names of pools and policies, for click's `shell_complete`.

Every command refers to these functions, so they import modules only when a shell asks for completions.
"""

from typing import Any


def _pools() -> list[Any]:
    """Return all valid pools."""
    from cabs_core.data.pools.find import list_pools

    return [pool_file.pool for pool_file in list_pools()[0]]


def complete_pool(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Return the names of pools that begin with the typed text."""
    return [pool.name for pool in _pools() if pool.name.startswith(incomplete)]


def complete_policies(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Return completions of the last name in a list of policies separated by commas.

    If the command line names a valid pool, the policies are those of the pool, otherwise all policies of the
    catalog. Policies that are in the list already are left out.
    """
    from cabs_core.base.catalog.policies import all_policies

    before, comma, last = incomplete.rpartition(",")
    # click may leave the arguments of an unfinished line unread, in ctx.args
    named = {ctx.params.get("pool"), ctx.params.get("name"), *ctx.args}
    known = [pool.policies for pool in _pools() if pool.name in named]
    names = known[0] if known else all_policies()
    taken = before.split(",")
    return [before + comma + name for name in names if name.startswith(last) and name not in taken]
