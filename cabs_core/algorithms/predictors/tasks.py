"""`tasks`: predicts an arm's score as the mean of its mean scores on the tasks, weighted by their
probability.

Task labels are known offline only: a multinomial logistic regression on the embedding learns them from the
train split, and predicts them for a prompt that is routed. Means of small tasks are shrunk to the arm's mean.
The predictor on its own tells prompts of one task apart only by their task probabilities; `oracles.train`
mixes it with kernel regression by a weight fitted on cross-fitted predictions.
"""

from typing import ClassVar, Self

import numpy as np
from scipy.special import softmax

from cabs_core.algorithms.predictors.base import Once, ScorePredictor, Validation
from cabs_core.algorithms.predictors.features import centred
from cabs_core.base.errors import DataError, PolicyError

#: largest number of train prompts for the logistic regression: more change it by less than its penalty does
MOST = 8192
#: largest number of its iterations
STEPS = 1000
#: intercept of a task without a row
_NEVER = -50.0


class TaskPredictor(ScorePredictor):
    """Score predictor that weights the arms' mean scores on the tasks by the probability of each task.

    Without task labels all prompts are one task, and the predictions are the arms' means.

    Args:
        penalty: penalty of the squared weights of the logistic regression, on features with mean square 1.
        pull: number of prompts that the arm's mean counts as in the mean of a task.

    Raises:
        PolicyError: `penalty` is not positive, or `pull` is negative.
    """

    name: ClassVar[str] = "tasks"
    _ARRAYS: ClassVar = ("center", "scale", "weights", "means")
    _OPTIONS: ClassVar = ("penalty", "pull")
    center_: np.ndarray
    scale_: float
    weights_: np.ndarray
    means_: np.ndarray
    _labels: np.ndarray | None = None

    def __init__(self, penalty: float = 1.0, pull: float = 10.0):
        if not penalty > 0 or not pull >= 0:
            raise PolicyError(f"tasks: penalty {penalty} must be > 0 and pull {pull} >= 0")
        self.penalty = float(penalty)
        self.pull = float(pull)

    def fit(
        self,
        embeddings: np.ndarray,
        prompt_lengths: np.ndarray,
        scores: np.ndarray,
        *,
        validation: Validation | None = None,
        seed: int = 0,
        once: Once | None = None,
        tasks: np.ndarray | None = None,
    ) -> Self:
        """Learn from the train split as `ScorePredictor.fit` does, with the task label of every prompt in
        `tasks` `[N]`.

        Raises:
            DataError: an argument is wrong, or the number of labels is not that of the prompts.
        """
        if tasks is not None and np.shape(tasks) != (len(scores),):
            raise DataError(f"tasks have shape {np.shape(tasks)}: expected ({len(scores)},)")
        self._labels = tasks
        try:
            return super().fit(
                embeddings, prompt_lengths, scores, validation=validation, seed=seed, once=once
            )
        finally:
            self._labels = None

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        """Fit the tasks' shrunk means, and the logistic regression on at most `MOST` prompts.

        `fit` has checked the arguments and has set the task labels.
        """
        if self._labels is None:
            labels = np.zeros(len(x))
        else:
            labels = self._labels
        _, which = np.unique(labels, return_inverse=True)
        count = int(which.max()) + 1
        mean = y.mean(axis=0)
        sizes = np.bincount(which, minlength=count)
        totals = np.zeros((count, y.shape[1]))
        np.add.at(totals, which, y)
        self.means_ = (totals + self.pull * mean) / (sizes + self.pull)[:, None]
        self.center_ = x.mean(axis=0)
        squares = sum(float((part**2).sum()) for part in centred(x, self.center_))
        self.scale_ = float(max(np.sqrt(squares / x.size), 1e-12))
        rows = np.random.default_rng([seed, 51]).permutation(len(x))[:MOST]
        self.weights_ = self._logistic(self._features(x[rows]), which[rows], count)

    def _features(self, x: np.ndarray) -> np.ndarray:
        """Return embeddings less the train split's mean, in units in which their mean square is 1 there."""
        features: np.ndarray = (x - self.center_) / self.scale_
        return features

    def _logistic(self, features: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
        """Fit weights `[e + 1, tasks]`, of which the last row holds the intercepts.

        A task without a row gets probability 0, within rounding. With rows of fewer than two tasks all
        weights are 0.
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415  (scikit-learn takes a second)

        weights = np.zeros((features.shape[1] + 1, count))
        seen = np.unique(which)
        if len(seen) < 2:
            return weights
        model = LogisticRegression(C=1.0 / self.penalty, max_iter=STEPS).fit(features, which)
        fitted = np.vstack([model.coef_.T, model.intercept_])
        weights[-1] = _NEVER
        if len(seen) > 2:
            weights[:, seen] = fitted
        else:
            weights[:, seen] = np.hstack([np.zeros_like(fitted), fitted])
        return weights

    def task_probabilities(self, embeddings: np.ndarray) -> np.ndarray:
        """Predict the probability `[n, tasks]` of every task of the train split, in the order of
        `numpy.unique`.
        """
        features = self._features(np.asarray(embeddings, dtype=np.float64))
        probabilities: np.ndarray = softmax(features @ self.weights_[:-1] + self.weights_[-1], axis=1)
        return probabilities

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the mean of the tasks' shrunk means by their probabilities; the lengths are not used."""
        scores: np.ndarray = self.task_probabilities(x) @ self.means_
        return scores

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return len(self.center_)
