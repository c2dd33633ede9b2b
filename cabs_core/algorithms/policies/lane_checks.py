"""What may reach the compiled loops of a replay: checks of a lane's rounds."""

from typing import Any

import numpy as np

from cabs_core.algorithms.policies import checks
from cabs_core.base.errors import PolicyError


def check_lane(policy: Any, stream: Any, lane: Any, start: int, stop: int) -> None:
    """PolicyError unless rounds start..stop-1 of the lane fit the policy and the stream (`Policy.run`)."""
    where = f"{policy.name}: replay"
    n, k, d = stream.shape
    if k != len(policy.arms) or (policy.needs_context and d != policy.dim):
        raise PolicyError(
            f"{where}: the stream has {k} arms and {d} features, the policy {len(policy.arms)} and "
            f"{policy.dim}"
        )
    for name in ("order", "actions", "propensities", "gaps", "arrivals", "meta_weights"):
        value = getattr(lane, name)
        if (type(value) is not np.ndarray or not value.ndim) and not (
            value is None and name in ("arrivals", "meta_weights")
        ):
            raise PolicyError(f"{where}: lane.{name} is a {type(value).__name__}, expected an array")
    total = len(lane.order)
    checks.whole_number(where, "stop", stop, 0, total)
    checks.whole_number(where, "start", start, 0, stop)
    for name, values, high in (("order", lane.order, n), ("arrivals", lane.arrivals, total)):
        if values is None:
            continue
        ndim = 1 if name == "order" else 2
        if (
            values.dtype != checks.I8
            or values.ndim != ndim
            or not values.flags.c_contiguous
            or values.shape[1:] not in ((), (2,))
        ):
            raise PolicyError(f"{where}: lane.{name} must be int64, as `Lane.empty` makes it")
        if values.size and not (values.min() >= 0 and values.max() < high):
            raise PolicyError(f"{where}: lane.{name} must lie in 0..{high - 1}")
    if lane.arrivals is not None and len(lane.arrivals):
        when, what = lane.arrivals.T
        if (np.diff(when) < 0).any() or (what > when).any():
            raise PolicyError(f"{where}: lane.arrivals must be sorted, no reward before its round")
    traces: dict[str, tuple[tuple[int, ...], np.dtype]] = {
        "actions": ((total,), checks.I8),
        "propensities": ((total,), checks.F8),
        "gaps": ((total,), checks.F8),
    }
    if policy.experts and lane.meta_weights is not None:
        traces["meta_weights"] = ((total, policy.experts), np.dtype(np.float32))
    for name, (shape, dtype) in traces.items():
        values = getattr(lane, name)
        if values.shape != shape or values.dtype != dtype or not values.flags.carray:
            raise PolicyError(
                f"{where}: lane.{name} has shape {list(values.shape)} of {values.dtype}, expected {dtype} "
                f"{list(shape)}"
            )
    past = lane.actions[:start] if lane.arrivals is not None else lane.actions[:0]
    if past.size and not (past.min() >= 0 and past.max() < k):
        raise PolicyError(
            f"{where}: lane.actions of rounds before {start} hold numbers that are no arm of this problem"
        )
