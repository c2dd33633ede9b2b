"""Surrogate-reward oracles, and predictors of scores and costs: everything learned offline.

    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)   # Oracles
    oracles.save(folder); Oracles.load(folder)
    oracles.chosen, oracles.metrics              # head -> model used; validation errors per candidate
    problems = build_problems(outcomes, split, embeddings, oracles, pool)    # {split: ReplayProblem}
    report = diagnose(oracles, embeddings, outcomes, split)    # JSON: errors on test, per arm, calibration

`network`, `network_training`: the paper's network, by torch; `frozen_network`: its outputs, by NumPy.
`propagation`: surrogates by residual correlation. The static predictors among which heads are chosen are in
`cabs_core.algorithms.predictors`. A router imports `oracles` alone: what trains and diagnoses is imported
when it is asked for, and torch by neither.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cabs_core.algorithms.oracles.diagnostics import diagnose as diagnose
    from cabs_core.algorithms.oracles.from_arrays import problems_from_arrays as problems_from_arrays
    from cabs_core.algorithms.oracles.oracles import Oracles as Oracles
    from cabs_core.algorithms.oracles.problems import build_problems as build_problems
    from cabs_core.algorithms.oracles.train import train_oracles as train_oracles

_WHERE = {
    "Oracles": "cabs_core.algorithms.oracles.oracles",
    "build_problems": "cabs_core.algorithms.oracles.problems",
    "diagnose": "cabs_core.algorithms.oracles.diagnostics",
    "problems_from_arrays": "cabs_core.algorithms.oracles.from_arrays",
    "train_oracles": "cabs_core.algorithms.oracles.train",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
