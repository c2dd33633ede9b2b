"""Calls of a log before their values are numbers, and the messages that both ways of reading a log share.

Module `call_table` reads a table with a row for each call, `call_records` a file of another tool.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cabs_core.base.errors import DataError, listed
from cabs_core.data.logs.calls import LoggedCall, Score, labelled
from cabs_core.data.logs.table import endings_unread
from cabs_core.data.tables.dotted import parsed


class RawCall(NamedTuple):
    """A call that was kept, with its values as they stand in the log.

    Attributes:
        record: number of its record in the file, from 1. In a table, the number of its row in the file, where
            a header line counts as row 1.
        scores: scores of the one name that is read, by one or several judges.
        tokens: input and output tokens together.
        split: split of the pool to which the call belongs.
        pmf: probabilities of all models, {model: probability}.
        counts: counts of the provider's usage block, as `usage.Tokens`. None if there is no such block.
    """

    record: int
    prompt: str
    model: str
    scores: list[Any]
    cost: Any
    propensity: Any
    session: Any
    task: Any
    time: Any
    tokens: Any
    input_tokens: Any
    output_tokens: Any
    split: Any = None
    pmf: Any = None
    counts: Any = None


class RawCalls(NamedTuple):
    """Calls of a log, and what was left out and not read.

    Attributes:
        calls: the calls that were kept.
        rows: words for the row of each call, such as `row 7`, for messages.
        records: number of entries in the log.
        left_out: {reason: number of entries that were left out}.
        unused: names in the log from which nothing was read.
        notes: remarks for the receipt.
        called: {value such as `prompt`: its name in the log}.
        cost_unit: unit of the costs. None if they are in USD or the name of their column says the unit.
    """

    calls: list[RawCall]
    rows: list[str]
    records: int
    left_out: Counter[str]
    unused: list[str]
    notes: list[str]
    called: Mapping[str, str | None]
    cost_unit: str | None = None


def is_counted_by_usage(chosen: Mapping[str, str | None]) -> bool:
    """Return True if prices count the provider's usage block of a call.

    They count the input and output tokens alone if `columns` says where one of the two stands.

    Args:
        chosen: {value or rule: its place} as `columns` names them.
    """
    return not {"input_tokens", "output_tokens"} & chosen.keys()


def is_other_part(reason: str) -> bool:
    """Return True if an entry may be another part of a trace, whose scores may be about a call.

    The reasons of such entries all begin with `no`: `not a chat call`, `not finished`, `no prompt` and `no
    model`. Calls that failed, health checks and answers of a cache have other reasons.
    """
    return reason.startswith("no")


def all_scores(value: Any) -> list[Any]:
    """Return the scores in a cell: no score, one score, or those of several judges in a list."""
    if isinstance(value, str) and value[:1] == "[":
        value = parsed(value)
    values = value if isinstance(value, list) else [value]
    return [labelled(v) if isinstance(v, Mapping) else v for v in values if v is not None]


def several_scores(origin: str | Path, names: Counter[str]) -> DataError:
    """Return the error for a log with scores of several names, none of which is chosen."""
    several = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
    return DataError(f"{origin} holds several scores: {several:.400}. Name one: source.columns.score")


def no_join(path: str, scores_from: str, calls: Sequence[LoggedCall], loose: Sequence[Score]) -> DataError:
    """Return the error for a file of scores of which none is about a call of the log."""
    known = next(((*call.names, *call.within) for call in calls if call.names or call.within), ())
    if known:
        there = f"the first call has {listed(map(str, known), 100)}"
    else:
        there = "the calls have no ids"
    return DataError(
        f"{scores_from}: no score is about a call of {path}. The first score names "
        f"{listed(map(str, loose[0].about), 100)}; {there}. Name the columns that hold ids: "
        "source.columns.id, source.columns.trace"
    )


def note_of_read(sources: Mapping[str, str | None], rules: Sequence[str], format: str = "") -> str:
    """Return in words from where values and rules were read.

    Args:
        sources: {value: its column or path}.
        rules: columns of rules.
        format: name of the format whose own fields were read in addition.
    """
    words = [f"the fields of {format}"] if format else []
    words += [str(name) if what == name else f"{what} from {name}" for what, name in sources.items()]
    if rules:
        by_rules = f"; by rules: {listed(dict.fromkeys(rules), 200)}"
    else:
        by_rules = ""
    return f"read: {listed(words, 400)}{by_rules}"


def note_of_unread(names: Iterable[str]) -> list[str]:
    """Return a note about those of the unread columns whose names say how a call ended, or no note."""
    unread = endings_unread(names)
    if unread:
        return [f"not read, though their names say how a call ended: {listed(unread, 200)}"]
    return []


def is_read(name: str, paths: Iterable[str]) -> bool:
    """Return True if one of the paths is the name, leads into it, or contains it."""
    return any(path == name or path.startswith(f"{name}.") or name.startswith(f"{path}.") for path in paths)
