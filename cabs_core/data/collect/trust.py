"""Approval of commands in pool files.

A pool file may come from a stranger, so no command of a pool file runs before somebody on this machine has
approved the exact command and the content of the files that it names. Approvals lie in CABS_HOME and not next
to the pool file, so that a pool file cannot bring its own.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import CabsError, StorageError
from cabs_core.base.hashing import hash_file, stable_hash
from cabs_core.base.paths import cabs_home
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.collect import Command


class UntrustedCommand(CabsError):
    """Error of a pool file with a command that nobody approved on this machine, or that changed since."""


@dataclass(frozen=True)
class Program:
    """A command that a pool file names.

    Attributes:
        words: the command, with absolute paths of the files that it names.
        files: {absolute path: SHA-256} of the words that are paths of existing files.
    """

    words: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def identity(self) -> str:
        """Hash of the words and of the content of the files, 64 hex digits."""
        return stable_hash({"words": list(self.words), "files": dict(self.files)}, 64)

    @property
    def in_words(self) -> str:
        """The words as JSON in ASCII, so that nothing in them can hide, and the hashes of the files."""
        hashes = [f"{json.dumps(path)} has SHA-256 {sha}" for path, sha in self.files.items()]
        return "\n  ".join([json.dumps(list(self.words)), *hashes])


def program_of(pool_file: PoolFile, scorer: Command) -> Program:
    """Return the command of a scorer, with the present content of the files that it names."""
    words = tuple(pool_file.command_words(scorer.command))
    files = {word: hash_file(word) for word in words if os.path.isabs(word) and os.path.isfile(word)}
    return Program(words, files)


def programs_of(pool_file: PoolFile) -> list[Program]:
    """Return the commands of the scorers in a pool file, each once.

    The list is empty if the pool does not collect answers.
    """
    if not pool_file.pool.collected:
        return []
    scorers = [scorer for scorer in pool_file.pool.collect.scores if isinstance(scorer, Command)]
    programs = [program_of(pool_file, scorer) for scorer in scorers]
    return list({program.identity: program for program in programs}.values())


def untrusted(pool_file: PoolFile) -> list[Program]:
    """Return the commands of a pool file that were not approved on this machine as they are now."""
    approved = _approved()
    return [program for program in programs_of(pool_file) if program.identity not in approved]


def trust(programs: list[Program]) -> None:
    """Record that commands are approved on this machine with the content that they have in `programs`."""
    if not programs:
        return
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        approved = _approved() | {program.identity: list(program.words) for program in programs}
        write_text(path, json.dumps(approved, indent=1, ensure_ascii=False) + "\n")


def require_trusted(pool_file: PoolFile) -> None:
    """Check that all commands of a pool file were approved on this machine as they are now.

    Raises:
        UntrustedCommand: a command was not approved. The message says how to approve it.
    """
    for program in untrusted(pool_file):
        raise _refusal(pool_file, program)


def trusted_program(pool_file: PoolFile, scorer: Command) -> Program:
    """Return the command of a scorer if it may run.

    Raises:
        UntrustedCommand: the command was not approved on this machine as it is now.
    """
    program = program_of(pool_file, scorer)
    if program.identity not in _approved():
        raise _refusal(pool_file, program)
    return program


def _refusal(pool_file: PoolFile, program: Program) -> UntrustedCommand:
    """Error that says which command was not approved, and how to approve it."""
    return UntrustedCommand(
        f"pool {pool_file.pool.name}: collect.scores names a command that was not approved on this machine, "
        f"or that changed since: {json.dumps(list(program.words)):.200}. Read it, then approve it with `cabs "
        f"pool add {shlex.quote(str(pool_file.path))}`, which asks, or in a script with --trust-commands"
    )


def _path() -> Path:
    """Return the path of the file of approvals."""
    return cabs_home() / "trusted_commands.json"


def _approved() -> dict[str, list[str]]:
    """Return {identity: words} of the approved commands. Empty if nothing was approved yet.

    Raises:
        StorageError: the file of approvals exists and cannot be read, or holds no mapping.
    """
    path = _path()
    try:
        approved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be read ({error}): delete it, then approve the commands again (cabs pool add)"
        ) from None
    if not isinstance(approved, dict):
        raise StorageError(
            f"{path} holds no mapping: delete it, then approve the commands again (cabs pool add)"
        )
    return approved
