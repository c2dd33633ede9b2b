"""Algorithms 1 and 2 of the paper, line by line, in plain NumPy and in the paper's symbols.

The compiled policies are compared with this code (`tests/core/algorithms/policies/test_cabs_reference.py`):
the preset `literal` of `cabs_c_linear` and `cabs_d_linear` does the same. Numbers of lines are those of the
printed algorithms, counted from `Input`.

    x [d] context; R, A, E [K, K] affinity, sampled graph and its expectation E[A]; theta [K, d] estimates;
    p, q [K] distributions over arms; i the played arm, r its reward; s [K] surrogate rewards; N(i) = {j: A_ij
    = 1}

Where the paper leaves a choice, a comment that begins with "reading" names ours; docs/paper.md has all of
them.
"""

import math

import numpy as np

from cabs_core.algorithms.solver.reference import cvxpy_paper

#: reading: least probability that lines 14 and 15 divide by
LEAST_P = 1e-3


def affinity(ybar: np.ndarray) -> np.ndarray:
    """Compute R [K, K] from context-only accuracies ybar [K] (appendix, "Affinity and Reward Oracles").

    R_jk = 1 - 2 |ybar_j - ybar_k|.
    The diagonal is -inf, which makes the probability of self loops 1.
    """
    R: np.ndarray = 1.0 - 2.0 * np.abs(ybar[:, None] - ybar[None, :])
    np.fill_diagonal(R, -np.inf)  # "to enforce self loops"
    return R


def expected_graph(R: np.ndarray) -> np.ndarray:
    """Compute E[A] [K, K], the probability sigmoid((1 - R) / 2) of every edge (Algorithm 1, line 6)."""
    return 1.0 / (1.0 + np.exp(-(1.0 - R) / 2.0))


def sample_graph(E: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the graph A [K, K] (line 6): 1 where the uniform draw is below E, otherwise 0.

    Args:
        E: probabilities of the edges [K, K]. draws: uniform draws [K, K] in [0, 1).
    """
    return (draws < E).astype(np.float64)


def exploration(f: np.ndarray, W: np.ndarray, gamma: float) -> np.ndarray:
    """Solve argmin over p of phi (line 8), for predictions f [K] and W_ik = A_ik E[A_ik].

    The supremum over theta* has a closed form: v_k = x'theta*_k enters as v_k (1[k = i*] - p_k) less
    (gamma / 4) (p'W)_k (v_k - f_k)^2, so that
    phi(p) = max_i* { f_i* - p'f + sum_k (1[k = i*] - p_k)^2 / (gamma (p'W)_k) }: the paper's equation (5).
    """
    return cvxpy_paper(1.0 - f, W, gamma).p


def keeps(delta: np.ndarray, i: int, kappa: float) -> np.ndarray:
    """Return bool [K], True for arms that the appendix's IQR rule retains.

    The rule retains the played arm, and arms whose |delta| is more than kappa interquartile ranges above the
    upper quartile. The quartiles are those of |delta| of the other K - 1 arms.

    Args:
        delta: predicted deltas [K]. i: the played arm. kappa: number of interquartile ranges.
    """
    others = np.delete(np.abs(delta), i)  # reading: quartiles over the other K - 1 arms
    low, high = np.quantile(others, [0.25, 0.75])
    retained: np.ndarray = np.abs(delta) > high + kappa * (high - low)
    retained[i] = True
    return retained


class Ridge:
    """Ridge regression for every arm: the regression solver RS of the paper with linear models.

    Args:
        penalty: added to the diagonal of every arm's X'X.
    """

    def __init__(self, K: int, d: int, penalty: float = 10.0):
        self.V = np.tile(penalty * np.eye(d), (K, 1, 1))
        self.u = np.zeros((K, d))

    @property
    def theta(self) -> np.ndarray:
        """Estimates [K, d]."""
        return np.linalg.solve(self.V, self.u[:, :, None])[:, :, 0]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted reward of every arm [K]: x'theta_j, clipped to [0, 1].

        Reading: the clip is ours, since rewards lie in [0, 1].
        """
        predictions: np.ndarray = np.clip(self.theta @ x, 0.0, 1.0)
        return predictions

    def feed(self, j: int, x: np.ndarray, target: float) -> None:
        """Add the row x [d] with the value `target` to the regression of arm j."""
        self.V[j] += np.outer(x, x)
        self.u[j] += target * x


