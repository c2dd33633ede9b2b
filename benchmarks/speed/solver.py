"""The exploration solver against cvxpy, Clarabel and Vowpal Wabbit: time and objective, in one run on one
thread.

    python -m benchmarks.speed.solver [--quick]

The instances are Bernoulli graphs with edge probability .5 to .73 and uniform losses, gamma in {1, 10, 100,
1000}. Every method gets the same instances, and its printed figure is the median over them. Ours is called
from compiled code. The objective is always F(p) of the distribution that a method returns, and its excess is
over our certified one.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.script import Script, write_figures
from cabs_core.algorithms.solver import workspace as layout
from cabs_core.algorithms.solver.api import make_workspace, solve_exploration
from cabs_core.algorithms.solver.program import objective
from cabs_core.algorithms.solver.reference import CvxpyParametric, ReferenceSolution, cvxpy_paper
from cabs_core.algorithms.solver.workspace import solve_kernel
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.threads import one_blas_thread
from tests.clarabel_direct import clarabel_direct
from tests.solver_instances import bernoulli_batch

GAMMAS = (1.0, 10.0, 100.0, 1000.0)
SMALL = (5, 11, 15, 18)
LARGE = (64, 256)
#: wanted speed-up over each peer at K = 15
TARGETS = {"cvxpy_paper": 3000.0, "cvxpy_parametric": 80.0, "clarabel_direct": 50.0}

#: losses `[K]`, graph `[K, K]` and gamma
Case = tuple[np.ndarray, np.ndarray, float]
#: (losses, graph, gamma) -> (p `[K]`, whether it says solved, the optimum that it claims)
Peer = Callable[[np.ndarray, np.ndarray, float], tuple[np.ndarray, bool, float | None]]


@kernel
def _solve_all(
    losses: np.ndarray, graphs: np.ndarray, gamma: float, tol: float, workspace: np.ndarray, p: np.ndarray
) -> tuple[int, int]:
    """Solve every instance, and return the number of iterations and the number of instances without a
    certificate.
    """
    iterations = 0
    failed = 0
    for b in range(losses.shape[0]):
        _, count, certified = solve_kernel(losses[b], graphs[b], gamma, tol, workspace, p[b])
        iterations += count
        failed += not certified
    return iterations, failed


def time_ours(
    f: np.ndarray, G: np.ndarray, gamma: float, tol: float, workspace: np.ndarray, *, repeats: int = 9
) -> dict[str, Any]:
    """Return the median over `repeats` passes of the seconds a solve, with iterations and failures."""
    p = np.empty_like(f)
    seconds = []
    iterations, failed = _solve_all(f, G, gamma, tol, workspace, p)
    for _ in range(repeats):
        start = time.process_time()
        _solve_all(f, G, gamma, tol, workspace, p)
        seconds.append((time.process_time() - start) / len(f))
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "instances": len(f),
        "iterations": iterations / len(f),
        "uncertified": int(failed),
        "p": p,
    }


def vowpal_wabbit(f: np.ndarray, G: np.ndarray, gamma: float) -> Callable[[], np.ndarray]:
    """Return a function that returns the p `[K]` of VW's --graph_feedback for some losses.

    VW's graph has the playing arm in the column: the transpose of ours. Losses reach the reduction exactly as
    given: one feature an arm with the loss as its value, one weight of 1.
    """
    import vowpalwabbit  # noqa: PLC0415  (of the extra peers)

    options = "--cb_explore_adf --graph_feedback --gamma_exponent 0 --noconstant --initial_weight 1 --quiet"
    model = vowpalwabbit.Workspace(f"{options} --gamma_scale {gamma}")
    edges = " ".join(f"{j},{i},{G[i, j]:.9g}" for i, j in np.argwhere(G > 0))
    example = [f"shared graph {edges} |", *(f"|a x:{loss:.9g}" for loss in f)]
    return lambda: np.array(model.predict(example))


def clipped_objective(p: np.ndarray, f: np.ndarray, G: np.ndarray, gamma: float) -> float:
    """Return F(p) after clipping to a distribution with positive weights, by which every method's p is
    scored.
    """
    p = np.clip(np.asarray(p, dtype=np.float64), 1e-15, None)
    return float(objective(p / p.sum(), f, G, gamma))


def time_peer(call: Peer, cases: Iterable[Case]) -> dict[str, Any]:
    """Return the median seconds over the cases, and how the peer's answers compare with ours.

    `worst_claim` is the largest difference between the optimum that the peer claims and ours, where it says
    solved and gamma < 100.

    Args:
        call: function that returns p, whether it is solved, and the claimed optimum.
        cases: the instances.
    """
    seconds = []
    excess = []
    relative = []
    claims = []
    solved = 0
    for f, G, gamma in cases:
        start = time.process_time()
        p, said_solved, claimed = call(f, G, gamma)
        seconds.append(time.process_time() - start)
        best = solve_exploration(f, G, gamma).objective
        reached = clipped_objective(p, f, G, gamma) if np.isfinite(p).all() else float("inf")
        excess.append(reached - best)
        relative.append(reached / best if best > 1e-6 else float("nan"))
        solved += said_solved
        if said_solved and gamma < 100 and claimed is not None:
            claims.append(abs(claimed - best))
    worst = np.nanmax(relative) if np.isfinite(relative).any() else None
    return {
        "seconds": statistics.median(seconds),
        "instances": len(seconds),
        "solved": solved,
        "worst_claim": float(max(claims)) if claims else None,
        "worst_excess": float(max(excess)),
        "worst_ratio": None if worst is None else float(worst),
    }


def _peers(K: int, cases: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures of every peer that is installed, each on its own number of cases."""
    parametric = CvxpyParametric(K)
    parametric(*cases["warm"])  # the first call canonicalises

    def adapt(reference: Callable[[np.ndarray, np.ndarray, float], ReferenceSolution]) -> Peer:
        def call(f: np.ndarray, G: np.ndarray, gamma: float) -> tuple[np.ndarray, bool, float | None]:
            answer = reference(f, G, gamma)
            return answer.p, answer.solved, answer.claimed

        return call

    result = {
        "cvxpy_paper": time_peer(adapt(cvxpy_paper), cases["slow"]),
        "cvxpy_parametric": time_peer(adapt(parametric), cases["fast"]),
        "clarabel_direct": time_peer(adapt(clarabel_direct), cases["fast"]),
    }
    if importlib.util.find_spec("vowpalwabbit"):
        models = {id(case[0]): vowpal_wabbit(*case) for case in cases["slow"]}
        result["vowpal_wabbit"] = time_peer(lambda f, G, gamma: (models[id(f)](), True, None), cases["slow"])
    return result


