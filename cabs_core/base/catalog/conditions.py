"""Stress conditions: the part of a replay that each changes, and their texts in reports.

Conditions of `splits` and `labels` change the problem before anything is trained
(`cabs_core.data.outcomes.conditions`); those of `stream` change a replay of any problem
(`cabs_core.evaluation.replay.conditions`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cabs_core.base.errors import PolicyError


@dataclass(frozen=True)
class Condition:
    """A stress condition.

    Attributes:
        name: name in pool files.
        changes: the part that the condition changes.
        title: short title in reports.
        description: sentence fragment in reports.
    """

    name: str
    changes: Literal["nothing", "splits", "labels", "stream"]
    title: str = ""
    description: str = ""


#: {name: condition}, in the order of documents
CONDITIONS: Mapping[str, Condition] = {
    condition.name: condition
    for condition in (
        Condition("none", "nothing"),
        Condition(
            "task_shift",
            "splits",
            "new tasks",
            "half of the tasks appear in the routed queries only, none of them offline",
        ),
        Condition(
            "severe_shift",
            "splits",
            "another kind of task",
            "the routed queries are tasks of another kind than all offline data",
        ),
        Condition(
            "corrupted_oracle",
            "labels",
            "reversed offline labels",
            "offline labels were exchanged between the models so that the best looks worst, and so on",
        ),
        Condition(
            "noisy_oracle",
            "labels",
            "noisy offline labels",
            "3 in 10 offline labels of every model were exchanged at random",
        ),
        Condition(
            "drift",
            "stream",
            "drift",
            "the mix of tasks moves from one half of the tasks to the other in the course of every order",
        ),
        Condition(
            "arms_arrive",
            "stream",
            "models arrive",
            "the third of the models that looks best offline can be played from the middle of every order on "
            "only",
        ),
        Condition(
            "arms_disappear",
            "stream",
            "models disappear",
            "the third of the models that looks best offline cannot be played any more from the middle of "
            "every order on",
        ),
        Condition(
            "delayed_rewards",
            "stream",
            "delayed rewards",
            "rewards come 1 to 200 rounds late, and 1 in 10 never",
        ),
        Condition(
            "sessions",
            "stream",
            "conversations",
            "queries of a task are turns of conversations; each turn pays for the turns before it, less "
            "where the model that answered the last one is asked again",
        ),
    )
}
#: names of the conditions that change the stream of a replay
STREAM_CONDITIONS = tuple(name for name, condition in CONDITIONS.items() if condition.changes == "stream")


def condition_record(name: str) -> Condition:
    """Return the condition with a name.

    Raises:
        PolicyError: no condition has the name; the message lists all.
    """
    if name not in CONDITIONS:
        raise PolicyError(f"unknown stress condition {name!r}. Known: {', '.join(CONDITIONS)}.")
    return CONDITIONS[name]


def condition_that_changes(name: str, what: Literal["splits", "labels", "stream"]) -> bool:
    """Return True if `what` is the part of a replay that the condition with a name changes.

    Args:
        what: splits, labels (the offline labels) or stream.

    Raises:
        PolicyError: as of `condition_record`.
    """
    return condition_record(name).changes == what
