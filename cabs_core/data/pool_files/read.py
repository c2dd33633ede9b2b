"""Reading one pool file: the pool it describes, and the files that it names.

`read_pool_file` is the entry. It opens no table, so that listing pools stays quick. `PoolFile` knows where
the paths of the file lead; a relative path is looked for beside the pool file, a table also in
`CABS_DATA_DIR`.
"""

import glob
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from cabs_core.base.catalog.policies import check_policy_name
from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import PolicyError, PoolError
from cabs_core.base.hashing import hash_file
from cabs_core.base.paths import SPREADSHEETS, SUFFIXES, data_dir, default_log, deployed_folder, suffix_of
from cabs_core.data.pool_files import plain_yaml
from cabs_core.data.pool_files.config import ModelPool, pool_from
from cabs_core.data.pool_files.log import LogSource
from cabs_core.data.pool_files.messages import explained_error, pool_error, shown_path
from cabs_core.data.pool_files.policy_names import policy_names
from cabs_core.data.pool_files.prompts import PromptSource, PromptsPool
from cabs_core.data.pool_files.sections import LogFile
from cabs_core.data.pool_files.strict import Strict
from cabs_core.data.pool_files.table import FileSource, OpenLlmSource, PluginSource, PublishedSource

#: most bytes of a pool file: characters of UTF-8 have up to four bytes
_MOST_BYTES = 4 * plain_yaml.LARGEST


