"""Figures of a pool's page, one function each, and the chart of quality against cost."""

from collections.abc import Iterator

import altair as alt
import numpy as np
import pandas as pd

from cabs_core.base.catalog.roles import BEST_SINGLE, NO_ROUTERS, ORACLE_BEST
from cabs_core.base.statistics.uncertainty import half_width
from cabs_core.base.units import money, percentage
from cabs_core.base.utility import middle_rho
from cabs_core.report import evidence as facts
from cabs_core.report.data import LEVELS, PoolData
from cabs_core.report.evidence import Evidence
from cabs_core.report.names import LEVEL_NAMES, label, policies_shown_first, style
from cabs_core.report.plots.charts import (
    NARROW,
    cost_scale,
    encodings,
    end_labels,
    intervals,
    lines,
    points,
    short,
    tooltips,
)
from cabs_core.report.plots.figure import Figure, FigureTable, ViewChoice
from cabs_core.report.plots.theme import Style, default_styles
from cabs_core.report.recovery import legend_of, level_choice, recovery, regret_lines
from cabs_core.report.tables import number

#: most models of the figure of shares; the others are drawn together
_MOST_MODELS = 6


def figures(data: PoolData, evidence: Evidence | None) -> Iterator[tuple[str, Figure | None]]:
    """Yield key and figure one by one, with None in place of a figure for which the pool has no data.

    Args:
        evidence: replays with their problem; None if they are not at hand.
    """
    best = next(iter(data.routers), None)
    yield "overview", overview(data)
    yield "frontiers", frontiers(data, evidence)
    yield "regret", regret(data)
    yield "recovery", recovery(data, evidence)
    yield "rho", utility_by_rho(data)
    yield "shares", shares(evidence, best) if evidence and best else None
    yield "calibration", calibration(evidence) if evidence else None


def overview(data: PoolData) -> Figure:
    """Figure of the mean utility of every policy, with its 95 % interval."""
    board = data.board.sort_values("utility", ascending=False)
    ends = [data.interval(policy) for policy in board.index]
    frame = pd.DataFrame(
        {
            "name": [label(p) for p in board.index],
            "value": board["utility"].to_numpy(),
            "low": [low for low, _ in ends],
            "high": [high for _, high in ends],
            "text": [f"{v:.3f}" for v in board["utility"]],
            "style": [style(p) for p in board.index],
            "hollow": (board["kind"] == "upper bound").to_numpy(),
        }
    )
    best = board.loc[data.best]
    return Figure(
        key="overview",
        title="Mean utility of every policy",
        caption="Mean utility over the cost regimes, with two-sided 95 % intervals of each policy alone "
        "(errors over trials and queries together). Hollow: upper bounds, which see rewards that no router "
        "sees. Differences between policies are paired and much more precise; the table below gives them.",
        alt=f"Dot plot of mean utility for {len(board)} policies. Best real router: {label(data.best)} at "
        f"{best['utility']:.3f}; lowest: {frame['name'].iloc[-1]} at {frame['value'].iloc[-1]:.3f}.",
        chart=intervals(frame, x_title="mean utility (0 to 1)"),
        table=FigureTable(
            ["Policy", "Mean utility", "95 % from", "to"],
            [
                [r.name, *(f"{v:.3f}" for v in (r.value, r.low, r.high))]
                for r in frame.itertuples(index=False)
            ],
        ),
    )


