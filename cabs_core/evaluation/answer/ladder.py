"""The answer: a ladder of keep, switch, rules and router, each beside what is used today.

    found = answer(table, rules, [router], AnswerOptions(requests_per_month=200_000))
    found.recommended      # "rules"
    found.to_dict()        # what verdict.json holds under `answer`

Single models are judged on every prompt, rules and routers on prompts that they were not made from
(`Decisions`).
The probability of a wrong word (`AnswerOptions.level`) is shared: half of it for "switch", over all other
models together, and half for "rules" and "router" together (Holm). Printed intervals are two-sided 95 %
intervals of each option. That of an option that was picked from several allows for the pick (`_rung`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from cabs_core.base.statistics.costs import DEAREST, MOST_OF_THE_MONEY
from cabs_core.base.statistics.uncertainty import holm
from cabs_core.base.units import percentage
from cabs_core.evaluation.answer.compare import (
    CostComparison,
    Difference,
    Pair,
    compare_costs,
    cross_fitted_factor,
    quality_of,
    weights_for_costs,
)
from cabs_core.evaluation.answer.logged import LoggedTable
from cabs_core.evaluation.answer.rule import (
    LEVEL,
    RECOMMENDABLE,
    SHARES_OF_FITTED,
    SHARES_OF_MODELS,
    Shares,
    Tests,
    Word,
    recommended,
    word_of,
)
from cabs_core.evaluation.answer.table import DIGITS, AnswerOptions, Decisions, ScoredTable

KEEP = "keep"
SWITCH = "switch"
RULES = "rules"
ROUTER = "router"
#: what is used today if it is the choices that a log holds
LOG = "log"
#: name of the tasks that are too small for a row of their own
OTHER = "other"


@dataclass(frozen=True)
class Rung:
    """An option beside what is used today.

    Attributes:
        rung: keep, switch, rules or router.
        use: a model, "log" for the choices that a log holds, {task: model}, or a policy.
        quality: mean score.
        difference: `quality` less today's.
        low, high: two-sided 95 % interval of `difference`.
        sure_low: lower bound of the difference that the word rests on, at this option's share of the error.
        usd_per_1000: USD of 1,000 requests.
        today_usd_per_1000: USD of the same 1,000 requests by what is used today.
        cost_ratio: cost as a share of today's; None if today's cost is 0 or not known.
        cost_low, cost_high: 95 % interval of `cost_ratio`; None if no interval is known.
        saving_per_month: USD; None if the number of requests a month is not known.
        saving_low, saving_high: 95 % interval of `saving_per_month`; None if no interval is known.
        latency_median, latency_95: median and 95 % quantile in seconds; None if no latency is known.
        word: judgement of the option (`rule.Word`).
        prompts: number of prompts with known answers of both the option and today's system.
        share: `prompts` as a share of all prompts.
        independent: number of clusters among `prompts`.
    """

    rung: str
    use: Any
    quality: float
    difference: float
    low: float
    high: float
    sure_low: float
    usd_per_1000: float
    today_usd_per_1000: float
    cost_ratio: float | None
    cost_low: float | None
    cost_high: float | None
    saving_per_month: float | None
    saving_low: float | None
    saving_high: float | None
    latency_median: float | None
    latency_95: float | None
    word: Word
    prompts: int
    share: float
    independent: int


@dataclass(frozen=True)
class TaskRow:
    """The comparison of an option with today's model on the prompts of one task, without a word.

    Attributes:
        rung: rung of the option.
        task: name of the task, or "other" for small tasks together.
        use: model that the option, as it would be exported, plays most in this task.
        prompts: number of prompts with known answers of both.
        difference: mean score less today's, with its two-sided 95 % interval from `low` to `high`. That of
            rules and routers is of those that were made without the prompts (`Decisions`).
        usd_per_1000, today_usd_per_1000: USD of 1,000 requests by the option and by today's system.
    """

    rung: str
    task: str
    use: str
    prompts: int
    difference: float
    low: float
    high: float
    usd_per_1000: float
    today_usd_per_1000: float


@dataclass(frozen=True)
class Note:
    """A sentence that a reader of the answer must know, with a code for programs."""

    code: str
    text: str


@dataclass(frozen=True)
class Answer:
    """The options of a team compared with today's model, with the recommended option.

    Attributes:
        today: the model that is used today, "log" for the choices that a log holds, or the best model on all
            prompts if `today_is_assumed`.
        today_is_assumed: True if it is not known what is used today.
        recommended: name of the rung, or None.
        cheapest: the cheapest of the rungs that may be recommended, or None.
        rungs: rungs from the lowest to the highest.
        models: every model alone but today's, the best first.
        by_task: rows of every rung except "keep".
        notes: sentences that a reader must know.
    """

    today: str
    today_is_assumed: bool
    recommended: str | None
    cheapest: str | None
    rungs: tuple[Rung, ...]
    models: tuple[Rung, ...]
    by_task: tuple[TaskRow, ...]
    notes: tuple[Note, ...]

    def rung(self, name: str) -> Rung | None:
        """Return the rung of this name; None if the answer has none."""
        return next((rung for rung in self.rungs if rung.rung == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values; figures that are not known are None."""
        content: dict[str, Any] = _plain(asdict(self))
        return content