@dataclass(frozen=True)
class PoolFile:
    """A pool and the file it was read from.

    Attributes:
        pool: the validated settings.
        path: absolute path of the file.
        shipped: True if the file came with this package.
        rhos_from: `file` if the pool file says the rhos, `costs` if they come from the costs of its table, or
            else the reason why the costs could not be read.
        problems: sentences about policies that cannot be imported.
        document: content of the file with the line of every entry.
    """

    pool: ModelPool
    path: Path
    shipped: bool = False
    rhos_from: str = "file"
    problems: tuple[str, ...] = ()
    document: plain_yaml.Document = field(repr=False, compare=False, default=plain_yaml.Document({}))

    def table_path(self) -> Path:
        """Return the absolute path of the table that the source reads: a file, a folder, or a pattern.

        A relative path is looked for in CABS_DATA_DIR, then beside the pool file.

        Raises:
            PoolError: the table is in neither place.
        """
        return self._find_data("source.path", self._written_path)

    @property
    def _written_path(self) -> str:
        """`source.path` as written, or '' if the source has no path."""
        source = self.pool.source
        if isinstance(source, FileSource | PluginSource | LogSource | PromptSource):
            return source.path or ""
        return ""

    def _find_data(self, name: str, written: str) -> Path:
        """Return the absolute path of data that the pool file names.

        Args:
            name: field of the pool file, for the message.
            written: path or pattern as the file has it.

        Raises:
            PoolError: the data are neither in CABS_DATA_DIR nor beside the pool file.
        """
        folders = [folder for folder in (data_dir(), self.path.parent) if folder is not None]
        candidates = dict.fromkeys(folder / os.path.expanduser(written) for folder in folders)
        for candidate in candidates:
            is_there = os.path.isfile(candidate) or os.path.isdir(candidate)
            if is_there or any(map(os.path.isfile, glob.glob(str(candidate)))):
                return candidate.absolute()
        advice = ""
        if "://" in written:
            advice = " Tables are read from files: download it first."
        elif not data_dir():
            advice = " CABS_DATA_DIR is not set: set it to the folder that holds the table."
        looked_for = " nor ".join(shown_path(candidate) for candidate in candidates)
        raise self._error(f"{name} {written!r:.120} is not at {looked_for}.{advice}")

    def mirror_path(self) -> Path | None:
        """Return the absolute path of `source.mirror`, a folder that is read instead of the network.

        Return None if the source has no mirror. A relative path means a folder beside the pool file.
        """
        source = self.pool.source
        if not isinstance(source, PublishedSource | OpenLlmSource | PluginSource) or source.mirror is None:
            return None
        return self._path_beside(source.mirror)

    def existing_file(self, written: str, name: str) -> Path:
        """Return the absolute path of a file that the pool file names by a path relative to itself.

        Args:
            written: path as the file has it.
            name: field of the pool file, for the message.

        Raises:
            PoolError: there is no such file.
        """
        path = self._path_beside(written)
        if not os.path.isfile(path):
            raise self._error(f"{name} {written!r:.120} is not at {shown_path(path)}")
        return path

    def scores_path(self) -> Path | None:
        """Return the absolute path of `source.scores`, or None if the source has none.

        `source.scores` is a file or folder with the scores of a log, looked for where the table is.

        Raises:
            PoolError: the pool file names scores that are not there.
        """
        source = self.pool.source
        if not isinstance(source, LogSource) or source.scores is None:
            return None
        return self._find_data("source.scores", source.scores)

    def collect_files(self) -> dict[plain_yaml.Place, str]:
        """Return {place in the pool file: path as written} of the files that `collect` names.

        A word of a scorer's command counts if there is such a file beside the pool file. The dict is empty
        for a pool without the section `collect`.
        """
        if not isinstance(self.pool, PromptsPool):
            return {}
        collect = self.pool.collect
        files: dict[plain_yaml.Place, str] = {("collect", "upstreams"): collect.upstreams}
        for number, scorer in enumerate(collect.scores):
            place = ("collect", "scores", number)
            for name in ("path", "file", "labels"):
                written = getattr(scorer, name, None)
                if isinstance(written, str):
                    files[*place, name] = written
            for position, word in enumerate(getattr(scorer, "command", ())):
                if os.path.isfile(self._path_beside(word)):
                    files[*place, "command", position] = word
        return files

    def command_words(self, words: Sequence[str]) -> list[str]:
        """Return a command with absolute paths in place of the words that are files beside the pool file."""
        absolute = []
        for word in words:
            path = self._path_beside(word)
            absolute.append(str(path) if os.path.isfile(path) else word)
        return absolute

    def source(self) -> Strict:
        """Return the pool's source with absolute paths of its mirror and of its table.

        Raises:
            PoolError: the source reads a table, and the table is not there.
        """
        paths = {}
        mirror = self.mirror_path()
        if mirror is not None:
            paths["mirror"] = str(mirror)
        if sources()[self.pool.source.kind].table:
            paths["path"] = str(self.table_path())
        return self.pool.source.model_copy(update=paths)

    def portable_text(self) -> str:
        """Return the text of the file with its name written out and its relative paths made absolute.

        A copy with this text in another folder means the same pool. Comments and layout stay. The path of a
        table, or of the scores of a log, in CABS_DATA_DIR stays relative.

        Raises:
            PoolError: the table of the source, or the scores of its log, are not there.
        """
        text = self.path.read_text(encoding="utf-8-sig")
        replacements = []
        for place, path in self._paths_beside_file().items():
            start, end = self.document.spans[place]
            replacements.append((start, end, path))
        for start, end, path in sorted(replacements, reverse=True):  # from the end, so that positions hold
            text = text[:start] + json.dumps(str(path), ensure_ascii=False) + text[end:]
        if ("name",) in self.document.lines:
            return text
        head = ""
        if text.startswith("%"):  # directives of YAML stand before the document
            directives, separator, text = text.partition("\n---\n")
            head = directives + separator
        text = text.removeprefix("---\n")
        return f"{head}name: {self.pool.name}\n{text}"

    def _paths_beside_file(self) -> dict[plain_yaml.Place, Path]:
        """Return {place in the pool file: absolute path} of the paths that are relative to the pool file.

        Raises:
            PoolError: the table of the source, or the scores of its log, are not there.
        """
        paths: dict[plain_yaml.Place, Path] = {}
        mirror = self.mirror_path()
        if mirror is not None:
            paths["source", "mirror"] = mirror
        if sources()[self.pool.source.kind].table:
            table = self.table_path()
            if table == self._path_beside(self._written_path):
                paths["source", "path"] = table
        source = self.pool.source
        scores = self.scores_path()
        if isinstance(source, LogSource) and source.scores and scores == self._path_beside(source.scores):
            paths["source", "scores"] = scores
        log = self.log_file
        if log is not None:
            if ("router", "log") in self.document.spans:  # the file gives only the path of the log
                paths["router", "log"] = Path(log.path)
            else:
                paths["router", "log", "path"] = Path(log.path)
            if log.scores is not None:
                paths["router", "log", "scores"] = Path(log.scores)
        for place, written in self.collect_files().items():
            paths[place] = self._path_beside(written)
        return paths

    def _path_beside(self, written: str) -> Path:
        """Return the absolute path of a path relative to the pool file, whether or not a file is there."""
        return (self.path.parent / os.path.expanduser(written)).absolute()

    def _error(self, message: str) -> PoolError:
        """Return an error for the caller to raise: the message after the path and the name of the pool."""
        return PoolError(f"pool file {shown_path(self.path)} (pool {self.pool.name}): {message}")

    @property
    def log_path(self) -> Path:
        """Path of the log of the pool's traffic: `router.log`, or the log of the pool's deployed router."""
        named = self.pool.router.log
        if named is None:
            return default_log(deployed_folder(self.pool.name))
        return self._path_beside(named.path)

    @property
    def log_file(self) -> LogFile | None:
        """`router.log` with absolute paths, or None if the pool file names no log."""
        named = self.pool.router.log
        if named is None:
            return None
        paths = {"path": str(self._path_beside(named.path))}
        if named.scores is not None:
            paths["scores"] = str(self._path_beside(named.scores))
        return named.model_copy(update=paths)

    def named_files(self, part: str) -> dict[str, str]:
        """Return {place with dots: SHA-256} of the files that a part of `collect` names and that exist.

        Args:
            part: `upstreams` or `scores`.
        """
        hashes = {}
        for place, written in self.collect_files().items():
            path = self._path_beside(written)
            if place[1] == part and os.path.isfile(path):
                hashes[".".join(map(str, place))] = hash_file(path)
        return hashes

    def log_files(self) -> dict[str, str]:
        """Return {name: SHA-256} of the files of the pool's log and of its scores that exist."""
        hashes = _hashes("log", self.log_path)
        named = self.log_file
        if named is not None and named.scores is not None:
            hashes |= _hashes("scores", Path(named.scores))
        return hashes

    def external_files(self) -> dict[str, str]:
        """Return {name: SHA-256} of the files that the pool's source reads.

        These are the table, the scores of a log and the upstreams file that `collect` names. If the source
        reads no table, these are the files of its mirror; the dict is empty if there is no mirror either.

        Raises:
            PoolError: the table or the scores are not there.
        """
        if sources()[self.pool.source.kind].table:
            hashes = _hashes("table", self.table_path())
            scores = self.scores_path()
            if scores is not None:
                hashes |= _hashes("scores", scores)
            return hashes | self.named_files("upstreams")
        folder = self.mirror_path()
        if folder is None:
            return {}
        return _hashes("mirror", folder)


