"""Figures in Prometheus' text format. Calls and rewards come from the log, which all workers share; the rest
is this worker's, since it started. Counters only rise."""

import os
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import accumulate

from cabs_core.data.endpoints.replies import REFUSALS
from cabs_core.data.endpoints.usage import Bill
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import FAILED

BOUNDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
#: name without prefix -> (type, help)
HELP = {
    "decisions_total": ("counter", "Calls by the model that was chosen or named, from the log"),
    "calls_ended_total": ("counter", "Calls by how they ended, from the log"),
    "rewards_total": ("counter", "Scores that were recorded, from the log"),
    "spent_usd_total": ("counter", "Recorded cost of all calls, from the log"),
    "bundle": ("gauge", "The bundle that decides"),
    "upstream_calls_total": ("counter", "Attempts at upstreams by model and how they ended"),
    "upstream_failures_total": ("counter", "Attempts that failed, by model and reason"),
    "upstream_refusals_total": (
        "counter",
        "Requests that a model refused and another was asked: too long, a field, a filter; by model and "
        "reason",
    ),
    "upstream_seconds": ("histogram", "Time of attempts by model; of a stream: until its end"),
    "cost_usd_total": ("counter", "Cost of attempts by model, reported or estimated"),
    "fixed_model_cost_usd_total": (
        "counter",
        "What the routed calls would have cost at the fallback model, expected",
    ),
    "routed_cost_usd_total": ("counter", "What the same calls cost; the difference is what was saved"),
    "tokens_total": ("counter", "Tokens by model and kind"),
    "estimated_total": ("counter", "Attempts whose cost was estimated, by model"),
    "unrouted_total": (
        "counter",
        "Requests that the fallback model answered because nothing was decided, by reason",
    ),
    "unlogged_total": ("counter", "Ends of calls that could not be logged"),
    "over_cap_total": ("counter", "Requests refused because the budget of the day was spent"),
    "refused_total": ("counter", "Requests refused, by status"),
    "breaker_open": ("gauge", "1 while an upstream is left alone"),
    "breaker_opened_total": ("counter", "How often an upstream's breaker opened"),
    "learnt_rewards": ("gauge", "Scores that taught the policy"),
    "keeper_failures_total": ("counter", "Failures to keep up with the log or a new bundle"),
    "follower_failures_total": ("counter", "Failures to fetch a new bundle from its URL"),
    "budget_rho": ("gauge", "The rho that the budget asks for"),
    "budget_spent_usd": ("gauge", "Spent since the pacer began, all workers"),
    "cap_spent_usd": ("gauge", "Spent today, all workers"),
    "cap_usd": ("gauge", "Limit of a day"),
    "decision_seconds": ("histogram", "Time of decisions"),
    "request_seconds": ("histogram", "Time of requests, of streams until they begin"),
}
#: label -> its values; anything else is counted as OTHER, so that neither callers nor upstreams make series.
#: `model`, `kind`: of the upstreams file and of `usage.Tokens`
REASONS = {
    "no answer within": "timeout",
    "cannot be reached": "unreachable",
    "broke off": "broke off",
    "ended early": "ended early",
    "ended before it began": "ended early",
    "error in the stream": "error in the stream",
    "answered": "no answer in it",
}
UNROUTED = (
    "no text",
    "paused",
    "timeout",
    "policy",
    "LogError",
    "RouterError",
    "EncoderError",
    "StorageError",
)
OTHER = "other"
_STATUSES = frozenset(str(int(status)) for status in HTTPStatus)
_VALUES = {
    "refused_total": {"status": _STATUSES},
    "unrouted_total": {"reason": frozenset(UNROUTED)},
    "upstream_refusals_total": {"reason": frozenset(REFUSALS.values())},
    "upstream_failures_total": {
        "reason": frozenset(REASONS.values()) | {f"HTTP {status}" for status in _STATUSES}
    },
}
Labels = tuple[tuple[str, str], ...]


def label_of(reason: str) -> str:
    """The kind of a failure whose words differ from call to call."""
    if reason.startswith("HTTP "):
        return reason.partition(":")[0]
    return next((label for words, label in REASONS.items() if reason.startswith(words)), OTHER)


@dataclass
class Histogram:
    """Durations: between: how many lie between the bounds; total: their sum, seconds."""

    between: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0


