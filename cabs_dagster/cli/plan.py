"""The command `cabs plan`, which imports no Dagster so that the answer comes at once."""

import json
from collections import Counter
from dataclasses import asdict

import click

from cabs_core.pipeline.commands.options import takes_pool


@click.command()
@takes_pool("Name of the model pool; `cabs plan NAME` is the same.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: [{target, partition, state, reasons}].")
def plan(pool: str, as_json: bool) -> None:
    """Show what `cabs run` would make and why, without making it: stages, replays, marts, pages."""
    from cabs_core.data.pools.registry import active_pool, active_pools
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_dagster.due import planner_of

    planner = planner_of(ArtifactStore(), active_pools()[0])
    if pool not in planner.chains:
        active_pool(pool)  # says why there is none
    entries = planner.plan(pool)
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    grouped: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        if "|" in entry.partition:
            name = f"replay of {entry.target.removeprefix('replay/')}"
        else:
            name = entry.target
        grouped.setdefault(name, []).append(number)
    for name, numbers in grouped.items():
        states = Counter(entries[n].state for n in numbers)
        reasons = dict.fromkeys(reason for n in numbers for reason in entries[n].reasons)
        text = ", ".join(
            f"{count} {state}" if "replay of" in name else state for state, count in states.items()
        )
        click.echo(f"{name:36s} {text:10s} {'; '.join(reasons)}")
    if planner.chains[pool].pool.collected:
        from cabs_core.data.collect.plan import plan_in_words

        click.echo("\n".join(["", *plan_in_words(planner.chains[pool].pool_file)]))