class PlainCabsC:
    """The policy of Algorithm 1 (CABS-C).

    `policy` solves the exploration program. `update` lets the played arm learn from its reward and the arm's
    neighbours in the sampled graph from their surrogates.
    """

    def __init__(self, K: int, d: int, gamma: float = 4.0, kappa: float = 1.5):
        self.rs = Ridge(K, d)
        self.gamma = gamma
        self.kappa = kappa
        # line 3
        self.n = np.zeros(K)
        self.b = np.zeros(K)

    def policy(self, x: np.ndarray, A: np.ndarray, E: np.ndarray) -> np.ndarray:
        """Compute p [K] (lines 7 and 8)."""
        return exploration(self.rs.predict(x), A * E, self.gamma)

    def update(
        self, x: np.ndarray, A: np.ndarray, p: np.ndarray, i: int, r: float, s: np.ndarray, delta: np.ndarray
    ) -> None:
        """Apply lines 11 to 16 to the neighbours of the played arm, which is one of them.

        The mean bias b_j of the surrogates of every neighbour j is updated. Every neighbour that `keeps`
        retains then adds a row to its regression: the played arm its reward over p_i, another arm its
        surrogate less the bias before the update, over the probability (A'p)_j that an arm with an edge to j
        is played. Probabilities below `LEAST_P` count as `LEAST_P`.

        Args:
            p: distribution from which arm i was drawn. s: surrogates [K] of line 10. delta: the deltas [K]
                from which these surrogates were made.
        """
        theta = self.rs.theta
        retained = keeps(delta, i, self.kappa)
        for j in map(int, np.flatnonzero(A[i])):
            debiased = s[j] - self.b[j]  # line 11
            self.n[j] += 1.0  # line 12; line 13: the other arms keep their n and b
            self.b[j] += (s[j] - x @ theta[j] - self.b[j]) / self.n[j]
            if j == i:
                target = r / max(p[i], LEAST_P)  # line 14
            else:
                target = debiased / max(A[:, j] @ p, LEAST_P)  # line 15
            if retained[j]:  # reading: the IQR rule limits the rows that are learnt, not the bias of line 12
                self.rs.feed(j, x, target)  # line 16


class SquareCB:
    """The policy SquareCB with mu = K (paper, appendix; Foster and Rakhlin 2020)."""

    def __init__(self, K: int, d: int, gamma: float = 4.0):
        self.rs = Ridge(K, d)
        self.gamma = gamma
        self.K = K

    def policy(self, x: np.ndarray) -> np.ndarray:
        """Compute p [K]: 1 / (K + gamma (max f - f_j)) for every arm but the best one, which has the rest.

        f are the predicted rewards [K] for context x.
        """
        f = self.rs.predict(x)
        p: np.ndarray = 1.0 / (self.K + self.gamma * (f.max() - f))
        best = int(f.argmax())
        p[best] = 1.0 - np.delete(p, best).sum()
        return p

    def update(self, x: np.ndarray, i: int, r: float) -> None:
        """Learn the reward of the played arm."""
        self.rs.feed(i, x, r)


class PlainCabsD:
    """The policy of Algorithm 2 (CABS-D): a mixture of expert 1, SquareCB, and expert 2, CABS-C.

    Each expert has L weights, one for each value of the grid. All 2 L weights are scaled to the sum 1, and an
    expert's share of the mixture is the sum of its own weights.

    Args:
        grid: Gamma [L], the numbers that are added to the probabilities by which losses are divided. Each is
            twice the one before (line 1). Reading: the first is 1 / sqrt(K T).
    """

    def __init__(self, K: int, d: int, grid: np.ndarray):
        self.experts = (SquareCB(K, d), PlainCabsC(K, d))
        self.grid = grid
        # line 4
        self.w = np.ones((2, len(grid)))
        self.Delta = 0.0

    def policies(self, x: np.ndarray, A: np.ndarray, E: np.ndarray) -> np.ndarray:
        """Compute p_m [2, K] of both experts (line 8)."""
        return np.array([self.experts[0].policy(x), self.experts[1].policy(x, A, E)])

    def mixture(self, p: np.ndarray) -> np.ndarray:
        """Compute q [K] (line 9)."""
        q: np.ndarray = (self.w / self.w.sum()).sum(axis=1) @ p
        return q

    def update(
        self, x: np.ndarray, A: np.ndarray, p: np.ndarray, i: int, r: float, s: np.ndarray, delta: np.ndarray
    ) -> None:
        """Apply lines 12 to 17, after arm i was drawn from q.

        Both experts learn. Then their weights are multiplied by exp(-eta * estimated loss). The loss of
        SquareCB is estimated from the reward of arm i, that of CABS-C also from the surrogates of arm i's
        neighbours.

        Args:
            p: distributions of both experts [2, K], from `policies`; q is their `mixture`.
        """
        mu = self.w / self.w.sum()
        q = self.mixture(p)
        self.experts[0].update(x, i, r)  # line 12
        self.experts[1].update(x, A, p[1], i, r, s, delta)  # reading: importance weights of CABS-C's own p
        loss = 1.0 - s  # line 13
        loss[i] = 1.0 - r
        estimates = np.empty_like(self.w)
        for g, gamma in enumerate(self.grid):  # line 14
            estimates[0, g] = loss[i] * p[0, i] / (q[i] + gamma)
            estimates[1, g] = sum(loss[j] * p[1, j] / (A[:, j] @ q + gamma) for j in np.flatnonzero(A[i]))
        M = self.w.size
        eta = min(self.grid.min(), math.sqrt(math.log(M) / (1.0 + self.Delta)))  # line 15
        self.Delta += float((mu * estimates**2).sum())  # line 16
        self.w *= np.exp(-eta * estimates)  # line 17
