"""Speed of a replay on one thread, ours and the peers' side by side, as ratios.

    python -m benchmarks.speed.replay [--quick] [--sweep]

Measurements of a pair alternate in short slices of processor time, so that waiting for a busy machine does
not count. The time of a side is that of its fastest slice, the least disturbed one, and the printed ratio is
that of the two. There are K = 15 arms and d = 128 features, with `--quick` fewer. Each record holds the ratio
that it is required to reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.speed.peers import PEERS, Round, numpy_peer
from cabs_core.algorithms.graph.affinity import edge_probabilities
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, LoopPolicy, Stream
from cabs_core.algorithms.policies.registry import build_policy
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.algorithms.solver.reference import CvxpyParametric
from cabs_core.base.threads import one_blas_thread
from cabs_core.base.utility import margin
from cabs_core.evaluation.replay import replay
from cabs_core.evaluation.replay.engine import make_stream

RHO = 300.0
SWEEP_MINUTES = 20.0
NUMPY_RATIOS = {"epsilon_greedy": 5.0, "square_cb": 5.0, "lin_ucb": 2.5}
PEER_RATIO = 10.0
CVXPY_RATIO = 50.0
SLICE = 5e-3  # seconds
LINEAR = (
    "epsilon_greedy",
    "square_cb",
    "lin_ucb",
    "lin_ts",
    "lin_ucb@warm",
    "lin_ucb_full",
    "cabs_c_linear@literal",
    "cabs_c_linear",
    "cabs_c_linear@tuned",
    "cabs_d_linear@literal",
    "cabs_d_linear",
    "cabs_d_linear@tuned",
)


class Ours:
    """One of our policies on one lane, advanced some rounds at a time."""

    def __init__(self, name: str, stream: Stream, order: np.ndarray, **options: Any):
        self.stream = stream
        self.policy = build_policy(
            name,
            arms=stream.arms,
            dim=stream.contexts.shape[1],
            rho=RHO,
            offline=stream.offline,
            horizon=len(order),
            **options,
        )
        self.lane = Lane.empty(order, experts=self.policy.algorithm.experts)
        self.at = 0

    def advance(self, rounds: int) -> float:
        """Return the seconds per round of the next rounds. The stream starts over at its end, with the same
        models.
        """
        if self.at + rounds > len(self.lane.order):
            self.at = 0
        begin = time.process_time()
        algorithm = self.policy.algorithm
        assert isinstance(algorithm, LoopPolicy)
        algorithm.run(self.stream, self.lane, self.at, self.at + rounds)
        self.at += rounds
        return (time.process_time() - begin) / rounds

    def slice(self, most: int) -> int:
        """Return the number of rounds of a slice of about SLICE seconds."""
        return min(most, max(64, int(SLICE / self.advance(most)) // 64 * 64))

    def lane_bytes(self) -> int:
        """Return the memory that a lane adds to the shared arrays: models, scratch and traces."""
        policy = self.policy.algorithm
        assert isinstance(policy, CompiledPolicy)
        traces = (self.lane.order, self.lane.actions, self.lane.propensities, self.lane.gaps)
        return _array_bytes(policy.parts()) + sum(a.nbytes for a in traces)


def _array_bytes(parts: Any) -> int:
    """Return the size of all arrays in nested tuples."""
    if isinstance(parts, np.ndarray):
        return parts.nbytes
    return sum(_array_bytes(part) for part in parts) if isinstance(parts, tuple) else 0


class Peer:
    """A peer's round function over the same rows."""

    def __init__(self, play: Round, stream: Stream, order: np.ndarray):
        self.play = play
        self.stream = stream
        self.order = order
        self.at = 0
        self.actions: list[int] = []

    def advance(self, rounds: int) -> float:
        """Return the seconds per round of the next rounds."""
        begin = time.process_time()
        for _ in range(rounds):
            row = self.order[self.at % len(self.order)]
            rewards = self.stream.utilities[row]
            self.actions.append(self.play(self.stream.contexts[row], partial(_reward, rewards)))
            self.at += 1
        return (time.process_time() - begin) / rounds


