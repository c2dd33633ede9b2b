"""`cabs bench`: benchmarks against peers in one run with them, timings of a router, and the study of policies."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click

PEERS = ("solver", "replay", "embed")  # `all` runs these
BENCHES = (*PEERS, "study", "theory", "decision", "serve")


@click.command(
    context_settings={"ignore_unknown_options": True},
    short_help="Benchmarks: speed beside peers, and studies.",
)
@click.argument("what", type=click.Choice((*BENCHES, "all")), default="all")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def bench(what: str, json_path: Path | None, rest: tuple[str, ...]) -> None:
    """Run a benchmark or a measurement and print its figures.

    Against peers (extra [peers]): `solver`, `replay` and `embed`; `all` runs these three.

    `study` compares policies on outcome tables over splits and stress conditions. It is restartable and takes
    --pool NAME --conditions clean shift --split-seeds 0 1 2. `theory` measures what the paper's theorems predict, on
    generated data.

    With a router (--router DIR): `decision` times decisions from the prompt's text on, `serve` what `cabs serve` adds
    to a call.

    Further options go to the benchmark: `cabs bench replay --sweep` also runs a whole pool's sweep. The other studies
    behind docs/measurements.md are scripts in `benchmarks/` of the repository.
    """
    if rest and what == "all":
        raise click.UsageError(f"cabs bench all takes no further arguments: {' '.join(rest)}")
    names = PEERS if what == "all" else (what,)
    figures = {name: importlib.import_module(f"cabs_core.bench.{name}").main(argv=rest) for name in names}
    if json_path:
        from cabs_core.atomic import write_text

        content = figures if what == "all" else figures[what]
        write_text(json_path, json.dumps(content, indent=1, default=float) + "\n")
