"""Is a model that became better found? One of 18 models is upgraded before the first round of a stream.

    python -m benchmarks.upgrades [--streams 12] [--rounds 3000] [--changes 0 0.0005 0.001 0.002] [--json
    FILE]

Synthetic tables (`cabs_core.synthetic_problem`; single models earn .32 to .68), whose offline labels are of
before. The model whose mean is nearest to `old` answers right with probability `new` on every prompt.
Printed: the share of streams that end with it (more than half of the last tenth of the rounds) and the mean
score, with its standard error over streams; rho is 0. The last column is the stream in which nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.script import Script, head, row, write_figures
from cabs_core.metrics import standard_error
from cabs_core.problem import ReplayProblem
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay

ARMS = 18
#: (mean of the model before, after); None: nothing changes
UPGRADES: tuple[tuple[float, float | None], ...] = ((0.5, 0.95), (0.41, 0.95), (0.41, 0.85), (0.5, None))
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    "two_models": ("hier_mix@two_models", {"propensity": "sampled"}),
    "lin_ucb": ("lin_ucb", {}),
}


def upgraded(seed: int, rounds: int, old: float, new: float | None) -> tuple[ReplayProblem, int]:
    """(the problem, the arm that was upgraded)."""
    problem = synthetic_problem(n=rounds, K=ARMS, d=33, offline=2000, seed=seed)
    arm = int(np.abs(problem.scores.mean(axis=0) - old).argmin())
    if new is None:
        return problem, arm
    scores = problem.scores.copy()
    scores[:, arm] = np.random.default_rng([seed, 5]).random(rounds) < new
    return replace(problem, scores=scores), arm


def measure(policy: str, options: dict[str, Any], streams: int, rounds: int) -> list[dict[str, Any]]:
    """A dict for every upgrade: old, new, share of streams that end with the arm, mean score and its
    error."""
    figures = []
    for old, new in UPGRADES:
        ends, scores = [], []
        for seed in range(streams):
            problem, arm = upgraded(seed, rounds, old, new)
            result = replay(problem, policy, rho=0.0, trials=1, options=options, threads=1)
            ends.append((result.actions[0, -(rounds // 10) :] == arm).mean() > 0.5)
            scores.append(result.rewards.mean())
        share = None if new is None else float(np.mean(ends))
        figures.append(
            {"old": old, "new": new, "found": share, "score": np.mean(scores), "se": float(standard_error(scores))}
        )  # fmt: skip
    return figures


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, return the figures."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--changes", type=float, nargs="+", default=[0.0, 0.0005, 0.001, 0.002])
    args = parser.parse_args(argv)
    runs = {
        f"hier_mix, changes {c:g}": ("hier_mix", {"changes": c, "propensity": "sampled"})
        for c in args.changes
    }
    figures = {name: measure(*run, args.streams, args.rounds) for name, run in (runs | RIVALS).items()}
    print(head("policy", *(f"{old:g} -> {new:g}" if new else "nothing changed" for old, new in UPGRADES)))
    for name, results in figures.items():
        print(row(name, *(_cell(f) for f in results)))
    write_figures(figures, args.json)
    return figures


def _cell(figure: dict[str, Any]) -> str:
    score = f"{figure['score']:.3f} ± {figure['se']:.3f}"
    return score if figure["found"] is None else f"{figure['found']:.2f} ({score})"


if __name__ == "__main__":
    main()
