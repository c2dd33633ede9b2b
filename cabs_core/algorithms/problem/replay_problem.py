"""The replay problem: the arrays of a replay, computed once, so that no encoder or oracle runs online.

Belongs here: the arrays, their checks, their files. `replay.engine` plays policies on them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.problem import problem_files
from cabs_core.base.errors import DataError, ProvenanceError
from cabs_core.base.masked import refuse_masked
from cabs_core.base.utility import LARGEST_INPUT


class _Array(NamedTuple):
    """Requirements of an array of a problem.

    Attributes:
        shape: a letter for every size (e: any size). low, high: range of the array's numbers.
        outcome: True for outcomes and splits, which no encoder, oracle or feature map changes.
        single: True for float32, which is precise enough for large arrays that are not summed; others are
            float64.
        text: True for text.
    """

    shape: str
    low: float = -np.inf
    high: float = np.inf
    outcome: bool = False
    single: bool = False
    text: bool = False


_ARRAYS = {
    "query_ids": _Array("n", outcome=True, text=True),
    "tasks": _Array("n", outcome=True, text=True),
    "contexts": _Array("nd", -LARGEST_INPUT, LARGEST_INPUT),
    "scores": _Array("nK", 0.0, 1.0, outcome=True),
    "costs": _Array("nK", 0.0, outcome=True),
    "predicted_scores": _Array("nK", -LARGEST_INPUT, LARGEST_INPUT),
    "predicted_costs": _Array("nK", 0.0, LARGEST_INPUT),
    "surrogate_deltas": _Array("nKK", -LARGEST_INPUT, LARGEST_INPUT, single=True),
    "offline_contexts": _Array("Nd", -LARGEST_INPUT, LARGEST_INPUT),
    "offline_scores": _Array("NK", 0.0, 1.0, outcome=True),
    "offline_costs": _Array("NK", 0.0, outcome=True),
    "latencies": _Array("nK", 0.0, outcome=True),
    "embeddings": _Array("ne", single=True),
    "offline_embeddings": _Array("Ne", single=True),
    "prompt_lengths": _Array("n"),
    "offline_prompt_lengths": _Array("N"),
    "offline_answered": _Array("NK", 0.0, 1.0, outcome=True),
    "offline_propensities": _Array("NK", 0.0, 1.0, outcome=True),
    "static_costs": _Array("nK", 0.0, LARGEST_INPUT),
    "times": _Array("n", outcome=True),
    "input_tokens": _Array("nK", 0.0, outcome=True, single=True),
    "output_tokens": _Array("nK", 0.0, outcome=True, single=True),
    "input_prices": _Array("K", 0.0, LARGEST_INPUT, outcome=True),
    "observed": _Array("nK", 0.0, 1.0, outcome=True),
    "clusters": _Array("n", outcome=True),
}
#: bytes of an array up to which a problem copies it; larger arrays may be mapped files or fill the memory
SMALL = 2**22
_STATIC = _Array("nK", -LARGEST_INPUT, LARGEST_INPUT)


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    """Return real numbers as a contiguous array of float64, or float32 if `_ARRAYS` says so.

    Raise TypeError for text, dates and complex numbers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} is of {array.dtype}, expected real numbers")
    single = name in _ARRAYS and _ARRAYS[name].single
    return _own(value, np.ascontiguousarray(array, dtype=np.float32 if single else np.float64))


def _own(value: ArrayLike, array: np.ndarray) -> np.ndarray:
    """Return the array that was made of an argument as a plain ndarray.

    It is a copy if it would share the argument's memory and has at most SMALL bytes, so that a caller who
    goes on to use the argument does not change the problem.
    """
    plain = problem_files.base_array(array)
    if plain.nbytes <= SMALL and isinstance(value, np.ndarray) and np.may_share_memory(plain, value):
        return plain.copy()
    return plain