@dataclass(frozen=True)
class _Option:
    """An option with its decisions, its comparison with today's system, and its word.

    Attributes:
        rung, use: see `Rung`.
        played: decisions of the option.
        pair: the option and today's system, prompt by prompt.
        quality: difference in score.
        costs: costs of the option and of today's system.
        tests: p-values, adjusted for the family of options (Holm).
        word, sure_low: see `Rung`.
        number_alike: number of options that the shown one was picked from and that may be as good, the shown
            one among them.
    """

    rung: str
    use: Any
    played: Decisions
    pair: Pair
    quality: Difference
    costs: CostComparison
    tests: Tests = field(default_factory=lambda: Tests(1.0, 1.0, 1.0, 1.0))
    word: Word = Word.UNKNOWN
    sure_low: float = float("nan")
    number_alike: int = 1


def answer(
    table: ScoredTable,
    rules: Decisions | None = None,
    routers: Sequence[Decisions] = (),
    options: AnswerOptions | None = None,
) -> Answer:
    """Compare every option with what is used today, and recommend one.

    Args:
        table: scored answers, with what is used today.
        rules: decisions of the rules (`fit_rules`); None if there are none.
        routers: decisions of learned policies, cross-fitted. If there are several, the rung shows one of
            them, and the error is shared by all.
        options: settings; None takes the defaults.
    """
    options = options or AnswerOptions()
    baseline = table.baseline()
    others = [j for j in range(len(table.models)) if table.played is not None or j != table.reference]
    named = [(SWITCH, Decisions(table.models[j], table.single(j))) for j in others]
    learned = [(RULES, rules)] if rules is not None else []
    learned += [(ROUTER, router) for router in routers]
    judged = _judged(table, named + learned, baseline, options)
    single = _with_words(judged[: len(named)], SHARES_OF_MODELS, options, table)
    fitted = _with_words(judged[len(named) :], SHARES_OF_FITTED, options, table, single)
    shown = []
    if single:
        picked = _most_promising(single, table, options)
        shown.append(picked)
        # one page prints one interval of one model
        single = [picked if option.use == picked.use else option for option in single]
    for rung in (RULES, ROUTER):
        same = [option for option in fitted if option.rung == rung]
        if same:
            shown.append(_most_promising(same, table, options))
    keep = _keep(table, baseline, options)
    has_keep = table.today is not None or table.played is not None
    candidates = ([keep] if has_keep else []) + shown
    chosen, cheapest = _choice(candidates, table, options)
    if table.played is None:
        today = table.models[table.reference]
    else:
        today = LOG
    found = Answer(
        today=today,
        today_is_assumed=not has_keep,
        recommended=chosen,
        cheapest=cheapest,
        rungs=tuple(_rung(option, table, options) for option in candidates),
        models=tuple(
            sorted(
                (_rung(option, table, options) for option in single),
                key=lambda rung: (-np.nan_to_num(rung.difference, nan=-2.0), rung.use),
            )
        ),
        by_task=tuple(row for option in shown for row in _by_task(option, table, options)),
        notes=(),
    )
    return replace(found, notes=_notes(found, candidates, table))