def compile_seconds(K: int) -> dict[str, float]:
    """Return the processor seconds of a new process up to its first solve, with an empty kernel cache and a
    full one.
    """
    code = (
        "import time\n"
        "from cabs_core import solve_exploration\n"
        f"import numpy as np; solve_exploration(np.arange({K}.0), np.eye({K}), 10.0)\n"
        "print(time.process_time())\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "NUMBA_CACHE_DIR": folder}
        run = [
            float(
                subprocess.run(
                    [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
                ).stdout
            )
            for _ in range(2)
        ]
    return {"empty_cache": run[0], "full_cache": run[1]}


def _small(K: int, gammas: tuple[float, ...], quick: bool) -> dict[str, Any]:
    f, G = bernoulli_batch(np.random.default_rng(K), K, 100 if quick else 1000)
    workspace = make_workspace(K)
    by_gamma = {}
    for gamma in gammas:
        for tol in (1e-8, 1e-6):
            answer = time_ours(f, G, gamma, tol, workspace, repeats=3 if quick else 9)
            answer.pop("p")
            by_gamma[f"gamma {gamma:g}, tol {tol:g}"] = answer
    fast, slow = (1, 1) if quick else (8, 2)
    cases: dict[str, Any] = {
        "warm": (f[0], G[0], 10.0),
        "fast": [(f[b], G[b], gamma) for gamma in gammas for b in range(fast)],
        "slow": [(f[b].copy(), G[b], gamma) for gamma in gammas for b in range(slow)],
    }
    ours = {
        tol: statistics.mean(r["seconds"] for key, r in by_gamma.items() if key.endswith(f"tol {tol}"))
        for tol in ("1e-08", "1e-06")
    }
    peers = _peers(K, cases)
    ratios = {name: peer["seconds"] / ours["1e-08"] for name, peer in peers.items()}
    uncertified = sum(r["uncertified"] for r in by_gamma.values())
    return {
        "K": K,
        "ours": ours,
        "by_gamma": by_gamma,
        "peers": peers,
        "ratios": ratios,
        "uncertified": uncertified,
    }


def _large(K: int, gammas: tuple[float, ...], quick: bool) -> list[dict[str, Any]]:
    """Return the times of the active set and of the kernel on all arms, by gamma; Clarabel up to K = 64."""
    count = 3 if quick or K > 100 else 20
    f, G = bernoulli_batch(np.random.default_rng(K), K, count)
    active = make_workspace(K)
    dense = make_workspace(K)
    dense[layout.PRIMARY] = dense[layout.FALLBACK]
    rows = []
    for gamma in gammas:
        row: dict[str, Any] = {"K": K, "gamma": gamma}
        for name, workspace in (("default", active), ("all_arms", dense)):
            answer = time_ours(f, G, gamma, 1e-8, workspace, repeats=3)
            p = answer.pop("p")
            row[name] = answer | {"support": float((p > 1e-6).sum(1).mean())}
        if K <= 64:
            case = [(f[0], G[0], gamma)]
            direct = time_peer(lambda *a: (lambda r: (r.p, r.solved, r.claimed))(clarabel_direct(*a)), case)
            row["clarabel_direct"] = direct
        rows.append(row)
    return rows


def duration(seconds: float | None) -> str:
    """Return a duration for people: 3.1 us, 42 ms, 1.9 s; a dash for None."""
    if seconds is None:
        return "-"
    scale, unit = next((s for s in ((1.0, "s"), (1e-3, "ms")) if seconds >= s[0]), (1e-6, "us"))
    value = seconds / scale
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print an aligned table."""
    print(f"\n{title}\n{pd.DataFrame(rows, columns=columns).to_string(index=False)}")


def _print(
    small: list[dict[str, Any]],
    large: list[dict[str, Any]],
    compiled: dict[str, Any],
    targets: dict[str, Any],
) -> None:
    names = {"cvxpy_paper": "cvxpy, paper's form", "cvxpy_parametric": "cvxpy, parameters"}
    names |= {"clarabel_direct": "Clarabel, direct", "vowpal_wabbit": "Vowpal Wabbit"}
    rows = [("ours, tol 1e-8", *(duration(r["ours"]["1e-08"]) for r in small))]
    rows.append(("ours, tol 1e-6", *(duration(r["ours"]["1e-06"]) for r in small)))
    present = [n for n in names if n in small[0]["peers"]]
    rows += [(names[n], *(duration(r["peers"][n]["seconds"]) for r in small)) for n in present]
    rows += [(f"{names[n]} / ours", *(f"{r['ratios'][n]:,.0f} x" for r in small)) for n in present]
    show(
        "Time of one solve (mean over gamma 1, 10, 100, 1000)", ("", *(f"K = {r['K']}" for r in small)), rows
    )
    rows = []
    for name in present:
        for text, key in (
            ("said solved", "solved"),
            ("worst difference of the claimed optimum, gamma < 100", "worst_claim"),
            ("worst excess over ours", "worst_excess"),
            ("worst F(p) / ours", "worst_ratio"),
        ):
            cells = []
            for r in small:
                peer = r["peers"][name]
                cells.append(
                    f"{peer[key]}/{peer['instances']}"
                    if key == "solved"
                    else "-"
                    if peer[key] is None
                    else f"{peer[key]:.2g}"
                )
            rows.append((f"{names[name]}: {text}", *cells))
    show("Objective", ("", *(f"K = {r['K']}" for r in small)), rows)
    rows = [
        (
            f"{r['K']}, gamma {r['gamma']:g}",
            duration(r["default"]["seconds"]),
            duration(r["all_arms"]["seconds"]),
            duration(r["clarabel_direct"]["seconds"]) if "clarabel_direct" in r else "-",
            f"{r['default']['support']:.0f}",
            r["default"]["uncertified"],
        )
        for r in large
    ]
    show("Many arms", ("K", "ours", "ours, all arms", "Clarabel", "support", "uncertified"), rows)
    show(
        "First solve in a new process (processor time, imports included)",
        ("K", "empty cache", "full cache"),
        [(K, duration(c["empty_cache"]), duration(c["full_cache"])) for K, c in compiled.items()],
    )
    show(
        "At K = 15",
        ("against", "wanted", "measured", "met"),
        [
            (names[n], f"{t['wanted']:,.0f} x", f"{t['measured']:,.0f} x", "yes" if t["met"] else "no")
            for n, t in targets.items()
        ],
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, return the figures.

    `--quick` takes few instances, one gamma, K = 5, 15 and 64.
    """
    parser = Script(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="Few instances: to see that it runs")
    options = parser.parse_args(argv)
    quick = options.quick
    gammas = (10.0,) if quick else GAMMAS
    with one_blas_thread():
        small = [_small(K, gammas, quick) for K in ((5, 15) if quick else SMALL)]
        large = [row for K in ((64,) if quick else LARGE) for row in _large(K, gammas, quick)]
    compiled = {} if quick else {str(K): compile_seconds(K) for K in (15,)}
    at_15 = next(r for r in small if r["K"] == 15)
    targets = {
        name: {"wanted": ratio, "measured": at_15["ratios"][name], "met": at_15["ratios"][name] >= ratio}
        for name, ratio in TARGETS.items()
    }
    _print(small, large, compiled, targets)
    figures = {
        "gammas": list(gammas),
        "small": small,
        "large": large,
        "compile": compiled,
        "targets": targets,
    }
    write_figures(figures, options.json)
    return figures


if __name__ == "__main__":
    main()
