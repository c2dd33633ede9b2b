"""Replay problems from arrays in memory: scores, costs, embeddings or features, and optional texts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import DataError
from cabs_core.base.masked import refuse_masked
from cabs_core.data.outcomes import Outcomes, make_splits, validation_rows
from cabs_core.data.outcomes.splits import SPLITS
from cabs_core.data.pool_files.sections import Features, Oracle, Split
from cabs_core.data.pool_files.table import SyntheticSource, TablePool


def problems_from_arrays(
    scores: ArrayLike,
    costs: ArrayLike,
    *,
    embeddings: ArrayLike | None = None,
    contexts: ArrayLike | None = None,
    arms: Sequence[str] | None = None,
    prompts: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    split: Sequence[str] | None = None,
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2),
    seed: int = 0,
    dim: int = 32,
    oracle: str = "ridge",
    name: str = "arrays",
) -> dict[str, ReplayProblem]:
    """Return the problems 'test' and 'validation' of an outcome table in memory.

    The oracles are trained on the table's train split. Of more than 5,000 validation queries, 'validation'
    holds 5,000, drawn by a fixed seed.

    Args:
        scores: [n, K] in [0, 1]. costs: [n, K] in USD, >= 0. Neither has gaps.
        embeddings: [n, e] of the prompts, by any encoder. Oracles and static predictors learn from them; the
            policies' contexts are their first `dim` principal components on the train split and a constant.
        contexts: [n, d] features for the policies, used as they are in place of components; no constant
            column is added. Without embeddings, oracles learn from them too. Embeddings or contexts must be
            given.
        arms: names of the K models; default model-0, model-1, ...
        prompts: n texts. Without them every row is a prompt of its own, without a length.
        tasks: n names, for conditions that shift between tasks; default: one task.
        split: n of train, validation and test; default: drawn by `seed` with these `fractions`, by prompts.
        seed: seed of the split and of the oracles. dim: number of components, at most e.
        oracle: ridge, network or auto, as `oracle.kind` of a pool file.
        name: name of the pool, on which the replays' random streams depend.

    Raises:
        DataError: shapes disagree, a value is no number, not finite or out of range, an array is masked, a
            split is empty, or there are fewer than 8 train or 2 validation queries.
        PoolError: `name` is no name for a pool.
        ValueError: `fractions`, `seed`, `dim` or `oracle` has no valid value.

    Examples:
        >>> import numpy as np
        >>> from cabs_core import problems_from_arrays
        >>> from cabs_core.evaluation.replay import replay
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(300, 16))
        >>> scores = (rng.random((300, 3)) < 1 / (1 + np.exp(-x[:, :3]))).astype(float)
        >>> problem = problems_from_arrays(scores, np.full((300, 3), 1e-4), embeddings=x, dim=8)["test"]
        >>> problem.n, problem.K, problem.dim, replay(problem, "lin_ts", trials=2).rounds
        (60, 3, 9, 60)
    """
    for what, names in (("arms", arms), ("prompts", prompts), ("tasks", tasks), ("split", split)):
        refuse_masked(what, names)
    y = _numbers("scores", scores)
    if y.ndim != 2 or not y.size:
        raise DataError(f"scores have shape {y.shape}, expected [n, K]")
    n, k = y.shape
    features = _matrix("contexts", contexts, n)
    vectors = _matrix("embeddings", embeddings, n)
    if vectors is None:
        vectors = features
    if vectors is None:
        raise DataError("give embeddings [n, e], contexts [n, d], or both")
    width = len(str(n))  # all ids have one length, so that an id's length carries no information
    ids = np.array([f"query-{i:0{width}d}" for i in range(n)])
    outcomes = Outcomes(
        query_ids=ids,
        prompts=ids.tolist() if prompts is None else [str(text) for text in prompts],
        tasks=np.array(["all"] * n if tasks is None else [str(task) for task in tasks]),
        arms=[f"model-{j}" for j in range(k)] if arms is None else [str(arm) for arm in arms],
        scores=y,
        costs=_numbers("costs", costs),
    )
    pool = TablePool(
        name=name,
        source=SyntheticSource(kind="synthetic"),
        split=Split(fractions=fractions, split_seed=seed),
        oracle=Oracle.model_validate({"kind": oracle, "oracle_seed": seed}),
        features=Features(dim=min(dim, vectors.shape[1])),
    )
    if split is None:
        parts = make_splits(outcomes, pool.split)
    else:
        parts = _given_split(split, n)
    oracles = train_oracles(vectors, outcomes, parts, pool.oracle, features=pool.features)
    problems = build_problems(outcomes, parts, vectors, oracles, pool)
    if features is None:
        return problems
    rows = {"test": parts == "test", "validation": validation_rows(parts)}
    train = features[parts == "train"]
    return {key: problem.with_contexts(features[rows[key]], train) for key, problem in problems.items()}


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    """Return the value as a float64 array of any shape; raise DataError if it is no array of numbers, or a
    masked one.
    """
    refuse_masked(name, value)
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are no array of numbers: {error}") from None


def _matrix(name: str, value: ArrayLike | None, n: int) -> np.ndarray | None:
    """Return the value as finite float64 `[n, features]`, or None for None; raise DataError for others."""
    if value is None:
        return None
    matrix = _numbers(name, value)
    if matrix.ndim != 2 or len(matrix) != n or not matrix.shape[1]:
        raise DataError(
            f"{name} have shape {matrix.shape}, expected [{n}, features]: one row a query, as scores"
        )
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise DataError(f"{name}[{row}, {column}] is {matrix[row, column]}, expected a finite number")
    return matrix


def _given_split(split: Sequence[str], n: int) -> np.ndarray:
    """Return the split as an array of n names; raise DataError unless each split occurs and no other name."""
    parts = np.asarray([str(part) for part in split])
    if len(parts) != n or set(parts) != set(SPLITS):
        raise DataError(
            f"split has {len(parts)} entries and the names {sorted(set(parts))[:5]}: expected {n} of "
            f"{', '.join(SPLITS)}, each at least once"
        )
    return parts
