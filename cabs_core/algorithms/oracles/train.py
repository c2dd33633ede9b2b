"""Training of all oracles of a pool, and the choice of a model for each head.

The pool's settings name the models, or leave the choice to the least error on validation (kind 'auto').

A predictor of scores is chosen by the squared error of the contrasts between the arms of a query, not by the
error of the scores. The difficulty of a prompt for all arms changes no decision, and the predictor that knows
the difficulty best is often not the one that knows the arms best.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from cabs_core.algorithms.oracles.frozen_network import Rows
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.propagation import CorrelationPropagation
from cabs_core.algorithms.predictors import make_score_predictor
from cabs_core.algorithms.predictors.base import contrast_error, contrasts
from cabs_core.algorithms.predictors.costs import ContextCostPredictor, CostPredictor
from cabs_core.algorithms.predictors.features import PcaFeatures, centred
from cabs_core.algorithms.predictors.neighbour_lists import NeighbourLists
from cabs_core.algorithms.predictors.tasks import TaskPredictor
from cabs_core.base.errors import DataError
from cabs_core.base.threads import one_blas_thread
from cabs_core.data.outcomes import Outcomes, validation_rows
from cabs_core.data.pool_files.sections import Features, Oracle

_PREDICTORS = ("mean", "ridge", "knn", "kernel_ridge")
_PRIOR_QUERIES = 500
#: train prompts on which the weight of the task predictor is cross-fitted
_CROSS_FITTED = 8192


@one_blas_thread()
def train_oracles(
    embeddings: np.ndarray,
    outcomes: Outcomes,
    split: np.ndarray,
    config: Oracle | None = None,
    *,
    features: Features | None = None,
    device: str = "cpu",
    lists: NeighbourLists | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Oracles:
    """Train all oracles on the train rows. The validation rows (`validation_rows`) end the network's training
    and serve choices that the settings leave open.

    The test rows are not looked at.

    Args:
        embeddings: `[n, e]` in the order of the outcomes.
        outcomes: n queries, K arms.
        split: `[n]` of 'train' | 'validation' | 'test', as `make_splits` gives it.
        config: the pool's `oracle` settings. Kind 'network' uses the network for scores, surrogates and
            costs. Kind 'ridge' uses ridge regressions of scores and costs, and residual correlation. Kind
            'auto' uses the best candidate of every head on validation; if the train split has several tasks,
            one candidate predicts the task (`predictors.tasks`).
        features: the pool's `features` settings, which choose the contexts. The network is trained unless the
            oracle's kind is 'ridge' and the contexts' kind is 'pca'.
        device: where the network is trained: 'auto', 'cpu', 'cuda'.
        lists: neighbours among the train rows, None if they are not known.
        progress: called with (epochs trained, epochs at most).

    Raises:
        DataError: shapes disagree, or fewer than 8 train or 2 validation rows.
    """
    config = config or Oracle()
    features = features or Features()
    if np.ndim(embeddings) != 2 or len(embeddings) != len(outcomes) or len(split) != len(outcomes):
        raise DataError(
            f"embeddings {np.shape(embeddings)} and split [{len(split)}] do not belong to {len(outcomes)} "
            "outcomes: compute them again from the same outcomes"
        )
    rows = np.flatnonzero(split == "train")
    held_out = validation_rows(split)
    if len(rows) < 8 or len(held_out) < 2:
        raise DataError(
            f"oracles need at least 8 train and 2 validation queries, got {len(rows)} and {len(held_out)}"
        )
    train = _SplitRows.of(embeddings, outcomes, rows)
    validation = _SplitRows.of(embeddings, outcomes, held_out)
    predictors = {}
    for name in _PREDICTORS:
        predictors[name] = make_score_predictor(name)
        predictors[name].use(lists)
        predictors[name].fit(
            train.x,
            train.lengths,
            train.y,
            validation=(validation.x, validation.lengths, validation.y),
            seed=config.oracle_seed,
        )
    pca = PcaFeatures.fit(train.x, features.dim)
    oracles = Oracles(
        arms=list(outcomes.arms),
        inputs=train.x.shape[1],
        predictors=predictors,
        costs=CostPredictor().fit(train.lengths, train.c),
        context_costs=ContextCostPredictor().fit(pca, train.x, train.lengths, train.c),
        correlation=CorrelationPropagation.fit(predictors["ridge"].predict(train.x, train.lengths), train.y),
        pca=pca,
        chosen={"accuracy": "ridge", "propagation": "correlation", "cost": "ridge", "features": "pca"},
    )
    oracles.metrics = {
        "outcomes_hash": outcomes.content_hash(),
        "rows": {name: int((split == name).sum()) for name in ("train", "validation", "test")},
        "settings": {**config.model_dump(mode="json"), "features": features.model_dump(mode="json")},
    }
    labels = outcomes.tasks[rows]
    if config.kind == "auto" and len(np.unique(labels)) > 1:
        train_arrays = train.x, train.lengths, train.y
        oracles.predictors["tasks"] = TaskPredictor().fit(
            *train_arrays, seed=config.oracle_seed, tasks=labels
        )
        oracles.blend["tasks"] = task_share(*train_arrays, labels, config.oracle_seed)
        del train_arrays
    if config.kind != "ridge" or features.kind != "pca":
        _set_scaling(oracles, train)
        learnt = _network_rows(oracles, train)
        of_validation = _network_rows(oracles, validation)
        del train  # the largest of all, and the network has its own copy
        _add_network(oracles, learnt, of_validation, config, features, device, progress)
    _choose(oracles, validation, config, features)
    return oracles


def task_share(
    embeddings: np.ndarray, lengths: np.ndarray, scores: np.ndarray, tasks: np.ndarray, seed: int
) -> float:
    """Return the weight in [0, 1) of the task predictor beside kernel_ridge.

    The weight is fitted to the contrasts between arms in each half of at most 8,192 random train prompts, as
    models fitted on the other half predict them.
    """
    rows = np.random.default_rng([seed, 52]).permutation(len(scores))[:_CROSS_FITTED]
    halves = rows[::2], rows[1::2]
    parts = []
    for seen, rest in (halves, halves[::-1]):
        seen_arrays = embeddings[seen], lengths[seen], scores[seen]
        task = TaskPredictor().fit(*seen_arrays, seed=seed, tasks=tasks[seen])
        kernel = make_score_predictor("kernel_ridge").fit(*seen_arrays, seed=seed)
        predicted = (p.predict(embeddings[rest], lengths[rest]) for p in (task, kernel))
        parts.append([contrasts(p) for p in (*predicted, scores[rest])])
    first, second, target = (np.concatenate(p) for p in zip(*parts, strict=True))
    return blend_share(first, second, target, toward=0.0)


@dataclass(frozen=True)
class _SplitRows:
    """Embeddings `[n, e]` float64, prompt lengths `[n]`, scores and costs `[n, K]` of one split."""

    x: np.ndarray
    lengths: np.ndarray
    y: np.ndarray
    c: np.ndarray

    @classmethod
    def of(cls, embeddings: np.ndarray, outcomes: Outcomes, rows: np.ndarray) -> Self:
        x = np.asarray(embeddings)[rows].astype(np.float64)
        return cls(x, outcomes.prompt_lengths[rows], outcomes.scores[rows], outcomes.costs[rows])


def _set_scaling(oracles: Oracles, train: _SplitRows) -> None:
    """Set `oracles.scaling`, centres and scales of the network's inputs and costs, from the train rows."""
    logs = np.log1p(train.lengths)
    level = train.x.mean()
    squares = sum(float((part**2).sum()) for part in centred(train.x, level))
    oracles.scaling = {
        "input_center": train.x.mean(axis=0),
        "input_scale": np.float64(max(np.sqrt(squares / train.x.size), 1e-12)),
        "log_center": np.float64(logs.mean()),
        "log_scale": np.float64(max(logs.std(), 1e-6)),
        "cost_center": train.c.mean(axis=0),
        "cost_scale": np.maximum(train.c.std(axis=0), 1e-12),
    }


