"""`uniroute`: UniRoute (Jitkrittum et al. 2025, arXiv 2502.08773), a router with arms that arrive later.

An arm is the vector of its errors on clusters of prompts (k-means on the embeddings; the paper's K-means
instantiation, by the abstract and accounts of its sections 4 and 5): an arm's score on a prompt is expected
to be its mean on the prompt's cluster, and the arm of largest expected utility is played. Clusters need no
labels, so an arm that comes later needs outcomes on a few prompts and no training:
`add_arm(name, embeddings, scores)`. The learnt cluster map of the paper is not here.
"""

from typing import Any, ClassVar

import numpy as np

from cabs_core.algorithms.policies.static import Predicted
from cabs_core.algorithms.predictors.clusters import ClusterPredictor
from cabs_core.base.errors import PolicyError


class UniRoute(Predicted):
    """The policy that expects of every arm its mean score on the prompt's cluster.

    Settings are those of the predictor `clusters`.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    takes_scored_arms: ClassVar[bool] = True
    predictor: ClusterPredictor | None

    @property
    def key(self) -> str:
        """Name of the predictor, which holds the clusters and the arms' mean scores on them."""
        return "clusters"

    @property
    def trained_only(self) -> bool:
        """False: an arm that joins gets mean scores on the clusters, too."""
        return False

    @property
    def predictor_settings(self) -> dict[str, Any]:
        """Options of the cluster predictor, with `top` = 1 unless the settings say otherwise.

        `top` is the number of nearest clusters that count for a prompt, so by default a prompt's score is
        predicted from its own cluster alone.
        """
        return {"top": 1, **self.settings.settings}

    def add_arm(self) -> None:
        """Add an arm with mean score 0 on every cluster, because it has no scored prompts."""
        self._adopt(self.offline)
        if self.predictor is not None:
            means = self.predictor.means_
            self.predictor = self.predictor.with_means(np.hstack([means, np.zeros((len(means), 1))]))

    def add_scored_arm(self, embeddings: np.ndarray, scores: np.ndarray) -> None:
        """Add an arm with the scores `[m]` of a few prompts, whose embeddings are `[m, e]`.

        Its mean score on a cluster is shrunk to its mean over all m prompts.

        Raises:
            PolicyError: the policy is not fitted yet.
        """
        self._adopt(self.offline)
        if self.predictor is None:
            raise PolicyError(f"{self.name} has no clusters yet: build it with `offline`, or fit it")
        self.predictor = self.predictor.with_arm(embeddings, scores)

    def resemble(self, arm: int, margin: float) -> None:
        """Give the last arm, which `add_arm` has just added, the mean scores of the arm at index `arm`.

        The margin is not used, since the means are scores and not utilities.
        """
        if self.predictor is not None:
            means = self.predictor.means_  # a copy that `add_arm` made, so no other policy shares it
            means[:, -1] = means[:, arm]

    def remove_arm(self, index: int) -> None:
        self._adopt(self.offline)
        if self.predictor is not None:
            self.predictor = self.predictor.with_means(np.delete(self.predictor.means_, index, axis=1))
