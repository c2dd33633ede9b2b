"""Conversations: whether the model of a conversation stays, or another one is drawn.

Which conversation a request belongs to, and by what text it is routed, says `endpoints.request`. A derived key is looked up
only by requests that hold an earlier answer: two people who begin with the same words are two conversations. A request
without text goes to the session's model, else to the fallback.

**Stickiness** (`sticky`). `session`: the model of a session stays while it can be called, unless another model is
predicted to be better by more than the lost cache costs, or nothing was asked for `IDLE` seconds. `tools`: it stays
within a tool loop only. `off`: every request is a draw. No setting but `off` switches inside a tool loop. A turn that
keeps its model is no draw, so it has no propensity; one that may switch is drawn among all models, whatever the policy
says, and when that happens depends on predictions alone, so propensities stay exact.

With s the predicted score, c the expected cost of the whole request in USD, C the tokens that the model i of the session
has read before, and d_i what one of them costs less when it is cached: another model is drawn when
max_j (s_j - rho c_j) - (s_i - rho c_i) > rho C d_i (`utility.worth_a_switch`). Condition `sessions` of a replay applies the
same rule (`replay.sessions`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cabs_core.endpoints.request import Request
from cabs_core.router.event_rows import SERVED, Logged
from cabs_core.router.events import prompt_hash
from cabs_core.router.heads import Prediction
from cabs_core.router.router import Expected, Routed, Router
from cabs_core.utility import may_keep, worth_a_switch

#: seconds without a request after which a session is drawn again; providers keep caches for 5 minutes to an hour
IDLE = 3_600.0


def route_conversation(
    router: Router,
    request: Request,
    *,
    available: Iterable[str] | None = None,
    rho: float | None = None,
    call_id: str | None = None,
    caller: str | None = None,
) -> Routed:
    """Decide which model answers a turn: the one that the session has, one that is drawn, or the fallback without text.

    Args:
        available, rho, call_id: as of `Router.route`. caller: who asks, for the log; earlier turns are looked up among its
            own. None: among everybody's.

    Raises:
        RouterError: an unknown model, or no model left. LogError: the log cannot be used.
    """
    mask = router.mask(available)
    key, standing = _standing(router, request, caller)
    last = next((row for row in standing if mask is None or mask[router.arms.index(row.arm)]), None)
    text, prediction = request.text, None
    if last is not None:
        expected = None
        if not request.in_tools and text is not None:
            prediction = router.predict([text])[0]
            expected = _worth(router, request, prediction, mask, last.arm, router.rho_of(rho))
        if expected is None or not expected[0]:
            return _log(
                router, text, prediction, last.arm, key, last.kept or last.id, rho, call_id,
                expected_cost=None if expected is None else expected[1], caller=caller,
            )  # fmt: skip
    if text is None:
        arm = router.arms[router.fallback]
        if mask is not None and not mask[router.fallback]:
            arm = router.arms[int(np.flatnonzero(mask)[0])]
        return _log(router, None, None, arm, key, None, rho, call_id, mode="fallback", caller=caller)
    return router.route(
        prediction or text, available=available, rho=rho, call_id=call_id, session=key, tokens=request.tokens, caller=caller
    )  # fmt: skip


def maker_of(router: Router, request: Request, caller: str | None = None) -> Logged | None:
    """The call whose upstream holds the state that a request names; None: the log knows of none."""
    if request.previous is not None:
        return router.log.decision(response_id=request.previous, caller=caller)
    if request.key is None or (request.derived and not request.continued):
        return None
    last = router.log.decision(session=request.key, caller=caller)
    if last is None or last.status in SERVED:
        return last
    return next((row for row in router.log.turns_before(last) if row.status in SERVED), None)


def with_carried(request: Request, made: Logged) -> Request:
    """The request with the tokens that it does not carry, for its provider has them: those of the call before."""
    if not {"previous_response_id", "conversation"} & set(request.held):
        return request
    carried = (made.tokens_in or 0.0) + (made.tokens_out or 0.0)
    return replace(request, tokens=request.tokens + carried, earlier=request.earlier + carried)


def _standing(router: Router, request: Request, caller: str | None) -> tuple[str | None, list[Logged]]:
    """(session of the request, the turns whose model may stay, the first that can be called)."""
    key, last = request.key, None
    if request.previous is not None:
        before = router.log.decision(response_id=request.previous, caller=caller)
        if before is not None and request.derived:
            key, last = before.session, before
    if not may_keep(router.sticky, request.in_tools):
        return key, []
    if key is not None and (last is not None or not request.derived or request.continued):
        last = router.log.decision(session=key, caller=caller) or last
    if last is None or last.arm not in router.arms or last.mode == "fallback":
        return key, []
    if time.time() - last.ts > IDLE and not request.in_tools:
        return key, []
    return key, [row for row in (_diverted(router, request, last), last) if row is not None]


def _diverted(router: Router, request: Request, last: Logged) -> Logged | None:
    """The step of a tool loop that kept its model and failed, where another model then answered the same request."""
    if not request.in_tools or last.kept is not None or last.call_id is None:
        return None
    for row in router.log.turns_before(last):
        if row.call_id != last.call_id or row.status not in ("error", "timeout"):
            return None
        if row.kept is not None and row.arm in router.arms:
            return row
    return None


def _worth(
    router: Router, request: Request, prediction: Prediction, mask: np.ndarray | None, arm: str, rho: float
) -> tuple[bool, float]:
    """(whether another model is worth the lost cache, expected cost of staying in USD)."""
    i, scores, costs = router.arms.index(arm), prediction.scores, prediction.costs
    parts = router.charged(costs, prediction.tokens, request.tokens)
    whole = costs if parts is None else parts[0]
    cached = request.earlier * float(router.cache_savings[i])
    return worth_a_switch(scores, whole, i, rho, cached, mask), float(whole[i]) - cached


def _log(
    router: Router, text: str | None, prediction: Prediction | None, arm: str, session: str | None, kept: str | None, rho: float | None,
    call_id: str | None, *, mode: str | None = None, expected_cost: float | None = None, caller: str | None = None,
) -> Routed:  # fmt: skip
    """Log a turn that draws nothing: it keeps the model of decision `kept`, or (None) has no text to route by."""
    name, text = uuid.uuid4().hex, text or ""
    used = router.rho_of(rho)
    row = {
        "id": name, "ts": time.time(), "bundle": router.manifest.id, "arm": arm, "p": 1.0, "rho": used,
        "mode": mode or router.mode, "expected_cost": expected_cost, "prompt_hash": prompt_hash(text),
        "prompt_length": float(len(text)), "call_id": call_id, "session": session, "kept": kept or name, "caller": caller,
    }  # fmt: skip
    router.log.add_decisions([row])
    sure = {other: float(other == arm) for other in router.arms}

    def expect() -> Expected:
        return router.expectation(prediction or router.predict([text])[0])() if text else ({}, {})

    return Routed(name, arm, 1.0, sure, used, arm, False, expect, kept=kept)
