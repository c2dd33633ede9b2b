"""`cabs bench`: benchmarks against peers in one run with them, and timings of a router."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import click

PEERS = ("solver", "replay", "embed")  # `all` runs these
NAMES = (*PEERS, "decision", "serve", "all")


@click.command(
    context_settings={"ignore_unknown_options": True},
    short_help="Benchmarks: speed beside peers, timings of a router.",
)
@click.argument(
    "what", default="all", metavar=f"[{'|'.join(NAMES)}]",
    shell_complete=lambda context, argument, start: [name for name in NAMES if name.startswith(start)],
)  # fmt: skip
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def bench(what: str, json_path: Path | None, rest: tuple[str, ...]) -> None:
    """Run a benchmark and print its figures.

    Against peers (extra [peers]): `solver`, `replay` and `embed`; `all` runs these three.

    With a router (--router DIR): `decision` times decisions from the prompt's text on, `serve` what `cabs serve` adds
    to a call.

    Further options go to the benchmark: `cabs bench replay --sweep` also runs a whole pool's sweep. In a checkout, the
    studies behind docs/measurements.md run too: `cabs bench study` is `python -m benchmarks.study`.
    """
    if rest and what == "all":
        raise click.UsageError(f"cabs bench all takes no further arguments: {' '.join(rest)}")
    names = PEERS if what == "all" else (what,)
    figures = {name: importlib.import_module(_module(name)).main(argv=rest) for name in names}
    if json_path:
        from cabs_core.atomic import write_text

        content = figures if what == "all" else figures[what]
        write_text(json_path, json.dumps(content, indent=1, default=float) + "\n")


def _module(name: str) -> str:
    """Where the `main` of a benchmark is; UsageError for a name that is none."""
    if name in NAMES:
        return f"cabs_core.bench.{name}"
    checkout = Path(__file__).parents[2]
    if name.isidentifier() and (checkout / "benchmarks" / f"{name}.py").is_file():
        sys.path.insert(0, str(checkout))  # the installed package knows its own folders alone
        return f"benchmarks.{name}"
    raise click.UsageError(
        f"no benchmark is called {name!r:.60}: there are {', '.join(NAMES)}, and in a checkout of the repository the "
        "scripts of benchmarks/"
    )
