"""`tasks`: the task is predicted from the prompt, and every arm's score is its mean on the tasks by their probabilities.

Task labels are known offline only: a multinomial logistic regression on the embedding learns them from the train split,
and a prompt to be routed is never asked for its own. Means of small tasks are shrunk to the arm's mean. On its own this
knows nothing within a task; `oracles.train` mixes it with kernel regression by a weight fitted on cross-fitted predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from cabs_core.errors import DataError, PolicyError
from cabs_core.predictors.base import ScorePredictor, State, Validation

#: train prompts that the logistic regression looks at: more move its probabilities by less than its penalty does
MOST = 8192
STEPS = 100


class TaskPredictor(ScorePredictor):
    """See the module. Without task labels all prompts are one task, and it predicts the arms' means.

    Args:
        penalty: of the squared weights of the logistic regression, on features with mean square 1. pull: prompts that the
            arm's mean counts as in the mean of a task.
    """

    name: ClassVar[str] = "tasks"
    center_: np.ndarray
    scale_: float
    weights_: np.ndarray
    means_: np.ndarray
    _labels: np.ndarray | None = None

    def __init__(self, penalty: float = 1.0, pull: float = 10.0):
        if not penalty > 0 or not pull >= 0:
            raise PolicyError(f"tasks: penalty {penalty} must be > 0 and pull {pull} >= 0")
        self.penalty, self.pull = float(penalty), float(pull)

    def fit(
        self,
        embeddings: np.ndarray,
        prompt_lengths: np.ndarray,
        scores: np.ndarray,
        *,
        validation: Validation | None = None,
        seed: int = 0,
        tasks: np.ndarray | None = None,
    ) -> Self:
        """As `ScorePredictor.fit`; tasks `[N]`: the label of every train prompt.

        Raises:
            DataError: also where there is not one label a prompt.
        """
        if tasks is not None and np.shape(tasks) != (len(scores),):
            raise DataError(f"tasks have shape {np.shape(tasks)}: expected ({len(scores)},)")
        self._labels = tasks
        try:
            return super().fit(embeddings, prompt_lengths, scores, validation=validation, seed=seed)
        finally:
            self._labels = None

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        labels = np.zeros(len(x)) if self._labels is None else self._labels
        _, which = np.unique(labels, return_inverse=True)
        count = int(which.max()) + 1
        mean, sizes = y.mean(axis=0), np.bincount(which, minlength=count)
        totals = np.zeros((count, y.shape[1]))
        np.add.at(totals, which, y)
        self.means_ = (totals + self.pull * mean) / (sizes + self.pull)[:, None]
        self.center_ = x.mean(axis=0)
        self.scale_ = float(max(np.sqrt(((x - self.center_) ** 2).mean()), 1e-12))
        rows = np.random.default_rng([seed, 51]).permutation(len(x))[:MOST]
        self.weights_ = self._logistic(self._features(x[rows]), which[rows], count)

    def _features(self, x: np.ndarray) -> np.ndarray:
        return np.hstack([(x - self.center_) / self.scale_, np.ones((len(x), 1))])

    def _logistic(self, features: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
        """Weights `[e + 1, tasks]` of least mean cross-entropy plus penalty; the constant is not penalised."""
        n, e = features.shape
        if count == 1:
            return np.zeros((e, 1))
        target = np.zeros((n, count))
        target[np.arange(n), which] = 1.0
        penalised = np.ones((e, 1))
        penalised[-1] = 0.0

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            w = flat.reshape(e, count)
            logs = log_softmax(features @ w, axis=1)
            shrunk = self.penalty * penalised * w
            value = -(target * logs).sum() + 0.5 * (shrunk * w).sum()
            slope = features.T @ (np.exp(logs) - target) + shrunk
            return float(value / n), slope.ravel() / n

        found = minimize(loss, np.zeros(e * count), jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
        weights: np.ndarray = found.x.reshape(e, count)
        return weights

    def task_probabilities(self, embeddings: np.ndarray) -> np.ndarray:
        """Probability `[n, tasks]` of every task of the train split, in the order of `numpy.unique`."""
        found: np.ndarray = softmax(
            self._features(np.asarray(embeddings, dtype=np.float64)) @ self.weights_, axis=1
        )
        return found

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores: np.ndarray = self.task_probabilities(x) @ self.means_
        return scores

    @property
    def width(self) -> int:
        return len(self.center_)

    def state(self) -> State:
        arrays = {
            "center": self.center_, "scale": np.asarray(self.scale_), "weights": self.weights_, "means": self.means_,
        }  # fmt: skip
        return arrays, {"penalty": self.penalty, "pull": self.pull}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        self = cls(settings["penalty"], settings["pull"])
        self.center_, self.scale_ = arrays["center"], float(arrays["scale"])
        self.weights_, self.means_ = arrays["weights"], arrays["means"]
        return self
