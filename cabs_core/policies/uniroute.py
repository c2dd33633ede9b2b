"""`uniroute`: UniRoute (Jitkrittum et al. 2025, arXiv 2502.08773), a router whose arms may arrive after it was made.

An arm is the vector of its errors on clusters of prompts (k-means on the embeddings; the paper's K-means instantiation, by
the abstract and accounts of its sections 4 and 5): an arm's score on a prompt is expected to be its mean on the prompt's
cluster, and the arm of largest expected utility is played. Clusters need no labels, so an arm that comes later needs
outcomes on a few prompts and no training: `introduce`. The learnt cluster map of the paper is not here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.errors import PolicyError
from cabs_core.policies.static import Predicted
from cabs_core.predictors import ClusterPredictor


class UniRoute(Predicted):
    """Mean scores of the prompt's cluster. Settings are those of the predictor `clusters`."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    predictor: ClusterPredictor | None

    @property
    def key(self) -> str:
        """The predictor that holds clusters and error vectors."""
        return "clusters"

    @property
    def predictor_settings(self) -> dict[str, Any]:
        """One cluster a prompt, unless the settings say otherwise."""
        return {"top": 1, **self.settings.settings}

    def introduce(self, name: str, embeddings: ArrayLike, scores: ArrayLike) -> None:
        """A new arm becomes playable at the end of `arms`, with the error vector of a few scored prompts.

        A cluster that none of them falls into has the arm's mean score.

        Args:
            embeddings: [m, e] of m >= 1 prompts. scores: [m] of the arm, in [0, 1].

        Raises:
            PolicyError: there is an arm of that name, or the policy has not been fitted.
            DataError: shapes disagree, a value is not finite or a score out of range; nothing has changed.
        """
        if self.predictor is None and self.offline is not None:
            self._adopt(self.offline)
        if self.predictor is None:
            raise PolicyError(f"{self.name} has no clusters yet: build it with `offline`, or fit it")
        with self._lock:
            wider = self.predictor.with_arm(np.asarray(embeddings), np.asarray(scores))
            self.add_arm(name)
            self.predictor = wider

    def _grow(self) -> None:
        """Without scored prompts an arm counts as always wrong."""
        if self.predictor is None and self.offline is not None:
            self._adopt(self.offline)
        if self.predictor is not None:
            means = self.predictor.means_
            self.predictor = self.predictor.with_means(np.hstack([means, np.zeros((len(means), 1))]))

    def _shrink(self, index: int) -> None:
        if self.predictor is None and self.offline is not None:
            self._adopt(self.offline)
        if self.predictor is not None:
            self.predictor = self.predictor.with_means(np.delete(self.predictor.means_, index, axis=1))


__all__ = ["UniRoute"]
