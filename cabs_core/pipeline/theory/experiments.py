"""What the regret theorems of the paper predict, measured where their assumptions hold and where they do not.

A realisable linear bandit: f*(x, j) = 1/2 + gap u.theta_j with unit vectors u (a new one each round)
and theta_j (one per arm), x = [u, 1] / sqrt 2, Bernoulli rewards; surrogates s_j = f*_j + b_j + xi_j,
|xi_j| <= eps, b_j = 0 unless said; a fixed feedback graph of disjoint cliques of m + 1 arms,
so that its independence number is alpha = K / (m + 1); gamma = max(4, sqrt(alpha T / (d ln(T / d)))),
the theorem's; ridge regression (penalty 1) on plain targets unless said otherwise. d counts the entries of u.

    E1  regret in alpha, T, d and K (theorem CABS-C, corollary for m-feedback)
    E2  what noise in the surrogates costs: fresh each round (as the paper's fourth assumption, its model of
        side observations, has it), fixed in x (outside it); and what a bias of every arm costs,
        under three estimators of it
    E3  RegSq of Assumption 2 under plain and printed targets; the price of CABS-D over its better expert
        (both experts explore with gamma 4 sqrt(t), 512 at T = 16,384; the theorem's gamma there is 22)
    E4  Algorithm 2 with its printed loss, which believes the surrogates, beside the realised one, where one
        bad arm is flattered: within the noise model of the fourth assumption

Regret is against f*, not realised rewards. Errors are over independent repetitions (seeds);
slopes are least squares in logarithms, one a repetition, with 95 % t intervals.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from cabs_core.algorithms.problem import ReplayProblem
from cabs_core.algorithms.regression import dot, observe, start_inverse
from cabs_core.algorithms.solver import make_workspace, solve_kernel
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.threads import one_blas_thread
from cabs_core.evaluation.replay import replay
from cabs_core.pipeline.artifacts import ArtifactStore, Made, Options
from cabs_core.pipeline.artifacts.materialize import produce
from cabs_core.pipeline.artifacts.provenance import Recipe
from cabs_core.pipeline.theory.page import fill, markdown
from cabs_core.pipeline.theory.version import theory_code_version

#: where the artifact lies
THEORY = ("theory",)
PLAIN, PRINTED, PRINTED_BIAS, REALISED_BIAS = 0, 1, 2, 3
#: plays that the realised bias is shrunk by, as in preset `practical`
BIAS_PRIOR = 20.0
LEAST_P = 1e-3


def cliques(arms: int, size: int) -> np.ndarray:
    """Feedback graph [K, K] of disjoint cliques of `size` arms; size must divide arms.

    Raises:
        ValueError: it does not.
    """
    if arms % size:
        raise ValueError(f"{arms} arms cannot be cut into cliques of {size}")
    return np.kron(np.eye(arms // size), np.ones((size, size)))


def world(seed: int, rounds: int, arms: int, dim: int) -> tuple[np.ndarray, ...]:
    """(contexts [T, d + 1], f* [T, K], rewards [T, K] of 0 and 1, uniforms [T]) of a repetition."""
    rng = np.random.default_rng([seed, 31])
    unit = [
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (rng.normal(size=(n, dim)) for n in (arms, rounds))
    ]
    truth = 0.5 + 0.45 * unit[1] @ unit[0].T
    x = np.hstack([unit[1], np.ones((rounds, 1))]) / math.sqrt(2.0)
    return x, truth, (rng.random(truth.shape) < truth).astype(float), rng.random(rounds)


def noise(seed: int, x: np.ndarray, arms: int, eps: float, fixed: bool) -> np.ndarray:
    """xi [T, K] in [-eps, eps]: fresh each round, or a fixed function of the context that is not linear."""
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
    losses, p, gain = np.empty(k), np.empty(k), np.empty(x.shape[1])
    seen, bias, predicted = np.zeros(k), np.zeros(k), np.empty(k)
    for t in range(rounds):
        for j in range(k):
            predicted[j] = min(1.0, max(0.0, dot(theta[j], x[t])))
            losses[j] = 1.0 - predicted[j]
        solve_kernel(losses, graph, gamma, tol, workspace, p)
        arm, left = k - 1, uniforms[t]
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
    """gamma of the theorem for a linear oracle."""
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
    """(regret, RegSq) of one repetition with cliques of `size` arms,
    whose biases are uniform in [-bias, bias]."""
    x, truth, rewards, uniforms = world(seed, rounds, arms, dim)
    biases = np.random.default_rng([seed, 33]).uniform(-bias, bias, size=arms)
    surrogates = truth + biases + noise(seed, x, arms, eps, fixed)
    regret, squared = np.zeros(rounds), np.zeros(rounds)
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


# -- statistics ----------------------------------------------------------------------------------------------


def interval(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Mean and 95 % t interval over repetitions."""
    v = np.asarray(values, dtype=np.float64)
    half = float(stdtrit(len(v) - 1, 0.975) * v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else math.nan
    return {"mean": float(v.mean()), "low": float(v.mean() - half), "high": float(v.mean() + half)}


def slope(xs: Sequence[float], ys: np.ndarray) -> dict[str, float]:
    """Slope of log y in log x, one a repetition; ys [repetitions, len(xs)], values below 1 count as 1."""
    logs = np.log(np.asarray(xs, dtype=np.float64))
    centred = logs - logs.mean()
    each = (np.log(np.maximum(ys, 1.0)) @ centred) / (centred @ centred)
    return interval(each)


def _series(name: str, xs: Sequence[float], ys: np.ndarray) -> dict[str, Any]:
    return {"name": name, "x": [float(v) for v in xs], "points": [interval(y) for y in ys.T]}


# -- experiments ---------------------------------------------------------------------------------------------


def rate(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """E1: regret in alpha at one T, in T at three clique sizes, and in d and K at one alpha."""
    arms, dim, rounds = (8, 4, 1024) if quick else (24, 6, 8192)
    sizes = [s for s in range(1, arms + 1) if arms % s == 0]
    alphas = [arms / s for s in sizes]
    by_alpha = np.array([[regret_of(s, rounds, arms, dim, size)[0] for size in sizes] for s in seeds])
    scale = np.array([math.sqrt(a * rounds * dim * math.log(rounds / dim)) for a in alphas])
    forced = np.array([(a - 1.0) * rounds / exploration(a, rounds, dim) for a in alphas])
    dims, many = ([2, 4, 8], [4, 8]) if quick else ([2, 4, 8, 16], [8, 16, 24, 32])
    in_dim = np.array([[regret_of(s, rounds, arms, d, arms // 4)[0] for d in dims] for s in seeds])
    in_arms = np.array([[regret_of(s, rounds, k, dim, k // 4)[0] for k in many] for s in seeds])
    horizons = [512, 1024, 2048] if quick else [2048, 4096, 8192, 16384, 32768]
    in_time = {
        size: np.array([[regret_of(s, t, 8, 4, size)[0] for t in horizons] for s in seeds])
        for size in (1, 4, 8)
    }
    return {
        "alpha": {
            "setting": f"K = {arms}, d = {dim}, T = {rounds}",
            "series": [_series("regret", alphas, by_alpha)],
            "slope": slope(alphas, by_alpha),
            "ratio": [interval(column) for column in (by_alpha / scale).T],
            "forced": [
                interval(column) for column in by_alpha[:, forced > 0.0].T / forced[forced > 0.0][:, None]
            ],
        },
        "dim": {
            "setting": f"K = {arms}, alpha = 4, T = {rounds}",
            "series": [_series("regret", dims, in_dim)],
            "slope": slope(dims, in_dim),
        },
        "arms": {
            "setting": f"alpha = 4, d = {dim}, T = {rounds}",
            "series": [_series("regret", many, in_arms)],
            "slope": slope(many, in_arms),
        },
        "time": {
            "setting": "K = 8, d = 4",
            "series": [_series(f"alpha = {8 // size}", horizons, v) for size, v in in_time.items()],
            "slopes": {f"alpha = {8 // size}": slope(horizons, v) for size, v in in_time.items()},
        },
    }


def surrogate_noise(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """E2: regret at some eps less regret without noise, fresh and fixed noise;
    regret under biases, by estimator."""
    arms, dim, rounds, size = (8, 4, 1024, 4) if quick else (24, 6, 8192, 6)
    levels = [0.1, 0.2, 0.4, 0.8]
    clean = np.array([regret_of(s, rounds, arms, dim, size)[0] for s in seeds])
    kinds = {"fresh each round": (False, PLAIN), "fixed in x": (True, PLAIN)}
    series = []
    for name, (fixed, targets) in kinds.items():
        values = np.array(
            [[regret_of(s, rounds, arms, dim, size, e, fixed, targets)[0] for e in levels] for s in seeds]
        )
        series.append(_series(name, levels, values - clean[:, None]))
    estimated = np.array([regret_of(s, rounds, arms, dim, size, 0.0, False, PRINTED_BIAS) for s in seeds])
    plain = np.array([regret_of(s, rounds, arms, dim, size) for s in seeds])
    biases = [0.0, 0.1, 0.2, 0.4]
    estimators = {
        "plain targets": PLAIN,
        "printed bias": PRINTED_BIAS,
        "realised bias (preset practical)": REALISED_BIAS,
    }
    biased = [
        _series(
            name,
            biases,
            np.array(
                [
                    [regret_of(s, rounds, arms, dim, size, targets=targets, bias=b)[0] for b in biases]
                    for s in seeds
                ]
            ),
        )
        for name, targets in estimators.items()
    ]
    return {
        "setting": f"K = {arms}, d = {dim}, T = {rounds}, m = {size - 1}",
        "series": series,
        "without noise": interval(clean),
        "bound": [e * math.sqrt(arms * arms * rounds / size) for e in levels],
        "printed bias": {
            "regret": interval(estimated[:, 0]),
            "RegSq": interval(estimated[:, 1]),
            "RegSq of plain targets": interval(plain[:, 1]),
        },
        "bias": {"setting": f"K = {arms}, d = {dim}, T = {rounds}, m = {size - 1}", "series": biased},
    }


def square_error(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """E3, first part: RegSq(T) of Assumption 2 under plain and printed (r / p) targets."""
    arms, dim, size = (8, 4, 4) if quick else (24, 6, 6)
    horizons = [256, 512, 1024] if quick else [1024, 4096, 16384]
    series, slopes = [], {}
    for name, targets in (("plain targets", PLAIN), ("printed targets r / p", PRINTED)):
        values = np.array(
            [[regret_of(s, t, arms, dim, size, targets=targets)[1] for t in horizons] for s in seeds]
        )
        series.append(_series(name, horizons, values))
        slopes[name] = slope(horizons, values)
    return {"setting": f"K = {arms}, d = {dim}, m = {size - 1}", "series": series, "slopes": slopes}


def oracle_problem(seed: int, x: np.ndarray, rewards: np.ndarray, surrogates: np.ndarray) -> ReplayProblem:
    """A replay problem without costs.

    Args:
        x: contexts [T, d + 1].
        rewards: [T, K] of 0 and 1.
        surrogates: [T, K], what the oracle tells, whatever was played.
    """
    rounds, arms = rewards.shape
    return ReplayProblem(
        arms=[f"arm {j}" for j in range(arms)],
        query_ids=np.array([str(i) for i in range(rounds)]),
        tasks=np.array(["all"] * rounds),
        contexts=4.0 * x,
        scores=rewards,
        costs=np.zeros_like(rewards),
        predicted_scores=surrogates,
        predicted_costs=np.zeros_like(rewards),
        surrogate_deltas=((surrogates[:, None, :] - rewards[:, :, None]) * (1.0 - np.eye(arms))).astype(
            np.float32
        ),
        offline_contexts=np.zeros((0, x.shape[1])),
        offline_scores=np.zeros((0, arms)),
        offline_costs=np.zeros((0, arms)),
        name="test",
        pool=f"theory-{seed}",
        metadata={"binary_share": 1.0},
    )


#: SquareCB and CABS-C as experts: plain targets, every arm revealed, nothing de-biased,
#: no discount on surrogates
_GRAPH_EXPERT = {"graph": "all", "bias": "none", "gamma": 4.0, "gamma_power": 0.5}
_BANDIT_EXPERT = {"gamma": 4.0, "gamma_power": 0.5}
_EXPERTS = (("square_cb", _BANDIT_EXPERT), ("cabs_c", _GRAPH_EXPERT))
#: Algorithm 2's learning rate and grid, line 15
_PRINTED_RATE = {"experts": _EXPERTS, "eta": None, "ix_copies": 8}
_ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "SquareCB": ("square_cb", _BANDIT_EXPERT),
    "CABS-C": ("cabs_c_linear", _GRAPH_EXPERT),
}


def _regret_and_weight(
    problem: ReplayProblem, truth: np.ndarray, policy: str, options: dict[str, Any]
) -> tuple[float, float]:
    """(regret against f* of a replay, CABS-C's weight at its end; nan without a mixture)."""
    result = replay(problem, policy, rho=0.0, trials=1, options=options, threads=1)
    means = truth[result.order[0]]
    regret = float((means.max(axis=1) - np.take_along_axis(means, result.actions[0][:, None], 1)[:, 0]).sum())
    return regret, math.nan if result.meta_weights is None else float(result.meta_weights[0, -1, 1])


def best_of_both(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """E3, second part: regret of CABS-D less that of its better expert alone,
    with a true and with a reversed oracle."""
    horizons = [256, 512] if quick else [2048, 4096, 8192, 16384]
    out: dict[str, Any] = {"setting": "K = 8, d = 4", "series": [], "slopes": {}, "weights": {}}
    mixtures: dict[str, dict[str, Any]] = {"printed": _PRINTED_RATE, ".03": {"experts": _EXPERTS}}
    runs = {**_ALONE, **{name: ("cabs_d_linear", options) for name, options in mixtures.items()}}
    for oracle, good in (("true oracle", True), ("reversed oracle", False)):
        regret = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
        weight = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
        for i, seed in enumerate(seeds):
            for h, rounds in enumerate(horizons):
                x, truth, rewards, _ = world(seed, rounds, 8, 4)
                problem = oracle_problem(seed, x, rewards, truth if good else 1.0 - truth)
                for name, (policy, options) in runs.items():
                    regret[name][i, h], weight[name][i, h] = _regret_and_weight(
                        problem, truth, policy, options
                    )
        better = np.minimum(regret["SquareCB"], regret["CABS-C"])
        for name in mixtures:
            label = f"{oracle}, eta {name}"
            out["series"].append(_series(label, horizons, regret[name] - better))
            out["slopes"][label] = slope(horizons, regret[name] - better)
            out["weights"][label] = interval(weight[name][:, -1])
    return out


def flattered_world(seed: int, rounds: int) -> tuple[np.ndarray, ...]:
    """(contexts, f* [T, 8], rewards, surrogates): arm 0 is .15 worse than the others are on average,
    and its surrogates say .5 more than the truth; the other arms' say the truth.
    All lie in [0, 1], so nothing is clipped."""
    x, truth, _, _ = world(seed, rounds, 8, 4)
    truth = 0.4 + (truth - 0.5) * (0.2 / 0.45)
    truth[:, 0] -= 0.15
    rewards = (np.random.default_rng([seed, 34]).random(truth.shape) < truth).astype(float)
    surrogates = truth.copy()
    surrogates[:, 0] += 0.5
    return x, truth, rewards, surrogates


def printed_loss(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """E4: regret of CABS-D with the loss of line 14 and with the realised one, at two rates,
    beside its experts alone."""
    horizons = [256, 512] if quick else [2048, 4096, 8192, 16384]
    mixtures: dict[str, dict[str, Any]] = {
        f"CABS-D, {loss} loss, eta {name}": {**rate, "meta_loss": kind}
        for name, rate in (("printed", _PRINTED_RATE), (".03", {"experts": _EXPERTS}))
        for loss, kind in (("realised", "realised"), ("printed", "literal"))
    }
    runs = {**_ALONE, **{name: ("cabs_d_linear", options) for name, options in mixtures.items()}}
    regret = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
    weight = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
    for i, seed in enumerate(seeds):
        for h, rounds in enumerate(horizons):
            x, truth, rewards, surrogates = flattered_world(seed, rounds)
            problem = oracle_problem(seed, x, rewards, surrogates)
            for name, (policy, options) in runs.items():
                regret[name][i, h], weight[name][i, h] = _regret_and_weight(problem, truth, policy, options)
    return {
        "setting": "K = 8, d = 4, one bad arm flattered by .5",
        "series": [_series(name, horizons, values) for name, values in regret.items()],
        "slopes": {name: slope(horizons, values) for name, values in regret.items()},
        "weights": {name: interval(weight[name][:, -1]) for name in mixtures},
    }


EXPERIMENTS = {
    "rate": rate,
    "noise": surrogate_noise,
    "square error": square_error,
    "best of both": best_of_both,
    "printed loss": printed_loss,
}


def run(seeds: int, quick: bool = False) -> dict[str, Any]:
    """All experiments with this many repetitions, at least 2; quick: at small sizes, to see that they run."""
    return {name: experiment(range(seeds), quick) for name, experiment in EXPERIMENTS.items()}


def make_theory(store: ArtifactStore, seeds: int, options: Options) -> Made:
    """The page as an artifact, made again only if code, repetitions or a file changed, or if forced."""
    recipe = Recipe("theory", "", theory_code_version(), {"seeds": seeds}, {})
    record = store.record(THEORY)
    if record and not (options.force or recipe.outdated(record) or store.damage(THEORY, record)):
        return Made(record, store.folder(THEORY), True)

    def work(folder: Path) -> dict[str, Any]:
        figures = run(seeds)
        images = fill(figures, folder)
        return {
            "_markdown": markdown(figures),
            "_images": {key: base64.b64encode(data).decode() for key, data in images.items()},
        }

    record = produce(store, THEORY, recipe, work, options.run_id)
    return Made(record, store.produced(THEORY, record), False)
