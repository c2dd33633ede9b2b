"""What the data say, in sentences. Every sentence is computed; none is written in advance for a result."""

import math
from typing import Any

import pandas as pd

from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.statistics.uncertainty import half_width
from cabs_core.report.data import PoolData
from cabs_core.report.names import encoder_label, label, with_experts
from cabs_core.report.tables import error_text, signed_text


def _pm(value: float, error: float) -> str:
    return f"{value:.3f}" + ("" if error is None or math.isnan(error) else f" ± {error_text(error)}")


def _compare(data: PoolData, policy: str, baseline: str, regime: str = "overall") -> str:
    """'+0.021 (95 % interval +0.013 to +0.029, significant)', or a statement that the pair is missing.

    Significance is adjusted for all pairs of real routers: those that a sentence names were picked by their
    results.
    """
    pair = data.pair(policy, baseline, regime)
    if pair is None:
        return "not compared"
    if pair["se"] != pair["se"]:
        return f"{signed_text(pair['difference'])} (no error known, one trial and one query)"
    verdict = "significant" if pair["significant_adjusted"] else "within the noise"
    interval = f"{signed_text(pair['low'])} to {signed_text(pair['high'])}"
    return f"{signed_text(pair['difference'])} (95 % interval {interval}, {verdict})"


def best_that_learns(data: PoolData) -> dict[str, Any] | None:
    """The best router that learns while it serves, and how much more it earns than the best one.

    None: none was replayed. The difference is 0 where it is the best one itself; low and high, its 95 %
    interval, are None where no error is known.
    """
    learner = next((p for p in data.ranked if data.board.loc[p, "kind"] == "online"), None)
    if learner is None:
        return None
    ends: dict[str, float | None] = {"difference": 0.0, "low": 0.0, "high": 0.0}
    if learner != data.best:
        pair = data.pair(learner, data.best)
        known = {} if pair is None else {name: float(pair[name]) for name in ends if pair[name] == pair[name]}
        ends = dict.fromkeys(ends) | known
    return {"router": learner, "against": data.best, **ends}


def best_policy(data: PoolData) -> str:
    """The policy with the highest mean utility and its error, in one line."""
    line = data.board.loc[data.best]
    return f"{label(data.best)} is best: mean utility {_pm(line['utility'], line['utility_se'])}"


def learning(data: PoolData) -> str:
    """What to take for a pool whose scored calls come back to the router; '' where the best router learns."""
    learner = best_that_learns(data)
    if learner is None or learner["router"] == data.best:
        return ""
    best, router = label(data.best), learner["router"]
    return (
        f"{best} does not learn while it serves. Where scored calls will come back to it, the best router "
        f"that learns is {label(router)}: {_compare(data, router, data.best)} against {best}."
    )


def ranking(data: PoolData) -> str:
    """The best router overall and its lead; also the best that learns, where the winner does not."""
    board, best = data.board, data.best
    line = board.loc[best]
    winners = [p for p in data.ranked if board.loc[p, "rank"] == 1]
    verb = "router is" if len(winners) == 1 else "routers, with equal results, are"
    sentences = [
        f"Over {int(line['rhos'])} values of ρ and {int(data.info['trials'])} random orders of the queries "
        f"the best {verb} {_list([label(p) for p in winners])}, with a mean utility of "
        f"{_pm(line['utility'], line['utility_se'])} (± is the standard error over queries and orders "
        "together, given this split; significance is adjusted for all pairs of routers)."
    ]
    runner_up = next((p for p in data.ranked if p not in winners), None)
    if runner_up:
        sentences.append(
            f"The lead of {label(best)} over the runner-up, {label(runner_up)}, is "
            f"{_compare(data, best, runner_up)}."
        )
    if text := learning(data):
        sentences.append(text)
    if data.reference in data.ranked and data.reference not in (*winners, runner_up):
        sentences.append(
            f"Against {label(data.reference)}, the reference: {_compare(data, best, data.reference)}."
        )
    return " ".join(sentences)


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def rq1(data: PoolData) -> str:
    """Coupled against decoupled."""
    mart = data.mart("coupled_vs_decoupled")
    part = mart[(mart["metric"] == "utility") & (mart["regime"] == "overall")]
    if part.empty:
        return "This pool replayed no pair of CABS-C and CABS-D, so the question stays open here."
    out = []
    for r in part.itertuples():
        verb = "better" if r.difference > 0 else "worse"
        sure = (
            ""
            if r.difference_se != r.difference_se
            else (", significant at 5 %" if r.significant else ", within the noise")
        )
        out.append(
            f"{r.family.capitalize()}, {r.preset} preset: CABS-D is "
            f"{_pm(abs(r.difference), r.difference_se)} {verb} than CABS-C{sure}."
        )
    return " ".join(out)


