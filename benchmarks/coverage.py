"""Coverage of intervals from a log, and the number of decisions that a promotion needs, on logs drawn from
full tables.

    python -m benchmarks.coverage [--pool openllm_lb_v2_carrot ...] [--logs 100] [--sizes 500 1000 3000]
    [--json FILE]

Printed are the share of intervals that hold the truth, and the share of challengers that are promoted.
Prompts are drawn with replacement, so that a table's means are the truth and every draw is a prompt of its
own. Logs longer than the table repeat outcomes that the models of outcomes have seen, so small tables are for
short logs. Logging policies and targets are made from ridges on TF-IDF components of a third of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.base.errors import RouterError
from cabs_core.base.paths import cabs_home
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import load_outcomes
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.ope.data import LoggedData, leading
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.router.compare_on_log import compare_policies

POOLS = {"openllm_lb_v2_carrot": 300.0, "mmlu_pro_tiger": 300.0, "paretobandit_k4": 10.0}
ESTIMATORS = ("snips", "dr", "switch_dr")
#: promotions are not simulated on longer logs
LONGEST = 60_000


class FullTable:
    """A full table of n prompts and K models, with the features that a router could know of the prompts."""

    def __init__(self, name: str, rho: float):
        pool = find_pool(name).pool
        table = load_outcomes(find_pool(name))
        vectors, _ = embed_prompts(
            table.prompts,
            pool.encoder.model_copy(update={"name": "tfidf-svd"}),
            store=cabs_home() / "embeddings",
        )
        self.x = leading(vectors, 32)
        self.rho = rho
        self.scores = table.scores
        self.costs = table.costs
        self.costs = self.costs * (5e-4 / self.costs.mean() if rho == 300.0 else 1.0)
        self.utility = clipped_utility(self.scores, self.costs, rho)
        self.n, self.k = self.utility.shape

    def ridge(self, y: np.ndarray, seed: int) -> np.ndarray:
        """Return predictions of `y` by a ridge regression on a random third of the rows, `[n, K]`."""
        x = self.x / np.sqrt((self.x**2).sum(axis=1).mean()) * 4.0
        rows = np.random.default_rng([seed, 70]).permutation(self.n)[: self.n // 3]
        mean = y[rows].mean(axis=0)
        gram = x[rows].T @ x[rows] + 10.0 * np.eye(x.shape[1])
        predicted: np.ndarray = mean + x @ np.linalg.solve(gram, x[rows].T @ (y[rows] - mean))
        return predicted

    def log(self, pmf: np.ndarray, n: int, seed: Sequence[int]) -> tuple[LoggedData, np.ndarray]:
        """Draw decisions of a policy.

        Args:
            pmf: probabilities of the policy, `[n, K]`.
            n: number of decisions.
            seed: seed of the draw.

        Returns:
            The decisions as a log, and their rows in the table.
        """
        rng = np.random.default_rng([*seed, 71])
        rows = rng.integers(0, self.n, n)
        drawn = (rng.random((n, 1)) > pmf[rows].cumsum(axis=1)).sum(axis=1).clip(0, self.k - 1)
        data = LoggedData(
            [str(j) for j in range(self.k)],
            drawn,
            self.scores[rows, drawn],
            self.costs[rows, drawn],
            self.x[rows],
            np.arange(n).astype(str),
            pmf=pmf[rows],
        )
        return data, rows

    def mean(self, pmf: np.ndarray) -> float:
        """Return a policy's mean utility over the table."""
        return float((pmf * self.utility).sum(axis=1).mean())


def softmax(values: np.ndarray, temperature: float) -> np.ndarray:
    """Return probabilities proportional to exp(values / temperature), `[n, K]`."""
    e = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
    probabilities: np.ndarray = e / e.sum(axis=1, keepdims=True)
    return probabilities


