"""What does it buy to ask a cheap model first? An upper bound on cascades, on full tables.

    python -m benchmarks.information [--pool zeroeval ...] [--split-seeds 0 1 2] [--work DIR] [--json FILE]

A probe is a model that is asked first, on every query, at its cost. A verifier then says whether its answer
is right: always truly (no cascade knows more of one answer), or wrongly in one case of five. The router keeps
the answer, or asks one more model and pays for both. What that model would score is predicted from the
embedding and from what the verifier said, by the predictor that routes without a probe. Fitted on the train
split; which model is the probe at a rho, or none, is chosen on validation; figures are of the test split. The
tables hold scores, not answers, so agreement of answers cannot be bought.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.study_plan import FIELD_SETUP, SHORT_RHOS
from benchmarks.study_problems import problem
from cabs_core.algorithms.predictors import make_score_predictor
from cabs_core.algorithms.predictors.base import ScorePredictor
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.units import percentage
from cabs_core.base.utility import binary_share, clipped_utility, expected_utility

POOLS = ("routerbench_sub3", "simple_evals_ru", "paretobandit_k4", "zeroeval")
PREDICTORS = ("ridge", "kernel_ridge")
#: probability that the verifier says the opposite
VERIFIERS = {"always right": 0.0, "wrong in 20 %": 0.2}
#: probes that are tried: the models of largest mean utility, less what they cost, at any rho
MOST_PROBES = 6


def verified(scores: np.ndarray, wrong: float, seed: int) -> np.ndarray:
    """What a verifier says of scores [n]: the score, or one less the score with probability `wrong`."""
    flips = np.random.default_rng([seed, 80]).random(len(scores)) < wrong
    return np.where(flips, 1.0 - scores, scores)


class RoutedPrompts:
    """Utility of every query of a split with and without a probe."""

    def __init__(self, made: ReplayProblem, name: str):
        assert made.embeddings is not None and made.prompt_lengths is not None
        assert made.offline_embeddings is not None and made.offline_prompt_lengths is not None
        self.made, self.name = made, name
        self.x, self.lengths = made.embeddings, made.prompt_lengths
        self.train, self.train_lengths = made.offline_embeddings, made.offline_prompt_lengths
        self.costs = made.predicted_costs if made.static_costs is None else made.static_costs
        self.rows, self.share = np.arange(made.n), binary_share(made.offline_scores)
        self.known: dict[tuple[int, float], np.ndarray] = {}

    def plain(self, rho: float) -> np.ndarray:
        """Without a probe."""
        value = expected_utility(self.made.static_scores[self.name], self.costs, rho, self.share)
        arm = np.argmax(value, axis=1)
        return clipped_utility(self.made.scores[self.rows, arm], self.made.costs[self.rows, arm], rho)

    def probed(self, rho: float, probe: int, wrong: float) -> np.ndarray:
        """The probe first; its answer is kept where its expected utility is not below that of one more
        call."""
        made = self.made
        if (probe, wrong) not in self.known:
            word = verified(made.offline_scores[:, probe], wrong, 0)
            model: ScorePredictor = make_score_predictor(self.name)
            model.fit(np.column_stack([self.train, word - 0.5]), self.train_lengths, made.offline_scores)
            now = verified(made.scores[:, probe], wrong, 1)
            self.known[probe, wrong] = model.predict(np.column_stack([self.x, now - 0.5]), self.lengths)
        expected = self.known[probe, wrong]
        paid = made.costs[:, [probe]]  # what the probe cost is known by then
        extra = np.where(np.arange(made.K) == probe, 0.0, self.costs)
        arm = np.argmax(expected_utility(expected, paid + extra, rho, self.share), axis=1)
        more = np.where(arm == probe, 0.0, made.costs[self.rows, arm])
        return clipped_utility(made.scores[self.rows, arm], paid[:, 0] + more, rho)


def probes_of(made: ReplayProblem) -> list[int]:
    """Models that could be a probe: cheapest first, those no cheaper model beats on the train split."""
    scores, costs = made.offline_scores.mean(axis=0), made.offline_costs.mean(axis=0)
    order = np.argsort(costs, kind="stable")
    best, probes = -1.0, []
    for arm in order:
        if scores[arm] > best:
            best = scores[arm]
            probes.append(int(arm))
    return probes[:MOST_PROBES]


def study(pool: str, seed: int, work: Path, name: str) -> list[dict[str, Any]]:
    """One row a verifier and rho: mean utility without and with the probe that validation chose, and the
    paired error."""
    parts = {
        w: RoutedPrompts(problem(work, pool, "clean", seed, FIELD_SETUP, w), name)
        for w in ("validation", "test")
    }
    probes, rows = probes_of(parts["test"].made), []
    for verifier, wrong in VERIFIERS.items():
        for rho in SHORT_RHOS:
            tried: dict[int | None, float] = {None: parts["validation"].plain(rho).mean()}
            tried |= {p: parts["validation"].probed(rho, p, wrong).mean() for p in probes}
            probe = max(tried, key=lambda p: tried[p])
            plain = parts["test"].plain(rho)
            bought = plain if probe is None else parts["test"].probed(rho, probe, wrong)
            gain = bought - plain
            rows.append(
                {
                    "pool": pool,
                    "seed": seed,
                    "predictor": name,
                    "verifier": verifier,
                    "rho": rho,
                    "probe": "" if probe is None else parts["test"].made.arms[probe],
                    "plain": float(plain.mean()),
                    "bought": float(bought.mean()),
                    "gain": float(gain.mean()),
                    "se": float(gain.std(ddof=1) / np.sqrt(len(gain))),
                }
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the gains by table and verifier."""
    parser = Script(__file__, __doc__, POOLS, [0, 1, 2], work=True)
    parser.add_argument("--predictors", nargs="+", default=list(PREDICTORS))
    args = parser.parse_args(argv)
    rows = [
        row
        for pool in args.pool
        for seed in args.split_seeds
        for name in args.predictors
        for row in study(pool, seed, args.work, name)
    ]
    print(f"{'table':20s} {'predictor':13s} {'verifier':14s} plain  bought gain            bought at")
    for pool in args.pool:
        for name in args.predictors:
            for verifier in VERIFIERS:
                cell = [
                    r for r in rows if (r["pool"], r["predictor"], r["verifier"]) == (pool, name, verifier)
                ]
                plain, bought = (np.mean([r[k] for r in cell]) for k in ("plain", "bought"))
                error = np.mean([r["se"] for r in cell]) / np.sqrt(len(args.split_seeds))
                share = np.mean([r["probe"] != "" for r in cell])
                print(
                    f"{pool:20s} {name:13s} {verifier:14s} {plain:.3f}  {bought:.3f}  {bought - plain:+.4f} "
                    f"± {error:.4f}  {percentage(share)} of the rhos"
                )
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
