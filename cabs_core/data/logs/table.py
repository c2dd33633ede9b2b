"""Rules for a log with a row for each call: columns that say how a call ended and to what it belongs.

The columns are found by their names, in which case and separators do not count: `isSuccess` and `is_success`
are one name, `response.is_success` is another one. A name alone is not believed. A column `type`, for
example, says whether a row is a chat only if some of its values are kinds of calls. `columns` of the pool
file names a column in place of the rule, or switches the rule off with null.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cabs_core.data.endpoints.usage import INPUT_NAMES
from cabs_core.data.logs.calls import failed_by_status, http_status, is_yes, says_something, word_of
from cabs_core.data.tables.battles import plain
from cabs_core.data.tables.dotted import parsed
from cabs_core.data.tables.table import Table

#: Rule -> names of columns that LangSmith, Braintrust, Weave, Portkey, Cloudflare, MLflow, Bedrock and
#: similar tools use for it, the surest first.
NAMES: dict[str, tuple[str, ...]] = {
    "kind": tuple(
        (
            "run_type span_attributes.type span_type attributes.mlflow.spanType call_type observation_type "
            "attributes.openinference.span.kind openinference.span.kind gen_ai.operation.name op_name "
            "span_kind operation operation_name request_type model_type event_type type kind object"
        ).split()
    ),
    "status": tuple(
        (
            "response_status_code response.status_code http_status_code http_status status_code "
            "response_status status summary.weave.status info.state "
            "info.status state span_status call_status run_status properties.$ai_http_status"
        ).split()
    ),
    "success": tuple("success is_success succeeded is_successful successful was_successful is_ok".split()),
    "error": tuple(
        (
            "error errors exception error_code error_message error_type error_str error_info error_details "
            "exception_type exception_message response.error is_error has_error failed is_failed "
            "cancelled canceled is_cancelled properties.$ai_is_error properties.$ai_error"
        ).split()
    ),
    "cached": tuple(
        (
            "cached cache_hit is_cached from_cache cache_status response.cached metrics.cached cache.hit "
            "metadata.cached is_cache_hit served_from_cache cached_response cache"
        ).split()
    ),
    "usage": tuple(
        (
            "usage usage_metadata token_usage response.usage response.body.usage output.usage "
            "outputs.usage_metadata outputs.llm_output.token_usage extra.metadata.usage_metadata "
            "output.outputBodyJson.usage sample.usage response.tokenUsage response.body.usageMetadata "
            "metrics"
        ).split()
    ),
    "trace": tuple(
        "trace_id root_span_id context.trace_id info.trace_id root_run_id properties.$ai_trace_id".split()
    ),
    "parent": tuple(
        (
            "parent_run_id parent_span_id parent_observation_id context.parent_id parent_id "
            "parent_call_id span_parents"
        ).split()
    ),
    "id": tuple("span_id run_id context.span_id observation_id call_id id request_id log_id".split()),
    "currency": tuple("cost_currency currency cost_unit".split()),
    "tier": tuple("service_tier response.service_tier response.body.service_tier".split()),
}
#: Names of columns with the time of a call.
_TIMES = tuple("start_time started_at created_at created timestamp time request_time date".split())
#: Kinds of calls that answer a prompt.
CHATS = frozenset(
    (
        "llm chat chat_model chatmodel chat_completion chat_completions chat.completion "
        "chat.completion.chunk completion completions text_completion generation generate "
        "generate_content text_generation converse conversestream converse_stream invokemodel invoke_model "
        "invokemodelwithresponsestream invoke_model_with_response_stream acompletion response responses "
        "messages message model_call model"
    ).split()
)
#: Kinds of entries that are no such calls.
OTHERS = frozenset(
    (
        "embedding embeddings tool function chain retriever retrieval agent task eval score prompt parser "
        "reranker rerank moderation moderations guardrail workflow span event trace facet automation review "
        "image images image_generation speech audio transcription invoke_agent execute_tool evaluator "
        "memory unknown"
    ).split()
)
#: Kinds that are excluded even if a column is not sure to hold kinds.
_NEVER_CHATS = frozenset(
    (
        "embedding embeddings rerank reranker moderation moderations speech transcription image_generation"
    ).split()
)
#: Columns whose values are always kinds of calls.
_SURE_KINDS = frozenset(NAMES["kind"][:8])
#: Operation in a reference of Weave.
_OP = re.compile(r"/op/([^:/]+)")
#: Operation of Weave that is no chat.
_NO_CHAT_OP = re.compile(r"embed|moderat|rerank|images?\.|audio|transcri|speech", re.IGNORECASE)
#: Words of a status for a call that ended well.
_ENDED_WELL = frozenset(
    (
        "success succeeded ok okay completed complete finished done status_code_ok status_code_unset unset "
        "stop"
    ).split()
)
#: Words for the result of a test, which do not say how the call ended.
_VERDICTS = frozenset("pass passed fail".split())
#: Columns of test harnesses. In their tables `success` and `error` judge the answer, not the call.
_HARNESS = frozenset(
    (
        "gradingresult namedscores failurereason testidx assertions expected target goldanswer groundtruth"
    ).split()
)
#: Last parts of dotted column names whose values may say how a call ended.
_UNREAD = frozenset("status error cached success exception".split())


def endings_unread(names: Iterable[str]) -> list[str]:
    """Return the columns named status, error, cached, success or exception, in any case.

    The values of such a column may say how a call ended. Only the last part of a dotted name counts.

    Args:
        names: columns that no rule reads, in dotted notation.
    """
    return [name for name in names if plain(name.rpartition(".")[2]) in _UNREAD]


def is_portkey(columns: Iterable[str]) -> bool:
    """Return True if a table with these columns was exported by Portkey, whose column `cost` is in cents."""
    names = {plain(name) for name in columns}
    return "aimodel" in names and bool(names & {"aiorg", "requnits", "resunits", "costcurrency"})


@dataclass
class Found:
    """Columns of a table from which the rules read.

    Attributes:
        columns: {rule: its columns, the surest first} for each rule of `NAMES`, such as "status". A rule
            without a column has an empty list. The rule "usage" has '' as its last column if counts of
            tokens have columns of their own, which are read where no column with all counts has any.
        named: rules for which the pool file names a column, or null, which switches the rule off.
        order: list of the one column with the time of a call. Empty if the table has none.
        is_harness: True if a test harness wrote the table. Its columns for success and errors judge the
            answer, not the call.
    """

    columns: dict[str, list[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    order: list[str] = field(default_factory=list)
    is_harness: bool = False

    def every(self) -> list[str]:
        """Return the columns of all rules and of the time, each once, with '' if `usage` has it."""
        return list(dict.fromkeys([c for names in self.columns.values() for c in names] + self.order))


def find_columns(table: Table, chosen: Mapping[str, str | None]) -> Found:
    """Find the columns of a table from which rules read.

    Args:
        chosen: {value or rule: column} as `columns` of the pool file names them. A rule does not read a
            column that holds a value of the call; the rules for usage and ids may.
    """
    taken = {name for what, name in chosen.items() if name is not None and what not in NAMES}
    by_name: dict[str, list[str]] = {}
    for name in table.names:
        by_name.setdefault(plain(name), []).append(name)
    found = Found(
        named=frozenset(what for what in NAMES if what in chosen),
        is_harness=any(name in by_name for name in _HARNESS),
    )
    for what, names in NAMES.items():
        if what in chosen:
            if chosen[what] is not None:
                found.columns[what] = [str(chosen[what])]
            else:
                found.columns[what] = []
            continue
        there = [column for name in names for column in by_name.get(plain(name), [])]
        there += [name for name in names if "." in name and _within_text(name, table)]
        # A column with an id or tokens may also be the session. Other columns have one meaning alone.
        may_be_shared = what in ("usage", "trace", "parent", "id")
        found.columns[what] = [name for name in dict.fromkeys(there) if may_be_shared or name not in taken]
    found.order = [column for name in _TIMES for column in by_name.get(plain(name), [])][:1]
    for what in ("trace", "id"):
        found.columns[what] = found.columns[what][:3]
    if "usage" not in chosen and any(name in INPUT_NAMES for name in table.columns):
        found.columns["usage"].append("")
    return found


def _within_text(path: str, table: Table) -> bool:
    """Return True if a dotted path leads into a column whose fields are unknown, such as JSON texts."""
    head = path.partition(".")[0]
    known = any(name.startswith(f"{head}.") for name in table.names)
    return head in table.columns and not known


Cells = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Reader:
    """Rules for the rows of a table.

    Attributes:
        rules: functions that return for a row why it is left out, or ''.
        columns: columns from which these rules read.
    """

    rules: tuple[Callable[[int], str], ...]
    columns: frozenset[str]

    def why(self, row: int) -> str:
        """Return the reason of the first rule by which a row is left out, or '' if no rule leaves it out."""
        reasons = (rule(row) for rule in self.rules)
        return next((reason for reason in reasons if reason), "")


def reader_of(found: Found, cells: Cells, rows: int) -> Reader:
    """Return the rules that leave out rows, one for each column whose values are believed.

    Args:
        cells: {column: its cells, None if empty}. A column without an entry counts as empty.
        rows: number of rows.
    """
    rules: list[Callable[[int], str]] = []
    believed: set[str] = set()
    makers = {"kind": _kind_rule, "error": _error_rule, "status": _status_rule, "success": _success_rule}
    for what, make in (makers | {"cached": _cached_rule}).items():
        for column in found.columns[what]:
            rule = make(column, cells.get(column, [None] * rows), found)
            if rule is not None:
                believed.add(column)
                rules.append(rule)
    return Reader(tuple(rules), frozenset(believed))


def _kind_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    """Return the rule that leaves out rows whose kind is no chat call.

    In a column without chats that is not sure to hold kinds, only kinds of `_NEVER_CHATS` are left out.
    Return None if the column has no kind of `CHATS` or `OTHERS`, unless the pool file names the column.
    Return None as well if no row is a chat and no row would be left out.
    """
    words = [_kind_word(value) for value in values]
    known = set(filter(None, words))
    is_sure = "kind" in found.named or plain(column) in {plain(name) for name in _SURE_KINDS}
    if not known & (CHATS | OTHERS) and "kind" not in found.named:
        return None
    if known & CHATS or (is_sure and (known & OTHERS or "kind" in found.named)):
        excluded = known - CHATS
    else:
        excluded = known & _NEVER_CHATS
    if not excluded and not known & CHATS:
        return None
    return lambda row: f"not a chat call ({words[row]:.40})" if words[row] in excluded else ""


def _kind_word(value: Any) -> str:
    """Return the kind that a cell names, in lower case, or '' if it names none.

    A reference to an operation of Weave (`weave:///.../op/NAME:...`) gives `embedding` if its name tells of
    embeddings, moderation, reranking, images or sound, else ''. A cell that is no text, or that is a span
    kind of OpenTelemetry (`SpanKind.CLIENT`), gives ''.
    """
    if isinstance(value, str) and value[:1] == '"':
        value = parsed(value)
    if not isinstance(value, str) or not value.strip():
        return ""
    operation = _OP.search(value)
    if operation is not None:
        if _NO_CHAT_OP.search(operation[1]):
            return "embedding"
        return ""
    word = word_of(value).removeprefix("spantype.")
    if word.startswith(("spankind", "span_kind")):
        return ""
    return word


def _status_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    """Return the rule that leaves out rows whose status says that the call failed or has not finished.

    Return None if the values of the column are no statuses of calls or are results of tests, unless the pool
    file names the column.
    """
    words = {word_of(value) for value in values if value not in (None, "")}
    if "status" not in found.named:
        if words & {"pass", "passed"} or (words and words <= _VERDICTS):
            return None
        is_known = {word for word in words if word in _ENDED_WELL or failed_by_status(word)}
        codes = [http_status(word) for word in words]
        is_code = any(code is not None and 100 <= code < 600 for code in codes)
        if not is_known and not is_code:
            return None
    span_codes = words <= {"0", "1", "2", "0.0", "1.0", "2.0"}

    def rule(row: int) -> str:
        value = values[row]
        if span_codes and value not in (None, ""):
            if float(value) == 2:
                return "failed"
            return ""
        return failed_by_status(value)

    return rule


def _success_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    """Return the rule that leaves out rows whose flag for success is false.

    Return None if the values of the column are no flags or a test harness wrote the table, unless the pool
    file names the column.
    """
    if "success" not in found.named and (found.is_harness or not _are_flags(values)):
        return None
    return lambda row: "failed" if values[row] not in (None, "") and not is_yes(values[row]) else ""


def _error_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    """Return the rule that leaves out rows with an error.

    A cell holds an error if it, or any value in its JSON, is anything but empty, 0, False or a word for no,
    such as `none` (`says_something`). NaN is no error, alone or inside JSON.

    A column of the numbers 0 and 1 is a flag. Return None if the column holds other numbers or a test harness
    wrote the table, unless the pool file names the column.
    """
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == v]
    if "error" not in found.named and (found.is_harness or any(v not in (0, 1) for v in numbers)):
        return None
    return lambda row: "failed" if says_something(parsed(values[row])) else ""


def _cached_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    """Return the rule that leaves out rows which a cache answered.

    Return None if the values of the column are no flags, unless the pool file names the column or its name
    ends in `status`.
    """
    if "cached" not in found.named and not (_are_flags(values) or plain(column).endswith("status")):
        return None
    return lambda row: "answered from a cache" if is_yes(values[row]) else ""


def _are_flags(values: Sequence[Any]) -> bool:
    """Return True if all values of a column are words such as true and false, yes and no, hit and miss.

    Empty cells do not count. A column of empty cells alone gives False.
    """
    words = {word_of(value) for value in values if value not in (None, "")}
    flags = "true false yes no 1 0 1.0 0.0 y n hit miss t f".split()
    return bool(words) and words <= set(flags)
