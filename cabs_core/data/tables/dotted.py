"""Values within values: `metadata.rating`, `calls.0.model`."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from cabs_core.base.errors import shortened


def at(record: Any, path: str) -> Any:
    """The value at a dotted path of nested mappings and lists, and of JSON in a text;
    None where there is none.

    A key may itself hold dots.
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
    head, _, rest = path.partition(".")
    if isinstance(record, list) and head.lstrip("-").isdigit() and -len(record) <= int(head) < len(record):
        return at(record[int(head)], rest)
    return None


def _cuts(path: str) -> list[tuple[str, str]]:
    """(a beginning of the path, the rest), the longest beginning first."""
    parts = path.split(".")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]


def column_of(name: str, columns: Collection[str]) -> tuple[str, str] | None:
    """(column, path within it) that a name means, the longest column name first; None: there is none."""
    if name in columns:
        return name, ""
    return next((cut for cut in _cuts(name) if cut[0] in columns), None)


def first(record: Any, *paths: str) -> Any:
    """The first value at these paths that is there and not empty."""
    return next((v for path in paths if (v := at(record, path)) is not None and v != ""), None)


def parsed(value: Any) -> Any:
    """What JSON in a text holds; any other text or value as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list, or in JSON of one."""
    value = parsed(value)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def shape(value: Any, depth: int = 2) -> str:
    """What a record holds, in a line: its keys, nested ones in braces."""
    if isinstance(value, Mapping):
        inner = (
            f"{k}{f' {shape(v, depth - 1)}' if depth > 1 and isinstance(v, dict | list) else ''}"
            for k, v in value.items()
        )
        return "{" + shortened(", ".join(inner), 500) + "}"
    if isinstance(value, list):
        return f"[{shape(value[0], depth) if value else ''}]"
    return type(value).__name__
