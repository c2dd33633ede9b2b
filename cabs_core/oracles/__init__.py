"""Surrogate-reward oracles, and predictors of scores and costs: everything learned offline.

    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)   # Oracles
    oracles.save(folder); Oracles.load(folder)
    oracles.chosen, oracles.metrics                        # head -> model used; validation errors per candidate
    problems = build_problems(outcomes, split, embeddings, oracles, pool)    # {'test', 'validation': ReplayProblem}

    report = diagnose(oracles, embeddings, outcomes, split)          # JSON: errors on test, per arm, calibration

`network`, `network_training`: the paper's network. `propagation`: surrogates by residual correlation. The static
predictors among which heads are chosen are in `cabs_core.predictors`.
Importing this package imports no torch.
"""

from cabs_core.oracles.diagnostics import diagnose
from cabs_core.oracles.oracles import Oracles
from cabs_core.oracles.problems import build_problems
from cabs_core.oracles.train import train_oracles

__all__ = [
    "Oracles",
    "build_problems",
    "diagnose",
    "train_oracles",
]
