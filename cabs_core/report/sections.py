"""Tables made from marts, one function each. A function returns None where the pool has nothing to show."""

from typing import Any

import pandas as pd

from cabs_core.base.catalog import BEST_SINGLE, NO_ROUTERS, ORACLE_BEST, policies
from cabs_core.base.units import money
from cabs_core.report.charts import regime_levels
from cabs_core.report.data import PoolData
from cabs_core.report.names import encoder_label, label, with_experts
from cabs_core.report.stages import oracle_arms, oracle_heads
from cabs_core.report.tables import (
    PageTable,
    TableCell,
    best_of,
    estimate,
    missing,
    number,
    percent,
    saving,
    table_of,
    words,
)

_SHADED_POLICIES = 9


def utility(data: PoolData) -> PageTable:
    """Utility by regime, best in bold; the paper's figures beside where the benchmark is the same."""
    levels = regime_levels(data)
    paper, encoder = _paper_figures(data)
    board = data.board.sort_values("utility", ascending=False)
    real, compared = board[board["rank"].notna()].index, data.reference in board.index
    best = {level: best_of(data.value(p, level) for p in real) for level in levels}
    rows = []
    for policy, line in board.iterrows():
        row = [words(label(policy)), words(_kind(line))]
        for level in levels:
            value = data.value(policy, level)
            bold = policy in real and value is not None and value == best[level]
            row.append(estimate(value, data.value(policy, level, "utility_se"), bold=bold))
        if paper is not None:
            row += [number(paper.get((policy, level)), muted=True) for level in levels if level != "overall"]
        if compared:
            row.append(
                estimate(
                    line["versus_reference"],
                    line["versus_reference_se"],
                    signed=True,
                    bold=bool(line["versus_reference_significant"]) and line["versus_reference"] > 0,
                )
            )
        rows.append(row)
    groups = [("", 2), ("utility", len(levels))]
    headers = ["Policy", "Start", *[x.capitalize() for x in levels]]
    if paper is not None:
        plain = [x for x in levels if x != "overall"]
        groups.append((f"paper ({encoder})", len(plain)))
        headers += [x.capitalize() for x in plain]
    note = "Bold: best real router of the column"
    if compared:
        groups.append(("paired difference", 1))
        headers.append(f"to {label(data.reference)}")
        note += "; in the last column, significantly better than the reference at 5 %"
    note += ". "
    note += (
        "Cold start and offline labels: learns online, without or with anything learned from the train "
        "split's labels; static: never learns online; upper bound: sees rewards that no router sees. "
    )
    note += (
        "± is the standard error over trials and queries together; significance is not corrected for many "
        "comparisons. Overall: mean of the regimes."
    )
    if paper is not None and data.info["paper_benchmark"] == "openllm":
        note += (
            " The paper's Open LLM figures rest on a score matrix that is misaligned between models; they "
            "are shown for orientation, not as a target."
        )
    return PageTable("utility", "Utility by cost regime (higher is better)", headers, rows, groups, note)


def _kind(line: pd.Series) -> str:
    if line["kind"] == "online":
        return "offline labels" if line["offline_labels"] else "cold start"
    return str(line["kind"])


def _paper_figures(data: PoolData) -> tuple[dict[tuple[str, str], float] | None, str]:
    comparison = data.mart("paper_comparison")
    comparison = comparison[comparison["metric"] == "utility"]
    if comparison.empty:
        return None, ""
    encoders = list(comparison["paper_encoder"].unique())
    encoder = data.info["encoder"] if data.info["encoder"] in encoders else "mdeberta-v3-base"
    part = comparison[comparison["paper_encoder"] == encoder]
    return {(r.policy, r.regime): r.paper for r in part.itertuples()}, encoder