def _hashes(name: str, path: Path) -> dict[str, str]:
    """Return {name: SHA-256} of a file, or {name/relative path: SHA-256} of a folder's or pattern's files.

    A SQLite file with a write-ahead log has a second entry, `name-wal`, because the log holds the newest
    rows. The dict is empty if no file is there.
    """
    if path.is_file():
        hashes = {name: hash_file(path)}
        write_ahead = path.with_name(f"{path.name}-wal")
        if write_ahead.is_file():
            hashes[f"{name}-wal"] = hash_file(write_ahead)
        return hashes
    if path.is_dir():
        folder = path
        files = sorted(path.rglob("*"))
    else:
        folder = path.parent
        files = sorted(map(Path, glob.glob(str(path))))
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": hash_file(file) for file in files if file.is_file()
    }


def read_pool_file(path: Path) -> PoolFile:
    """Read and validate one pool file. No table is opened.

    If the rhos are to come from the costs of the pool's table, the returned pool has the default rhos, and
    `rhos_from` is `costs`.

    Raises:
        PoolError: the file cannot be read, is not plain YAML, or is not a valid pool. The message names file,
            line, field and value in at most 500 characters.
    """
    path = Path(path)
    try:
        parsed = _parse(path, _content(path))
    except PoolError as error:
        error.path = path
        raise
    rhos_from = "costs" if parsed.rhos_from_costs else "file"
    return PoolFile(parsed.pool, path.absolute(), rhos_from=rhos_from, document=parsed.document)


