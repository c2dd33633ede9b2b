"""Predictors of scores and costs, and the surrogate-reward oracles. `static`: mean, ridge, kNN, kernel, cost."""