def _judged(
    table: ScoredTable,
    named: Sequence[tuple[str, Decisions]],
    baseline: np.ndarray,
    options: AnswerOptions,
) -> list[_Option]:
    """Compare (rung, decisions) with the baseline's probabilities `[N, K]`; words come later.

    Intervals of rules and routers are widened (`cross_fitted_factor`).
    """
    pairs = [Pair.of(table, played.weights, baseline) for _, played in named]
    paid = [weights_for_costs(played) for _, played in named]
    comparisons = compare_costs(
        [Pair.of(table, weights, baseline) for weights in paid], table.clusters, options
    )
    options_found = []
    for (rung, played), pair, costs in zip(named, pairs, comparisons, strict=True):
        use = played.name if played.use is None else played.use
        quality = quality_of(table, pair, played.weights, baseline)
        if rung in (RULES, ROUTER):
            quality = quality.widened(cross_fitted_factor(quality, table, played))
        options_found.append(_Option(rung, use, played, pair, quality, costs))
    return options_found


def _keep(table: ScoredTable, baseline: np.ndarray, options: AnswerOptions) -> _Option:
    """Return the option that keeps what is used today."""
    if table.played is None:
        use = table.models[table.reference]
    else:
        use = LOG
    (option,) = _judged(table, [(KEEP, Decisions(use, baseline))], baseline, options)
    return replace(option, word=Word.KEEP, sure_low=0.0)


def _with_words(
    found: Sequence[_Option],
    shares: Shares,
    options: AnswerOptions,
    table: ScoredTable,
    single: Sequence[_Option] = (),
) -> list[_Option]:
    """Return the options with their words; all options of `found` together have half of the error.

    Args:
        single: the single models with their words, if `found` are rules and routers.
    """
    tail = options.level / 2
    # if today's model is the best of all on these prompts, any of them may have been it
    if table.today is None and table.played is None:
        chosen_of = len(table.models)
    else:
        chosen_of = 1
    better = [_p_better(option, single, table) for option in found]
    as_good = [option.quality.p_value_above(-options.tolerance) for option in found]
    cheaper = [option.costs.p_cheaper for option in found]
    worse = [min(chosen_of * option.quality.p_value_below(0.0), 1.0) for option in found]
    for k, option in enumerate(found):
        if table.asks_selective(option.played.weights):
            better[k] = as_good[k] = cheaper[k] = worse[k] = 1.0
    families = [holm(values) for values in (better, as_good, cheaper, worse)]
    order = np.argsort(np.argsort(as_good, kind="stable"), kind="stable")
    named = []
    for k, option in enumerate(found):
        tests = Tests(*(float(family[k]) for family in families))
        share = tail / (len(found) - int(order[k]))
        low, _ = option.quality.interval(share)
        word = word_of(tests, tail, shares, costs_known=option.costs.known)
        named.append(replace(option, tests=tests, word=word, sure_low=low))
    return named


def _p_better(option: _Option, single: Sequence[_Option], table: ScoredTable) -> float:
    """Return the one-sided p-value of the hypothesis that an option is no better than today's.

    A single model is compared with today's alone. Rules and routers have a second condition, since they may
    look better only because they found the single model that happens to be best on these prompts: they must
    also be better than that model, or a single model must have been shown to be better than today's.
    """
    above = option.quality.p_value_above(0.0)
    if option.rung == SWITCH:
        return above
    best = table.single(table.best)
    pair = Pair.of(table, option.played.weights, best)
    beyond_best = quality_of(table, pair, option.played.weights, best).p_value_above(0.0)
    shown = min((other.tests.better for other in single), default=1.0)
    return max(above, min(beyond_best, shown))


