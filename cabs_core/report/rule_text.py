"""Rules in words. Rules are {task or cluster: model}."""

import sys
from collections.abc import Mapping, Sequence

#: beginning of the name of a cluster; its number follows
CLUSTER_NAME = "cluster "


def rule_text(rule: Mapping[str, str], kept: str = "") -> str:
    """Return the model of the most tasks or clusters, then the exceptions: `mid, but big for sql and tables`.

    Return `mid for everything` if there is one model, and a dash if there are no rules.

    Args:
        rule: {task or cluster: model}.
        kept: a model that is named first if it has as many groups as another, such as today's model.
    """
    if not rule:
        return "–"
    groups: dict[str, list[str]] = {}
    for group, model in rule.items():
        groups.setdefault(model, []).append(group)
    most = max(groups, key=lambda model: (len(groups[model]), model == kept))
    others = [f"{model} for {listed_names(names)}" for model, names in groups.items() if model != most]
    if not others:
        return f"{most} for everything"
    return f"{most}, but {'; '.join(others)}"


def listed_names(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: `a`, `a and b` or `a, b and c`.

    Several clusters are listed by number, such as `clusters 2, 5 and 7`.
    """
    numbers = [name.removeprefix(CLUSTER_NAME) for name in names]
    if len(names) > 1 and all(name.startswith(CLUSTER_NAME) for name in names):
        return f"clusters {listed_names(sorted(numbers, key=_as_number))}"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _as_number(text: str) -> tuple[int, str]:
    """Return a sort key that puts 2 before 10, and a text that is no number last."""
    if text.isdecimal():
        return (int(text), text)
    return (sys.maxsize, text)