def coupled(data: PoolData) -> PageTable | None:
    """RQ1: CABS-C against CABS-D, utility and regret side by side."""
    mart = data.mart("coupled_vs_decoupled")
    if mart.empty:
        return None
    with_paper = bool(mart["paper_coupled"].notna().any())
    metrics = ("utility", "regret")
    by = mart.set_index(["family", "preset", "regime", "metric"]).sort_index()
    rows = []
    for family, preset in (
        mart[["family", "preset"]].drop_duplicates().sort_values(["family", "preset"]).itertuples(index=False)
    ):
        for level in regime_levels(data):
            if (family, preset, level, "utility") not in by.index:
                continue
            row = [words(f"{family}, {preset}"), words(level)]
            for metric in metrics:
                r = by.loc[(family, preset, level, metric)]
                gain = r["difference"] if metric == "utility" else -r["difference"]
                row += [
                    estimate(r["coupled"], r["coupled_se"], bold=gain < 0),
                    estimate(r["decoupled"], r["decoupled_se"], bold=gain > 0),
                ]
                if metric == "utility":
                    sure = not missing(r["significant"]) and bool(r["significant"])
                    row.append(estimate(r["difference"], r["difference_se"], signed=True, bold=sure))
            if with_paper:
                for metric in metrics:
                    r = by.loc[(family, preset, level, metric)]
                    row += [number(r["paper_coupled"], muted=True), number(r["paper_decoupled"], muted=True)]
            rows.append(row)
    headers = ["Family, preset", "Regime", "CABS-C", "CABS-D", "D − C", "CABS-C", "CABS-D"]
    groups = [("", 2), ("utility", 3), ("regret", 2)]
    if with_paper:
        headers += ["CABS-C", "CABS-D", "CABS-C", "CABS-D"]
        groups += [("paper, utility", 2), ("paper, regret", 2)]
    return PageTable(
        "coupled",
        "Coupled (CABS-C) against decoupled (CABS-D)",
        headers,
        rows,
        groups,
        "Utility: higher is better; regret: lower is better. Bold: the better of the two, and differences "
        "that are significant at 5 % (the regret difference is the same with the opposite sign).",
    )


def presets(data: PoolData) -> PageTable | None:
    """Literal, practical and tuned readings of the CABS policies side by side."""
    mart = data.mart("presets")
    if mart.empty or mart[["literal", "tuned"]].notna().sum().sum() == 0:
        return None
    rows = []
    for base in mart["base_policy"].unique():
        part = mart[mart["base_policy"] == base].set_index("regime")
        for level in regime_levels(data):
            if level not in part.index:
                continue
            r = part.loc[level]
            top = best_of(r[k] for k in ("literal", "practical", "tuned"))
            cells = [
                estimate(r[k], r[f"{k}_se"], bold=not missing(r[k]) and r[k] == top)
                for k in ("literal", "practical", "tuned")
            ]
            for pair in ("practical_minus_literal", "tuned_minus_practical"):
                sure = not missing(r[f"{pair}_significant"]) and bool(r[f"{pair}_significant"])
                cells.append(estimate(r[pair], r[f"{pair}_se"], signed=True, bold=sure))
            rows.append([words(label(base)), words(level), *cells])
    return PageTable(
        "presets",
        "Three readings of the same algorithms: utility",
        ["Policy", "Regime", "Literal", "Practical", "Tuned", "Practical − literal", "Tuned − practical"],
        rows,
        [("", 2), ("utility", 3), ("paired difference", 2)],
        note="Literal: the published pseudo-code and constants word for word. Practical: the same algorithm "
        "with the departures that make it work. Tuned: our best settings of it, chosen on the validation "
        "split. Differences are paired by trial and by query, ± the standard error of both together; bold: "
        "significant at 5 %.",
    )


