"""Is a model that became better found, and what does it cost where none did?

    python -m benchmarks.upgrades [--streams 12] [--rounds 3000] [--changes 0 0.001 0.002] [--real] [--work
    DIR]

Synthetic tables (`cabs_core.synthetic_problem`, 18 models; single ones earn .32 to .68), whose offline labels
are of before. The model whose mean is nearest to `old` answers right with probability `new` on every prompt
of the stream. Every policy is played as it is and with a floor of exploration: with probability FLOOR a round
plays a model that is drawn evenly, as the server's does. Printed: the share of streams that end with the new
model (more than half of the last tenth of the rounds) and the mean score, with its standard error over
streams; rho is 0. The last columns are the stream in which nothing changed, and there the difference to
`changes` 0 at the same floor, paired by stream.

`--real`: the upgrades of simple_evals_ru instead (data and problems as in
`benchmarks.study --protocol field`): models under one product name, their later version in the stream. The
pool is of the models that are no better than the best one before, so that the later version is what should be
played. Test queries, drawn with replacement.

First comes a bound: what the best test would find that knows which model changed, from how much to how much,
and sees what a floor plays of it, where it may be wrong about LEVEL of the models that did not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.script import Script, head, row, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import problem as study_problem
from cabs_core.algorithms.policies.hier_mix.policy import HierMix
from cabs_core.algorithms.policies.hier_mix.rounds import Data, Parts, decide, learn
from cabs_core.algorithms.policies.play import Lane, LoopPolicy, round_loop
from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import ACTION, query_order, uniform
from cabs_core.base.statistics.uncertainty import standard_error
from cabs_core.base.streams import stream_keys
from cabs_core.evaluation.replay.engine import make_stream

ARMS = 18
#: share of the rounds that play a model drawn evenly; `cabs serve` has the same by default
FLOOR = 0.02
#: of the bound: probability of taking a model that did not change for one that did
LEVEL = 0.05
#: (mean of the model before, after); None: nothing changes
UPGRADES: tuple[tuple[float, float | None], ...] = (
    (0.5, 0.95),
    (0.41, 0.95),
    (0.41, 0.85),
    (0.41, 0.8),
    (0.5, None),
)
RIVALS = ("hier_mix@two_models", "lin_ucb")
#: simple_evals_ru: models that are no better than the best of them, and {model: its later version}
REAL_ARMS = (
    "gigachat_lite",
    "gigachat_max",
    "gigachat_pro",
    "saiga",
    "vikhr",
    "yandexgpt_4_lite",
    "yandexgpt_4_pro",
)
REAL = {"gigachat_pro": "26_gigachat_pro", "yandexgpt_4_pro": "yandexgpt_5_pro"}

#: the problem, the order of its rows, the arm that was upgraded
Stream = tuple[ReplayProblem, np.ndarray, int]


@kernel
def decide_with_floor(
    parts: Parts, data: Data, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return an arm and its probability as `decide` does, after which a floor may draw another arm."""
    arm, _ = decide(parts, data, row, mask, t, slot, trace)
    if uniform(parts.keys, ACTION, t, 2) < FLOOR:
        arm = int(uniform(parts.keys, ACTION, t, 3) * mask.size)
    return arm, (1.0 - FLOOR) * parts.work.pmf[arm] + FLOOR / mask.size


class HierMixWithFloor(HierMix):
    """The policy hier_mix as a server plays it, with a floor of exploration."""

    loop = staticmethod(round_loop(decide_with_floor, learn))


def synthetic(seed: int, rounds: int, old: float, new: float | None) -> Stream:
    """Return a stream in which one of ARMS models is better from the first round on."""
    problem = synthetic_problem(n=rounds, K=ARMS, d=33, offline=2000, seed=seed)
    arm = int(np.abs(problem.scores.mean(axis=0) - old).argmin())
    order = query_order(seed, "upgrades", 0, rounds)
    if new is None:
        return problem, order, arm
    scores = problem.scores.copy()
    scores[:, arm] = np.random.default_rng([seed, 5]).random(rounds) < new
    return replace(problem, scores=scores), order, arm


def real(table: ReplayProblem, seed: int, rounds: int, model: str | None) -> Stream:
    """Return a stream of REAL_ARMS of a problem of simple_evals_ru.

    Args:
        table: the problem.
        seed: seed of the draws.
        rounds: number of rounds.
        model: model that answers as its later version; None: no model does.
    """
    arms = [table.arms.index(name) for name in REAL_ARMS]
    arm = 0 if model is None else REAL_ARMS.index(model)
    shown = list(arms)
    if model is not None:
        shown[arm] = table.arms.index(REAL[model])
    before = ("predicted_scores", "predicted_costs", "offline_scores", "offline_costs", "static_costs")
    stored = {name: getattr(table, name) for name in before}
    changed: dict[str, Any] = {n: None if v is None else v[:, arms] for n, v in stored.items()}
    changed |= dict.fromkeys(("latencies", "input_tokens", "output_tokens", "input_prices", "observed"))
    problem = replace(
        table,
        arms=list(REAL_ARMS),
        scores=table.scores[:, shown],
        costs=table.costs[:, shown],
        surrogate_deltas=table.surrogate_deltas[:, arms][:, :, arms],
        static_scores={name: values[:, arms] for name, values in table.static_scores.items()},
        **changed,
    )
    return problem, np.random.default_rng([seed, 6]).integers(problem.n, size=rounds), arm


