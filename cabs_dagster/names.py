"""What this code location calls its things in Dagster, so that it can stand beside others.

The environment says so, as it says where artifacts lie: `CABS_NAME` (a word before the names of jobs,
sensors, schedules, resources and partition sets; default none), `CABS_KEY_PREFIX` (parts before asset keys,
`a/b`; default CABS_NAME), `CABS_OWNERS` (`team:routing,ann@example.org`) and `CABS_TIMEZONE` (of the
schedules, such as Europe/Berlin; default UTC). The component `CabsPools` sets them from its attributes.
"""

import os
import re

import dagster as dg

from cabs_core.base.errors import CabsError

NAME = os.environ.get("CABS_NAME", "")
PREFIX = tuple(part for part in os.environ.get("CABS_KEY_PREFIX", NAME).split("/") if part)
OWNERS = [
    owner.strip() for owner in os.environ.get("CABS_OWNERS", "team:routing").split(",") if owner.strip()
]
TIMEZONE = os.environ.get("CABS_TIMEZONE") or None
for _word in (*PREFIX, *([NAME] if NAME else [])):
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", _word):
        raise CabsError(
            "CABS_NAME and the parts of CABS_KEY_PREFIX are made of letters, digits and _, and begin with "
            f"no digit; one is {_word!r}"
        )


def named(name: str) -> str:
    """The name of a job, sensor, schedule, resource or partition set: with the location's name before it."""
    return f"{NAME}_{name}" if NAME else name


def tag(word: str) -> str:
    """The key of a tag by which the location's runs know each other."""
    return f"{NAME or 'cabs'}/{word}"


def key(path: str) -> dg.AssetKey:
    """The key of an asset, such as `marts/mart_aiq`: with the location's prefix before it."""
    return dg.AssetKey([*PREFIX, *path.split("/")])


#: names of the partition sets, which are the instance's
POOLS = named("pools")
RHOS = named("rhos")
POOLS_WITH_LOG = named("pools_with_log")


def path_of(asset: dg.AssetKey) -> str:
    """The inverse of `key`."""
    return "/".join(asset.path[len(PREFIX) :])


def step(asset: str) -> str:
    """The name of the step that makes an asset, under which a run's config speaks to it."""
    return "__".join((*PREFIX, asset))