def _content(path: Path) -> str:
    """Return the text of a pool file.

    Raises:
        PoolError: there is no such file, or its content cannot be the text of a pool file.
    """
    try:
        if not path.is_file():
            if path.exists():
                problem = "is no file"
            else:
                problem = "does not exist"
        elif suffix_of(path) in {*SUFFIXES, *SPREADSHEETS} - {".json"}:  # JSON is YAML as well
            problem = (
                "is a table: write a pool file (YAML) that names it under source.path, and give that file"
            )
        elif path.stat().st_size > _MOST_BYTES:
            problem = "is larger than 4 MiB: this is not a pool file"
        else:
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not plain YAML: byte {error.start} is not UTF-8. Save the file as UTF-8"
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error}"
    raise PoolError(f"pool file {shown_path(path)} {problem}")


class _Parsed(NamedTuple):
    """Content of a pool file."""

    pool: ModelPool
    document: plain_yaml.Document
    #: True if the rhos are to come from the costs of the pool's table
    rhos_from_costs: bool


@lru_cache(maxsize=256)
def _parse(path: Path, text: str) -> _Parsed:
    """Parse and validate the text of a pool file.

    Raises:
        PoolError: the text is not plain YAML, or not a valid pool.
    """
    try:
        document = plain_yaml.read(text)
    except plain_yaml.NotPlain as error:
        raise pool_error(path, error.line, f"not plain YAML: {error}") from None
    settings = document.data
    if not isinstance(settings, dict):
        if settings is None:
            content = "nothing"
        else:
            content = f"a {type(settings).__name__}"
        message = f"expected a mapping of fields at the top, found {content}. Begin with `source:`"
        raise pool_error(path, 1, message)
    settings = {"name": path.stem, **settings}
    replay = settings.get("replay")
    is_auto = isinstance(replay, dict) and replay.get("rhos") == "auto"
    if isinstance(replay, dict) and is_auto:
        settings["replay"] = {name: value for name, value in replay.items() if name != "rhos"}
    try:
        pool = pool_from(settings)
    except ValidationError as error:
        raise explained_error(path, document, error) from None
    except PoolError as error:  # of the pool's name, which pydantic lets through as it is
        raise pool_error(path, document.line(("name",)), str(error)) from None
    says_rhos = bool({"rhos", "answer_value_usd"} & pool.replay.model_fields_set)
    reads_table = sources()[pool.source.kind].table
    if is_auto and says_rhos:
        message = "replay.rhos is auto, but replay.answer_value_usd is given too. Leave one of the two out"
        raise pool_error(path, document.line(("replay", "rhos")), message)
    if is_auto and not reads_table:
        message = (
            f"replay.rhos is auto, but it is for source kinds file and logs; the kind is {pool.source.kind}. "
            "Write numbers, or leave the field out"
        )
        raise pool_error(path, document.line(("replay", "rhos")), message)
    _check_policies(path, document, pool)
    return _Parsed(pool, document, rhos_from_costs=reads_table and not says_rhos)


def _check_policies(path: Path, document: plain_yaml.Document, pool: ModelPool) -> None:
    """Check the names of the policies and presets that a pool file names.

    Raises:
        PoolError: a policy or preset is unknown. The message has the line of the name.
    """
    entries = document.data.get("policies") or []
    # one entry with a sweep over options stands for several policies
    entry_of_policy = [number for number, entry in enumerate(entries) for _ in policy_names(entry)]
    named: list[tuple[plain_yaml.Place, str]] = []
    for number, name in zip(entry_of_policy or range(len(pool.policies)), pool.policies, strict=True):
        named.append((("policies", number), name))
    if pool.router.policy:
        named.append((("router", "policy"), pool.router.policy))
    named.append((("reference_policy",), pool.reference_policy))
    for place, name in named:
        try:
            check_policy_name(name)
        except PolicyError as error:
            raise pool_error(path, document.line(place), f"{place[0]}: {error}") from None
