"""One reading of a request: its text, its conversation, its size, and the abilities that it needs.

    request = ChatRequest.read(body, headers, "chat")

**Session.** The client may name the session of a request. The places are tried in this order: header
`x-cabs-session` or `x-session-id`; in the body `metadata.session_id`, `conversation` (its id),
`litellm_session_id`, and the session that Claude Code writes into `metadata.user_id`. If no place names a
session, the key is derived from the instructions, the first user message and `prompt_cache_key`. Many
conversations may share a `prompt_cache_key`, so it is no session by itself. Keys are stored as hashes that
differ between callers.

**Text** (`route_by`). `last_user` is the newest message that holds the text of a person, even if the message
also holds the result of a tool. `first_user` is the oldest one. `conversation` is the end of all of them, one
on a line. At most `person_text.LONGEST` characters are used. Images, audio, instructions and the blocks of an
agent's harness are no text of a person (`person_text`). Header `x-cabs-text` or `metadata.cabs_text` gives
another text instead.

**Tokens** are estimated in one way for the whole request and for its earlier part (`tokens`): bytes of UTF-8
/ 4, plus a fixed number for each message, image and sound.

**State held by a provider** (`held`) are fields that only one provider understands, such as
`previous_response_id`, the id of a file, or encrypted reasoning.

Logs and tables hold messages in more forms than requests do. `chat_text` also reads LangChain's, ShareGPT's,
Gemini's and OpenTelemetry's messages, and any of them as JSON in a text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from cabs_core.data.endpoints.body_fields import FORMATS, INSTRUCTIONS, MESSAGES, TOOLS
from cabs_core.data.endpoints.output_limits import NO_LIMITS, OutputLimits
from cabs_core.data.endpoints.person_text import TextRules, given_text, has_words
from cabs_core.data.endpoints.tokens import MEDIA_TOKENS, MESSAGE_TOKENS, pieces, text_tokens
from cabs_core.data.endpoints.usage import as_count

#: Headers in which a client names its session, the first one first.
SESSION_HEADERS = ("x-cabs-session", "x-session-id")
#: Kinds of content that are not text.
Medium = Literal["image", "audio", "file", "video"]
MEDIUMS: tuple[Medium, ...] = get_args(Medium)
#: Type of a part of a message that is not text -> medium that a model must be able to read.
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
#: Fields of a body that hold its texts or name its conversation.
FIELDS = (
    *MESSAGES[:3],
    *INSTRUCTIONS,
    "metadata",
    "conversation",
    "previous_response_id",
    "prompt_cache_key",
)
#: Name of a role in lower case -> user, assistant, tool or system.
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
#: Types of the parts of a message that hold the result of a tool.
_TOOL_RESULTS = ("tool_result", "tool_call_response", "function_response")
#: Fields of parts, tools and messages that refer to state of a provider if they hold a text or a list.
_STATE_FIELDS = (
    "file_id",
    "file_ids",
    "vector_store_ids",
    "container",
    "encrypted_content",
    "signature",
    "thought_signature",
)
#: Types of items that refer to state of a provider by themselves.
_STATE_TYPES = ("item_reference", "redacted_thinking", "mcp_approval_response", "reasoning.encrypted")
#: Fields of a body, outside of the messages, that refer to state of a provider.
_STATE_FIELDS_OF_BODY = ("previous_response_id", "conversation", "prompt", "container", "cached_content")
#: Fields of a body that let the provider search the web.
_SEARCH_FIELDS = ("web_search_options", "search_parameters", "web_search")
#: Type of a tool, or field of a tool, that lets the provider search the web.
_SEARCH_TOOL = re.compile(r"(web|google|enterprise)_?search|live_?search", re.IGNORECASE)
#: Web searches that a call with a search tool is assumed to make at most if the request gives no limit.
MOST_SEARCHES = 10.0
#: Default rules for the text of a person: harness blocks are taken out, and there is no template.
TEXT_RULES = TextRules()
#: Session in the `user_id` of Claude Code before version 2.1.78.
_CLAUDE_SESSION = re.compile(r"_session_([0-9a-fA-F-]{8,})$")


@dataclass(frozen=True)
class ChatRequest:
    """A request as the router reads it.

    Attributes:
        text: text to route by. None if no message holds the text of a person.
        dialect: interface of the request: chat, completions, responses or messages.
        key: hash that identifies the session. None if the client names none and there is no text to derive
            one from.
        derived: True if the client names no session. `key` is then derived from the texts, if there are any.
            Two conversations with the same opening share such a key, so the router looks it up for a later
            turn alone (`is_continued`).
        previous_response: id of the response that this request follows, or None.
        is_continued: True if the request holds an earlier answer of a model or a tool.
        in_tools: True if the last message is the result of a tool that the model called.
        abilities: what a model must take: some of image, audio, file, video, tools and json_schema.
        held: names of the fields that refer to state held by a provider. Only that provider can answer then.
        tokens: estimated tokens of the whole request, at least 1.
        earlier_tokens: estimated tokens of everything before the last user message. 0 if there is no user
            message.
        output: how much the model may write. Its `answers` counts the answers to all prompts.
        most_searches: largest number of web searches that a provider is assumed to make for one answer; 1 if
            the request names no search, since some models search for every request.
    """

    text: str | None
    dialect: str = "chat"
    key: str | None = None
    derived: bool = False
    previous_response: str | None = None
    is_continued: bool = False
    in_tools: bool = False
    abilities: frozenset[str] = frozenset()
    held: tuple[str, ...] = ()
    tokens: float = 1.0
    earlier_tokens: float = 0.0
    output: OutputLimits = NO_LIMITS
    most_searches: float = 1.0

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
        """Read the body of a request.

        Args:
            body: parsed JSON in one of the four dialects.
            headers: headers of the request, with names in lower case.
            dialect: chat, completions, responses or messages.
            route_by: the messages whose text is used: last_user, first_user or conversation.
            caller: name of the API key that sent the request. Sessions of different callers never mix.
            rules: how the text of a person is found in a message.

        Raises:
            RouterError: the client gives a text to route by that cannot be read (`given_text`).
        """
        headers = headers or {}
        conversation = _Conversation.read(body, rules)
        named_session = _named_session(body, headers)
        key = None
        if named_session is not None:
            key = session_key(named_session, caller)
        elif conversation.user_texts:
            key = session_key(_derived_session(body, conversation), caller)
        previous = body.get("previous_response_id")
        given = given_text(headers, body)
        output = OutputLimits.read(body)
        output = output._replace(answers=output.answers * _number_of_prompts(body, dialect))
        return cls(
            text=rules.choose_text(conversation.user_texts, route_by) if given is None else given,
            dialect=dialect,
            key=key,
            derived=named_session is None,
            previous_response=previous if isinstance(previous, str) and previous else None,
            is_continued="assistant" in conversation.roles or "tool" in conversation.roles,
            in_tools=bool(conversation.roles) and conversation.roles[-1] == "tool",
            abilities=frozenset(conversation.parts.abilities),
            held=tuple(dict.fromkeys(conversation.parts.state_fields)),
            tokens=max(conversation.parts.tokens, 1.0),
            earlier_tokens=conversation.earlier_tokens if "user" in conversation.roles else 0.0,
            output=output,
            most_searches=_most_searches(body),
        )


class _Parts:
    """Running sums over the parts of a request.

    Attributes:
        tokens: estimated tokens of all parts that were added.
        abilities: what a model must take, as in `ChatRequest.abilities`.
        state_fields: names of fields that refer to state of a provider; a name may occur several times.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self.abilities: set[str] = set()
        self.state_fields: list[str] = []

    def add(self, item: Any) -> None:
        """Add the tokens, abilities and state fields of an item and of everything nested in the item."""
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
                    waiting.append(self._add_medium(kind, item))
                elif kind in ("function", "tool_use") or "parameters" in item or "input_schema" in item:
                    self._add_tool(item)
                else:
                    self.tokens += MESSAGE_TOKENS
                    self._note_state(kind, item)
                    waiting += [v for k, v in item.items() if k not in ("role", "type", "id")]

    def _add_tool(self, item: Mapping[str, Any]) -> None:
        """Add the tokens of the definition or the call of a tool, by the length of its JSON.

        State fields are looked for only in `extra_content`, where Gemini puts the signature of its reasoning.
        """
        self.tokens += text_tokens(json.dumps(item, default=str))
        extra = item.get("extra_content")  # Gemini puts the signature of its reasoning here
        for provider_fields in extra.values() if isinstance(extra, dict) else ():
            if isinstance(provider_fields, dict):
                self._note_state(None, provider_fields)

    def _add_medium(self, kind: str, item: Mapping[str, Any]) -> Any:
        """Add the tokens, ability and state fields of a part that is no text.

        Returns:
            The plain text or the parts within a document of Anthropic, which are to be added next; None for
            other media.
        """
        source = item.get("source")
        words = None
        if isinstance(source, dict):
            words = source.get("data" if source.get("type") == "text" else "content")
        self.tokens += MEDIA_TOKENS if words is None else MESSAGE_TOKENS
        self.abilities.add(MEDIA[kind])
        if kind == "image_generation_call" and not item.get("result"):
            self.state_fields.append("item_reference")
        for holder in (item, item.get("file"), source, item.get("image_url")):
            if isinstance(holder, dict) and isinstance(holder.get("file_id"), str):
                self.state_fields.append("file_id")
        return words

    def _note_state(self, kind: Any, item: Mapping[str, Any]) -> None:
        """Note the fields of an item that refer to state of a provider."""
        if not item.keys().isdisjoint(_STATE_FIELDS):
            self.state_fields += [
                name for name in _STATE_FIELDS if item.get(name) and isinstance(item[name], str | list)
            ]
        if kind in _STATE_TYPES:
            self.state_fields.append(str(kind))
        sound = item.get("audio")
        if item.get("role") == "assistant" and isinstance(sound, dict) and sound.get("id"):
            self.state_fields.append("audio.id")

    def note_body(self, body: Mapping[str, Any]) -> None:
        """Add the abilities and the state fields that stand in the body outside of the messages."""
        if any(body.get(name) for name in (*TOOLS, "mcp_servers")):
            self.abilities.add("tools")
        modalities = body.get("modalities")
        if isinstance(modalities, list) and "audio" in modalities:
            self.abilities.add("audio")
        extra = body.get("extra_body")  # Google's fields in a request of OpenAI's form
        provider_fields = extra.values() if isinstance(extra, dict) else ()
        for holder in (body, *(fields for fields in provider_fields if isinstance(fields, dict))):
            for name in _STATE_FIELDS_OF_BODY:
                value = holder.get(name)
                if isinstance(value, dict):
                    value = value.get("id")
                elif name == "prompt":
                    continue  # a prompt that is a text is the prompt itself, not the id of a stored one
                if isinstance(value, str) and value:
                    self.state_fields.append(name)

    def add_format(self, body: Mapping[str, Any]) -> None:
        """Add the tokens of the JSON schema of the answer and the ability, if the request has a schema."""
        for name in FORMATS:
            value = body.get(name)
            if isinstance(value, dict):
                answer_format = value.get("format", value)
            else:
                answer_format = None
            if isinstance(answer_format, dict) and answer_format.get("type") == "json_schema":
                self.abilities.add("json_schema")
                self.tokens += text_tokens(json.dumps(answer_format, default=str))


