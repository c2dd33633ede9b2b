"""Several judges of one answer: their mean is the score, and the report says how far they differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def mean_of_judges(
    scores: Sequence[np.ndarray], names: Sequence[str], arms: Sequence[str]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the mean scores of several judges, `[n, K]`, and facts about the judges.

    Args:
        scores: for every judge `[n, K]` in [0, 1], NaN where the judge gave no score.
        names: names of the judges.
        arms: K models.

    Returns:
        The means, NaN where no judge gave a score. The facts: `names`; `answers`, the number of answers with
            two scores or more; `spread`, the standard deviation of judges about the mean of an answer, and
            `noise`, the standard error of that mean (root mean squares over these answers, 0 without any);
            `best`, {judge: model of largest mean score} over the queries for which all judges scored all
            models, empty without any; `best_of_mean`, the model of largest mean of all judges over the same
            queries, or ''.
    """
    stacked = np.stack(scores)
    known = ~np.isnan(stacked)
    count = known.sum(axis=0)
    mean = np.where(count > 0, np.where(known, stacked, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)
    several = count > 1
    square = np.where(known, (stacked - mean) ** 2, 0.0).sum(axis=0)[several] / (count[several] - 1)
    facts: dict[str, Any] = {
        "names": list(names),
        "answers": int(several.sum()),
        "spread": float(np.sqrt(square.mean())) if several.any() else 0.0,
        "noise": float(np.sqrt((square / count[several]).mean())) if several.any() else 0.0,
        "best": {},
        "best_of_mean": "",
    }
    everywhere = known.all(axis=(0, 2))
    if everywhere.any():
        facts["best"] = {
            name: arms[int(np.argmax(judged[everywhere].mean(axis=0)))]
            for name, judged in zip(names, stacked, strict=True)
        }
        facts["best_of_mean"] = arms[int(np.argmax(mean[everywhere].mean(axis=0)))]
    return mean, facts


def judges_text(facts: dict[str, Any]) -> str:
    """Return sentences about the judges: their names, how far they differ, and who prefers another model.

    A judge prefers another model if its `best` is not `best_of_mean`. If no answer has the scores of two
    judges, the text says instead that it is not known how far they agree.

    Args:
        facts: facts that `mean_of_judges` returned.
    """
    text = f"Scores are means of {len(facts['names'])} judges ({', '.join(facts['names'])})"
    if not facts["answers"]:
        return f"{text}; no answer was scored by two of them, so how far they agree is not known."
    text += f", who differ by {facts['spread']:.2f} on one answer (standard deviation)."
    others: dict[str, list[str]] = {}
    for judge, model in facts["best"].items():
        if model != facts["best_of_mean"]:
            others.setdefault(model, []).append(judge)
    for model, judges in others.items():
        text += (
            f" By {' and '.join(judges)} alone {model} would be the best model, not {facts['best_of_mean']}."
        )
    return text