def efficiency(data: PoolData) -> PageTable | None:
    """AIQ, accuracy, money."""
    aiq, savings = data.mart("aiq").set_index("policy"), data.mart("cost_savings").set_index("policy")
    single = savings[savings["baseline"] == BEST_SINGLE]
    reference = savings[savings["baseline"] == data.reference]["share_saved"].rename("reference_saved")
    frame = data.board.join(aiq[["aiq_se", "pareto_distance"]]).join(reference)
    frame = frame.join(single[["share_saved", "performance_gain", "performance_gain_se"]])
    top = best_of(frame.loc[frame["rank"].notna(), "aiq"])
    low, high = aiq["cost_min_per_1000_calls"].iloc[0], aiq["cost_max_per_1000_calls"].iloc[0]
    columns = {
        "Policy": lambda r: words(label(r.policy)),
        "AIQ": lambda r: estimate(r.aiq, r.aiq_se, bold=not missing(r.rank) and r.aiq == top),
        "Accuracy": lambda r: percent(r.score, 1),
        "USD per 1,000 calls": lambda r: number(r.cost_per_1000_calls, 3, prefix="$"),
        "At best single's accuracy": lambda r: saving(r.share_saved),
        f"At {label(data.reference)}'s accuracy": lambda r: saving(r.reference_saved),
        "Gain over best single, %": lambda r: estimate(
            100 * r.performance_gain, 100 * r.performance_gain_se, 1, signed=True
        ),
        "Distance to frontier": lambda r: number(r.pareto_distance, 3),
        "Full-feedback gap closed": lambda r: percent(r.gap_closed),
    }
    compared = data.reference in data.board.index
    if not compared:  # of what was not played there is nothing to say
        del columns[f"At {label(data.reference)}'s accuracy"], columns["Full-feedback gap closed"]
    return table_of(
        "efficiency",
        "Accuracy and money",
        frame.sort_values("aiq", ascending=False).itertuples(),
        columns,
        f"AIQ: mean height of the non-decreasing hull between {money(low)} and {money(high)} per 1,000 calls "
        "(RouterBench's definition). Accuracy and cost: means over the three regimes. At a baseline's "
        "accuracy: cost beside the baseline's at its most accurate setting; a dash means that this accuracy "
        "is never reached. Gain: best accuracy of any setting over the best single model's, minus 1. "
        "Distance: mean distance of its settings to the frontier of all routers, cost and accuracy scaled to "
        "[0, 1] (0 is best). Cost at equal accuracy, gain and distance are LLMRouterBench's CostSave, "
        "PerfGain and ParetoDist."
        + (
            " Gap closed: from the reference (0 %) to LinUCB that sees every arm's reward (100 %)."
            if compared
            else ""
        ),
    )


def latency(data: PoolData) -> PageTable | None:
    """Wait of a single online call, and beside it the throughput of replay."""
    mart = data.mart("decision_latency").set_index("policy")
    timed = mart[mart["decisions"].notna()]
    if timed.empty:
        return None
    rows = []
    for policy in [p for p in data.board.index if p in timed.index]:
        r = timed.loc[policy]
        row = [words(label(policy))]
        for call in ("decide", "update"):
            row += [_micro(r[f"{call}_{part}_us"]) for part in ("p50", "p95", "p99", "cpu")]
        rows.append([*row, number(r["replay_rounds_per_second"], 0)])
    parts = ["Median", "p95", "p99", "Processor"]
    return PageTable(
        "latency",
        "What one decision takes online (microseconds)",
        ["Policy", *parts, *parts, "Rounds per second"],
        rows,
        [("", 1), ("decide (µs)", 4), ("update (µs)", 4), ("replay", 1)],
        f"Single calls on {int(timed['decisions'].max()):,} test queries at ρ = {timed['rho'].iloc[0]:g}, "
        "after learning from earlier ones; features and predictions of the request are given, so encoding "
        "the prompt and calling the models come on top. Median, p95, p99: wall time, which on a busy machine "
        "includes waiting for a processor; Processor: mean processor time. Rounds per second: throughput of "
        "the compiled replay with all trials side by side, no measure of the wait of one call.",
    )


def _micro(value: Any) -> TableCell:
    return number(value, 1 if not missing(value) and float(value) < 100 else 0)


