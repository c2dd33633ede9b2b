"""The entry of a log, and the rules by which the logs of all tools are read.

A `Format` says where a tool writes the values that the rules need: dotted paths into a record, which are
tried in order. The rules say what the values mean. A new format is therefore a table of paths, and each rule
holds for all formats.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from cabs_core.data.endpoints.request import chat_text
from cabs_core.data.endpoints.usage import (
    FIELDS,
    INPUT_NAMES,
    MORE_FIELDS,
    OUTPUT_NAMES,
    TOTAL_NAMES,
    Tokens,
    read_usage,
    tokens_of,
)
from cabs_core.data.tables.cells import as_number
from cabs_core.data.tables.dotted import at, parsed

Record = Mapping[str, Any]
#: Dotted paths into a record, in the order in which they are tried.
Paths = tuple[str, ...]


@dataclass
class LoggedCall:
    """One entry of a log: a call of a model or something else, such as a span of a tool.

    Attributes:
        number: number of its record in the file, from 1.
        views: records in which a path is looked for, the nearest first: an observation, then its trace.
        names: ids of the entry itself, by which a score may refer to it.
        within: ids of what contains the entry, the nearest first: spans, then the trace, then the session.
        messages: prompt of the call, if the tool writes it outside of the call's own record, otherwise None.
        scores: (name, value) of its scores as the tool wrote them. Two scores of one name come from two
            judges.
        identity: ids that no other call of the tool has, so that another entry with them is the same call
            again. Empty if the tool gives a call no such id.
    """

    number: int
    views: tuple[Record, ...]
    names: tuple[Any, ...] = ()
    within: tuple[Any, ...] = ()
    messages: Any = None
    scores: list[tuple[str, Any]] = field(default_factory=list)
    identity: tuple[Any, ...] = ()

    def at(self, path: str) -> Any:
        """Return the value at a dotted path, from the first view that has one, or None. NaN is no value."""
        values = (at(view, path) for view in self.views)
        return next((value for value in values if value is not None and not _is_nan(value)), None)

    def first(self, paths: Iterable[str]) -> Any:
        """Return the first value of these paths that is neither None nor an empty text, or None."""
        return next((v for path in paths if (v := self.at(path)) is not None and v != ""), None)


@dataclass(frozen=True)
class Score:
    """A score that the log keeps outside of the call that was scored.

    Attributes:
        about: ids of the scored call, or of what contains it, the nearest first.
        name: name of the score.
        value: value as the tool wrote it.
    """

    about: tuple[Any, ...]
    name: str
    value: Any


def ids(*values: Any) -> tuple[Any, ...]:
    """Return the values that can be ids: whole numbers, and texts that are not empty."""
    return tuple(value for value in values if isinstance(value, str | int) and value != "")


#: Function that turns numbered records into entries and scores outside of calls.
Split = Callable[[list[tuple[int, Record]]], tuple[list[LoggedCall], list[Score]]]


@dataclass(frozen=True)
class Format:
    """The places where a tool writes the values that the rules need.

    Each place is a tuple of dotted paths that are tried in order; an empty tuple means that the tool does not
    write the value.

    Attributes:
        split: function that returns (entries, scores outside of calls) of the records of a file.
        kind: kind of an entry, such as `embedding` or `chat`.
        chats: kinds, in lower case, that answer a prompt. An entry without a kind is taken for such a call.
        status: HTTP status of the call, or a word for how the call ended.
        errors: errors of the call. A call with any error has failed.
        cached: flags that say that a cache gave the answer.
        health: names and tags that show that a gateway made the call as a health check.
        model: model that answered.
        prompt: messages or text that was asked.
        bodies: paths of `prompt` that hold JSON which the tool may have cut off.
        cut: flags that say that the tool cut off the prompt.
        cost: cost of the call.
        unpriced: function that returns True if the cost of a call is unknown although the log has a number.
        zero_is_free: True if a cost of 0 means that the call was free. False if the tool also writes 0 for
            an unknown price.
        usage: usage blocks of the provider; '' is the record itself.
        input_tokens: input tokens as the tool counts them, for calls without a usage block.
        output_tokens: output tokens as the tool counts them, for calls without a usage block.
        tokens: input and output tokens as the tool counts them, for calls without a usage block.
        session: conversation to which the call belongs.
        task: kind of the prompt.
        time: time of the call.
        propensity: probability with which the model was drawn.
        also: further fields that `split` reads, and that count as read in the receipt.
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
        """Return the format with the places that `columns` of the pool file names for rules.

        A named place replaces all places of the rule. A rule with the place None is switched off.

        Args:
            chosen: {rule: dotted path or None}, for the rules `kind`, `status`, `error`, `cached` and
                `usage`. Other keys are ignored.
        """

        def places(rule: str, default: Paths) -> Paths:
            path = chosen.get(rule)
            if path is not None:
                return (path,)
            if rule in chosen:
                return ()
            return default

        return replace(
            self,
            kind=places("kind", self.kind),
            status=places("status", self.status),
            errors=places("error", self.errors),
            cached=places("cached", self.cached),
            usage=places("usage", self.usage),
        )

    def paths(self) -> Iterable[str]:
        """Yield all paths at which the rules look.

        If the usage stands in the record itself, the fields of the usage are paths as well.
        """
        for value in vars(self).values():
            if isinstance(value, tuple):
                yield from value
        if "" in self.usage:
            yield from FIELDS


