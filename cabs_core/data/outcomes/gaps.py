"""A table where not every model was tried on every prompt, used without dropping a query: `missing: predict`.

    outcomes = predict_missing(raw, pool)
    outcomes.answered          # 1 for the real cells, 0 for predictions
    outcomes.report["gaps"]    # facts about the missing cells of each model

What a model would have scored and cost where it was not tried is predicted from the wording of the prompt,
learnt from the cells of the train split alone (`outcomes.logged`). That holds where models were left out at
random. Two comparisons tell, on the train split: whether the other models score otherwise on the prompts
where this one is missing, and whether its own predictions do. Where either differs significantly and by a
hundredth or more ("small was not tried on hard prompts") no prediction can be trusted, and a missing answer
counts as wrong.
What is estimated afterwards rests on the real cells: `cabs_core.algorithms.problem.gaps`.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from cabs_core.base.errors import DataError, counted, listed
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.units import percentage
from cabs_core.data.outcomes.conditions import split_under
from cabs_core.data.outcomes.logged import FEWEST, answered_table, predicted_cells, prompt_features
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.data.pool_files import ModelPool

#: family-wise error rate of the comparisons. Gaps that are wrongly taken for not random make intervals wider
#: and estimates no less valid.
_RATE = 0.05
#: smaller differences of mean scores change no decision, whatever p says: one right answer in a hundred
_MATTERS = 0.01
_FOLDS = 5


def predict_missing(raw: RawOutcomes, pool: ModelPool) -> Outcomes:
    """Return complete outcomes, with predictions for missing scores, costs and latencies.

    A cell that lacks its score, its cost, or its latency in a table with latencies is missing, and all its
    values are predicted. A missing score is 0 if the model's gaps are not at random. Queries without any
    answer are left out and counted. A table without gaps is returned as it is.

    `report["gaps"]` holds for each model with gaps the number and the share of missing cells, a comparison of
    the other models' scores there and elsewhere (`others`), a comparison of its own predictions there and
    elsewhere (`own`), and `at_random`. Either comparison is None if it has too few values.

    Raises:
        DataError: no answer has a score and a cost, or a model has too few answers on train prompts to learn
            from.
    """
    if raw.costs is None:
        costs = np.full(raw.scores.shape, np.nan)
    else:
        costs = raw.costs
    real = ~np.isnan(raw.scores) & ~np.isnan(costs)
    if raw.latencies is not None and not np.isnan(raw.latencies).all():
        real &= ~np.isnan(raw.latencies)
    if real.all() or not real.any():
        return raw.complete_queries()
    stays = real.any(axis=1)
    kept = raw.take(stays)
    dropped = int((~stays).sum())
    real = real[stays]
    table = answered_table(kept, real, queries_read=len(raw.query_ids), queries_dropped=dropped)
    if kept.latencies is not None and not np.isnan(kept.latencies).all():
        table = replace(table, latencies=np.where(real, kept.latencies, 0.0))
    train = np.flatnonzero(split_under(table, pool.split, pool.replay.condition) == "train")
    counts = real[train].sum(axis=0)
    if (counts < FEWEST).any():
        j = int(counts.argmin())
        raise DataError(
            f"{raw.origin}: {raw.arms[j]!r:.100} has {counts[j]} answers with a score and a cost on train "
            f"prompts; {FEWEST} are needed to predict the others: leave it out under `models`, or ask it more"
        )
    features = prompt_features(table.prompts, train)
    predicted = predicted_cells(features, train, real, table.scores)
    gaps = _gaps(table, train, real, predicted)
    wrong = [arm for arm, gap in gaps.items() if not gap["at_random"]]
    predicted[:, [table.arms.index(arm) for arm in wrong]] = 0.0
    cells: dict[str, Any] = {
        name: np.where(real, array, predicted_cells(features, train, real, array))
        for name, array in (("costs", table.costs), ("latencies", table.latencies))
        if array is not None
    }
    return replace(
        table, scores=np.where(real, table.scores, predicted), report={**table.report, "gaps": gaps}, **cells
    )


def cross_predicted(table: Outcomes, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted scores and costs at m rows of a table with gaps, each `[m, K]`.

    The rows are divided at random, always in the same way, into five folds that keep clusters whole. The
    cells of each fold are predicted from the real cells of the other folds.
    """
    prompts = [table.prompts[i] for i in rows]
    real = table.drawn[rows] > 0
    features = prompt_features(prompts, np.arange(len(rows)))
    cluster = np.unique(table.clusters[rows], return_inverse=True)[1]
    part = (np.random.default_rng(0).permutation(cluster.max() + 1) % _FOLDS)[cluster]
    expected = np.zeros((2, *real.shape))
    for f in range(_FOLDS):
        others = np.flatnonzero(part != f)
        for values, array in zip(expected, (table.scores[rows], table.costs[rows]), strict=True):
            values[part == f] = predicted_cells(features, others, real, array)[part == f]
    return expected[0], expected[1]


