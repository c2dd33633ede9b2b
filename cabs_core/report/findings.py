"""Sentences on what the replays of a pool show. Every sentence is made from figures of the marts."""

from typing import Any

import pandas as pd

from cabs_core.base.statistics.uncertainty import half_width
from cabs_core.report.data import PoolData
from cabs_core.report.names import encoder_label, label, with_experts
from cabs_core.report.rule_text import listed_names
from cabs_core.report.tables import error_text, missing, signed_text


def _with_error(value: float, error: float) -> str:
    """Return a value with its standard error, such as `0.712 ± 0.004`, or alone if the error is not known."""
    if missing(error):
        return f"{value:.3f}"
    return f"{value:.3f} ± {error_text(error)}"


def _compare(data: PoolData, policy: str, baseline: str, regime: str = "overall") -> str:
    """Return the mean utility of a policy less that of a baseline, with its interval, in words.

    An example is `+0.021 (95 % interval +0.013 to +0.029, significant)`. Significance is adjusted for all
    pairs of routers, because the two policies of a sentence were picked by their results. The text says so if
    the pair was not compared, or if the error is not known.
    """
    pair = data.pair(policy, baseline, regime)
    if pair is None:
        return "not compared"
    if missing(pair["se"]):
        return f"{signed_text(pair['difference'])} (no error known, one trial and one query)"
    if pair["significant_adjusted"]:
        verdict = "significant"
    else:
        verdict = "within the noise"
    interval = f"{signed_text(pair['low'])} to {signed_text(pair['high'])}"
    return f"{signed_text(pair['difference'])} (95 % interval {interval}, {verdict})"


def best_that_learns(data: PoolData) -> dict[str, Any] | None:
    """Return the best router that learns while it serves, beside the best policy.

    Returns:
        {"router": the best policy that learns, "against": the best policy, "difference": mean utility of the
        first less that of the second, "low", "high": its 95 % interval}. The difference is 0 if both are one
        policy. Figures that are not known are None. The result is None if no policy that learns was replayed.
    """
    learner = next((p for p in data.ranked if data.board.loc[p, "kind"] == "online"), None)
    if learner is None:
        return None
    ends: dict[str, float | None] = {"difference": 0.0, "low": 0.0, "high": 0.0}
    if learner != data.best:
        pair = data.pair(learner, data.best)
        ends = dict.fromkeys(ends)
        for name in ends:
            if pair is not None and not missing(pair[name]):
                ends[name] = float(pair[name])
    return {"router": learner, "against": data.best, **ends}


def best_policy(data: PoolData) -> str:
    """Return a line that names the best policy, with its mean utility and the standard error of the mean."""
    line = data.board.loc[data.best]
    return f"{label(data.best)} is best: mean utility {_with_error(line['utility'], line['utility_se'])}"


def learning(data: PoolData) -> str:
    """Return a sentence that names the best router that learns, for users whose scores come back to it.

    The text is empty if the best policy learns anyway, or if no policy that learns was replayed.
    """
    learner = best_that_learns(data)
    if learner is None or learner["router"] == data.best:
        return ""
    best = label(data.best)
    router = learner["router"]
    return (
        f"{best} does not learn while it serves. Where scored calls will come back to it, the best router "
        f"that learns is {label(router)}: {_compare(data, router, data.best)} against {best}."
    )


def ranking(data: PoolData) -> str:
    """Return sentences on the best router: its mean utility and its leads over other routers.

    The text has, in this order, the best router, its lead over the runner-up, the advice of `learning` if
    there is any, and the lead over the reference policy if that is ranked and neither best nor runner-up.
    """
    board = data.board
    best = data.best
    line = board.loc[best]
    winners = [p for p in data.ranked if board.loc[p, "rank"] == 1]
    if len(winners) == 1:
        verb = "router is"
    else:
        verb = "routers, with equal results, are"
    sentences = [
        f"Over {int(line['rhos'])} values of ρ and {int(data.info['trials'])} random orders of the queries "
        f"the best {verb} {listed_names([label(p) for p in winners])}, with a mean utility of "
        f"{_with_error(line['utility'], line['utility_se'])} (± is the standard error over queries and "
        "orders together, given this split; significance is adjusted for all pairs of routers)."
    ]
    runner_up = next((p for p in data.ranked if p not in winners), None)
    if runner_up:
        sentences.append(
            f"The lead of {label(best)} over the runner-up, {label(runner_up)}, is "
            f"{_compare(data, best, runner_up)}."
        )
    advice = learning(data)
    if advice:
        sentences.append(advice)
    if data.reference in data.ranked and data.reference not in (*winners, runner_up):
        sentences.append(
            f"Against {label(data.reference)}, the reference: {_compare(data, best, data.reference)}."
        )
    return " ".join(sentences)


def rq1(data: PoolData) -> str:
    """Return the answer to the paper's first question: is CABS-C or CABS-D better?

    CABS-C and CABS-D are the paper's two methods: one learner of surrogate rewards (coupled), and a mixture
    of that learner with a standard one (decoupled). Both exist in a linear and a neural family. A sentence
    for each replayed family and preset gives the difference in mean utility, CABS-D minus CABS-C, over all
    cost regimes, with its error and its significance. The text says so if no pair was replayed.
    """
    mart = data.mart("coupled_vs_decoupled")
    part = mart[(mart["metric"] == "utility") & (mart["regime"] == "overall")]
    if part.empty:
        return "This pool replayed no pair of CABS-C and CABS-D, so the question stays open here."
    sentences = []
    for row in part.itertuples():
        compared = "better" if row.difference > 0 else "worse"
        significance = ""
        if not missing(row.difference_se):
            if row.significant:
                significance = ", significant at 5 %"
            else:
                significance = ", within the noise"
        sentences.append(
            f"{row.family.capitalize()}, {row.preset} preset: CABS-D is "
            f"{_with_error(abs(row.difference), row.difference_se)} {compared} than CABS-C{significance}."
        )
    return " ".join(sentences)