def _beats(a: _Option, b: _Option, table: ScoredTable, options: AnswerOptions) -> bool:
    """Return True if `a` is as good as `b` and cheaper, or better at a price worth paying.

    The second case fails if `a` is dearer than today's model, or if `b` is as good as `a` and cheaper. If a
    few prompts hold most of the money, `a` counts as dearer where it costs more in the table.
    """
    tail = options.level / 2
    pair = Pair.of(table, a.played.weights, b.played.weights)
    paid = Pair.of(table, weights_for_costs(a.played), weights_for_costs(b.played))
    (costs,) = compare_costs([paid], table.clusters, options)
    quality = quality_of(table, pair, a.played.weights, b.played.weights)
    if max(quality.p_value_above(-options.tolerance), costs.p_cheaper) <= tail:
        return True
    if a.costs.known:
        is_dearer = a.costs.p_dearer <= tail
    else:
        is_dearer = a.costs.cost > a.costs.other_cost
    if is_dearer or quality.p_value_above(0.0) > tail:
        return False
    # what b gains by its price may be worth the loss that is within the tolerance
    cheaper = max(quality.mirrored().p_value_above(-options.tolerance), costs.p_dearer)
    return cheaper > tail


def _choice(
    candidates: Sequence[_Option], table: ScoredTable, options: AnswerOptions
) -> tuple[str | None, str | None]:
    """Return the names of the recommended rung and of the cheapest rung that may be recommended.

    The recommended rung is the lowest one that may be recommended and that no other such rung beats
    (`rule.recommended`). If all such rungs are beaten, in a circle, the cheapest is recommended. Both names
    are None if no rung may be recommended.
    """
    by_rung = {option.rung: option for option in candidates}
    words = {rung: option.word for rung, option in by_rung.items()}
    costs = {rung: option.costs.cost for rung, option in by_rung.items()}
    allowed = [rung for rung, word in words.items() if word in RECOMMENDABLE]
    cheapest = min(allowed, key=lambda rung: costs[rung], default=None)
    chosen = recommended(words, costs, lambda a, b: _beats(by_rung[a], by_rung[b], table, options))
    return chosen, cheapest


def _most_promising(found: Sequence[_Option], table: ScoredTable, options: AnswerOptions) -> _Option:
    """Return the option that a rung shows, with its `number_alike` among the options in `found`.

    If any options may be recommended, the cheapest of those that no other beats is taken. Otherwise the
    option of largest worth is taken. Its worth is its difference in score plus the tolerance times the share
    of the cost that it saves. Among equal worths, the option whose known calls cost least is taken.
    """
    allowed = [option for option in found if option.word in RECOMMENDABLE]
    unbeaten = [
        option
        for option in allowed
        if not any(_beats(other, option, table, options) for other in allowed if other is not option)
    ]
    if allowed:
        return _with_number_alike(
            min(unbeaten or allowed, key=lambda option: (option.costs.cost, str(option.use))), found
        )

    def worth(option: _Option) -> tuple[float, float, str]:
        if option.costs.known and option.costs.other_cost > 0:
            saved = 1.0 - option.costs.ratio
        else:
            saved = 0.0
        value = option.quality.mean + options.tolerance * saved
        rounded = round(float(np.nan_to_num(value, nan=-2.0)), 9)
        return -rounded, _cost_of_known_calls(option, table), str(option.use)

    return _with_number_alike(min(found, key=worth), found)


def _cost_of_known_calls(option: _Option, table: ScoredTable) -> float:
    """Mean USD of the calls in the table that the option would make too; infinity if there are none.

    Unlike the cost in `costs`, the mean is not corrected for the prompts that got the calls of a log.
    """
    weights = np.where(table.answered, np.nan_to_num(option.played.weights), 0.0)
    total = float(weights.sum())
    if total <= 0:
        return float("inf")
    return round(float((weights * np.nan_to_num(table.costs)).sum()) / total, DIGITS)


def _with_number_alike(option: _Option, found: Sequence[_Option]) -> _Option:
    """Return the option with `number_alike`: 1 plus the number of others in `found` that may be as good."""
    mean = option.quality.mean
    others = sum(other.quality.interval(LEVEL / 2)[1] >= mean for other in found if other is not option)
    return replace(option, number_alike=1 + others)


