"""One reading of a request: its text, its conversation, what a model must be able to do for it, and its size.

    request = ChatRequest.read(body, headers, "chat")

**Session.** The key is, in this order: header `x-cabs-session` or `x-session-id`; in the body
`metadata.session_id`, `conversation` (its id), a Claude Code session in `metadata.user_id` (JSON since its
version 2.1.78), the session of `previous_response_id`; else it is derived from the instructions and the first
user message, with `prompt_cache_key` where that is given (which many conversations may share, so alone it is
no session). Keys are kept as hashes, apart for every caller.

**Text** (`route_by`). `last_user`: the newest message that holds the text of a person, also beside the result
of a tool; `first_user`: the oldest; `conversation`: all of them, one a line, the end of it. At most
`person_text.LONGEST` characters are read. Images, audio, instructions and the blocks of an agent's harness
are no text of a person (`person_text`). Header `x-cabs-text` or `metadata.cabs_text` gives the text instead.

**Tokens** are measured in one way, for the whole request and for the part that stood in the request before
(`tokens`): bytes of UTF-8 / 4, a fixed number for an image or a sound, some for a message.

**State held at a provider** (`held`) are fields that mean something to the provider who gave them only, such
as `previous_response_id`, the id of a file, or encrypted reasoning.

Logs and tables hold messages in more forms than requests do (`chat_text`): LangChain's, ShareGPT's, Gemini's
and OpenTelemetry's `parts`, and any of them as JSON in a text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from cabs_core.data.endpoints.output_limits import NO_LIMITS, OutputLimits
from cabs_core.data.endpoints.person_text import TextRules, given_text, has_words
from cabs_core.data.endpoints.tokens import MEDIA_TOKENS, MESSAGE_TOKENS, pieces, text_tokens
from cabs_core.data.endpoints.usage import count

HEADERS = ("x-cabs-session", "x-session-id")
Medium = Literal["image", "audio", "file", "video"]
MEDIUMS: tuple[Medium, ...] = get_args(Medium)
#: kinds of parts of a message that are not text -> what a model must take
MEDIA: dict[str, Medium] = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_file": "image",
    "image_generation_call": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "document_url": "file",
    "video_url": "video",
    "input_video": "video",
    "video": "video",
}
#: where the messages of a request, a log or a table stand
MESSAGES = ("messages", "input", "prompt", "contents")
#: fields of a body that say what is asked, and in which conversation
FIELDS = (
    *MESSAGES[:3],
    "system",
    "instructions",
    "metadata",
    "conversation",
    "previous_response_id",
    "prompt_cache_key",
)
_INSTRUCTIONS = ("system", "instructions")
#: fields that say how an answer is written, or hold `format`, which does: of chat, responses and messages
_FORMS = ("response_format", "text", "output_format", "output_config")
#: names of roles -> user, assistant, tool or system
_ROLES = {
    "user": "user",
    "human": "user",
    "humanmessage": "user",
    "humanmessagechunk": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "tool": "tool",
    "function": "tool",
    "toolmessage": "tool",
    "functionmessage": "tool",
    "ipython": "tool",
    "system": "system",
    "developer": "system",
    "systemmessage": "system",
}
#: kinds of parts by which a tool answers
_TOOL_RESULTS = ("tool_result", "tool_call_response", "function_response")
#: fields of parts, tools and messages whose meaning a provider keeps, where they hold a text or a list
_HELD = (
    "file_id",
    "file_ids",
    "vector_store_ids",
    "container",
    "encrypted_content",
    "signature",
    "thought_signature",
)
#: kinds of items that are such state by themselves
_HELD_KINDS = ("item_reference", "redacted_thinking", "mcp_approval_response", "reasoning.encrypted")
#: fields beside the messages that name what a provider keeps
_HELD_BY_BODY = ("previous_response_id", "conversation", "prompt", "container", "cached_content")
#: fields and kinds of tools by which a request lets the provider search the web
_SEARCH_FIELDS = ("web_search_options", "search_parameters", "web_search")
_SEARCH_TOOL = re.compile(r"(web|google|enterprise)_?search|live_?search", re.IGNORECASE)
#: web searches that a call with such a tool is taken to make at most, where the request gives no limit
MOST_SEARCHES = 10.0
#: the blocks that are taken out by default, and no template
TEXT_RULES = TextRules()
_CLAUDE = re.compile(r"_session_([0-9a-fA-F-]{8,})$")


@dataclass(frozen=True)
class ChatRequest:
    """What a request says.

    Attributes:
        text: to route by; None: there is none. dialect: see `dialects`.
        key: the session, hashed; derived: from the texts: only a later turn (`continued`) asks.
        previous: id of the response that this request follows.
        continued: the request holds an earlier answer. in_tools: it answers a tool call of the model.
        abilities: what a model must take: some of image, audio, file, video, tools, json_schema.
        held: names of the fields that hold state of a provider, in order of the body.
        tokens: of the whole request; earlier: of what stood in the request before.
        output: how much the model may write. Its `answers` counts those to all prompts.
        searches: most web searches that a provider is taken to make for an answer. It is 1 if the request
            names none, since some models search for every request.
    """

    text: str | None
    dialect: str = "chat"
    key: str | None = None
    derived: bool = False
    previous: str | None = None
    continued: bool = False
    in_tools: bool = False
    abilities: frozenset[str] = frozenset()
    held: tuple[str, ...] = ()
    tokens: float = 1.0
    earlier: float = 0.0
    output: OutputLimits = NO_LIMITS
    searches: float = 1.0

    @classmethod
    def read(
        cls,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        dialect: str = "chat",
        *,
        route_by: str = "last_user",
        caller: str = "",
        rules: TextRules = TEXT_RULES,
    ) -> ChatRequest:
        """Read a body in the form of chat completions, responses, messages or completions.

        Args:
            headers: names in lower case. caller: name of the key that asked; sessions of callers are apart.
            rules: how the text of a person is found in a message.

        Raises:
            RouterError: the text that the caller gives to route by is unreadable (`given_text`).
        """
        headers = headers or {}
        parts = _Parts()
        system_texts = [_content(body[name]) for name in _INSTRUCTIONS if body.get(name)]
        parts.add([body.get(name) for name in (*_INSTRUCTIONS, "tools", "functions")])
        parts.add_form(body)
        earlier = parts.tokens
        roles: list[str] = []
        user_texts: list[str] = []
        for turn in _turns(_messages_of(body)):
            roles.append(turn.role)
            if turn.role == "user":
                earlier = parts.tokens
            if turn.role == "system":
                system_texts.append(turn.text)
            parts.add(turn.item)
            if isinstance(turn.item, dict) and turn.item.keys() == {"id"}:  # its kind may be left out
                parts.held.append("item_reference")
            person_text = rules.person_text(turn.user_text)
            if has_words(person_text):
                user_texts.append(person_text)
        parts.note_body(body)
        named = _named(body, headers)
        derived = None
        if user_texts:
            shared = body.get("prompt_cache_key")
            opening = [shared if isinstance(shared, str) else "", *system_texts, user_texts[0]]
            derived = session_key(_digest(opening), caller)
        previous = body.get("previous_response_id")
        given = given_text(headers, body)
        output = OutputLimits.read(body)
        output = output._replace(answers=output.answers * _prompts(body, dialect))
        return cls(
            text=rules.choose_text(user_texts, route_by) if given is None else given,
            dialect=dialect,
            key=derived if named is None else session_key(named, caller),
            derived=named is None,
            previous=previous if isinstance(previous, str) and previous else None,
            continued="assistant" in roles or "tool" in roles,
            in_tools=bool(roles) and roles[-1] == "tool",
            abilities=frozenset(parts.abilities),
            held=tuple(dict.fromkeys(parts.held)),
            tokens=max(parts.tokens, 1.0),
            earlier=earlier if "user" in roles else 0.0,
            output=output,
            searches=_most_searches(body),
        )


class _Parts:
    """Adds up what stands in the parts of a request: size, media, state of a provider."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self.abilities: set[str] = set()
        self.held: list[str] = []

    def add(self, item: Any) -> None:
        """Count an item with everything in it."""
        waiting = [item]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                self.tokens += text_tokens(item)
            elif isinstance(item, list):
                waiting += item
            elif isinstance(item, dict):
                kind = item.get("type")
                if isinstance(kind, str) and kind in MEDIA:
                    waiting.append(self._medium(kind, item))
                elif kind in ("function", "tool_use") or "parameters" in item or "input_schema" in item:
                    self.tokens += text_tokens(json.dumps(item, default=str))
                    extra = item.get("extra_content")  # Gemini's signature of what it thought before a call
                    for maker in extra.values() if isinstance(extra, dict) else ():
                        if isinstance(maker, dict):
                            self._note_state(None, maker)
                else:
                    self.tokens += MESSAGE_TOKENS
                    self._note_state(kind, item)
                    waiting += [v for k, v in item.items() if k not in ("role", "type", "id")]

    def _medium(self, kind: str, item: Mapping[str, Any]) -> Any:
        """Count what is no text; what it holds in plain words (Anthropic's documents) is given back."""
        source, words = item.get("source"), None
        if isinstance(source, dict):
            words = source.get("data" if source.get("type") == "text" else "content")
        self.tokens += MEDIA_TOKENS if words is None else MESSAGE_TOKENS
        self.abilities.add(MEDIA[kind])
        if kind == "image_generation_call" and not item.get("result"):
            self.held.append("item_reference")
        for holder in (item, item.get("file"), source, item.get("image_url")):
            if isinstance(holder, dict) and isinstance(holder.get("file_id"), str):
                self.held.append("file_id")
        return words

    def _note_state(self, kind: Any, item: Mapping[str, Any]) -> None:
        if not item.keys().isdisjoint(_HELD):
            self.held += [name for name in _HELD if item.get(name) and isinstance(item[name], str | list)]
        if kind in _HELD_KINDS:
            self.held.append(str(kind))
        sound = item.get("audio")
        if item.get("role") == "assistant" and isinstance(sound, dict) and sound.get("id"):
            self.held.append("audio.id")

    def note_body(self, body: Mapping[str, Any]) -> None:
        """What the fields beside the messages say."""
        if any(body.get(name) for name in ("tools", "functions", "mcp_servers")):
            self.abilities.add("tools")
        modalities = body.get("modalities")
        if isinstance(modalities, list) and "audio" in modalities:
            self.abilities.add("audio")
        extra = body.get("extra_body")  # Google's fields in a request of OpenAI's form
        makers = extra.values() if isinstance(extra, dict) else ()
        for holder in (body, *(maker for maker in makers if isinstance(maker, dict))):
            for name in _HELD_BY_BODY:
                value = holder.get(name)
                inner = value.get("id") if isinstance(value, dict) else None if name == "prompt" else value
                if isinstance(inner, str) and inner:
                    self.held.append(name)

    def add_form(self, body: Mapping[str, Any]) -> None:
        """Count the JSON schema by which the answer is to be written, and note that there is one."""
        for name in _FORMS:
            form = body.get(name)
            form = form.get("format", form) if isinstance(form, dict) else None
            if isinstance(form, dict) and form.get("type") == "json_schema":
                self.abilities.add("json_schema")
                self.tokens += text_tokens(json.dumps(form, default=str))


