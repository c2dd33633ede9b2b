"""Error messages of pool files.

Each message names the file, the line, the field and its value, says what was expected, and what to do.
pydantic finds the faults; this module turns its findings into sentences, since pydantic knows neither the
line of a field nor for which kind of source a field exists.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError

from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import PoolError, did_you_mean, printable, shortened
from cabs_core.data.pool_files import plain_yaml
from cabs_core.data.pool_files.config import kind_of_source, pool_class, source_class
from cabs_core.data.pool_files.removed import replaced_scorer, replacement

#: names and numbers by which pydantic says where a fault is
Location: TypeAlias = tuple[int | str, ...]
#: most faults of one file that a message shows; the others are counted
_MOST_SHOWN = 3
#: what to write for a field that a pool file lacks
_ADVICE_IF_MISSING: dict[plain_yaml.Place, str] = {
    ("source",): "Say where the outcomes come from (source: kind, path)",
    ("source", "path"): "Please name the file to read, such as a table (.parquet, .csv or .jsonl)",
    ("models",): "Please name the models to ask",
    ("collect",): "Say whom to ask and how to score (collect: upstreams, max_usd, scores)",
}
#: beginnings of pydantic's messages that lack their noun
_COMPARISONS = ("greater than", "less than")
#: types in pydantic's messages, and what a pool file has in their place
_TYPES_IN_YAML = {
    "a valid tuple": "a list, such as [1, 5]",
    "a valid dictionary": "a mapping",
    "a valid string": "a text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
}


def shown_path(path: Path) -> str:
    """Return a path as messages show it: printable, and at most 160 characters long.

    Three dots and the last 157 characters stand for a longer path.
    """
    text = printable(str(path))
    if len(text) <= 160:
        return text
    return f"...{text[-157:]}"


def pool_error(path: Path, line: int | None, message: str) -> PoolError:
    """Return the error of a pool file: its path, the line if one is known, and the message."""
    place = f", line {line}" if line else ""
    return PoolError(f"pool file {shown_path(path)}{place}: {message}")


def explained_error(path: Path, document: plain_yaml.Document, error: ValidationError) -> PoolError:
    """Return the error of a pool file that says line, name and remedy of the first three wrong fields.

    Further wrong fields are counted.

    Args:
        path: the pool file.
        document: content of the file with the line of every entry.
        error: pydantic's error about the content. Each location begins with the name of the pool's class.
    """
    kind = kind_of_source(document.data)
    faults = []
    for finding in _findings(error):
        place = _place_in_file(document, finding["loc"][1:])
        faults.append(f"line {document.line(place)}: {_sentence(finding, place, kind)}")
    if len(faults) == 1:
        return PoolError(f"pool file {shown_path(path)}, {faults[0]}")
    listed = "".join(f"\n  {fault}" for fault in faults[:_MOST_SHOWN])
    if len(faults) > _MOST_SHOWN:
        listed += f"\n  and {len(faults) - _MOST_SHOWN} more problems"
    return PoolError(f"pool file {shown_path(path)} is not a valid model pool:{listed}")


def _findings(error: ValidationError) -> list[Any]:
    """Return pydantic's findings without complaints about a union's other types.

    For a list of models with a wrong entry, pydantic also says that the list is no mapping. Only the fault in
    the entry helps the user.
    """
    findings: list[Any] = error.errors(include_url=False, include_context=False)
    locations = [finding["loc"] for finding in findings]
    return [
        finding
        for finding in findings
        if finding["type"] not in ("dict_type", "tuple_type")
        or not _has_fault_of_an_entry(finding["loc"], locations)
    ]


def _has_fault_of_an_entry(location: Location, locations: Iterable[Location]) -> bool:
    """Return True if a location is a type of a union, and an entry of the value is wrong by another type.

    Such types, mappings and lists, are written with brackets, as in `('models', 'dict[str,str]')`.

    Args:
        locations: locations of all findings.
    """
    depth = len(location) - 1
    if "[" not in str(location[depth]):
        return False
    return any(
        len(other) > len(location) and other[:depth] == location[:depth] and "[" in str(other[depth])
        for other in locations
    )


def _place_in_file(document: plain_yaml.Document, location: Location) -> plain_yaml.Place:
    """Return the place in the file that belongs to a location of pydantic.

    The location also names types of unions, such as `exact` in `('collect', 'scores', 0, 'exact', 'column')`,
    and has `[key]` for keys of mappings. The file has no such entries, so these parts are left out. The last
    part stays even if the file lacks it, as a missing field, unless the part has a bracket.
    """
    place: plain_yaml.Place = ()
    last = len(location) - 1
    for number, part in enumerate(location):
        may_be_missing = number == last and "[" not in str(part)
        if (*place, part) in document.lines or not place or may_be_missing:
            place = (*place, part)
    return place


def _sentence(finding: Any, place: plain_yaml.Place, kind: Any) -> str:
    """Return what is wrong with a field and what to do, in a sentence or two."""
    name = shortened(".".join(str(part) for part in place), 100)
    if finding["type"] == "missing":
        return f"{name} is missing. {_ADVICE_IF_MISSING.get(place, 'Add the field')}"
    if finding["type"] == "extra_forbidden":
        return f"{name}: {_unknown_field(place, kind)}"
    if finding["type"] == "union_tag_invalid":
        advice = replaced_scorer(finding.get("input"))
        if advice:
            return f"{name}: {advice}"
    if finding["type"] == "value_error":
        message: str = finding["msg"].removeprefix("Value error, ")
        if message.startswith(name):  # also if a fault concerns the whole file and has no name
            return message
        return f"{name}: {message}"
    return f"{name} is {finding.get('input')!r:.60}. {_expectation(finding['msg'])}{_default(place, kind)}"


def _expectation(message: str) -> str:
    """Return a message of pydantic as a sentence, with types named as in a pool file.

    `Input should be ...` becomes `Expected ...`. Other messages only get a full stop.
    """
    expected = message.removeprefix("Input should be ").split(", unable to ")[0]
    if expected == message:
        return f"{message}."
    if expected.startswith(_COMPARISONS):
        expected = f"a number {expected}"
    for word, replaced in _TYPES_IN_YAML.items():
        expected = expected.replace(word, replaced)
    return f"Expected {expected}."


def _default(place: plain_yaml.Place, kind: Any) -> str:
    """Return a sentence that states the default of a field, with a space before it.

    The sentence is '' if the default is empty or is no number, truth value or text, or if the field has none.
    """
    field = _section(place[:-1], kind).model_fields.get(str(place[-1]))
    if field is None or not isinstance(field.default, bool | int | float | str) or field.default == "":
        return ""
    default = field.default
    if isinstance(default, bool):
        default = str(default).lower()
    return f" Leave the field out for its default, {default}."


def _unknown_field(place: plain_yaml.Place, kind: Any) -> str:
    """Return advice on a field that does not exist there in pools with this kind of source.

    The advice is the first of these that applies: what replaced a removed field; the kinds of source, or of
    pool, that have the field at this place, so that it is to be left out; the sections of the pool file to
    which the field belongs; a similar field of the same section; the page of the docs on pool files.
    """
    advice = replacement(place)
    if advice:
        return advice
    field = str(place[-1])
    pool = pool_class(kind)
    kinds_with_field = [name for name in sources() if field in _section(place[:-1], name).model_fields]
    if kinds_with_field and place[0] == "source":
        return (
            f"is for source kind {' or '.join(kinds_with_field)}; the kind is {kind!r:.60}. "
            "Leave the field out"
        )
    if kinds_with_field:
        pools_with_field = dict.fromkeys(pool_class(name).described for name in kinds_with_field)
        return (
            f"is for {' or '.join(pools_with_field)}; source.kind {kind!r:.60} is {pool.described}. "
            "Leave the field out"
        )
    homes = [f"{name}.{field}" for name, model in _sections(pool).items() if field in model.model_fields]
    if field in pool.model_fields:
        homes.append(field)
    if homes:
        return f"unknown field. It belongs to {' or '.join(homes)}"
    similar = did_you_mean(field, list(_section(place[:-1], kind).model_fields))
    return "unknown field." + (similar or " docs/model-pools.md lists the fields of pool files")


def _section(place: plain_yaml.Place, kind: Any) -> type[BaseModel]:
    """Return the pydantic model of the section at a place, in pool files with this kind of source.

    Parts of the place that name no section, such as indices of lists, are passed over.
    """
    section: type[BaseModel] = pool_class(kind)
    for depth, part in enumerate(place):
        if depth == 0 and part == "source":
            section = source_class(kind)
        else:
            section = _sections(section).get(str(part), section)
    return section


def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return {field: pydantic model} of the fields whose value is a pydantic model, or a mapping to such.

    A field that may also be empty or of another type, such as `Goal | None`, counts as well.
    """
    sections = {}
    for name, info in model.model_fields.items():
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                sections[name] = kind
    return sections
