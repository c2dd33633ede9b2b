"""Surrogate-reward oracles, and predictors of scores and costs: everything learned offline.

    oracles = train_oracles(embeddings, outcomes, split, pool.oracle, features=pool.features)   # Oracles
    oracles.save(folder); Oracles.load(folder)
    oracles.chosen, oracles.metrics              # head -> model used; validation errors per candidate
    problems = build_problems(outcomes, split, embeddings, oracles, pool)    # {split: ReplayProblem}
    report = diagnose(oracles, embeddings, outcomes, split)    # JSON: errors on test, per arm, calibration

`network`, `network_training`: the paper's network, by torch; `frozen_network`: its outputs, by NumPy.
`propagation`: surrogates by residual correlation. The static predictors among which heads are chosen are in
`cabs_core.algorithms.predictors`.

This file imports nothing. Import `train_oracles` from `train`, `Oracles` from `oracles`, `build_problems`
from `problems` and `diagnose` from `diagnostics`. Of these four a router that serves imports `oracles` alone.
None of the four imports torch when it is imported: `train_oracles` does so when it trains a network.
"""
