"""A bandit on which the theorems' assumptions hold, or fail by as much as one says, and CABS-C on it.

A realisable linear bandit: f*(x, j) = 1/2 + gap u.theta_j with unit vectors u (a new one each round)
and theta_j (one per arm), x = [u, 1] / sqrt 2, Bernoulli rewards; surrogates s_j = f*_j + b_j + xi_j,
|xi_j| <= eps, b_j = 0 unless said; a fixed feedback graph of disjoint cliques of m + 1 arms,
so that its independence number is alpha = K / (m + 1); gamma = max(4, sqrt(alpha T / (d ln(T / d)))),
the theorem's; ridge regression (penalty 1) on plain targets unless said otherwise. d counts the entries of u.
"""

import math

import numpy as np

from cabs_core.algorithms.regression.ridge import dot, observe, start_inverse
from cabs_core.algorithms.solver.api import make_workspace
from cabs_core.algorithms.solver.workspace import solve_kernel
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.threads import one_blas_thread

PLAIN = 0
PRINTED = 1
PRINTED_BIAS = 2
REALISED_BIAS = 3
#: plays that the realised bias is shrunk by, as in preset `practical`
BIAS_PRIOR = 20.0
LEAST_P = 1e-3


def cliques(arms: int, size: int) -> np.ndarray:
    """Return the feedback graph `[K, K]` of disjoint cliques.

    Args:
        arms: number of arms, K.
        size: arms of a clique; it must divide K.

    Raises:
        ValueError: the size does not divide the number of arms.
    """
    if arms % size:
        raise ValueError(f"{arms} arms cannot be cut into cliques of {size}")
    return np.kron(np.eye(arms // size), np.ones((size, size)))


def world(seed: int, rounds: int, arms: int, dim: int) -> tuple[np.ndarray, ...]:
    """Return contexts `[T, d + 1]`, f* `[T, K]`, rewards `[T, K]` of 0 and 1, and uniforms `[T]` of a
    repetition.
    """
    rng = np.random.default_rng([seed, 31])
    unit = [
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (rng.normal(size=(n, dim)) for n in (arms, rounds))
    ]
    truth = 0.5 + 0.45 * unit[1] @ unit[0].T
    x = np.hstack([unit[1], np.ones((rounds, 1))]) / math.sqrt(2.0)
    return x, truth, (rng.random(truth.shape) < truth).astype(float), rng.random(rounds)


def noise(seed: int, x: np.ndarray, arms: int, eps: float, fixed: bool) -> np.ndarray:
    """Return noise in [-eps, eps], `[T, K]`: fresh each round, or a fixed non-linear function of the
    context.
    """
    rng = np.random.default_rng([seed, 32])
    if not fixed:
        return rng.uniform(-eps, eps, size=(len(x), arms))
    return eps * np.sign(np.sin(6.0 * x @ rng.normal(size=(x.shape[1], arms))))


@kernel
def play(
    x: np.ndarray,
    truth: np.ndarray,
    rewards: np.ndarray,
    surrogates: np.ndarray,
    uniforms: np.ndarray,
    graph: np.ndarray,
    gamma: float,
    targets: int,
    tol: float,
    workspace: np.ndarray,
    inverse: np.ndarray,
    theta: np.ndarray,
    regret: np.ndarray,
    squared: np.ndarray,
) -> None:
    """CABS-C on plain, printed or bias-corrected targets.

    Printed bias: of a revealed arm (the played one, too), the mean of surrogate less own prediction so far.
    Realised: of a played arm, the sum of surrogate less reward, over the number of plays and BIAS_PRIOR.

    Fills `regret` and `squared`, the squared error of the revealed arms, by round [T].
    """
    rounds, k = truth.shape
    losses = np.empty(k)
    p = np.empty(k)
    gain = np.empty(x.shape[1])
    seen = np.zeros(k)
    bias = np.zeros(k)
    predicted = np.empty(k)
    for t in range(rounds):
        for j in range(k):
            predicted[j] = min(1.0, max(0.0, dot(theta[j], x[t])))
            losses[j] = 1.0 - predicted[j]
        solve_kernel(losses, graph, gamma, tol, workspace, p)
        arm = k - 1
        left = uniforms[t]
        for j in range(k):
            left -= p[j]
            if left < 0.0:
                arm = j
                break
        best = 0.0
        for j in range(k):
            best = max(best, truth[t, j])
        regret[t] = best - truth[t, arm]
        for j in range(k):
            if graph[arm, j] == 0.0:
                continue
            error = truth[t, j] - predicted[j]
            squared[t] += error * error
            target = rewards[t, j] if j == arm else surrogates[t, j]
            if targets == 2:  # lines 11 and 12: what is subtracted was estimated before this round
                if j != arm:
                    target -= bias[j]
                seen[j] += 1.0
                bias[j] += (surrogates[t, j] - dot(theta[j], x[t]) - bias[j]) / seen[j]
            if targets == 3 and j != arm:
                target -= bias[j] / (seen[j] + BIAS_PRIOR)
            if targets == 1:
                watched = 0.0
                for i in range(k):
                    watched += graph[i, j] * p[i]
                target /= max(LEAST_P, p[j] if j == arm else watched)
            observe(inverse[j], theta[j], x[t], target, 1.0, gain)
        if targets == 3:
            seen[arm] += 1.0
            bias[arm] += surrogates[t, arm] - rewards[t, arm]


def exploration(alpha: float, rounds: int, dim: int) -> float:
    """Return the gamma of the theorem for a linear oracle."""
    return max(4.0, math.sqrt(alpha * rounds / (dim * math.log(rounds / dim))))


def regret_of(
    seed: int,
    rounds: int,
    arms: int,
    dim: int,
    size: int,
    eps: float = 0.0,
    fixed: bool = False,
    targets: int = PLAIN,
    bias: float = 0.0,
) -> tuple[float, float]:
    """Return the regret and RegSq of one repetition.

    Cliques have `size` arms, and biases are uniform in [-bias, bias].
    """
    x, truth, rewards, uniforms = world(seed, rounds, arms, dim)
    biases = np.random.default_rng([seed, 33]).uniform(-bias, bias, size=arms)
    surrogates = truth + biases + noise(seed, x, arms, eps, fixed)
    regret = np.zeros(rounds)
    squared = np.zeros(rounds)
    with one_blas_thread():
        play(
            x,
            truth,
            rewards,
            surrogates,
            uniforms,
            cliques(arms, size),
            exploration(arms / size, rounds, dim),
            targets,
            1e-6,
            make_workspace(arms),
            start_inverse(arms, dim + 1, 1.0),
            np.zeros((arms, dim + 1)),
            regret,
            squared,
        )
    return float(regret.sum()), float(squared.sum())
