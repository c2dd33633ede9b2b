"""A parser of plain YAML: mappings, lists and texts, each with its line.

The schema says what a scalar means, so every scalar stays text (such as `2020-13-45`, `no` and `1e-4`); only an
unquoted `null`, `~` or nothing is None. Aliases, tags, duplicate keys and several documents are
refused, and size, depth and number of entries are bounded before and while the text is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

LARGEST = 1 << 20  #: characters of a file
DEEPEST = 12  #: mappings and lists inside each other
MOST = 20_000  #: scalars, mappings and lists
LONGEST = 20_000  #: characters of one scalar

#: libyaml's parser where it is compiled in: ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: open brackets at any point of the text: the parsers need time quadratic in it before they say anything
_OPEN_BRACKETS = 200
_NULL = ("", "~", "null", "Null", "NULL")

Place = tuple[str | int, ...]


class NotPlain(ValueError):
    """The text is not plain YAML; `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Document:
    """What was read.

    Attributes:
        data: dicts with text keys, lists, texts and None.
        lines: {place: line} of every entry; a place is the keys and positions that lead to it.
        spans: {place: (start, end)} of every scalar in the text, quotes included.
    """

    data: Any
    lines: dict[Place, int] = field(default_factory=dict)
    spans: dict[Place, tuple[int, int]] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """Line of an entry, or of the nearest one around it that stands in the text."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


@dataclass
class _Open:
    """A mapping or list that is being read; `key`: the key or position of the next entry (None: a key is due)."""

    content: dict[str | int, Any] | list[Any]
    place: Place
    key: str | int | None = None


def read(text: str) -> Document:
    """Parse plain YAML.

    Raises:
        NotPlain: with the line and what is not allowed there.
    """
    if len(text) > LARGEST:
        raise NotPlain(1, f"the text has {len(text):,} characters; expected at most {LARGEST:,}")
    _bound_brackets(text)
    document = Document([])
    stack = [_Open(document.data, ())]  # the document itself, as a list of one
    entries = documents = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise NotPlain(line, "a second document begins; expected one")
            elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise NotPlain(line, "an anchor or alias (& or *): write the value out")
            elif isinstance(event, yaml.NodeEvent):
                if event.tag is not None:
                    raise NotPlain(
                        line, f"the tag {event.tag!r:.60}: leave it out, the field says what it is"
                    )
                entries += 1
                if entries > MOST:
                    raise NotPlain(line, f"more than {MOST:,} entries")
                _add(document, stack, event, line)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                stack.pop()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        position = getattr(error, "position", None)
        line = mark.line + 1 if mark else text.count("\n", 0, position) + 1 if position else 1
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        tab = ": there is a tab, indent with spaces" if "\t" in text else ""
        raise NotPlain(line, " ".join(str(problem).split()) + tab) from None
    data = document.data[0] if document.data else None
    trim = {place[1:]: line for place, line in document.lines.items()}
    return Document(data, trim, {place[1:]: span for place, span in document.spans.items()})


def _add(document: Document, stack: list[_Open], event: yaml.NodeEvent, line: int) -> None:
    top = stack[-1]
    if isinstance(top.content, dict) and top.key is None:
        top.key = _key(top, event, line)
        document.lines[(*top.place, top.key)] = line
        return
    key = len(top.content) if isinstance(top.content, list) else top.key
    assert key is not None
    place = (*top.place, key)
    document.lines.setdefault(place, line)
    value: Any
    if isinstance(event, yaml.ScalarEvent):
        value = _text(event, line)
        document.spans[place] = (event.start_mark.index, event.end_mark.index)
        if event.implicit[0] and value in _NULL:
            value = None
    else:
        if len(stack) > DEEPEST:
            raise NotPlain(line, f"mappings and lists stand more than {DEEPEST} deep inside each other")
        value = {} if isinstance(event, yaml.MappingStartEvent) else []
        stack.append(_Open(value, place))
    if isinstance(top.content, list):
        top.content.append(value)
    else:
        top.content[key] = value
        top.key = None


def _key(top: _Open, event: yaml.NodeEvent, line: int) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        raise NotPlain(line, "a mapping or list stands as a key; expected a text")
    key = _text(event, line)
    if key in top.content:
        raise NotPlain(line, f"the key {key!r:.80} stands twice")
    return key


def _text(event: yaml.ScalarEvent, line: int) -> str:
    value: str = event.value
    if len(value) > LONGEST:
        raise NotPlain(line, f"a text of {len(value):,} characters; expected at most {LONGEST:,}")
    if any((ord(c) < 32 and c not in "\n\t") or 0xD800 <= ord(c) < 0xE000 for c in value):
        raise NotPlain(line, f"a control character in {value!r:.80}")
    return value


def _bound_brackets(text: str) -> None:
    if text.count("[") + text.count("{") <= _OPEN_BRACKETS:
        return
    depth = line = 0
    for line, content in enumerate(text.split("\n"), 1):
        for character in content:
            depth = depth + 1 if character in "[{" else max(0, depth - 1) if character in "]}" else depth
            if depth > _OPEN_BRACKETS:
                raise NotPlain(line, f"more than {_OPEN_BRACKETS} brackets are open at once")
