"""`stack`: static predictors, with weights per arm fitted on cross-fitted predictions.

The train split is cut into folds; every member is fitted on the other folds and predicts the fold left out.
Non-negative weights are fitted on these cross-fitted predictions (Wolpert 1992; van der Laan, Polley and
Hubbard 2007). One set of weights is for the mean over arms, which says how hard a prompt is. The others are
for the contrasts between the arms of a query, which alone decide the choice: one set common to all arms, then
one set per arm. An arm's own set is shrunk to the common set, which counts as `pull` prompts, since with few
prompts an arm's own weights are mostly noise. Weights apply to deviations from the arm's mean score, so they
need not sum to one: a sum below one shrinks predictions to the mean. The members with a positive weight are
then fitted on the whole train split.
"""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import compress
from typing import Any, ClassVar, Self

import numpy as np

from cabs_core.algorithms.predictors.base import (
    ScorePredictor,
    State,
    Validation,
    contrasts,
    nonnegative_weights,
    prefixed,
    without_prefix,
)
from cabs_core.base.errors import PolicyError

MEMBERS = ("ridge", "knn", "kernel_ridge", "clusters", "mf", "mirt")


def stack_weights(members: np.ndarray, targets: np.ndarray, pull: float) -> np.ndarray:
    """Fit weights `[K, M]` >= 0 of the predictions `members` `[n, K, M]` for `targets` `[n, K]`.

    Members and targets are deviations from the arms' means.

    Arm j minimises its squared error plus pull (w_j - w)' G (w_j - w). Here w are the non-negative weights
    `[M]` that fit all arms together, and G is the Gram matrix of the members, averaged over prompts and arms.
    """
    n, k, m = members.shape
    common = nonnegative_weights(members.reshape(n * k, m), targets.ravel())
    # one unit of pull weighs as much as an average prompt, whatever the members' scale
    gram = np.einsum("nkm,nkl->ml", members, members) / (n * k)
    values, vectors = np.linalg.eigh(gram)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T * np.sqrt(pull)
    out = np.empty((k, m))
    for j in range(k):
        rows = np.vstack([members[:, j], root])
        out[j] = nonnegative_weights(rows, np.concatenate([targets[:, j], root @ common]))
    return out


class StackPredictor(ScorePredictor):
    """Score predictor that weights the predictions of its members, with non-negative weights per arm.

    The module's docstring says how the weights are fitted.

    Args:
        members: at least one name of a score predictor other than `stack`, or (name, options) pairs; each
            name once.
        folds: number of folds of the cross-fitting, at least 2.
        pull: number of prompts that the weights common to all arms count as, 0 or larger.

    Attributes:
        mean_: mean scores [K] of the train split.
        weights_: weights [K, M] of the members' predictions of the contrasts between arms.
        common_: weights [M] of the members' predictions of the mean over arms.
        width_: number of columns of the embeddings.
        fitted_: {name: member} of the M members with a positive weight.

    Raises:
        PolicyError: a member, folds or pull is not as above.
    """

    name: ClassVar[str] = "stack"
    _ARRAYS: ClassVar = ("mean", "weights", "common")
    mean_: np.ndarray
    weights_: np.ndarray
    common_: np.ndarray
    width_: int
    fitted_: dict[str, ScorePredictor]

    def __init__(
        self,
        members: Iterable[str | tuple[str, Mapping[str, Any]]] = MEMBERS,
        folds: int = 3,
        pull: float = 500.0,
    ):
        pairs: list[tuple[str, dict[str, Any]]] = [
            (m, {}) if isinstance(m, str) else (str(m[0]), dict(m[1])) for m in members
        ]
        names = [name for name, _ in pairs]
        if not names or len(set(names)) != len(names) or self.name in names or folds < 2 or not pull >= 0:
            raise PolicyError(
                f"stack: members {names} must be different predictors other than stack, folds {folds} >= 2 "
                f"and pull {pull} >= 0"
            )
        self.members = pairs
        self.folds = int(folds)
        self.pull = float(pull)
        for name, options in pairs:
            _make(name, options)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        """Fit the weights on cross-fitted predictions, then the used members on the whole train split.

        The validation rows are passed to these last fits alone. The weights do not depend on them.
        """
        n = len(x)
        self.mean_ = y.mean(axis=0)
        fold = np.random.default_rng([seed, 41]).permutation(n) % min(self.folds, max(2, n // 2))
        left_out = np.zeros((n, y.shape[1], len(self.members)))
        for f in range(fold.max() + 1):
            rest = fold != f
            out = fold == f
            if rest.sum() < 2 or not out.any():
                continue
            for m, (name, options) in enumerate(self.members):
                member = _make(name, options).fit(x[rest], lengths[rest], y[rest], seed=seed)
                left_out[out, :, m] = member.predict(x[out], lengths[out]) - y[rest].mean(axis=0)
        targets = y - self.mean_
        self.common_ = nonnegative_weights(left_out.mean(axis=1), targets.mean(axis=1))
        self.weights_ = stack_weights(contrasts(left_out), contrasts(targets), self.pull)
        used = (self.weights_.max(axis=0) > 0) | (self.common_ > 0)
        self.fitted_ = {}
        for name, options in compress(self.members, used):
            fit = partial(
                _make(name, options).fit, x, lengths, y, validation=validation, seed=seed, once=self._once
            )
            # shared with the static policy of this member, which fits it with the same settings
            key = ("predictor", name, json.dumps(options, sort_keys=True), seed, validation is None)
            self.fitted_[name] = self._once(key, fit)
        self.weights_ = self.weights_[:, used]
        self.common_ = self.common_[used]
        self.width_ = x.shape[1]

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return predicted scores `[n, K]`, which may lie outside [0, 1]."""
        out = np.tile(self.mean_, (len(x), 1))
        for m, member in enumerate(self.fitted_.values()):
            deviation = member.predict(x, lengths) - self.mean_
            apart = contrasts(deviation)
            out += self.weights_[:, m] * apart + self.common_[m] * (deviation - apart)
        return out

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return self.width_

    def state(self) -> State:
        """Return arrays and settings (JSON values) of the weights, the options and the used members.

        `restore` makes an equal predictor from them.
        """
        arrays, _ = super().state()
        states: dict[str, Any] = {}
        for name, member in self.fitted_.items():
            fitted, states[name] = member.state()
            arrays |= prefixed(name, fitted)
        settings = {
            "options": {"members": [list(p) for p in self.members], "folds": self.folds, "pull": self.pull},
            "width": self.width_,
            "fitted": states,
        }
        return arrays, settings

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Return the fitted predictor whose `state` returned these arrays and settings."""
        # imported here, since the table of predictors holds this class
        from cabs_core.algorithms.predictors import predictor_class  # noqa: PLC0415

        self = super().restore(arrays, settings["options"])
        self.width_ = int(settings["width"])
        self.fitted_ = {
            name: predictor_class(name).restore(without_prefix(name, arrays), state)
            for name, state in settings["fitted"].items()
        }
        return self


def _make(name: str, options: Mapping[str, Any]) -> ScorePredictor:
    """Return the score predictor `name` with these options, not yet fitted."""
    from cabs_core.algorithms.predictors import make_score_predictor  # noqa: PLC0415  (as in `restore`)

    return make_score_predictor(name, **options)
