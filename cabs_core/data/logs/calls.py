"""One call of a log, and the rules by which every log is read, whoever wrote it.

A format (`Format`) says where its writer puts what the rules ask for, as dotted paths that are tried in
order; the rules say what it means. So a new format is a table of paths, and a rule holds for all of them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from cabs_core.data.endpoints.request import chat_text
from cabs_core.data.endpoints.usage import (
    FIELDS,
    INPUT,
    MORE_FIELDS,
    OUTPUT,
    TOTAL,
    Tokens,
    read_tokens,
    read_usage,
)
from cabs_core.data.tables.cells import as_number
from cabs_core.data.tables.dotted import at, parsed

Record = Mapping[str, Any]
Paths = tuple[str, ...]


@dataclass
class LoggedCall:
    """One entry of a log that may be a call.

    Attributes:
        number: of its record in the file, from 1.
        views: where rules and `columns` look for a path, the nearest first: an observation, then its trace.
        names: what a score may call it by: its own ids. within: ids of what it is a part of, the nearest
            first: spans, then the trace, then the session.
        messages: the prompt, where the writer keeps it apart from the call.
        scores: (name, value) as the writer put them; the same name twice are two judges.
    """

    number: int
    views: tuple[Record, ...]
    names: tuple[Any, ...] = ()
    within: tuple[Any, ...] = ()
    messages: Any = None
    scores: list[tuple[str, Any]] = field(default_factory=list)

    def at(self, path: str) -> Any:
        """The value at a path, in the first view that has one."""
        return next((value for view in self.views if (value := at(view, path)) is not None), None)

    def first(self, paths: Iterable[str]) -> Any:
        """The first value of these paths that is there and not empty."""
        return next((v for path in paths if (v := self.at(path)) is not None and v != ""), None)


@dataclass(frozen=True)
class Score:
    """A score that stands apart from the call it is about. about: ids that it names, the nearest first."""

    about: tuple[Any, ...]
    name: str
    value: Any


def ids(*values: Any) -> tuple[Any, ...]:
    """Those of the values that can name something: texts and numbers, not empty."""
    return tuple(value for value in values if isinstance(value, str | int) and value != "")


Split = Callable[[list[tuple[int, Record]]], tuple[list[LoggedCall], list[Score]]]


@dataclass(frozen=True)
class Format:
    """Where a writer puts what the rules ask for.

    Attributes:
        split: makes calls and loose scores of records.
        kind, chats: what an entry is, and the words for one that answers a prompt, as do those without.
        status, errors: an HTTP status or a word; anything at `errors` means that it failed.
        cached, health: whether a cache answered; names and tags that a health check bears.
        model: who answered. prompt: what was asked; `bodies`: its paths to JSON that may be cut.
        also: what `split` reads.
        usage: what the provider reported of tokens, in its names; '' is the entry itself. Where there is
            none, input_tokens, output_tokens and tokens are as the writer counts.
        cut: whether the prompt was cut by the writer. unpriced: whether there is no cost although a
            number is written; zero_is_free: and whether the writer tells thereby an unknown price from 0.
    """

    split: Split
    kind: Paths = ()
    chats: frozenset[str] = frozenset()
    status: Paths = ("status",)
    errors: Paths = ("error",)
    cached: Paths = ()
    health: Paths = ()
    model: Paths = ("model",)
    prompt: Paths = ("messages", "input", "prompt")
    bodies: frozenset[str] = frozenset()
    cut: Paths = ()
    cost: Paths = ("cost",)
    unpriced: Callable[[LoggedCall], bool] = lambda call: False
    zero_is_free: bool = False
    usage: Paths = ()
    input_tokens: Paths = ()
    output_tokens: Paths = ()
    tokens: Paths = ()
    session: Paths = ()
    task: Paths = ()
    time: Paths = ()
    propensity: Paths = ("propensity", "metadata.propensity")
    also: Paths = ()

    def with_chosen(self, chosen: Mapping[str, str | None]) -> "Format":
        """Return the format with the places of rules that `columns` names; null switches a rule off."""

        def places(what: str, otherwise: Paths) -> Paths:
            path = chosen.get(what)
            if path is not None:
                return (path,)
            return () if what in chosen else otherwise

        return replace(
            self,
            kind=places("kind", self.kind),
            status=places("status", self.status),
            errors=places("error", self.errors),
            cached=places("cached", self.cached),
            usage=places("usage", self.usage),
        )

    def paths(self) -> Iterable[str]:
        """Every path that the rules look at."""
        for value in vars(self).values():
            if isinstance(value, tuple):
                yield from value
        if "" in self.usage:
            yield from FIELDS


_FAILED = frozenset(
    (
        "failure failed fail error errored cancelled canceled expired aborted timeout timed_out rejected "
        "blocked status_code_error statuscode.error internal_error exception"
    ).split()
)
_UNFINISHED = frozenset(
    {"in_progress", "queued", "pending", "validating", "running", "started", "created", "unfinished"}
)
_NO = frozenset(
    (
        "false 0 0.0 f n no none null nan miss semantic_miss disabled bypass refresh expired off [] {} "
        "00000000_0000_0000_0000_000000000000"
    ).split()
) | {""}
#: what writers put where a prompt was, once they were told to keep none
_REDACTED = frozenset({"redacted-by-litellm", "[redacted]", "redacted", "<redacted>"})


def is_yes(value: Any) -> bool:
    """Whether a flag, a word or an id says yes."""
    if isinstance(value, str):
        return word_of(value) not in _NO
    return bool(value)


def word_of(value: Any) -> str:
    """Return a word in lower case, with `_` for blanks and hyphens."""
    return str(value).strip().casefold().replace("-", "_").replace(" ", "_")


#: kind of a span that says neither what it is nor which model it called
UNKNOWN_KIND = "no call of a model"


def not_a_chat(call: LoggedCall, form: Format) -> str:
    """Embeddings, agents, tools and whatever else does not answer a prompt."""
    kind = call.first(form.kind)
    word = "" if kind is None else word_of(kind)
    return f"not a chat call ({word:.40})" if word and word not in form.chats else ""


def health_check(call: LoggedCall, form: Format) -> str:
    """Calls that a gateway makes to see whether a model is there."""
    marks = (call.at(path) for path in form.health)
    there = any("health_check" in word_of(mark) or "healthcheck" in word_of(mark) for mark in marks if mark)
    return "health check" if there else ""


def no_answer(call: LoggedCall, form: Format) -> str:
    """Calls that failed, or that had not ended when the log was written."""
    if any(says_something(call.at(path)) for path in form.errors):
        return "failed"
    return next((why for path in form.status if (why := failed_by_status(call.at(path)))), "")


#: a status with its reason, such as `429 Too Many Requests`
_STATUS_LINE = re.compile(r"([1-5][0-9]{2})[ _][A-Za-z]")


def failed_by_status(value: Any) -> str:
    """Return why a status says that there is no answer, or '' if it does not say so.

    A status is a word, an HTTP status, or such a status as text.
    """
    if isinstance(value, bool) or value is None or value == "":
        return ""
    word = word_of(value)
    if word in _UNFINISHED:
        return "not finished"
    code = http_status(value)
    answered = word not in _FAILED if code is None else 200 <= code < 300
    return "" if answered else "failed"


def http_status(value: Any) -> float | None:
    """Return the number that a status is or begins with, such as `429 Too Many Requests`, else None."""
    try:
        return float(str(value))
    except ValueError:
        found = _STATUS_LINE.match(str(value).strip())
        return None if found is None else float(found[1])


def says_something(value: Any) -> bool:
    """Whether an error is more than an empty text, object or list."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return any(says_something(item) for item in inner)
    return is_yes(value)


