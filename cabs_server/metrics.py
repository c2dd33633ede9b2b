"""Figures of a server for Prometheus.

Calls, scores and their recorded cost are summed in the log, which all workers share. The other counters are
those of this worker since it started, and gauges are its state now.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from http import HTTPStatus
from typing import TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from cabs_core.data.endpoints.replies import REFUSALS
from cabs_core.data.endpoints.usage import Bill, Tokens
from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import FAILED

# the time at which each counter began would be a second series for every series
disable_created_metrics()  # type: ignore[no-untyped-call]

#: bounds of the histograms' buckets, seconds
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
#: {counter or histogram that this worker counts: its labels}
_LABELS: dict[str, tuple[str, ...]] = {
    "upstream_calls_total": ("model", "status"),
    "upstream_failures_total": ("model", "reason"),
    "upstream_refusals_total": ("model", "reason"),
    "upstream_seconds": ("model",),
    "cost_usd_total": ("model",),
    "fixed_model_cost_usd_total": (),
    "routed_cost_usd_total": (),
    "tokens_total": ("model", "kind"),
    "estimated_total": ("model",),
    "unrouted_total": ("reason",),
    "unlogged_total": (),
    "over_cap_total": (),
    "refused_total": ("status",),
    "decision_seconds": (),
    "request_seconds": (),
}
#: {beginning of a failure's reason: value of the label `reason`}. Every other reason is counted as `OTHER`,
#: so that neither callers nor upstreams can make series
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
#: fields of `Tokens` that count tokens: the values of the label `kind`
_KINDS = tuple(f.name for f in fields(Tokens) if f.name not in ("usd", "searches", "tier", "currency"))
#: name without prefix, labels and value of a figure
Sample = tuple[str, Mapping[str, str], float]
M = TypeVar("M", Counter, Histogram)


def label_of(reason: str) -> str:
    """Return the value of the label `reason` for the words of a failure, which differ from call to call.

    The value is `HTTP` with the status, a value of `REASONS`, or `OTHER`.
    """
    if reason.startswith("HTTP "):
        return reason.partition(":")[0]
    return next((label for words, label in REASONS.items() if reason.startswith(words)), OTHER)


class Counters:
    """Counters and histograms of this worker. Several threads may use them.

    Attributes:
        registry: Prometheus' registry of all of them, each with the label `worker`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._worker = str(os.getpid())
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        #: {(name, values of its labels): its series}, since prometheus_client looks each one up under a lock
        self._series: dict[tuple[str, ...], Counter | Histogram] = {}
        for name, labels in _LABELS.items():
            kind, text = HELP[name]
            every = ("worker", *labels)
            if kind == "counter":
                self._counters[name] = Counter(f"cabs_{name}", text, every, registry=self.registry)
            else:
                self._histograms[name] = Histogram(
                    f"cabs_{name}", text, every, registry=self.registry, buckets=BOUNDS
                )

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Raise a counter by an amount of at least 0.

        `_VALUES` lists the values of some labels. Any other value of such a label becomes `OTHER`.
        """
        for label, values in _VALUES.get(name, {}).items():
            if labels[label] not in values:
                labels[label] = OTHER
        self._series_of(self._counters, name, labels).inc(amount)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration to a histogram."""
        self._series_of(self._histograms, name, labels).observe(seconds)

    def _series_of(self, metrics: Mapping[str, M], name: str, labels: Mapping[str, str]) -> M:
        """Return the series of a counter or histogram with these labels, which is made at its first use."""
        key = (name, *labels.values())
        series = self._series.get(key)
        if series is None:
            series = metrics[name].labels(worker=self._worker, **labels)
            self._series[key] = series
        return cast(M, series)

    def call(
        self, model: str, status: str, reason: str, seconds: float, bill: Bill, fallback_usd: float | None
    ) -> None:
        """Count an attempt at an upstream that has ended.

        Args:
            status: how the attempt ended, as in the log. reason: why it failed or was refused, in words.
            seconds: duration of the attempt. bill: its cost and token counts.
            fallback_usd: USD that the fallback model was expected to cost instead, which is counted only if
                the attempt was answered and the cost of the bill is known. None if the fallback's cost is
                unknown, or if the router did not choose the model.
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
        if bill.is_estimated:
            self.add("estimated_total", model=model)
        if bill.tokens is not None:
            for kind in _KINDS:
                count = getattr(bill.tokens, kind)
                if count:
                    self.add("tokens_total", count, model=model, kind=kind)


def metrics_text(log: EventLog, bundle: str, counters: Counters, states: Sequence[Sample]) -> str:
    """Return the page that Prometheus reads.

    Args:
        bundle: id of the bundle that decides.
        states: figures of this worker that are read from its objects and not counted by events.
    """
    worker = {"worker": str(os.getpid())}
    samples = [
        *_of_log(log, bundle),
        *((name, {**worker, **labels}, value) for name, labels, value in states),
    ]
    registry = CollectorRegistry()
    families: dict[str, Counter | Gauge] = {}
    for name, labels, value in samples:
        if name not in families:
            kind, text = HELP[name]
            family = Counter if kind == "counter" else Gauge
            families[name] = family(f"cabs_{name}", text, tuple(labels), registry=registry)
        if labels:
            series = families[name].labels(**labels)
        else:
            series = families[name]
        series.inc(value)  # from 0: the registry is a new one
    return (generate_latest(registry) + generate_latest(counters.registry)).decode()


def _of_log(log: EventLog, bundle: str) -> Iterator[Sample]:
    """Yield the figures from the log, which all workers share, and the figure that names the bundle."""
    plays: dict[str, int] = {}
    for arm, status, count in log.counts():
        plays[arm] = plays.get(arm, 0) + count
        if status not in ("decided", "called"):
            yield "calls_ended_total", {"model": arm, "status": status}, count
    for arm, count in plays.items():
        yield "decisions_total", {"model": arm}, count
    yield "rewards_total", {}, log.reward_count()
    yield "spent_usd_total", {}, log.spent()
    yield "bundle", {"id": bundle}, 1
