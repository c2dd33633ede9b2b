"""Shell completion of the names of pools and policies, for click's `shell_complete`."""

from __future__ import annotations

from typing import Any

from cabs_core.catalog import all_policies
from cabs_core.pools.find import list_pools


def complete_pool(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Pools whose names begin with what was typed."""
    return [found.pool.name for found in list_pools()[0] if found.pool.name.startswith(incomplete)]


def complete_policies(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """The last of the policies separated by commas: from the named pool's, or from all where none is named."""
    before, comma, last = incomplete.rpartition(",")
    # click may leave the arguments of an unfinished line unread, in ctx.args
    named = {ctx.params.get("pool"), ctx.params.get("name"), *ctx.args}
    known = [found.pool.policies for found in list_pools()[0] if found.pool.name in named]
    names = known[0] if known else all_policies()
    taken = before.split(",")
    return [before + comma + name for name in names if name.startswith(last) and name not in taken]
