"""Alignment of scores: do all models' scores belong to the same queries, and to the texts beside them?

If one model's column of a score matrix is in another order than the rest, its scores are independent of the
others within a task. Models that share an order form a block: correlated inside, uncorrelated with the other
blocks. Only the block whose order is that of the texts can be predicted from them. Both are tested by
permutation within tasks, so that differences between tasks explain nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

#: most rows that are tested, number of permutations of a test, and folds of the regression
_ROWS = 12_000
_PERMUTATIONS = 99
_FOLDS = 5
#: number of features of a text: 64 of its words, and two of its length
TEXT_FEATURES = 66
#: assumed correlation, within a task, of a model's scores with their best linear prediction from the texts
_USUAL = 0.2
#: size of the found correlation, in standard errors (`would_show`), from which the permutation test at 1 %
#: is significant in most tables
_SEEN = 4.3
#: p-value of a permutation test up to which a relation counts as seen; the least that 99 permutations give
LEVEL = 0.01
#: characters, each a word of its own, of scripts without spaces: Thai and Lao, Burmese, Khmer, kana, Chinese
_ALONE = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
#: regular expression of a word, or of a mark between words
WORD = rf"[{_ALONE}]|[^\W{_ALONE}]+|[^\w\s]"
#: blocks count as unrelated only if their correlation is surely below this share of the typical one
_NEGLIGIBLE = 0.25


@dataclass(frozen=True)
class Blocks:
    """Result of `correlation_blocks`.

    Attributes:
        correlations: within-task correlation of scores, `[K, K]`; NaN for models whose scores are constant
            within every task, and for all models if fewer than two vary.
        blocks: lists of arm indices, the largest first, without constant models. Blocks are connected
            components of the significant correlations, joined unless their mean correlation is surely
            negligible.
        conclusive: True if there are rows enough to tell "unrelated" from "not seen". If not, all models are
            one block. False as well if the scores of fewer than two models vary within a task.
        apart: indices of the blocks that prove misalignment, none or at least two (see `_unrelated_blocks`).
    """

    correlations: np.ndarray
    blocks: list[list[int]]
    conclusive: bool
    apart: tuple[int, ...] = ()


def correlation_blocks(scores: np.ndarray, tasks: np.ndarray, *, seed: int = 0) -> Blocks:
    """Return the blocks of models whose scores correlate within tasks, and which of the blocks are unrelated.

    Args:
        scores: scores of K models, `[n, K]`.
        tasks: task of each query, `[n]`.
        seed: seed of the sample of rows and of the permutations.
    """
    rng = np.random.default_rng([seed, 1])
    rows = sample_rows(len(scores), seed=seed)
    code = np.unique(tasks[rows], return_inverse=True)[1]
    residual = centre_by_task(scores[rows], code)
    varies = residual.std(axis=0) > 1e-12
    arms = np.flatnonzero(varies)
    k = scores.shape[1]
    correlations = np.full((k, k), np.nan)
    if len(arms) < 2:
        return Blocks(correlations, [arms.tolist()] if len(arms) else [], False)
    unit = residual[:, arms] / np.linalg.norm(residual[:, arms], axis=0)
    observed = unit.T @ unit
    correlations[np.ix_(arms, arms)] = observed
    upper = np.triu_indices(len(arms), 1)
    threshold = max(
        np.abs((shuffled.T @ shuffled)[upper]).max()
        for shuffled in (_shuffle(unit, code, rng) for _ in range(_PERMUTATIONS))
    )
    linked = np.abs(observed) > threshold
    strong = observed[upper][observed[upper] > threshold]
    if len(strong):
        typical = float(np.median(strong))
    else:
        typical = 0.0
    negligible = _NEGLIGIBLE * (typical or 0.3)
    # Weak but significant links do not join blocks: rows in another order keep a trace
    # of the tasks' inner order.
    linked &= np.abs(observed) > _NEGLIGIBLE * typical
    count, label = connected_components(linked, directed=False)
    members = [np.flatnonzero(label == b) for b in range(count)]
    members = _merge_unless_unrelated(members, observed, negligible, len(rows))
    blocks = sorted((arms[block].tolist() for block in members), key=lambda b: (-len(b), b[0]))
    conclusive = len(blocks) > 1 or bool(2 / np.sqrt(len(rows)) < negligible)
    apart = _unrelated_blocks(blocks, correlations, threshold, len(rows))
    return Blocks(correlations, blocks, conclusive, apart)


def _unrelated_blocks(
    blocks: list[list[int]], correlations: np.ndarray, threshold: float, rows: int
) -> tuple[int, ...]:
    """Return the indices of blocks that are unrelated to another block, though both correlate inside.

    A model alone in its block proves nothing: in true tables, too, some models are unlike the others. If all
    models depend on one difficulty of the queries, the correlation across two blocks is the geometric mean of
    the correlations inside them. Two blocks are unrelated if the correlation across them is below half of
    that mean by three standard errors, and each block has a pair that correlates by more than chance allows.
    `tests/core/data/validation/test_alignment.py` states the rate of false alarms.
    """

    def inside(block: list[int]) -> float:
        pairs = correlations[np.ix_(block, block)][np.triu_indices(len(block), 1)]
        if len(pairs) and pairs.max() > 1.25 * threshold:
            return float(pairs.mean())
        return 0.0

    unrelated: set[int] = set()
    for a in range(len(blocks)):
        for b in range(a):
            inside_a = inside(blocks[a])
            inside_b = inside(blocks[b])
            if min(inside_a, inside_b) <= 0:
                continue
            across = float(np.abs(correlations[np.ix_(blocks[a], blocks[b])].mean()))
            sizes = [
                (1 + (len(blocks[k]) - 1) * r) / len(blocks[k]) for k, r in ((a, inside_a), (b, inside_b))
            ]
            error = float(np.sqrt(sizes[0] * sizes[1] / rows))
            if across + 3 * error < 0.5 * np.sqrt(inside_a * inside_b):
                unrelated |= {a, b}
    return tuple(sorted(unrelated))


def _merge_unless_unrelated(
    blocks: list[np.ndarray], observed: np.ndarray, negligible: float, rows: int
) -> list[np.ndarray]:
    """Join blocks until the mean correlation across any two is surely (by two standard errors) negligible.

    The mean correlation across blocks A and B is the inner product of their mean unit vectors, whose squared
    lengths are the mean correlations inside (diagonal included). Under independence its standard error is
    sqrt(inside_A inside_B / n).
    """

    def mean(a: int, b: int) -> float:
        return float(observed[np.ix_(blocks[a], blocks[b])].mean())

    while len(blocks) > 1:
        bounds = {
            (a, b): abs(mean(a, b)) + 2 * np.sqrt(max(mean(a, a) * mean(b, b), 0) / rows)
            for a in range(len(blocks))
            for b in range(a)
        }
        (a, b), highest = max(bounds.items(), key=lambda item: item[1])
        if highest <= negligible:
            break
        blocks[b] = np.sort(np.concatenate([blocks[a], blocks[b]]))
        del blocks[a]
    return blocks


def predictability(
    scores: np.ndarray,
    tasks: np.ndarray,
    features: np.ndarray,
    groups: list[list[int]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return how well scores follow from the text within a task, by cross-validated ridge regression.

    Args:
        scores: `[n, K]`.
        tasks: `[n]`.
        features: features of the texts, `[n, d]`.
        groups: G lists of arm indices. A group's target is the mean of its models' standardised scores.

    Returns:
        The out-of-fold correlation of predicted and actual mean score of each group, `[G]`; and the one-sided
        permutation p-values, `[G]`. A group of constant scores has the correlation 0 and the p-value 1.
    """
    rng = np.random.default_rng([0, 1])
    rows = sample_rows(len(scores))
    code = np.unique(tasks[rows], return_inverse=True)[1]
    x = centre_by_task(np.asarray(features, dtype=np.float64)[rows], code)
    x /= np.sqrt((x**2).mean()) + 1e-12
    y = centre_by_task(scores[rows], code)
    y /= np.maximum(y.std(axis=0), 1e-12)
    targets = np.column_stack([y[:, group].mean(axis=1) for group in groups])
    g = targets.shape[1]
    shuffled = [_shuffle(targets, code, rng) for _ in range(_PERMUTATIONS)]
    correlation = _out_of_fold(x, np.column_stack([targets, *shuffled]), rng.permutation(len(rows)) % _FOLDS)
    null = correlation[g:].reshape(_PERMUTATIONS, g)
    p_values = (1 + (null >= correlation[:g]).sum(axis=0)) / (_PERMUTATIONS + 1)
    return correlation[:g], p_values


