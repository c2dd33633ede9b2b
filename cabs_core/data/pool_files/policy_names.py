"""`policies` of a pool file: names with options, and sweeps over options."""

from itertools import product
from math import prod
from typing import Any

from cabs_core.base.catalog.policies import with_options

#: most policies of a pool, and most combinations of a sweep
MOST_POLICIES = 200


def policy_names(entry: Any) -> list[Any]:
    """Names of the policies that an entry of `policies` means.

    `lin_ucb` is itself; `{lin_ucb: {alpha: [1, 2], target: utility}}` is one policy per combination of
    values. Anything else is handed on for the checks of types.

    Raises:
        ValueError: options that are no mapping of names to values, or more than 200 combinations.
    """
    if not isinstance(entry, dict):
        return [entry]
    names: list[Any] = []
    for name, options in entry.items():
        where = f"policies: {name!s:.60}"
        if not isinstance(options, dict) or not options:
            raise ValueError(f"{where}: expected options, such as {{lin_ucb: {{alpha: 2}}}}")
        values = {str(key): given if isinstance(given, list) else [given] for key, given in options.items()}
        for key, given in values.items():
            if not given or any(isinstance(value, list | dict) for value in given):
                raise ValueError(
                    f"{where}: option {key:.60}: expected a number, a word, or a list of them to sweep over"
                )
        if prod(map(len, values.values())) > MOST_POLICIES:
            raise ValueError(f"{where}: more than {MOST_POLICIES} combinations of options")
        points = product(*values.values())
        names += [with_options(str(name), dict(zip(values, point, strict=True))) for point in points]
    return names