def frontiers(data: PoolData, evidence: Evidence | None) -> Figure:
    """Figure of mean score against cost, with models as points and routers as lines over rho.

    `random`, `best_single` and the upper bound `oracle_best` have no line. Without evidence there are no
    points of models.
    """
    settings = data.mart("pareto_frontier").rename(columns={"cost_per_1000_calls": "x", "score": "y"})
    margin = np.nan_to_num(half_width(settings["score_se_trials"], data.info["trials"]))
    settings["low"] = (settings["y"] - margin).clip(0.0, 1.0)
    settings["high"] = (settings["y"] + margin).clip(0.0, 1.0)
    left_out = (*NO_ROUTERS, ORACLE_BEST)
    with_settings = set(settings["policy"])
    drawn = [p for p in data.board.index if p not in left_out and p in with_settings]
    shown = {
        p
        for p in policies_shown_first(drawn, data.best, data.reference)
        if data.board.loc[p, "kind"] != "upper bound"
    }
    frames = [pd.DataFrame(columns=["rho", "series", "x", "y", "low", "high"])]
    for policy in drawn:
        points = settings[settings["policy"] == policy]
        if evidence is not None and any(name == policy for name, _ in evidence.folders):
            points = facts.frontier_points(evidence, policy).rename(columns={"cost": "x", "score": "y"})
        frames.append(points[["rho", "x", "y", "low", "high"]].assign(series=label(policy)).sort_values("x"))
    frame = pd.concat(frames[1:] or frames)
    if evidence is not None:
        models = facts.single_models(evidence)
    else:
        models = None
    styles, legend = legend_of(drawn, shown)
    visible = {label(p) for p in shown}
    rows = []
    if models is not None:
        rows += [[m.model, "–", f"{m.score:.3f}", f"{money(m.cost)}"] for m in models.itertuples()]
    rows += [[r.series, f"{r.rho:g}", f"{r.y:.3f}", f"{money(r.x)}"] for r in frame.itertuples()]
    of_routers = frame[frame["series"].isin([label(p) for p in data.routers])].reset_index(drop=True)
    axis_text = "; the cost axis is logarithmic" if _has_log_axis(frame, models) else ""
    highest = ""
    if len(of_routers):
        top = of_routers.sort_values("y").iloc[-1]
        highest = (
            f" The highest mean score of a router is {top['series']}'s at ρ = {top['rho']:g}: {top['y']:.3f} "
            f"for {money(top['x'])}."
        )
    return Figure(
        key="frontiers",
        title="Single models and routers: mean score and price",
        caption="Squares: single models (dark: no cheaper model scores as well, joined by the dotted line). "
        "Coloured symbols: routers, one for each ρ; error bars are two-sided 95 % intervals of the mean "
        f"score. Up and to the left is better{axis_text}.",
        alt=f"Mean score against cost in USD per 1,000 requests for {0 if models is None else len(models)} "
        f"models and {len(drawn)} policies.{highest}",
        chart=frontier_chart(frame, models, styles, visible),
        table=FigureTable(["Model or policy", "ρ", "Mean score", "USD per 1,000 requests"], rows),
        legend=legend,
    )


def _has_log_axis(frame: pd.DataFrame, models: pd.DataFrame | None) -> bool:
    """Return True if the axis of costs is logarithmic, which it is unless a policy or a model is free."""
    costs = frame["x"].tolist()
    if models is not None:
        costs += models["cost"].tolist()
    return all(cost > 0 for cost in costs)


def frontier_chart(
    frame: pd.DataFrame, models: pd.DataFrame | None, styles: dict[str, Style], visible: set[str]
) -> alt.LayerChart | alt.FacetChart:
    """Return the chart of routers as lines over rho and models as points.

    Args:
        frame: points of routers, with the columns series, rho, x (USD per 1,000 requests), y (mean score),
            low and high (ends of its interval).
        models: table of `evidence.single_models`; None if it is not at hand.
        styles: {series: style}.
        visible: series that are drawn at first.
    """
    layers: list[alt.Chart] = []
    log = _has_log_axis(frame, models)
    x_title = "USD per 1,000 requests (log scale)" if log else "USD per 1,000 requests"
    y_title = "mean score (0 to 1)"
    costs = frame["x"].tolist()
    if models is not None:
        costs += models["cost"].tolist()
    scale = cost_scale(costs or [1.0], log)
    names_at = max(costs, default=1.0) * (1.4 if log else 1.06)
    if models is not None:
        named = models.rename(columns={"model": "name", "cost": "x", "score": "y"})
        named["short"] = [short(n, 24) for n in named["name"]]
        layers += points(
            named.sort_values("x"), x_title=x_title, y_title=y_title, scale=scale, names_end=names_at
        )
    x = alt.X("x:Q", title=x_title, scale=scale, axis=alt.Axis(format="$~g", tickCount=5))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(frame.round(6)).transform_filter("indexof(hidden, datum.series) < 0")
    colour, dash, shape = encodings(styles)
    read = tooltips(frame, series=" ", rho="ρ", y="mean score", x="USD per 1,000")
    layers += [
        base.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_rule(strokeWidth=1.2, opacity=0.7).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        base.mark_point(filled=True, size=65, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape, tooltip=read
        ),
    ]
    if models is None:
        drawn = frame
    else:
        drawn = pd.concat([frame, models.rename(columns={"score": "y"})])
    scores = drawn[["y", "low", "high"]].to_numpy(dtype=float)
    # names stand in a column right of all points, joined to the ends of their lines
    ends = frame.sort_values("x").groupby("series", sort=False).tail(1)[["series", "x", "y"]]
    places = end_labels(
        ends.assign(x=names_at),
        visible,
        420,
        span=1.15 * float(np.nanmax(scores) - np.nanmin(scores)) if len(scores) else 1.0,
    )
    places = places.merge(ends.rename(columns={"x": "end_x", "y": "end_y"}), on="series")
    named = alt.Chart(places).transform_filter("indexof(hidden, datum.series) < 0 && !narrow")
    layers += [
        named.mark_rule(strokeWidth=0.8, opacity=0.6).encode(
            x=x, y=alt.Y("y:Q"), x2="end_x:Q", y2="end_y:Q", color=colour
        ),
        named.mark_text(align="left", dx=5).encode(x=x, y=alt.Y("y:Q"), text="series:N", color=colour),
    ]
    hidden = alt.param(name="hidden", value=[n for n in styles if n not in visible])
    return alt.layer(*layers).add_params(hidden, NARROW).properties(height=420)


