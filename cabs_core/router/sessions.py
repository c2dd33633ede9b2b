"""Conversations: which one a request belongs to, the text it is routed by, and whether its model stays.

**Session.** The key is, in this order: header `x-cabs-session` or `x-session-id`; in the body `metadata.session_id`,
`conversation` (its id), a Claude Code session in `metadata.user_id`, the session of `previous_response_id`; else it is
derived from the instructions and the first user message, with `prompt_cache_key` where that is given (which many
conversations may share, so alone it is no session). A derived key is looked up only by requests that hold an earlier
answer: two people who begin with the same words are two conversations. Keys are kept as hashes, apart for every caller.

**Text** (`route_by`). `last_user`: the last user message; `first_user`: the first that has text; `conversation`: all user
messages, one a line, the end of it. At most `LONGEST` characters are read. Images, audio and instructions are no text: a
request without any goes to the session's model, else to the fallback.

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

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cabs_core.router.event_rows import Logged
from cabs_core.router.events import prompt_hash
from cabs_core.router.router import Routed, Router
from cabs_core.utility import may_keep, worth_a_switch

#: characters of a text that are read to route by it
LONGEST = 16_384
#: seconds without a request after which a session is drawn again; providers keep caches for 5 minutes to an hour
IDLE = 3_600.0
#: characters for a token
CHARACTERS = 4.0
HEADERS = ("x-cabs-session", "x-session-id")
_CLAUDE = re.compile(r"_session_([0-9a-fA-F-]{8,})$")


@dataclass(frozen=True)
class Conversation:
    """What a request says of the conversation that it belongs to.

    Attributes:
        text: to route by; None: there is none.
        key: the session, hashed; derived: from the texts, so that only a later turn (`continued`) looks it up.
        previous: id of the response that this request follows.
        continued: the request holds an earlier answer. in_tools: it answers a tool call of the model.
        tokens: of the whole request; earlier: of what stood in the request before; both from characters.
    """

    text: str | None
    key: str | None = None
    derived: bool = False
    previous: str | None = None
    continued: bool = False
    in_tools: bool = False
    tokens: float = 0.0
    earlier: float = 0.0


def session_key(session: str, caller: str = "") -> str:
    """How a session that a client named is called in the log."""
    return hashlib.sha256(json.dumps([caller, session]).encode()).hexdigest()[:32]


def read_conversation(
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    route_by: str = "last_user",
    caller: str = "",
) -> Conversation:
    """The conversation of a request in the form of chat completions, responses, messages or completions.

    Args:
        headers: names in lower case. caller: name of the key that asked; sessions of callers are apart.
    """
    turns = _turns(body)
    users = [text for role, text in turns if role == "user"]
    last = next((i for i in reversed(range(len(turns))) if turns[i][0] == "user"), 0)
    lengths = [len(text) for _, text in turns]
    named = _named(body, headers or {})
    derived = None
    first = next((text for text in users if text.strip()), None)
    if first is not None:
        opening = [*(text for role, text in turns if role in ("system", "developer")), first]
        derived = session_key(json.dumps([_text(body.get("prompt_cache_key")), *opening]), caller)
    return Conversation(
        text=_routed_by(users, route_by),
        key=derived if named is None else session_key(named, caller),
        derived=named is None,
        previous=_text(body.get("previous_response_id")) or None,
        continued=any(role in ("assistant", "tool") for role, _ in turns),
        in_tools=bool(turns) and turns[-1][0] == "tool",
        tokens=sum(lengths) / CHARACTERS,
        earlier=sum(lengths[:last]) / CHARACTERS,
    )


def _routed_by(users: list[str], route_by: str) -> str | None:
    with_text = [text for text in users if text.strip()]
    if not with_text or (route_by == "last_user" and not users[-1].strip()):
        return None
    if route_by == "conversation":
        return "\n".join(text[-LONGEST:] for text in with_text)[-LONGEST:]
    return with_text[0 if route_by == "first_user" else -1][:LONGEST]


def _turns(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, its text) of the messages; role 'tool' for answers of tools, in every dialect."""
    turns: list[tuple[str, str]] = []
    for name in ("system", "instructions"):
        if body.get(name):
            turns.append(("system", _content(body[name])))
    messages: Any = next((body[n] for n in ("messages", "input", "prompt") if body.get(n) is not None), [])
    if isinstance(messages, str):
        return [*turns, ("user", messages)]
    for item in messages if isinstance(messages, list) else []:
        if isinstance(item, str):  # a list of prompts
            turns.append(("user", item))
        if not isinstance(item, dict):
            continue
        kind, content = str(item.get("type") or ""), item.get("content")
        role = str(item.get("role") or "")
        if role in ("tool", "function") or kind.endswith("_call_output"):
            turns.append(("tool", _content(content if content is not None else item.get("output"))))
        elif kind.endswith("_call") or kind == "reasoning":
            turns.append(("assistant", _content(item.get("arguments"))))
        elif isinstance(content, list) and any(_kind(part) == "tool_result" for part in content):
            turns.append(("tool", _content(content)))
        elif role:
            turns.append((role, _content(content)))
    return turns


