"""`cabs bench`: benchmarks against peers, side by side in one run, and measurements of this project alone."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import click

BENCHES = ("solver", "replay", "embed")
MEASUREMENTS = (
    "oracles",
    "study",
    "readings",
    "theory",
    "drift",
    "logs",
    "log_alone",
)  # long, without peers: not part of `all`
#: of a deployed router: time of a decision, time added to a call, kill -9 under load, a large log, a simulated deployment
DEPLOYED = ("decision", "serve", "chaos", "large_log", "deployment")
ORCHESTRATION = ("backfill",)  # Dagster's overhead, on a finished pool


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument(
    "what", type=click.Choice((*BENCHES, *MEASUREMENTS, *DEPLOYED, *ORCHESTRATION, "all")), default="all"
)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here."
)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
def bench(what: str, json_path: Path | None, rest: tuple[str, ...]) -> None:
    """Run a benchmark or a measurement and print its figures.

    Against peers (extra [peers]): `solver`, `replay` and `embed`; `all` runs these three.

    On outcome tables: `oracles` compares the oracles with simple predictors, `study` all policies over splits and
    stress conditions, `readings` readings of the paper; `drift` plays models that change under their names, `logs`
    measures what a router's own log teaches the next one, `log_alone` what a log teaches without any table.

    `theory` measures what the paper's theorems predict, on generated data.

    With a router (--router DIR): `decision` times decisions from the prompt's text on, `serve` what `cabs serve` adds
    to a call, `chaos` kills servers under load, `large_log` what a log of a million decisions costs, `deployment` routes a pool's test split with late and missing rewards
    and an outage.

    `backfill` (--pool NAME) times a backfill of a finished pool in a stock `dagster dev`.

    Further options go to the measurement: `cabs bench replay --sweep` also runs a whole pool's sweep, and `cabs bench
    study` takes --pool NAME --conditions clean shift --split-seeds 0 1 2.
    """
    with_options = ("replay", *MEASUREMENTS, *DEPLOYED, *ORCHESTRATION)
    if rest and what not in with_options:
        raise click.UsageError(f"cabs bench {what} takes no further arguments: {' '.join(rest)}")
    if what in with_options:
        module = importlib.import_module(f"cabs_core.bench.{what}")
        module.main(str(json_path) if json_path else None, argv=rest)
        return
    names = BENCHES if what == "all" else (what,)
    figures = {}
    for name in names:
        module = importlib.import_module(f"cabs_core.bench.{name}")
        target = json_path if what != "all" else None
        figures[name] = module.main(str(target) if target else None)
    if what == "all" and json_path:
        from cabs_core.atomic import write_text

        write_text(json_path, json.dumps(figures, indent=1, default=float))
