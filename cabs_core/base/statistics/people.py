"""What people would say, from a labelled sample and an instrument's verdict on everything:
prediction-powered inference.

Source: Angelopoulos, Duchi and Zrnic 2023, "PPI++": the weight of the judged part is chosen
so that labels alone are never better.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from cabs_core.base.statistics.uncertainty import LEVEL, mean_error


@dataclass(frozen=True)
class Sampled:
    """A figure with its 95 % interval, from n items."""

    value: float
    low: float
    high: float
    n: int

    def clear(self, compared: int = 1) -> bool:
        """Whether the interval leaves 0 out, widened for so many figures that are looked at (Bonferroni,
        as normal errors are)."""
        wider = float(special.ndtri(1 - LEVEL / 2 / max(compared, 1)) / special.ndtri(1 - LEVEL / 2))
        return (
            self.value - wider * (self.value - self.low) > 0
            or self.value + wider * (self.high - self.value) < 0
        )

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def corrected_mean(
    judged: np.ndarray, people: np.ndarray, rest: np.ndarray, clusters: np.ndarray | None = None
) -> Sampled:
    """The mean that people would give, from a labelled sample and judgements of all: prediction-powered.

    Args:
        judged, people: `[n]` of the labelled items, drawn at random, scores in [0, 1].
        rest: `[N - n]` judged only.
        clusters: `[n]` equal for labels that depend on each other,
            such as those of one prompt; None: none do.

    Returns:
        its estimate with a two-sided 95 % interval (`statistics.uncertainty`):
        a good judge errs so rarely that few labels show no error, which leaves room for some.
    """
    n, m = len(people), len(rest)
    if n < 2:
        return Sampled(float(people.mean()) if n else float("nan"), float("-inf"), float("inf"), n)
    weight = 0.0
    if m and float(judged.var(ddof=1)) > 0:
        pooled = float(np.concatenate([judged, rest]).var(ddof=1))
        both = float(np.cov(people, judged, ddof=1)[0, 1])
        weight = min(max(both / (pooled * (1 + n / m)), 0.0), 1.0)
    value = float((people - weight * judged).mean() + (weight * rest.mean() if m else 0.0))
    error = mean_error(people - weight * judged, clusters=clusters)
    if m > 1:  # two independent samples: their variances add
        error = error.with_trials(weight * float(rest.std(ddof=1)) / float(np.sqrt(m)), m)
    return Sampled(value, *error.interval(value, largest=1.0), n)


def corrected_sum(
    weight: np.ndarray,
    judged: np.ndarray,
    people: np.ndarray,
    clusters: np.ndarray | None = None,
    stands: np.ndarray | None = None,
) -> Sampled:
    """Mean over n prompts of sum_j weight_j score_j as people would have it, from some labelled answers.

    Args:
        weight, judged, people: `[n, K]`, people nan where nobody labelled the answer;
            which ones were is random.
        clusters: `[n]` of the prompts, or None.
        stands: `[n, K]` for how many answers to its prompt a labelled one stands; None: for all K.

    Source: the difference estimator, Cassel, Saerndal and Wretman 1976: judgements of all,
    and the mean error of the labelled.
    """
    n, k = weight.shape
    row, arm = np.nonzero(~np.isnan(people))
    members = np.arange(n) if clusters is None else clusters
    of = k if stands is None else stands[row, arm]
    wrong = of * weight[row, arm] * (people[row, arm] - judged[row, arm])
    by_judge = (weight * judged).sum(axis=1)
    value = float(by_judge.mean() + (wrong.mean() if len(wrong) else 0.0))
    # an answer that nobody labelled may be judged wrong by one, where it is asked for
    error = mean_error(wrong, clusters=members[row])
    sampled = mean_error(by_judge, clusters=clusters)
    # a judge who sees half of what people see errs where it rates high: both parts move together
    together = float(np.cov(wrong, by_judge[row])[0, 1]) / sampled.clusters if len(wrong) > 1 else 0.0
    se = math.sqrt(sampled.value**2 + max(2 * together, 0.0))
    error = error.with_trials(se, int(sampled.clusters))
    largest = float(np.abs(weight).sum(axis=1).mean())
    return Sampled(value, *error.interval(value, largest=largest), len(wrong))
