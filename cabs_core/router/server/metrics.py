"""Figures in Prometheus' text format. Counts come from the log, which all workers share; times are this worker's."""

from __future__ import annotations

import os
import threading

from cabs_core.router.events import EventLog

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Histogram:
    """Counts of durations up to each bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts, self.total, self.n = [0] * len(BOUNDS), 0.0, 0

    def observe(self, seconds: float) -> None:
        """One duration."""
        with self._lock:
            self.n, self.total = self.n + 1, self.total + seconds
            for i, bound in enumerate(BOUNDS):
                self.counts[i] += seconds <= bound

    def lines(self, name: str, labels: str) -> list[str]:
        """Lines of the text format."""
        found = [f'{name}_bucket{{{labels},le="{b}"}} {c}' for b, c in zip(BOUNDS, self.counts, strict=True)]
        return [
            f"# TYPE {name} histogram", *found, f'{name}_bucket{{{labels},le="+Inf"}} {self.n}',
            f"{name}_sum{{{labels}}} {self.total}", f"{name}_count{{{labels}}} {self.n}",
        ]  # fmt: skip


def metrics_text(log: EventLog, bundle: str, times: dict[str, Histogram], gauges: dict[str, float]) -> str:
    """The page that Prometheus reads."""
    lines = ["# TYPE cabs_decisions_total counter"]
    for arm, status, count in log.counts():
        lines.append(f'cabs_decisions_total{{model="{_escaped(arm)}",status="{_escaped(status)}"}} {count}')
    lines += ["# TYPE cabs_rewards_total counter", f"cabs_rewards_total {log.reward_count()}"]
    lines += ["# TYPE cabs_bundle gauge", f'cabs_bundle{{id="{bundle}"}} 1']
    worker = f'worker="{os.getpid()}"'
    for name, value in gauges.items():
        lines += [f"# TYPE cabs_{name} gauge", f"cabs_{name}{{{worker}}} {value}"]
    for name, histogram in times.items():
        lines += histogram.lines(f"cabs_{name}_seconds", worker)
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