def would_show(rows: int, columns: int) -> bool:
    """Return True if most tables of this size show by `predictability` that their scores follow the texts.

    The scores are assumed to have the correlation r = 0.2 with their best linear prediction. The
    predictions of a regression on d columns and n rows have the correlation r sqrt(n r^2 / (n r^2 + d)) with
    scores of unseen rows.

    Args:
        rows: number of prompts, n.
        columns: number of features of the texts, d.
    """
    signal = rows * _USUAL**2
    found = _USUAL * math.sqrt(signal / (signal + columns))
    return found * math.sqrt(rows) >= _SEEN


def text_features(prompts: list[str], *, dim: int = TEXT_FEATURES - 2) -> np.ndarray:
    """Return features of texts without an encoder.

    The first two columns are of the length, the others are TF-IDF of words reduced by SVD.

    Args:
        prompts: the texts.
        dim: largest number of columns of words.

    Returns:
        `[n, d]`, d at most dim + 2. There are fewer columns if the texts have few words in common. Only the
        first 4,000 characters of a text give words.
    """
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415  (scikit-learn takes a second)
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415  (it takes a second)

    cut = [p[:4000] for p in prompts]
    words = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=20_000, token_pattern=WORD)
    try:
        matrix = words.fit_transform(cut)
    except ValueError:  # no word stands in two prompts
        matrix = None
    columns = [length_features(np.array([len(p) for p in prompts]))]
    if matrix is not None and min(matrix.shape) > 2:
        dim = min(dim, min(matrix.shape) - 1)
        with np.errstate(all="ignore"):  # identical texts have no variance to explain
            vectors = TruncatedSVD(dim, random_state=0, n_iter=2).fit_transform(matrix)
        columns.append(vectors / (vectors.std() + 1e-12))
    return np.hstack(columns)


