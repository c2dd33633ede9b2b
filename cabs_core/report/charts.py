"""What the plots show, apart from how they are drawn: specifications that svg.py and png.py both render."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from cabs_core.report.data import LEVELS, REGIMES, PoolData
from cabs_core.report.names import headline, label, style


@dataclass(frozen=True)
class Series:
    """One line: x and y in data units, an optional band [low, high], markers, visible from the start or not."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: int
    dash: str = ""
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    markers: np.ndarray | None = None
    note: list[str] | None = None
    visible: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    zero_line: bool = False


@dataclass(frozen=True)
class Row:
    """One row of a forest plot: estimate with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    colour: int
    hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure: panels side by side, or rows of a forest plot; with caption and text for those who cannot see it."""

    key: str
    title: str
    caption: str
    alt: str
    panels: list[Panel] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    x_label: str = ""
    markers: list[tuple[str, float]] = field(default_factory=list)


def overview(data: PoolData) -> Chart:
    """Overall utility of every policy with its 95 % interval."""
    board = data.board.sort_values("utility", ascending=False)
    rows = []
    for policy, r in board.iterrows():
        spread = 1.96 * r["utility_se"] if pd.notna(r["utility_se"]) else 0.0
        rows.append(
            Row(label(policy), r["utility"], r["utility"] - spread, r["utility"] + spread, style(policy)[0],
                hollow=r["kind"] == "upper bound")
        )  # fmt: skip
    best = board.loc[data.best]
    return Chart(
        key="overview",
        title="Mean utility of every policy",
        caption=f"Mean utility over the cost regimes ({', '.join(r for r in regime_levels(data) if r != 'overall')}), "
        "with 95 % intervals (errors over trials "
        "and queries together). Hollow: upper bounds that see rewards no router sees. Intervals are of each policy "
        "alone; differences between policies are paired and much more precise (see the table).",
        alt=f"Dot plot of mean utility for {len(rows)} policies. Best real router: {label(data.best)} at "
        f"{best['utility']:.3f}; lowest: {rows[-1].name} at {rows[-1].value:.3f}.",
        rows=rows,
        x_label="mean utility (0 to 1)",
    )


def frontiers(data: PoolData) -> Chart:
    """Accuracy against cost for every policy over rho, hull vertices joined (RQ3)."""
    points = data.mart("pareto_frontier")
    shown = headline(list(data.board.index), data.best, data.reference) | {"best_single"}
    series = []
    for policy in data.board.index:
        own = points[points["policy"] == policy].sort_values(["cost_per_1000_calls", "score"])
        hull = own[own["on_own_hull"]]
        if own.empty:
            continue
        colour, dash = style(policy)
        series.append(
            Series(
                label(policy), hull["cost_per_1000_calls"].to_numpy(), hull["score"].to_numpy(), colour, dash,
                markers=own[["cost_per_1000_calls", "score"]].to_numpy(),
                note=[f"ρ = {r:g}" for r in hull["rho"]],
                visible=policy in shown and policy != "oracle_best",
            )
        )  # fmt: skip
    top = points[points["kind"] != "upper bound"].sort_values("score").iloc[-1]
    return Chart(
        key="frontiers",
        title="Accuracy against cost",
        caption="One point per cost sensitivity ρ; lines join the vertices of each policy's non-decreasing convex "
        "hull. Up and to the left is better.",
        alt=f"Accuracy against cost in USD per 1,000 calls for {len(series)} policies. The most accurate real router "
        f"setting is {label(top['policy'])} at ρ = {top['rho']:g}: {top['score']:.3f} for "
        f"${top['cost_per_1000_calls']:.3f} per 1,000 calls.",
        panels=[Panel("", "mean cost (USD per 1,000 calls)", "mean score (accuracy, 0 to 1)", series)],
    )


def regret_curves(data: PoolData) -> Chart | None:
    """Cumulative regret relative to the reference policy, one panel a regime (RQ4)."""
    curves = data.mart("regret_curves")
    curves = curves[curves["relative_regret"].notna()]
    if curves.empty:
        return None
    shown = headline(list(data.board.index), data.best, data.reference)
    panels, ends = [], []
    for regime in REGIMES:
        part = curves[curves["regime"] == regime]
        if part.empty:
            continue
        series = []
        for policy in data.board.index:
            own = part[part["policy"] == policy].sort_values("round")
            if own.empty or policy == "oracle_best":
                continue
            own = own.iloc[np.unique(np.linspace(0, len(own) - 1, 50).astype(int))]
            y = own["relative_regret"].to_numpy()
            spread = 1.96 * own["relative_regret_se"].fillna(0).to_numpy()
            colour, dash = style(policy)
            series.append(
                Series(label(policy), own["round"].to_numpy(), y, colour, dash, y - spread, y + spread,
                       visible=policy in shown)
            )  # fmt: skip
            if policy == data.best:
                ends.append(f"{regime}: {y[-1]:+.1f}")
        panels.append(
            Panel(
                f"{regime.capitalize()} cost sensitivity",
                "round (queries routed)",
                "relative regret (units of utility)",
                series,
                True,
            )
        )
    return Chart(
        key="regret",
        title=f"Cumulative regret relative to {label(data.reference)}",
        caption=f"Cumulative regret minus that of {label(data.reference)}, paired by trial, mean over trials and the "
        "regime's ρ; bands are 95 % intervals over trials. Below zero is better than the reference. One unit is the "
        "utility of one perfect free answer.",
        alt=f"Relative cumulative regret by round in {len(panels)} cost regimes. {label(data.best)} ends at "
        + "; ".join(ends) + ".",
        panels=panels,
    )  # fmt: skip


def utility_by_rho(data: PoolData) -> Chart:
    """Utility minus the reference's, over rho."""
    table = data.mart("utility_by_rho").pivot_table(index="rho", columns="policy", values="utility")
    shown = headline(list(data.board.index), data.best, data.reference) | {"best_single"}
    relative = data.reference in table.columns
    series = []
    for policy in data.board.index:
        if policy == "oracle_best" or policy not in table.columns:
            continue
        y = table[policy] - table[data.reference] if relative else table[policy]
        y = y.dropna()
        colour, dash = style(policy)
        series.append(
            Series(label(policy), y.index.to_numpy(), y.to_numpy(), colour, dash, visible=policy in shown)
        )
    what = f"utility minus {label(data.reference)}'s" if relative else "utility (0 to 1)"
    axis = f"{what} (units of utility)" if relative else what
    return Chart(
        key="rho",
        title="Utility at every cost sensitivity",
        caption=f"Mean {what}, by cost sensitivity ρ. Regimes: low ρ ≤ 300, medium, high ρ ≥ 800.",
        alt=f"Lines of {what} for {len(series)} policies over {len(table)} values of the cost sensitivity.",
        panels=[Panel("", "cost sensitivity ρ (per USD)", axis, series, zero_line=relative)],
    )


def regime_levels(data: PoolData) -> list[str]:
    """The regimes that the pool has, low to high, then overall."""
    present = set(data.regimes["regime"])
    return [level for level in LEVELS if level in present]
