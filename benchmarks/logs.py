"""Does a router's own log teach the next one? A real table, a router from a small part of it, and its
traffic.

    python -m benchmarks.logs [--pool paretobandit_k4 ...] [--seeds 5] [--epsilon 0.02 0.1] [--json FILE]

For each seed: --train prompts with every model's outcome and 100 for validation; a policy trained on them
routes the traffic, one answer a prompt, with uniform exploration; a quarter of the prompts is held out. Then
the same policy is trained again: on the table alone, on table and log (`ope.training`, for several caps of
the weights), and, as an upper bound, on the traffic's full outcomes. The figures are mean utilities on the
held-out prompts, minus that of the table alone; policies go on learning there. `continued` is the router that
routed the traffic, with what it learnt from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.paths import cabs_home
from cabs_core.base.statistics.uncertainty import standard_error
from cabs_core.base.streams import stream_keys
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import binary_share, clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import Outcomes, load_outcomes
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.ope.data import LoggedData, leading
from cabs_core.evaluation.ope.training import with_log
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.engine import make_stream
from cabs_core.router.heads import Heads, needs_of

RHOS = {"paretobandit_k4": 10.0, "routerbench_sub3": 500.0}
CAPS = (1.0, 5.0, np.inf)
POLICIES = ("ridge", "kernel_ridge", "hier_mix")
VALIDATION, HELD_OUT, TRIALS = 100, 0.25, 3


def parts(n: int, groups: np.ndarray, train: int, seed: int) -> np.ndarray:
    """[n] of train, validation, test or traffic, by whole prompts."""
    _, index = np.unique(groups, return_inverse=True)
    rank = np.random.default_rng([seed, 60]).permutation(int(index.max()) + 1)[index]
    share = rank / (rank.max() + 1)
    ends = np.cumsum([train / n, VALIDATION / n, HELD_OUT])
    names = np.array(["train", "validation", "test", "traffic"])
    part_of_row: np.ndarray = names[np.searchsorted(ends, share, side="right")]
    return part_of_row


class CutTable:
    """One table, cut for one seed."""

    def __init__(self, pool: ModelPool, outcomes: Outcomes, vectors: np.ndarray, train: int, seed: int):
        self.pool = pool.model_copy(update={"oracle": pool.oracle.model_copy(update={"kind": "ridge"})})
        self.outcomes, self.vectors, self.seed = outcomes, vectors, seed
        self.rho = RHOS.get(pool.name, 300.0)
        self.split = parts(len(outcomes), np.array(outcomes.prompts, dtype=object), train, seed)
        self.share = binary_share(outcomes.scores[self.split == "train"])

    def fit(
        self, outcomes: Outcomes, split: np.ndarray, vectors: np.ndarray
    ) -> tuple[Oracles, ReplayProblem]:
        """Oracles trained on the train rows, and the test problem that they give."""
        oracles = train_oracles(vectors, outcomes, split, self.pool.oracle, features=self.pool.features)
        problem = build_problems(outcomes, split, vectors, oracles, self.pool)["test"]
        problem.metadata["binary_share"] = self.share
        return oracles, problem

    def policy(self, name: str, problem: ReplayProblem) -> SafePolicy:
        """The policy as it starts."""
        stream = make_stream(problem, self.rho)
        return build_policy(
            name,
            arms=problem.arms,
            dim=problem.dim,
            rho=self.rho,
            offline=stream.offline,
            binary_share=self.share,
            horizon=len(self.outcomes),
            keys=stream_keys(self.seed, "bench logs", name),
        )

    def play(
        self, policy: SafePolicy, oracles: Oracles, rows: np.ndarray, epsilon: float, draw: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """(arms, their probabilities) of the policy on these rows, with exploration and every reward at
        once."""
        rng = np.random.default_rng([self.seed, 61, draw])
        heads = Heads(oracles, needs_of(policy))
        scores, costs = self.outcomes.scores, self.outcomes.costs
        k = len(self.outcomes.arms)
        requests = heads.requests(self.vectors[rows], self.outcomes.prompt_lengths[rows])
        arms, propensities = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
        for t, (row, request) in enumerate(zip(rows, requests, strict=True)):
            made = policy.decide(request)
            arm = int(rng.integers(k)) if rng.random() < epsilon else made.arm
            made = policy.redraw(made, arm, (1.0 - epsilon) * made.pmf + epsilon / k)
            policy.update(made, float(scores[row, arm]), float(costs[row, arm]))
            arms[t], propensities[t] = arm, made.probability
        return arms, propensities

    def log(self, rows: np.ndarray, arms: np.ndarray, propensities: np.ndarray) -> LoggedData:
        """What the router's log holds of this traffic."""
        return LoggedData(
            list(self.outcomes.arms),
            arms,
            self.outcomes.scores[rows, arms],
            self.outcomes.costs[rows, arms],
            leading(self.vectors[rows], 32),
            np.array([self.outcomes.prompts[i] for i in rows], dtype=object),
            propensities,
            embeddings=self.vectors[rows],
            lengths=self.outcomes.prompt_lengths[rows].astype(np.float64),
        )