def _kind(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [p.get("text") if isinstance(p, dict) else p for p in content]
    return "\n".join(p for p in parts if isinstance(p, str))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _named(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """The session that a client named, or None."""
    about = body.get("metadata")
    about = about if isinstance(about, dict) else {}
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    claude = _CLAUDE.search(_text(about.get("user_id")))
    candidates = (
        *(headers.get(name) for name in HEADERS), about.get("session_id"), conversation,
        body.get("litellm_session_id"), claude and claude[1],
    )  # fmt: skip
    return next((value for value in candidates if isinstance(value, str) and value.strip()), None)


def route_conversation(
    router: Router,
    conversation: Conversation,
    *,
    available: Iterable[str] | None = None,
    rho: float | None = None,
    call_id: str | None = None,
    caller: str | None = None,
) -> Routed:
    """Decide which model answers a turn: the one that the session has, one that is drawn, or the fallback without text.

    Args:
        available, rho, call_id: as of `Router.route`. caller: who asks, for the log.

    Raises:
        RouterError: an unknown model, or no model left. LogError: the log cannot be used.
    """
    mask = router.mask(available)
    key, last = _standing(router, conversation)
    if last is not None and (mask is None or mask[router.arms.index(last.arm)]):
        expected = None
        if not conversation.in_tools and conversation.text is not None:
            expected = _worth(router, conversation, mask, last.arm, router.rho_of(rho))
        if expected is None or not expected[0]:
            return _log(
                router, conversation, last.arm, key, last.kept or last.id, rho, call_id,
                expected_cost=None if expected is None else expected[1], caller=caller,
            )  # fmt: skip
    if conversation.text is None:
        arm = router.arms[router.fallback]
        if mask is not None and not mask[router.fallback]:
            arm = router.arms[int(np.flatnonzero(mask)[0])]
        return _log(router, conversation, arm, key, None, rho, call_id, mode="fallback", caller=caller)
    return router.route(
        conversation.text, available=available, rho=rho, call_id=call_id, session=key, tokens=conversation.tokens, caller=caller
    )  # fmt: skip


def _standing(router: Router, conversation: Conversation) -> tuple[str | None, Logged | None]:
    """(session of the request, the turn whose model may stay)."""
    key, last = conversation.key, None
    if conversation.previous is not None:
        before = router.log.decision(response_id=conversation.previous)
        if before is not None and conversation.derived:
            key, last = before.session, before
    if not may_keep(router.sticky, conversation.in_tools):
        return key, None
    if key is not None and (last is not None or not conversation.derived or conversation.continued):
        last = router.log.decision(session=key) or last
    if last is None or last.arm not in router.arms or last.mode == "fallback":
        return key, None
    if time.time() - last.ts > IDLE and not conversation.in_tools:
        return key, None
    return key, last


def _worth(
    router: Router, conversation: Conversation, mask: np.ndarray | None, arm: str, rho: float
) -> tuple[bool, float]:
    """(whether another model is worth the lost cache, expected cost of staying in USD)."""
    text, i = conversation.text or "", router.arms.index(arm)
    scores, costs = router.heads.shown(router.embed([text])[0], float(len(text)))
    parts = router.charged(costs, float(len(text)), conversation.tokens)
    whole = costs if parts is None else parts[0]
    cached = conversation.earlier * float(router.cache_savings[i])
    return worth_a_switch(scores, whole, i, rho, cached, mask), float(whole[i]) - cached


def _log(
    router: Router, conversation: Conversation, arm: str, session: str | None, kept: str | None, rho: float | None,
    call_id: str | None, *, mode: str | None = None, expected_cost: float | None = None, caller: str | None = None,
) -> Routed:  # fmt: skip
    """Log a turn that draws nothing: it keeps the model of decision `kept`, or (None) has no text to route by."""
    name, text = uuid.uuid4().hex, conversation.text or ""
    used = router.rho_of(rho)
    row = {
        "id": name, "ts": time.time(), "bundle": router.manifest.id, "arm": arm, "p": 1.0, "rho": used,
        "mode": mode or router.mode, "expected_cost": expected_cost, "prompt_hash": prompt_hash(text),
        "prompt_length": float(len(text)), "call_id": call_id, "session": session, "kept": kept or name, "caller": caller,
    }  # fmt: skip
    router.log.add_decisions([row])
    sure = {other: float(other == arm) for other in router.arms}

    def expect() -> tuple[dict[str, float], dict[str, float]]:
        if not text:
            return {}, {}
        scores, costs = router.heads.shown(router.embed([text])[0], float(len(text)))
        return (
            dict(zip(router.arms, scores.tolist(), strict=True)),
            dict(zip(router.arms, costs.tolist(), strict=True)),
        )

    return Routed(name, arm, 1.0, sure, used, arm, False, expect, kept=kept)
