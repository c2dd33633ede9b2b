"""Contextual bandits of other packages, driven round by round: select, observe, update. For benchmarks only.

Each `*_peer(K, d, ...)` returns a function (x, reward_of) -> arm, where reward_of(arm) is the reward in [0,
1].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Round = Callable[[np.ndarray, Callable[[int], float]], int]


class NumpyRidge:
    """Ridge regressions in plain NumPy: stacked inverses, rank-one updates of the played arm."""

    def __init__(self, K: int, d: int):
        self.inverse = np.tile(np.eye(d) / 10.0, (K, 1, 1))
        self.theta = np.zeros((K, d))

    def update(self, arm: int, x: np.ndarray, reward: float) -> None:
        """Update the arm by the formula of Sherman and Morrison."""
        u = self.inverse[arm] @ x
        scale = 1.0 / (1.0 + x @ u)
        self.theta[arm] += u * (scale * (reward - self.theta[arm] @ x))
        self.inverse[arm] -= np.outer(u, u * scale)


def numpy_peer(
    kind: str, K: int, d: int, alpha: float = 0.4, gamma: float = 64.0, decimals: int | None = None
) -> Round:
    """Return epsilon_greedy, square_cb or lin_ucb in plain NumPy.

    Args:
        kind: name of the policy.
        K: number of arms.
        d: number of features.
        alpha: width of the bounds of lin_ucb.
        gamma: exploration of square_cb.
        decimals: digits that scores of lin_ucb are rounded to before the argmax. Arms that were never played
            tie exactly in theory, and NumPy's last bit decides between them; rounding gives the tie to the
            first arm.
    """
    model = NumpyRidge(K, d)
    rng = np.random.default_rng(0)
    state = {"t": 0}

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        mu = model.theta @ x
        if kind == "lin_ucb":
            width = (model.inverse @ x) @ x
            scores = mu + alpha * np.sqrt(width)
            arm = int(np.argmax(scores if decimals is None else np.round(scores, decimals)))
        elif kind == "epsilon_greedy":
            epsilon = max(0.01, 0.1 / (1 + 0.001 * state["t"]))
            arm = int(rng.integers(K)) if rng.random() < epsilon else int(np.argmax(mu))
        else:
            mu = np.clip(mu, 0, 1)
            best = int(np.argmax(mu))
            p = 1.0 / (K + gamma * np.sqrt(state["t"] + 1) * (mu[best] - mu))
            p[best] = 0.0
            p[best] = 1.0 - p.sum()
            arm = int(np.searchsorted(np.cumsum(p), rng.random()))
        state["t"] += 1
        model.update(arm, x, reward_of(arm))
        return arm

    return play


def vowpal_peer(kind: str, K: int, d: int) -> Round:
    """Return Vowpal Wabbit's --squarecb or --epsilon, driven by its text format."""
    import vowpalwabbit

    explore = "--squarecb" if kind == "square_cb" else "--epsilon 0.1"
    model = vowpalwabbit.Workspace(f"--cb_explore {K} {explore} --quiet -b 18 --random_seed 1")
    rng = np.random.default_rng(0)

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        features = " ".join(f"{i}:{v:.6g}" for i, v in enumerate(x))
        p = np.asarray(model.predict(f"| {features}"))
        arm = int(np.searchsorted(np.cumsum(p / p.sum()), rng.random()))
        arm = min(arm, K - 1)
        model.learn(f"{arm + 1}:{1.0 - reward_of(arm):.6g}:{p[arm]:.6g} | {features}")
        return arm

    return play


def mabwiser_peer(kind: str, K: int, d: int) -> Round:
    """Return MABWiser's LinUCB or LinTS."""
    from mabwiser.mab import MAB, LearningPolicy

    learner = LearningPolicy.LinUCB(alpha=0.4, l2_lambda=10.0)
    if kind == "lin_ts":
        learner = LearningPolicy.LinTS(alpha=0.1, l2_lambda=10.0)
    model = MAB(arms=list(range(K)), learning_policy=learner, seed=1)
    model.fit(list(range(K)), [0.0] * K, np.zeros((K, d)))

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        arm: int = model.predict([x])
        model.partial_fit([arm], [reward_of(arm)], [x])
        return arm

    return play


def contextualbandits_peer(kind: str, K: int, d: int) -> Round:
    """Return LinUCB or LinTS of contextualbandits."""
    import contextualbandits.online as online

    if kind == "lin_ucb":
        model = online.LinUCB(
            K, alpha=0.4, lambda_=10.0, fit_intercept=False, beta_prior=None, random_state=1
        )
    else:
        model = online.LinTS(K, v_sq=0.01, lambda_=10.0, fit_intercept=False, beta_prior=None, random_state=1)

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        arm = int(np.asarray(model.predict(x[None]))[0])
        model.partial_fit(x[None], np.array([arm]), np.array([reward_of(arm)]))
        return arm

    return play


def coba_peer(kind: str, K: int, d: int) -> Round:
    """Return coba's learners over Vowpal Wabbit."""
    from coba.learners import VowpalEpsilonLearner, VowpalSquarecbLearner

    model = VowpalSquarecbLearner() if kind == "square_cb" else VowpalEpsilonLearner(epsilon=0.1)
    actions = list(range(K))

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        arm: int
        context = tuple(x.tolist())
        arm, probability, extra = model.predict(context, actions)
        model.learn(context, arm, reward_of(arm), probability, **extra)
        return arm

    return play


def paretobandit_peer(kind: str, K: int, d: int) -> Round:
    """Return ParetoBandit's LinUCB with forgetting, cold: select, mark as selected, update."""
    from pareto_bandit.policy import DisjointLinUCBPolicy

    names = [str(j) for j in range(K)]
    model = DisjointLinUCBPolicy(names, dim=d, alpha=0.05, forgetting_factor=0.997, seed=0)

    def play(x: np.ndarray, reward_of: Callable[[int], float]) -> int:
        name, _ = model.select_arm(x)
        model.mark_selected(name)
        model.update(name, x, float(reward_of(int(name))), advance_time=False)
        return int(name)

    return play


#: policy -> {peer: maker}
PEERS: dict[str, dict[str, Callable[..., Round]]] = {
    "epsilon_greedy": {"vowpal": vowpal_peer, "coba": coba_peer},
    "square_cb": {"vowpal": vowpal_peer, "coba": coba_peer},
    "lin_ucb": {"mabwiser": mabwiser_peer, "contextualbandits": contextualbandits_peer},
    "lin_ts": {"mabwiser": mabwiser_peer, "contextualbandits": contextualbandits_peer},
    "pareto_bandit": {"paretobandit": paretobandit_peer},
}
