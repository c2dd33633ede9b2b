"""Tools of the scripts in this folder: command-line options, figures as JSON, Markdown tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_text
from cabs_core.base.paths import cabs_home


class Script(argparse.ArgumentParser):
    """Command-line options of `python -m benchmarks.NAME`, with the docstring as the help. Every script has
    `--json FILE`.

    Args:
        file: `__file__` of the script.
        doc: `__doc__` of the script.
        pools: default of `--pool NAME ...`, for a script that has this option.
        split_seeds: default of `--split-seeds N ...`, for a script that has this option.
        work: True adds `--work DIR`, the folder with the problems of `python -m benchmarks.study --protocol
            field`.
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
    """Return the name of a script as `python -m` takes it: `benchmarks.study`, `benchmarks.speed.solver`."""
    return ".".join(
        ("benchmarks", *file.resolve().relative_to(Path(__file__).parent.resolve()).with_suffix("").parts)
    )


def write_figures(figures: Any, path: Path | None) -> None:
    """Write the figures as JSON to the path of `--json`. Without a path nothing is written."""
    if path is not None:
        write_text(path, json.dumps(figures, indent=1, default=float) + "\n")


def head(*columns: str) -> str:
    """Return the two lines above the rows of a Markdown table."""
    return f"{row(*columns)}\n{'|---' * len(columns)}|"


def row(*cells: object) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"
