"""What the scripts of this folder share: their options, their figures as JSON, Markdown tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_text
from cabs_core.base.paths import cabs_home


class Script(argparse.ArgumentParser):
    """Options of `python -m benchmarks.NAME`, its docstring as the help; every script has `--json FILE`.

    Args:
        file, doc: `__file__` and `__doc__` of the script.
        pools: the default of `--pool NAME ...`, for a script that has it.
        split_seeds: the default of `--split-seeds N ...`, likewise.
        work: whether it has `--work DIR`, where the problems of `python -m benchmarks.study --protocol field`
            are.
    """

    def __init__(
        self,
        file: str,
        doc: str | None,
        pools: Iterable[str] = (),
        split_seeds: Sequence[int] = (),
        work: bool = False,
    ):
        super().__init__(
            prog=f"python -m {_module(Path(file))}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--json", type=Path, help="write the figures here")
        if pools:
            self.add_argument("--pool", nargs="+", default=list(pools), metavar="NAME")
        if split_seeds:
            self.add_argument("--split-seeds", nargs="+", type=int, default=list(split_seeds))
        if work:
            self.add_argument("--work", type=Path, default=cabs_home() / "study-field")


def _module(file: Path) -> str:
    """Name of a script as `python -m` takes it: `benchmarks.study`, `benchmarks.speed.solver`."""
    return ".".join(
        ("benchmarks", *file.resolve().relative_to(Path(__file__).parent.resolve()).with_suffix("").parts)
    )


def write_figures(figures: Any, path: Path | None) -> None:
    """The figures as JSON, where `--json` asked for them."""
    if path is not None:
        write_text(path, json.dumps(figures, indent=1, default=float) + "\n")


def head(*columns: str) -> str:
    """The two lines above the rows of a Markdown table."""
    return f"{row(*columns)}\n{'|---' * len(columns)}|"


def row(*cells: object) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"
