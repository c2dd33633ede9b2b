"""One problem for all folds of a table: each query once, with its predictions from when it was held out."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem


def join_folds(problems: Sequence[ReplayProblem]) -> ReplayProblem:
    """Return the test queries of all folds, fold after fold, as one problem; a single fold is returned as is.

    The joined problem holds queries, outcomes and predictions. Policies are not played on it: each fold has
    train queries and features of its own, so the joined problem has no offline rows, and contexts of fewer
    features than the widest fold's are filled up with zeros.
    """
    first = problems[0]
    if len(problems) == 1:
        return first
    width = max(p.dim for p in problems)
    changed: dict[str, Any] = {}
    for item in fields(ReplayProblem):
        values = [getattr(p, item.name) for p in problems]
        if not isinstance(values[0], np.ndarray) or item.name in ("input_prices", "clusters"):
            continue
        if item.name.startswith("offline_"):
            changed[item.name] = values[0][:0]
        elif item.name == "contexts":
            changed[item.name] = np.concatenate([_widened(v, width) for v in values])
        else:
            changed[item.name] = np.concatenate(values)
    changed["offline_contexts"] = np.zeros((0, width))
    changed["static_scores"] = {
        name: np.concatenate([p.static_scores[name] for p in problems]) for name in first.static_scores
    }
    changed["clusters"] = _clusters(problems)
    return replace(first, **changed)


def _widened(values: np.ndarray, width: int) -> np.ndarray:
    """Return the columns of `values` and columns of zeros up to `width`."""
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))


def _clusters(problems: Sequence[ReplayProblem]) -> np.ndarray:
    """Number the clusters of all folds, `[n]`, so that no cluster stands in two folds.

    In a fold without clusters, every query is a cluster of its own.
    """
    numbers = []
    start = 0
    for problem in problems:
        if problem.clusters is None:
            cluster = np.arange(problem.n)
        else:
            cluster = problem.clusters
        numbers.append(cluster + start)
        start += int(cluster.max()) + 1
    return np.concatenate(numbers)