class _Conversation(NamedTuple):
    """Messages of a request, summed up.

    Attributes:
        roles: role of every message, in order (`Turn.role`).
        system_texts: instructions, from their own fields and from messages.
        user_texts: texts of a person, oldest first, without texts that hold only spaces.
        earlier_tokens: estimated tokens before the last user message.
        parts: tokens, abilities and provider state of the whole request.
    """

    roles: list[str]
    system_texts: list[str]
    user_texts: list[str]
    earlier_tokens: float
    parts: _Parts

    @classmethod
    def read(cls, body: Mapping[str, Any], rules: TextRules) -> _Conversation:
        """Read instructions, tools and messages of a body."""
        parts = _Parts()
        roles: list[str] = []
        user_texts: list[str] = []
        system_texts = [_content_text(body[name]) for name in INSTRUCTIONS if body.get(name)]
        parts.add([body.get(name) for name in (*INSTRUCTIONS, *TOOLS)])
        parts.add_format(body)
        earlier_tokens = parts.tokens
        for turn in _turns(_messages_of(body)):
            roles.append(turn.role)
            if turn.role == "user":
                earlier_tokens = parts.tokens
            if turn.role == "system":
                system_texts.append(turn.text)
            parts.add(turn.item)
            if isinstance(turn.item, dict) and turn.item.keys() == {"id"}:
                # OpenAI lets a client leave out the type of a reference to an item.
                parts.state_fields.append("item_reference")
            person_text = rules.person_text(turn.user_text)
            if has_words(person_text):
                user_texts.append(person_text)
        parts.note_body(body)
        return cls(roles, system_texts, user_texts, earlier_tokens, parts)


