"""What linear policies learn, from the list of rows seen: solved from scratch at every question."""

from __future__ import annotations

import numpy as np


class RidgeByRows:
    """Ridge (or VAW) regression per arm."""

    def __init__(self, arms, dim, penalty, regression="ridge", prior=None):
        self.base = penalty * np.eye(dim) if prior is None else prior[0]
        self.moment = np.zeros((arms, dim)) if prior is None else prior[1]
        self.rows = [[] for _ in range(arms)]
        self.vaw = regression == "vaw"

    def observe(self, arm, x, y, weight=1.0):
        self.rows[arm].append((x, y, weight))

    def normal_equations(self, arm):
        A, b = self.base.copy(), self.moment[arm].copy()
        if self.rows[arm]:
            X, y, w = (np.array(column) for column in zip(*self.rows[arm], strict=True))
            A += X.T @ (w[:, None] * X)
            b += X.T @ (w * y)
        return A, b

    def theta(self):
        """Estimates [arms, dim]."""
        return np.array([np.linalg.solve(*self.normal_equations(arm)) for arm in range(len(self.rows))])

    def predict(self, arm, x):
        """(prediction, width squared) for x."""
        A, b = self.normal_equations(arm)
        if self.vaw:
            A = A + np.outer(x, x)
        solved = np.linalg.solve(A, np.stack([b, x], axis=1))
        return x @ solved[:, 0], x @ solved[:, 1]
