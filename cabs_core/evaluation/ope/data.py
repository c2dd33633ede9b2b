"""Logged decisions with their outcomes as arrays, read from a router's log, from outcomes or from a table.

`LoggedData` is what the estimators of this package take. The three readers are `read_events`, `read_outcomes`
and `read_table`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.algorithms.predictors.propensities import propensity_model
from cabs_core.base.errors import DataError
from cabs_core.base.statistics.clusters import clusters_of
from cabs_core.data.events.log import EventLog
from cabs_core.data.logs.names import base_of
from cabs_core.data.logs.read import Log, known_propensities, log_of_frame, read_log
from cabs_core.data.logs.receipt import merging
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.evaluation.ope.models import folds

#: the smallest number above 0
_ABOVE = np.nextafter(0.0, 1.0)
#: fields that concern the whole log, not single decisions
_WHOLE = ("arms", "left", "adaptive", "receipt")


@dataclass(frozen=True)
class LoggedData:
    """n scored decisions between K arms.

    Only a part of the decisions of a log may be here, such as those that were marked to be scored.
    Probabilities are those among the decisions that are here, unless a field says otherwise.

    Attributes:
        arms: `[K]` names.
        actions: int64 `[n]` number of the played arm.
        scores: `[n]` in [0, 1].
        costs: `[n]` USD, 0 or more.
        features: `[n, d]` features for the models of outcomes; d may be 0.
        groups: text `[n]`, equal for decisions of one prompt.
        propensities: `[n]` probability of the played arm in (0, 1]. None takes it from `pmf`; without
            `pmf` it is unknown.
        pmf: `[n, K]` probabilities of all arms. None if they are unknown.
        behaviour: `[n, K]` probabilities of the logging policy among all decisions of the log; needs `pmf`.
            None if they are `pmf`.
        weights: `[n]` number of decisions of the log that each one represents, up to a factor. None if all
            represent equally many.
        embeddings: `[n, e]` of the prompts, which a policy needs to decide. None if they are unknown.
        lengths: `[n]` lengths of the prompts in characters. None if they are unknown.
        available: bool `[n, K]` arms that could be played. None if all could.
        clusters: `[n]`, equal for decisions that depend on each other (`statistics.clusters`). None takes
            `groups`.
        adaptive: True if the logging policy learned while it decided.
        receipt: sentences on how the log was read.
        left: names of the last arms if these were removed. No policy is asked about them. Decisions for them
            have importance weight 0 but still represent their prompts, so that no estimate is biased.

    Raises:
        DataError: a field has another number of rows than `actions`, a value is outside its range,
            probabilities do not sum to 1, or `behaviour` is given without a `pmf` that is above 0 for every
            arm that `behaviour` plays.
    """

    arms: list[str]
    actions: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    features: np.ndarray
    groups: np.ndarray
    propensities: np.ndarray | None = None
    pmf: np.ndarray | None = None
    behaviour: np.ndarray | None = None
    weights: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    lengths: np.ndarray | None = None
    available: np.ndarray | None = None
    clusters: np.ndarray | None = None
    adaptive: bool = False
    receipt: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.actions)
        k = len(self.arms)
        optional = ("propensities", "pmf", "behaviour", "weights", "embeddings", "lengths", "available")
        for name in ("scores", "costs", "features", "groups", *optional, "clusters"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise DataError(f"log: {name} has {len(value)} rows, expected {n}")
        if n and not (0 <= self.actions.min() and self.actions.max() < k):
            raise DataError(f"log: actions must be 0..{k - 1}")
        if self.propensities is None and self.pmf is not None:
            object.__setattr__(self, "propensities", self.pmf[np.arange(n), self.actions])
        spans = {
            "scores": ((0.0, 1.0), "from 0 to 1"),
            "costs": ((0.0, np.inf), "from 0 to inf"),
            "propensities": ((_ABOVE, 1.0), "in (0, 1]"),
            "weights": ((_ABOVE, np.finfo(float).max), "above 0"),
        }
        for name, ((low, high), span) in spans.items():
            value = getattr(self, name)
            if value is None:
                continue
            bad = ~((value >= low) & (value <= high))
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                raise DataError(f"log row {row + 1}: {name} is {value[row]}, expected a number {span}")
        if not np.isfinite(self.features).all():
            raise DataError("log: features must be finite")
        for name in ("pmf", "behaviour"):
            value = getattr(self, name)
            if value is not None and not np.allclose(value.sum(axis=1), 1.0, atol=1e-6):
                row = int(np.argmax(np.abs(value.sum(axis=1) - 1.0)))
                raise DataError(f"log row {row + 1}: {name} sums to {value[row].sum():.6g}, expected 1")
        if self.behaviour is not None and (self.pmf is None or (self.behaviour[self.pmf <= 0.0] > 0.0).any()):
            raise DataError("log: behaviour needs a pmf that has every arm it plays")

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def today(self) -> list[str]:
        """Names of the arms that were not removed."""
        return self.arms[: len(self.arms) - len(self.left)]

    def of_all(self, target: np.ndarray) -> np.ndarray:
        """Extend probabilities of today's arms, `[n, today]`, to all arms, `[n, K]`, with 0 for removed
        arms.
        """
        return np.pad(target, ((0, 0), (0, len(self.left))))

    def dependent(self, clusters: np.ndarray | None = None) -> np.ndarray:
        """Return `[n]` values that are equal for decisions that depend on each other.

        Args:
            clusters: `[n]` values to use. None takes the field `clusters`, or `groups` if that is None.

        Raises:
            DataError: `clusters` does not have one value a decision.
        """
        if clusters is None:
            if self.clusters is None:
                return self.groups
            return self.clusters
        if len(clusters) != len(self):
            raise DataError(f"cluster has {len(clusters)} values, expected {len(self)}")
        return np.asarray(clusters)

    @cached_property
    def shares(self) -> np.ndarray:
        """Field `weights` of the decisions, `[n]`, scaled to mean 1; all 1 if the field is None."""
        if self.weights is None:
            return np.ones(len(self))
        scaled: np.ndarray = self.weights / self.weights.mean()
        return scaled

    @cached_property
    def as_logged(self) -> np.ndarray:
        """Importance weights `[n]` of the logging policy.

        They are `behaviour` / `pmf` of the played arm, or 1 if `behaviour` is None.
        """
        rows = np.arange(len(self))
        if self.behaviour is None or self.pmf is None:
            return np.ones(len(self))
        ratio: np.ndarray = self.behaviour[rows, self.actions] / self.pmf[rows, self.actions]
        return ratio

    def mean(self, values: np.ndarray) -> float:
        """Return the mean of values `[n]` weighted by `shares`, which estimates that of the whole log."""
        return float((self.shares * values).mean())

    @cached_property
    def expected_pmf(self) -> np.ndarray:
        """Probabilities `[n, K]` of the arms: `pmf`, or a model of the log's choices if `pmf` is None.

        The model is fitted by folds of whole clusters: no decision is predicted from its own cluster. If
        the other folds played fewer than two arms, the decisions of a fold get 1/K for every arm.
        """
        if self.pmf is not None:
            return self.pmf
        return propensity_model(self.features, self.actions, len(self.arms), folds(self.dependent()))

    def take(self, rows: np.ndarray) -> LoggedData:
        """Return the log with only the decisions of the given rows, `[m]` indices."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _WHOLE}
        taken: dict[str, Any] = {k: None if v is None else v[rows] for k, v in values.items()}
        return replace(self, **taken)