@dataclass(frozen=True)
class ReplayProblem:
    """Queries, outcomes and predictions of one split, and the train split for policies to learn from.

    There are n queries, K arms, d context features, N train queries, e embedding dimensions.

    Arrays of up to 4 MiB are copied. Larger ones are kept as they are if their type fits, and must not be
    changed afterwards.

    Attributes:
        arms: names of the K arms.
        query_ids, tasks: text `[n]`.
        contexts: `[n, d]` features of the linear policies.
        scores, costs: `[n, K]` realised scores in [0, 1] and costs in USD >= 0.
        latencies: `[n, K]` seconds, or None.
        predicted_scores, predicted_costs: `[n, K]`, outputs of the accuracy head (also used for affinity) and
            of the cost head, USD.
        surrogate_deltas: `[n, K, K]` float32; `[t, i, j]` is the propagation head's delta_j(x_t, i, y_ti):
            the surrogate score of arm j once arm i was played is y_ti + delta. Zero diagonal.
        offline_contexts, offline_scores, offline_costs: `[N, d]`, `[N, K]`, `[N, K]` of the train split.
        embeddings, offline_embeddings: `[n, e]`, `[N, e]` float32, optional.
        prompt_lengths, offline_prompt_lengths: characters, `[n]`, `[N]`, optional.
        offline_answered: `[N, K]` of a log, 1 for a measured cell, 0 for a predicted cell. None if all cells
            are measured.
        offline_propensities: `[N, K]` of a log, probability of the played cell, which is above 0, and 0
            elsewhere. None if unknown.
        static_scores: predictions `[n, K]` of the score by the static predictors, by name
            (knn, knn_literal, ridge, kernel_ridge).
        static_costs: `[n, K]` costs in USD that the static policies expect. None stands for predicted_costs.
        times: `[n]`, when each query comes, in any unit. Replays play in this order, queries of equal times
            in random order. None to play all in random order.
        input_tokens, output_tokens: `[n, K]` float32 >= 0, tokens that each arm reads and writes on a query.
        input_prices: `[K]` USD >= 0 of an input token. All three are there, or none.
        observed: `[n, K]` of a table with gaps: 0 for a cell that is a gap, otherwise the probability with
            which the cell was drawn, or 1 if the probability is not known. None if there are no gaps.
            `metadata["unknown"]` names the models whose gaps are not at random (`problem.gaps`).
        clusters: `[n]`, equal numbers for queries that are one independent observation
            (`statistics.clusters`). None if all differ; clusters of one query each become None.
        name: name of the split (test, validation, ...). pool: name of the model pool.
        metadata: further descriptions of the problem, as JSON values. `binary_share` in it overrides the
            share that is computed from offline_scores.

    Raises:
        DataError: shapes disagree, an array is masked, or a value is not finite or out of range. The
            message names the first fault.

    Examples:
        >>> from cabs_core import synthetic_problem
        >>> problem = synthetic_problem(n=50, K=3, d=4)  # or ReplayProblem.load, problems_from_arrays
        >>> problem.n, problem.K, problem.dim, problem.surrogate_deltas.shape
        (50, 3, 4, (50, 3, 3))
    """

    arms: list[str]
    query_ids: np.ndarray
    tasks: np.ndarray
    contexts: np.ndarray
    scores: np.ndarray
    costs: np.ndarray
    predicted_scores: np.ndarray
    predicted_costs: np.ndarray
    surrogate_deltas: np.ndarray
    offline_contexts: np.ndarray
    offline_scores: np.ndarray
    offline_costs: np.ndarray
    latencies: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    offline_embeddings: np.ndarray | None = None
    prompt_lengths: np.ndarray | None = None
    offline_prompt_lengths: np.ndarray | None = None
    offline_answered: np.ndarray | None = None
    offline_propensities: np.ndarray | None = None
    static_scores: dict[str, np.ndarray] = field(default_factory=dict)
    static_costs: np.ndarray | None = None
    times: np.ndarray | None = None
    input_tokens: np.ndarray | None = None
    output_tokens: np.ndarray | None = None
    input_prices: np.ndarray | None = None
    observed: np.ndarray | None = None
    clusters: np.ndarray | None = None
    name: str = "test"
    pool: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._convert()
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise DataError(
                f"replay problem {self.pool}/{self.name}: cannot be made into arrays ({str(error)[:200]})"
            ) from None
        self._check()

    def _convert(self) -> None:
        """Convert the arrays to their types, `arms` to a list of text, and copy the metadata.

        Clusters are numbered from 0, or become None if each has one query. `name` and `pool` stay as they
        are. A masked array raises DataError. Another value that cannot be converted, or a required array that
        is None, raises an error, mostly TypeError or ValueError.
        """
        put = object.__setattr__
        where = f"replay problem {self.pool}/{self.name}"
        absent = [
            f.name
            for f in fields(self)
            if f.default is MISSING and f.default_factory is MISSING and getattr(self, f.name) is None
        ]
        if absent:
            raise TypeError(f"{', '.join(absent)}: absent")
        if isinstance(self.arms, str):
            raise TypeError(f"arms is the text {self.arms[:80]!r}, expected a list of names")
        put(self, "arms", [str(a) for a in self.arms])
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("arms", "static_scores", "name", "pool", "metadata") or value is None:
                continue
            refuse_masked(f"{where}: {item.name}", value)
            if _ARRAYS[item.name].text:
                put(self, item.name, _own(value, np.asarray(value, dtype=np.str_)))
            elif item.name == "clusters":
                number = np.unique(np.asarray(value), return_inverse=True)[1].astype(np.int64)
                put(self, item.name, number if number.max(initial=-1) + 1 < len(number) else None)
            else:
                put(self, item.name, _numbers(item.name, value))
        static = {}
        for key, value in dict(self.static_scores).items():
            refuse_masked(f"{where}: static_scores[{key}]", value)
            static[key] = _numbers(f"static_scores[{key}]", value)
        put(self, "static_scores", static)
        put(self, "metadata", dict(self.metadata))

    @property
    def n(self) -> int:
        """Number of queries."""
        return len(self.scores)

    @property
    def K(self) -> int:
        """Number of arms."""
        return len(self.arms)

    @property
    def independent(self) -> int:
        """Number of independent observations: prompts with their near-copies, or conversations."""
        if self.clusters is None:
            return self.n
        return int(self.clusters.max()) + 1

    @property
    def asked(self) -> int:
        """Number of queries of the whole table; if it is not known, of this split and the train split."""
        return int(self.metadata.get("queries", self.n + len(self.offline_scores)))

    @property
    def dim(self) -> int:
        """Number of context features."""
        return int(self.contexts.shape[1])

    def _check(self) -> None:
        """Raise DataError if names, shapes, ranges or metadata are not as the class's docstring says."""
        where = f"replay problem {self.pool}/{self.name}"
        if len(self.arms) < 1 or len(set(self.arms)) != len(self.arms):
            raise DataError(f"{where}: arms {self.arms}: expected at least one name, each once")
        if self.contexts.ndim != 2 or self.offline_contexts.ndim != 2 or not self.contexts.size:
            raise DataError(
                f"{where}: contexts {self.contexts.shape}, offline_contexts {self.offline_contexts.shape}: "
                "expected [n >= 1, d >= 1] and [N, d]"
            )
        n, d = self.contexts.shape
        sizes = {"n": n, "N": len(self.offline_contexts), "K": self.K, "d": d, "e": None}
        arrays = {name: (getattr(self, name), spec) for name, spec in _ARRAYS.items()}
        arrays |= {f"static_scores[{key}]": (value, _STATIC) for key, value in self.static_scores.items()}
        for name, (value, spec) in arrays.items():
            if value is None:
                continue
            shape = tuple(sizes[letter] for letter in spec.shape)
            if len(value.shape) != len(shape) or any(
                size not in (None, length) for size, length in zip(shape, value.shape, strict=True)
            ):
                raise DataError(
                    f"{where}: {name} has shape {value.shape}, expected {shape} (n={n}, K={self.K}, d={d})"
                )
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                place = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
                raise DataError(f"{where}: {name}{list(place)} is {value[place]}, expected a finite number")
            if spec.text or not value.size or (value.min() >= spec.low and value.max() <= spec.high):
                continue
            place = tuple(int(i) for i in np.argwhere((value < spec.low) | (value > spec.high))[0])
            raise DataError(
                f"{where}: {name}{list(place)} is {value[place]}, expected {spec.low}..{spec.high}"
            )
        self._check_propensities(where)
        counted = [getattr(self, name) is None for name in ("input_tokens", "output_tokens", "input_prices")]
        if any(counted) and not all(counted):
            raise DataError(
                f"{where}: input_tokens, output_tokens and input_prices belong together: give all or none"
            )
        share = self.metadata.get("binary_share")
        if share is not None and not (isinstance(share, (int, float)) and 0.0 <= share <= 1.0):
            raise DataError(
                f"{where}: metadata binary_share is {str(share)[:80]}, expected a number in [0, 1]"
            )
        diagonal = np.einsum("tii->ti", self.surrogate_deltas)
        if np.any(diagonal != 0.0):
            raise DataError(f"{where}: surrogate_deltas must be zero where the anchor is the arm itself")

    def _check_propensities(self, where: str) -> None:
        """Raise DataError, which begins with `where`, if an answered train cell has the propensity 0."""
        answered = self.offline_answered
        propensities = self.offline_propensities
        if answered is None or propensities is None:
            return
        never = np.argwhere((answered > 0) & (propensities <= 0))
        if len(never):
            row, arm = (int(i) for i in never[0])
            raise DataError(
                f"{where}: offline_propensities[{row}, {arm}] is 0, but {self.arms[arm]} answered train "
                f"query {row}: expected the probability with which it was played, above 0; give None if the "
                "probabilities are not known"
            )

    @cached_property
    def fits(self) -> dict[Any, Any]:
        """{key: value} of the values that policies have fitted on the train split so far, for any rho.

        They are neither saved nor copied to other problems.
        """
        return {}

    def rows(self, index: Any) -> ReplayProblem:
        """Return the problem with only these query rows (an index array, slice or mask over n)."""
        changed: dict[str, Any] = {}
        for name, spec in _ARRAYS.items():
            if spec.shape[0] == "n":
                value = getattr(self, name)
                changed[name] = None if value is None else value[index]
        changed["static_scores"] = {k: v[index] for k, v in self.static_scores.items()}
        return replace(self, **changed)

    def with_contexts(self, contexts: ArrayLike, offline_contexts: ArrayLike) -> ReplayProblem:
        """Return the problem with other features for the linear and neural policies.

        Both arrays must come from one feature map, since a policy applies to the queries what it learnt on
        the train split. Predictions, surrogates and embeddings stay as they are; `metadata["contexts"]`
        becomes `own`.

        Args:
            contexts: [n, d] of the queries. offline_contexts: [N, d] of the train split, the same features.

        Raises:
            DataError: rows or features do not fit, an array is masked, or a value is not finite or beyond
                `LARGEST_INPUT`.
        """
        refuse_masked("contexts", contexts)
        refuse_masked("offline_contexts", offline_contexts)
        x = np.asarray(contexts)
        offline = np.asarray(offline_contexts)
        rows = (self.n, len(self.offline_scores))
        width = x.shape[1:]
        if x.ndim != 2 or (len(x), len(offline)) != rows or offline.shape[1:] != width:
            raise DataError(
                f"replay problem {self.pool}/{self.name}: contexts {x.shape} and offline_contexts "
                f"{offline.shape}: expected [{rows[0]}, d] and [{rows[1]}, d] with the same d features"
            )
        return replace(
            self, contexts=x, offline_contexts=offline, metadata={**self.metadata, "contexts": "own"}
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return {name: array} of the arrays that are saved, each as `<name>.npy`.

        Names are those of the fields, such as `scores`, and `static_scores.<predictor>` for each static
        predictor. Fields that are None are left out.
        """
        arrays = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                arrays[item.name] = value
        arrays |= {f"static_scores.{k}": v for k, v in sorted(self.static_scores.items())}
        return arrays

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """{name of the array: hash of its type, shape and values}, computed once."""
        return {name: problem_files.array_hash(value) for name, value in self.arrays().items()}

    def content_hash(self) -> str:
        """Return the SHA-256 (hex, 16 characters) of the arms and of every array.

        `name`, `pool` and `metadata` do not count.
        """
        text = json.dumps([self.arms, self._hashes], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def outcomes_hash(self) -> str:
        """Return the SHA-256 (hex, 16 characters) of arms, queries and the outcomes of both splits.

        It is equal for problems that differ only in encoder, oracles or contexts.
        """
        hashes = {
            name: digest for name, digest in self._hashes.items() if name in _ARRAYS and _ARRAYS[name].outcome
        }
        return hashlib.sha256(json.dumps([self.arms, hashes], sort_keys=True).encode()).hexdigest()[:16]

    def save(self, folder: str | Path) -> Path:
        """Write one .npy per array and meta.json (with a hash of each) into `folder`, replaced as a whole."""
        about = {"arms": self.arms, "name": self.name, "pool": self.pool, "metadata": self.metadata}
        about["content_hash"] = self.content_hash()
        return problem_files.write(folder, _ARRAYS, self.arrays(), about | {"arrays": self._hashes})

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool = True) -> ReplayProblem:
        """Load a problem that `save` wrote.

        The arrays are mapped into memory. Changes of the arrays never reach the files.

        Args:
            folder: folder that `save` wrote.
            verify: True to read every array once and compare its hash.

        Raises:
            ProvenanceError: a file is missing, unreadable or was changed.
            DataError: the arrays do not make a problem.
        """
        meta, values = problem_files.read(Path(folder), _ARRAYS, verify)
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        absent = sorted(set(required) - {"arms", *values})
        if absent:
            raise ProvenanceError(f"{folder}/meta.json names no array {absent}; build the problem again")
        problem = cls(
            arms=meta["arms"], name=meta["name"], pool=meta["pool"], metadata=meta["metadata"], **values
        )
        if verify:
            problem.__dict__["_hashes"] = dict(meta["arrays"])
            if problem.content_hash() != meta["content_hash"]:
                raise ProvenanceError(
                    f"{folder}/meta.json was altered after it was saved; build the problem again"
                )
        return problem
