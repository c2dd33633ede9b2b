"""Names of the things of a code location in Dagster, so that several chains can stand in one instance.

`current()` is the location whose definitions are being built or whose step, sensor or schedule is running.
Without another one it is `Location()`: no prefix, and places as the environment says. The component
`CabsPools` makes a location of its attributes, so that two of them can stand in one process.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_core.base.paths import Places, at_places

#: partition sets, which are the instance's; `named` puts the location's name before them
POOLS = "pools"
RHOS = "rhos"
POOLS_WITH_LOG = "pools_with_log"


@dataclass(frozen=True)
class Location:
    """Names and places of one chain in Dagster.

    Attributes:
        name: a word before the names of jobs, sensors, schedules, resources and partition sets, as in
            `NAME_job`. The name also begins the keys of tags. It may be empty.
        prefix: parts before every asset key.
        owners: of all assets: `team:NAME` or e-mail addresses.
        timezone: of the schedules, such as Europe/Berlin. None means UTC.
        places: where pool files, artifacts and caches lie.

    Raises:
        CabsError: the name or a part of the prefix cannot be a name in Dagster.
    """

    name: str = ""
    prefix: tuple[str, ...] = ()
    owners: tuple[str, ...] = ("team:routing",)
    timezone: str | None = None
    places: Places = field(default_factory=Places)

    def __post_init__(self) -> None:
        for word in (*self.prefix, *([self.name] if self.name else [])):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word):
                raise CabsError(
                    "the name and the parts of the key prefix are made of letters, digits and _, and begin "
                    f"with no digit; one is {word!r}"
                )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current location, and use its places (`at_places`), in the `with` block."""
        before = _CURRENT.get()
        _CURRENT.set(self)
        try:
            with at_places(self.places):
                yield
        finally:
            _CURRENT.set(before)


_DEFAULT = Location()
_CURRENT: ContextVar[Location | None] = ContextVar("location", default=None)


def current() -> Location:
    """Return the location whose definitions are being built or whose code is running, else `Location()`."""
    return _CURRENT.get() or _DEFAULT


@dataclass(frozen=True, eq=False)
class Declared:
    """An asset or spec of the chain, of which every location has a definition of its own.

    Attributes:
        define: returns the definition, with the names of the current location.
        function: the step, if there is one.
    """

    define: Callable[[], Any]
    function: Callable[..., Any] | None = None


def declare(decorator: Callable[[], Callable[..., Any]]) -> Callable[[Callable[..., Any]], Declared]:
    """Return a decorator that declares the asset that a function makes.

    Args:
        decorator: returns Dagster's decorator, with the names of the current location. The function runs with
            the location active for which it was decorated.
    """
    return lambda function: Declared(lambda: decorator()(in_location(function)), function)


def in_location(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that always calls the given one within the location that is current now."""
    location = current()
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*arguments: Any, **options: Any) -> Iterator[Any]:
            with location.active():
                yield from function(*arguments, **options)

        return generate

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with location.active():
            return function(*arguments, **options)

    return run


def named(name: str) -> str:
    """Return the name of a job, sensor, schedule, resource or partition set in the current location."""
    location = current()
    if location.name:
        return f"{location.name}_{name}"
    return name


def tag(word: str) -> str:
    """Return the key of a tag of the location's runs, such as `cabs/chain`.

    `cabs` stands for the name of the location if the name is empty.
    """
    return f"{current().name or 'cabs'}/{word}"


def key(path: str) -> dg.AssetKey:
    """Return the key of an asset, such as `marts/mart_aiq`, with the location's prefix before it."""
    return dg.AssetKey([*current().prefix, *path.split("/")])


def path_of(asset: dg.AssetKey) -> str:
    """Return the path from which `key` makes an asset's key, such as `marts/mart_aiq`."""
    return "/".join(asset.path[len(current().prefix) :])


def step(asset: str) -> str:
    """Return the name of the step that makes an asset: the parts of its key, joined by `__`.

    The name is also the step's key in a run's config.

    Args:
        asset: name of the asset, such as `splits`, without the location's prefix.
    """
    return "__".join((*current().prefix, asset))
