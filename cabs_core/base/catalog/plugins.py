"""Records that other packages add to the catalog by entry points.

A package names its record in its `pyproject.toml` and needs no fork:

    [project.entry-points."cabs.policies"]
    toy = "my_package.records:TOY"        # a record, or a tuple of them

A plug-in that cannot be loaded is left out with a warning that names it.
"""

import re
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    """A record of the catalog, which has a name."""

    @property
    def name(self) -> str:
        """Name that is unique among the records of its kind."""


Record = TypeVar("Record", bound=Named)


def records(
    group: str,
    built_in: tuple[Record, ...],
    points: Callable[..., Iterable[EntryPoint]] = entry_points,
    pattern: str = r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*",
) -> dict[str, Record]:
    """Return `{name: record}` of the built-in records and of those that entry points of a group name.

    A record with another class, a name that does not match `pattern`, or a name that is taken is left out
    with a warning.

    Args:
        group: group of entry points, such as `cabs.policies`.
        built_in: records of this package. Records of other packages must have the same class.
        points: function that returns the entry points; it is called with `group=`.
        pattern: regular expression of names; by default lower case letters, digits and single underscores.
    """
    by_name = {record.name: record for record in built_in}
    kind = type(built_in[0])
    for point in sorted(points(group=group), key=lambda point: point.name):
        origin = f"{group} entry point {point.name!r} ({point.value})"
        try:
            loaded: Any = point.load()
        except Exception as error:
            warnings.warn(f"{origin} is left out: {type(error).__name__}: {error}", stacklevel=2)
            continue
        for record in loaded if isinstance(loaded, tuple | list) else (loaded,):
            if not isinstance(record, kind):
                fault = f"expected a {kind.__name__}, found {type(record).__name__}"
            elif not re.fullmatch(pattern, name := record.name):
                fault = f"the name {name!r} does not match {pattern}"
            elif name in by_name:
                fault = f"the name {name!r} is taken"
            else:
                by_name[name] = record
                continue
            warnings.warn(f"{origin} is left out: {fault}", stacklevel=2)
    return by_name
