"""Conversations: whether the model of a conversation stays, or another one is drawn.

Which conversation a request belongs to, and by what text it is routed, says `endpoints.request`. A derived
key is looked up only by requests that hold an earlier answer: two people who begin with the same words are
two conversations. A request without the text of a person goes to the session's model, else to the fallback.

**Stickiness** (`sticky`). `session`: the model of a session stays while it can be called, unless another
model is predicted to be better by more than the lost cache costs, or nothing was asked for `IDLE` seconds.
`tools`: it stays within a tool loop only. `off`: every request is a draw. No setting but `off` switches
inside a tool loop. A turn that keeps its model is no draw, so it has no propensity; one that may switch is
drawn among all models, when predictions alone say so: propensities stay exact.

With s the predicted score, c the expected cost of the whole request in USD, C the tokens that the model i of
the session has read before, and d_i what one of them costs less when it is cached: another model is drawn
when max_j (s_j - rho c_j) - (s_i - rho c_i) > rho C d_i (`utility.worth_a_switch`). Condition `sessions` of a
replay applies the same rule (`replay.sessions`).
"""

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cabs_core.base.errors import HeldElsewhere
from cabs_core.base.utility import may_keep, worth_a_switch
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.events.rows import FAILED, SERVED, Logged
from cabs_core.router.heads import Prediction
from cabs_core.router.router import Routed, Router, expected

#: seconds without a request after which a session is drawn again; caches are kept 5 minutes to an hour
IDLE = 3_600.0


def route_conversation(
    router: Router,
    request: ChatRequest,
    *,
    available: Iterable[str] | None = None,
    rho: float | None = None,
    call_id: str | None = None,
    caller: str | None = None,
) -> Routed:
    """Decide which model answers a turn: the session's, one that is drawn, or the fallback without text.

    Args:
        available, rho (score units per USD), call_id: as of `Router.route`. caller: who asks, for the log;
            earlier turns are looked up among its own. None: among everybody's.

    Raises:
        RouterError: an unknown model, or no model left. LogError: the log cannot be used.
    """
    mask = router.mask(available)
    key, standing = _standing(router, request, caller)
    last = next((row for row in standing if mask is None or mask[router.arms.index(row.arm)]), None)
    text = request.text
    facts: dict[str, Any] = {"call_id": call_id, "session": key, "caller": caller}
    prediction = (
        None if text is None or (last is not None and request.in_tools) else router.predict([text])[0]
    )
    if last is not None:
        leaves, usd = False, None
        if prediction is not None:
            leaves, usd = _worth(router, request, prediction, mask, last.arm, router.rho_of(rho))
        if not leaves:
            kept = last.kept or last.id
            row = router.undrawn(last.arm, text, kept=kept, rho=rho, mode=router.options.mode, **facts)
            router.log.add_decisions([{**row, "expected_cost": usd}])
            return _undrawn(router, row, text, prediction, kept, _of_a_dollar(router, last))
    if prediction is None:
        arm = router.manifest.fallback
        if mask is not None and not mask[router.fallback]:
            arm = router.arms[int(np.flatnonzero(mask)[0])]
        row = router.undrawn(arm, None, rho=rho, mode="fallback", **facts)
        router.log.add_decisions([row])
        return _undrawn(router, row, None, None)
    return router.route_many([prediction], available=available, rho=rho, tokens=request.tokens, **facts)[0]


def at_holder(
    router: Router,
    request: ChatRequest,
    models: Sequence[str],
    places: Mapping[str, Hashable],
    caller: str | None = None,
) -> tuple[ChatRequest, list[str] | None]:
    """Which models can answer a request that names state of a provider.

    Args:
        models: that may answer. places: {model: where it is called}: models of one place know what was said
            to any.
        caller: who asks; earlier calls are looked up among its own.

    Returns:
        The request, with the tokens that it does not carry, for its provider has them; and those of the
        models at the place that holds what it names. None: it names nothing, or the log knows of no call that
        made it.

    Raises:
        HeldElsewhere: none of them is there. LogError: the log cannot be used.
    """
    maker = _maker(router, request, caller) if request.held else None
    if maker is None:
        return request, None
    there = [model for model in models if maker.arm in places and places.get(model) == places[maker.arm]]
    if not there:
        raise HeldElsewhere(request.held[0], maker.arm, models)
    if {"previous_response_id", "conversation"} & set(request.held):
        carried = (maker.tokens_in or 0.0) + (maker.tokens_out or 0.0)
        request = replace(
            request, tokens=request.tokens + carried, earlier_tokens=request.earlier_tokens + carried
        )
    return request, there