def encoders(data: PoolData) -> str:
    """Does the ranking survive another encoder, and which one earns more?"""
    mart = data.twins[data.twins["regime"] == "overall"]
    out = []
    for pool in sorted(set(mart["pool"]) - {data.pool}):
        theirs = mart[mart["pool"] == pool].set_index("policy")
        name, their_encoder = encoder_label(data.info["encoder"]), encoder_label(theirs["encoder"].iloc[0])
        top = theirs[theirs["rank"] == 1]
        if top.empty or data.best not in theirs.index:
            continue
        rank = theirs.loc[data.best, "rank"]
        winner = f"{label(top.index[0])} ({top['utility'].iloc[0]:.3f})"
        text = f"With {their_encoder} instead of {name} the best router is {winner}"
        text += "" if rank == 1 else f", and {label(data.best)}, best here, comes in at rank {int(rank)}"
        reading = [p for p in data.ranked if p not in NO_ROUTERS]
        gaps = [g for g in (data.twin(p, pool) for p in reading) if g is not None]
        if gaps:
            more, less = (sum(g[2] and sign * g[0] > 0 for g in gaps) for sign in (1, -1))
            text += (
                f". Of {len(gaps)} routers that use the prompt, {more} earn significantly more with {name}, "
                f"{less} with {their_encoder}"
            )
        out.append(text + ".")
    return " ".join(out)


def rq2(data: PoolData) -> str:
    """The winner by regime, and how the paper's orderings fare."""
    out = []
    for regime in ("low", "medium", "high"):
        part = data.regimes[(data.regimes["regime"] == regime) & (data.regimes["rank"] == 1)]
        if not part.empty:
            winner = part.iloc[0]
            out.append(f"{regime}: {label(winner['policy'])} ({winner['utility']:.3f})")
    text = "Highest utility among real routers – " + "; ".join(out) + "."
    orderings = data.mart("paper_orderings")
    if not orderings.empty:
        encoders = list(orderings["paper_encoder"].unique())
        encoder = data.info["encoder"] if data.info["encoder"] in encoders else encoders[-1]
        part = orderings[orderings["paper_encoder"] == encoder]
        sure = part[part["significant"].fillna(False).astype(bool)]
        text += (
            f" Of {len(part)} orderings of two methods in the paper's table ({encoder}), "
            f"{int(part['holds'].sum())} hold here; of the {len(sure)} where our difference is significant, "
            f"{int(sure['holds'].sum())} do."
        )
    return text


def rq3(data: PoolData) -> str:
    """Frontier and AIQ."""
    aiq = data.mart("aiq")
    real = aiq[aiq["kind"] != "upper bound"].sort_values("aiq", ascending=False)
    top = real.iloc[0]
    text = f"The highest AIQ among real routers is {label(top['policy'])}'s, {_pm(top['aiq'], top['aiq_se'])}"
    reference = real[real["policy"] == data.reference]
    if not reference.empty and top["policy"] != data.reference:
        theirs = reference.iloc[0]
        text += f", against {_pm(theirs['aiq'], theirs['aiq_se'])} for {label(data.reference)}"
    points = data.mart("pareto_frontier")
    front = points[points["on_pool_frontier"]]
    names = front["policy"].value_counts()
    holders = "all belong to" if len(names) <= 3 else "the policies with the most are"
    text += f". {len(front)} settings of ρ are not dominated by any other; {holders} "
    return text + _list([f"{label(p)} ({n})" for p, n in names.head(3).items()]) + "."


def rq4(data: PoolData) -> str:
    """Do surrogates speed up learning: when does regret fall below the reference's for good?"""
    curves = data.mart("regret_curves")
    curves = curves[(curves["regime"] == "overall") & curves["relative_regret"].notna()]
    if curves.empty:
        policy = label(data.reference)
        return f"The reference policy {policy} was not replayed, so relative regret is not defined."
    out = []
    online = [p for p in data.ranked if data.board.loc[p, "kind"] == "online"][:1]
    compared = [p for p in dict.fromkeys((*online, *with_experts(data.board.index))) if p != data.reference]
    for policy in compared:
        curve = curves[curves["policy"] == policy].sort_values("round")
        if curve.empty:
            continue
        last = curve.iloc[-1]
        margin = pd.Series(half_width(curve["relative_regret_se"], curve["trials"]), curve.index)
        worse = curve[curve["relative_regret"] + margin.fillna(0) >= 0]
        if worse.empty:
            since = f"clearly lower from the first checkpoint (round {int(curve.iloc[0]['round'])}) on"
        elif worse.iloc[-1]["round"] == last["round"]:
            since = "not clearly lower at the end"
        else:
            after = curve[curve["round"] > worse.iloc[-1]["round"]]
            since = f"clearly lower from round {int(after.iloc[0]['round'])} on"
        end = signed_text(last["relative_regret"], 1)
        out.append(f"{label(policy)} ends at {end} ({since})")
    return (
        f"Cumulative regret after {int(curves['round'].max()):,} rounds, relative to "
        f"{label(data.reference)}, mean of the regimes: " + "; ".join(out) + "."
    )