def _number_of_prompts(body: Mapping[str, Any], dialect: str) -> int:
    """Return the number of prompts of a request, which is 1 unless the dialect is completions.

    The completions dialect takes a list of prompts. A list of token numbers is one prompt.
    """
    prompts = body.get("prompt")
    if dialect != "completions" or not isinstance(prompts, list):
        return 1
    is_one_of_tokens = any(isinstance(item, int) for item in prompts)
    if is_one_of_tokens:
        return 1
    return max(len(prompts), 1)


def _most_searches(body: Mapping[str, Any]) -> float:
    """Return the largest number of web searches that a provider is assumed to make for an answer.

    The number is 1 if the request names no search. The limit is `max_uses` of the tool (Anthropic) or
    `max_tool_calls` of the request (OpenAI). A search tool without a limit counts `MOST_SEARCHES`.
    """
    tools = body.get("tools")
    limits = [
        as_count(tool.get("max_uses"))
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict) and _is_search_tool(tool)
    ]
    if not limits and not any(body.get(name) is not None for name in _SEARCH_FIELDS):
        return 1.0
    tool_calls = as_count(body.get("max_tool_calls"))
    most = sum(MOST_SEARCHES if limit is None else limit for limit in limits) or MOST_SEARCHES
    return max(most if tool_calls is None else min(most, tool_calls), 1.0)


