"""Means of people's scores, from a labelled sample and a judge's scores of everything.

The method of `corrected_mean` is prediction-powered inference (Angelopoulos, Duchi and Zrnic 2023, "PPI++").
The judge's scores get the weight in [0, 1] at which the estimated error is smallest. At weight 0 the estimate
is the mean of the labels alone. `corrected_sum` has no such weight: it takes the judge's scores in full.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from cabs_core.base.statistics.uncertainty import LEVEL, mean_error


@dataclass(frozen=True)
class Sampled:
    """A mean with its 95 % interval.

    Attributes:
        value: the mean.
        low, high: ends of the interval.
        n: number of labelled items. In `corrected_sum` an item is a prompt with at least one label.
    """

    value: float
    low: float
    high: float
    n: int

    def excludes_zero(self, compared: int = 1) -> bool:
        """Return True if the interval does not hold 0.

        Args:
            compared: number of figures that are judged together. The interval is widened for this number by
                Bonferroni's rule, as if the error were normal.
        """
        wider = float(special.ndtri(1 - LEVEL / 2 / max(compared, 1)) / special.ndtri(1 - LEVEL / 2))
        return (
            self.value - wider * (self.value - self.low) > 0
            or self.value + wider * (self.high - self.value) < 0
        )

    def __str__(self) -> str:
        """Return the mean with its sign and the ends of the interval, as in `+0.500 (+0.400 to +0.600)`."""
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def corrected_mean(
    judged: np.ndarray, people: np.ndarray, rest: np.ndarray, clusters: np.ndarray | None = None
) -> Sampled:
    """Estimate the mean of people's scores, from a labelled sample and a judge's scores of all items.

    Args:
        judged: `[n]` the judge's scores of the labelled items, in [0, 1].
        people: `[n]` people's scores of these items, which were drawn at random.
        rest: `[N - n]` the judge's scores of the other items.
        clusters: `[n]` equal values for labels that depend on each other, such as those of one prompt.
            None if none do.

    Returns:
        The estimate with its 95 % interval. The interval is infinite for fewer than two labels, and the
        estimate is NaN without any. The interval is widened where labels are few, since they may have missed
        rare errors of size 1.
    """
    n = len(people)
    m = len(rest)
    if n < 2:
        value = float(people.mean()) if n else float("nan")
        return Sampled(value, float("-inf"), float("inf"), n)
    weight = 0.0
    if m and float(judged.var(ddof=1)) > 0:
        pooled = float(np.concatenate([judged, rest]).var(ddof=1))
        both = float(np.cov(people, judged, ddof=1)[0, 1])
        weight = min(max(both / (pooled * (1 + n / m)), 0.0), 1.0)
    value = float((people - weight * judged).mean() + (weight * rest.mean() if m else 0.0))
    error = mean_error(people - weight * judged, clusters=clusters)
    if m > 1:  # the variances of two independent samples add
        error = error.with_trials(weight * float(rest.std(ddof=1)) / float(np.sqrt(m)), m)
    return Sampled(value, *error.interval(value, largest=1.0), n)


def corrected_sum(
    weight: np.ndarray,
    judged: np.ndarray,
    people: np.ndarray,
    clusters: np.ndarray | None = None,
    stands: np.ndarray | None = None,
) -> Sampled:
    """Estimate the mean over n prompts of sum_j weight_j score_j by people's scores, of which some are known.

    Args:
        weight: `[n, K]` weights of the answers.
        judged: `[n, K]` the judge's scores.
        people: `[n, K]` people's scores, NaN if nobody labelled the answer. Labelled answers were drawn at
            random.
        clusters: `[n]` equal values for prompts that depend on each other. None if none do.
        stands: `[n, K]` number of answers to the prompt that a labelled answer represents. The error of the
            judge on that answer is multiplied by the number. None if the labelled answers to a prompt
            together represent all K.

    Source: the difference estimator of Cassel, Saerndal and Wretman 1976, which adds the judge's errors on
    labelled answers to the judge's scores of all. The mean of the errors is one over prompts with a label, so
    that a prompt counts once however many of its answers are labelled.
    """
    n, k = weight.shape
    is_labelled = ~np.isnan(people)
    row = np.flatnonzero(is_labelled.any(axis=1))
    members = np.arange(n) if clusters is None else clusters
    if stands is None:
        stands = np.tile(k / np.maximum(is_labelled.sum(axis=1), 1)[:, None], (1, k))
    error_of_answer = np.where(is_labelled, stands * weight * (people - judged), 0.0)
    wrong = error_of_answer.sum(axis=1)[row]
    by_judge = (weight * judged).sum(axis=1)
    value = float(by_judge.mean() + (wrong.mean() if len(wrong) else 0.0))
    error = mean_error(wrong, clusters=members[row])
    sampled = mean_error(by_judge, clusters=clusters)
    # a judge with a weak view errs more where the judge's scores are high, so both parts are correlated
    if len(wrong) > 1:
        together = float(np.cov(wrong, by_judge[row])[0, 1]) / sampled.clusters
    else:
        together = 0.0
    se = math.sqrt(sampled.value**2 + max(2 * together, 0.0))
    error = error.with_trials(se, int(sampled.clusters))
    # the judge may be wrong by up to 1 on an answer that nobody labelled
    largest = float(np.abs(weight).sum(axis=1).mean())
    return Sampled(value, *error.interval(value, largest=largest), len(wrong))
