"""Conversations: they keep their model, or another model is drawn.

`endpoints.request` says which conversation a request belongs to, and by which text it is routed. A session
key that is derived from a conversation's first words is looked up only by requests that hold an earlier
answer, since two people who begin with the same words have two conversations. A request without the text of
a person goes to the session's model, else to the fallback.

**Stickiness** (option `sticky`). `session`: a session keeps its model while the model can be called, unless
another model is predicted to be better by more than the lost cache costs, or no request came for `IDLE`
seconds. `tools`: a session keeps its model within a tool loop only. `off`: every request with a text is a
draw. No setting but `off` switches inside a tool loop. A turn that keeps its model is no draw: it stands in
the log with probability 1, and nothing is learnt from it. A turn may switch only if predictions alone say so,
and is then drawn among all models, so propensities stay exact.

Let s be the predicted score, c the expected cost of the whole request in USD, C the tokens that the session's
model i has read before, and d_i the USD that one of them costs less when it is cached. Another model is drawn
if max_j (s_j - rho c_j) - (s_i - rho c_i) > rho C d_i (`utility.worth_a_switch`). Condition `sessions` of a
replay applies the same rule (`replay.sessions`).
"""

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cabs_core.base.errors import HeldElsewhere
from cabs_core.base.utility import may_keep, worth_a_switch
from cabs_core.data.endpoints.request import ChatRequest
from cabs_core.data.events.rows import FAILED, SERVED, Logged
from cabs_core.router.heads import Prediction
from cabs_core.router.routed import Routed, RouteRequest, expected
from cabs_core.router.router import Router

#: Seconds without a request after which a session is drawn again. Providers keep caches 5 minutes to an hour.
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
    """Decide which model answers a turn of a conversation, and log the decision.

    Args:
        router: decides.
        request: the turn.
        available, rho, call_id: as of `RouteRequest`.
        caller: name of the client, for the log. Earlier turns are looked up among its own, or among all
            clients' if it is None.

    Raises:
        RouterError: a model is unknown, or no model is left to choose.
        LogError: the log cannot be used.
    """
    mask = router.mask(available)
    session, candidates = _earlier_turns(router, request, caller)
    facts = RouteRequest(available, rho, call_id=call_id, caller=caller, session=session)
    last = None
    for row in candidates:
        if mask is None or mask[router.arms.index(row.arm)]:
            last = row
            break
    prediction = None
    if request.text is not None and (last is None or not request.in_tools):
        prediction = router.predict([request.text])[0]
    if last is not None:
        if prediction is None:
            return _keep(router, request, last, facts, prediction=None, cost=None)
        leaves, cost = _compare_with_switch(router, request, prediction, mask, last.arm, router.rho_of(rho))
        if not leaves:
            return _keep(router, request, last, facts, prediction=prediction, cost=cost)
    if prediction is None:
        return _fall_back(router, mask, facts)
    return router.route_many([prediction], replace(facts, tokens=request.tokens))[0]


def _keep(
    router: Router,
    request: ChatRequest,
    last: Logged,
    facts: RouteRequest,
    *,
    prediction: Prediction | None,
    cost: float | None,
) -> Routed:
    """Log that a turn keeps the model of an earlier one, and return the decision.

    The row and the decision have probability 1 for the model.

    Args:
        last: the earlier turn.
        facts: rho and names of the turn.
        prediction: predictions for the turn's text, which the returned decision holds and the log does not.
            None if the turn was not predicted.
        cost: expected cost of the turn for the log, USD. None if it was not predicted.
    """
    kept = last.kept or last.id
    row = router.undrawn_row(last.arm, request.text, kept=kept, rho=facts.rho)
    row |= _log_columns(facts) | {"mode": router.options.mode, "expected_cost": cost}
    router.log.add_decisions([row])
    details = _Undrawn(request.text, prediction, kept, _fallback_cost_per_usd(router, last))
    return _undrawn(router, row, details)


def _fall_back(router: Router, mask: np.ndarray | None, facts: RouteRequest) -> Routed:
    """Log that the fallback answers a turn without text, and return the decision.

    The first available model stands in if the fallback is not available.
    """
    arm = router.manifest.fallback
    if mask is not None and not mask[router.fallback]:
        arm = router.arms[int(np.flatnonzero(mask)[0])]
    row = router.undrawn_row(arm, None, rho=facts.rho) | _log_columns(facts) | {"mode": "fallback"}
    router.log.add_decisions([row])
    return _undrawn(router, row, _Undrawn())


def _log_columns(facts: RouteRequest) -> dict[str, str | None]:
    """Return the entries of the log's columns `call_id`, `session` and `caller` for a request."""
    return {"call_id": facts.call_id, "session": facts.session, "caller": facts.caller}


def models_at_holder(
    router: Router,
    request: ChatRequest,
    models: Sequence[str],
    places: Mapping[str, Hashable],
    caller: str | None = None,
) -> tuple[ChatRequest, list[str] | None]:
    """Find the models that can answer a request which names state that a provider holds.

    Args:
        router: whose log says which call made the state.
        models: names of the models that may answer.
        places: {model: where it is called}. Models of one place share their state.
        caller: name of the client. Earlier calls are looked up among its own, or among all if it is None.

    Returns:
        The request, with the tokens that the provider adds from its state; and the models at the place that
        holds the state. None in place of the models if the request names no state, or the log knows no call
        that made it.

    Raises:
        HeldElsewhere: none of the models is at that place.
        LogError: the log cannot be used.
    """
    if request.held:
        maker = _call_that_made_state(router, request, caller)
    else:
        maker = None
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