def from_a_cache(call: LoggedCall, form: Format) -> str:
    """Answers that no model gave."""
    return "answered from a cache" if any(is_yes(call.at(path)) for path in form.cached) else ""


#: why an entry is left out, asked in this order; the same for every format
RULES: tuple[Callable[[LoggedCall, Format], str], ...] = (not_a_chat, health_check, no_answer, from_a_cache)


def prompt_of(value: Any, *, body: bool = False) -> str | None:
    """The text that a request with this in it would be routed by; None: nothing was said.

    Args:
        body: it is JSON, so that what does not parse was cut, and is nothing.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        inner = parsed(value)
        if not inner or (body and isinstance(inner, str)):
            return None
        if isinstance(inner, Mapping) or body:
            text = chat_text(inner)
            return text if text is not None or body else chat_text(value)
    if isinstance(value, str | Mapping | list) and value:
        text = chat_text(value)
        return None if text is None or text.strip().casefold() in _REDACTED else text
    return None


def prompt_in(call: LoggedCall, form: Format) -> str | None:
    """The prompt of a call: the whole one before one that was cut."""
    for path in form.prompt:
        text = prompt_of(call.at(path), body=path in form.bodies)
        if text is not None:
            return text
    return prompt_of(call.messages)


def token_counts(call: LoggedCall, form: Format) -> tuple[Any, Any, Any]:
    """(tokens in, tokens out, both) of a call: by the provider's usage, else as the writer counts them."""
    counted = usage_counts(call, form)
    if counted is not None:
        return counted.input, counted.output, None
    reported = [block for block in _usage_blocks(call, form) if block]
    kinds = ((INPUT, form.input_tokens), (OUTPUT, form.output_tokens), (TOTAL, form.tokens))
    named = [next((b[n] for b in reported for n in names if n in b), None) for names, _ in kinds]
    into, out, both = (
        call.first(paths) if v is None else v for v, (_, paths) in zip(named, kinds, strict=True)
    )
    return into, out, both