def coverage(world: FullTable, name: str, logs: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the share of intervals that hold the truth, for every logging policy, target, length and
    estimator.
    """
    k = world.k
    one = np.eye(world.k)
    good = world.ridge(world.utility, 0)
    right = world.ridge(world.scores, 1)
    uniform = np.full((world.n, k), 1.0 / k)
    loggers = {"uniform": uniform, "softmax": softmax(right, 0.1)} | {
        f"epsilon {e}": (1.0 - e) * one[right.argmax(axis=1)] + e / k for e in (0.2, 0.02)
    }
    targets = {
        "best single": np.tile(one[world.utility.mean(axis=0).argmax()], (world.n, 1)),
        "ridge": one[good.argmax(axis=1)],
        "uniform": uniform,
        "softmax of ridge": softmax(good, 0.05),
    }
    rows = []
    for number, (logger, mu) in enumerate(loggers.items()):
        for size in sizes:
            inside: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
            for draw in range(logs):
                data, place = world.log(mu, size, [draw, number, size])
                for target, pi in targets.items():
                    truth = world.mean(pi)
                    played = world.mean(mu)
                    for r in evaluate(data, pi[place], world.rho).rows:
                        if r.outcome == "utility" and r.low is not None and r.high is not None:
                            assert r.difference_low is not None and r.difference_high is not None
                            gap = r.difference_low <= truth - played <= r.difference_high
                            inside.setdefault((target, r.estimator), []).append(
                                (r.low <= truth <= r.high, gap)
                            )
            for (target, estimator), hits in inside.items():
                held, held_gap = np.mean(hits, axis=0)
                rows.append(
                    {
                        "pool": name,
                        "log": logger,
                        "target": target,
                        "decisions": size,
                        "estimator": estimator,
                        "intervals": len(hits),
                        "held": float(held),
                        "held difference": float(held_gap),
                    }
                )
                print(*rows[-1].values(), sep="  ", flush=True)
    return rows


def promotions(world: FullTable, name: str, logs: int) -> list[dict[str, Any]]:
    """Return the share of promoted challengers that are as good as the champion, or lose .03 to it.

    Logs have 1,000 decisions, and the number that the comparison says is needed.
    """
    one = np.eye(world.k)
    every = np.arange(world.n)
    first, second = (world.ridge(world.utility, seed) for seed in (0, 1))
    champion = np.argmax(first, axis=1)
    other = np.argmax(second, axis=1)
    value = float(world.utility[every, champion].mean())
    if world.utility[every, other].mean() < value:
        champion, other = other, champion
        value = float(world.utility[every, champion].mean())
    rng = np.random.default_rng(72)
    rank = rng.permutation(world.n)
    at_random = rng.integers(0, world.k, world.n)

    def spoilt(loss: float) -> np.ndarray:
        """`other`, with random plays on as many prompts as make it lose `loss` to the champion."""
        low = 0
        high = world.n
        while high - low > 1:
            count = (low + high) // 2
            lost = value - float(world.utility[every, np.where(rank < count, at_random, other)].mean())
            low, high = (count, high) if lost < loss else (low, count)
        return np.where(rank < low, at_random, other)

    challengers = {"as good": spoilt(0.0), "worse by .03": spoilt(0.03)}
    loggers = {
        "epsilon 0.2": 0.8 * one[champion] + 0.2 / world.k,
        "softmax": 0.5 * softmax(first, 0.1) + 0.5 / world.k,
    }
    rows = []
    for number, (logger, mu) in enumerate(loggers.items()):

        def compared(
            kind: str, size: int, draw: int, mu: np.ndarray = mu, number: int = number
        ) -> tuple[bool, int]:
            data, place = world.log(mu, size, [draw, number, size])
            try:
                comparison = compare_policies(
                    data, one[champion[place]], one[challengers[kind][place]], world.rho
                )
            except RouterError:
                return False, 0
            return comparison.promote, comparison.needed

        needed = int(np.median([compared("as good", 1000, draw)[1] for draw in range(5)]))
        for kind in challengers:
            for size in (1000, needed):
                if size <= LONGEST:
                    share = float(np.mean([compared(kind, size, draw)[0] for draw in range(logs)]))
                    rows.append(
                        {
                            "pool": name,
                            "log": logger,
                            "challenger": kind,
                            "decisions": size,
                            "promoted": share,
                        }
                    )
                    print(*rows[-1].values(), sep="  ", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure every pool, print and return the rows."""
    parser = Script(__file__, __doc__, POOLS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[500, 1000, 3000])
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--what", choices=("coverage", "promotions", "both"), default="both")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name in options.pool:
        world = FullTable(name, POOLS.get(name, 300.0))
        if options.what != "promotions":
            rows += coverage(world, name, options.logs, [n for n in options.sizes if n <= world.n / 3])
        if options.what != "coverage":
            rows += promotions(world, name, options.logs)
    write_figures(rows, options.json)
    return rows


if __name__ == "__main__":
    main()
