"""Replays of weird problems: one arm, one query, no train split, constant data, parts that cannot be, damaged files."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from cabs_core.catalog import CONDITIONS, all_policies
from cabs_core.problem import ReplayProblem
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay

from ..mutations import ANYTHING, broken_array, broken_bytes, broken_json, pick
from ..runner import Nonsense

COUNT, QUICK = 500, 40
FIELDS = [f.name for f in dataclasses.fields(ReplayProblem)]


def prepare() -> None:
    """Compile the loops."""
    small = synthetic_problem(n=4, K=3, d=2, seed=0, offline=5)
    for name in all_policies():
        replay(small, name, trials=1, rounds=2, options=_options(name))


def _options(name: str) -> dict:
    return {"hidden": 4, "batch": 2} if "neural" in name else {}


def _play(tally, rng, problem, *, sound: bool) -> None:
    name = pick(rng, all_policies())
    call = tally.sound if sound else tally.tried
    if not len(problem.offline_scores) and name in ("knn", "knn@literal", "ridge", "kernel_ridge"):
        call = tally.tried  # nothing to fit on, if the problem brings no predictions
    rho, condition = float(10.0 ** rng.uniform(-3, 6)), pick(rng, sorted(CONDITIONS))
    weight = 0.1 if problem.latencies is not None and rng.random() < 0.3 else 0.0
    result = call(
        lambda: replay(
            problem, name, rho=rho, trials=2, seed=int(rng.integers(99)), condition=condition, threads=1,
            latency_weight=weight, options=_options(name),
        )
    )  # fmt: skip
    if result is None:
        return
    k = problem.K
    fine = (result.actions >= 0).all() and (result.actions < k).all() and np.isfinite(result.rewards).all()
    fine = fine and (result.propensities > 0).all() and (result.propensities <= 1 + 1e-6).all()
    if not fine or ((result.rewards < 0) | (result.rewards > 1)).any():
        raise Nonsense(f"{name}, {condition}: actions {result.actions.min()}..{result.actions.max()} of {k}, propensities "
                       f"{result.propensities.min()}..{result.propensities.max()}")  # fmt: skip


def probe(tally, rng, ready) -> None:
    """A sound problem of odd size, the same with a broken part, broken arguments, and damaged files."""
    n, k, d = int(rng.integers(1, 12)), int(rng.integers(1, 7)), int(rng.integers(2, 6))
    problem = synthetic_problem(
        n=n, K=k, d=d, seed=int(rng.integers(99)), offline=int(rng.integers(2, 9)), latencies=True
    )
    flat = pick(rng, ("as is", "constant contexts", "equal scores", "free", "dear", "no train split"))
    change = {
        "as is": {}, "constant contexts": {"contexts": np.ones((n, d)), "offline_contexts": problem.offline_contexts * 0},
        "equal scores": {"scores": np.ones((n, k)), "predicted_scores": np.full((n, k), 0.5)},
        "free": {"costs": np.zeros((n, k)), "predicted_costs": np.zeros((n, k))}, "dear": {"costs": np.full((n, k), 1e9)},
        "no train split": {
            "offline_contexts": np.zeros((0, d)), "offline_scores": np.zeros((0, k)), "offline_costs": np.zeros((0, k)),
            "offline_embeddings": None, "offline_prompt_lengths": None,
        },
    }[flat]  # fmt: skip
    problem = tally.sound(lambda: dataclasses.replace(problem, **change))
    _play(tally, rng, problem, sound=flat != "no train split")
    name = pick(rng, FIELDS)
    value = getattr(problem, name)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and rng.random() < 0.7:
        value = broken_array(rng, value)[1]
    else:
        value = pick(rng, ANYTHING)
    broken = tally.tried(lambda: dataclasses.replace(problem, **{name: value}))
    if broken is not None:
        _play(tally, rng, broken, sound=False)
    what = pick(
        rng, ("rho", "trials", "seed", "rounds", "order", "condition", "latency_weight", "options", "policy")
    )
    given = {"policy": "lin_ucb", "trials": 1, "threads": 1}
    wrong = pick(rng, [v for v in ANYTHING if not (what == "trials" and isinstance(v, int) and v > 99)])
    tally.tried(lambda: replay(problem, **given | {what: wrong}))
    _files(tally, rng, problem)


def _files(tally, rng, problem) -> None:
    folder = Path(tempfile.mkdtemp(prefix="probe-"))
    try:
        tally.sound(lambda: problem.save(folder / "p"))
        meta = folder / "p" / "meta.json"
        if rng.random() < 0.5:
            meta.write_text(json.dumps(broken_json(rng, json.loads(meta.read_text()))))
        else:
            path = pick(rng, sorted((folder / "p").iterdir()))
            path.write_bytes(broken_bytes(rng, path.read_bytes()))
        verify = bool(rng.random() < 0.7)
        loaded = tally.tried(lambda: ReplayProblem.load(folder / "p", verify=verify))
        if loaded is not None:
            _play(tally, rng, loaded, sound=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
