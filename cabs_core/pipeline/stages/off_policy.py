"""Stage `off_policy`: what the pool's policies would have earned on logged traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.router.policies_on_log import as_table, evaluate_folds, evaluate_pool, logged_decisions

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target

ESTIMATES = "estimates.parquet"
#: what the policies would play on the prompts of a pool's own log (`policies_on_log.PLAYED`)
HELD_OUT_PLAYS = "held_out_plays.parquet"
_SHOWN = ("policy", "rho", "value", "low", "high", "difference", "difference_low", "difference_high", "n_eff")


@dataclass(frozen=True, kw_only=True)
class OffPolicySummary(Summary):
    """Estimates from a log: what the pool's policies would have earned.

    Attributes:
        decisions: number of decisions of the log on which the estimates rest.
        read: lines on how the router's log was read; empty if the pool's source is a log.
        refused: policies that the log cannot evaluate, and why.
        estimates: doubly robust estimates of utility, a row for each policy and rho.
    """

    decisions: int
    read: list[str]
    refused: list[str]
    estimates: list[dict[str, Any]]

    def shown(self) -> dict[str, Any]:
        """Return {name: value} for people: numbers of rows and decisions, `read`, `refused`, `table`.

        The table is the list of estimates.
        """
        figures = {"decisions": self.decisions, "read": self.read, "refused": self.refused}
        return {**super().shown(), **figures, "table": self.estimates}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> OffPolicySummary:
    """Write the estimates of the pool's policies to `folder`, and return a summary.

    If the pool's source is a log, each policy is evaluated on the log's held-out prompts, and the arms that
    the policies would play there are written, too. Otherwise the log of the pool's router is used.
    """
    if chain.pool.logged:
        rows, played = evaluate_folds(chain.pool, inputs, notify=options.notify)
        played.to_parquet(folder / HELD_OUT_PLAYS, index=False)
        decisions = max((int(row["n"]) for row in rows), default=0)
        read: list[str] = []
    else:
        data = logged_decisions(chain.pool_file, inputs)
        rows = evaluate_pool(chain.pool, inputs, data, notify=options.notify)
        decisions = len(data)
        read = list(data.receipt)
    pq.write_table(as_table(rows), folder / ESTIMATES)
    shown = [r for r in rows if (r["estimator"], r["outcome"]) == ("dr", "utility")]
    return OffPolicySummary(
        rows=len(rows),
        decisions=decisions,
        read=read,
        refused=[f"{r['policy']} at rho {r['rho']:g}: {r['refused']}" for r in rows if r["refused"]],
        estimates=[{name: row[name] for name in _SHOWN} for row in shown],
    )
