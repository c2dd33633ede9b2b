"""A log with a row a call, whoever wrote it: which columns say how a call ended, and what it belongs to.

The columns are found by their names, of which the case and the separators do not count: `isSuccess`,
`is_success` and `response.is_success` differ in the last alone. A name alone is not believed: a column of
`type` says whether a row is a chat only if some of its values are kinds of calls. `columns` of the pool file
names a column in place of the rule, or null.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cabs_core.data.endpoints.usage import INPUT
from cabs_core.data.logs.calls import failed_by_status, http_status, is_yes, says_something, word_of
from cabs_core.data.tables.battles import plain
from cabs_core.data.tables.dotted import parsed
from cabs_core.data.tables.table import Table

#: what a rule looks for -> names of columns by LangSmith, Braintrust, Weave, Portkey, Cloudflare, MLflow,
#: Bedrock and their likes, the surest first
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
_ORDER = tuple("start_time started_at created_at created timestamp time request_time date".split())
#: kinds of calls that answer a prompt
CHATS = frozenset(
    (
        "llm chat chat_model chatmodel chat_completion chat_completions chat.completion "
        "chat.completion.chunk completion completions text_completion generation generate "
        "generate_content text_generation converse conversestream converse_stream invokemodel invoke_model "
        "invokemodelwithresponsestream invoke_model_with_response_stream acompletion response responses "
        "messages message model_call model"
    ).split()
)
#: other kinds of entries
OTHERS = frozenset(
    (
        "embedding embeddings tool function chain retriever retrieval agent task eval score prompt parser "
        "reranker rerank moderation moderations guardrail workflow span event trace facet automation review "
        "image images image_generation speech audio transcription invoke_agent execute_tool evaluator "
        "memory unknown"
    ).split()
)
_NEVER_CHATS = frozenset(
    (
        "embedding embeddings rerank reranker moderation moderations speech transcription image_generation"
    ).split()
)
#: columns whose values are always kinds of calls
_SURE_KINDS = frozenset(NAMES["kind"][:8])
_OP = re.compile(r"/op/([^:/]+)")
_NO_CHAT_OP = re.compile(r"embed|moderat|rerank|images?\.|audio|transcri|speech", re.IGNORECASE)
_ENDED_WELL = frozenset(
    (
        "success succeeded ok okay completed complete finished done status_code_ok status_code_unset unset "
        "stop"
    ).split()
)
#: words for the result of a test, which say nothing of the call
_VERDICTS = frozenset("pass passed fail".split())
#: columns that the tables of test harnesses have: `success` and `error` are then about the answer
_HARNESS = frozenset(
    (
        "gradingresult namedscores failurereason testidx assertions expected target goldanswer groundtruth"
    ).split()
)
_UNREAD = frozenset("status error cached success exception".split())


def endings_unread(names: Iterable[str]) -> list[str]:
    """Return the names, of those that were not read, that may say how a call ended."""
    return [name for name in names if plain(name.rpartition(".")[2]) in _UNREAD]


def is_portkey(columns: Iterable[str]) -> bool:
    """Whether Portkey exported a table: its column `cost` is in cents."""
    names = {plain(name) for name in columns}
    return "aimodel" in names and bool(names & {"aiorg", "requnits", "resunits", "costcurrency"})


@dataclass
class Found:
    """Columns of a table that rules are read from.

    Attributes:
        columns: {what a rule looks for: columns, the surest first}.
        named: rules whose column `columns` of the pool file names.
    """

    columns: dict[str, list[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    order: list[str] = field(default_factory=list)
    is_harness: bool = False

    def every(self) -> list[str]:
        """All columns, each once."""
        return list(dict.fromkeys([c for names in self.columns.values() for c in names] + self.order))


def find_columns(table: Table, chosen: Mapping[str, str | None]) -> Found:
    """Find the columns of a table that rules read; what `chosen` uses for a value of a call is left to it."""
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
            found.columns[what] = [str(chosen[what])] if chosen[what] is not None else []
            continue
        there = [column for name in names for column in by_name.get(plain(name), [])]
        there += [name for name in names if "." in name and _within_text(name, table)]
        # what holds an id or the tokens may serve as session, too; what says how a call ended is one thing
        shared = what in ("usage", "trace", "parent", "id")
        found.columns[what] = [name for name in dict.fromkeys(there) if shared or name not in taken]
    found.order = [column for name in _ORDER for column in by_name.get(plain(name), [])][:1]
    for what in ("trace", "id"):
        found.columns[what] = found.columns[what][:3]
    if not found.columns["usage"] and "usage" not in chosen:
        flat = [name for name in table.columns if name in INPUT]
        found.columns["usage"] = [""] if flat else []
    return found


def _within_text(path: str, table: Table) -> bool:
    """Whether a path leads into a column whose fields are not known before it is read."""
    head = path.partition(".")[0]
    known = any(name.startswith(f"{head}.") for name in table.names)
    return head in table.columns and not known


Cells = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Reader:
    """Says of each row why it is left out. columns: those that were believed."""

    rules: tuple[Callable[[int], str], ...]
    columns: frozenset[str]

    def why(self, row: int) -> str:
        """Return the reason why a row is no answer of a model, or '' if it is one."""
        return next((reason for rule in self.rules if (reason := rule(row))), "")


def reader_of(found: Found, cells: Cells, rows: int) -> Reader:
    """Look at the values of the columns that were found, and keep those that say how a call ended."""
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
    """Return the kind that a cell names; of an operation of Weave only that it is no chat."""
    value = parsed(value) if isinstance(value, str) and value[:1] == '"' else value
    if not isinstance(value, str) or not value.strip():
        return ""
    operation = _OP.search(value)
    if operation is not None:
        return "embedding" if _NO_CHAT_OP.search(operation[1]) else ""
    word = word_of(value).removeprefix("spantype.")
    return "" if word.startswith(("spankind", "span_kind")) else word


def _status_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
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
            return "failed" if float(value) == 2 else ""
        return failed_by_status(value)

    return rule


def _success_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    if "success" not in found.named and (found.is_harness or not _are_flags(values)):
        return None
    return lambda row: "failed" if values[row] not in (None, "") and not is_yes(values[row]) else ""


def _error_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == v]
    if "error" not in found.named and (found.is_harness or any(v not in (0, 1) for v in numbers)):
        is_text = not numbers and not found.is_harness
        if not is_text:
            return None
    return lambda row: "failed" if says_something(parsed_error(values[row])) else ""


def parsed_error(value: Any) -> Any:
    """Return what a cell of errors holds: an empty list or object in JSON is nothing."""
    value = parsed(value)
    return None if isinstance(value, float) and value != value else value


def _cached_rule(column: str, values: Sequence[Any], found: Found) -> Callable[[int], str] | None:
    if "cached" not in found.named and not (_are_flags(values) or plain(column).endswith("status")):
        return None
    return lambda row: "answered from a cache" if is_yes(values[row]) else ""


def _are_flags(values: Sequence[Any]) -> bool:
    """Whether the values of a column are true and false, yes and no, hit and miss, 1 and 0."""
    words = {word_of(value) for value in values if value not in (None, "")}
    flags = "true false yes no 1 0 1.0 0.0 y n hit miss t f".split()
    return bool(words) and words <= set(flags)
