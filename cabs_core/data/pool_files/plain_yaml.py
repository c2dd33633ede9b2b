"""A parser of plain YAML: mappings, lists and texts, each with its line.

The schema says what a scalar means, so every scalar stays text (such as `2020-13-45`, `no` and `1e-4`); only
an unquoted `null`, `~` or nothing is None. Aliases, tags, duplicate keys and several documents are
refused, and size, depth and number of entries are bounded before and while the text is parsed.
"""

from dataclasses import dataclass, field, replace
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


def not_yaml(error: yaml.YAMLError, text: str) -> NotPlain:
    """What a parser found wrong in a text, in one line and with its line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    line = mark.line + 1 if mark else text.count("\n", 0, position) + 1 if position else 1
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    tab = ": there is a tab, indent with spaces" if "\t" in text else ""
    return NotPlain(line, " ".join(str(problem).split()) + tab)


def read(text: str) -> Document:
    """Parse plain YAML.

    Raises:
        NotPlain: with the line and what is not allowed there.
    """
    if len(text) > LARGEST:
        raise NotPlain(1, f"the text has {len(text):,} characters; expected at most {LARGEST:,}")
    _bound_brackets(text)
    document = Document({}, {}, {})
    try:
        _check_events(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise not_yaml(error, text) from None
    data = None if root is None else _value(document, root, ())
    return replace(document, data=data)


def _check_events(text: str) -> None:
    """Refuse what is not plain, and more than the limits, before anything is built."""
    depth = entries = documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        entries += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise NotPlain(line, "a second document begins; expected one")
        if getattr(event, "anchor", None):
            raise NotPlain(line, "an anchor or alias (& or *): write the value out")
        if isinstance(event, yaml.NodeEvent) and event.tag is not None:
            raise NotPlain(line, f"the tag {event.tag!r:.60}: leave it out, the field says what it is")
        if entries > MOST:
            raise NotPlain(line, f"more than {MOST:,} entries")
        if depth > DEEPEST:
            raise NotPlain(line, f"mappings and lists stand more than {DEEPEST} deep inside each other")


def _value(document: Document, node: yaml.Node, place: Place) -> Any:
    """What a node holds; its line, and the place of a scalar in the text, go into the document."""
    document.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(document, item, (*place, i)) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        document.spans[place] = (node.start_mark.index, node.end_mark.index)
        value = _scalar(node)
        return None if node.tag == "tag:yaml.org,2002:null" else value
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise NotPlain(line, "a mapping or list stands as a key; expected a text")
        key = _scalar(key_node)
        if key in content:
            raise NotPlain(line, f"the key {key!r:.80} stands twice")
        document.lines[(*place, key)] = line
        content[key] = _value(document, value_node, (*place, key))
    return content


def _scalar(node: yaml.ScalarNode) -> str:
    value: str = node.value
    line = node.start_mark.line + 1
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