def regret(data: PoolData) -> Figure | None:
    """Figure of cumulative regret by round and cost regime, absolute and relative to the reference policy.

    None if no replay has regret. The upper bound `oracle_best` has no line.
    """
    reference = label(data.reference)
    # {kind of regret: (column of the mart, name of the choice, header of the table, format of a figure)}
    kinds = {
        "relative": (
            "relative_regret",
            f"minus {reference}'s",
            f"Final regret minus {reference}'s (95 %)",
            "+.1f",
        ),
        "absolute": ("cumulative_regret", "absolute", "Final regret (95 %)", ".1f"),
    }
    lines_of = {
        kind: regret_lines(data, column, 20, (ORACLE_BEST,), kind=kind)
        for kind, (column, *_) in kinds.items()
    }
    if not lines_of["absolute"]:
        return None
    kinds = {kind: values for kind, values in kinds.items() if lines_of[kind]}
    frames = []
    for key in lines_of["absolute"]:
        frames += [lines_of[kind][key] for kind in kinds if key in lines_of[kind]]
    rows = []
    for policy, level in lines_of["absolute"]:
        ends = []
        for kind, (*_, form) in kinds.items():
            line = lines_of[kind].get((policy, level))
            if line is None:
                ends.append("–")
                continue
            last = line.iloc[-1]
            text = f"{last['y']:{form}} ({last['low']:{form}} to {last['high']:{form}})"
            ends.append(text.replace("-", "−") if kind == "relative" else text)
        rows.append([label(policy), LEVEL_NAMES[level], *ends])
    order = list(dict.fromkeys(policy for policy, _ in lines_of["absolute"]))
    shown = policies_shown_first(order, data.best, data.reference)
    styles, legend = legend_of(order, shown)
    by_regime = level_choice(level for _, level in lines_of["absolute"])
    by_kind = ViewChoice("kind", "Regret", tuple((kind, kinds[kind][1]) for kind in kinds), next(iter(kinds)))
    of_best = [label(data.best), LEVEL_NAMES[by_regime.first]]
    end = next((row for row in rows if row[:2] == of_best), None)
    return Figure(
        key="regret",
        title="Cumulative regret over the rounds",
        caption="Regret: utility lost against the best model of each query. "
        + (f"Relative to {reference}: paired by trial, below zero is better. " if "relative" in kinds else "")
        + "Bands: two-sided 95 % intervals over trials. One unit is the "
        f"utility of {data.scale.unit}.",
        alt=f"Lines of cumulative regret by round for {len(order)} policies."
        + (f" {end[0]} ends at {end[2]}." if end else ""),
        chart=lines(
            pd.concat(frames),
            styles,
            x_title="round (queries routed)",
            y_title="cumulative regret (utility)",
            shown={label(p) for p in shown},
            choices=[("kind", by_kind.first), ("level", by_regime.first)],
            zero_line=True,
        ),
        table=FigureTable(["Policy", "Regime", *(header for _, _, header, _ in kinds.values())], rows),
        choices=(by_kind, by_regime),
        legend=legend,
    )


def utility_by_rho(data: PoolData) -> Figure:
    """Figure of the policies' utility by rho, minus that of the reference policy if it was replayed.

    The upper bound `oracle_best` has no line.
    """
    table = data.mart("utility_by_rho").pivot_table(index="rho", columns="policy", values="utility")
    is_relative = data.reference in table.columns
    order = [p for p in data.board.index if p != ORACLE_BEST and p in table.columns]
    shown = policies_shown_first(order, data.best, data.reference) | {BEST_SINGLE}
    base = table[data.reference] if is_relative else 0.0
    if is_relative:
        shown_value = f"utility minus {label(data.reference)}'s"
    else:
        shown_value = "utility (0 to 1)"
    frames = []
    for policy in order:
        y = (table[policy] - base).dropna()
        frames.append(pd.DataFrame({"series": label(policy), "x": y.index.astype(float), "y": y.to_numpy()}))
    styles, legend = legend_of(order, shown)
    return Figure(
        key="rho",
        title="Utility at every cost sensitivity",
        caption=f"Mean {shown_value}, by cost sensitivity ρ. {data.scale.examples}",
        alt=f"Lines of {shown_value} for {len(order)} policies over {len(table)} values of ρ.",
        chart=lines(
            pd.concat(frames),
            styles,
            x_title="cost sensitivity ρ (1/USD)",
            y_title=shown_value,
            shown={label(p) for p in order if p in shown},
            zero_line=is_relative,
            symbols=0,
        ),
        table=FigureTable(
            ["Policy", *[f"ρ = {r:g}" for r in table.index]],
            [[label(p), *[number(v).text for v in table[p] - base]] for p in order],
        ),
        legend=legend,
    )


