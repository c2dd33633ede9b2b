"""The text of a person in the messages of a request, a log or a prompt table.

An agent's harness writes blocks of its own into a user's message, and a retrieval template surrounds a
question with documents. A router that reads them would route by the harness. `TextRules` therefore finds the
text of the person:

1. Blocks of a harness, such as `<system-reminder>`, are taken out. A block opens at the start of a line, is
   closed, and does not open inside a code fence.
2. Of the text that is left, the part that the router's pattern names is taken, if the pattern is found.

A caller may also give the text itself: header `x-cabs-text` or `metadata.cabs_text` (`given_text`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from cabs_core.base.errors import RouterError

#: Most characters of a text that the router reads.
LONGEST = 16_384
#: Names of the blocks that Claude Code, Cline and Codex write into messages.
HARNESS_BLOCKS = ("system-reminder", "environment_details", "environment_context")
#: Characters of a message in which the pattern of a template is looked for.
_SEARCHED = 1 << 20
#: Header in which a caller may give the text.
TEXT_HEADER = "x-cabs-text"
#: Field of `metadata` in which a caller may give the text.
TEXT_FIELD = "cabs_text"
#: Bytes that the header may have.
LONGEST_HEADER = 6 << 10
#: A character that is no space.
_NO_SPACE = re.compile(r"\S")
#: Name that a block may have.
_BLOCK_NAME = re.compile(r"[A-Za-z][\w.:-]{0,63}")
#: A per cent sign that begins no percent-encoded byte.
_BARE_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")


def has_words(text: str) -> bool:
    """Return True if a text holds a character that is no space."""
    return _NO_SPACE.search(text) is not None


@dataclass(frozen=True)
class TextRules:
    """Rules by which the text of a person is found in a message.

    Attributes:
        blocks: names of the blocks that harnesses write.
        pattern: regular expression of the person's text within a template, in the syntax of RE2, where `.`
            also matches line breaks. Its group `text`, else its first group, else the whole match is the
            text. None if there is no template.

    Raises:
        RouterError: a block's name that no tag can have, or a pattern that RE2 does not read.
    """

    blocks: tuple[str, ...] = HARNESS_BLOCKS
    pattern: str | None = None

    def __post_init__(self) -> None:
        """Check the names of the blocks and the pattern."""
        for name in self.blocks:
            if not _BLOCK_NAME.fullmatch(name):
                raise RouterError(
                    f"harness block {name!r:.80}: expected the name of a tag, such as system-reminder"
                )
        if self.pattern is not None:
            _template(self.pattern)

    def person_text(self, message: str) -> str:
        """Return the part of a message that a person wrote, which may be an empty text.

        A message without blocks and without the pattern is returned as it is. The pattern is looked for in
        the first 1,048,576 characters that are left.
        """
        text = without_blocks(message, self.blocks)
        if self.pattern is None:
            return text
        template = _template(self.pattern)
        found = template.search(text[:_SEARCHED].encode("utf-8", "replace"))
        if found is None:
            return text
        group: int | str = 1 if template.groups else 0
        person_bytes = found["text" if "text" in template.groupindex else group] or b""
        return str(person_bytes, "utf-8")

    def choose_text(self, messages: Sequence[str], route_by: str) -> str | None:
        """Return the text to route by, or None if no message holds the text of a person.

        Args:
            messages: texts of a person, as `person_text` returned them, oldest first. Empty texts and texts
                of spaces alone are skipped.
            route_by: last_user (the newest text), first_user (the oldest text) or conversation (all texts,
                one on a line). At most `LONGEST` characters are returned, of a conversation the last ones.
        """
        spoken = [text for text in messages if has_words(text)]
        if not spoken:
            return None
        if route_by == "conversation":
            return "\n".join(_cut(text, from_end=True) for text in spoken)[-LONGEST:]
        return _cut(spoken[0 if route_by == "first_user" else -1])


def _cut(text: str, *, from_end: bool = False) -> str:
    """Return the first `LONGEST` characters of a text that holds words, or with `from_end` the last ones.

    If these characters are spaces alone, leading spaces of the text are removed first (with `from_end`,
    trailing spaces).
    """
    part = text[-LONGEST:] if from_end else text[:LONGEST]
    if has_words(part):
        return part
    if from_end:
        return text.rstrip()[-LONGEST:]
    return text.lstrip()[:LONGEST]


@lru_cache(maxsize=64)
def _template(pattern: str) -> Any:
    """Return the compiled pattern of a template.

    RE2 searches in time proportional to the text, whatever the pattern is. Python's `re` may take
    exponential time for a pattern with nested repetitions, and the texts come from clients.

    Raises:
        RouterError: RE2 does not read the pattern.
    """
    import re2  # noqa: PLC0415  (few routers have a template)

    options = re2.Options()
    options.dot_nl = True
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        if isinstance(error, re2.error):
            reason = error.args[0]
        else:
            reason = str(error)
        if isinstance(reason, bytes):
            words = reason.decode("utf-8", "replace")
        else:
            words = str(reason)
        raise RouterError(
            f"text pattern {pattern!r:.80}: {words}; expected a regular expression of RE2, which has neither "
            "look-around nor references to groups"
        ) from None


def without_blocks(text: str, blocks: Sequence[str] = HARNESS_BLOCKS) -> str:
    """Return a text without the blocks of harnesses, in time proportional to its length.

    If a block was removed, spaces around the rest are removed, too.
    """
    if not any(f"<{name}" in text and f"</{name}>" in text for name in blocks):
        return text
    kept = []
    position = 0
    for begin, end in _blocks_in(text, tuple(blocks)):
        kept.append(text[position:begin])
        position = end
    if position == 0:
        return text
    kept.append(text[position:])
    return "".join(kept).strip()


def _blocks_in(text: str, blocks: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return (begin, end) of the outermost blocks that open outside of code fences, in order of the text."""
    tags, fences = _scanners(blocks)
    closed_at: dict[int, int] = {}
    open_tags: dict[str, list[int]] = {name: [] for name in blocks}
    for tag in tags.finditer(text):
        if tag["open"] is not None:
            open_tags[tag["open"]].append(tag.start())
        elif open_tags[tag["close"]]:
            closed_at[open_tags[tag["close"]].pop()] = tag.end()
    closing_fences = _closing_fences(text, fences)
    marks = sorted([*closed_at, *closing_fences])
    found = []
    position = 0
    for mark in marks:
        if mark < position:  # inside a block or a fence that has been passed
            continue
        if mark in closed_at:
            found.append((mark, closed_at[mark]))
            position = closed_at[mark]
        else:
            position = closing_fences[mark]
    return found