def usage_counts(call: LoggedCall, form: Format) -> Tokens | None:
    """Return what the provider's usage block counts; None if no sound one stands in the record."""
    found = (read_tokens(block) for block in _usage_blocks(call, form))
    return next((tokens for tokens in found if tokens is not None), None)


def _usage_blocks(call: LoggedCall, form: Format) -> list[dict[str, Any]]:
    """Return the fields of the usage blocks of a call, with the tier and the searches that stand beside."""
    blocks = []
    for path in form.usage:
        if path == "":
            blocks += [_usage(view, FIELDS) for view in call.views]
            continue
        block = parsed(call.at(path))
        place, _, last = path.rpartition(".")
        holder = call.at(place) if place else next((v for v in call.views if v.get(last) is not None), None)
        if last == "usage" and isinstance(holder, Mapping) and isinstance(block, Mapping):
            block = read_usage({**holder, "usage": block})
        blocks.append(_usage(block, (*FIELDS, *MORE_FIELDS)))
    return blocks


def price_unknown(call: LoggedCall, form: Format) -> bool:
    """Whether the cost of a call is none: its writer knew no price, or wrote 0 for tokens, as most then do.

    The tokens of a call are taken as some unless the log says that there were none.
    """
    if form.unpriced(call):
        return True
    if form.zero_is_free or as_number(call.first(form.cost), "cost") != 0:
        return False
    known = [n for n in token_counts(call, form) if n is not None]
    return not known or any(known)


