"""What may reach compiled code: the checks of requests, outcomes, decisions, states and replays.

Kernels read and write where they are told and check nothing, so whatever comes from outside (a caller, a
queue of decisions, a file) passes through here first. A `Field` says what an array must be; `array` returns
it ready for kernels or raises PolicyError saying what it is instead, about a microsecond for values of
a few hundred arms.

Belongs here: shapes, kinds, ranges, finiteness. Does not: who made a decision and whether it was learnt
(`base`, `ledger`), files (`saving`).
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cabs_core.algorithms.problem.replay_problem import LIMIT
from cabs_core.base.errors import PolicyError

F8, I8, B1 = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
#: largest rho, in score units per USD, and largest product of rho and a predicted cost
RHO_LIMIT = 1e12
PRICE_LIMIT = LIMIT * RHO_LIMIT
FINITE = float(np.finfo(np.float64).max)
POSITIVE = float(np.finfo(np.float64).tiny)
#: largest probability: 1, less rounding
ONE = 1.0 + 1e-9
#: largest factor by which the margin of an arm that joins may exceed that of the arm which it resembles
MOST_MARGIN = 10.0
#: largest round number; a round is part of the index of a random draw (`rng.uniform`)
MOST_ROUNDS = 2**43
_ndarray = np.ndarray


class Field(NamedTuple):
    """What an array must be. shape: numbers, or names for sizes that only have to agree with each other; low,
    high: range of its entries (low None: any, NaN too, for what is only shown); dtype: float64, int64 or
    bool."""

    shape: tuple[int | str, ...]
    low: float | None = -LIMIT
    high: float = LIMIT
    dtype: np.dtype = F8


def probabilities(*shape: int) -> Field:
    """Field of probabilities."""
    return Field(shape, 0.0, ONE)


def state(*shape: int | str, low: float = -FINITE, high: float = FINITE, dtype: np.dtype = F8) -> Field:
    """Field of something learnt: finite, of any size."""
    return Field(shape, low, high, dtype)


def inside(values: np.ndarray, low: float, high: float) -> bool:
    """Whether every entry of values [...] lies in [low, high]; NaN does not."""
    # to find an extreme (NaN is one) takes a tenth of the time of `min` or `max`
    return not values.size or (low <= values.item(values.argmin()) and values.item(values.argmax()) <= high)


def is_distribution(values: np.ndarray) -> bool:
    """Whether values [n] are probabilities that sum to 1."""
    return inside(values, 0.0, ONE) and abs(sum(values.tolist()) - 1.0) < 1e-6


def array(where: str, what: str, value: Any, field: Field) -> np.ndarray:
    """`value` as kernels take it: of the field's dtype and shape [...], C-contiguous, writeable.

    Other real numbers are converted into a copy; text, complex numbers, dates, masked arrays are refused.

    Raises:
        PolicyError: naming `where` and `what`, what was expected and what it is.
    """
    shape, low, high, dtype = field
    if (
        type(value) is not _ndarray
        or value.dtype is not dtype
        or value.shape != shape
        or not value.flags.carray
    ):
        value = _converted(where, what, value, field)
    values: np.ndarray = value
    if low is None or (dtype is F8 and inside(values, low, high)):
        return values
    bad = np.argwhere(~((values >= low) & (values <= high)))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        raise PolicyError(f"{where}: {what}{list(place)} is {values[place]}, expected {_range(low, high)}")
    return values


def _range(low: float, high: float) -> str:
    if high == FINITE:
        return "a finite number" if low == -FINITE else f"a finite number >= {low:g}"
    return f"a number from {low:g} to {high:g}"


def _converted(where: str, what: str, value: Any, field: Field) -> np.ndarray:
    if (
        type(value) is _ndarray
        and value.dtype.kind == "f"
        and field.dtype is F8
        and value.shape == field.shape
    ):
        return np.array(value, dtype=F8, order="C")
    expected = f"expected {field.dtype.name} {list(field.shape)}"
    if isinstance(value, np.ma.MaskedArray):
        raise PolicyError(f"{where}: {what} is a masked array: {expected}; fill in what is masked")
    try:
        plain = np.asarray(value)
    except Exception as error:  # an array-like object can raise anything here
        raise PolicyError(f"{where}: {what} is no array ({type(error).__name__}): {expected}") from None
    kinds = {F8: "fiub", I8: "iu", B1: "b"}[field.dtype]
    if plain.dtype.kind not in kinds or plain.shape != field.shape:
        raise PolicyError(f"{where}: {what} has shape {list(plain.shape)} of {plain.dtype}: {expected}")
    return np.array(plain, dtype=field.dtype, order="C").view(np.ndarray)


def number(where: str, what: str, value: Any, low: float = -FINITE, high: float = FINITE) -> float:
    """A real number in [low, high] as a float; PolicyError otherwise, also for text."""
    real: float = value
    if type(value) is not float:
        try:
            plain = isinstance(value, (float, int))
            if not plain and (
                isinstance(value, (str, bytes, bytearray)) or np.ndim(value) or np.iscomplexobj(value)
            ):
                raise TypeError
            real = float(value)
        except Exception:  # a number-like object can raise anything here
            real = math.nan
    if not low <= real <= high:
        raise PolicyError(f"{where}: {what} is {_repr(value)}, expected {_range(low, high)}")
    return real


def whole_number(where: str, what: str, value: Any, low: int = 0, high: int = MOST_ROUNDS) -> int:
    """A whole number from low to high as an int; PolicyError otherwise, also for True, 3.0 and '3'."""
    if type(value) is int and low <= value <= high:
        return value
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or not low <= value <= high
    ):
        raise PolicyError(f"{where}: {what} is {_repr(value)}, expected a whole number from {low} to {high}")
    return int(value)


def excerpt(value: Any, most: int = 200) -> str:
    """`value` as text of at most `most` characters."""
    full = str(value)
    return full if len(full) <= most else full[: most - 3] + "..."


def _repr(value: Any) -> str:
    try:
        return excerpt(repr(value), 80)
    except Exception:
        return f"a {type(value).__name__}"


def names(where: str, values: Any) -> tuple[str, ...]:
    """Names of arms: at least one, each once, none empty."""
    try:
        arms = () if isinstance(values, (str, bytes)) else tuple(values)
    except TypeError:
        arms = ()
    if not arms:
        raise PolicyError(f"{where}: arms {_repr(values)}: expected a list of at least one name")
    if any(not isinstance(a, str) or not a for a in arms) or len(set(arms)) != len(arms):
        raise PolicyError(f"{where}: arms {_repr(arms)}: expected at least one name, each once")
    return tuple(str(a) for a in arms)


def stream_keys_of(where: str, keys: Any) -> np.ndarray:
    """Keys of the random streams, uint64 [12 or more, 2] (`rng.stream_keys`)."""
    values = np.asarray(keys)
    if values.dtype.kind not in "iu" or values.ndim != 2 or values.shape[0] < 12 or values.shape[1] != 2:
        raise PolicyError(
            f"{where}: keys have shape {list(values.shape)} of {values.dtype}, expected uint64 [12, 2] as "
            "`rng.stream_keys` makes them"
        )
    if values.dtype.kind == "i" and (values < 0).any():
        raise PolicyError(f"{where}: keys must not be negative")
    return np.array(values, dtype=np.uint64, order="C")  # a copy: `reseed` writes into it


def check_offline(where: str, offline: Any, arms: int, dim: int) -> None:
    """PolicyError unless a train split fits a policy of this many arms and (unless 0) features."""
    if offline is None:
        return
    shapes: list[tuple[int, ...]] = [
        np.shape(np.asarray(getattr(offline, name, None))) for name in ("contexts", "scores", "costs")
    ]
    rows, features = shapes[0] if len(shapes[0]) == 2 else (-1, -1)
    if shapes != [(rows, dim or features), (rows, arms), (rows, arms)]:
        raise PolicyError(
            f"{where}: offline has contexts {shapes[0]}, scores {shapes[1]} and costs {shapes[2]}; expected "
            f"[N, {dim or 'd'}], [N, {arms}] and [N, {arms}]"
        )


def check_size(where: str, fields: Mapping[str, Field]) -> None:
    """PolicyError where a state of these fields does not fit into this machine's memory."""
    size = 8 * sum(math.prod(n for n in f.shape if isinstance(n, int)) for f in fields.values())
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 2**36
    if size > memory:
        raise PolicyError(
            f"{where}: its state takes {size / 2**30:,.1f} GiB, this machine has {memory / 2**30:,.1f}; use "
            "fewer arms or features"
        )


