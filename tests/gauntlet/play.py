"""Behaviours: how they are declared, played and shown."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .stage import Stage

THEMES = "traffic attacks state clients".split()
Seen = tuple[bool, Any]
_ALL: list[Behaviour] = []


class Skip(Exception):
    """A behaviour that cannot be played here; says why."""


@dataclass(frozen=True)
class Behaviour:
    """One row of the table. needs: packages of the gauntlet's own environment. short: part of `make
    test-all`."""

    theme: str
    name: str
    expected: str
    play: Callable[[Stage], Seen]
    needs: tuple[str, ...]
    short: bool


@dataclass(frozen=True)
class Result:
    """How a behaviour went. verdict: pass, FAIL or skip."""

    behaviour: Behaviour
    seen: str
    verdict: str
    seconds: float


def behaviour(
    *needs: str, short: bool = False, says: str | None = None
) -> Callable[[Callable[[Stage], Seen]], Callable[[Stage], Seen]]:
    """Declare one. needs: packages that it imports. says: in place of the docstring."""

    def declare(play: Callable[[Stage], Seen]) -> Callable[[Stage], Seen]:
        text = " ".join((says or play.__doc__ or "").split())
        name, arrow, expected = text.partition(" -> ")
        assert arrow, f"{play.__qualname__}: expected 'what happens -> what is expected', found {text!r}"
        theme = play.__module__.rpartition(".")[2]
        _ALL.append(Behaviour(theme, name, expected.rstrip("."), play, needs, short))
        return play

    return declare


def behaviours(*, short: bool = False, only: str = "") -> list[Behaviour]:
    """All of them in the order of the themes. only: a word of theme or name."""
    for theme in THEMES:
        importlib.import_module(f"{__package__}.{theme}")
    chosen = [b for b in _ALL if (b.short or not short) and only.lower() in f"{b.theme} {b.name}".lower()]
    return sorted(chosen, key=lambda b: THEMES.index(b.theme))


def play_all(stage: Stage, chosen: Iterable[Behaviour]) -> list[Result]:
    """Play them one after the other; a theme's servers end with it. Rows are printed as they come."""
    results: list[Result] = []
    theme = ""
    for one in chosen:
        if one.theme != theme:
            stage.end_theme()
            theme = one.theme
        results.append(play_one(stage, one))
        print(row(results[-1]), flush=True)
    stage.end_theme()
    return results


def play_one(stage: Stage, one: Behaviour) -> Result:
    """Play one behaviour."""
    begin = time.monotonic()
    try:
        lacking = [name for name in one.needs if not _installed(name)]
        if lacking:
            raise Skip(f"needs {', '.join(lacking)}")
        good, seen = one.play(stage)
        verdict = "pass" if good else "FAIL"
    except Skip as reason:
        seen, verdict = reason, "skip"
    except Exception as error:  # a behaviour that breaks was not seen
        seen, verdict = f"{type(error).__name__}: {error}", "FAIL"
    return Result(one, " ".join(str(seen).split()), verdict, time.monotonic() - begin)


def row(result: Result) -> str:
    """A row of the table, in Markdown."""
    one = result.behaviour
    cells = (one.theme, one.name, one.expected, result.seen[:300], result.verdict, f"{result.seconds:.1f} s")
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


HEAD = "| theme | behaviour | expected | seen | verdict | time |\n|---|---|---|---|---|---|"


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
