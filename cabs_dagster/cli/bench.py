"""`cabs bench`: benchmarks against the peers, as ratios measured side by side in one run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click

BENCHES = ("solver", "replay", "embed")
MEASUREMENTS = ("oracles",)  # of this project against itself, long, on real outcomes: not part of `all`


@click.command()
@click.argument("what", type=click.Choice((*BENCHES, *MEASUREMENTS, "all")), default="all")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
def bench(what: str, json_path: Path | None) -> None:
    """Measure the solver, the replay or the embedding against their peers (extra [peers]), or the oracles against
    simple predictors on the real outcome tables."""
    names = BENCHES if what == "all" else (what,)
    figures = {}
    for name in names:
        module = importlib.import_module(f"cabs_core.bench.{name}")
        target = json_path if what != "all" else None
        figures[name] = module.main(str(target) if target else None)
    if what == "all" and json_path:
        from cabs_core.atomic import write_text

        write_text(json_path, json.dumps(figures, indent=1, default=float))
