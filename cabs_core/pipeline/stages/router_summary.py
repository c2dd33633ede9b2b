"""The summary of the stage `router`, and the names of its files that other modules read.

The stage imports the loops of the policies, which numba compiles. Reports read the summary alone, so the
summary has a module without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cabs_core.pipeline.artifacts.results import Summary

#: file with the plays of the policies on the validation queries of each fold, if there are several folds
VALIDATION_PLAYS = "validation_plays.parquet"


@dataclass(frozen=True, kw_only=True)
class RouterSummary(Summary):
    """Router that the pool would deploy, or the reason why there is none.

    Attributes:
        not_made: why there is no bundle; the fields on the router are then empty, and only `rows`,
            `decisions` and `not_timed` hold something. Empty if there is a bundle.
        not_played: {policy: why it was no candidate}, None if all were; policy, rho: the chosen policy and
            its rho.
        models: number of models; bundle: id of the bundle; megabytes: its size.
        named: True if the pool file names the policy. Otherwise the policy is the best on validation.
        predicted: True if the policy was chosen on predicted outcomes, as for a log.
        gain: mean utility of the policy minus the best model's, on validation.
        latency: {percentile: milliseconds of a decision from the text on}, see `measure_latency`.
        same: agreement of the bundle's decisions with the replay's, see `Match`; card: the bundle's README.
        budgets: a row for each of the pool's budgets with what it buys, or the reason why there are none.
        decisions: p50 and p99 of single calls in microseconds, a row for each policy.
        not_timed: {policy: why its calls were not timed}.
    """

    not_made: str = ""
    not_played: Any = None
    policy: str = ""
    rho: float | None = None
    models: int = 0
    bundle: str = ""
    named: bool = False
    predicted: bool = False
    gain: float | None = None
    megabytes: float = 0.0
    latency: dict[str, float] = field(default_factory=dict)
    same: dict[str, Any] = field(default_factory=dict)
    card: str = ""
    budgets: list[dict[str, Any]] | str = ""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    not_timed: dict[str, str] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """Return {words: figure, text or rows} for people, in the order of display.

        If there is no bundle, the reason takes the place of the router's figures.
        """
        gain = f"utility minus the best model's, on validation{', predicted' if self.predicted else ''}"
        router = {
            "policy": self.policy,
            "rho": self.rho,
            "models": self.models,
            "bundle": self.bundle,
            "chosen": "named in the pool" if self.named else "best on validation",
            gain: self.gain,
            "megabytes": self.megabytes,
            "milliseconds from text": self.latency,
        }
        more = {
            "not played": self.not_played,
            "budgets, USD a request": self.budgets,
            "not timed": self.not_timed,
        }
        return {
            **super().shown(),
            **({"not made": self.not_made} if self.not_made else router),
            **{name: value for name, value in more.items() if value},
            "table": self.decisions,
        }