def _closing_fences(text: str, fences: re.Pattern[str]) -> dict[int, int]:
    """Return {begin of a line that could open a code fence: end of the next line that closes such a fence}.

    A fence that no later line closes is left out. A line that closes one fence could also open another, so
    the line is a key as well if a later line matches. The caller walks from the first line on and skips such
    keys.
    """
    closing: dict[int, int] = {}
    longest_next: dict[str, list[tuple[int, int]]] = {"`": [], "~": []}
    for fence in reversed(list(fences.finditer(text))):
        mark = fence["mark"]
        later = longest_next[mark[0]]
        match = next((end for size, end in reversed(later) if size >= len(mark)), None)
        if match is not None:
            closing[fence.start()] = match
        if not fence["language"].strip():  # a line with a language opens a fence and closes none
            while later and later[-1][0] <= len(mark):
                later.pop()
            later.append((len(mark), fence.end()))
    return closing


@lru_cache(maxsize=64)
def _scanners(blocks: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of the tags of these blocks, and of the lines of code fences."""
    names = "|".join(map(re.escape, blocks))
    tags = re.compile(rf"(?m:^)<(?P<open>{names})(?:[ \t][^<>\n]*)?>|</(?P<close>{names})>")
    fences = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})(?P<language>[^\n]*)$", re.MULTILINE)
    return tags, fences


def given_text(headers: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """Return the text that a caller gives to route by, or None if the caller gives none.

    The header comes before `metadata.cabs_text`. A field that is empty or holds spaces alone counts as not
    given, and so does such a header before it is decoded. At most `LONGEST` characters are returned.

    Args:
        headers: headers of the request, with names in lower case.
        body: body of the request; `metadata.cabs_text` may hold the text.

    Raises:
        RouterError: the header is too long, is no percent-encoded UTF-8 or encodes only spaces, or the field
            holds something other than text.
    """
    sent = headers.get(TEXT_HEADER)
    if isinstance(sent, str) and sent.strip():
        return _cut(_decoded(sent))
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        text = metadata.get(TEXT_FIELD)
    else:
        text = None
    if text is None:
        return None
    if not isinstance(text, str):
        raise RouterError(f"metadata.{TEXT_FIELD} {text!r:.60}: expected text")
    if has_words(text):
        return _cut(text)
    return None


def _decoded(header: str) -> str:
    """Return the text that a percent-encoded header holds.

    Raises:
        RouterError: the header is too long, is no percent-encoded UTF-8, or encodes only spaces.
    """
    if len(header) > LONGEST_HEADER:
        raise RouterError(
            f"{TEXT_HEADER} has {len(header):,} bytes: expected at most {LONGEST_HEADER:,}; "
            f"metadata.{TEXT_FIELD} takes a longer text"
        )
    try:
        if _BARE_PERCENT.search(header):
            raise ValueError(header)
        text = unquote_to_bytes(header.encode("ascii")).decode("utf-8")
    except ValueError:
        raise RouterError(f"{TEXT_HEADER} {header!r:.60}: expected percent-encoded UTF-8") from None
    if not has_words(text):
        raise RouterError(f"{TEXT_HEADER} {header!r:.60}: expected a text with more than spaces")
    return text


def without_given_text(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a request without `metadata.cabs_text`, which is not sent to providers.

    `metadata` is left out if it has no other field. A body without the field is returned as it is.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping) or TEXT_FIELD not in metadata:
        return body
    rest = {name: value for name, value in metadata.items() if name != TEXT_FIELD}
    without = {name: value for name, value in body.items() if name != "metadata"}
    if rest:
        return {**without, "metadata": rest}
    return without