def _network_rows(oracles: Oracles, part: _SplitRows) -> Rows:
    """Return standardised inputs, scores and standardised costs of a split, as the network takes them."""
    costs = (part.c - oracles.scaling["cost_center"]) / oracles.scaling["cost_scale"]
    return Rows(oracles.network_inputs(part.x, part.lengths), part.y, costs)


def _add_network(
    oracles: Oracles,
    learnt: Rows,
    held_out: Rows,
    config: Oracle,
    features: Features,
    device: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Train the network on `learnt` with early stopping on `held_out`; add it, the contexts of its feature
    head and its training log to the oracles.
    """
    from cabs_core.algorithms.oracles.network_training import train_network  # noqa: PLC0415  (torch: seconds)
    from cabs_core.data.encoders.transformer import choose_device  # noqa: PLC0415  (torch takes seconds)

    network, log = train_network(
        learnt,
        held_out,
        seed=config.oracle_seed,
        hidden=config.hidden,
        learning_rate=config.learning_rate,
        max_epochs=config.max_epochs,
        loss=config.loss,
        device=choose_device(device),
        progress=progress,
    )
    oracles.network = network.freeze()
    head = oracles.network.outputs(learnt.inputs, "features")
    oracles.head_pca = PcaFeatures.fit(head, features.dim)
    oracles.metrics["training"] = asdict(log)


def _choose(oracles: Oracles, validation: _SplitRows, config: Oracle, features: Features) -> None:
    """Set `chosen` and the network's shares in `blend`; record the validation errors of all candidates.

    The oracle's kind 'auto' chooses the candidate of the least error for accuracy (by the error of
    contrasts), cost and propagation. The kind of `features` chooses the contexts.
    """
    rows = (validation.x, validation.lengths)
    y = validation.y
    c = validation.c
    has_network = oracles.network is not None
    neural = ["network"] if has_network else []
    if config.kind == "network":
        oracles.chosen |= {"accuracy": "network", "propagation": "network", "cost": "network"}

    others = [name for name in ("tasks",) if name in oracles.predictors]
    predicted = {name: oracles.predict_scores(*rows, model=name) for name in [*_PREDICTORS, *others, *neural]}
    if has_network:
        pair = contrasts(predicted["network"]), contrasts(predicted["kernel_ridge"])
        share = oracles.blend["accuracy"] = blend_share(*pair, contrasts(y))
        predicted["blend"] = share * predicted["network"] + (1.0 - share) * predicted["kernel_ridge"]
    errors = {
        "accuracy": {name: _error(p, y) for name, p in predicted.items()},
        "contrasts": {name: contrast_error(p, y) for name, p in predicted.items()},
    }
    if config.kind == "auto":
        oracles.chosen["accuracy"] = _least(errors["contrasts"])

    unit = np.maximum(c.std(axis=0), 1e-12)
    costs = ["lengths", "ridge", *neural]
    errors["cost"] = {n: _error(oracles.predict_costs(*rows, model=n) / unit, c / unit) for n in costs}
    base = predicted[oracles.chosen["accuracy"]]
    pairs = {n: oracles.surrogate_scores(*rows, y, model=n, predicted=base) for n in ["correlation", *neural]}
    if has_network:
        target = np.broadcast_to(y[:, None, :], pairs["network"].shape)
        share = oracles.blend["propagation"] = blend_share(pairs["network"], pairs["correlation"], target)
        pairs["blend"] = share * pairs["network"] + (1.0 - share) * pairs["correlation"]
    errors["propagation"] = {n: pair_error(p, y) for n, p in pairs.items()}
    if config.kind == "auto":
        oracles.chosen["cost"] = _least(errors["cost"])
        oracles.chosen["propagation"] = _least(errors["propagation"])
    errors["features"] = feature_errors(oracles, *rows, y)
    if features.kind == "head" or (features.kind == "auto" and _least(errors["features"]) == "head"):
        oracles.chosen["features"] = "head"
    oracles.metrics["validation"] = errors


def feature_errors(
    oracles: Oracles,
    embeddings: np.ndarray,
    lengths: np.ndarray,
    scores: np.ndarray,
) -> dict[str, float]:
    """Measure how well ridges learn the arms' scores from few rows of this split, as a bandit would.

    Every arm's ridge sees its own random n / K rows (at least 30, at most half), as many as an arm is played
    on average, and is tested on the other rows. So a kind of context is judged by what can be learned from it
    online, not by its fit to the train split.

    Returns:
        {kind: mean squared error} over all arms and four draws; the kinds are 'pca' and, with a network,
        'head'.
    """
    n, k = scores.shape
    kinds = ["pca", *(["head"] if oracles.network is not None else [])]
    size = min(max(n // k, 30), n // 2)
    draws = [np.random.default_rng([7, r, j]).permutation(n) for r in range(4) for j in range(k)]
    errors = {}
    for kind in kinds:
        z = oracles.contexts(embeddings, lengths, kind=kind)
        total = 0.0
        for i, order in enumerate(draws):
            seen = order[:size]
            rest = order[size:]
            y = scores[:, i % k]
            gram = z[seen].T @ z[seen] + 10.0 * np.eye(z.shape[1])
            weights = np.linalg.solve(gram, z[seen].T @ y[seen])
            total += float(((np.clip(z[rest] @ weights, 0.0, 1.0) - y[rest]) ** 2).mean())
        errors[kind] = total / len(draws)
    return errors


def blend_share(first: np.ndarray, second: np.ndarray, target: np.ndarray, toward: float = 0.5) -> float:
    """Return the weight in [0, 1] of `first` in the least-squares mixture with `second`.

    The weight is shrunk to `toward`, which counts as 500 queries: on a few hundred queries the weight is
    mostly noise, and an equal mixture of two good predictors is hard to beat. Equal predictors give `toward`.
    """
    gap = first - second
    size = float((gap**2).sum())
    if size == 0.0:
        return toward
    n = len(target)
    weight = float(np.clip((gap * (target - second)).sum() / size, 0.0, 1.0))
    return (n * weight + _PRIOR_QUERIES * toward) / (n + _PRIOR_QUERIES)


def _least(errors: dict[str, float]) -> str:
    """Return the name of the candidate with the least error."""
    return min(errors, key=errors.__getitem__)


def _error(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the mean squared error."""
    return float(((predicted - actual) ** 2).mean())


def pair_error(surrogates: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean squared error of surrogate scores over all ordered pairs of different arms.

    Args:
        surrogates: `[n, K anchors, K]` score of every arm, predicted from the known score of the anchor,
            which is the arm that was played.
        scores: actual scores, `[n, K]`.
    """
    square = ((surrogates - scores[:, None, :]) ** 2).sum(axis=(1, 2))
    diagonal = ((np.einsum("tii->ti", surrogates) - scores) ** 2).sum(axis=1)
    k = scores.shape[1]
    return float((square - diagonal).mean() / max(k * (k - 1), 1))
