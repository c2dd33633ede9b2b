"""Reads values within nested values by a path.

Such paths are `metadata.rating`, `calls.0.model` and `spans[type=llm].name`.
"""

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from cabs_core.base.errors import shortened

#: Characters of a list that Python printed. A longer one is not read.
LONGEST_PRINTED = 1_000_000
#: Part of a path that chooses an item of a list by a value in the item.
_CHOICE = re.compile(r"\[(?P<path>[^\[\]=]+)=(?P<value>[^\[\]]*)\]")
#: Part of a path that is the index of an item of a list.
_INDEX = re.compile(r"-?[0-9]{1,9}")
#: Places where NumPy prints objects of an array without a comma between them.
_GAP = re.compile(r"(?<=[}\]])\s+(?=[{\[])")


def at(record: Any, path: str) -> Any:
    """Return the value at a dotted path of nested mappings and lists, and of JSON in a text.

    A key may itself hold dots. A number is the index of an item of a list; a negative one counts from the
    end. `[path=value]` chooses the items of a list that have the value at the path.
    The last of them that has something at the rest of the path counts. Return None if the path leads
    nowhere.
    """
    if path == "" or record is None:
        return record
    if isinstance(record, str) and record.lstrip()[:1] in ("{", "["):
        record = parsed(record)
    if isinstance(record, Mapping):
        if path in record:
            return record[path]
        for key, rest in _cuts(path):
            if key in record:
                return at(record[key], rest)
        return None
    if not isinstance(record, list):
        return None
    choice = _CHOICE.match(path)
    if choice is not None:
        rest = path[choice.end() :].removeprefix(".")
        values = [at(item, rest) for item in record if _has(item, choice["path"], choice["value"])]
        return next((value for value in reversed(values) if value is not None), None)
    head, _, rest = path.partition(".")
    if _INDEX.fullmatch(head) and -len(record) <= int(head) < len(record):
        return at(record[int(head)], rest)
    return None


def _has(item: Any, path: str, value: str) -> bool:
    """Return True if an item has a value at a path. Case, quotes and white space at the ends do not count."""
    found = parsed(at(item, path.strip()))
    return found is not None and str(found).strip().casefold() == value.strip().strip("\"'").casefold()


def _cuts(path: str) -> list[tuple[str, str]]:
    """Return every division of a path into a beginning and the rest, the longest beginning first.

    A path is divided at each dot outside of brackets, and before each `[path=value]`.
    """
    ends = [match.start() for match in re.finditer(r"\[[^\[\]]*\]|\.", path) if match[0] == "."]
    ends += [match.start() for match in _CHOICE.finditer(path) if match.start() > 0]
    return [(path[:end], path[end:].removeprefix(".")) for end in sorted(ends, reverse=True)]


def column_of(name: str, columns: Collection[str]) -> tuple[str, str] | None:
    """Return the column that a name means, and the path within the column.

    The longest column name that fits is taken. Return None if no column fits.
    """
    if name in columns:
        return name, ""
    return next((cut for cut in _cuts(name) if cut[0] in columns), None)


def first(record: Any, *paths: str) -> Any:
    """Return the first value at these paths that is neither None nor an empty text, or None."""
    for path in paths:
        value = at(record, path)
        if value is not None and value != "":
            return value
    return None


def parsed(value: Any) -> Any:
    """Return the content of a text that is JSON, or a list or mapping that Python printed.

    Any other value is returned as it is.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        printed = printed_list(value)
        if printed is None:
            return value
        return printed


def printed_list(text: str) -> Any:
    """Return the list or mapping that Python or NumPy printed as this text, or None.

    pandas writes cells that hold lists into a CSV in this way. Only these are read: a mapping whose first key
    is in single quotes, and a list that begins with a mapping, a list or a text in single quotes. A list that
    begins with a number gives None, and so does a text of more than `LONGEST_PRINTED` characters.
    """
    start = text.lstrip()[:2]
    if len(text) > LONGEST_PRINTED or start not in ("[{", "{'", "['", "[["):
        return None
    for written in (text, _GAP.sub(", ", text)):
        try:
            value = ast.literal_eval(written.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
        if isinstance(value, list | dict):
            return value
    return None


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the mappings in a list, or in a text that `parsed` turns into a list. Empty for other values."""
    value = parsed(value)
    if isinstance(value, list):
        return [item for item in value if isinstance(item, Mapping)]
    return []


def shape(value: Any, depth: int = 2) -> str:
    """Return the keys of a record in one line, for messages: `{id, meta {model, scores [int]}}`.

    Behind a key stands its value only if this is a mapping, shown by its keys, or a list, shown by its first
    item in brackets. The name of a type stands for another item of a list, and for a record that is neither.

    Args:
        depth: number of levels of keys.
    """
    if isinstance(value, Mapping):
        inner = (
            f"{k}{f' {shape(v, depth - 1)}' if depth > 1 and isinstance(v, dict | list) else ''}"
            for k, v in value.items()
        )
        return "{" + shortened(", ".join(inner), 500) + "}"
    if isinstance(value, list):
        return f"[{shape(value[0], depth) if value else ''}]"
    return type(value).__name__
