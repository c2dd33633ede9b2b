"""The worth of an option less that of today's model: value of a right answer times quality, less cost."""

from dataclasses import dataclass

import numpy as np

from cabs_core.evaluation.answer.compare import (
    CostComparison,
    Difference,
    Pair,
    compare_costs,
    cross_fitted_factor,
    ends_of_draws,
    normal_error,
    p_value_of_draws,
    quality_of,
    weights_for_costs,
)
from cabs_core.evaluation.answer.table import AnswerOptions, Decisions, ScoredTable


@dataclass(frozen=True)
class Worth:
    """The worth of an option minus that of today's model, USD a request.

    Attributes:
        gain: estimate of the difference in worth.
        draws: `[draws]` the difference in each bootstrap draw of clusters, moved and stretched as `worth_of`
            says.
        independent: effective number of clusters by their costs (Kish 1965).
        acceleration: a sixth of the skewness of the draws, see `compare.acceleration_of`.
        known: False if a few prompts hold most of the money, so that costs have no valid interval.
    """

    gain: float
    draws: np.ndarray
    independent: float
    acceleration: float
    known: bool

    @property
    def p_value(self) -> float:
        """One-sided p-value of the hypothesis that the option is worth no more than today's model.

        The p-value is 1 unless `known`.
        """
        if not self.known:
            return 1.0
        return p_value_of_draws(
            self.draws, self.gain, independent=self.independent, acceleration=self.acceleration
        )

    def interval(self, tail: float) -> tuple[float, float] | None:
        """Interval of `gain`, each end of error `tail`; None unless `known`."""
        if not self.known:
            return None
        return ends_of_draws(
            self.draws, self.gain, tail, independent=self.independent, acceleration=self.acceleration
        )


def option_worth(
    value: float,
    table: ScoredTable,
    played: Decisions,
    options: AnswerOptions | None = None,
    *,
    fitted: bool,
) -> Worth:
    """Return the worth of an option less that of today's model.

    Args:
        value: USD that a right answer is worth.
        table: scores and costs of every model on the prompts, with today's model as the baseline.
        played: the decisions of the option.
        options: settings of the answer, such as the number and seed of the draws. None takes the defaults.
        fitted: True if the option was made from other folds, as rules and routers are. The error of its
            quality is then widened.
    """
    options = options or AnswerOptions()
    baseline = table.baseline()
    pair = Pair.of(table, played.weights, baseline)
    paid = Pair.of(table, weights_for_costs(played), baseline)
    (costs,) = compare_costs([paid], table.clusters, options)
    quality = quality_of(table, pair, played.weights, baseline)
    if fitted:
        quality = quality.widened(cross_fitted_factor(quality, table, played))
    return worth_of(value, (pair, paid), quality, costs, table.clusters, options)


def worth_of(
    value: float,
    pairs: tuple[Pair, Pair],
    quality: Difference,
    costs: CostComparison,
    clusters: np.ndarray,
    options: AnswerOptions,
) -> Worth:
    """Return the worth of an option less that of today's model, from pairs that were played.

    The worth is `value` times the difference in score, less the difference in cost. Each bootstrap draw takes
    score and cost of a cluster together, since the option may score higher just on the dear prompts. The
    draws are moved to the gain that `quality.mean` gives, and stretched around it if the error of `quality`
    is larger than that of the plain mean difference in score.

    Args:
        value: USD that a right answer is worth.
        pairs: the option and today's model, played on the prompts of the table in two ways. In the first
            pair the option decides as judged, that is, fitted on other folds than the prompt's. In the second
            it decides as it would be exported, fitted on all prompts. Scores come from the first pair. The
            option's cost of a prompt comes from the second pair, or from the first if the prompt has no
            weight in the second.
        quality: difference in score, with its error widened if the option was fitted.
        costs: costs of both options in the second pair. `known` and `independent` are taken from it.
        clusters: `[N]` equal values for prompts of the table that depend on each other.
        options: settings of the answer, such as the number and seed of the draws.
    """
    pair, paid = pairs
    cost = np.where(paid.weight > 0, paid.cost, pair.cost)
    worth = Pair(
        pair.weight,
        pair.score,
        pair.other_score,
        value * (1.0 - pair.score) + cost,
        value * (1.0 - pair.other_score) + pair.other_cost,
    )
    (lost,) = compare_costs([worth], clusters, options)
    draws = lost.other_draws - lost.draws
    dearer = pair.mean(cost - pair.other_cost)
    plain = value * pair.mean(pair.score - pair.other_score) - dearer
    gain = value * quality.mean - dearer
    stretch = 1.0
    plain_error = normal_error(pair.quality(clusters))
    if plain_error > 0:
        stretch = max(normal_error(quality) / plain_error, 1.0)
    return Worth(
        gain=gain,
        draws=(draws - plain) * stretch + gain,
        independent=costs.independent,
        acceleration=lost.saving_acceleration,
        known=costs.known,
    )
