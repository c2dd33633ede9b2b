"""Tables of a pool's page that are made from marts.

Every public function makes one table. It returns None if the pool has no data for the table.
"""

from functools import partial
from typing import Any

import pandas as pd

from cabs_core.base.catalog.policies import policies
from cabs_core.base.catalog.roles import BEST_SINGLE, NO_ROUTERS, ORACLE_BEST
from cabs_core.base.units import money
from cabs_core.report.charts import regime_levels
from cabs_core.report.data import PoolData
from cabs_core.report.names import encoder_label, label, with_experts
from cabs_core.report.stages import oracle_arms, oracle_heads
from cabs_core.report.tables import (
    Header,
    MakeCell,
    PageTable,
    TableCell,
    best_of,
    estimate,
    missing,
    number,
    percent,
    saving,
    sure,
    table_of,
    words,
)

#: most policies of the table of models played
_SHADED_POLICIES = 9


def utility(data: PoolData) -> PageTable | None:
    """Table of every policy's utility by cost regime, beside the paper's figures of this benchmark."""
    levels = regime_levels(data)
    paper, encoder = _paper_figures(data)
    board = data.board.sort_values("utility", ascending=False)
    real = board[board["rank"].notna()].index
    has_reference = data.reference in board.index
    best = {level: best_of(data.value(p, level) for p in real) for level in levels}

    def earned(line: Any, level: str) -> TableCell:
        """Cell with the utility of a policy in a regime; bold for the best router."""
        value = data.value(line.policy, level)
        bold = line.policy in real and value is not None and value == best[level]
        return estimate(value, data.value(line.policy, level, "utility_se"), bold=bold)

    def published(line: Any, level: str) -> TableCell:
        """Cell with the utility of a policy in the paper."""
        return number((paper or {}).get((line.policy, level)), muted=True)

    columns: dict[Header, MakeCell] = {
        "Policy": lambda r: words(label(r.policy)),
        "Start": lambda r: words(_kind(r)),
    }
    columns |= {("utility", x.capitalize()): partial(earned, level=x) for x in levels}
    note = "Bold: best real router of the column"
    if paper is not None:
        regimes = [x for x in levels if x != "overall"]
        columns |= {(f"paper ({encoder})", x.capitalize()): partial(published, level=x) for x in regimes}
    if has_reference:
        columns["paired difference", f"to {label(data.reference)}"] = lambda r: estimate(
            r.versus_reference,
            r.versus_reference_se,
            signed=True,
            bold=sure(r.versus_reference_significant) and r.versus_reference > 0,
        )
        note += "; in the last column, significantly better than the reference at 5 %"
    note += (
        ". Cold start and offline labels: learns online, without or with anything learned from the train "
        "split's labels; static: never learns online; upper bound: sees rewards that no router sees. ± is "
        "the standard error over trials and queries together; significance is not corrected for many "
        "comparisons. Overall: mean of the regimes."
    )
    if paper is not None and data.info["paper_benchmark"] == "openllm":
        note += " The paper's Open LLM figures rest on scores misaligned between models: no target."
    return table_of("utility", "Utility by cost regime (higher is better)", board.itertuples(), columns, note)


def _kind(line: Any) -> str:
    """Return in words how a policy of the leaderboard starts and learns.

    The words are `offline labels` or `cold start` for a policy that learns online, and its kind, such as
    `static`, for any other.
    """
    if line.kind == "online":
        if line.offline_labels:
            return "offline labels"
        return "cold start"
    return str(line.kind)


def _paper_figures(data: PoolData) -> tuple[dict[tuple[str, str], float] | None, str]:
    """Return ({(policy, regime): utility in the paper}, encoder of these figures).

    The figures are those of the pool's encoder, or those of mdeberta-v3-base if the paper does not have the
    pool's encoder. Return (None, "") if the paper has no figures for the pool.
    """
    comparison = data.mart("paper_comparison")
    comparison = comparison[comparison["metric"] == "utility"]
    if comparison.empty:
        return None, ""
    encoders = list(comparison["paper_encoder"].unique())
    if data.info["encoder"] in encoders:
        encoder = data.info["encoder"]
    else:
        encoder = "mdeberta-v3-base"
    part = comparison[comparison["paper_encoder"] == encoder]
    return {(r.policy, r.regime): r.paper for r in part.itertuples()}, encoder


