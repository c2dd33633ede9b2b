"""Score predictors that average the train scores over k-means clusters of the embeddings.

`clusters` is the predictor inside Avengers-Pro (arXiv 2508.12631; equations read in ynulihao/LLMRouterBench,
`baselines/AvengersPro`): the nearest clusters of a prompt, weighted by a softmax of their distances.
`hier_shrink` (vllm-project/semantic-router, issue 3459) shrinks the mean of a small cluster to that of a
large cluster, and the latter to the arm's mean.
"""

from copy import copy
from typing import ClassVar, Self

import numpy as np
from threadpoolctl import threadpool_limits

from cabs_core.algorithms.predictors.base import ScorePredictor, Validation, check_inputs, check_scores
from cabs_core.base.errors import PolicyError
from cabs_core.base.threads import one_blas_thread

#: number of prompts that the mean score of an arm that joins counts for in every cluster
JOINED_PROMPTS = 4.0


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Return rows `[n, d]` scaled to length 1, float64; a row of zeros stays zero."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.zeros_like(x, dtype=np.float64)
    np.divide(x, norms, out=unit, where=norms > 0)
    return unit


def kmeans_centers(points: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Return k-means centres `[min(clusters, distinct points), e]`, the best of 3 starts.

    Ten starts do not raise the utility of a router. One thread is used, because sums differ between runs
    otherwise.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415  (scikit-learn takes a second)

    count = min(clusters, len(np.unique(points, axis=0)))
    with one_blas_thread(), threadpool_limits(1, user_api="openmp"):
        centers: np.ndarray = KMeans(count, n_init=3, random_state=seed).fit(points).cluster_centers_
    return centers


def nearest_center(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the index of each point's centre of least Euclidean distance, int `[n]`, the first of equals."""
    nearest: np.ndarray = np.argmin((centers**2).sum(axis=1) - 2.0 * (points @ centers.T), axis=1)
    return nearest


def cluster_means(labels: np.ndarray, values: np.ndarray, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the means `[clusters, K]` of each cluster's rows and the counts `[clusters]`.

    An empty cluster has mean 0.
    """
    counts = np.bincount(labels, minlength=clusters).astype(np.float64)
    sums = np.zeros((clusters, values.shape[1]))
    np.add.at(sums, labels, values)
    return sums / np.maximum(counts, 1.0)[:, None], counts


def soft_membership(points: np.ndarray, centers: np.ndarray, top: int, beta: float) -> np.ndarray:
    """Compute the softmax of -beta (1 - x.c) over the `top` nearest centres, `[n, clusters]`, 0 for the
    others.
    """
    distance = 1.0 - points @ centers.T
    order = np.argsort(distance, axis=1, kind="stable")[:, : min(top, len(centers))]
    near = np.take_along_axis(distance, order, axis=1)
    share = np.exp(-beta * (near - near[:, :1]))
    out: np.ndarray = np.zeros_like(distance)
    np.put_along_axis(out, order, share / share.sum(axis=1, keepdims=True), axis=1)
    return out


class ClusterPredictor(ScorePredictor):
    """Score predictor by the mean scores of the nearest clusters, weighted by a softmax of their distances
    (Avengers-Pro).

    Args:
        clusters: number of clusters of the unit embeddings. top: number of clusters that count for a prompt.
        beta: inverse temperature of the softmax over -distance, distance = 1 - x.centre.
    """

    name: ClassVar[str] = "clusters"
    _ARRAYS: ClassVar = ("centers", "means")
    _OPTIONS: ClassVar = ("clusters", "top", "beta")
    centers_: np.ndarray
    means_: np.ndarray

    def __init__(self, clusters: int = 25, top: int = 3, beta: float = 9.0):
        if clusters < 1 or top < 1 or not beta >= 0:
            raise PolicyError(
                f"clusters: clusters {clusters} and top {top} must be >= 1 and beta {beta} >= 0"
            )
        self.clusters = int(clusters)
        self.top = int(top)
        self.beta = float(beta)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        points = unit_rows(x)
        self.centers_ = self._once(
            ("k-means", self.clusters, seed), lambda: kmeans_centers(points, self.clusters, seed)
        )
        labels = nearest_center(points, self.centers_)
        self.means_, _ = cluster_means(labels, y, len(self.centers_))

    def with_means(self, means: np.ndarray) -> Self:
        """Return a predictor with the same clusters and other mean scores [clusters, K]."""
        extended = copy(self)
        extended.means_ = means
        return extended

    def with_arm(self, embeddings: np.ndarray, scores: np.ndarray) -> Self:
        """Return a predictor with one more arm, from the scores `[m]` of the arm on m >= 1 prompts `[m, e]`.

        The mean of a cluster is shrunk to the arm's mean score, which counts as `JOINED_PROMPTS` prompts, so
        that a single score in a cluster does not determine the arm's mean there.

        Raises:
            DataError: as in `fit`.
        """
        x, _ = check_inputs(embeddings, np.zeros(len(embeddings)), width=self.width, rows=1)
        y = check_scores(np.asarray(scores, dtype=np.float64).reshape(-1, 1), len(x))
        means, counts = cluster_means(nearest_center(unit_rows(x), self.centers_), y, len(self.centers_))
        counted = counts[:, None]
        column = (counted * means + JOINED_PROMPTS * y.mean()) / (counted + JOINED_PROMPTS)
        return self.with_means(np.hstack([self.means_, column]))

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores: np.ndarray = soft_membership(unit_rows(x), self.centers_, self.top, self.beta) @ self.means_
        return scores

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return int(self.centers_.shape[1])


class HierShrinkPredictor(ScorePredictor):
    """Score predictor by the means of a large and a small cluster of the prompt, shrunk in two steps.

    b1 = (n1 m1 + s ybar) / (n1 + s) with n1 prompts and mean m1 of the prompt's large cluster and ybar the
    arm's mean. The prediction is b2 = (n2 m2 + s b1) / (n2 + s) with n2 and m2 of its small cluster.

    Args:
        coarse, fine: numbers of clusters. strength: s, number of prompts that the coarser mean counts as.
    """

    name: ClassVar[str] = "hier_shrink"
    _ARRAYS: ClassVar = (
        "mean",
        "coarse_centers",
        "fine_centers",
        "coarse_sums",
        "coarse_counts",
        "fine_sums",
        "fine_counts",
    )
    _OPTIONS: ClassVar = ("coarse", "fine", "strength")
    mean_: np.ndarray
    coarse_centers_: np.ndarray
    fine_centers_: np.ndarray
    coarse_sums_: np.ndarray
    coarse_counts_: np.ndarray
    fine_sums_: np.ndarray
    fine_counts_: np.ndarray

    def __init__(self, coarse: int = 20, fine: int = 100, strength: float = 24.0):
        if coarse < 1 or fine < 1 or not strength > 0:
            raise PolicyError(
                f"hier_shrink: coarse {coarse} and fine {fine} must be >= 1 and strength {strength} > 0"
            )
        self.coarse = int(coarse)
        self.fine = int(fine)
        self.strength = float(strength)

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        points = unit_rows(x)
        self.mean_ = y.mean(axis=0)
        self.coarse_centers_ = kmeans_centers(points, self.coarse, seed)
        self.fine_centers_ = kmeans_centers(points, self.fine, seed + 1)
        self.coarse_sums_, self.coarse_counts_ = self._sums(points, y, self.coarse_centers_)
        self.fine_sums_, self.fine_counts_ = self._sums(points, y, self.fine_centers_)

    @staticmethod
    def _sums(points: np.ndarray, y: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums `[clusters, K]` of the scores of each centre's points, and the counts of points."""
        means, counts = cluster_means(nearest_center(points, centers), y, len(centers))
        return means * counts[:, None], counts

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        points = unit_rows(x)
        s = self.strength
        coarse = nearest_center(points, self.coarse_centers_)
        fine = nearest_center(points, self.fine_centers_)
        first = (self.coarse_sums_[coarse] + s * self.mean_) / (self.coarse_counts_[coarse, None] + s)
        second: np.ndarray = (self.fine_sums_[fine] + s * first) / (self.fine_counts_[fine, None] + s)
        return second

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return int(self.coarse_centers_.shape[1])