def _gaps(table: Outcomes, train: np.ndarray, real: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Return `report["gaps"]` as `predict_missing` describes it: facts about every model with missing cells.

    Missing cells are counted in the whole table. Only the train split is compared.

    Args:
        table: N queries.
        train: indices of the train queries.
        real: bool `[N, K]`, True for cells that are not missing.
        predicted: `[N, K]` predicted scores.
    """
    known = real[train]
    scores = table.scores[train]
    clusters = table.clusters[train]
    means = (scores * known).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    centred = np.where(known, scores - means, 0.0)
    tests = 2 * int((~known).any(axis=0).sum())
    gaps: dict[str, Any] = {}
    for j in np.flatnonzero((~real).any(axis=0)):
        there = known[:, j]
        counted = known.sum(axis=1) - there
        if len(means) > 1:
            level = float(np.delete(means, j).mean())
        else:
            level = 0.0
        others = level + (centred.sum(axis=1) - centred[:, j]) / np.maximum(counted, 1)
        some = counted > 0
        compared = {
            "others": compared_means(others[some], there[some], tests, clusters[some]),
            "own": compared_means(predicted[train][:, j], there, tests, clusters),
        }
        gaps[table.arms[j]] = {
            "missing": int((~real[:, j]).sum()),
            "share": float((~real[:, j]).mean()),
            "at_random": not any(c and c["differs"] for c in compared.values()),
            **compared,
        }
    return gaps


def compared_means(
    values: np.ndarray, tried: np.ndarray, tests: int, clusters: np.ndarray
) -> dict[str, Any] | None:
    """Return the comparison of means of values where a model was tried and where it was not.

    The comparison has both means (`tried`, `missing`), their `difference` (missing less tried) with its 95 %
    interval (`low`, `high`) and p-value (`p`), and `differs`: significant at 5 % after Bonferroni's
    correction, and at least 0.01 in size. Return None if there are too few values for a standard error.

    Args:
        values: `[n]`.
        tried: bool `[n]`, True where the model was tried.
        tests: number of comparisons that share the error rate.
        clusters: cluster of each value, `[n]`.
    """
    error_if_tried = mean_error(values[tried], clusters=clusters[tried])
    error_if_missing = mean_error(values[~tried], clusters=clusters[~tried])
    error = error_if_tried.minus(error_if_missing)
    if not error.is_known:
        return None
    means = [float(values[part].mean()) for part in (tried, ~tried)]
    gap = means[1] - means[0]
    p = error.p_value(gap)
    (low, high) = error.interval(gap)
    return {
        "tried": means[0],
        "missing": means[1],
        "difference": gap,
        "low": low,
        "high": high,
        "p": p,
        "differs": bool(p * tests <= _RATE and abs(gap) >= _MATTERS),
    }


def _share(share: float) -> str:
    """Return a share as a percentage, with a decimal if it is below 1 %."""
    return percentage(share, int(share < 0.01))


def left_out_because(gaps: dict[str, Any]) -> str:
    """Return the reason why queries of a table were left out, in words.

    Args:
        gaps: `report["gaps"]` of the table. Empty if missing cells were not predicted.
    """
    if gaps:
        return "no model has a score and a cost there"
    return "a model has no score or cost there"


def gaps_text(gaps: dict[str, Any]) -> list[str]:
    """Return sentences for the answer: which models have gaps, and how the gaps limit the comparison."""
    sentences = []
    named = [
        f"{arm} on {counted(gap['missing'], 'prompt')} ({_share(gap['share'])})"
        for arm, gap in gaps.items()
        if gap["at_random"]
    ]
    if named:
        sentences.append(
            f"Not tried: {listed(named)}. Nothing speaks against these gaps being at random: what the models "
            "would have scored there is predicted from the wording of the prompts, for training alone. "
            "Options are compared on prompts that both have answered."
        )
    for arm, gap in gaps.items():
        if gap["at_random"]:
            continue
        shown = [
            f"{who} {c['tried']:.3f} where it was tried and {c['missing']:.3f} where it was not (difference "
            f"{c['difference']:+.3f}, 95 % interval {c['low']:+.3f} to {c['high']:+.3f})"
            for key, who in (
                ("others", "the other models score"),
                ("own", "by the wording of the prompts it would score"),
            )
            if (c := gap[key]) and c["differs"]
        ]
        sentences.append(
            f"{arm} was not tried on {counted(gap['missing'], 'prompt')} ({_share(gap['share'])}), and "
            f"these are of another kind: {'; '.join(shown)}. What {arm} would score there cannot be known: "
            "its missing answers count as wrong in training, and no option that asks it is said to be "
            f"better, as good or worse. To know more, ask {arm} on a random sample of them."
        )
    return sentences