#: Words of a status or error that mean that a call failed.
_FAILED = frozenset(
    {
        "failure",
        "failed",
        "fail",
        "error",
        "errored",
        "cancelled",
        "canceled",
        "expired",
        "aborted",
        "timeout",
        "timed_out",
        "rejected",
        "blocked",
        "status_code_error",
        "statuscode.error",
        "internal_error",
        "exception",
    }
)
#: Words of a status that mean that a call had not ended when the log was written.
_UNFINISHED = frozenset(
    {"in_progress", "queued", "pending", "validating", "running", "started", "created", "unfinished"}
)
#: Words of a flag, an error or an id that mean no.
_NO = frozenset(
    (
        "false 0 0.0 f n no none null nan miss semantic_miss disabled bypass refresh expired off [] {} "
        "00000000_0000_0000_0000_000000000000"
    ).split()
) | {""}
#: Texts that tools write in place of a prompt if they are told to keep no prompts.
_REDACTED = frozenset({"redacted-by-litellm", "[redacted]", "redacted", "<redacted>"})


def is_yes(value: Any) -> bool:
    """Return True if a flag, a word or an id means yes.

    Every text means yes but the words of `_NO`. Other values mean what their truth value says.
    """
    if isinstance(value, str):
        return word_of(value) not in _NO
    return bool(value)


def _is_nan(value: Any) -> bool:
    """Return True if a value is the number NaN, which Python and pandas write into JSON for a missing one."""
    return isinstance(value, float) and math.isnan(value)


def word_of(value: Any) -> str:
    """Return a word in lower case, with `_` in place of spaces and hyphens."""
    return str(value).strip().casefold().replace("-", "_").replace(" ", "_")


#: Kind of a span that names neither its kind nor a model.
UNKNOWN_KIND = "no call of a model"


def why_no_chat(call: LoggedCall, form: Format) -> str:
    """Return the reason to leave out an entry of another kind, such as an embedding, otherwise ''."""
    kind = call.first(form.kind)
    word = "" if kind is None else word_of(kind)
    if word and word not in form.chats:
        return f"not a chat call ({word:.40})"
    return ""


def why_health_check(call: LoggedCall, form: Format) -> str:
    """Return the reason to leave out a call by which a gateway tests a model, otherwise ''."""
    marks = (call.at(path) for path in form.health)
    words = [word_of(mark) for mark in marks if mark]
    is_health_check = any("health_check" in word or "healthcheck" in word for word in words)
    if is_health_check:
        return "health check"
    return ""


def why_no_answer(call: LoggedCall, form: Format) -> str:
    """Return the reason to leave out a call that failed or had not ended, otherwise ''."""
    if any(says_something(call.at(path)) for path in form.errors):
        return "failed"
    reasons = (failed_by_status(call.at(path)) for path in form.status)
    return next((reason for reason in reasons if reason), "")


#: An HTTP status with its reason, such as `429 Too Many Requests`
_STATUS_LINE = re.compile(r"([1-5][0-9]{2})[ _][A-Za-z]")


def failed_by_status(value: Any) -> str:
    """Return `failed` or `not finished` if a status says that there is no answer, otherwise ''.

    A status is a word, an HTTP status, or such a status as text. A number outside of 200 to 299 means that
    the call failed. Words that are not known count as success.
    """
    if isinstance(value, bool) or value is None or value == "":
        return ""
    word = word_of(value)
    if word in _UNFINISHED:
        return "not finished"
    code = http_status(value)
    if code is None:
        answered = word not in _FAILED
    else:
        answered = 200 <= code < 300
    if answered:
        return ""
    return "failed"


