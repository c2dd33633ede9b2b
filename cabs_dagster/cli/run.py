"""`cabs run` and `cabs plan`."""

from __future__ import annotations

import time

import click


def parse_rhos(text: str | None, allowed: tuple[float, ...]) -> tuple[float, ...]:
    """`"0,50,900"` or `"low"` / `"medium"` / `"high"` as rhos of the pool; None: all of them."""
    from cabs_core.catalog import REGIMES, regime_of
    from cabs_core.errors import PoolError

    if not text:
        return ()
    found: list[float] = []
    for word in text.replace(" ", "").split(","):
        if word in REGIMES:
            found += [r for r in allowed if regime_of(r) == word]
            continue
        try:
            rho = float(word)
        except ValueError:
            raise click.BadParameter(
                f"{word!r} is not a number; write --rho 0,50,900 or --rho low,high"
            ) from None
        if rho not in allowed:
            raise PoolError(
                f"rho {rho:g} is not among the pool's replay.rhos: {', '.join(f'{r:g}' for r in allowed)}"
            )
        found.append(rho)
    return tuple(sorted(set(found)))


def parse_policies(text: str | None) -> tuple[str, ...]:
    """`"lin_ucb,cabs_mix"` as policy names, each checked."""
    from cabs_core.catalog import check_policy_name

    return tuple(check_policy_name(word) for word in (text or "").replace(" ", "").split(",") if word)


@click.command()
@click.option("--pool", required=True, help="Name of the model pool (see `cabs pool list`).")
@click.option(
    "--rho", "rhos", help="Cost sensitivities, such as 0,50,900 or low,high. Default: all of the pool's."
)
@click.option(
    "--policies", help="Policies, such as lin_ucb,cabs_d_linear@literal. Default: all of the pool's."
)
@click.option("--force", is_flag=True, help="Compute everything again although nothing changed.")
@click.option(
    "--no-verify", is_flag=True, help="Do not play one trial of every replay again (check `reproducible`)."
)
@click.option("--no-report", is_flag=True, help="Stop after the replays.")
def run(
    pool: str, rhos: str | None, policies: str | None, force: bool, no_verify: bool, no_report: bool
) -> None:
    """Materialise the chain of a pool in this process, recorded in the Dagster instance.

    What is there and up to date is not made again. Interrupt it at any time: the next run goes on from there.
    """
    from cabs_core.catalog import check_policy_name
    from cabs_core.pools import find_pool

    started = time.perf_counter()
    pool_file = find_pool(pool)
    chosen_rhos = parse_rhos(rhos, pool_file.pool.replay.rhos)
    chosen = parse_policies(policies)
    for name in chosen:
        if name not in pool_file.pool.policies:
            check_policy_name(name)
            raise click.BadParameter(
                f"{name} is not among the policies of pool {pool}: {', '.join(pool_file.pool.policies)}. "
                "Add it to the pool file."
            )
    click.echo(f"pool {pool}{' (synthetic)' if pool_file.pool.synthetic else ''}: {pool_file.path}")

    from cabs_dagster.instance import open_instance
    from cabs_dagster.launcher import recover
    from cabs_dagster.running import Progress, Runner, keep_out_of_collections

    with open_instance() as instance:
        for run_id in recover(instance):
            click.echo(f"  run {run_id} had been killed: marked as failed, its slots freed")
        progress = Progress(notify=_printer())
        runner = Runner(instance, progress=progress, verify=not no_verify)
        keep_out_of_collections()
        runner.store.remove_leftovers()
        try:
            runner.run_pool(pool_file, rhos=chosen_rhos, policies=chosen, force=force, report=not no_report)
        except KeyboardInterrupt:
            click.echo("\ninterrupted: what is finished stays; run the same command to go on", err=True)
            raise SystemExit(130) from None
    _summary(runner, pool, progress, time.perf_counter() - started, not no_report)


def _printer():
    def notify(event: str, text: str, seconds: float) -> None:
        if event == "start":
            click.echo(f"  {text} ...", nl=False)
        elif event == "progress":
            click.echo(f" {text} ...", nl=False)
        elif event == "failed":
            click.echo(" failed")
        elif event == "done":
            click.echo(f" {seconds:.1f} s")
        else:
            click.echo(f"  {text}")

    return notify


def _summary(runner, pool: str, progress, seconds: float, report: bool) -> None:
    from cabs_dagster.pages import report_parts

    parts = ", ".join(f"{name} {value:.1f} s" for name, value in progress.seconds.items())
    click.echo(f"{len(progress.run_ids)} runs in {seconds:.1f} s ({parts})")
    if report:
        record = runner.store.record(report_parts(pool))
        if record is not None and record.summary.get("missing"):
            click.secho(record.summary["missing"], fg="yellow")
        click.secho(f"report: {runner.store.location((*report_parts(pool), 'index.html'))}", bold=True)


@click.command()
@click.option("--pool", required=True, help="Name of the model pool.")
def plan(pool: str) -> None:
    """Show what `cabs run` would make and why, without making it."""
    from collections import Counter

    from cabs_core.pools import find_pool
    from cabs_dagster.planning import Chain
    from cabs_dagster.stages import POOL_STAGES
    from cabs_dagster.storage import ArtifactStore

    chain = Chain(ArtifactStore(), find_pool(pool))
    for name in POOL_STAGES:
        status = chain.status(chain.stage(name))
        click.echo(f"{name:20s} {status.state:8s} {'; '.join(status.reasons)}")
    counts: dict[str, Counter] = {}
    reasons: dict[str, set[str]] = {}
    for target in chain.replays():
        status = chain.status(target)
        counts.setdefault(target.policy or "", Counter())[status.state] += 1
        reasons.setdefault(target.policy or "", set()).update(status.reasons)
    for policy, states in counts.items():
        text = ", ".join(f"{count} {state}" for state, count in states.items())
        click.echo(f"replay/{policy:30s} {text}  {'; '.join(sorted(reasons[policy]))}")
