"""Writes the model card of a bundle, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from cabs_core.base.catalog.policies import policy_record
from cabs_core.router.bundle import HELD_OUT

_COLD = (
    "Nothing was measured yet: scores are what prices suggest (ten times the price, .1 more), costs are of "
    "200 output tokens."
)
_PREDICTED = " The pool's source is a log: where a model did not answer, its outcome is predicted."


def model_card(manifest: Mapping[str, Any]) -> str:
    """Return the model card of a bundle, in Markdown.

    The card says what the router is, from which data it was made, how good it is on validation, what it
    costs, and what it cannot know.

    Args:
        manifest: fields of `Manifest`.
    """
    evidence = manifest["evidence"]
    source = manifest["provenance"]
    lines = [
        f"# Router for pool {manifest['pool']}",
        "",
        f"Chooses one of {len(manifest['arms'])} models for a prompt, by `{manifest['policy']}` at rho = "
        f"{manifest['rho']:g}: an answer is worth clip(score - rho x cost in USD, 0, 1).",
        "",
        "| model | mean score | mean cost, USD a call |",
        "|---|---|---|",
        *(
            f"| {arm['name']} | {arm['mean_score']:.3f} | "
            f"{'free' if arm['free'] else format(arm['mean_cost'], '.3g')} |"
            for arm in manifest["arms"]
        ),
        "",
        _COLD if source.get("cold") else "Means over the train split." + ("" if evidence else _PREDICTED),
        "",
        "## On validation",
        "",
        f"Mean utility {evidence['mean']:+.4f} ± {evidence['se']:.4f} (standard error, paired over "
        f"{evidence['n']} queries) against always `{manifest['fallback']}`, the best single model of the "
        "train split."
        if evidence
        else "Nothing was measured: these figures are the prior's, and say nothing about quality."
        if source.get("cold")
        else "These figures chose the policy. They rest on predicted outcomes and flatter what predicts "
        "alike; the pool's "
        "report has estimates from held-out decisions.",
        "",
        *_validation(source["validation"], errors=bool(evidence)),
        "",
        "The oracles were stopped and chosen on the same validation split, and the best of several policies "
        "looks better there than it is: these figures do not say how good it is.",
        "",
        *_judged(manifest),
        "",
        "## How it behaves",
        "",
        f"* Encoder `{manifest['encoder']['name']}`, content {manifest['identity']}; longer prompts are cut "
        f"at {manifest['encoder']['max_length']} tokens.",
        f"* It plays a uniformly drawn model with probability {manifest['epsilon']:g}, so that its log can "
        "be evaluated.",
        f"* Mode {manifest['mode']}; where it does not route, `{manifest['fallback']}` answers.",
        "* It knows prices and scores as they were in the outcomes. "
        + (
            "It learns from the scores it is given, and believes them."
            if policy_record(manifest["policy"]).learns
            else "It does not learn while it serves: scores it is given are recorded, for `cabs doctor` and "
            "the next training."
        ),
        "",
        "## Serving it",
        "",
        "Neither an orchestrator nor torch is needed: in a virtual environment, `pip install --no-deps -r "
        "requirements.txt` (this folder's), then `cabs-router serve --router .`.",
        "",
        f"Made from problem {source['problem']}, pool settings {source['pool_settings']}, seed "
        f"{source['seed']}.",
        "",
    ]
    return "\n".join(lines)


def _judged(manifest: Mapping[str, Any]) -> list[str]:
    """Return the lines on the quality of the router, on prompts that played no part in making it.

    If the manifest has no such judgement, the lines say where to find it. A router that was fitted on all
    rows gets a line more, since the figures are then those of other routers.
    """
    source = manifest["provenance"]
    lines = ["## How good it is", ""]
    judged = source.get("judged")
    if judged is None:
        lines.append(
            f"The pool's report says it (`cabs report --pool {manifest['pool']}`) and, at the time of an "
            f"export, `{HELD_OUT}` beside this card."
        )
    else:
        lines += [judged["said"], "", *_figures(judged)]
    if source.get("all_rows"):
        lines.append("This router itself was fitted on all rows, so no row is left to judge it on.")
    return lines


def _figures(judged: Mapping[str, Any]) -> list[str]:
    """Return the lines with mean score, difference to today's model and price, and their origin.

    If the mean score or the difference is unknown, the only line says so.
    """
    if judged["quality"] is None or judged["difference"] is None:
        return ["The data at hand cannot tell its mean score."]
    interval = ""
    if judged["low"] is not None and judged["high"] is not None:
        interval = f" (95 % interval {100 * judged['low']:+.1f} to {100 * judged['high']:+.1f})"
    price = ""
    if judged["usd_per_1000"] is not None:
        price = f", {judged['usd_per_1000']:.2f} USD per 1,000 requests"
    measured = "These figures are of the test split, which played no part in making this router."
    if judged["folds"] > 1:
        measured = (
            f"These figures come from {judged['folds']} routers, one a fold, none of which had seen the "
            "prompts that it was judged on."
        )
    return [
        f"Mean score {judged['quality']:.3f}, {100 * judged['difference']:+.1f} points beside "
        f"{judged['today']}{interval}{price}.",
        "",
        measured,
    ]


def _validation(rows: Sequence[Mapping[str, Any]], *, errors: bool) -> list[str]:
    """Return a table of the policies on validation, best first.

    Args:
        rows: rows of `ChosenPolicy`, one for each policy.
        errors: False leaves standard errors out, since those of predicted outcomes would be too small.
    """
    best = sorted(rows, key=lambda r: -r["utility"])
    if not errors:
        return [
            "| policy | mean utility, predicted | minus best single, predicted |",
            "|---|---|---|",
            *(f"| {r['policy']} | {r['utility']:.4f} | {r['lead']:+.4f} |" for r in best),
        ]
    return [
        "| policy | mean utility | standard error | minus best single | standard error |",
        "|---|---|---|---|---|",
        *(
            f"| {r['policy']} | {r['utility']:.4f} | {r['se']:.4f} | {r['lead']:+.4f} | {r['lead_se']:.4f} |"
            for r in best
        ),
    ]