def http_status(value: Any) -> float | None:
    """Return the number that a status is, or that begins a status line, or None.

    `429`, `"429"` and `"429 Too Many Requests"` have the status 429. In a status line a space or `_` and a
    letter follow the number, so `"429: wait"` gives None.
    """
    try:
        return float(str(value))
    except ValueError:
        found = _STATUS_LINE.match(str(value).strip())
        if found is None:
            return None
        return float(found[1])


def says_something(value: Any) -> bool:
    """Return True if an error holds a value, at any depth, that is no NaN and does not mean no (`is_yes`)."""
    if isinstance(value, Mapping | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return any(says_something(item) for item in inner)
    return is_yes(value) and not _is_nan(value)


def why_cached(call: LoggedCall, form: Format) -> str:
    """Return the reason to leave out a call that a cache answered, otherwise ''."""
    if any(is_yes(call.at(path)) for path in form.cached):
        return "answered from a cache"
    return ""


#: Rules that return why an entry is left out, or ''. They are asked in this order, for every format.
RULES: tuple[Callable[[LoggedCall, Format], str], ...] = (
    why_no_chat,
    why_health_check,
    why_no_answer,
    why_cached,
)


def prompt_of(value: Any, *, body: bool = False) -> str | None:
    """Return the text of the last message of a person, or None if no message holds such a text.

    A server routes by this text unless its option `route_by` has another value. None is also returned for a
    text of `_REDACTED`, which a tool writes in place of a prompt.

    Args:
        value: messages, a request that holds messages, either of them as JSON in a text, or the text itself.
        body: True if the value is a request as JSON. JSON that cannot be parsed was cut off, and has no text.
    """
    text = _last_text(value, body=body)
    if text is None or text.strip().casefold() in _REDACTED:
        return None
    return text


def _last_text(value: Any, *, body: bool) -> str | None:
    """Return the text of the last message of a person as it stands in the log; see `prompt_of`."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        inner = parsed(value)
        if not inner or (body and isinstance(inner, str)):
            return None
        if body:
            return chat_text(inner)
        text = chat_text(inner) if isinstance(inner, Mapping) else None
        if text is not None:
            return text
    if isinstance(value, str | Mapping | list) and value:
        return chat_text(value)
    return None


def prompt_in(call: LoggedCall, form: Format) -> str | None:
    """Return the prompt of a call from the first place that holds one, or None.

    The paths of the format come first, then the messages outside of the call's record.
    """
    for path in form.prompt:
        text = prompt_of(call.at(path), body=path in form.bodies)
        if text is not None:
            return text
    return prompt_of(call.messages)


def token_counts(call: LoggedCall, form: Format) -> tuple[Any, Any, Any]:
    """Return (input tokens, output tokens, both together) of a call as the log has them.

    A sound usage block of the provider gives the first two, and None as the third. Otherwise the values come
    from the fields of an incomplete block, and then from the tool's own counts. A value that is not known is
    None.
    """
    counted = usage_counts(call, form)
    if counted is not None:
        return counted.input, counted.output, None
    reported = [block for block in _usage_blocks(call, form) if block]
    kinds = ((INPUT_NAMES, form.input_tokens), (OUTPUT_NAMES, form.output_tokens), (TOTAL_NAMES, form.tokens))
    found: list[Any] = []
    for names, paths in kinds:
        value = next((block[name] for block in reported for name in names if name in block), None)
        found.append(call.first(paths) if value is None else value)
    return found[0], found[1], found[2]


def usage_counts(call: LoggedCall, form: Format) -> Tokens | None:
    """Return the counts of the first sound usage block of the provider, or None if the record has none."""
    found = (tokens_of(block) for block in _usage_blocks(call, form))
    return next((tokens for tokens in found if tokens is not None), None)


def _usage_blocks(call: LoggedCall, form: Format) -> list[dict[str, Any]]:
    """Return the fields of the usage blocks of a call.

    A block gets the tier and the searches that stand next to it in the record.
    """
    blocks = []
    for path in form.usage:
        if path == "":
            blocks += [_usage(view, FIELDS) for view in call.views]
            continue
        block = parsed(call.at(path))
        place, _, last = path.rpartition(".")
        if place:
            holder = call.at(place)
        else:
            holder = next((view for view in call.views if view.get(last) is not None), None)
        if last == "usage" and isinstance(holder, Mapping) and isinstance(block, Mapping):
            block = read_usage({**holder, "usage": block})
        blocks.append(_usage(block, (*FIELDS, *MORE_FIELDS)))
    return blocks


def price_unknown(call: LoggedCall, form: Format) -> bool:
    """Return True if the cost that the log has for a call is not to be believed.

    Most tools write 0 for a call whose price they do not know. A cost of 0 is therefore believed only if
    `zero_is_free` is set or the log says that the call had no tokens. No cost is believed if `unpriced` is
    True for the call. A call for which the log has no cost otherwise gives False.
    """
    if form.unpriced(call):
        return True
    if form.zero_is_free or as_number(call.first(form.cost), "cost") != 0:
        return False
    known = [n for n in token_counts(call, form) if n is not None]
    return not known or any(known)


def _usage(block: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a usage block that hold something.

    Tables hold numbers as texts; these become numbers.
    """
    block = parsed(block)
    if not isinstance(block, Mapping):
        return {}
    fields: dict[str, Any] = {}
    for name in names:
        value = block.get(name)
        if value in (None, ""):
            continue
        is_number = isinstance(value, str) and value.replace(".", "", 1).isdecimal()
        fields[name] = float(value) if is_number else value
    return fields


def model_of(value: Any) -> str | None:
    """Return the value if it is a text that holds more than spaces, otherwise None."""
    if isinstance(value, str) and value.strip():
        return value
    return None


#: ISO's basic form of a date, with or without a time, in groups: date, time, and what follows it.
_BASIC_DATE = re.compile(
    r"((?:19|20)[0-9]{6})(?:T?([0-9]{6})|T([0-9]{4}))?((?:[.,][0-9]+)?(?:Z|[+-][0-9:]{2,5})?)"
)
#: Start of a date in ISO's extended form: the year, a separator, and the month if it is a number.
_YEAR_FIRST = re.compile(r"[0-9]{4}[-/.](?:(?:0?[1-9]|1[0-2])(?![0-9])|[A-Za-z])")


def moment(value: Any) -> pd.Timestamp | None:
    """Return a time in UTC, or None if the value is no time.

    Args:
        value: a date by ISO 8601, or seconds, milli-, micro- or nanoseconds since 1970. The size of a number
            tells its unit. A text or number such as 20260401 is a date in ISO's basic form. A text that
            begins with a day or a month is no time, since the order of the two is not known.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    text = _date_text(value if number is None or not number.is_integer() else f"{number:.0f}")
    try:
        if text is not None:
            stamp = pd.Timestamp(text)
        elif number is not None:
            unit = next(
                u for u, most in (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", 1e300)) if number < most
            )
            stamp = pd.Timestamp(int(value) if unit == "ns" else number, unit=unit)
        elif isinstance(value, str):
            return None
        else:
            stamp = pd.Timestamp(value)
    except (TypeError, ValueError, OverflowError, StopIteration):
        return None
    if stamp is pd.NaT:
        return None
    if stamp.tzinfo is None:
        return stamp.tz_localize("UTC")
    return stamp.tz_convert("UTC")


def _date_text(value: Any) -> str | None:
    """Return a date by ISO 8601 as a text that can be read in one way, or None for any other value.

    The basic form gets separators.
    """
    if not isinstance(value, str):
        return None
    text = value.strip()
    basic = _BASIC_DATE.fullmatch(text)
    if basic is None:
        return text if _YEAR_FIRST.match(text) else None
    date, seconds, minutes, rest = basic.groups()
    day = f"{date[:4]}-{date[4:6]}-{date[6:]}"
    time = seconds or minutes
    if time is None:
        return day
    parts = ":".join(time[i : i + 2] for i in range(0, len(time), 2))
    return f"{day}T{parts}{rest.replace(',', '.')}"


def upwards(within: tuple[Any, ...], parents: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the ids of everything that contains an entry, the nearest first.

    Args:
        within: id of the parent, then other ids that contain the entry.
        parents: {id: id of its parent} of the whole log. The parents of the parent are added from here.
    """
    parent, *rest = within or (None,)
    chain: dict[Any, None] = {}
    while parent is not None and parent not in chain:
        chain[parent] = None
        parent = parents.get(parent)
    return tuple(chain | dict.fromkeys(rest))


def joined(calls: list[LoggedCall], loose: Sequence[Score], form: Format | None = None) -> int:
    """Add scores to the calls that they are about, and return the number of scores that are about no call.

    A score about a call itself is added to that call. A score about a trace, a session or another span is
    added to the last call within it by time, unless the call has its own score of that name.

    Args:
        calls: calls of the log, whose `scores` are extended.
        loose: scores from outside of the calls.
        form: format that says where a call has its time. None looks at `time`.
    """
    calls_by_id: dict[Any, list[LoggedCall]] = {}
    for call in calls:
        for name in call.names:
            calls_by_id.setdefault(name, []).append(call)
    last_call = _last_calls(calls, ("time",) if form is None else form.time)
    own_names = {id(call): {name for name, _ in call.scores} for call in calls}
    stray = 0
    of_containers: list[tuple[Score, LoggedCall]] = []
    for score in loose:
        call_id = next((name for name in score.about if name in calls_by_id), None)
        if call_id is not None:
            for call in calls_by_id[call_id]:
                call.scores.append((score.name, score.value))
                own_names[id(call)].add(score.name)
            continue
        container = next((name for name in score.about if name in last_call), None)
        if container is None:
            stray += 1
        else:
            of_containers.append((score, last_call[container]))
    for score, call in of_containers:
        if score.name not in own_names[id(call)]:
            call.scores.append((score.name, score.value))
    return stray


def _last_calls(calls: list[LoggedCall], time_paths: Paths) -> dict[Any, LoggedCall]:
    """Return {id of a trace, session or span: the last call within it}.

    Calls are ordered by time and then by their place in the log. Calls without a time come first.
    """
    last: dict[Any, tuple[Any, LoggedCall]] = {}
    for place, call in enumerate(calls):
        time = moment(call.first(time_paths))
        order = (time is not None, time if time is not None else pd.Timestamp(0, tz="UTC"), place)
        for name in call.within:
            if name not in last or order >= last[name][0]:
                last[name] = (order, call)
    return {name: call for name, (_, call) in last.items()}


def without_repeats(calls: Sequence[LoggedCall]) -> list[LoggedCall]:
    """Return the entries of a log, each once, in the order of their first places.

    Exports overlap, and tools deliver a span at least once. Of entries with one identity, the one with the
    most filled fields is kept. It gets the scores of the others under names of which it has no score.
    """
    kept: dict[Any, LoggedCall] = {}
    for place, call in enumerate(calls):
        key = call.identity or place
        other = kept.get(key)
        if other is None:
            kept[key] = call
            continue
        fuller, poorer = (call, other) if _filled(call) > _filled(other) else (other, call)
        names = {name for name, _ in fuller.scores}
        fuller.scores += [score for score in poorer.scores if score[0] not in names]
        kept[key] = fuller
    return list(kept.values())


def _filled(call: LoggedCall) -> int:
    """Return the number of fields of an entry that hold something."""
    values = [value for view in call.views for value in view.values()]
    empty = (isinstance(value, str | list | Mapping) and not value for value in values)
    return sum(value is not None and not is_empty for value, is_empty in zip(values, empty, strict=True))


def parents_of(calls: Iterable[LoggedCall], least_containers: int = 1) -> dict[Any, Any]:
    """Return {id of an entry: id of its parent} of entries that have both.

    Args:
        least_containers: entries that name fewer containers have no parent. It is 2 if the last container is
            always the trace.
    """
    return {c.names[0]: c.within[0] for c in calls if c.names and len(c.within) >= least_containers}


#: Fields in which people put scores if their tool has no place for scores.
FEEDBACK = ("score", "rating", "feedback", "thumbs", "thumb", "stars", "user_feedback", "scores", "metadata")


def feedback(record: Record) -> list[tuple[str, Any]]:
    """Return (name, value) of the scores that stand next to a call or in its metadata."""
    # A score that is repeated in the metadata is taken once.
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
    """Return (name, value) of scores in one of three forms.

    Args:
        scores: a list of objects with a name and a value, a mapping of names to values, or a single value,
            which gets the name `score`. A list or a mapping may be JSON in a text; any other text is a single
            value and stays a text. Scores without a value are left out.
    """
    if isinstance(scores, str) and scores.lstrip()[:1] in ("[", "{"):
        scores = parsed(scores)
    if isinstance(scores, list):
        pairs = []
        for score in scores:
            if isinstance(score, Mapping):
                name = next((score[key] for key in ("name", "key", "id") if score.get(key)), "score")
                pairs.append((str(name), labelled(score)))
    elif isinstance(scores, Mapping):
        pairs = [(str(k), labelled(v) if isinstance(v, Mapping) else v) for k, v in scores.items()]
    else:
        pairs = [] if scores is None else [("score", scores)]
    return [(name, value) for name, value in pairs if value is not None]


def labelled(score: Record) -> Any:
    """Return the value of a score that is an object, in the units of its log, or None if there is no value.

    A category is returned as its label, and as None if it has no label. A boolean is returned as True or
    False, but as it stands if the log writes a text. A comment or a correction has no value.
    """
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