def coupled(data: PoolData) -> PageTable | None:
    """Table of CABS-C and CABS-D side by side, in utility and regret: the paper's first question."""
    mart = data.mart("coupled_vs_decoupled")
    if mart.empty:
        return None
    by = mart.set_index(["family", "preset", "regime", "metric"]).sort_index()
    readings = mart[["family", "preset"]].drop_duplicates().sort_values(["family", "preset"])
    records = [
        (family, preset, level)
        for family, preset in readings.itertuples(index=False)
        for level in regime_levels(data)
        if (family, preset, level, "utility") in by.index
    ]

    def mean(record: tuple[str, ...], metric: str, kind: str, sign: int) -> TableCell:
        """Cell with the mean of one of the two policies; bold if `sign` times the difference is above 0."""
        row = by.loc[(*record, metric)]
        return estimate(row[kind], row[f"{kind}_se"], bold=sign * row["difference"] > 0)

    def published(record: tuple[str, ...], metric: str, kind: str) -> TableCell:
        """Cell with the figure of one of the two policies in the paper."""
        return number(by.loc[(*record, metric)][f"paper_{kind}"], muted=True)

    def gap(record: tuple[str, ...]) -> TableCell:
        """Cell with the utility of CABS-D minus that of CABS-C."""
        row = by.loc[(*record, "utility")]
        return estimate(row["difference"], row["difference_se"], signed=True, bold=sure(row["significant"]))

    columns: dict[Header, MakeCell] = {
        "Family, preset": lambda r: words(f"{r[0]}, {r[1]}"),
        "Regime": lambda r: words(r[2]),
        ("utility", "CABS-C"): partial(mean, metric="utility", kind="coupled", sign=-1),
        ("utility", "CABS-D"): partial(mean, metric="utility", kind="decoupled", sign=1),
        ("utility", "D − C"): gap,
        ("regret", "CABS-C"): partial(mean, metric="regret", kind="coupled", sign=1),
        ("regret", "CABS-D"): partial(mean, metric="regret", kind="decoupled", sign=-1),
    }
    if mart["paper_coupled"].notna().any():
        columns |= {
            (f"paper, {metric}", name): partial(published, metric=metric, kind=kind)
            for metric in ("utility", "regret")
            for name, kind in (("CABS-C", "coupled"), ("CABS-D", "decoupled"))
        }
    return table_of(
        "coupled",
        "Coupled (CABS-C) against decoupled (CABS-D)",
        records,
        columns,
        "Utility: higher is better; regret: lower is better. Bold: the better of the two, and differences "
        "that are significant at 5 % (the regret difference is the same with the opposite sign).",
    )


def presets(data: PoolData) -> PageTable | None:
    """Table of the literal, practical and tuned presets of the CABS policies side by side."""
    mart = data.mart("presets")
    if mart.empty or mart[["literal", "tuned"]].notna().sum().sum() == 0:
        return None
    kinds = ("literal", "practical", "tuned")
    pairs = ("practical_minus_literal", "tuned_minus_practical")
    by = mart.set_index(["base_policy", "regime"])

    def reading(r: Any, kind: str) -> TableCell:
        """Cell with the utility of a preset; bold for the best preset of the row."""
        return estimate(
            r[kind], r[f"{kind}_se"], bold=not missing(r[kind]) and r[kind] == best_of(r[[*kinds]])
        )

    def gap(r: Any, pair: str) -> TableCell:
        """Cell with the paired difference of two presets; bold if it is significant."""
        return estimate(r[pair], r[f"{pair}_se"], signed=True, bold=sure(r[f"{pair}_significant"]))

    records = []
    for base in mart["base_policy"].unique():
        records += [by.loc[base, level] for level in regime_levels(data) if (base, level) in by.index]
    columns: dict[Header, MakeCell] = {
        "Policy": lambda r: words(label(r.name[0])),
        "Regime": lambda r: words(r.name[1]),
    }
    for kind in kinds:
        columns["utility", kind.capitalize()] = partial(reading, kind=kind)
    for pair in pairs:
        header = pair.capitalize().replace("_minus_", " − ")
        columns["paired difference", header] = partial(gap, pair=pair)
    return table_of(
        "presets",
        "Three readings of the same algorithms: utility",
        records,
        columns,
        "Literal: the published pseudo-code and constants word for word. Practical: the same algorithm "
        "with the departures that make it work. Tuned: our best settings of it, chosen on the validation "
        "split. Differences are paired by trial and by query, ± the standard error of both together; bold: "
        "significant at 5 %.",
    )