def shares(evidence: Evidence, router: str) -> Figure:
    """Figure of the share of each model over a router's rounds, at the lowest, middle and highest rho.

    If there are many models, those with the smallest shares are drawn together as `other models`.
    """
    rhos = sorted(r for p, r in evidence.folders if p == router)
    rhos = sorted({rhos[0], middle_rho(rhos), rhos[-1]})
    parts = {rho: facts.shares_over_rounds(evidence, router, rho) for rho in rhos}
    total = pd.concat(parts.values()).groupby("model")["share"].mean().sort_values(ascending=False)
    main = list(total.index[: _MOST_MODELS if len(total) > _MOST_MODELS + 1 else len(total)])
    named = {m: short(m) for m in total.index}
    frames = []
    rows = []
    for rho, part in parts.items():
        part = part.assign(series=[named[m] if m in main else "other models" for m in part["model"]])
        part = part.groupby(["series", "round"], as_index=False, sort=False)["share"].sum()
        frames.append(
            part.rename(columns={"round": "x", "share": "y"}).astype({"x": float}).assign(rho=f"{rho:g}")
        )
        for series, share in part.groupby("series", sort=False):
            share = share.sort_values("round")["share"]
            rows.append([f"{rho:g}", series, percentage(share.iloc[0]), percentage(share.iloc[-1])])
    frame = pd.concat(frames)
    middle = middle_rho(rhos)
    names = [*(named[m] for m in main), *(["other models"] if len(main) < len(total) else [])]
    return Figure(
        key="shares",
        title=f"Which models {label(router)} plays over the rounds",
        caption="Share of rounds in 20 windows, mean over trials.",
        alt=f"Lines of the share of rounds by model for {label(router)}; at ρ = {middle:g} mostly {main[0]}.",
        chart=lines(
            frame,
            default_styles(names),
            x_title="round (queries routed)",
            y_title="share of rounds",
            choices=[("rho", f"{middle:g}")],
            y_zero=True,
        ),
        table=FigureTable(["ρ", "Model", "First window", "Last window"], rows),
        choices=(
            ViewChoice("rho", "Cost sensitivity ρ", tuple((f"{r:g}", f"{r:g}") for r in rhos), f"{middle:g}"),
        ),
        legend=tuple((n, s, True) for n, s in default_styles(names).items()),
    )


def calibration(evidence: Evidence) -> Figure:
    """Figure of the scores that the oracle predicted against the scores that came out."""
    bins = facts.calibration(evidence)
    frame = bins.rename(columns={"predicted": "x", "score": "y"}).drop(columns="count")
    frame["series"] = "mean score"
    error = float((bins["count"] * (bins["predicted"] - bins["score"]).abs()).sum() / bins["count"].sum())
    return Figure(
        key="calibration",
        title="Calibration of the predicted scores",
        caption="Scores that the offline oracle predicts for every model and query, in ten bins, against the "
        "mean scores that came out; band: two-sided 95 % interval. On the broken line predictions are right "
        f"on average. Mean gap: {error:.3f}.",
        alt=f"Mean realised score by predicted score in {len(bins)} bins; mean gap {error:.3f}.",
        chart=lines(
            frame,
            {"mean score": Style(0)},
            x_title="predicted score",
            y_title="mean score",
            diagonal=True,
            symbols=0,
            height=340,
        ),
        table=FigureTable(
            ["Predicted", "Mean score", "95 % from", "to", "Predictions"],
            [
                [f"{b.predicted:.3f}", f"{b.score:.3f}", f"{f.low:.3f}", f"{f.high:.3f}", f"{b.count:,}"]
                for b, f in zip(bins.itertuples(name="Bin"), frame.itertuples(), strict=True)
            ],
        ),
        width=520,
    )


def regime_levels(data: PoolData) -> list[str]:
    """Return the cost regimes of the pool from low to high, then `overall`."""
    present = set(data.regimes["regime"])
    return [level for level in LEVELS if level in present]