def read_events(
    log: EventLog, arms: Sequence[str], *, identity: str | None = None, components: int = 32
) -> LoggedData:
    """Read the scored decisions of a router's log. Features are the leading components of the embeddings.

    While a router draws marks (`router.marks`), a share of its decisions is marked to be scored. Decisions of
    that time are read only if they were marked, because the probability with which others were scored is
    unknown. A marked decision represents 1 / share decisions, and its arm was drawn from the probabilities
    among marked decisions. The scored ones are taken to be a fair sample of the marked ones. Decisions of a
    time without marks (`Logged.marked` is None) are read, too, and each represents itself alone.

    Decisions are left out if their embedding is missing or of another encoder, or if they could play none of
    the arms. An arm that was added later was not available to earlier decisions. Arms of the log that are not
    among `arms` become `LoggedData.left`. The log is `adaptive`, since a router learns. Decisions of one
    conversation are one cluster.

    Args:
        log: the router's log.
        arms: names of today's arms.
        identity: identity of the encoder (`Manifest.identity`). None takes all embeddings to be of one
            encoder.
        components: number of features, at most the width of the embeddings.

    Raises:
        DataError: the log holds no decision that can be read.
    """
    encoders = log.encoders()
    place_of = {arm: i for i, arm in enumerate(arms)}
    rows = []
    rewards = []
    places = []
    probabilities = []
    unmarked = 0
    of_other_arms = 0
    for d, reward in log.scored():
        if d.embedding is None or (identity is not None and encoders.get(d.bundle) != identity):
            continue
        decision = json.loads(d.decision)
        could = np.array(decision["arms"])[slice(None) if d.available is None else d.available]
        if not set(could) & set(arms):
            of_other_arms += 1
            continue
        if d.marked is False:
            unmarked += 1
            continue
        rows.append(d)
        places.append([place_of.setdefault(arm, len(place_of)) for arm in decision["arms"]])
        rewards.append(reward)
        probabilities.append(decision["pmf"] if d.marked else d.pmf)
    left_out = (
        (unmarked, "scores of decisions that were not marked to be scored are left out"),
        (of_other_arms, f"scores of decisions that could play none of {', '.join(arms)} are left out"),
    )
    names = list(place_of)
    receipt = tuple(f"{count:,} {words}" for count, words in left_out if count)
    if not rows:
        if identity is None:
            whose = ""
        else:
            whose = f" with embeddings of the encoder {identity}"
        nothing = f"{log.name} holds no scored decision between {', '.join(arms)}{whose}"
        raise DataError("; ".join((nothing, *receipt)))
    vectors = np.stack([np.asarray(d.embedding) for d in rows])
    pmf, behaviour = np.zeros((2, len(rows), len(names)))
    available = np.zeros((len(rows), len(names)), dtype=np.bool_)
    for i, (d, place) in enumerate(zip(rows, places, strict=True)):
        pmf[i, place] = probabilities[i]
        behaviour[i, place] = d.pmf
        if d.available is None:
            available[i, place] = True
        else:
            available[i, place] = d.available
    prompts = [d.prompt_hash for d in rows]
    actions = np.array([place_of[d.arm] for d in rows])
    every = np.arange(len(rows))
    marked = np.array([d.marked is True for d in rows])
    q = np.array([1.0 if d.q is None else d.q for d in rows])
    played = pmf[every, actions]
    logged = behaviour[every, actions]
    return LoggedData(
        arms=names,
        left=tuple(names[len(arms) :]),
        actions=actions,
        scores=np.array([r.score for r in rewards]),
        costs=np.array([r.cost for r in rewards]),
        features=leading(vectors, components),
        groups=np.array(prompts),
        propensities=np.where(marked, played, [d.p for d in rows]),
        pmf=pmf,
        behaviour=behaviour if marked.any() else None,
        weights=np.where(marked, played / (q * logged), 1.0) if marked.any() else None,
        embeddings=vectors,
        lengths=np.array([d.prompt_length for d in rows]),
        available=available,
        clusters=clusters_of(prompts, [d.session for d in rows]),
        adaptive=True,
        receipt=receipt,
    )