def efficiency(data: PoolData) -> PageTable | None:
    """Table of AIQ (average quality over a range of costs), accuracy and cost of every policy."""
    aiq = data.mart("aiq").set_index("policy")
    savings = data.mart("cost_savings").set_index("policy")
    single = savings[savings["baseline"] == BEST_SINGLE]
    reference = savings[savings["baseline"] == data.reference]["share_saved"].rename("reference_saved")
    frame = data.board.join(aiq[["aiq_se", "pareto_distance"]]).join(reference)
    frame = frame.join(single[["share_saved", "performance_gain", "performance_gain_se"]])
    top = best_of(frame.loc[frame["rank"].notna(), "aiq"])
    low = aiq["cost_min_per_1000_calls"].iloc[0]
    high = aiq["cost_max_per_1000_calls"].iloc[0]
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
    has_reference = data.reference in data.board.index
    if not has_reference:  # both columns compare with the reference policy
        del columns[f"At {label(data.reference)}'s accuracy"]
        del columns["Full-feedback gap closed"]
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
            if has_reference
            else ""
        ),
    )


def latency(data: PoolData) -> PageTable | None:
    """Table of the time that one decision and one update take online, beside the throughput of the replay."""
    mart = data.mart("decision_latency").set_index("policy")
    timed = mart[mart["decisions"].notna()]
    parts = {"Median": "p50", "p95": "p95", "p99": "p99", "Processor": "cpu"}
    return table_of(
        "latency",
        "What one decision takes online (microseconds)",
        (timed.loc[policy] for policy in data.board.index if policy in timed.index),
        {
            "Policy": lambda r: words(label(r.name)),
            **{
                (f"{call} (µs)", name): partial(_micro, field=f"{call}_{part}_us")
                for call in ("decide", "update")
                for name, part in parts.items()
            },
            ("replay", "Rounds per second"): lambda r: number(r["replay_rounds_per_second"], 0),
        },
        ""
        if timed.empty
        else f"Single calls on {int(timed['decisions'].max()):,} test queries at ρ = "
        f"{timed['rho'].iloc[0]:g}, after learning from earlier ones; features and predictions of the "
        "request are given, so encoding the prompt and calling the models come on top. Median, p95, p99: "
        "wall time, which on a busy machine includes waiting for a processor; Processor: mean processor "
        "time. Rounds per second: throughput of the compiled replay with all trials side by side, no measure "
        "of the wait of one call.",
    )


def _micro(line: pd.Series, field: str) -> TableCell:
    """Cell with microseconds, with one decimal below 100; an en dash if the field is not known."""
    is_small = not missing(line[field]) and float(line[field]) < 100
    return number(line[field], 1 if is_small else 0)