def play(stream: Stream, policy: str, options: Mapping[str, Any], floor: bool) -> tuple[bool, float]:
    """Return True if the stream ends with its arm, and the mean score."""
    problem, order, arm = stream
    arrays = make_stream(problem, 0.0)
    cls = HierMixWithFloor if floor else policy_class(policy)
    keys = stream_keys(0, "upgrades", policy, "0", 0)
    player = cls(
        policy,
        arms=problem.arms,
        dim=problem.dim,
        rho=0.0,
        offline=arrays.offline,
        horizon=len(order),
        keys=keys,
        binary_share=arrays.share,
        options=dict(options),
    )
    lane = Lane.empty(order, None, experts=player.experts)
    assert isinstance(player, LoopPolicy)
    player.run(arrays, lane, 0, len(order))
    last = lane.actions[-(len(order) // 10) :]
    return bool((last == arm).mean() > 0.5), float(problem.scores[order, lane.actions].mean())


def best_test(old: float, new: float, rounds: int, arms: int) -> float:
    """Return the power at LEVEL of the likelihood ratio test of two success probabilities.

    The test sees Poisson(rounds FLOOR / arms) plays.
    """
    outcomes = [(n, k) for n in range(40) for k in range(n + 1)]
    plays = stats.poisson(rounds * FLOOR / arms)
    chances = np.array([[plays.pmf(n) * stats.binom.pmf(k, n, p) for p in (old, new)] for n, k in outcomes])
    left = LEVEL
    power = 0.0
    for false, true in chances[np.argsort(-chances[:, 1] / np.maximum(chances[:, 0], 1e-300))]:
        taken = min(1.0, left / false) if false > 0 else 1.0
        left = left - taken * false
        power = power + taken * true
    return power


def measure(
    streams: Mapping[str, Sequence[Stream]], runs: Mapping[str, tuple[str, dict[str, Any], bool]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return {run: {streams: share that end with the arm, scores}}."""
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for name, run in runs.items():
        for case, each in streams.items():
            ends, scores = zip(*(play(stream, *run) for stream in each), strict=True)
            cell = {"found": float(np.mean(ends)), "scores": list(scores)}
            figures.setdefault(name, {})[case] = cell
    return figures


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, return the figures."""
    parser = Script(__file__, __doc__, work=True)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--changes", type=float, nargs="+", default=[0.0, 0.001, 0.002])
    parser.add_argument("--real", action="store_true", help="the upgrades of simple_evals_ru")
    args = parser.parse_args(argv)
    seeds = range(args.streams)
    if args.real:
        tables = [study_problem(args.work, "simple_evals_ru", "clean", s % 3, FIELD_SETUP) for s in seeds]
        streams = {
            "nothing changed" if model is None else model: [
                real(table, s, args.rounds, model) for s, table in zip(seeds, tables, strict=True)
            ]
            for model in (*REAL, None)
        }
    else:
        streams = {
            f"{old:g} -> {new:g}" if new else "nothing changed": [
                synthetic(s, args.rounds, old, new) for s in seeds
            ]
            for old, new in UPGRADES
        }
    runs: dict[str, tuple[str, dict[str, Any], bool]] = {}
    for floor in (False, True):
        for c in args.changes:
            name = f"hier_mix, changes {c:g}{', floor' if floor else ''}"
            runs[name] = ("hier_mix", {"changes": c, "propensity": "sampled"}, floor)
    figures: dict[str, Any] = measure(streams, runs | {name: (name, {}, False) for name in RIVALS})
    print(head("policy", *streams, "less changes 0"))
    if not args.real:
        bounds = [best_test(old, new, args.rounds, ARMS) for old, new in UPGRADES if new]
        print(row(f"best test that knows the model, floor {FLOOR:g}", *(f"{b:.2f}" for b in bounds), "", ""))
    for name, cells in figures.items():
        same = f"hier_mix, changes {args.changes[0]:g}{', floor' if 'floor' in name else ''}"
        less = np.subtract(cells["nothing changed"]["scores"], figures[same]["nothing changed"]["scores"])
        price = f"{less.mean():+.4f} ± {float(standard_error(less)):.4f}"
        print(row(name, *(_cell(case, cell) for case, cell in cells.items()), price))
    write_figures(figures, args.json)
    return figures


def _cell(case: str, cell: dict[str, Any]) -> str:
    """Return a cell of the table as text."""
    score = f"{np.mean(cell['scores']):.3f} ± {float(standard_error(cell['scores'])):.3f}"
    return score if case == "nothing changed" else f"{cell['found']:.2f} ({score})"


if __name__ == "__main__":
    main()