def utility(problem: ReplayProblem, policy: str, rho: float, seed: int) -> float:
    """Mean utility of a policy's replay on the held-out prompts."""
    return float(replay(problem, policy, rho, TRIALS, seed).rewards.mean())


def one(
    world: CutTable, epsilon: float, policies: Sequence[str], caps: Sequence[float]
) -> dict[str, dict[str, float]]:
    """{policy: {trained on: mean utility}} of one seed."""
    out, split, vectors, rho = world.outcomes, world.split, world.vectors, world.rho
    traffic, test = np.flatnonzero(split == "traffic"), np.flatnonzero(split == "test")
    traffic = np.random.default_rng([world.seed, 62]).permutation(traffic)
    oracles, problem = world.fit(out, split, vectors)
    _, most = world.fit(out, np.where(split == "traffic", "train", split), vectors)
    by_policy: dict[str, dict[str, float]] = {}
    with one_blas_thread():
        for name in policies:
            policy = world.policy(name, problem)
            arms, propensities = world.play(policy, oracles, traffic, epsilon)
            data = world.log(traffic, arms, propensities)
            row = by_policy[name] = {"table": utility(problem, name, rho, world.seed)}
            for cap in caps:
                longer = with_log(out, split, vectors, oracles, data, cap=cap, model="kernel_ridge")
                _, learnt = world.fit(*longer)
                row[f"cap {cap:g}"] = utility(learnt, name, rho, world.seed)
            if name == "hier_mix":
                values = []
                for draw in range(TRIALS):
                    again = world.policy(name, problem)
                    again.take_over(policy)
                    rows = np.random.default_rng([world.seed, 63, draw]).permutation(test)
                    played, _ = world.play(again, oracles, rows, 0.0, draw + 1)
                    values.append(
                        clipped_utility(out.scores[rows, played], out.costs[rows, played], rho).mean()
                    )
                row["continued"] = float(np.mean(values))
            row["all outcomes"] = utility(most, name, rho, world.seed)
    return by_policy


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__, RHOS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.02, 0.1])
    parser.add_argument(
        "--caps", nargs="+", type=float, default=list(CAPS), help="largest weights; inf: none"
    )
    parser.add_argument("--train", type=int, default=300, help="prompts with every model's outcome")
    parser.add_argument(
        "--encoder", help="in place of the pool's; a fitted one learns from all prompts' words"
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    for name in options.pool:
        file = find_pool(name)
        outcomes = load_outcomes(file)
        update = {"name": options.encoder} if options.encoder else {}
        encoder = file.pool.encoder.model_copy(update=update)
        vectors, _ = embed_prompts(outcomes.prompts, encoder, store=cabs_home() / "embeddings")
        for epsilon in options.epsilon:
            by_seed = [
                one(
                    CutTable(file.pool, outcomes, vectors, options.train, seed),
                    epsilon,
                    options.policies,
                    options.caps,
                )
                for seed in range(options.seeds)
            ]
            for policy in options.policies:
                base = np.array([f[policy]["table"] for f in by_seed])
                print(f"{name}, epsilon {epsilon:g}, {policy}: table alone {base.mean():.4f}", flush=True)
                for what in by_seed[0][policy]:
                    lead = np.array([f[policy][what] for f in by_seed]) - base
                    row = {
                        "pool": name,
                        "epsilon": epsilon,
                        "policy": policy,
                        "trained on": what,
                        "utility": float(base.mean() + lead.mean()),
                        "difference": float(lead.mean()),
                        "standard error": float(standard_error(lead)),
                        "seeds": options.seeds,
                    }
                    rows.append(row)
                    if what != "table":
                        print(
                            f"    {what:14s} {row['difference']:+.4f} ± {row['standard error']:.4f}",
                            flush=True,
                        )
    write_figures(rows, options.json)
    return rows


if __name__ == "__main__":
    main()