def _usage(block: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a usage block that hold something; tables write numbers as texts."""
    block = parsed(block)
    if not isinstance(block, Mapping):
        return {}
    there = {name: block[name] for name in names if block.get(name) not in (None, "")}
    return {
        name: float(v) if isinstance(v, str) and v.replace(".", "", 1).isdecimal() else v
        for name, v in there.items()
    }


def model_of(value: Any) -> str | None:
    """A model's name as it stands there; None: it is none."""
    return value if isinstance(value, str) and value.strip() else None


def moment(value: Any) -> pd.Timestamp | None:
    """A time in UTC: ISO 8601, or seconds, milli-, micro- or nanoseconds since 1970; None: it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    try:
        if number is None:
            stamp = pd.Timestamp(value)
        else:
            unit = next(
                u for u, most in (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", 1e300)) if number < most
            )
            stamp = pd.Timestamp(int(value) if unit == "ns" else number, unit=unit)
    except (TypeError, ValueError, OverflowError, StopIteration):
        return None
    if stamp is pd.NaT:
        return None
    return stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")


def upwards(within: tuple[Any, ...], parents: Mapping[Any, Any]) -> tuple[Any, ...]:
    """All that a call stands within: its parent's parents too, then what else it names."""
    parent, *rest = within or (None,)
    chain: dict[Any, None] = {}
    while parent is not None and parent not in chain:
        chain[parent] = None
        parent = parents.get(parent)
    return tuple(chain | dict.fromkeys(rest))


def joined(calls: list[LoggedCall], loose: Sequence[Score], form: Format | None = None) -> int:
    """Give loose scores to the calls that they are about, and say how many are about none.

    A score of a trace, a session or another span belongs to the last call within it by time; a call's own
    score of that name comes first.
    """
    by_name: dict[Any, list[LoggedCall]] = {}
    last: dict[Any, tuple[Any, LoggedCall]] = {}
    for place, call in enumerate(calls):
        for name in call.names:
            by_name.setdefault(name, []).append(call)
        time = moment(call.first(("time",) if form is None else form.time))
        order = (time is not None, time if time is not None else pd.Timestamp(0, tz="UTC"), place)
        for name in call.within:
            if name not in last or order >= last[name][0]:
                last[name] = (order, call)
    stray = 0
    before = {id(call): {name for name, _ in call.scores} for call in calls}
    late: list[tuple[Score, list[LoggedCall]]] = []
    for score in loose:
        nearest = next((name for name in score.about if name in by_name), None)
        if nearest is not None:
            for call in by_name[nearest]:
                call.scores.append((score.name, score.value))
                before[id(call)].add(score.name)
            continue
        about = next((name for name in score.about if name in last), None)
        if about is None:
            stray += 1
        else:
            late.append((score, [last[about][1]]))
    for score, about_calls in late:
        for call in about_calls:
            if score.name not in before[id(call)]:
                call.scores.append((score.name, score.value))
    return stray


#: where people put scores whose tool has none
FEEDBACK = ("score", "rating", "feedback", "thumbs", "thumb", "stars", "user_feedback", "scores", "metadata")


def feedback(record: Record) -> list[tuple[str, Any]]:
    """Scores beside the call, or in its metadata."""
    by_place: dict[str, list[tuple[str, Any]]] = {}
    for place in ("", "metadata.", "metadata.requester_metadata.", "metadata.spend_logs_metadata."):
        for name in FEEDBACK[:-2]:
            value = at(record, place + name)
            if value is not None and not isinstance(value, dict | list):
                by_place.setdefault(name, [(name, value)])
        for name, value in named(at(record, f"{place}scores")):
            by_place.setdefault(f"scores {place}", []).append((name, value))
    return [score for scores in by_place.values() for score in scores]


def named(scores: Any) -> list[tuple[str, Any]]:
    """(name, value) of scores as a list of objects, a mapping, or a single value."""
    if isinstance(scores, str) and scores.lstrip()[:1] in ("[", "{"):
        scores = parsed(scores)
    if isinstance(scores, list):
        pairs = [
            (str(next((s[k] for k in ("name", "key", "id") if s.get(k)), "score")), labelled(s))
            for s in scores
            if isinstance(s, Mapping)
        ]
    elif isinstance(scores, Mapping):
        pairs = [(str(k), labelled(v) if isinstance(v, Mapping) else v) for k, v in scores.items()]
    else:
        pairs = [] if scores is None else [("score", scores)]
    return [(name, value) for name, value in pairs if value is not None]


def labelled(score: Record) -> Any:
    """The value of a score, in the units of its log: its label where it is a category, true or false where it
    is boolean; None: it is a comment."""
    kind = str(score.get("dataType") or score.get("data_type") or "").upper()
    label = next(
        (score[k] for k in ("stringValue", "string_value", "label") if score.get(k) not in (None, "")), None
    )
    value = next((score[k] for k in ("value", "score") if score.get(k) is not None), None)
    if kind in ("TEXT", "CORRECTION"):
        return None
    if kind == "CATEGORICAL" or value is None:
        return label
    if kind == "BOOLEAN" and not isinstance(value, str):
        return bool(value)
    return value
