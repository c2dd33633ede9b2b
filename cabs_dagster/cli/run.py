"""`cabs run`."""

import json
import time

import click

from cabs_core.base.garbage import collect_rarely
from cabs_core.pipeline.commands.options import parse_policies, parse_rhos, policies_option, takes_pool
from cabs_dagster.cli.interrupt import end, on_signal


@click.command()
@takes_pool("Name of the model pool (see `cabs pool list`); `cabs run NAME` is the same.")
@click.option(
    "--rho", "rhos", help="Cost sensitivities, such as 0,50,900 or low,high. Default: all of the pool's."
)
@policies_option
@click.option("--force", is_flag=True, help="Compute everything again although nothing changed.")
@click.option("--no-report", is_flag=True, help="Stop after the replays.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: {pool, seconds, runs, report, missing, verdict, why, newest, goal}.",
)
@on_signal(end)
def run(
    pool: str, rhos: str | None, policies: str | None, force: bool, no_report: bool, as_json: bool
) -> None:
    """Materialise the chain of a pool in this process, recorded in the Dagster instance.

    What is there and up to date is not made again. Interrupt it at any time: the next run goes on from there.
    Progress goes to the standard error output.
    """
    collect_rarely()
    from cabs_core.data.pools.registry import active_pool
    from cabs_core.pipeline.pages import page_parts

    started = time.perf_counter()
    pool_file = active_pool(pool)
    if pool_file.pool.logged and (rhos or policies):
        raise click.UsageError("a log is not replayed: `cabs evaluate` takes policies and rhos")
    chosen_rhos = parse_rhos(rhos, pool_file.pool.replay.rhos)
    chosen = parse_policies(policies, pool_file.pool)
    mark = " (synthetic)" if pool_file.pool.synthetic else ""
    click.echo(f"pool {pool_file.pool.name}{mark}: {pool_file.path}", err=as_json)

    from cabs_dagster.cli.runner import run_until_interrupted

    runner = run_until_interrupted(
        lambda runner: runner.run_pool(
            pool_file, rhos=chosen_rhos, policies=chosen, force=force, report=not no_report
        )
    )
    seconds = time.perf_counter() - started
    parts = page_parts(pool_file.pool.name)
    if no_report:
        record = None
    else:
        record = runner.store.record(parts)
    page = None
    said = dict.fromkeys(("missing", "verdict", "why", "newest", "goal"), "")
    if record is not None:
        page = runner.store.location((*parts, "index.html"))
        said |= {name: record.summary.get(name, "") for name in said}
    if as_json:
        runs = [
            {"job": job, "partition": key, "assets": list(assets)} for job, key, assets in runner.launched
        ]
        outcome = {
            "pool": parts[-1],
            "seconds": round(seconds, 2),
            "runs": runs,
            "report": page,
            **said,
        }
        click.echo(json.dumps(outcome, indent=1))
        return
    click.echo(f"{len(runner.launched)} runs in {seconds:.1f} s")
    if said["missing"]:
        click.secho(said["missing"], fg="yellow")
    if said["verdict"]:
        click.secho(said["verdict"], bold=True)
    for name in ("why", "newest", "goal"):
        if said[name]:
            click.echo(said[name])
    if page:
        click.secho(f"report: {page}", bold=True)
