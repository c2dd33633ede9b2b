"""A parser of plain YAML: mappings, lists and texts, each with its line.

The models of pydantic say what a scalar means, so every scalar stays text, such as `2020-13-45`, `no` and
`1e-4`. Only an empty value and an unquoted `~`, `null`, `Null` or `NULL` are None. Aliases, tags, duplicate
keys and several documents are refused. Size, depth and number of entries are bounded before and while the
text is parsed, so that no file takes long or fills the memory.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import yaml

#: most characters of a file
LARGEST = 1 << 20
#: most mappings and lists inside each other
DEEPEST = 12
#: most scalars, mappings and lists of a file
MOST = 20_000
#: most characters of one scalar
LONGEST = 20_000

#: libyaml's parser if it is compiled in, since it is ten times as fast
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: most brackets that are open at any point of the text: parsers need time quadratic in this number before
#: they report anything
_OPEN_BRACKETS = 200

#: keys of mappings and positions in lists that lead to an entry
Place = tuple[str | int, ...]


class NotPlain(ValueError):
    """Error of a text that is not plain YAML. `line` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Document:
    """Content of a YAML text, with the position of every entry.

    Attributes:
        data: dicts with text keys, lists, texts and None.
        lines: {place: line} of every entry, counted from 1.
        spans: {place: (start, end)} of every scalar that is a value, not a key: its characters in the text,
            quotes included.
    """

    data: Any
    lines: dict[Place, int] = field(default_factory=dict)
    spans: dict[Place, tuple[int, int]] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """Return the line of an entry, or of the nearest mapping or list around it that the text has."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def not_yaml(error: yaml.YAMLError, text: str) -> NotPlain:
    """Return the error of a YAML parser as one line of text, with the line where the fault is."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    line = 1
    if mark:
        line = mark.line + 1
    elif position:
        line = text.count("\n", 0, position) + 1
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    message = " ".join(str(problem).split())
    if "\t" in text:
        message += ": there is a tab, indent with spaces"
    return NotPlain(line, message)


def read(text: str) -> Document:
    """Parse plain YAML. An empty text has the data None.

    Raises:
        NotPlain: the text is no YAML, not plain, or too large. The error names the line and the fault there.
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
    if root is None:
        data = None
    else:
        data = _value(document, root, ())
    return replace(document, data=data)


def _check_events(text: str) -> None:
    """Refuse a text that is not plain or exceeds a limit, before anything is built from it.

    Raises:
        NotPlain: with the line of the first fault.
        yaml.YAMLError: the text is no YAML.
    """
    depth = 0
    entries = 0
    documents = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        entries += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if documents > 1:
            raise NotPlain(line, "a second document begins; expected one. Remove the line `---`")
        if getattr(event, "anchor", None):
            raise NotPlain(line, "there is an anchor or alias (& or *): write the value out")
        if isinstance(event, yaml.NodeEvent) and event.tag is not None:
            message = f"there is the tag {event.tag!r:.60}: leave it out, the field says which type it has"
            raise NotPlain(line, message)
        if entries > MOST:
            raise NotPlain(line, f"the text has more than {MOST:,} entries")
        if depth > DEEPEST:
            raise NotPlain(line, f"mappings and lists stand more than {DEEPEST} deep inside each other")


def _value(document: Document, node: yaml.Node, place: Place) -> Any:
    """Return the value of a node, and add the positions of its entries to the document.

    Raises:
        NotPlain: a key stands twice or is no text, or a scalar is too long or holds control characters.
    """
    document.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_value(document, item, (*place, number)) for number, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        document.spans[place] = (node.start_mark.index, node.end_mark.index)
        value = _scalar(node)
        if node.tag == "tag:yaml.org,2002:null":
            return None
        return value
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise NotPlain(line, "a mapping or list stands as a key; expected a text")
        key = _scalar(key_node)
        if key in content:
            raise NotPlain(line, f"the key {key!r:.80} stands twice: leave one of the two out")
        document.lines[(*place, key)] = line
        content[key] = _value(document, value_node, (*place, key))
    return content


def _scalar(node: yaml.ScalarNode) -> str:
    """Return the text of a scalar.

    Raises:
        NotPlain: the text is too long, or holds a control character or half of a surrogate pair.
    """
    value: str = node.value
    line = node.start_mark.line + 1
    if len(value) > LONGEST:
        raise NotPlain(line, f"there is a text of {len(value):,} characters; expected at most {LONGEST:,}")
    if any(_is_control(character) for character in value):
        raise NotPlain(line, f"there is a control character in {value!r:.80}: leave it out")
    return value


def _is_control(character: str) -> bool:
    """Return True for half of a surrogate pair, and below U+0020 for all characters but newline and tab."""
    code = ord(character)
    return (code < 32 and character not in "\n\t") or 0xD800 <= code < 0xE000


def _bound_brackets(text: str) -> None:
    """Refuse a text with too many open brackets.

    Raises:
        NotPlain: with the line where one bracket too many opens.
    """
    if text.count("[") + text.count("{") <= _OPEN_BRACKETS:
        return
    depth = 0
    for line, content in enumerate(text.split("\n"), 1):
        for character in content:
            if character in "[{":
                depth += 1
            elif character in "]}":
                depth = max(0, depth - 1)
            if depth > _OPEN_BRACKETS:
                raise NotPlain(line, f"more than {_OPEN_BRACKETS} brackets are open at once")
