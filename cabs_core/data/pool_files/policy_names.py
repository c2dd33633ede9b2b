"""`policies` of a pool file: names with options, and sweeps over options."""

from itertools import product
from math import prod
from typing import Any

from cabs_core.base.catalog.policies import with_options

#: most policies of a pool, and most combinations of a sweep
MOST_POLICIES = 200


def policy_names(entry: Any) -> list[Any]:
    """Return the names of the policies that an entry of `policies` stands for.

    The entry `lin_ucb` stands for one policy. `{lin_ucb: {alpha: [1, 2], target: utility}}` stands for one
    policy per combination of values. An entry of another type is returned as it is, for pydantic to refuse.

    Raises:
        ValueError: the options are empty or no mapping, an option has an empty list or a nested value, or
            there are more than `MOST_POLICIES` combinations.
    """
    if not isinstance(entry, dict):
        return [entry]
    names: list[Any] = []
    for policy, options in entry.items():
        values = _option_values(policy, options)
        for combination in product(*values.values()):
            chosen = dict(zip(values, combination, strict=True))
            names.append(with_options(str(policy), chosen))
    return names


def _option_values(policy: Any, options: Any) -> dict[str, list[Any]]:
    """Return {option: its values} of an entry of `policies`.

    Raises:
        ValueError: see `policy_names`.
    """
    place = f"{policy!s:.60}"
    if not isinstance(options, dict) or not options:
        raise ValueError(
            f"{place} is followed by {options!r:.60}; expected options, such as {{lin_ucb: {{alpha: 2}}}}"
        )
    values: dict[str, list[Any]] = {}
    for option, given in options.items():
        name = str(option)
        if isinstance(given, list):
            values[name] = given
        else:
            values[name] = [given]
        if not values[name] or any(isinstance(value, list | dict) for value in values[name]):
            raise ValueError(
                f"{place}: option {name:.60} is {given!r:.60}; expected a number, a word, or a list of them "
                "to sweep over"
            )
    combinations = prod(map(len, values.values()))
    if combinations > MOST_POLICIES:
        raise ValueError(
            f"{place}: there are {combinations:,} combinations of options, more than {MOST_POLICIES}. Give "
            "fewer values"
        )
    return values