def fitting(
    where: str, arrays: Mapping[str, np.ndarray], fields: Mapping[str, Field]
) -> dict[str, np.ndarray]:
    """The arrays, each as its field says, named sizes equal wherever they occur; PolicyError otherwise."""
    sizes: dict[str, int] = {}
    checked = {}
    for name, field in fields.items():
        shape = resolved(where, name, np.shape(arrays[name]), field, sizes)
        checked[name] = array(where, name, arrays[name], field._replace(shape=shape))
    return checked


def resolved(
    where: str, name: str, shape: Sequence[int], field: Field, sizes: dict[str, int]
) -> tuple[int, ...]:
    """The field's shape, its named sizes from `sizes`, else from `shape`, which adds them to `sizes`."""
    sizes_of_field = tuple(
        n if isinstance(n, int) else sizes.get(n, shape[i] if i < len(shape) else -1)
        for i, n in enumerate(field.shape)
    )
    if tuple(shape) != sizes_of_field:
        raise PolicyError(f"{where}: {name} has shape {list(shape)}, expected {list(field.shape)}")
    sizes.update({n: shape[i] for i, n in enumerate(field.shape) if isinstance(n, str)})
    return sizes_of_field


def check_variances(where: str, name: str, matrices: np.ndarray) -> None:
    """PolicyError unless the diagonals of covariances [..., d, d] are >= 0."""
    if matrices.size and not np.diagonal(matrices, axis1=-2, axis2=-1).min() >= 0.0:
        raise PolicyError(f"{where}: {name} has a negative variance on its diagonal")


