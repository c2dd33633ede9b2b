"""A judge as a measuring instrument: its agreement with people, its biases, and the intervals of both.

    measured = measure(judge, judged, people, ...)         # on the answers that people labelled

Source: Cohen 1960 (kappa). `base.statistics.people` estimates what people would say of all answers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cabs_core.base.statistics.bootstrap import bootstrap_interval
from cabs_core.base.statistics.people import Sampled
from cabs_core.base.statistics.uncertainty import mean_error, share_interval
from cabs_core.base.units import percentage, percentages

#: Kappa below which agreement counts as low. "Substantial" begins here in Landis and Koch 1977.
LOW_KAPPA = 0.6
#: Smallest share of refused or truncated answers, and smallest error of a judge on a model, that is reported.
NOTABLE = 0.05
#: (maker of models, pattern of their names)
_FAMILIES = (
    ("openai", r"gpt|chatgpt|^o[1-9]|davinci"),
    ("anthropic", r"claude"),
    ("google", r"gemini|gemma|palm"),
    ("meta", r"llama"),
    ("mistral", r"mistral|mixtral|codestral|ministral"),
    ("alibaba", r"qwen|qwq"),
    ("deepseek", r"deepseek"),
    ("microsoft", r"phi-?\d"),
    ("cohere", r"command|aya"),
    ("xai", r"grok"),
    ("amazon", r"nova|titan"),
)


def family_of(model: str) -> str:
    """Return the maker of a model by its name, or the first word of an unknown name."""
    name = model.rsplit("/", 1)[-1].casefold()
    return next(
        (family for family, pattern in _FAMILIES if re.search(pattern, name)), re.split(r"[-_ .:]", name)[0]
    )


def share(hits: np.ndarray, groups: Sequence[str]) -> Sampled:
    """Return the share of hits with the interval of Clopper and Pearson.

    Args:
        hits: [n] True for a hit.
        groups: [n] prompts. The interval counts hits of one prompt as dependent.
    """
    error = mean_error(hits, clusters=np.array(groups, dtype=str))
    value = float(np.mean(hits))
    return Sampled(value, *share_interval(value, error), len(hits))


def mean(values: np.ndarray, groups: Sequence[str]) -> Sampled:
    """Return the mean of differences of scores with the interval from its standard error.

    Args:
        values: [n] differences.
        groups: [n] prompts. The standard error counts differences of one prompt as dependent.
    """
    value = float(values.mean())
    error = mean_error(values, clusters=np.array(groups, dtype=str))
    return Sampled(value, *error.interval(value, largest=1.0), len(values))


def kappa(a: np.ndarray, b: np.ndarray) -> float:
    """Return Cohen's kappa of two sets of [n] scores, of which those from 0.5 on count as right.

    Return NaN if all verdicts of both are one value.
    """
    x = a >= 0.5
    y = b >= 0.5
    chance = x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean())
    if chance < 1:
        return float((np.mean(x == y) - chance) / (1 - chance))
    return float("nan")


def slope(error: np.ndarray, doublings: np.ndarray, right: np.ndarray) -> float:
    """Return the least-squares slope of a judge's error over the log2 of an answer's length.

    Lengths and errors are taken as differences from the means of answers with the same verdict of people. A
    judge that errs at random errs upwards on wrong answers, so without this step models with long, bad
    answers would look favoured.

    Args:
        error: [n] score by the judge minus score by people.
        doublings: [n] log2 of the lengths.
        right: [n] True if people say that the answer is right.

    Returns:
        Score per doubling of the length, or NaN if lengths do not differ among answers with the same verdict.
    """
    error = error.copy()
    doublings = doublings.copy()
    for group in (right, ~right):
        if group.any():
            error[group] -= error[group].mean()
            doublings[group] -= doublings[group].mean()
    spread = float(doublings @ doublings)
    if spread > 1e-12:
        return float(doublings @ error / spread)
    return float("nan")


def measure(
    judge: str,
    judged: np.ndarray,
    people: np.ndarray,
    queries: Sequence[str],
    models: Sequence[str],
    lengths: np.ndarray,
) -> dict[str, Any]:
    """Return figures about a judge from n answers that people labelled.

    Args:
        judge: the upstream's name of the judge's model.
        judged: [n] scores in [0, 1] by the judge.
        people: [n] scores in [0, 1] by people.
        queries: [n] ids of the queries.
        models: [n] models that answered.
        lengths: [n] characters of the answers.

    Returns:
        JSON values: labelled (n), prompts (number of different queries), agreement (share of equal verdicts),
        kappa, length (score per doubling of an answer's length), length of wrong answers (the slope among
        answers that people reject), models ({model: mean of judge minus people}), own family (error on models
        of the judge's maker minus error on others, and the maker as `family`; absent if all answers or none
        are from its maker). Each figure but the two counts is a `Sampled` as a dict, with an interval.
    """
    error = judged - people
    doublings = np.log2(np.maximum(lengths, 1))
    right = people >= 0.5

    def resampled(figure: Callable[[np.ndarray], float]) -> dict[str, Any]:
        low, high = bootstrap_interval(figure, np.array(queries, dtype=str))
        return asdict(Sampled(figure(np.arange(len(judged))), low, high, len(judged)))

    def favour(rows: np.ndarray) -> float:
        return slope(error[rows], doublings[rows], right[rows])

    figures: dict[str, Any] = {
        "labelled": len(judged),
        "prompts": len(set(queries)),
        "agreement": asdict(share((judged >= 0.5) == (people >= 0.5), queries)),
        "kappa": resampled(lambda rows: kappa(judged[rows], people[rows])),
        "length": resampled(favour),
        "length of wrong answers": resampled(lambda rows: favour(rows[~right[rows]])),
        "models": {},
    }
    names = np.array(models, dtype=object)
    for model in sorted(set(models)):
        mine = names == model
        rows = np.flatnonzero(mine).tolist()
        figures["models"][model] = asdict(mean(error[rows], [queries[i] for i in rows]))
    own_family = np.array([family_of(m) == family_of(judge) for m in models], dtype=bool)
    if own_family.any() and not own_family.all():
        gap = resampled(lambda rows: _gap(error[rows], own_family[rows]))
        figures["own family"] = gap | {"family": family_of(judge)}
    return figures


def _gap(error: np.ndarray, own_family: np.ndarray) -> float:
    """Return the mean error on models of the judge's maker minus the mean error on others.

    Return NaN if one of the groups is empty.
    """
    if not own_family.any() or own_family.all():
        return float("nan")
    return float(error[own_family].mean() - error[~own_family].mean())


def position(shares: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Return the effect of the order in which a judge sees two answers.

    Args:
        shares: (query, share of wins when first, share of wins when second) of each pair.

    Returns:
        first: mean of the first share minus the second.
        flips: share of pairs whose winner depends on the order.
        Both are `Sampled` as a dict, with an interval.
    """
    gaps = np.array([first - second for _, first, second in shares])
    queries = [query for query, _, _ in shares]
    return {
        "first": asdict(mean(gaps, queries)),
        "flips": asdict(share(gaps != 0, queries)),
    }