def length_features(lengths: np.ndarray) -> np.ndarray:
    """Return features of the lengths of texts, `[n, 2]`.

    The first is the standardised logarithm l of the length, the second tanh(2 l), which is bounded.

    Args:
        lengths: characters or tokens, `[n]`. A negative one, which another check reports, counts as 0.
    """
    length = np.log1p(np.maximum(lengths.astype(np.float64), 0.0))
    length = (length - length.mean()) / (length.std() + 1e-9)
    return np.column_stack([length, np.tanh(2 * length)])


def sample_rows(n: int, *, seed: int = 0, most: int = _ROWS) -> np.ndarray:
    """Return the indices of all rows, or of a random sample in order, `[m]`.

    Args:
        n: number of rows.
        seed: seed of the sample.
        most: largest number of rows. The default, 12,000, is enough to see a correlation of 0.05.
    """
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, 0]).choice(n, most, replace=False))


def centre_by_task(values: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Return the values minus each task's mean, `[n, K]`.

    Args:
        values: `[n, K]`.
        code: task numbers from 0, `[n]`.
    """
    counts = np.bincount(code).astype(np.float64)
    means = np.column_stack([np.bincount(code, column) / counts for column in values.T])
    centred: np.ndarray = values - means[code]
    return centred


def _shuffle(values: np.ndarray, code: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return each column permuted within tasks, independently of the others."""
    home = np.argsort(code, kind="stable")
    shuffled = np.empty_like(values)
    for j in range(values.shape[1]):
        order = np.argsort(code + rng.random(len(code)))  # by task, at random within it
        shuffled[home, j] = values[order, j]
    return shuffled


def _out_of_fold(x: np.ndarray, y: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return the correlation of out-of-fold ridge predictions with each column of y.

    Args:
        x: features, `[n, d]`.
        y: targets, `[n, G]`.
        fold: fold of each row, `[n]`.
    """
    predicted = np.empty_like(y)
    penalty = 0.01 * len(x) * (x**2).mean() * np.eye(x.shape[1])
    for f in range(_FOLDS):
        fit = fold != f
        test = fold == f
        weights = np.linalg.solve(x[fit].T @ x[fit] + penalty, x[fit].T @ y[fit])
        predicted[test] = x[test] @ weights
    predicted -= predicted.mean(axis=0)
    actual = y - y.mean(axis=0)
    scale = np.linalg.norm(predicted, axis=0) * np.linalg.norm(actual, axis=0)
    correlation: np.ndarray = (predicted * actual).sum(axis=0) / np.maximum(scale, 1e-12)
    return correlation
