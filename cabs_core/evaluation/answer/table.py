"""The scored table that an answer is made from, and the decisions of options on it."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from cabs_core.base.errors import DataError
from cabs_core.evaluation.answer.rule import LEVEL, TOLERANCE

#: digits to which figures are rounded before they are compared, so that no order of rows decides a tie
DIGITS = 12


@dataclass(frozen=True)
class ScoredTable:
    """Scored answers of models to prompts.

    Attributes:
        models: names of the K models.
        scores: `[N, K]` in [0, 1]; NaN if the model has no scored answer to the prompt.
        costs: `[N, K]` USD of a call, known wherever the score is.
        latencies: `[N, K]` seconds of a call, or None.
        tasks: `[N]` name of each prompt's task.
        clusters: `[N]` equal numbers for prompts that are no independent observations: copies, prompts of one
            template, turns of one conversation.
        today: index of the model that is used today. None if it is not known, or if `played` is given.
        played: `[N, K]` probability with which today's system asks each model; None if it is one model.
        people: `[N, K]` scores that people gave to some answers, NaN elsewhere, if `scores` are a judge's.
        selective: bool `[K]`, True for a model that answered a special kind of prompts, so that a comparison
            on its prompts does not hold for all prompts. None if there is no such model.
    """

    models: tuple[str, ...]
    scores: np.ndarray
    costs: np.ndarray
    tasks: np.ndarray
    clusters: np.ndarray
    today: int | None = None
    latencies: np.ndarray | None = None
    played: np.ndarray | None = None
    people: np.ndarray | None = None
    selective: np.ndarray | None = None

    def __post_init__(self) -> None:
        shape = (len(self.tasks), len(self.models))
        for name in ("scores", "costs", "latencies", "played", "people"):
            values = getattr(self, name)
            if values is not None and values.shape != shape:
                raise DataError(f"answer: {name} has the shape {values.shape}, expected {shape}")
        if len(self.clusters) != shape[0]:
            raise DataError(
                f"answer: {len(self.clusters)} clusters, expected one for each of {shape[0]} prompts"
            )
        known = self.scores[self.answered]
        if len(known) and (known.min() < 0 or known.max() > 1):
            raise DataError(f"answer: scores from {known.min():g} to {known.max():g}, expected from 0 to 1")
        if not np.isfinite(self.costs[self.answered]).all():
            raise DataError("answer: a scored answer has no cost; give a cost in USD for every scored answer")

    @property
    def answered(self) -> np.ndarray:
        """Cells, bool `[N, K]`, with a scored answer of the model to the prompt."""
        known: np.ndarray = ~np.isnan(self.scores)
        return known

    @property
    def best(self) -> int:
        """Index of the model with the highest mean score on the prompts that it answered.

        Of models with the same mean it is the cheaper one, then the first by name.
        """
        scores = _column_means(self.scores, self.answered)
        costs = _column_means(self.costs, self.answered)
        order = range(len(self.models))
        return min(order, key=lambda j: (-np.nan_to_num(scores[j], nan=-1.0), costs[j], self.models[j]))

    @property
    def reference(self) -> int:
        """Index of the model that options are compared with: today's, or `best` if `today` is None."""
        if self.today is None:
            return self.best
        return self.today

    def asks_selective(self, weights: np.ndarray) -> bool:
        """Return True if an option or today's system asks a selective model.

        Args:
            weights: `[N, K]` probabilities of the option. On prompts that are not judged, they are NaN, and
                only today's system counts.
        """
        if self.selective is None:
            return False
        asked = np.nan_to_num(weights) + self.baseline()
        return bool((asked[:, self.selective] > 0).any())

    def baseline(self) -> np.ndarray:
        """Return the probabilities `[N, K]` with which today's system asks each model.

        If `played` is None, today's system always asks the model `reference`.
        """
        if self.played is not None:
            return self.played
        return self.single(self.reference)

    def single(self, model: int) -> np.ndarray:
        """Return the probabilities `[N, K]` of an option that always asks one model."""
        weights = np.zeros(self.scores.shape)
        weights[:, model] = 1.0
        return weights

    def take(self, rows: np.ndarray) -> Self:
        """Return the table of some prompts, `[M]` indices."""

        def part(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[rows]

        return replace(
            self,
            scores=self.scores[rows],
            costs=self.costs[rows],
            tasks=self.tasks[rows],
            clusters=self.clusters[rows],
            latencies=part(self.latencies),
            played=part(self.played),
            people=part(self.people),
        )

    def play(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Score and cost of an option on each prompt.

        Args:
            weights: `[N, K]` probabilities; a row of NaN is not judged.

        Returns:
            (probability that the table has the option's answer, expected score and expected cost in USD of
            these answers), `[N]` each. Without any answer all three are 0.
        """
        known = np.where(self.answered, np.nan_to_num(weights), 0.0)
        share = known.sum(axis=1)
        share[share < 10.0**-DIGITS] = 0.0
        scale = np.divide(1.0, share, out=np.zeros_like(share), where=share > 0)
        score = np.where(self.answered, known * self.scores, 0.0).sum(axis=1) * scale
        cost = np.where(self.answered, known * self.costs, 0.0).sum(axis=1) * scale
        return np.minimum(share, 1.0), score, cost

    def supported(self, model: int, groups: np.ndarray) -> np.ndarray:
        """Mark the prompts, bool `[N]`, for whose group a rule may choose the model.

        In a scored table these are all prompts; a log's table restricts them.

        Args:
            model: index of the model.
            groups: `[N]` group of each prompt, such as its task.
        """
        return np.ones(len(groups), dtype=bool)


@dataclass(frozen=True)
class Decisions:
    """The decisions of an option on prompts that the option was not made from.

    Attributes:
        name: name of the option, for people.
        weights: `[N, K]` probability of each model on each prompt, by a fit on other folds than the prompt's.
            For a policy that learns as it plays, it is a mean over orders. A row of NaN is a prompt that is
            not judged.
        use: a policy's name, or {task: model}. None takes `name`.
        exported: `[N, K]` probabilities of the option that is exported, which is fitted on all prompts. If
            given, costs are computed from them. None computes costs from `weights`.
    """

    name: str
    weights: np.ndarray
    use: Any = None
    exported: np.ndarray | None = None


@dataclass(frozen=True)
class AnswerOptions:
    """Settings of an answer.

    Attributes:
        tolerance: largest loss of mean score that still counts as "as good".
        requests_per_month: number of requests, for savings a month; None if it is not known.
        level: probability that any shown word is wrong. "switch" has half of it, "rules" and "router" share
            the other half.
        smallest_task: number of prompts below which a task is joined with others as "other".
        draws: number of bootstrap draws for costs.
        seed: seed of the draws.
    """

    tolerance: float = TOLERANCE
    requests_per_month: float | None = None
    level: float = LEVEL
    smallest_task: int = 20
    draws: int = 2000
    seed: int = 0


def _column_means(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Means `[K]` of the known values of each column, to 12 digits; NaN for a column without known values."""
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    means: np.ndarray = np.round(
        np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0), DIGITS
    )
    return means