def available(where: str, value: Any, arms: int) -> np.ndarray:
    """bool [K] of available arms, at least one; None: all of them."""
    if value is None:
        return np.ones(arms, dtype=np.bool_)
    try:
        mask = np.asarray(value)
    except Exception:  # an array-like object can raise anything here
        mask = np.empty(0)
    if mask.dtype.kind in "iu" and ((mask == 0) | (mask == 1)).all():
        mask = mask.astype(np.bool_)
    if mask.dtype != B1 or mask.shape != (arms,) or isinstance(value, np.ma.MaskedArray) or not mask.any():
        raise PolicyError(f"{where}: Request.available must be bool [{arms}] with one True")
    return np.ascontiguousarray(mask)


def surrogate(where: str, value: Any, arms: int) -> Any:
    """A propagation head: None, a function, or a table [K, K] of real numbers (returned as a copy)."""
    if value is None or callable(value):
        return value
    if type(value) is _ndarray and value.shape == (arms, arms) and value.dtype.kind == "f":
        return value.copy()
    try:
        table = np.array(value) if not isinstance(value, np.ma.MaskedArray) else np.empty(0)
    except Exception:  # as above
        table = np.empty(0)
    if table.shape != (arms, arms) or table.dtype.kind not in "fiu":
        raise PolicyError(
            f"{where}: Request.surrogate must be a function (arm, score) -> deltas [{arms}] or numbers "
            f"[{arms}, {arms}]; got {type(value).__name__} {list(np.shape(table))} of {table.dtype}"
        )
    return table