def encoders(data: PoolData) -> str:
    """Return sentences that compare the pool with pools that differ only by the encoder.

    Each sentence names the best router there and counts the routers that earn significantly more with either
    encoder. The text is empty if there is no such pool.
    """
    mart = data.twins[data.twins["regime"] == "overall"]
    sentences = []
    for pool in sorted(set(mart["pool"]) - {data.pool}):
        theirs = mart[mart["pool"] == pool].set_index("policy")
        name = encoder_label(data.info["encoder"])
        their_encoder = encoder_label(theirs["encoder"].iloc[0])
        top = theirs[theirs["rank"] == 1]
        if top.empty or data.best not in theirs.index:
            continue
        rank = theirs.loc[data.best, "rank"]
        winner = f"{label(top.index[0])} ({top['utility'].iloc[0]:.3f})"
        text = f"With {their_encoder} instead of {name} the best router is {winner}"
        if rank != 1:
            text += f", and {label(data.best)}, best here, comes in at rank {int(rank)}"
        compared = [data.twin(policy, pool) for policy in data.routers]
        differences = [pair for pair in compared if pair is not None]
        if differences:
            more = sum(significant and difference > 0 for difference, _, significant in differences)
            less = sum(significant and difference < 0 for difference, _, significant in differences)
            text += (
                f". Of {len(differences)} routers that use the prompt, {more} earn significantly more with "
                f"{name}, {less} with {their_encoder}"
            )
        sentences.append(text + ".")
    return " ".join(sentences)


def rq2(data: PoolData) -> str:
    """Return the answer to the paper's second question: which router earns the highest utility?

    The text names the best router of each cost regime, and the number of the paper's orderings of two methods
    that hold here.
    """
    winners = []
    for regime in ("low", "medium", "high"):
        part = data.regimes[(data.regimes["regime"] == regime) & (data.regimes["rank"] == 1)]
        if not part.empty:
            winner = part.iloc[0]
            winners.append(f"{regime}: {label(winner['policy'])} ({winner['utility']:.3f})")
    text = "Highest utility among real routers – " + "; ".join(winners) + "."
    orderings = data.mart("paper_orderings")
    if not orderings.empty:
        encoders = list(orderings["paper_encoder"].unique())
        if data.info["encoder"] in encoders:
            encoder = data.info["encoder"]
        else:
            encoder = encoders[-1]
        part = orderings[orderings["paper_encoder"] == encoder]
        significant = part[part["significant"].fillna(False).astype(bool)]
        text += (
            f" Of {len(part)} orderings of two methods in the paper's table ({encoder}), "
            f"{int(part['holds'].sum())} hold here; of the {len(significant)} where our difference is "
            f"significant, {int(significant['holds'].sum())} do."
        )
    return text


def rq3(data: PoolData) -> str:
    """Return the answer to the paper's third question: which routers give most quality for the money?

    The text names the router with the highest AIQ, which is the mean height of its curve of score over cost,
    and the policies with the most undominated settings of rho.
    """
    aiq = data.mart("aiq")
    real = aiq[aiq["kind"] != "upper bound"].sort_values("aiq", ascending=False)
    top = real.iloc[0]
    text = f"The highest AIQ among real routers is {label(top['policy'])}'s, "
    text += _with_error(top["aiq"], top["aiq_se"])
    reference = real[real["policy"] == data.reference]
    if not reference.empty and top["policy"] != data.reference:
        theirs = reference.iloc[0]
        text += f", against {_with_error(theirs['aiq'], theirs['aiq_se'])} for {label(data.reference)}"
    points = data.mart("pareto_frontier")
    front = points[points["on_pool_frontier"]]
    names = front["policy"].value_counts()
    if len(names) <= 3:
        holders = "all belong to"
    else:
        holders = "the policies with the most are"
    text += f". {len(front)} settings of ρ are not dominated by any other; {holders} "
    listed = listed_names([f"{label(policy)} ({count})" for policy, count in names.head(3).items()])
    return f"{text}{listed}."


def rq4(data: PoolData) -> str:
    """Return the answer to the paper's fourth question: do surrogates speed up learning?

    For the best policy that learns, and for every policy with experts and its experts, the text gives the
    regret relative to the reference policy at the end, and the round from which that regret stays clearly
    negative.
    """
    curves = data.mart("regret_curves")
    curves = curves[(curves["regime"] == "overall") & curves["relative_regret"].notna()]
    if curves.empty:
        policy = label(data.reference)
        return f"The reference policy {policy} was not replayed, so relative regret is not defined."
    sentences = []
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
        sentences.append(f"{label(policy)} ends at {end} ({since})")
    return (
        f"Cumulative regret after {int(curves['round'].max()):,} rounds, relative to "
        f"{label(data.reference)}, mean of the regimes: " + "; ".join(sentences) + "."
    )