def arms(data: PoolData) -> PageTable | None:
    """Which models are played, as a shaded table of arms by policies."""
    shares = data.mart("arm_shares")
    shares = shares[
        shares["regime"] == ("overall" if (shares["regime"] == "overall").any() else shares["regime"].iloc[0])
    ]
    mixtures = [p for p in data.ranked if p in policies() and policies()[p].family == "mix"]
    static = [p for p in data.ranked if data.board.loc[p, "kind"] == "static" and p not in NO_ROUTERS]
    candidates = [
        data.best,
        data.reference,
        *with_experts(data.board.index),
        *mixtures,
        *static[:1],
        BEST_SINGLE,
        ORACLE_BEST,
    ]
    chosen = [p for p in dict.fromkeys(candidates) if p in data.board.index][:_SHADED_POLICIES]
    if not chosen:
        return None
    wide = shares.pivot_table(index="arm", columns="policy", values="share")
    behaviour = data.mart("routing_behaviour")
    behaviour = behaviour[behaviour["regime"] == "overall"].set_index("policy")
    rows = [
        [words(arm), *[percent(wide.loc[arm, p], 1, shade=float(wide.loc[arm, p])) for p in chosen]]
        for arm in wide[chosen[0]].sort_values(ascending=False).index
    ]
    rows.append([words("Switches per round"), *[percent(behaviour["switch_rate"].get(p), 1) for p in chosen]])
    talks = "switches_per_session" in behaviour and bool(behaviour["switches_per_session"].notna().any())
    if talks:
        rows.append(
            [
                words("Switches per conversation"),
                *[number(behaviour["switches_per_session"].get(p), 2) for p in chosen],
            ]
        )
    rows.append(
        [words("Effective number of arms"), *[number(behaviour["effective_arms"].get(p), 1) for p in chosen]]
    )
    return PageTable(
        "arms",
        "Which models are played (share of rounds, mean of the regimes)",
        ["Model", *[label(p) for p in chosen]],
        rows,
        note="Effective number of arms: exp(entropy) of the shares, averaged over replays. Switches: share "
        "of rounds whose model differs from the round before."
        + (
            " Switches per conversation: turns that another model answers than the turn before."
            if talks
            else ""
        ),
    )


def encoders(data: PoolData) -> PageTable | None:
    """Encoder robustness: pools that differ only in the encoder, this page's pool first."""
    mart = data.twins
    mart = mart[mart["regime"] == "overall"]
    if mart.empty:
        return None
    pools = list(mart[["pool", "encoder"]].drop_duplicates().itertuples(index=False))
    pools.sort(key=lambda p: (p.pool != data.pool, p.pool))
    others = [p for p in pools if p.pool != data.pool and data.twin(data.ranked[0], p.pool) is not None]
    by = mart.set_index(["policy", "pool"])
    rows = []
    for policy in data.board.index:
        cells: list[TableCell] = []
        for p in pools:
            if (policy, p.pool) not in by.index:
                cells += [number(None), number(None)]
                continue
            r = by.loc[(policy, p.pool)]
            cells += [estimate(r["utility"], r["utility_se"], bold=r["rank"] == 1), number(r["rank"], 0)]
        for p in others:
            gap = data.twin(policy, p.pool)
            cells.append(number(None) if gap is None else estimate(gap[0], gap[1], signed=True, bold=gap[2]))
        rows.append([words(label(policy)), *cells])
    headers = ["Policy"] + ["Utility", "Rank"] * len(pools) + [encoder_label(p.encoder) for p in others]
    groups = [("", 1)] + [(f"{encoder_label(p.encoder)} ({p.pool})", 2) for p in pools]
    if others:
        groups.append((f"{encoder_label(data.info['encoder'])} minus", len(others)))
    return PageTable(
        "encoders",
        "Encoder robustness: overall utility and rank",
        headers,
        rows,
        groups,
        "Pools with the same outcomes, split and settings that differ only in the text encoder; features and "
        "oracles are made anew from each. TF-IDF + SVD: word statistics reduced to the same kind of vector, "
        "no language model. Difference: paired by query, ± the error over queries and trials together; bold: "
        "significant at 5 %. Policies that read no text (random, best single model, best arm) differ only by "
        "their random streams.",
    )


def solver(data: PoolData) -> PageTable | None:
    """Certificates of the exploration program."""
    columns = {
        "Policy": lambda r: words(label(r.policy)),
        "Programs solved": lambda r: number(r.solved_rounds, 0),
        "Uncertified": lambda r: number(r.uncertified, 0),
        "Certified": lambda r: percent(r.share_certified, 3),
        "Largest gap": lambda r: _tiny(r.max_gap),
        "Mean gap": lambda r: _tiny(r.mean_gap),
    }
    return table_of(
        "solver",
        "Exploration program: certified solutions",
        data.mart("solver_certificates").itertuples(),
        columns,
        "A solution is certified when the duality gap proves it optimal to the solver's tolerance.",
    )


def _tiny(value: float) -> TableCell:
    return number(None) if missing(value) else TableCell(f"{value:.1e}", float(value))


#: tables of the section "Speed, oracles, solver, tuning", in their order there
BEHIND = (latency, solver, oracle_heads, oracle_arms)