class Outcome(NamedTuple):
    """The checked outcome of a decision (see `SafePolicy.update`), with the decision's memory.

    arm: index of the played arm among today's arms. places: index of each of today's arms among the
    decision's, -1 for one that was added since; None: no arm has come or gone.
    """

    score: float
    cost: float
    latency_penalty: float
    deltas: np.ndarray | None
    all_scores: np.ndarray | None
    all_costs: np.ndarray | None
    memory: dict[str, np.ndarray]
    arm: int
    places: np.ndarray | None

    def utility(self, rho: float) -> float:
        """The realised clipped utility, in [0, 1], at this rho in score units per USD."""
        # numba: only policies that learn ask
        from cabs_core.base.compiled.utility import clipped_utility, price  # noqa: PLC0415

        return clipped_utility(self.score, price(self.cost, rho), self.latency_penalty)


def outcome(
    where: str,
    arms: int,
    score: Any,
    cost: Any,
    latency_penalty: Any,
    deltas: Any,
    all_scores: Any,
    all_costs: Any,
    memory: dict[str, np.ndarray],
    arm: int,
    places: np.ndarray | None,
) -> Outcome:
    """The arguments of `SafePolicy.update`, a score in [0, 1] and a cost in USD >= 0 among them; PolicyError
    where one is malformed or out of range."""
    if (all_scores is None) != (all_costs is None):
        raise PolicyError(f"{where}: pass all_scores [K] and all_costs [K] together")
    if all_scores is not None:
        all_scores = array(where, "all_scores", all_scores, Field((arms,), 0.0, 1.0))
        all_costs = array(where, "all_costs", all_costs, Field((arms,), 0.0, FINITE))
    if deltas is not None:
        deltas = array(where, "deltas", deltas, Field((arms,)))
    return Outcome(
        number(where, "score", score, 0.0, 1.0),
        number(where, "cost", cost, 0.0),
        number(where, "latency_penalty", latency_penalty, 0.0),
        deltas,
        all_scores,
        all_costs,
        memory,
        arm,
        places,
    )


def check_decision(where: str, decision: Any, fields: Mapping[str, tuple[Any, ...]]) -> dict[str, np.ndarray]:
    """The decision's memory as kernels take it; PolicyError where anything in the decision is malformed.

    fields: what each array of the memory must be, as plain tuples of `Field`, which unpack in half the time.
    """
    arms = len(decision.arms)
    whole_number(where, "Decision.arm", decision.arm, 0, arms - 1)
    number(where, "Decision.probability", decision.probability, 0.0, ONE)
    number(where, "Decision.rho", decision.rho, 0.0, RHO_LIMIT)
    pmf = decision.pmf
    if (
        type(pmf) is not _ndarray
        or pmf.dtype is not F8
        or pmf.shape != (arms,)
        or not pmf.flags.carray
        or not is_distribution(pmf)
    ) and not is_distribution(pmf := array(where, "Decision.pmf", pmf, Field((arms,), None))):
        raise PolicyError(
            f"{where}: Decision.pmf {_repr(pmf.tolist())} is not a probability distribution over the arms"
        )
    memory = decision.memory
    if type(memory) is not dict or memory.keys() != fields.keys():
        names = sorted(map(str, memory)) if isinstance(memory, dict) else memory
        raise PolicyError(f"{where}: Decision.memory holds {_repr(names)}, expected {sorted(fields)}")
    checked = memory
    for name, (shape, low, high, dtype) in fields.items():
        value = memory[name]
        # `array` in place, for the common case: it is called a dozen times per update
        if (
            type(value) is not _ndarray
            or value.dtype is not dtype
            or value.shape != shape
            or not value.flags.carray
            or (low is not None and not inside(value, low, high))
        ):
            checked = {**checked, name: array(where, name, value, Field(shape, low, high, dtype))}
    return checked
