"""Reading one pool file: its pool, where its table is, and errors that name file, line and field."""

import difflib
import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cabs_core.base.catalog.policies import check_policy_name
from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import PolicyError, PoolError, printable, shortened
from cabs_core.base.hashing import hash_file
from cabs_core.base.paths import SPREADSHEETS, SUFFIXES, data_dir, default_log, deployed_folder, suffix_of
from cabs_core.data.pool_files import plain_yaml
from cabs_core.data.pool_files.config import ModelPool, kind_of_source, pool_class, pool_from, source_class
from cabs_core.data.pool_files.log import LogSource
from cabs_core.data.pool_files.policy_names import policy_names
from cabs_core.data.pool_files.prompts import PromptSource, PromptsPool
from cabs_core.data.pool_files.removed import replaced_scorer, replacement
from cabs_core.data.pool_files.sections import LogFile
from cabs_core.data.pool_files.strict import Strict
from cabs_core.data.pool_files.table import FileSource, OpenLlmSource, PluginSource, PublishedSource

#: problems of one file that are shown; the rest is counted
_SHOWN = 3
#: what to write for a field that a pool file lacks
_WANTED: dict[plain_yaml.Place, str] = {
    ("source",): "say where the outcomes come from (source: kind, path)",
    ("source", "path"): "name the file to read, such as a table (.parquet, .csv or .jsonl)",
    ("models",): "name the models to ask",
    ("collect",): "say whom to ask and how to score (collect: upstreams, max_usd, scores)",
}