def _prompts(body: Mapping[str, Any], dialect: str) -> int:
    """Return the number of prompts that a request brings: the older dialect takes a list of them."""
    prompts = body.get("prompt")
    if dialect != "completions" or not isinstance(prompts, list):
        return 1
    is_tokens = any(isinstance(item, int) for item in prompts)
    return 1 if is_tokens else max(len(prompts), 1)


def _most_searches(body: Mapping[str, Any]) -> float:
    """Return the most web searches that a provider is taken to make for an answer.

    The limit is `max_uses` of the tool (Anthropic) or `max_tool_calls` of the request (OpenAI).
    """
    tools = body.get("tools")
    limits = [
        count(tool.get("max_uses"))
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict) and _is_search_tool(tool)
    ]
    if not limits and not any(body.get(name) is not None for name in _SEARCH_FIELDS):
        return 1.0
    calls = count(body.get("max_tool_calls"))
    most = sum(MOST_SEARCHES if limit is None else limit for limit in limits) or MOST_SEARCHES
    return max(most if calls is None else min(most, calls), 1.0)


def _is_search_tool(tool: Mapping[str, Any]) -> bool:
    """Return True if a tool is a web search that the provider makes, not a function of the caller."""
    kind = tool.get("type")
    if kind == "function":
        return False
    # OpenAI, Anthropic and xAI name the kind; Gemini and OpenRouter name a field
    names = [kind] if isinstance(kind, str) else list(tool)
    return any(_SEARCH_TOOL.search(name) for name in names)


