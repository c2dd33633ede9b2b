"""`cabs run` and `cabs plan`."""

from __future__ import annotations

import time

import click

from cabs_dagster.cli.options import parse_policies, parse_rhos, pool_name


@click.command()
@click.argument("name", required=False)
@click.option("--pool", help="Name of the model pool (see `cabs pool list`); `cabs run NAME` is the same.")
@click.option(
    "--rho", "rhos", help="Cost sensitivities, such as 0,50,900 or low,high. Default: all of the pool's."
)
@click.option(
    "--policies", help="Policies, such as lin_ucb,cabs_d_linear@literal. Default: all of the pool's."
)
@click.option("--force", is_flag=True, help="Compute everything again although nothing changed.")
@click.option("--no-report", is_flag=True, help="Stop after the replays.")
def run(
    name: str | None, pool: str | None, rhos: str | None, policies: str | None, force: bool, no_report: bool
) -> None:
    """Materialise the chain of a pool in this process, recorded in the Dagster instance.

    What is there and up to date is not made again. Interrupt it at any time: the next run goes on from there.
    """
    from cabs_core.atomic import remove_leftovers
    from cabs_core.pools.registry import active_pool

    started = time.perf_counter()
    pool_file = active_pool(pool_name(name, pool))
    chosen_rhos = parse_rhos(rhos, pool_file.pool.replay.rhos)
    chosen = parse_policies(policies, pool_file.pool)
    mark = " (synthetic)" if pool_file.pool.synthetic else ""
    click.echo(f"pool {pool_file.pool.name}{mark}: {pool_file.path}")

    from cabs_dagster.cli.runner import Runner, until_interrupted
    from cabs_dagster.instance import open_instance
    from cabs_dagster.instance.recover import recover

    with open_instance() as instance:
        for run_id in recover(instance):
            click.echo(f"  run {run_id} had been killed: marked as failed")
        runner = Runner(instance, notify=lambda text: click.echo(f"  {text}"))
        remove_leftovers(runner.store.root)

        def work() -> None:
            runner.run_pool(pool_file, rhos=chosen_rhos, policies=chosen, force=force, report=not no_report)

        until_interrupted(work, instance)
    _summary(runner, pool_file.pool.name, time.perf_counter() - started, not no_report)


def _summary(runner, pool: str, seconds: float, report: bool) -> None:
    from cabs_core.chain.pages import page_parts

    click.echo(f"{len(runner.launched)} runs in {seconds:.1f} s")
    if report:
        record = runner.store.record(page_parts(pool))
        if record is not None and record.summary.get("missing"):
            click.secho(record.summary["missing"], fg="yellow")
        click.secho(f"report: {runner.store.location((*page_parts(pool), 'index.html'))}", bold=True)


@click.command()
@click.argument("name", required=False)
@click.option("--pool", help="Name of the model pool; `cabs plan NAME` is the same.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: [{target, state, reasons}].")
def plan(name: str | None, pool: str | None, as_json: bool) -> None:
    """Show what `cabs run` would make and why, without making it."""
    import json
    from collections import Counter

    from cabs_core.artifacts import POOL_STAGES, ArtifactStore, Chain
    from cabs_core.pools.registry import active_pool

    chain = Chain(ArtifactStore(), active_pool(pool_name(name, pool)))
    if as_json:
        found = [
            {
                "target": s.target.name,
                "partition": s.target.partition,
                "state": s.state,
                "reasons": list(s.reasons),
            }
            for s in chain.overview()
        ]
        click.echo(json.dumps(found, indent=1))
        return
    for stage in POOL_STAGES:
        status = chain.status(chain.stage(stage))
        click.echo(f"{stage:20s} {status.state:8s} {'; '.join(status.reasons)}")
    counts: dict[str, Counter] = {}
    reasons: dict[str, dict[str, None]] = {}
    for target in chain.replays():
        status = chain.status(target)
        counts.setdefault(target.policy or "", Counter())[status.state] += 1
        reasons.setdefault(target.policy or "", {}).update(dict.fromkeys(status.reasons))
    for policy, states in counts.items():
        text = ", ".join(f"{count} {state}" for state, count in states.items())
        click.echo(f"replay of {policy:27s} {text}  {'; '.join(reasons[policy])}")