def _call_that_made_state(router: Router, request: ChatRequest, caller: str | None) -> Logged | None:
    """Return the call whose upstream holds the state that a request names, or None if the log has no such
    call.

    It is the call of the named response, else the last served call of the session.
    """
    if request.previous_response is not None:
        return router.log.decision(response_id=request.previous_response, caller=caller)
    if request.key is None or (request.derived and not request.is_continued):
        return None
    last = router.log.decision(session=request.key, caller=caller)
    if last is None or last.status in SERVED:  # else it is under way, or the session has no answer yet
        return last
    return next((row for row in router.log.turns_before(last) if row.status in SERVED), None)


def _earlier_turns(
    router: Router, request: ChatRequest, caller: str | None
) -> tuple[str | None, list[Logged]]:
    """Return the session of a request, and the turns whose model it may keep, best first.

    The last turn is the last one that answered, if any did: a model that failed has no cache to lose.

    The session is that of the earlier response if the request names one and has no key but a derived one. The
    session is None if the request has no key at all. There are no turns if the option `sticky` forbids to
    keep a model or the log has no earlier turn. There are none either if the fallback answered the last turn
    because it had no text, if the model of that turn has left the router, or if that turn is older than
    `IDLE` outside a tool loop.
    """
    key = request.key
    last = None
    if request.previous_response is not None:
        before = router.log.decision(response_id=request.previous_response, caller=caller)
        if before is not None and request.derived:
            key = before.session
            last = before
    if not may_keep(router.options.sticky, request.in_tools):
        return key, []
    if key is not None and (last is not None or not request.derived or request.is_continued):
        last = router.log.decision(session=key, caller=caller) or last
    if last is None or last.arm not in router.arms or last.mode == "fallback":
        return key, []
    if time.time() - last.ts > IDLE and not request.in_tools:
        return key, []
    failed = _failed_kept_step(router, request, last)
    return key, [last] if failed is None else [failed, last]


def _failed_kept_step(router: Router, request: ChatRequest, last: Logged) -> Logged | None:
    """Return the step of a tool loop that kept its model and failed, if another model then answered it.

    None if there is no such step, or if the step's model has left the router.

    Args:
        last: the last turn of the session that answered.
    """
    if not request.in_tools or last.kept is not None or last.call_id is None:
        return None
    for row in router.log.turns_before(last):
        if row.call_id != last.call_id or row.status not in FAILED:
            return None
        if row.kept is not None and row.arm in router.arms:
            return row
    return None


def _compare_with_switch(
    router: Router,
    request: ChatRequest,
    prediction: Prediction,
    mask: np.ndarray | None,
    arm: str,
    rho: float,
) -> tuple[bool, float]:
    """Return True if another model is worth the lost cache, and the expected cost of staying in USD.

    Args:
        mask: bool `[K]` of the available models. None if all are.
        arm: the session's model.
        rho: score units per USD.
    """
    i = router.arms.index(arm)
    costs = prediction.costs
    charge = router.prices.charge(
        costs, prediction.tokens, request.tokens, router.learner.cost_factors.factors
    )
    if charge is not None:
        costs = charge.cost
    cached = request.earlier_tokens * float(router.prices.savings[i])
    return worth_a_switch(prediction.scores, costs, i, rho, cached, mask), float(costs[i]) - cached


def _fallback_cost_per_usd(router: Router, last: Logged) -> float | None:
    """Return the expected cost of the fallback for every dollar that the kept model was expected to cost.

    Both costs are those of the decision that drew the model. Return 1 if the kept model is the fallback, and
    None if the costs are not known or the kept model was expected to cost nothing.
    """
    if last.arm == router.manifest.fallback:
        return 1.0
    drawn = last if last.kept is None else router.log.decision(id=last.kept)
    if drawn is None or drawn.fixed_cost is None or not drawn.expected_cost:
        return None
    return drawn.fixed_cost / drawn.expected_cost


@dataclass(frozen=True)
class _Undrawn:
    """Details of a decision that draws no model.

    Attributes:
        text: text of the prompt. None if there is no text.
        prediction: predictions for the text. None if it was not predicted.
        kept: id of the decision whose model stays. None if the fallback answers.
        fallback_cost_per_usd: expected cost of the fallback for every expected dollar of the kept model. None
            if the ratio is not known.
    """

    text: str | None = None
    prediction: Prediction | None = None
    kept: str | None = None
    fallback_cost_per_usd: float | None = None


def _undrawn(router: Router, row: dict[str, Any], details: _Undrawn) -> Routed:
    """Return the decision of a row of the log that draws no model; its model has propensity 1."""
    text = details.text
    arm = row["arm"]

    def expect() -> tuple[np.ndarray, np.ndarray]:
        return expected(details.prediction or router.predict([text or ""])[0], None)

    return Routed(
        id=row["id"],
        model=arm,
        propensity=1.0,
        probabilities={name: float(name == arm) for name in router.arms},
        rho=row["rho"],
        chosen=arm,
        explored=False,
        _expect=expect if text else None,
        available=(arm,),
        kept=details.kept,
        fallback_cost_per_usd=details.fallback_cost_per_usd,
        shared_text=None if text is None else router.shared_text.share,
    )