@dataclass(frozen=True)
class PoolFile:
    """A pool and the file it was read from.

    Attributes:
        rhos_from: `file`; `costs` where the file leaves `replay.rhos` to the costs of the table; or why the
            costs could not be read.
        problems: sentences about policies that cannot be imported.
        document: the file's content with its lines.
    """

    pool: ModelPool
    path: Path
    shipped: bool = False
    rhos_from: str = "file"
    problems: tuple[str, ...] = ()
    document: plain_yaml.Document = field(repr=False, compare=False, default=plain_yaml.Document({}))

    def table_path(self) -> Path:
        """Absolute path of the outcome table that the source reads: a file, folder, or pattern.

        A relative path is looked for in CABS_DATA_DIR, then beside the pool file.

        Raises:
            PoolError: the table is in neither place.
        """
        return self._found("source.path", self._written_path)

    @property
    def _written_path(self) -> str:
        """`source.path` as written, or '' if the source has none."""
        source = self.pool.source
        if isinstance(source, FileSource | PluginSource | LogSource | PromptSource):
            return source.path or ""
        return ""

    def _found(self, name: str, written: str) -> Path:
        folders = [folder for folder in (data_dir(), self.path.parent) if folder is not None]
        places = dict.fromkeys(folder / os.path.expanduser(written) for folder in folders)
        for place in places:
            if (
                os.path.isfile(place)
                or os.path.isdir(place)
                or any(map(os.path.isfile, glob.glob(str(place))))
            ):
                return place.absolute()
        looked = " nor ".join(shown_path(p) for p in places)
        hint = "" if data_dir() else " CABS_DATA_DIR is not set: set it to the folder that holds the table."
        if "://" in written:
            hint = " Tables are read from files: download it first."
        raise self._error(f"{name} {written!r:.120} is not at {looked}.{hint}")

    def mirror_path(self) -> Path | None:
        """Absolute path of `source.mirror`, read instead of the network; relative: beside the pool file."""
        source = self.pool.source
        if not isinstance(source, PublishedSource | OpenLlmSource | PluginSource) or source.mirror is None:
            return None
        return self._beside(source.mirror)

    def beside(self, written: str, name: str) -> Path:
        """Absolute path of a file that the pool file names, relative to it. name: the field, for messages.

        Raises:
            PoolError: there is no such file.
        """
        path = self._beside(written)
        if not os.path.isfile(path):
            raise self._error(f"{name} {written!r:.120} is not at {shown_path(path)}")
        return path

    def scores_path(self) -> Path | None:
        """Absolute path of `source.scores`, a file or folder, looked for where the table is.

        Raises:
            PoolError: there is none.
        """
        source = self.pool.source
        if not isinstance(source, LogSource) or source.scores is None:
            return None
        return self._found("source.scores", source.scores)

    def collect_files(self) -> dict[tuple[str | int, ...], str]:
        """{place in the file: path as written} of the files that `collect` names."""
        if not isinstance(self.pool, PromptsPool):
            return {}
        collect = self.pool.collect
        files: dict[tuple[str | int, ...], str] = {("collect", "upstreams"): collect.upstreams}
        for number, scorer in enumerate(collect.scores):
            place = ("collect", "scores", number)
            for name in ("path", "file", "labels"):
                if isinstance(value := getattr(scorer, name, None), str):
                    files[*place, name] = value
            for position, word in enumerate(getattr(scorer, "command", ())):
                if os.path.isfile(self._beside(word)):
                    files[*place, "command", position] = word
        return files

    def command_words(self, words: Sequence[str]) -> list[str]:
        """Return a command with absolute paths in place of the words that are files beside the pool file."""
        return [str(path) if os.path.isfile(path := self._beside(word)) else word for word in words]

    def source(self) -> Strict:
        """Return the pool's source with absolute paths of its mirror and of its table.

        Raises:
            PoolError: there is no such table.
        """
        paths = {}
        if mirror := self.mirror_path():
            paths["mirror"] = str(mirror)
        if sources()[self.pool.source.kind].table:
            paths["path"] = str(self.table_path())
        return self.pool.source.model_copy(update=paths)

    def portable_text(self) -> str:
        """The file's text with its name written out and paths that are relative to the file made absolute.

        A copy of it in another folder means the same pool. Comments and layout stay.

        Raises:
            PoolError: the table of a `file` pool is not there.
        """
        text = self.path.read_text(encoding="utf-8-sig")
        changed: dict[plain_yaml.Place, Path | None] = {("source", "mirror"): self.mirror_path()}
        if sources()[self.pool.source.kind].table:
            table = self.table_path()
            changed["source", "path"] = table if table == self._beside(self._written_path) else None
        for place, written in self.collect_files().items():
            changed[place] = self._beside(written)
        spans = [(self.document.spans[place], path) for place, path in changed.items() if path is not None]
        for (start, end), path in sorted(spans, reverse=True, key=lambda item: item[0]):
            text = text[:start] + json.dumps(str(path), ensure_ascii=False) + text[end:]
        if ("name",) not in self.document.lines:
            head, line, rest = text.partition("\n---\n") if text.startswith("%") else ("", "", text)
            rest = rest.removeprefix("---\n")
            text = f"{head}{line}name: {self.pool.name}\n{rest}"
        return text

    def _beside(self, written: str) -> Path:
        return (self.path.parent / os.path.expanduser(written)).absolute()

    def _error(self, message: str) -> PoolError:
        return PoolError(f"pool file {shown_path(self.path)} (pool {self.pool.name}): {message}")

    @property
    def log_path(self) -> Path:
        """Where the log of the pool's traffic lies: `router.log` of the file, else its router's."""
        named = self.pool.router.log
        if named is None:
            return default_log(deployed_folder(self.pool.name))
        return self._beside(named.path)

    @property
    def log_file(self) -> LogFile | None:
        """`router.log` with absolute paths."""
        named = self.pool.router.log
        if named is None:
            return None
        paths = {k: str(self._beside(v)) for k in ("path", "scores") if (v := getattr(named, k)) is not None}
        return named.model_copy(update=paths)

    def named_files(self, part: str) -> dict[str, str]:
        """{name: SHA-256} of the files that a part of `collect` names: `upstreams`, or `scores`."""
        return {
            ".".join(map(str, place)): hash_file(path)
            for place, written in self.collect_files().items()
            if place[1] == part and os.path.isfile(path := self._beside(written))
        }

    def log_files(self) -> dict[str, str]:
        """{name: SHA-256} of the files of `log_path`; empty where there is no log."""
        named = self.log_file
        scores = {} if named is None or named.scores is None else _hashes("scores", Path(named.scores))
        return _hashes("log", self.log_path) | scores

    def external_files(self) -> dict[str, str]:
        """{name: SHA-256} of the files that the pool's source reads: a table, or a mirror.

        Raises:
            PoolError: the table is not there.
        """
        if sources()[self.pool.source.kind].table:
            scores = self.scores_path()
            hashes = _hashes("table", self.table_path()) | (
                {} if scores is None else _hashes("scores", scores)
            )
            return hashes | self.named_files("upstreams")
        folder = self.mirror_path()
        return {} if folder is None else _hashes("mirror", folder)