class CvxpyPeer:
    """A round written with cvxpy over the same rows, from the first one at every call."""

    def __init__(self, play: Callable[[Stream, int], None], stream: Stream, order: np.ndarray):
        self.play = play
        self.stream = stream
        self.order = order

    def advance(self, rounds: int) -> float:
        """Return the seconds per round of the first rounds."""
        begin = time.process_time()
        for i in range(rounds):
            self.play(self.stream, int(self.order[i]))
        return (time.process_time() - begin) / rounds


def _reward(rewards: np.ndarray, arm: int) -> float:
    return float(rewards[arm])


def side_by_side(
    ours: Ours, peer: Peer | CvxpyPeer, slices: int, our_rounds: int, peer_rounds: int
) -> dict[str, float]:
    """Return the microseconds of the fastest slice of each side, measured in turns, and their ratio."""
    ours.advance(our_rounds)
    peer.advance(max(2, peer_rounds // 4))
    # slices of a few milliseconds: a busy machine lets some of them through undisturbed
    our_rounds = ours.slice(our_rounds)
    peer_rounds = max(1, min(peer_rounds, int(SLICE / peer.advance(max(1, peer_rounds // 4)))))
    pairs = np.array([(ours.advance(our_rounds), peer.advance(peer_rounds)) for _ in range(slices)])
    ours_us, peer_us = (float(x) for x in pairs.min(axis=0) * 1e6)
    return {"ours_us": ours_us, "peer_us": peer_us, "ratio": peer_us / ours_us}


def cvxpy_round(name: str, K: int, d: int) -> Callable[[Stream, int], None]:
    """Return one round of CABS-C (or CABS-D with SquareCB) in NumPy, with cvxpy for the program, as one
    writes it first.
    """
    solver = CvxpyParametric(K)
    rng = np.random.default_rng(0)
    inverse = np.tile(np.eye(d) / 10.0, (2, K, 1, 1))
    theta = np.zeros((2, K, d))
    weights = np.zeros(2)
    state = {"t": 0}

    def observe(m: int, arm: int, x: np.ndarray, y: float) -> None:
        u = inverse[m, arm] @ x
        scale = 1.0 / (1.0 + x @ u)
        theta[m, arm] += u * (scale * (y - theta[m, arm] @ x))
        inverse[m, arm] -= np.outer(u, u * scale)

    def play(stream: Stream, row: int) -> None:
        x = stream.contexts[row]
        ybar = stream.predicted_scores[row]
        graph = (rng.random((K, K)) < edge_probabilities(ybar)).astype(float)
        np.fill_diagonal(graph, 1.0)
        mu = np.clip(theta[1] @ x, 0, 1)
        p = np.maximum(solver(1.0 - mu, graph, 4.0 * np.sqrt(state["t"] + 1)).p, 0.0)
        p /= p.sum()
        q = p
        if name == "cabs_d_linear":
            expected = np.clip(theta[0] @ x, 0, 1)
            first = 1.0 / (K + 64.0 * np.sqrt(state["t"] + 1) * (expected.max() - expected))
            first[np.argmax(expected)] = 0.0
            first[np.argmax(expected)] = 1.0 - first.sum()
            share = np.exp(weights - weights.max())
            share /= share.sum()
            q = share[0] * first + share[1] * p
        arm = min(int(np.searchsorted(np.cumsum(q), rng.random())), K - 1)
        y = stream.scores[row, arm]
        r = stream.utilities[row, arm]
        if name == "cabs_d_linear":
            observe(0, arm, x, r)
            weights[0] -= 0.03 * (1 - r) * first[arm] / (q[arm] + 1e-3)
            weights[1] -= 0.03 * (1 - r) * p[arm] / (q[arm] + 1e-3)
        worth = margin(stream.predicted_costs[row], stream.rho)
        surrogate = np.clip(y + stream.deltas[row, arm], 0, 1) * worth
        for j in np.flatnonzero(graph[arm]):
            observe(1, int(j), x, r if j == arm else float(surrogate[j]))
        state["t"] += 1

    return play


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print a table and return the figures.

    `--quick` uses few rounds (smoke test, not for claims); `--sweep` also runs and times the whole sweep of a
    pool (some minutes).
    """
    parser = Script(__file__, __doc__)
    parser.add_argument(
        "--sweep", action="store_true", help="Run a whole pool's sweep of linear policies too"
    )
    parser.add_argument("--quick", action="store_true", help="Small sizes: to see that it runs")
    args = parser.parse_args(argv)
    with one_blas_thread():
        figures = _measure(args.quick)
        if args.sweep:
            figures["sweep"] = sweep(args.quick)
    print("\n".join(show(figures)))
    write_figures(figures, args.json)
    return figures


def _measure(quick: bool) -> dict[str, Any]:
    K, d, n = (5, 16, 600) if quick else (15, 128, 8800)
    slices = 3 if quick else 40
    problem = synthetic_problem(n=n, K=K, d=d, offline=200)
    stream = make_stream(problem, RHO)
    order = np.random.default_rng(0).permutation(n)
    figures: dict[str, Any] = {"K": K, "d": d, "threads": 1, "records": [], "policies": []}
    chunk = 128 if quick else 1024

    def record(
        policy: str, against: str, ratios: dict[str, float], required: float | None, **extra: Any
    ) -> None:
        ok = None if required is None else ratios["ratio"] >= required
        figures["records"].append(
            {"policy": policy, "against": against, **ratios, "required": required, "ok": ok, **extra}
        )

    for kind, required in NUMPY_RATIOS.items():
        ours = Ours(kind, stream, order)
        peer = Peer(numpy_peer(kind, K, d), stream, order)
        ratios = side_by_side(ours, peer, slices, chunk, chunk // 4)
        extra: dict[str, Any] = {}
        if kind == "lin_ucb":
            fresh = Ours(kind, stream, order)
            same = Peer(numpy_peer(kind, K, d, decimals=11), stream, order)
            fresh.advance(n)
            same.advance(n)
            extra["identical_actions"] = fresh.lane.actions.tolist() == [int(a) for a in same.actions]
            extra["compared_rounds"] = n
        record(kind, "numpy", ratios, required, **extra)
    for kind, makers in PEERS.items():
        known: dict[str, dict[str, Any]] = {
            "lin_ts": {"propensity": "sampled"},
            "pareto_bandit": {"prior_rounds": 0.0, "alpha": 0.05},
        }
        options = known.get(kind, {})
        for name, maker in makers.items():
            try:
                peer = Peer(maker(kind, K, d), stream, order)
                peer.advance(2)
            except ImportError as error:
                figures["records"].append(
                    {"policy": kind, "against": name, "skipped": f"not installed: {error}"}
                )
                continue
            ratios = side_by_side(
                Ours(kind, stream, order, **options), peer, slices, chunk, 8 if quick else 40
            )
            record(kind, name, ratios, PEER_RATIO)
    for kind in ("cabs_c_linear", "cabs_d_linear"):
        options = (
            {"tol": 1e-6}
            if kind == "cabs_c_linear"
            else {"experts": ["square_cb", ["cabs_c", {"tol": 1e-6}]]}
        )
        ours = Ours(kind, stream, order, **options)
        play = cvxpy_round(kind, K, d)
        ratios = side_by_side(ours, CvxpyPeer(play, stream, order), slices, chunk, 3 if quick else 20)
        extra = {"max_gap": float(np.nanmax(ours.lane.gaps)), "uncertified": ours.lane.uncertified}
        record(kind, "cvxpy_dpp", ratios, CVXPY_RATIO, **extra)
    for name in LINEAR:
        ours = Ours(name, stream, order)
        ours.advance(chunk)
        us = _fastest(ours, chunk, quick)
        figures["policies"].append(
            {
                "policy": name,
                "us_per_round": us,
                "rounds_per_second": 1e6 / us,
                "lane_bytes": ours.lane_bytes(),
            }
        )
    one_arm = Ours("cabs_c_linear", stream, order, pseudo_weight=0.0)
    one_arm.advance(chunk)
    us = _fastest(one_arm, chunk, quick)
    figures["policies"].append(
        {
            "policy": "cabs_c_linear, one-arm updates",
            "us_per_round": us,
            "rounds_per_second": 1e6 / us,
            "lane_bytes": one_arm.lane_bytes(),
        }
    )
    return figures


def sweep(quick: bool = False, cores: int = 2) -> dict[str, Any]:
    """Return the time of a whole sweep of one pool: every linear policy at every rho in every trial."""
    n, K, d = (300, 5, 16) if quick else (8800, 15, 128)
    rhos, trials = ((0.0, 1000.0), 2) if quick else (tuple(float(r) for r in range(0, 1001, 50)), 10)
    problem = synthetic_problem(n=n, K=K, d=d, offline=200)
    replay(problem, "lin_ts", rho=RHO, trials=1, threads=cores)  # compiling is no part of it
    policies = []
    begin = time.perf_counter()
    worked = time.process_time()
    for name in LINEAR:
        at = time.perf_counter()
        for rho in rhos:
            replay(problem, name, rho=rho, trials=trials, threads=cores)
        policies.append({"policy": name, "seconds": time.perf_counter() - at})
        print(f"{name}: {len(rhos)} rhos x {trials} trials in {policies[-1]['seconds']:.1f} s", flush=True)
    return {
        "what": f"{n} rounds x {K} arms, d = {d}, {len(rhos)} rhos x {trials} trials, {len(LINEAR)} "
        "linear policies, "
        f"{cores} threads",
        "policies": policies,
        "minutes": (time.perf_counter() - begin) / 60,
        "processor_minutes": (time.process_time() - worked) / 60,
        "required_minutes": SWEEP_MINUTES,
    }


def _fastest(ours: Ours, chunk: int, quick: bool) -> float:
    """Return the microseconds per round of the fastest slice."""
    rounds = ours.slice(chunk)
    return min(ours.advance(rounds) for _ in range(2 if quick else 40)) * 1e6


def show(figures: dict[str, Any]) -> list[str]:
    """Return the lines of Markdown."""
    lines = [
        f"K = {figures['K']}, d = {figures['d']}, one thread",
        "",
        "| policy | against | ours us | peer us | ratio | required | ok |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in figures["records"]:
        if "skipped" in r:
            lines.append(f"| {r['policy']} | {r['against']} | | | | | {r['skipped']} |")
        else:
            lines.append(
                f"| {r['policy']} | {r['against']} | {r['ours_us']:.1f} | {r['peer_us']:.0f} | "
                f"{r['ratio']:.1f} | {r['required']:g} | {'yes' if r['ok'] else 'no'} |"
            )
    lines += ["", "| policy | us a round | rounds a second | MB a lane |", "|---|---|---|---|"]
    for p in figures["policies"]:
        lines.append(
            f"| {p['policy']} | {p['us_per_round']:.1f} | {p['rounds_per_second']:.0f} | "
            f"{p['lane_bytes'] / 1e6:.1f} |"
        )
    if "sweep" in figures:
        sweep = figures["sweep"]
        lines += [
            "",
            f"Sweep ({sweep['what']}): {sweep['minutes']:.1f} min, {sweep['processor_minutes']:.1f} min of "
            f"processor time (required: under {sweep['required_minutes']:g})",
        ]
    return lines


if __name__ == "__main__":
    main()
