"""One model for each task, or for each cluster of prompts if a table has one task.

A task gets the model with the largest

    estimated difference in score to today's model + tolerance * share of today's cost that it saves

so a saving of the whole cost is worth what the tolerance says that it may cost, and today's model stands at
0. Estimates of small tasks are drawn towards the model's mean over all tasks, as far as the tasks agree with
each other (empirical Bayes; DerSimonian and Laird 1986, Controlled Clinical Trials 7(3)).

Rules are judged on prompts that they were not made from (`fit_rules`).
"""

from collections.abc import Sequence

import numpy as np

from cabs_core.base.statistics.clusters import cluster_sums
from cabs_core.evaluation.answer.compare import Pair
from cabs_core.evaluation.answer.table import DIGITS, AnswerOptions, Decisions, ScoredTable

#: least variance of a difference in score; the variance of a task's mean is this divided by its prompts
_LEAST_VARIANCE = 0.01


def fit_rules(
    table: ScoredTable,
    groups: np.ndarray,
    folds: np.ndarray,
    options: AnswerOptions | None = None,
    *,
    guessed: np.ndarray | None = None,
) -> Decisions:
    """Make rules for each fold from the other folds, and return their decisions on the fold's prompts.

    `use` and `exported` are those of the rules made from all prompts. If one fold holds all prompts, no rules
    can be judged, and all `weights` are NaN. If today's choice is one model and the rules made from all
    prompts keep it everywhere, every fold plays that model.

    Args:
        table: scored answers.
        groups: `[N]` task or cluster of each prompt, from which rules are made.
        folds: `[N]` fold of each prompt, equal for copies of a prompt. Prompts of negative folds are never
            judged, but rules are made from them.
        options: settings; None takes the defaults.
        guessed: `[N]` group by which a prompt is routed, if it is a guess at request time. None routes by
            `groups`.
    """
    options = options or AnswerOptions()
    asked = groups if guessed is None else guessed
    weights = np.full(table.scores.shape, np.nan)
    numbers = [fold for fold in np.unique(folds) if fold >= 0]
    default = table.reference
    pairs = _pairs(table, groups)
    for fold in numbers:
        judged = folds == fold
        if judged.all():
            break
        rule = _fitted(table, pairs, groups, ~judged, options)
        chosen = [rule.get(group, default) for group in asked[judged].tolist()]
        weights[judged] = np.eye(len(table.models))[chosen]
    final = _fitted(table, pairs, groups, np.ones(len(groups), dtype=bool), options)
    use = {str(group): table.models[model] for group, model in final.items()}
    exported = np.eye(len(table.models))[[final.get(group, default) for group in asked.tolist()]]
    if table.played is None and all(model == default for model in final.values()):
        # rules that keep today's model for every task differ from it by nothing, whatever a fold would choose
        covered = ~np.isnan(weights).any(axis=1)
        weights[covered] = exported[covered]
    return Decisions("rules", weights, use, exported)


def rule_for_all(
    table: ScoredTable, groups: np.ndarray, options: AnswerOptions | None = None
) -> dict[object, int]:
    """Return the rules made from all prompts: {group: index of its model}."""
    everywhere = np.ones(len(groups), dtype=bool)
    return _fitted(table, _pairs(table, groups), groups, everywhere, options or AnswerOptions())


def _pairs(table: ScoredTable, groups: np.ndarray) -> list[Pair | None]:
    """Return for every model its scores and costs beside those of today's choice, prompt by prompt.

    Prompts of groups for which a rule may not choose the model have weight 0. In a scored table a rule may
    choose any model; in a log's table, only models that the log supports there. The entry of today's model is
    None, unless today's system asks several models (`ScoredTable.played`).
    """
    baseline = table.baseline()
    found: list[Pair | None] = []
    for model in range(len(table.models)):
        if table.played is None and model == table.reference:
            found.append(None)
            continue
        weights = table.single(model)
        weights[~table.supported(model, groups)] = np.nan
        found.append(Pair.of(table, weights, baseline))
    return found


def _fitted(
    table: ScoredTable,
    pairs: Sequence[Pair | None],
    groups: np.ndarray,
    rows: np.ndarray,
    options: AnswerOptions,
) -> dict[object, int]:
    """Make rules from the prompts that `rows`, bool `[N]`, marks: {group: index of its model}.

    A group has no entry if no model can be estimated in it.

    Args:
        pairs: result of `_pairs`.
    """
    names, place = np.unique(groups, return_inverse=True)
    worth = np.full((len(names), len(table.models)), -np.inf)
    costs = np.full(worth.shape, np.inf)
    for model, pair in enumerate(pairs):
        if pair is None:
            worth[:, model] = 0.0
            costs[:, model] = 1.0
            continue
        estimate, share = _by_group(pair.only(rows), place, table.clusters, len(names))
        worth[:, model] = np.where(np.isnan(estimate), -np.inf, estimate + options.tolerance * (1.0 - share))
        costs[:, model] = share
    worth = np.round(worth, DIGITS)
    order = sorted(range(len(table.models)), key=lambda j: (j != table.reference, table.models[j]))
    rule: dict[object, int] = {}
    for group, name in enumerate(names.tolist()):
        if np.isfinite(worth[group]).any():
            rule[name] = min(order, key=lambda j: (-worth[group, j], costs[group, j]))
    return rule


def _by_group(
    pair: Pair, place: np.ndarray, clusters: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the difference in score and the cost as a share of today's by group, `[G]` each.

    Differences are drawn together (`_drawn_together`), and NaN in groups without a known prompt. The share of
    the cost is 1 in such groups and where both costs are 0, and infinite where today's cost alone is 0.

    Args:
        place: `[N]` number of each prompt's group, from 0 to `count` - 1.
    """
    weight = np.bincount(place, pair.weight, count)
    known = weight > 0
    gap = pair.weight * (pair.score - pair.other_score)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.bincount(place, gap, count) / weight
        paid = np.bincount(place, pair.weight * pair.cost, count)
        share = paid / np.bincount(place, pair.weight * pair.other_cost, count)
    share = np.where(np.isfinite(share), share, np.where(paid > 0, np.inf, 1.0))
    if not known.any():
        return difference, share
    # clusters are the observations: of copies in one task the sum of the residuals counts
    inside = np.unique(np.column_stack([place, clusters]), axis=0, return_inverse=True)[1].ravel()
    residual = gap - pair.weight * np.nan_to_num(difference)[place]
    square = float((cluster_sums(residual, inside) ** 2).sum())
    size = cluster_sums(pair.weight, inside)
    variance = max(square / float((size**2).sum()), _LEAST_VARIANCE)
    group_of_cluster = np.zeros(int(inside.max()) + 1, dtype=np.int64)
    group_of_cluster[inside] = place
    squares = np.bincount(group_of_cluster, size**2, count)
    error = variance * squares[known] / weight[known] ** 2
    estimate = np.full(count, np.nan)
    estimate[known] = _drawn_together(difference[known], error)
    return estimate, share


def _drawn_together(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return `[G]` values drawn towards their common mean, more so where their variance is large."""
    precision = 1.0 / variances
    total = float(precision.sum())
    common = float((precision * values).sum()) / total
    excess = float((precision * (values - common) ** 2).sum()) - (len(values) - 1)
    scale = total - float((precision**2).sum()) / total
    between = max(excess / scale, 0.0) if scale > 0 else 0.0
    share = between / (between + variances)
    mean_weights = 1.0 / (between + variances)
    common = float((mean_weights * values).sum() / mean_weights.sum())
    drawn: np.ndarray = common + share * (values - common)
    return drawn