def session_key(session: str, caller: str = "") -> str:
    """How a session that a client named is called in the log."""
    return hashlib.sha256(json.dumps([caller, session]).encode()).hexdigest()[:32]


def _digest(texts: list[str]) -> str:
    """SHA-256 of texts, which are read piece by piece: one may have 20 MB, and none is copied whole."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(b"%d:" % len(text))
        for piece in pieces(text):
            digest.update(piece.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def chat_text(value: Any, route_by: str = "last_user", rules: TextRules = TEXT_RULES) -> str | None:
    """Return the text by which the server would route a request with these messages.

    Return None if no message holds the text of a person.

    Args:
        rules: how the text of a person is found in a message.
        value: a text; messages as OpenAI, Anthropic, LangChain, ShareGPT, Gemini or OpenTelemetry write them;
            an object that holds them; or any of these as JSON. A text that is no messages in JSON is the text
            itself.
    """
    if isinstance(value, str):
        chat = _parsed_chat(value)
        if chat is None:
            text = rules.person_text(value)
            return text if has_words(text) else None
        value = chat
    if isinstance(value, dict):
        inner = next((value[n] for n in (*MESSAGES, "question", "query") if value.get(n) is not None), None)
        if inner is None and not _role(value):
            inner = _inner(value)
            return None if inner is None else chat_text(inner, route_by, rules)
        return chat_text([value] if inner is None else inner, route_by, rules)
    return rules.choose_text([rules.person_text(turn.user_text) for turn in _turns(value)], route_by)


def _parsed_chat(text: str) -> Any:
    """The messages that a text holds as JSON; None: it holds something else."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    holder = value
    if isinstance(value, dict):
        holder = next((value[n] for n in MESSAGES if value.get(n) is not None), [value])
    if not isinstance(holder, list):
        return None
    messages = (
        turn.role and isinstance(turn.item, dict) and _inner(turn.item) is not None for turn in _turns(holder)
    )
    return value if any(messages) else None


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
        role: user, assistant, tool (an answer of tools), system, another one as it stands, or '' if the item
            is no message.
        text: all text of the message. user_text: what the message holds of a user, also beside the result of
            a tool. item: the message as it stands.
    """

    role: str
    text: str
    user_text: str
    item: Any


def _messages_of(body: Mapping[str, Any]) -> Any:
    """Return the messages of a body, or an empty list."""
    return next((body[name] for name in MESSAGES if body.get(name) is not None), [])


def _turns(messages: Any) -> Iterator[Turn]:
    """Yield the messages of any dialect in order."""
    if isinstance(messages, str):
        yield Turn("user", messages, messages, messages)
        return
    for item in messages if isinstance(messages, list) else []:
        if isinstance(item, str):  # a list of prompts
            yield Turn("user", item, item, item)
        elif isinstance(item, list):  # messages of a batch of one, or the tokens of a prompt
            yield from _turns(item)
        elif isinstance(item, dict):
            yield _turn(item)
        elif isinstance(item, int) and not isinstance(item, bool):  # a token of a prompt
            yield Turn("", "", "", "....")


def _turn(item: Mapping[str, Any]) -> Turn:
    """Read one message that is an object."""
    kind, content = str(item.get("type") or ""), _inner(item)
    if kind.endswith("_call_output"):
        return Turn("tool", _content(content if content is not None else item.get("output")), "", item)
    if kind.endswith("_call") or kind == "reasoning":
        return Turn("assistant", _content(item.get("arguments")), "", item)
    if isinstance(content, list) and any(_kind(part) in _TOOL_RESULTS for part in content):
        beside = [part for part in content if _kind(part) not in _TOOL_RESULTS]
        user_text = _content(beside) if _role(item) == "user" else ""
        return Turn("tool", _content(content), user_text, item)
    role, text = _role(item), _content(content)
    return Turn(role, text, text if role == "user" else "", item)


def _role(item: Any) -> str:
    """user, assistant, tool, system, another one as it stands, or '': the item is no message."""
    if not isinstance(item, dict):
        return ""
    if isinstance(name := item.get("role") or item.get("from"), str):
        return _ROLES.get(name.casefold(), name)
    inner, path = item.get("kwargs"), item.get("id")
    names = [item.get("type"), inner.get("type") if isinstance(inner, dict) else None]
    names.append(path[-1] if isinstance(path, list) and path else None)
    return next((_ROLES[n.casefold()] for n in names if isinstance(n, str) and n.casefold() in _ROLES), "")


def _inner(item: Mapping[str, Any]) -> Any:
    """The content of a message."""
    for holder in (item, item.get("data"), item.get("kwargs")):
        if isinstance(holder, dict):
            for name in ("content", "parts", "value", "text"):
                if holder.get(name) is not None:
                    return holder[name]
    return None


def _kind(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    texts = [(p.get("text") or p.get("content")) if isinstance(p, dict) else p for p in content]
    return "\n".join(t for t in texts if isinstance(t, str))


def _named(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """The session that a client named, or None."""
    about = body.get("metadata")
    about = about if isinstance(about, dict) else {}
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    candidates = (
        *(headers.get(name) for name in HEADERS),
        about.get("session_id"),
        conversation,
        body.get("litellm_session_id"),
        _claude_session(about.get("user_id")),
    )
    return next((value for value in candidates if isinstance(value, str) and value.strip()), None)


def _claude_session(user: Any) -> Any:
    """The session in what Claude Code calls its user, JSON or `..._session_ID`; None: there is none."""
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            about = json.loads(user)
        except (ValueError, RecursionError):
            return None
        return about.get("session_id") if isinstance(about, dict) else None
    named = _CLAUDE.search(user)
    return named and named[1]