def _maker(router: Router, request: ChatRequest, caller: str | None) -> Logged | None:
    """The call whose upstream holds the state that a request names; None: the log knows of none."""
    if request.previous_response is not None:
        return router.log.decision(response_id=request.previous_response, caller=caller)
    if request.key is None or (request.derived and not request.is_continued):
        return None
    last = router.log.decision(session=request.key, caller=caller)
    if last is None or last.status in SERVED:
        return last
    return next((row for row in router.log.turns_before(last) if row.status in SERVED), None)


def _standing(router: Router, request: ChatRequest, caller: str | None) -> tuple[str | None, list[Logged]]:
    """(session of the request, the turns whose model may stay, the first that can be called)."""
    key, last = request.key, None
    if request.previous_response is not None:
        before = router.log.decision(response_id=request.previous_response, caller=caller)
        if before is not None and request.derived:
            key, last = before.session, before
    if not may_keep(router.options.sticky, request.in_tools):
        return key, []
    if key is not None and (last is not None or not request.derived or request.is_continued):
        last = router.log.decision(session=key, caller=caller) or last
    if last is None or last.arm not in router.arms or last.mode == "fallback":
        return key, []
    if time.time() - last.ts > IDLE and not request.in_tools:
        return key, []
    return key, [row for row in (_diverted(router, request, last), last) if row is not None]


def _diverted(router: Router, request: ChatRequest, last: Logged) -> Logged | None:
    """The step of a tool loop that kept its model and failed, which another model then answered."""
    if not request.in_tools or last.kept is not None or last.call_id is None:
        return None
    for row in router.log.turns_before(last):
        if row.call_id != last.call_id or row.status not in FAILED:
            return None
        if row.kept is not None and row.arm in router.arms:
            return row
    return None


def _worth(
    router: Router,
    request: ChatRequest,
    prediction: Prediction,
    mask: np.ndarray | None,
    arm: str,
    rho: float,
) -> tuple[bool, float]:
    """(whether another model is worth the lost cache, expected cost of staying in USD)."""
    i, scores, predicted = router.arms.index(arm), prediction.scores, prediction.costs
    charge = router.prices.charge(
        predicted, prediction.tokens, request.tokens, router.learner.charges.factors
    )
    costs = predicted if charge is None else charge.cost
    cached = request.earlier_tokens * float(router.prices.savings[i])
    return worth_a_switch(scores, costs, i, rho, cached, mask), float(costs[i]) - cached


def _of_a_dollar(router: Router, last: Logged) -> float | None:
    """What the fallback was expected to cost per dollar of the model that stays, when that was drawn."""
    if last.arm == router.manifest.fallback:
        return 1.0
    drawn = last if last.kept is None else router.log.decision(id=last.kept)
    if drawn is None or drawn.fixed_cost is None or not drawn.expected_cost:
        return None
    return drawn.fixed_cost / drawn.expected_cost


def _undrawn(
    router: Router,
    row: dict[str, Any],
    text: str | None,
    prediction: Prediction | None,
    kept: str | None = None,
    fixed: float | None = None,
) -> Routed:
    """The decision of a row that draws nothing."""
    sure = {arm: float(arm == row["arm"]) for arm in router.arms}

    def expect() -> tuple[np.ndarray, np.ndarray]:
        return expected(prediction or router.predict([text or ""])[0], None)

    arm, rho = row["arm"], row["rho"]
    return Routed(
        row["id"],
        arm,
        1.0,
        sure,
        rho,
        arm,
        False,
        expect if text else None,
        (arm,),
        kept,
        fixed,
        shared_text=None if text is None else router.shared_text.share,
    )
