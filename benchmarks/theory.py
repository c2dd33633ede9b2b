"""What do the regret theorems of the paper predict, where their assumptions hold and where they do not?

    python -m benchmarks.theory --seeds 10      # the figures of docs/paper.md, four minutes of processor time
    python -m benchmarks.theory --quick         # small sizes, to see that it runs

Everything is played on the bandit of `benchmarks.theory_bandit`:

    E1  regret in alpha, T, d and K (theorem CABS-C, corollary for m-feedback)
    E2  the cost of noise in the surrogates: fresh each round (the paper's fourth assumption, its model of
        side observations) and fixed in x (outside that assumption); and the cost of a bias of every arm,
        under three estimators of the bias
    E3  RegSq of Assumption 2 under plain and printed targets; the price of CABS-D over its better expert
        (both experts explore with gamma 4 sqrt(t), 512 at T = 16,384; the theorem's gamma there is 22)
    E4  Algorithm 2 with its printed loss, which believes the surrogates, beside the realised loss, where one
        bad arm is flattered: within the noise model of the fourth assumption

Regret is measured against f*, not against realised rewards. Errors are over independent repetitions (seeds).
Slopes are least squares in logarithms, one for each repetition, with 95 % t intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from benchmarks.script import Script, head, row, write_figures
from benchmarks.theory_bandit import (
    PLAIN,
    PRINTED,
    PRINTED_BIAS,
    REALISED_BIAS,
    exploration,
    regret_of,
    world,
)
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.evaluation.replay import replay


def interval(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return the mean and the 95 % t interval over repetitions."""
    v = np.asarray(values, dtype=np.float64)
    half = float(stdtrit(len(v) - 1, 0.975) * v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else math.nan
    return {"mean": float(v.mean()), "low": float(v.mean() - half), "high": float(v.mean() + half)}


def slope(xs: Sequence[float], ys: np.ndarray) -> dict[str, float]:
    """Return the slope of log y in log x, fitted per repetition, with its interval.

    Args:
        xs: values of x.
        ys: `[repetitions, len(xs)]`; values below 1 count as 1.
    """
    logs = np.log(np.asarray(xs, dtype=np.float64))
    centred = logs - logs.mean()
    each = (np.log(np.maximum(ys, 1.0)) @ centred) / (centred @ centred)
    return interval(each)


def _series(name: str, xs: Sequence[float], ys: np.ndarray) -> dict[str, Any]:
    """Return a series of means with intervals as JSON."""
    return {"name": name, "x": [float(v) for v in xs], "points": [interval(y) for y in ys.T]}


def _repeated(seeds: Sequence[int], settings: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return regret and RegSq, `[2, repetitions, settings]`.

    Args:
        seeds: seeds of the repetitions.
        settings: arguments of `regret_of`.
    """
    each = [[regret_of(seed, **setting) for setting in settings] for seed in seeds]
    return np.moveaxis(np.array(each), -1, 0)


def rate(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """Measure E1: regret in alpha at one T, in T at three clique sizes, and in d and K at one alpha."""
    arms, dim, rounds = (8, 4, 1024) if quick else (24, 6, 8192)
    at = {"rounds": rounds, "arms": arms, "dim": dim}
    sizes = [s for s in range(1, arms + 1) if arms % s == 0]
    alphas = [arms / s for s in sizes]
    by_alpha, _ = _repeated(seeds, [at | {"size": size} for size in sizes])
    scale = np.array([math.sqrt(a * rounds * dim * math.log(rounds / dim)) for a in alphas])
    forced = np.array([(a - 1.0) * rounds / exploration(a, rounds, dim) for a in alphas])
    dims, many = ([2, 4, 8], [4, 8]) if quick else ([2, 4, 8, 16], [8, 16, 24, 32])
    in_dim, _ = _repeated(seeds, [at | {"size": arms // 4, "dim": d} for d in dims])
    in_arms, _ = _repeated(seeds, [at | {"size": k // 4, "arms": k} for k in many])
    horizons = [512, 1024, 2048] if quick else [2048, 4096, 8192, 16384, 32768]
    in_time = {
        f"alpha = {8 // size}": _repeated(
            seeds, [{"rounds": t, "arms": 8, "dim": 4, "size": size} for t in horizons]
        )[0]
        for size in (1, 4, 8)
    }
    return {
        "alpha": {
            **_measured(f"K = {arms}, d = {dim}, T = {rounds}", alphas, by_alpha),
            "ratio": [interval(column) for column in (by_alpha / scale).T],
            "forced": [
                interval(column) for column in by_alpha[:, forced > 0.0].T / forced[forced > 0.0][:, None]
            ],
        },
        "dim": _measured(f"K = {arms}, alpha = 4, T = {rounds}", dims, in_dim),
        "arms": _measured(f"alpha = 4, d = {dim}, T = {rounds}", many, in_arms),
        "time": {
            "setting": "K = 8, d = 4",
            "series": [_series(name, horizons, values) for name, values in in_time.items()],
            "slopes": {name: slope(horizons, values) for name, values in in_time.items()},
        },
    }


def _measured(setting: str, xs: Sequence[float], regret: np.ndarray) -> dict[str, Any]:
    return {"setting": setting, "series": [_series("regret", xs, regret)], "slope": slope(xs, regret)}


def surrogate_noise(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """Measure E2: the regret that fresh and fixed noise add at some eps, and regret under biases, by
    estimator.
    """
    arms, dim, rounds, size = (8, 4, 1024, 4) if quick else (24, 6, 8192, 6)
    at = {"rounds": rounds, "arms": arms, "dim": dim, "size": size}
    setting = f"K = {arms}, d = {dim}, T = {rounds}, m = {size - 1}"
    levels = [0.1, 0.2, 0.4, 0.8]
    biases = [0.0, 0.1, 0.2, 0.4]
    plain, printed = np.moveaxis(_repeated(seeds, [at, at | {"targets": PRINTED_BIAS}]), -1, 0)
    noisy = {
        name: _repeated(seeds, [at | {"eps": e, "fixed": fixed} for e in levels])[0] - plain[0][:, None]
        for name, fixed in (("fresh each round", False), ("fixed in x", True))
    }
    estimators = {
        "plain targets": PLAIN,
        "printed bias": PRINTED_BIAS,
        "realised bias (preset practical)": REALISED_BIAS,
    }
    biased = {
        name: _repeated(seeds, [at | {"targets": targets, "bias": b} for b in biases])[0]
        for name, targets in estimators.items()
    }
    return {
        "setting": setting,
        "series": [_series(name, levels, values) for name, values in noisy.items()],
        "without noise": interval(plain[0]),
        "bound": [e * math.sqrt(arms * arms * rounds / size) for e in levels],
        "printed bias": {
            "regret": interval(printed[0]),
            "RegSq": interval(printed[1]),
            "RegSq of plain targets": interval(plain[1]),
        },
        "bias": {
            "setting": setting,
            "series": [_series(name, biases, values) for name, values in biased.items()],
        },
    }


def square_error(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """Measure the first part of E3: RegSq(T) of Assumption 2 under plain and printed (r / p) targets."""
    arms, dim, size = (8, 4, 4) if quick else (24, 6, 6)
    horizons = [256, 512, 1024] if quick else [1024, 4096, 16384]
    series = []
    slopes = {}
    for name, targets in (("plain targets", PLAIN), ("printed targets r / p", PRINTED)):
        at = {"arms": arms, "dim": dim, "size": size, "targets": targets}
        _, values = _repeated(seeds, [at | {"rounds": t} for t in horizons])
        series.append(_series(name, horizons, values))
        slopes[name] = slope(horizons, values)
    return {"setting": f"K = {arms}, d = {dim}, m = {size - 1}", "series": series, "slopes": slopes}


def oracle_problem(seed: int, x: np.ndarray, rewards: np.ndarray, surrogates: np.ndarray) -> ReplayProblem:
    """Return a replay problem without costs.

    Args:
        seed: seed of the order.
        x: contexts, `[T, d + 1]`.
        rewards: 0 or 1, `[T, K]`.
        surrogates: predictions of the oracle, whatever arm is played, `[T, K]`.
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
    """Return the regret of a replay against f*, and CABS-C's weight at its end, nan without a mixture."""
    result = replay(problem, policy, rho=0.0, trials=1, options=options, threads=1)
    means = truth[result.order[0]]
    regret = float((means.max(axis=1) - np.take_along_axis(means, result.actions[0][:, None], 1)[:, 0]).sum())
    return regret, math.nan if result.meta_weights is None else float(result.meta_weights[0, -1, 1])


def _replayed(
    seeds: Sequence[int],
    horizons: Sequence[int],
    mixtures: dict[str, dict[str, Any]],
    world_of: Callable[[int, int], tuple[np.ndarray, ...]],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return {name: regret `[repetitions, horizons]`} of experts and of mixtures of them, and CABS-C's
    weights.

    Args:
        seeds: seeds of the repetitions.
        horizons: numbers of rounds.
        mixtures: options of CABS-D.
        world_of: function of (seed, rounds) that returns contexts, f*, rewards and surrogates.
    """
    runs = {**_ALONE, **{name: ("cabs_d_linear", options) for name, options in mixtures.items()}}
    regret = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
    weight = {name: np.zeros((len(seeds), len(horizons))) for name in runs}
    for i, seed in enumerate(seeds):
        for h, rounds in enumerate(horizons):
            x, truth, rewards, surrogates = world_of(seed, rounds)
            problem = oracle_problem(seed, x, rewards, surrogates)
            for name, (policy, options) in runs.items():
                regret[name][i, h], weight[name][i, h] = _regret_and_weight(problem, truth, policy, options)
    return regret, weight


def _oracle_world(seed: int, rounds: int, good: bool) -> tuple[np.ndarray, ...]:
    """Return contexts, f* `[T, 8]`, rewards, and surrogates that are the truth or its reverse."""
    x, truth, rewards, _ = world(seed, rounds, 8, 4)
    return x, truth, rewards, truth if good else 1.0 - truth


def best_of_both(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """Measure the second part of E3: CABS-D less its better expert alone, with a true and with a reversed
    oracle.
    """
    horizons = [256, 512] if quick else [2048, 4096, 8192, 16384]
    out: dict[str, Any] = {"setting": "K = 8, d = 4", "series": [], "slopes": {}, "weights": {}}
    mixtures: dict[str, dict[str, Any]] = {"printed": _PRINTED_RATE, ".03": {"experts": _EXPERTS}}
    for oracle, good in (("true oracle", True), ("reversed oracle", False)):
        regret, weight = _replayed(seeds, horizons, mixtures, partial(_oracle_world, good=good))
        better = np.minimum(regret["SquareCB"], regret["CABS-C"])
        for name in mixtures:
            label = f"{oracle}, eta {name}"
            out["series"].append(_series(label, horizons, regret[name] - better))
            out["slopes"][label] = slope(horizons, regret[name] - better)
            out["weights"][label] = interval(weight[name][:, -1])
    return out


def flattered_world(seed: int, rounds: int) -> tuple[np.ndarray, ...]:
    """Return contexts, f* `[T, 8]`, rewards and surrogates of a world with one flattered arm.

    Arm 0 is .15 worse than the others on average, and its surrogates are .5 above the truth. Surrogates of
    the other arms are the truth. All lie in [0, 1], so nothing is clipped.
    """
    x, truth, _, _ = world(seed, rounds, 8, 4)
    truth = 0.4 + (truth - 0.5) * (0.2 / 0.45)
    truth[:, 0] -= 0.15
    rewards = (np.random.default_rng([seed, 34]).random(truth.shape) < truth).astype(float)
    surrogates = truth.copy()
    surrogates[:, 0] += 0.5
    return x, truth, rewards, surrogates


def printed_loss(seeds: Sequence[int], quick: bool = False) -> dict[str, Any]:
    """Measure E4: CABS-D with the loss of line 14 and the realised loss, at two rates, beside its experts."""
    horizons = [256, 512] if quick else [2048, 4096, 8192, 16384]
    mixtures: dict[str, dict[str, Any]] = {
        f"CABS-D, {loss} loss, eta {name}": {**rate, "meta_loss": kind}
        for name, rate in (("printed", _PRINTED_RATE), (".03", {"experts": _EXPERTS}))
        for loss, kind in (("realised", "realised"), ("printed", "literal"))
    }
    regret, weight = _replayed(seeds, horizons, mixtures, flattered_world)
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
    """Return the figures of all experiments.

    Args:
        seeds: number of repetitions, at least 2.
        quick: True takes small sizes, to see that the experiments run.
    """
    return {name: experiment(range(seeds), quick) for name, experiment in EXPERIMENTS.items()}


def number(value: Mapping[str, float], form: str = ".2f") -> str:
    """Return an estimate with its interval as text."""
    return f"{value['mean']:{form}} ({value['low']:{form}} to {value['high']:{form}})"


def _means(series: Mapping[str, Any], form: str) -> str:
    """Return the means of a series as text."""
    return ", ".join(format(point["mean"], form) for point in series["points"])


def findings(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a heading and sentences for every experiment, written from its figures."""
    rate = figures["rate"]
    noise = figures["noise"]
    square = figures["square error"]
    both = figures["best of both"]
    alpha = rate["alpha"]
    loss = figures["printed loss"]
    times = "; ".join(f"{name}: {number(v)}" for name, v in rate["time"]["slopes"].items())
    lows, highs = (f(r["mean"] for r in alpha["ratio"]) for f in (min, max))
    least, most = (f(r["mean"] for r in alpha["forced"]) for f in (min, max))
    growth = [f"{s['name']}: {_means(s, '+.0f')}" for s in noise["series"]]
    levels = ", ".join(f"{x:g}" for x in noise["series"][0]["x"])
    bias = noise["printed bias"]
    biases = "; ".join(f"{s['name']}: {_means(s, '.0f')}" for s in noise["bias"]["series"])
    slopes = {name: number(v) for name, v in square["slopes"].items()}
    price = "; ".join(
        f"{s['name']}: {_means(s, '.0f')} (slope {number(both['slopes'][s['name']])}, "
        f"final weight of the graph expert {both['weights'][s['name']]['mean']:.2f})"
        for s in both["series"]
    )
    losses = "; ".join(
        f"{s['name']}: {_means(s, '.0f')} (slope {number(loss['slopes'][s['name']])}"
        + (
            f", final weight of CABS-C {loss['weights'][s['name']]['mean']:.2f})"
            if s["name"] in loss["weights"]
            else ")"
        )
        for s in loss["series"]
    )
    horizons = ", ".join(f"{x:.0f}" for x in both["series"][0]["x"])
    return [
        (
            f"E1: regret in alpha, T, d and K ({alpha['setting']}; {rate['time']['setting']})",
            "Theorem: regret is at most of order sqrt(alpha T d ln(T/d)), slope 1/2 in alpha, T and d, "
            f"0 in K. Measured slope in alpha {number(alpha['slope'])}; regret over that root lies "
            f"between {lows:.2f} and {highs:.2f}. Slopes in T: {times}. In d ({rate['dim']['setting']}): "
            f"{_means(rate['dim']['series'][0], '.0f')}, slope {number(rate['dim']['slope'])}; "
            f"in K ({rate['arms']['setting']}): {_means(rate['arms']['series'][0], '.0f')}, "
            f"slope {number(rate['arms']['slope'])}. What this can tell: at these sizes regret "
            f"is what the program's own exploration costs, {least:.2f} to {most:.2f} times (alpha - 1) "
            "T / gamma, which is linear in alpha. The theorem is an upper bound with unnamed constants, "
            "so nothing here contradicts it, and nothing confirms its root.",
        ),
        (
            f"E2: noise of the surrogates ({noise['setting']}; "
            f"regret without noise {number(noise['without noise'], '.0f')})",
            "Theorem: noise that is fresh each round costs at most of order eps sqrt(K^2 T / (m + 1)), "
            f"{noise['bound'][-1]:.0f} at eps {noise['series'][0]['x'][-1]:g}. Measured added regret "
            f"at eps {levels}: {'; '.join(growth)}. Noise that is a fixed function of the context is outside "
            "the paper's fourth assumption and is not averaged away. The printed bias estimator, which "
            "subtracts the mean gap between surrogate and own prediction, takes away what is to be learnt: "
            f"RegSq {number(bias['RegSq'], '.0f')} against {number(bias['RegSq of plain targets'], '.0f')} "
            f"for plain targets, without any noise, regret {number(bias['regret'], '.0f')}.",
        ),
        (
            f"E2: surrogates with a bias ({noise['bias']['setting']})",
            "The paper's fourth assumption gives every arm's surrogates a constant bias b_j, "
            "which Algorithm 1 estimates. Regret at biases uniform "
            f"in +-{', '.join(f'{x:g}' for x in noise['bias']['series'][0]['x'])}: {biases}. The printed "
            "estimator keeps its promise, regret hardly depends on the bias (nothing is subtracted "
            "from an arm's first surrogate), and pays for it whether or not there is one; plain targets "
            "learn the bias as if it were a reward; the realised one compares with outcomes of plays.",
        ),
        (
            f"E3: Assumption 2 ({square['setting']})",
            "Assumption 2 wants RegSq(T) to grow like d ln T, a slope near 0 in T. Plain targets: "
            f"{slopes['plain targets']}. Printed targets r / p: {slopes['printed targets r / p']}. "
            "Where that slope is 1 the theorem says nothing about the printed update.",
        ),
        (
            f"E3: best of both ({both['setting']})",
            f"Regret of CABS-D less that of its better expert alone at T = {horizons}. {price}. "
            "A slope below 1 says that the price of not knowing the better expert vanishes a round; a bound "
            "with unnamed constants is not contradicted by any of these.",
        ),
        (
            f"E4: the printed loss ({loss['setting']})",
            "Line 14 of Algorithm 2 charges CABS-C 1 - s for the surrogates s of every revealed arm, "
            "so it believes the oracle that flatters; the fourth assumption allows a constant bias "
            f"of every arm. Regret at T = {', '.join(f'{x:.0f}' for x in loss['series'][0]['x'])}: "
            f"{losses}. Where a slope is 1, regret is linear in T: "
            "with the printed loss the mixture is no safeguard against its own oracle.",
        ),
    ]


def plotted(figures: Mapping[str, Any]) -> dict[str, tuple[Mapping[str, Any], str, str]]:
    """Return {title: (experiment, name of x, name of y)} of every series that was measured."""
    rate = figures["rate"]
    return {
        "Regret by independence number": (rate["alpha"], "alpha", "regret"),
        "Regret by horizon": (rate["time"], "T", "regret"),
        "Regret by dimension": (rate["dim"], "d", "regret"),
        "Regret by number of arms at one alpha": (rate["arms"], "K", "regret"),
        "Cost of noise in the surrogates": (figures["noise"], "eps", "added regret"),
        "Cost of a bias of the surrogates": (figures["noise"]["bias"], "bias", "regret"),
        "RegSq by horizon": (figures["square error"], "T", "RegSq(T)"),
        "CABS-D less its better expert": (figures["best of both"], "T", "added regret"),
        "CABS-D with the printed loss": (figures["printed loss"], "T", "regret"),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run all experiments and print them."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="repetitions of every experiment, at least 2")
    parser.add_argument("--quick", action="store_true", help="play small sizes only")
    args = parser.parse_args(arguments)
    if args.seeds < 2:
        parser.error("--seeds: an interval needs at least 2 repetitions")
    figures = run(args.seeds, args.quick)
    for heading, text in findings(figures):
        print(f"\n### {heading}\n\n{text}")
    for title, (experiment, x, y) in plotted(figures).items():
        print(f"\n### {title}\n\n{head('series', x, y, '95 % interval')}")
        for series in experiment["series"]:
            for at, point in zip(series["x"], series["points"], strict=True):
                interval_text = f"{point['low']:.1f} to {point['high']:.1f}"
                print(row(series["name"], f"{at:g}", f"{point['mean']:.1f}", interval_text))
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
