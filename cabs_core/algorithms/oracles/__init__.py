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