def read_outcomes(
    table: Outcomes, vectors: np.ndarray, *, adaptive: bool = False, components: int = 32
) -> LoggedData:
    """Return the decisions of a log that was read as an outcome table (`data.outcomes.logged`).

    Each row of the table is one scored decision: one model answered the prompt, and the other models' scores
    and costs are predictions, which are not used. Propensities are those of the table, or unknown if the
    table has none. Features are the leading components of the embeddings.

    Args:
        table: outcomes whose `answered` `[n, K]` is 1 for the model that the log played for a prompt.
        vectors: `[n, e]` embeddings of the prompts.
        adaptive: see `LoggedData`.
        components: number of features, at most the width of the embeddings.
    """
    assert table.answered is not None
    actions = table.answered.argmax(axis=1)
    rows = np.arange(len(table))
    return LoggedData(
        arms=list(table.arms),
        actions=actions,
        scores=table.scores[rows, actions],
        costs=table.costs[rows, actions],
        features=leading(vectors, components),
        groups=np.array(table.prompts, dtype=object),
        propensities=None if table.propensities is None else table.propensities[rows, actions],
        embeddings=vectors,
        lengths=table.prompt_lengths.astype(np.float64),
        adaptive=adaptive,
        clusters=table.clusters,
    )


def leading(vectors: np.ndarray, components: int) -> np.ndarray:
    """Return the coordinates of centred vectors `[n, e]` on their first principal components.

    The result is float64 `[n, min(components, e)]`, with the component of the largest variance first. The
    sign of a component is not determined.
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, basis = np.linalg.eigh(centred.T @ centred)
    scores: np.ndarray = centred @ basis[:, ::-1][:, :components]
    return scores


def read_table(
    table: str | Path | pd.DataFrame | Log,
    features: np.ndarray | None = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    arms: Sequence[str] | None = None,
    embeddings: np.ndarray | None = None,
    components: int = 32,
    merged: Mapping[str, str] | None = None,
) -> LoggedData:
    """Read the scored calls of a log, or of a table with one row a call.

    Calls without a score or a cost are left out, which the receipt says.

    Args:
        table: a file, a data frame, or a log that was read (`cabs_core.read_log`).
        features: `[rows, d]` of the prompts, in the order of the calls. None takes the leading components of
            the embeddings, or no features without embeddings.
        columns: `{field: column}` of a file or data frame, as in `cabs_core.read_log`. The column of `pmf`
            holds JSON, `{model: probability}`.
        arms: names of the arms. None takes the models that were played, in alphabetical order.
        embeddings: `[rows, e]` of the prompts. None if they are not known.
        components: number of features that are made from embeddings.
        merged: `{name in the log: arm}` of models that have several names.

    Raises:
        DataError: a column is absent, a value is impossible (row and value are named),
            a model is none of the arms, no call has a score and a cost, or `features` or `embeddings` do
            not have one row a call.
    """
    if isinstance(table, Log):
        log = table
    elif isinstance(table, pd.DataFrame):
        log = log_of_frame(table, columns)
    else:
        log = read_log(table, columns=columns)
    origin = log.receipt.origin
    words = log.receipt.lines()
    log.require("score", "cost")
    for name, array in (("features", features), ("embeddings", embeddings)):
        if array is not None and len(array) != len(log.frame):
            raise DataError(f"{origin}: {name} has {len(array)} rows, expected {len(log.frame)}, one a call")
    scored = (log.frame["score"].notna() & log.frame["cost"].notna()).to_numpy()
    if not scored.any():
        raise DataError(f"{origin}: no call has a score and a cost")
    if not scored.all():
        words.append(
            f"{int((~scored).sum()):,} calls without a score or a cost are left out of the estimates"
        )
    frame = log.frame[scored]
    details = log.details[scored]
    played = [(merged or {}).get(name, name) for name in frame["model"]]
    if arms is None:
        models = sorted(set(played))
    else:
        models = list(arms)
    unknown = sorted(set(played) - set(models))
    if unknown:
        fault = f"{origin}: model {unknown[0]!r:.100} is none of {', '.join(models)}"
        like = next((arm for arm in models if base_of(arm) == base_of(unknown[0])), None)
        if like is not None:
            fault += f". {merging({like: played.count(like), unknown[0]: played.count(unknown[0])})}"
        raise DataError(fault)
    rows = details["record"].tolist()
    pmf = None
    if details["pmf"].notna().any():
        pmf = np.array([_pmf(v, models, row, origin) for row, v in zip(rows, details["pmf"], strict=True)])
    if embeddings is None:
        vectors = None
    else:
        vectors = embeddings[scored]
    if features is None:
        if vectors is None:
            contexts = np.zeros((len(frame), 0))
        else:
            contexts = leading(vectors, components)
    else:
        contexts = np.asarray(features, dtype=np.float64)[scored]
    prompts = frame["prompt"]
    sessions = frame["session"]
    return LoggedData(
        arms=models,
        actions=np.array([models.index(m) for m in played]),
        scores=frame["score"].to_numpy(),
        costs=frame["cost"].to_numpy(),
        features=contexts,
        groups=prompts.to_numpy(dtype=object),
        propensities=known_propensities(frame["propensity"].to_numpy(), rows, origin),
        pmf=pmf,
        embeddings=vectors,
        lengths=None if vectors is None else prompts.str.len().to_numpy(dtype=np.float64),
        clusters=clusters_of(prompts.tolist(), sessions.tolist()) if sessions.notna().any() else None,
        receipt=tuple(words),
    )


def _pmf(value: Any, arms: Sequence[str], row: int, origin: str) -> list[float]:
    """Return the probabilities `[K]` of a cell that holds `{model: probability}`, as a mapping or as JSON.

    Arms that the cell does not name have probability 0, and models that are no arms are ignored.

    Args:
        origin: name of the log, for messages.

    Raises:
        DataError: the cell cannot be read; the message names `row`.
    """
    try:
        if isinstance(value, str):
            cell = json.loads(value)
        else:
            cell = value
        return [float(cell.get(arm, 0.0)) for arm in arms]
    except (ValueError, TypeError, AttributeError):
        raise DataError(
            f"{origin}, row {row}: pmf is {value!r:.60}; expected {{model: probability}} as JSON"
        ) from None