def warnings(measured: Mapping[str, Any]) -> list[str]:
    """Return sentences about errors of a judge that limit its use.

    Kappa is reported if its value is not known or below `LOW_KAPPA`. Another figure is reported only if its
    interval, corrected for the number of figures that are looked at, excludes 0. Moreover, the error on a
    model is reported only from `NOTABLE` on, the own family only if it is favoured, and the length of wrong
    answers only if it says something else than the length of all. With fewer than two labels the only
    sentence says that the judge was never compared with people.

    Args:
        measured: figures of `measure`, which are absent if people labelled fewer than two answers, and the
            figures of `position` as `position` if the judge compares.
    """
    if not measured.get("labelled"):
        return [
            "it was never compared with people, who labelled fewer than two of the answers that it scored: "
            "`cabs judge sample` writes a sheet to label"
        ]
    sentences = []
    looked_at = 2 + len(measured["models"]) + ("own family" in measured) + ("position" in measured)
    agreement = Sampled(**measured["kappa"])
    if not agreement.value >= LOW_KAPPA:
        sentences.append(
            f"agreement with people is low: kappa {agreement.value:.2f} ({agreement.low:.2f} to "
            f"{agreement.high:.2f}), below {LOW_KAPPA:g}"
        )
    long = Sampled(**measured["length"])
    if long.excludes_zero(looked_at):
        sentences.append(
            f"it {'favours' if long.value > 0 else 'punishes'} long answers: {long} of score per doubling of "
            "the length"
        )
    wrong = Sampled(**measured["length of wrong answers"])
    if wrong.excludes_zero(looked_at) and not (
        long.excludes_zero(looked_at) and long.value * wrong.value > 0
    ):
        sentences.append(
            f"it {'favours' if wrong.value > 0 else 'punishes'} long answers where people reject them: "
            f"{wrong} of score per doubling of the length"
        )
    if "own family" in measured:
        own_family = dict(measured["own family"])
        family = own_family.pop("family")
        gap = Sampled(**own_family)
        if gap.value > 0 and gap.excludes_zero(looked_at):
            sentences.append(
                f"it favours models of its own family ({family}): {gap} of score more, against people"
            )
    for model, data in measured["models"].items():
        bias = Sampled(**data)
        if bias.excludes_zero(looked_at) and abs(bias.value) >= NOTABLE:
            sentences.append(f"it scores {model} {'above' if bias.value > 0 else 'below'} people by {bias}")
    if "position" in measured and Sampled(**measured["position"]["first"]).excludes_zero(looked_at):
        sentences.append(
            f"order matters: the first place is worth {Sampled(**measured['position']['first'])}"
        )
    return sentences


