"""Surrogate-reward oracles and predictors of scores and costs: everything learned offline.

    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)   # Oracles
    oracles.save(folder); Oracles.load(folder)
    oracles.chosen, oracles.metrics                        # head -> model used; validation errors per candidate
    problems = build_problems(outcomes, split, embeddings, oracles, pool)    # {'test', 'validation': ReplayProblem}

    report = diagnose(oracles, embeddings, outcomes, split)                  # JSON: errors on test, per arm, calibration
    pngs = diagnostic_plots(report, oracles.metrics.get("training"))         # {name: PNG bytes, < 100 kB each}

Stress conditions: `split_under`, `outcomes_under` alter splits and offline labels before training (`conditions`).

`static`, `kernel`: predictors mean, ridge, kNN, kernel and the cost by length, one interface. `network`,
`training`: the paper's network. `propagation`: surrogates by residual correlation. `features`: contexts.
Importing this package imports no torch.
"""

from cabs_core.oracles.conditions import outcomes_under, split_under
from cabs_core.oracles.diagnostics import diagnose
from cabs_core.oracles.oracles import Oracles
from cabs_core.oracles.plots import diagnostic_plots
from cabs_core.oracles.problems import build_problems
from cabs_core.oracles.train import train_oracles

__all__ = [
    "Oracles",
    "build_problems",
    "diagnose",
    "diagnostic_plots",
    "outcomes_under",
    "split_under",
    "train_oracles",
]