class Counters:
    """Counters and histograms by labels; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: dict[tuple[str, Labels], float] = {}
        self.histograms: dict[tuple[str, Labels], Histogram] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter; amount >= 0."""
        for label, values in _VALUES.get(name, {}).items():
            if labels[label] not in values:
                labels[label] = OTHER
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self.values[key] = self.values.get(key, 0.0) + amount

    def value(self, name: str, **labels: str) -> float:
        """A counter."""
        return self.values.get((name, tuple(sorted(labels.items()))), 0.0)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """One duration of a histogram."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            histogram = self.histograms.setdefault(key, Histogram())
            histogram.total += seconds
            histogram.between[bisect_left(BOUNDS, seconds)] += 1

    def now(self) -> tuple[dict[tuple[str, Labels], float], dict[tuple[str, Labels], Histogram]]:
        """Counters and histograms as they are."""
        with self._lock:
            return dict(self.values), dict(self.histograms)

    def call(
        self, model: str, status: str, reason: str, seconds: float, bill: Bill, fallback_usd: float | None
    ) -> None:
        """An attempt at an upstream ended.

        Args:
            fallback_usd: what the fallback was expected to cost instead, USD; None: unknown, or nobody chose.
        """
        self.add("upstream_calls_total", model=model, status=status)
        if status in FAILED:
            self.add("upstream_failures_total", model=model, reason=label_of(reason))
        if status == "refused":
            self.add("upstream_refusals_total", model=model, reason=reason.partition(" (")[0])
        self.observe("upstream_seconds", seconds, model=model)
        if bill.cost is not None:
            self.add("cost_usd_total", bill.cost, model=model)
            if fallback_usd is not None:
                if status == "answered":  # a request is answered once, whatever its attempts cost
                    self.add("fixed_model_cost_usd_total", fallback_usd)
                self.add("routed_cost_usd_total", bill.cost)
        if bill.estimated:
            self.add("estimated_total", model=model)
        if bill.tokens is not None:
            for kind, count in vars(bill.tokens).items():
                if count and kind not in ("usd", "searches", "tier", "currency"):
                    self.add("tokens_total", count, model=model, kind=kind)


def metrics_text(
    log: EventLog, bundle: str, counters: Counters, gauges: Sequence[tuple[str, Mapping[str, str], float]]
) -> str:
    """The page that Prometheus reads.

    Args:
        gauges: (name, labels, value) of this worker beside its counters.
    """
    lines: dict[str, list[str]] = {}

    def put(name: str, labels: Mapping[str, str], value: float, suffix: str = "") -> None:
        inner = ",".join(f'{k}="{_escaped(v)}"' for k, v in labels.items())
        label_text = f"{{{inner}}}" if inner else ""
        lines.setdefault(name, []).append(f"cabs_{name}{suffix}{label_text} {value:.17g}")

    plays: dict[str, int] = {}
    for arm, status, count in log.counts():
        plays[arm] = plays.get(arm, 0) + count
        if status not in ("decided", "called"):
            put("calls_ended_total", {"model": arm, "status": status}, count)
    for arm, count in plays.items():
        put("decisions_total", {"model": arm}, count)
    put("rewards_total", {}, log.reward_count())
    put("spent_usd_total", {}, log.spent())
    put("bundle", {"id": bundle}, 1)
    worker = {"worker": str(os.getpid())}
    values, histograms = counters.now()
    for (name, labels), value in sorted(values.items()):
        put(name, {**worker, **dict(labels)}, value)
    for name, gauge_labels, value in gauges:
        put(name, {**worker, **gauge_labels}, value)
    for (name, labels), histogram in sorted(histograms.items(), key=lambda item: item[0]):
        mine = {**worker, **dict(labels)}
        *counts, every = accumulate(histogram.between)
        for bound, count in zip(BOUNDS, counts, strict=True):
            put(name, {**mine, "le": f"{bound:g}"}, count, "_bucket")
        put(name, {**mine, "le": "+Inf"}, every, "_bucket")
        put(name, mine, histogram.total, "_sum")
        put(name, mine, every, "_count")
    out = []
    for name, samples in lines.items():
        kind, text = HELP[name]
        out += [f"# HELP cabs_{name} {text}", f"# TYPE cabs_{name} {kind}", *samples]
    return "\n".join(out) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