def _rung(option: _Option, table: ScoredTable, options: AnswerOptions) -> Rung:
    """Return the printed figures of an option.

    An option that was picked from several looks better and cheaper than it is. Its interval is therefore
    wider at the end where the option is less good or dearer: the error of that end is `options.level` divided
    by `number_alike`, or half of `options.level` if that is less. The end does not pass what the option's
    word says, because the word holds for all options together.
    """
    tail = options.level / 2
    picked_tail = min(tail, 2.0 * tail / option.number_alike)
    pair = option.pair
    costs = option.costs
    low = 0.0
    high = 0.0
    ratio_low: float | None = None
    ratio_high: float | None = None
    saving_low: float | None = None
    saving_high: float | None = None
    if option.rung != KEEP:
        low = option.quality.interval(picked_tail)[0]
        high = option.quality.interval(tail)[1]
    if option.rung != KEEP and costs.known:
        saving_low = costs.saving_interval(picked_tail)[0]
        saving_high = costs.saving_interval(tail)[1]
    if option.rung != KEEP and costs.known and costs.other_cost > 0:
        ratio_low = costs.ratio_interval(tail)[0]
        ratio_high = costs.ratio_interval(picked_tail)[1]
    if option.word == Word.BETTER:
        low = max(low, 0.0)
    if option.word in (Word.CHEAPER, Word.AS_GOOD):
        low = max(low, -options.tolerance)
    if option.word == Word.CHEAPER and saving_low is not None:
        saving_low = max(saving_low, 0.0)
    if option.word == Word.CHEAPER and ratio_high is not None:
        ratio_high = min(ratio_high, 1.0)
    median, high_latency = _latencies(option.played.weights, pair.weight, table)
    requests = options.requests_per_month
    seen = pair.weight > 0
    return Rung(
        rung=option.rung,
        use=option.use,
        quality=pair.mean(pair.score),
        difference=0.0 if option.rung == KEEP else option.quality.mean,
        low=low,
        high=high,
        sure_low=option.sure_low,
        usd_per_1000=1000.0 * costs.cost if seen.any() else np.nan,
        today_usd_per_1000=1000.0 * costs.other_cost if seen.any() else np.nan,
        cost_ratio=costs.ratio if costs.other_cost > 0 else None,
        cost_low=ratio_low,
        cost_high=ratio_high,
        saving_per_month=_times(costs.other_cost - costs.cost if seen.any() else np.nan, requests),
        saving_low=_times(saving_low, requests),
        saving_high=_times(saving_high, requests),
        latency_median=median,
        latency_95=high_latency,
        word=option.word,
        prompts=int(seen.sum()),
        share=float(seen.mean()) if len(seen) else 0.0,
        independent=len(np.unique(table.clusters[seen])),
    )


def _times(value: float | None, requests: float | None) -> float | None:
    """Return the value of all requests from that of one, or None if either figure is not known."""
    if value is None or requests is None:
        return None
    return value * requests


def _latencies(
    weights: np.ndarray, share: np.ndarray, table: ScoredTable
) -> tuple[float | None, float | None]:
    """Median and 95 % quantile of an option's latencies in seconds; None if no latency is known.

    Args:
        weights: `[N, K]` probabilities of the option.
        share: `[N]` weights of the prompts. Prompts of weight 0 are left out.
    """
    if table.latencies is None:
        return None, None
    known = table.answered & ~np.isnan(table.latencies) & (share > 0)[:, None]
    weight = np.where(known, np.nan_to_num(weights), 0.0)
    asked = weight > 0
    if not asked.any():
        return None, None
    order = np.argsort(table.latencies[asked], kind="stable")
    seconds = table.latencies[asked][order]
    reached = np.cumsum(weight[asked][order])
    places = np.searchsorted(reached, np.array([0.5, 0.95]) * reached[-1])
    median, high = seconds[np.minimum(places, len(seconds) - 1)]
    return float(median), float(high)