def _hashes(name: str, path: Path) -> dict[str, str]:
    """{name: SHA-256} of a file with what SQLite holds beside it, or of a folder's or pattern's."""
    if path.is_file():
        ahead = path.with_name(f"{path.name}-wal")
        return {key: hash_file(p) for key, p in ((name, path), (f"{name}-wal", ahead)) if p.is_file()}
    folder = path if path.is_dir() else path.parent
    files = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(path)))
    return {f"{name}/{p.relative_to(folder).as_posix()}": hash_file(p) for p in sorted(files) if p.is_file()}


def read_pool_file(path: Path) -> PoolFile:
    """Read and validate one pool file; no table is opened.

    Rhos that the file leaves to the costs of its table are still the default ones.

    Raises:
        PoolError: unreadable, not plain YAML, or not a valid pool; the message names file, line, field and
            value in at most 500 characters.
    """
    path = Path(path)
    try:
        pool, document, auto = _parse(path, _content(path))
    except PoolError as error:
        error.path = path
        raise
    return PoolFile(pool, path.absolute(), rhos_from="costs" if auto else "file", document=document)


def _content(path: Path) -> str:
    try:
        if not path.is_file():
            problem = "is no file" if path.exists() else "does not exist"
        elif suffix_of(path) in {*SUFFIXES, *SPREADSHEETS} - {".json"}:  # which is YAML as well
            problem = "is a table: write a pool file (YAML) that names it under source.path, and give that"
        elif path.stat().st_size > 4 * plain_yaml.LARGEST:
            problem = "is larger than 4 MiB: this is not a pool file"
        else:
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not plain YAML: byte {error.start} is not UTF-8"
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error}"
    raise PoolError(f"pool file {shown_path(path)} {problem}")


@lru_cache(maxsize=256)
def _parse(path: Path, text: str) -> tuple[ModelPool, plain_yaml.Document, bool]:
    """The pool, its text with lines, and whether its rhos are to come from the costs of its table."""
    try:
        document = plain_yaml.read(text)
    except plain_yaml.NotPlain as error:
        raise pool_error(path, error.line, f"not plain YAML: {error}") from None
    data = document.data
    if not isinstance(data, dict):
        content = "nothing" if data is None else f"a {type(data).__name__}"
        raise pool_error(path, 1, f"expected a mapping of fields at the top, found {content}")
    data = {"name": path.stem, **data}
    replay = data.get("replay")
    asked = isinstance(replay, dict) and replay.get("rhos") == "auto"
    if isinstance(replay, dict) and asked:
        data["replay"] = {k: v for k, v in replay.items() if k != "rhos"}
    try:
        pool = pool_from(data)
    except ValidationError as error:
        raise _explain(path, document, error) from None
    except PoolError as error:  # of a name; pydantic lets it through as it is
        raise pool_error(path, document.line(("name",)), str(error)) from None
    silent = not {"rhos", "answer_value_usd"} & pool.replay.model_fields_set
    table = sources()[pool.source.kind].table
    if asked and not (silent and table):
        why = "replay.answer_value_usd is given too" if not silent else "it is for source kinds file and logs"
        raise pool_error(path, document.line(("replay", "rhos")), f"replay.rhos is auto, but {why}")
    _check_policies(path, document, pool)
    return pool, document, silent and table