def _is_search_tool(tool: Mapping[str, Any]) -> bool:
    """Return True if a tool is a web search that the provider makes, not a function of the client."""
    kind = tool.get("type")
    if kind == "function":
        return False
    # OpenAI, Anthropic and xAI name the type; Gemini and OpenRouter name a field
    names = [kind] if isinstance(kind, str) else list(tool)
    return any(_SEARCH_TOOL.search(name) for name in names)


def session_key(session: str, caller: str = "") -> str:
    """Return the hash under which the log stores a session: 32 hexadecimal digits of SHA-256.

    Args:
        session: name of the session.
        caller: name of the API key. Equal sessions of different callers have different hashes.
    """
    return hashlib.sha256(json.dumps([caller, session]).encode()).hexdigest()[:32]


def _derived_session(body: Mapping[str, Any], conversation: _Conversation) -> str:
    """Return a name for a conversation whose client names none, by a hash of the texts that its turns share.

    These texts are the instructions, the first text of a person and `prompt_cache_key`.
    """
    cache_key = body.get("prompt_cache_key")
    opening = [cache_key if isinstance(cache_key, str) else ""]
    return _digest([*opening, *conversation.system_texts, conversation.user_texts[0]])


def _digest(texts: list[str]) -> str:
    """Return the SHA-256 of texts and of their lengths.

    The texts are read piece by piece, so that a text of 20 MB is not copied.
    """
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
        value: a text; messages as OpenAI, Anthropic, LangChain, ShareGPT, Gemini or OpenTelemetry write them;
            an object that holds messages; or any of these as JSON in a text. A text that holds no messages
            as JSON counts as one message of a user, so that `rules` apply to it too.
        route_by: last_user, first_user or conversation.
        rules: how the text of a person is found in a message.
    """
    if isinstance(value, str):
        chat = _parsed_chat(value)
        if chat is None:
            text = rules.person_text(value)
            if has_words(text):
                return text
            return None
        value = chat
    if isinstance(value, dict):
        inner = next((value[n] for n in (*MESSAGES, "question", "query") if value.get(n) is not None), None)
        if inner is None and not _role_of(value):
            content = _content_of(value)
            if content is None:
                return None
            return chat_text(content, route_by, rules)
        return chat_text([value] if inner is None else inner, route_by, rules)
    return rules.choose_text([rules.person_text(turn.user_text) for turn in _turns(value)], route_by)


def _parsed_chat(text: str) -> Any:
    """Return the parsed JSON of a text that holds messages, otherwise None."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    messages = value
    if isinstance(value, dict):
        messages = next((value[n] for n in MESSAGES if value.get(n) is not None), [value])
    if not isinstance(messages, list):
        return None
    are_messages = (
        turn.role and isinstance(turn.item, dict) and _content_of(turn.item) is not None
        for turn in _turns(messages)
    )
    if any(are_messages):
        return value
    return None


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
        role: user, assistant, tool (the message holds a tool's result) or system. Any other role as it
            stands in the request. '' if the item is no message.
        text: all text of the message.
        user_text: the part of the text that comes from a user; '' for messages of other senders. This part
            and `text` differ in a user's message that also holds a tool's result, whose `role` is tool.
        item: the message as it stands in the request.
    """

    role: str
    text: str
    user_text: str
    item: Any


def _messages_of(body: Mapping[str, Any]) -> Any:
    """Return the messages of a body, or an empty list."""
    return next((body[name] for name in MESSAGES if body.get(name) is not None), [])


def _turns(messages: Any) -> Iterator[Turn]:
    """Yield the messages of any dialect in order.

    Args:
        messages: a list of messages, of texts, or of token numbers; or one text, which is a user's message.
    """
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
        elif isinstance(item, int) and not isinstance(item, bool):
            # The number of a token in a prompt. Four dots count as one token in an estimate.
            yield Turn("", "", "", "....")


def _turn(item: Mapping[str, Any]) -> Turn:
    """Read one message that is an object."""
    kind = str(item.get("type") or "")
    content = _content_of(item)
    if kind.endswith("_call_output"):
        if content is not None:
            output = content
        else:
            output = item.get("output")
        return Turn("tool", _content_text(output), "", item)
    if kind.endswith("_call") or kind == "reasoning":
        return Turn("assistant", _content_text(item.get("arguments")), "", item)
    role = _role_of(item)
    if isinstance(content, list) and any(_type_of(part) in _TOOL_RESULTS for part in content):
        user_parts = [part for part in content if _type_of(part) not in _TOOL_RESULTS]
        if role == "user":
            user_text = _content_text(user_parts)
        else:
            user_text = ""
        return Turn("tool", _content_text(content), user_text, item)
    text = _content_text(content)
    return Turn(role, text, text if role == "user" else "", item)


def _role_of(item: Any) -> str:
    """Return user, assistant, tool or system, another role as the message has it, or '' if there is none.

    LangChain names the role in `type`, in `kwargs.type` or at the end of the class path in `id`.
    """
    if not isinstance(item, dict):
        return ""
    name = item.get("role") or item.get("from")
    if isinstance(name, str):
        return _ROLES.get(name.casefold(), name)
    inner = item.get("kwargs")
    path = item.get("id")
    names = [item.get("type"), inner.get("type") if isinstance(inner, dict) else None]
    names.append(path[-1] if isinstance(path, list) and path else None)
    return next((_ROLES[n.casefold()] for n in names if isinstance(n, str) and n.casefold() in _ROLES), "")


def _content_of(item: Mapping[str, Any]) -> Any:
    """Return the unchanged content of a message, or None if the message has none."""
    for holder in (item, item.get("data"), item.get("kwargs")):
        if isinstance(holder, dict):
            for name in ("content", "parts", "value", "text"):
                if holder.get(name) is not None:
                    return holder[name]
    return None


def _type_of(part: Any) -> str:
    """Return the type of a part of a message: 'None' if it names none, '' if the part is no object."""
    if isinstance(part, dict):
        return str(part.get("type"))
    return ""


def _content_text(content: Any) -> str:
    """Return the texts of a message's content, one on a line, or '' if it holds no text."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    texts = [(p.get("text") or p.get("content")) if isinstance(p, dict) else p for p in content]
    return "\n".join(t for t in texts if isinstance(t, str))


def _named_session(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return the session that a client names, or None if it names none."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    candidates = (
        *(headers.get(name) for name in SESSION_HEADERS),
        metadata.get("session_id"),
        conversation,
        body.get("litellm_session_id"),
        _claude_session(metadata.get("user_id")),
    )
    return next((value for value in candidates if isinstance(value, str) and value.strip()), None)


def _claude_session(user_id: Any) -> Any:
    """Return the session in the `user_id` of Claude Code, or None if it holds none.

    The value is JSON since version 2.1.78 and ended in `_session_ID` before.
    """
    if not isinstance(user_id, str):
        return None
    if user_id.startswith("{"):
        try:
            user = json.loads(user_id)
        except (ValueError, RecursionError):
            return None
        if isinstance(user, dict):
            return user.get("session_id")
        return None
    named = _CLAUDE_SESSION.search(user_id)
    return named and named[1]