def _by_task(option: _Option, table: ScoredTable, options: AnswerOptions) -> list[TaskRow]:
    """Rows of an option by task, the largest task first and small ones together at the end."""
    names, counts = np.unique(table.tasks.astype(str), return_counts=True)
    small = {str(name) for name, count in zip(names, counts, strict=True) if count < options.smallest_task}
    task = np.array([OTHER if name in small else name for name in table.tasks.astype(str).tolist()])
    exported = weights_for_costs(option.played)
    all_paid = Pair.of(table, exported, table.baseline())
    rows = []
    for name in np.unique(task).tolist():
        pair = option.pair.only(task == name)
        paid = all_paid.only(task == name)
        prompts = int((pair.weight > 0).sum())
        if not prompts:
            continue
        sample = quality_of(table, pair, option.played.weights, table.baseline())
        low, high = sample.interval(options.level / 2)
        played = np.nan_to_num(exported)[task == name].sum(axis=0)
        rows.append(
            TaskRow(
                rung=option.rung,
                task=name,
                use=table.models[int(played.argmax())],
                prompts=prompts,
                difference=sample.mean,
                low=low,
                high=high,
                usd_per_1000=1000.0 * paid.mean(paid.cost),
                today_usd_per_1000=1000.0 * paid.mean(paid.other_cost),
            )
        )
    return sorted(rows, key=lambda row: (row.task == OTHER, -row.prompts, row.task))


def losses(table: ScoredTable, weights: np.ndarray, task: str | None = None, most: int = 3) -> np.ndarray:
    """Indices of prompts on which an option scores less than today's system, the largest losses first.

    Args:
        table: scored answers.
        weights: `[N, K]` probabilities of the option.
        task: task whose prompts are searched; None searches all.
        most: largest number of indices.
    """
    pair = Pair.of(table, weights, table.baseline())
    if task is None:
        rows = np.ones(len(table.tasks), dtype=bool)
    else:
        rows = table.tasks.astype(str) == task
    lost = np.where((pair.weight > 0) & rows, pair.other_score - pair.score, 0.0)
    order = np.argsort(-lost, kind="stable")[:most]
    worst: np.ndarray = order[lost[order] > 0]
    return worst


def _notes(found: Answer, candidates: Sequence[_Option], table: ScoredTable) -> tuple[Note, ...]:
    """Notes on the answer, such as an assumed model of today, few calls with most of the money, or gaps."""
    notes = []
    options = [option for option in candidates if option.rung != KEEP]
    if found.today_is_assumed:
        notes.append(
            Note(
                "assumed_today",
                f"No model is in use. All options are compared with {found.today}, the best of all.",
            )
        )
    judged = [option for option in options if (option.pair.weight > 0).any()]
    dear = [option.rung for option in judged if option.costs.dearest > MOST_OF_THE_MONEY]
    if dear:
        text = (
            f"The {DEAREST} dearest prompts hold more than {percentage(MOST_OF_THE_MONEY)} of the money, "
            f"so nothing can be said of what is saved by: {', '.join(dear)}."
        )
        notes.append(Note("dear_calls", text))
    if options:
        notes.append(
            Note("rare_calls", "Savings do not allow for a call that costs more than any call in the table.")
        )
    if isinstance(table, LoggedTable):
        said = table.notes({option.rung: option.played.weights for option in options})
        notes += [Note(code, text) for code, text in said]
    else:
        for rung in found.rungs:
            if rung.rung != KEEP and rung.share < 1:
                share = percentage(rung.share)
                text = f"{rung.rung}: compared on the {share} of the prompts that both have answers to."
                notes.append(Note("gaps", text))
    if found.recommended is None:
        notes.append(
            Note("nothing_to_recommend", "No option is sure to be as good as what it is compared with.")
        )
    if found.cheapest is not None and found.cheapest != found.recommended:
        saving = next(rung for rung in found.rungs if rung.rung == found.cheapest)
        text = (
            f"The cheapest of these is {saving.rung}: ${saving.usd_per_1000:.2f} per 1,000 requests, and a "
            f"difference in score of {saving.difference:+.3f} ({saving.low:+.3f} to {saving.high:+.3f})."
        )
        notes.append(Note("cheapest", text))
    return tuple(notes)


def _plain(value: Any) -> Any:
    """Return values for JSON, with None for a figure that is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, float):
        if np.isfinite(value):
            return value
        return None
    return value
