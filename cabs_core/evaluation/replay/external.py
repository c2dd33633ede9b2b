"""Replay of an object that is no `cabs_core.Policy`, but has a method `predict` and, if it learns, `learn`.

The object plays the same orders under the same conditions as every policy, so differences are paired. It sees
contexts alone; a policy that needs predictions, surrogates or saving should subclass `Policy`.

`predict(context)` gets the features `[d]` and returns the index of an arm, or a probability for each of the K
arms. `learn(context, arm, reward, probability)` gets the clipped utility of the played arm when the reward
arrives. Both get the context as a read-only array. Results name the object by its attribute `name`, or by its
class.
"""

import copy
from typing import Any

import numpy as np

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Lane, Stream, read_only
from cabs_core.base.errors import PolicyError
from cabs_core.base.streams import stream_key


def external_name(policy: object) -> str:
    """Name of the object in results: its attribute `name`, or the name of its class."""
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        name = type(policy).__name__
    return states.excerpt(name, 200)


def fresh_copies(policy: object, count: int) -> list[Any]:
    """Copy the object for every trial with `copy.deepcopy`.

    Raises:
        PolicyError: the object has no method `predict`, or cannot be copied.
    """
    if isinstance(policy, type) or not callable(getattr(policy, "predict", None)):
        raise PolicyError(
            f"replay: policy is {states.excerpt(repr(policy), 80)}; expected the name of a policy, or an "
            "object with predict(context) and, if it learns, learn(context, arm, reward, probability)"
        )
    try:
        return [copy.deepcopy(policy) for _ in range(count)]
    except Exception as error:
        raise PolicyError(f"{external_name(policy)}: every trial needs a copy, but: {error}") from error


def play_external(policy: Any, name: str, stream: Stream, lane: Lane, keys: tuple[object, ...]) -> None:
    """Play all rounds of a trial, and pass every reward to `learn` in the round in which it arrives.

    An arm that is not available gets probability 0, and the other probabilities are scaled to sum 1. If all
    of them are 0, the available arms are drawn uniformly.

    Args:
        policy: the object.
        name: its name for messages.
        stream: arrays of the replay.
        lane: the trial, into which the played arms and their propensities are written.
        keys: parts of the key of the random stream that arms are drawn from.

    Raises:
        PolicyError: `predict` returns neither an arm nor probabilities.
    """
    # a policy that scaled its context in place would change the problem for every later replay
    contexts = read_only(stream.contexts)
    rng = np.random.Generator(np.random.PCG64(int(stream_key("external", *keys)[0])))
    learn = getattr(policy, "learn", None)
    for t, row in enumerate(lane.order):
        pmf = _probabilities(name, policy.predict(contexts[row]), len(stream.arms))
        available = stream.available(t)
        if available is not None:
            pmf = np.where(available, pmf, 0.0)
            if pmf.sum() > 0:
                pmf = pmf / pmf.sum()
            else:
                pmf = available / available.sum()
        arm = int(rng.choice(len(pmf), p=pmf))
        lane.actions[t] = arm
        lane.propensities[t] = pmf[arm]
        for s in lane.due(t):
            if learn is None:
                break
            seen = int(lane.order[s])
            played = int(lane.actions[s])
            learn(
                contexts[seen],
                played,
                float(stream.utilities[seen, played]),
                float(lane.propensities[s]),
            )


def _probabilities(name: str, value: Any, arms: int) -> np.ndarray:
    """Turn the value that `predict` returned into probabilities, float64 `[K]` with sum 1.

    Raises:
        PolicyError: the value is neither the index of an arm nor probabilities.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < arms:
        certain: np.ndarray = np.eye(arms)[int(value)]
        return certain
    try:
        pmf: np.ndarray = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        pmf = np.empty(0)
    if pmf.shape == (arms,) and np.isfinite(pmf).all() and (pmf >= 0).all() and abs(pmf.sum() - 1.0) < 1e-6:
        scaled: np.ndarray = pmf / pmf.sum()
        return scaled
    raise PolicyError(
        f"{name}: predict returned {states.excerpt(repr(value), 80)}; expected the index of an arm, "
        f"0 to {arms - 1}, or {arms} probabilities with sum 1"
    )