def did_you_mean(name: str, known: list[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty text."""
    close = difflib.get_close_matches(str(name)[:200], known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def shown_path(path: Path) -> str:
    """A path as messages show it: printable, at most 160 characters."""
    text = printable(str(path))
    return text if len(text) <= 160 else f"...{text[-157:]}"


def pool_error(path: Path, line: int | None, message: str) -> PoolError:
    """The error of a pool file: where, and what is wrong."""
    return PoolError(f"pool file {shown_path(path)}{f', line {line}' if line else ''}: {message}")


def _explain(path: Path, document: plain_yaml.Document, error: ValidationError) -> PoolError:
    """Return the error of a pool file that says of each wrong field its line, its name and what to do."""
    kind = kind_of_source(document.data)
    lines = []
    for item in _once(error):
        place = _place(document, item["loc"][1:])
        message = item["msg"].removeprefix("Value error, ")
        message = message.replace("valid tuple", "list, such as [1, 5]").replace(
            "valid dictionary", "mapping"
        )
        shown = f" (found {item.get('input')!r:.60})"
        if item["type"] in ("value_error", "missing"):
            shown = ""
        if item["type"] == "missing" and place in _WANTED:
            message = f"{message}: {_WANTED[place]}"
        if item["type"] == "union_tag_invalid" and (advice := replaced_scorer(item.get("input"))):
            message = advice
            shown = ""
        if item["type"] == "extra_forbidden":
            message = _unknown(place, kind)
            shown = ""
        name = shortened(".".join(str(part) for part in place), 100)
        lines.append(f"line {document.line(place)}: {name + ': ' if name else ''}{message}{shown}")
    more = f"\n  and {len(lines) - _SHOWN} more problems" if len(lines) > _SHOWN else ""
    if len(lines) == 1:
        return PoolError(f"pool file {shown_path(path)}, {lines[0]}")
    listed = "".join(f"\n  {text}" for text in lines[:_SHOWN])
    return PoolError(f"pool file {shown_path(path)} is not a valid model pool:{listed}{more}")


def _once(error: ValidationError) -> list[Any]:
    """The errors, without those of a union's branches that the value was never meant for."""
    items: list[Any] = error.errors(include_url=False, include_context=False)
    meant = {i["loc"][:2] for i in items if i["type"] not in ("dict_type", "tuple_type")}
    return [i for i in items if i["type"] not in ("dict_type", "tuple_type") or i["loc"][:2] not in meant]


def _place(document: plain_yaml.Document, loc: tuple[int | str, ...]) -> plain_yaml.Place:
    """Where an error of pydantic is in the file, without its names of union branches and of keys."""
    place: plain_yaml.Place = ()
    for part in loc:
        if (*place, part) in document.lines or not place or "[" not in str(part):
            place = (*place, part)
    return place


def _unknown(place: plain_yaml.Place, kind: Any) -> str:
    """Return what to write in the place of a field that pools with this kind of source do not have."""
    if advice := replacement(place):
        return advice
    field = str(place[-1])
    pool = pool_class(kind)
    having = [name for name in sources() if field in _section(place[:-1], name).model_fields]
    if having and place[0] == "source":
        return f"is for source kind {' or '.join(having)}; the kind is {kind!r:.60}. Leave the field out"
    if having:
        others = dict.fromkeys(pool_class(name).described for name in having)
        return (
            f"is for {' or '.join(others)}; source.kind {kind!r:.60} is {pool.described}. Leave the field out"
        )
    homes = [f"{name}.{field}" for name, model in _sections(pool).items() if field in model.model_fields]
    homes += [field] if field in pool.model_fields else []
    if homes:
        return f"unknown field. It belongs to {' or '.join(homes)}"
    near = did_you_mean(field, list(_section(place[:-1], kind).model_fields))
    return "unknown field." + (near or " docs/model-pools.md lists those there are")


def _section(place: plain_yaml.Place, kind: Any) -> type[BaseModel]:
    """Return the model of a section of pool files with this kind of source."""
    section: type[BaseModel] = pool_class(kind)
    for depth, part in enumerate(place):
        if depth == 0 and part == "source":
            section = source_class(kind)
        else:
            section = _sections(section).get(str(part), section)
    return section


def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """{field: model} of the fields that are models, or mappings to models."""
    sections = {}
    for name, info in model.model_fields.items():
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                sections[name] = kind
    return sections


def _check_policies(path: Path, document: plain_yaml.Document, pool: ModelPool) -> None:
    given = document.data.get("policies") or []
    written = [i for i, entry in enumerate(given) for _ in policy_names(entry)] or range(len(pool.policies))
    named: list[tuple[plain_yaml.Place, str]] = [
        (("policies", i), name) for i, name in zip(written, pool.policies, strict=True)
    ]
    named += [(("router", "policy"), pool.router.policy)] if pool.router.policy else []
    for place, name in [*named, (("reference_policy",), pool.reference_policy)]:
        try:
            check_policy_name(name)
        except PolicyError as error:
            raise pool_error(path, document.line(place), f"{place[0]}: {error}") from None