def refusals_decide(models: Sequence[str], scores: np.ndarray, refused: np.ndarray) -> str:
    """Return a sentence if another model would be best without its refused answers, otherwise ''.

    Models without a score are not compared. If no answer but refused ones has a score, the text is ''.

    Args:
        models: [K] names.
        scores: [n, K] scores, 0 for refused answers, NaN for answers that were not asked for.
        refused: [n, K] True for refused answers.
    """
    scored = ~np.isnan(scores)
    if not (scored & ~refused).any():
        return ""
    best = _best_mean(scores, scored)
    best_without = _best_mean(scores, scored & ~refused)
    if best == best_without:
        return ""
    share_refused = refused[~np.isnan(scores[:, best_without]), best_without].mean()
    return (
        f"refusals decide: {models[best]} has the best mean score, but without refused answers (worth 0) it "
        f"is {models[best_without]}, which refused {percentage(share_refused)}"
    )


def _best_mean(scores: np.ndarray, counted: np.ndarray) -> int:
    """Return the index of the model of largest mean score; a model needs a score to be the best.

    Args:
        scores: [n, K]. counted: bool [n, K], True for the scores to use, at least one.
    """
    numbers = counted.sum(axis=0)
    sums = np.where(counted, scores, 0.0).sum(axis=0)
    return int(np.where(numbers > 0, sums / np.maximum(numbers, 1), -np.inf).argmax())


def in_words(measured: Mapping[str, Any]) -> list[str]:
    """Return lines of text with the figures of a judge, and at the end a line for each of `warnings`.

    A line may hold several figures, such as agreement and kappa. Figures that `measured` lacks have no line.

    Args:
        measured: as of `warnings`. It may also hold `means`, {model: mean score by the judge, and the mean
            that people would give}.
    """
    lines = []
    if measured.get("labelled"):
        lines.append(
            f"compared with people on {measured['labelled']} answers to {measured['prompts']} prompts"
        )
        same = Sampled(**measured["agreement"])
        k = Sampled(**measured["kappa"])
        lines.append(
            f"agreement {percentage(same.value, 1)} ({percentages(same.low, same.high, 1)}), kappa "
            f"{k.value:.2f} ({k.low:.2f} to {k.high:.2f})"
        )
        lines.append(
            f"error per doubling of an answer's length: {Sampled(**measured['length'])}; where people "
            f"reject the answer: {Sampled(**measured['length of wrong answers'])}"
        )
        lines += [
            f"{model}: judge minus people {Sampled(**data)}" for model, data in measured["models"].items()
        ]
        for model, data in measured.get("means", {}).items():
            people = Sampled(**data["people"])
            lines.append(
                f"{model}: mean score {data['judge']:.3f} by the judge; people would give {people.value:.3f} "
                f"({people.low:.3f} to {people.high:.3f})"
            )
        if "own family" in measured:
            own_family = {k: v for k, v in measured["own family"].items() if k != "family"}
            lines.append(
                f"own family ({measured['own family']['family']}) against others: {Sampled(**own_family)}"
            )
    if "position" in measured:
        flips = Sampled(**measured["position"]["flips"])
        lines.append(
            f"first place: {Sampled(**measured['position']['first'])}; the winner depends on the order in "
            f"{percentage(flips.value, 1)} of pairs"
        )
    return [*lines, *(f"note: {text}" for text in warnings(measured))]
