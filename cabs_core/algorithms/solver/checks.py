"""Checks of the solver's arguments, which raise errors that name the fault."""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.base.compiled.jit import kernel
from cabs_core.base.errors import CabsError

#: a workspace for this many arms takes gigabytes, and a solve minutes
MOST_ARMS = 10_000
_F8 = np.dtype(np.float64)


class SolverError(CabsError, ValueError):
    """Error of the solver: an argument of the exploration program is invalid, or no solution was found."""


@kernel
def _sound(losses: np.ndarray, graphs: np.ndarray, gammas: np.ndarray) -> bool:
    """Return True if all instances are valid.

    Losses [B, K] and gammas [B] > 0 must be finite, graphs [B, K, K] in [0, 1] with a positive diagonal.
    """
    wrong = 0
    for b in range(losses.shape[0]):
        wrong += not (0.0 < gammas[b] < np.inf)
        for i in range(losses.shape[1]):
            wrong += not (-np.inf < losses[b, i] < np.inf)
            wrong += not graphs[b, i, i] > 0.0
            for j in range(losses.shape[1]):
                wrong += not (0.0 <= graphs[b, i, j] <= 1.0)
    return wrong == 0


def _array(value: ArrayLike, name: str, dimensions: int, meaning: str) -> np.ndarray:
    """Return the value as a C-contiguous float64 array, which is a copy only if it has to be.

    Raise SolverError for values that are no real numbers, are masked, or have another number of dimensions.
    Integers and booleans count as real numbers. `name` and `meaning` are for the message.
    """
    if type(value) is np.ndarray and value.dtype is _F8 and value.ndim == dimensions and value.flags.carray:
        return value
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "fiub" or isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"found {'masked' if isinstance(value, np.ma.MaskedArray) else raw.dtype} values")
        array = np.require(raw, _F8, ["C", "A", "W"])  # one layout, so that kernels compile once
    except (TypeError, ValueError, OverflowError) as error:
        raise SolverError(
            f"{name} must be real numbers ({meaning}); got {type(value).__name__}: {error}"
        ) from None
    if np.ndim(value) != dimensions:
        raise SolverError(
            f"{name} must have {dimensions} dimension(s) ({meaning}); got shape {np.shape(value)}"
        )
    return array


def _place(index: Sequence[int], batch: bool) -> str:
    """Return the place of an entry as text: `[3]` of one instance, `[2, 3] (instance 2)` of a batch."""
    text = "[" + ", ".join(str(int(i)) for i in index) + "]"
    if batch:
        return f"{text} (instance {int(index[0])})"
    return text


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first True of a mask."""
    return tuple(np.argwhere(mask)[0])


def check_tol(tol: Any) -> float:
    """Return tol as a float: positive and finite, in the units of the losses.

    Raises:
        SolverError: tol is not a positive, finite number.
    """
    if type(tol) is float and 0.0 < tol < math.inf:
        return tol
    try:
        if isinstance(tol, (str, bytes)) or np.ndim(tol):
            raise TypeError
        value = float(tol)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(f"tol must be a positive number; got {str(tol)[:80]!r}") from None
    if not (np.isfinite(value) and value > 0):
        raise SolverError(
            f"tol must be positive and finite, in the units of the losses (default 1e-8); got {value}"
        )
    return value


def check_arms(arms: object) -> int:
    """Return the number of arms as an int of at least 1.

    Raises:
        SolverError: `arms` is no integer of Python or NumPy, as 3.0 or True, or is not from 1 to `MOST_ARMS`.
    """
    if isinstance(arms, bool) or not isinstance(arms, (int, np.integer)) or arms < 1:
        raise SolverError(f"the number of arms must be an integer of at least 1; got {str(arms)[:80]!r}")
    if arms > MOST_ARMS:
        raise SolverError(f"the number of arms must be at most {MOST_ARMS:,}; got {arms}")
    return int(arms)


def check_instances(
    losses: ArrayLike, graphs: ArrayLike, gammas: ArrayLike, *, batch: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return contiguous float64 losses [B, K], graphs [B, K, K] and gammas [B] (B = 1 unless `batch`).

    Raises:
        SolverError: a shape is wrong, there are more arms than `MOST_ARMS`, a value is not finite, a self
            loop is missing, a graph weight lies outside [0, 1] (0 means no edge), or a gamma is not positive
            and finite.
    """
    if batch:
        f = _array(losses, "losses", 2, "B x K")
        G = _array(graphs, "graph", 3, "B x K x K")
        gamma = _array(gammas, "gamma", 1, "one per instance")
    else:
        f = _array(losses, "losses", 1, "one per arm")
        G = _array(graphs, "graph", 2, "K x K")
        gamma = _array(gammas, "gamma", 0, "a single number").reshape(1)
    K = f.shape[-1]
    if K == 0:
        raise SolverError("losses are empty: the program needs at least one arm")
    if K > MOST_ARMS:
        check_arms(K)
    if G.shape != (*f.shape, K):
        raise SolverError(f"graph has shape {G.shape} but losses {f.shape} need {(*f.shape, K)}")
    if batch and gamma.shape != f.shape[:1]:
        raise SolverError(f"gammas has shape {gamma.shape} but there are {f.shape[0]} instances")
    if batch:
        every = (f, G, gamma)
    else:
        every = (f[None], G[None], gamma)
    if not _sound(*every):
        _say_what_is_wrong(f, G, gamma, batch)
    return every


def _say_what_is_wrong(f: np.ndarray, G: np.ndarray, gamma: np.ndarray, batch: bool) -> NoReturn:
    """Raise the SolverError that names the first invalid entry of losses, graph or gamma."""
    if not np.isfinite(f).all():
        at = _first(~np.isfinite(f))
        raise SolverError(f"losses{_place(at, batch)} is {f[at]}: every loss must be finite")
    bad = ~((G >= 0) & (G <= 1))
    if bad.any():
        at = _first(bad)
        raise SolverError(
            f"graph{_place(at, batch)} is {G[at]}: weights lie in (0, 1] for an edge (the probability that "
            "playing the row's arm reveals the column's) and are 0 where there is none"
        )
    loops = np.diagonal(G, axis1=-2, axis2=-1)
    if not (loops > 0).all():
        at = _first(~(loops > 0))
        raise SolverError(
            f"graph{_place((*at, at[-1]), batch)} is 0: arm {int(at[-1])} has no self loop, but playing an "
            "arm always reveals it; set the diagonal to 1"
        )
    at = _first(~(np.isfinite(gamma) & (gamma > 0)))
    where = _place(at, batch) if batch else ""
    raise SolverError(f"gamma{where} is {gamma[at]}: it must be positive and finite")