def arms(data: PoolData) -> PageTable | None:
    """Table of the share of each model in the rounds of up to nine policies, with shaded cells.

    The last rows say how often each policy switches the model and how many models it uses in effect.
    """
    shares = data.mart("arm_shares")
    has_overall = (shares["regime"] == "overall").any()
    shares = shares[shares["regime"] == ("overall" if has_overall else shares["regime"].iloc[0])]
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
    records: list[tuple[str, pd.Series, MakeCell]] = [
        (arm, wide.loc[arm], lambda v: percent(v, 1, shade=float(v)))
        for arm in wide[chosen[0]].sort_values(ascending=False).index
    ]

    def figure(record: tuple[str, pd.Series, MakeCell], policy: str) -> TableCell:
        """Cell of a row (name, figures by policy, function that makes a cell) for one policy."""
        return record[2](record[1].get(policy))

    records.append(("Switches per round", behaviour["switch_rate"], lambda v: percent(v, 1)))
    has_sessions = "switches_per_session" in behaviour
    has_sessions = has_sessions and bool(behaviour["switches_per_session"].notna().any())
    if has_sessions:
        per_session = behaviour["switches_per_session"]
        records.append(("Switches per conversation", per_session, lambda v: number(v, 2)))
    records.append(("Effective number of arms", behaviour["effective_arms"], lambda v: number(v, 1)))
    return table_of(
        "arms",
        "Which models are played (share of rounds, mean of the regimes)",
        records,
        {"Model": lambda r: words(r[0]), **{label(p): partial(figure, policy=p) for p in chosen}},
        "Effective number of arms: exp(entropy) of the shares, averaged over replays. Switches: share "
        "of rounds whose model differs from the round before."
        + (
            " Switches per conversation: turns that another model answers than the turn before."
            if has_sessions
            else ""
        ),
    )


def encoders(data: PoolData) -> PageTable | None:
    """Table of every policy's utility with other encoders, in pools that differ only in the encoder."""
    mart = data.twins
    mart = mart[mart["regime"] == "overall"]
    if mart.empty:
        return None
    pools = list(mart[["pool", "encoder"]].drop_duplicates().itertuples(index=False))
    pools.sort(key=lambda p: (p.pool != data.pool, p.pool))
    others = [p for p in pools if p.pool != data.pool and data.twin(data.ranked[0], p.pool) is not None]
    by = mart.set_index(["policy", "pool"])
    minus = f"{encoder_label(data.info['encoder'])} minus"

    def earned(policy: str, pool: str) -> TableCell:
        """Cell with the utility of a policy in a pool; bold for the best policy of the pool."""
        if (policy, pool) not in by.index:
            return number(None)
        row = by.loc[(policy, pool)]
        return estimate(row["utility"], row["utility_se"], bold=row["rank"] == 1)

    def rank(policy: str, pool: str) -> TableCell:
        """Cell with the rank of a policy in a pool."""
        return number(by["rank"].get((policy, pool)), 0)

    def gap(policy: str, pool: str) -> TableCell:
        """Cell with the utility of a policy here minus that in another pool; bold if it is significant."""
        found = data.twin(policy, pool)
        if found is None:
            return number(None)
        difference, error, significant = found
        return estimate(difference, error, signed=True, bold=significant)

    columns: dict[Header, MakeCell] = {"Policy": lambda p: words(label(p))}
    for p in pools:
        group = f"{encoder_label(p.encoder)} ({p.pool})"
        columns[group, "Utility"] = partial(earned, pool=p.pool)
        columns[group, "Rank"] = partial(rank, pool=p.pool)
    columns |= {(minus, encoder_label(p.encoder)): partial(gap, pool=p.pool) for p in others}
    return table_of(
        "encoders",
        "Encoder robustness: overall utility and rank",
        data.board.index,
        columns,
        "Pools with the same outcomes, split and settings that differ only in the text encoder; features and "
        "oracles are made anew from each. TF-IDF + SVD: word statistics reduced to the same kind of vector, "
        "no language model. Difference: paired by query, ± the error over queries and trials together; bold: "
        "significant at 5 %. Policies that read no text (random, best single model, best arm) differ only by "
        "their random streams.",
    )


def solver(data: PoolData) -> PageTable | None:
    """Table of the solutions of the exploration program that were certified to be optimal, by policy."""
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
    """Cell with a number in scientific notation; an en dash if the number is not known."""
    if missing(value):
        return number(None)
    return TableCell(f"{value:.1e}", float(value))


#: functions of the tables of the section "Speed, oracles, solver, tuning", in their order there
BEHIND = (latency, solver, oracle_heads, oracle_arms)
