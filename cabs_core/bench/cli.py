"""`cabs bench`: benchmarks against peers in one run with them, and timings of a router."""

from __future__ import annotations

import importlib
import json
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

    Further options go to the benchmark: `cabs bench replay --sweep` also runs a whole pool's sweep. The studies
    behind docs/measurements.md are scripts in `benchmarks/` of the repository.
    """
    if what not in NAMES:
        raise click.UsageError(
            f"no benchmark is called {what!r}: there are {', '.join(NAMES)}. Studies are scripts of the repository: "
            "`python -m benchmarks.study` from a checkout, and others beside it"
        )
    if rest and what == "all":
        raise click.UsageError(f"cabs bench all takes no further arguments: {' '.join(rest)}")
    names = PEERS if what == "all" else (what,)
    figures = {name: importlib.import_module(f"cabs_core.bench.{name}").main(argv=rest) for name in names}
    if json_path:
        from cabs_core.atomic import write_text

        content = figures if what == "all" else figures[what]
        write_text(json_path, json.dumps(content, indent=1, default=float) + "\n")
