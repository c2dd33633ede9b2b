"""A log of one answer a prompt as a scored table, in which other options' scores and costs are estimated.

Estimates are doubly robust (Dudik et al. 2011): a model of the outcome, corrected on the prompts where the
option would have played what the log played, by the probability with which the log played it. So every
option, task and fold has a contribution per prompt, and the words are those of a table. An option that the
log hardly plays, and every option of a log without propensities, is refused, with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy import special

from cabs_core.base.statistics.paired import PairedSample
from cabs_core.base.statistics.uncertainty import LEVEL
from cabs_core.base.units import percentage
from cabs_core.evaluation.answer.table import ScoredTable
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.estimators import direct, doubly_robust, weights
from cabs_core.evaluation.ope.evaluate import Overlap, model_of
from cabs_core.evaluation.ope.intervals import error_of, second_moment, sequence_half_width
from cabs_core.evaluation.ope.models import folds

#: fewest calls of a model in a task for a rule to choose the model there
_FEWEST = 5
#: why a log without propensities says nothing of other choices
WITHOUT_PROPENSITIES = (
    "the log does not say with which probability each model was chosen, so nothing tells a good model from "
    "one that got easy prompts"
)


@dataclass(frozen=True)
class LoggedTable(ScoredTable):
    """A scored table of a log's decisions, which estimates the outcomes of choices that the log did not make.

    `scores` are NaN where the log did not play the model. Methods recognise the log's own choices by the
    array `played` itself, not by equal values.

    Attributes:
        data: the decisions, one for each row of the table.
    """

    data: LoggedData = field(kw_only=True)

    @classmethod
    def of(cls, data: LoggedData, tasks: np.ndarray, today: int | None = None) -> Self:
        """Make the table of a log's decisions.

        Args:
            data: the log.
            tasks: `[N]` name of each prompt's task.
            today: index of the model that is used today. None takes the choices that the log holds: `played`
                is then 1 for the model that the log played.
        """
        shape = (len(data), len(data.arms))
        rows = np.arange(len(data))
        scores = np.full(shape, np.nan)
        scores[rows, data.actions] = data.scores
        costs = np.zeros(shape)
        costs[rows, data.actions] = data.costs
        played = np.zeros(shape)
        played[rows, data.actions] = 1.0
        clusters = np.unique(data.dependent(), return_inverse=True)[1]
        return cls(
            models=tuple(data.arms),
            scores=scores,
            costs=costs,
            tasks=tasks,
            clusters=clusters,
            today=today,
            played=played if today is None else None,
            data=data,
        )

    def take(self, rows: np.ndarray) -> Self:
        """Return the table of some prompts, `[M]` indices."""
        return self.of(self.data.take(rows), self.tasks[rows], self.today)

    @property
    def best(self) -> int:
        """Index of the model with the highest estimated mean score; of equals the cheaper one.

        If no model can be estimated, the index is of the model that the log plays most.
        """
        found = []
        counts = np.bincount(self.data.actions, minlength=len(self.models))
        for model, name in enumerate(self.models):
            share, score, cost = self.play(self.single(model))
            quality = float(score.mean()) if share.any() else -np.inf
            found.append((-quality, float(cost.mean()), -int(counts[model]), name, model))
        return min(found)[-1]

    def play(self, weights_of_option: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Contribution of each prompt to an option's mean score and mean cost.

        Args:
            weights_of_option: `[N, K]` probabilities; a row of NaN is not judged.

        Returns:
            (1 where the prompt is judged and else 0, contribution to the score, contribution to the cost in
            USD), `[N]` each. Every contribution is unbiased and may lie outside of the range of a score. No
            prompt is judged if the log cannot tell (`refusal`).
        """
        if weights_of_option is self.played:
            return np.ones(len(self.data)), self.data.scores, self.data.costs
        judged = ~np.isnan(weights_of_option).any(axis=1)
        share = np.zeros(len(judged))
        score = np.zeros(len(judged))
        cost = np.zeros(len(judged))
        if self.refusal(weights_of_option):
            return share, score, cost
        assert self.data.propensities is not None
        share[judged] = 1.0
        target = weights_of_option[judged]
        actions = self.data.actions[judged]
        w = weights(target, actions, self.data.propensities[judged])
        predicted_scores, predicted_costs = self._predicted
        score[judged] = doubly_robust(target, w, actions, self.data.scores[judged], predicted_scores[judged])
        cost[judged] = doubly_robust(target, w, actions, self.data.costs[judged], predicted_costs[judged])
        return share, score, cost

    def refusal(self, weights_of_option: np.ndarray) -> str:
        """Return the reason why the log cannot tell an option's outcomes; empty if it can."""
        if weights_of_option is self.played:
            return ""
        if self.data.propensities is None:
            return WITHOUT_PROPENSITIES
        judged = ~np.isnan(weights_of_option).any(axis=1)
        if not judged.any():
            return "there are too few prompts to make it from some of them and judge it on others"
        return self._overlap(weights_of_option, judged).refusal

    def contrast(
        self,
        weight: np.ndarray,
        values: np.ndarray,
        option: np.ndarray,
        other: np.ndarray,
        share: float = 1.0,
    ) -> PairedSample:
        """Return the sample of an option's score less `share` times another option's score.

        The sample holds the values, summed by cluster. The probabilities decide how uncertain they are: the
        standard error is at least the one that the doubly robust estimate is expected to have, and the
        effective number of clusters is at most the effective sample size of either option in the log
        (`Overlap`). The largest size of one difference grows with the options' importance weights. If the
        log's policy learned while it decided, the standard error is widened so that intervals hold at every
        length of the log. Without propensities or prompts, the values alone make the sample.

        Args:
            weight: `[N]` weights of the prompts; prompts of weight 0 do not count.
            values: `[N]` contributions to the difference.
            option, other: `[N, K]` probabilities of both; each may be `played`, the log's choices.
            share: factor of the other option's score.
        """
        rows = weight > 0
        if not rows.any() or self.data.propensities is None:
            return PairedSample.of(values[rows], weight[rows], self.clusters[rows])
        actions = self.data.actions[rows]
        predicted = self._predicted[0][rows]
        played = predicted[np.arange(len(actions)), actions]
        gap = np.zeros((len(actions), len(self.models)))
        model = np.zeros(len(actions))
        factor = np.zeros(len(actions))
        sizes = []
        # E[w^2] of each option's weights w; w is 1 for all decisions of what was played
        squares = []
        worst = 1.0
        for sign, played_weights in ((1.0, option), (-share, other)):
            if sign == 0.0:
                continue
            if played_weights is self.played:
                model += sign * played
                factor += sign
                squares.append(1.0)
                continue
            overlap = self._overlap(played_weights, rows)
            sizes.append(overlap.n_eff)
            # a decision of the option that is lost counts as often as its weight, which on average is this
            worst = max(worst, overlap.square)
            squares.append(overlap.square)
            target = played_weights[rows]
            gap += sign * target
            model += sign * direct(target, predicted)
            factor += sign * weights(target, actions, self.data.propensities[rows])
        if share == 0.0:
            square = squares[0]
        elif option is self.played or other is self.played:
            # E[(w - share w')^2], where one of w and w' is 1 and the other is 1 on average
            square = max(squares[0] - 2.0 * share + share**2 * squares[1], 0.0)
        else:
            square = second_moment(gap, self._chosen[rows], np.ones(len(actions)))
        size = min(sizes, default=float(len(actions)))
        found = PairedSample.of(values[rows], weight[rows], self.clusters[rows], worst=worst)
        error = error_of(
            model,
            factor,
            self.data.scores[rows] - played,
            self.clusters[rows],
            square,
            size,
            cautious=self.data.pmf is None,
        )
        wider = 1.0
        if found.standard_error > 0 and error.value > found.standard_error:
            wider = error.value / found.standard_error
        if self.data.adaptive:
            wider *= sequence_half_width(len(actions)) / -float(special.ndtri(LEVEL / 2))
        return replace(found.widened(wider), independent=min(found.independent, size))

    def supported(self, model: int, groups: np.ndarray) -> np.ndarray:
        """Mark the prompts, bool `[N]`, in whose group the log played the model at least `_FEWEST` times."""
        _, place = np.unique(groups, return_inverse=True)
        calls = np.bincount(place, self.data.actions == model)
        enough: np.ndarray = calls[place] >= _FEWEST
        return enough

    def notes(self, played: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
        """Return (code, sentence) pairs on options that are refused or are judged on some prompts only.

        Args:
            played: {rung: `[N, K]` probabilities of its option}.
        """
        found = []
        refused: dict[str, list[str]] = {}
        for rung, weights_of_option in played.items():
            reason = self.refusal(weights_of_option)
            judged = ~np.isnan(weights_of_option).any(axis=1)
            if reason:
                refused.setdefault(reason, []).append(rung)
            elif not judged.all():
                share = percentage(float(judged.mean()))
                text = f"{rung}: estimated from the {share} of the calls that were held out for it."
                found.append(("held_out", text))
        for reason, rungs in refused.items():
            found.append(("refused", f"{', '.join(rungs)}: the log cannot tell, since {reason}."))
        return found

    @cached_property
    def _predicted(self) -> tuple[np.ndarray, np.ndarray]:
        """Predicted scores and costs, `[N, K]` each, by regressions that were not fitted on the prompt.

        The regressions are fitted on prompts of other clusters. If there is only one cluster, its prompts are
        predicted by a fit on themselves. If the log's policy learned while it decided, the regressions are
        fitted on earlier prompts alone, and the first prompts are predicted by 0.
        """
        fold = folds(self.clusters)
        adaptive = self.data.adaptive
        return (
            model_of(self.data, self.data.scores, fold, adaptive),
            model_of(self.data, self.data.costs, fold, adaptive),
        )

    @cached_property
    def _chosen(self) -> np.ndarray:
        """Probabilities `[N, K]` with which the log plays (`LoggedData.expected_pmf`)."""
        return self.data.expected_pmf

    def _overlap(self, weights_of_option: np.ndarray, rows: np.ndarray) -> Overlap:
        """Measure the overlap of an option with the log on the prompts that `rows`, bool `[N]`, marks.

        An `Overlap` holds measures of how much the log says of the option, such as the effective sample size,
        the importance weights and the probability that the option gives to models which the log can play. It
        also has the reason to refuse the option, if there is one.
        """
        if rows.all():
            data = self.data
        else:
            data = self.data.take(np.flatnonzero(rows))
        return Overlap.of(data, weights_of_option[rows], self._chosen[rows], self.clusters[rows])
