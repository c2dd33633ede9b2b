"""`cabs pool add | list | show | retire | restore`."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cabs_core.base.command import HelpGroup
from cabs_core.base.errors import CabsError
from cabs_core.data.pools.completion import complete_pool

if TYPE_CHECKING:
    from cabs_core.data.outcomes import Outcomes
    from cabs_core.data.pool_files import PoolFile


@click.group(cls=HelpGroup)
def pool() -> None:
    """Model pools: add, list, show, retire, restore."""


@pool.command("add")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--trust-commands", is_flag=True, help="Approve the commands of collect.scores without being asked."
)
@click.option(
    "--today",
    help="The model that answers your requests today, or none. Default: asked for; in a script, a guess.",
)
def add(file: Path, trust_commands: bool, today: str | None) -> None:
    """Validate a pool file, read its table, copy it to the pool folder and register its partitions.

    Shows what the table holds, and refuses what `cabs run` would refuse. Sources that are downloaded are not
    read. Commands that score answers are printed, and run only if you approve them: asked for once, and again
    after each change of the command or of its file.
    """
    from cabs_core.base.catalog.policies import split_name
    from cabs_core.base.catalog.roles import BEST_SINGLE
    from cabs_core.base.catalog.sources import sources
    from cabs_core.data.pools.find import load_pool_file
    from cabs_core.data.pools.registry import add_pool
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_dagster.instance import open_instance
    from cabs_dagster.partitions import register

    given = load_pool_file(file)
    if given.pool.collected:
        from cabs_core.data.collect.plan import plan_in_words

        click.echo("\n".join(plan_in_words(given)))
        _approve_commands(given, trust_commands)
    elif not sources()[given.pool.source.kind].remote:
        from cabs_core.data.validation.overview import overview

        try:
            seen = overview(given)
        except CabsError:
            _show_receipt(given)  # what was left out may be why the rest does not do
            raise
        click.echo(seen.text)
        if given.pool.source.kind == "file":
            today = _todays_model(given, seen.outcomes, today)
    added = add_pool(file, today)
    with open_instance() as instance:
        register(instance, ArtifactStore(), added.pool_file.pool.name)
    click.echo(f"{added.verb} pool {added.pool_file.pool.name}: {added.pool_file.path}")
    for change in added.changes:
        click.echo(f"  {change}")
    if not given.pool.logged and all(split_name(p)[0] != BEST_SINGLE for p in given.pool.policies):
        click.secho(
            f"note: policies lacks {BEST_SINGLE}, so no single model is replayed beside the routers: the "
            "tables of policies and the leaderboard cannot say what a router gains over it. Add "
            f"{BEST_SINGLE}",
            fg="yellow",
        )
    verb = "collect" if given.pool.collected else "run"
    click.echo(f"next: cabs {verb} --pool {added.pool_file.pool.name}")


def _show_receipt(given: PoolFile) -> None:
    """Print what was read of a pool's log, what was left out and what was not read, if the pool has a log."""
    from cabs_core.data.outcomes.from_logs import receipt_of_pool

    with suppress(CabsError):  # the error of the overview is shown
        receipt = receipt_of_pool(given)
        if receipt is not None:
            click.echo(str(receipt))


def _todays_model(given: PoolFile, table: Outcomes, today: str | None) -> str | None:
    """Return the model that the pool file is to name as today's, from the option or from the user's answer.

    `none` says that no model is in use. None leaves the file as it is, because the file names a model
    already, or because nobody can be asked and a guess is printed.

    Raises:
        UsageError: the option names neither a model of the table nor `none`, or differs from the file.
    """
    from cabs_core.data.pool_files.pool import TODAY_NONE

    names = [*table.arms, TODAY_NONE]
    if given.pool.today is not None:
        if today not in (None, given.pool.today):
            raise click.UsageError(f"--today {today}: the file says today: {given.pool.today}")
        return None
    if today is not None:
        if today not in names:
            raise click.UsageError(f"--today {today}: expected one of {', '.join(names)}")
        return today
    dearest = table.arms[int(table.means[1].argmax())]
    if sys.stdin.isatty():
        chosen: str = click.prompt(
            "Which model answers your requests today?", type=click.Choice(names), default=dearest
        )
        return chosen
    click.echo(f"today: {dearest}, a guess: the dearest model (--today MODEL, or today: in the file)")
    return None


def _approve_commands(given: PoolFile, trust_commands: bool) -> None:
    """Ask the user to approve the commands of a pool file that were not approved before as they are now.

    Raises:
        UntrustedCommand: the user did not approve them.
    """
    from cabs_core.data.collect.trust import UntrustedCommand, trust, untrusted

    programs = untrusted(given)
    if not programs:
        return
    click.echo("collect.scores names commands that run on this machine with your rights, for every answer:")
    for program in programs:
        click.echo(f"  {program.in_words}")
    approved = trust_commands
    if not approved:
        try:
            approved = click.confirm("Approve them?")
        except click.Abort:  # nobody is there to answer
            approved = False
    if not approved:
        raise UntrustedCommand(
            f"{given.path}: its commands were not approved, so the pool was not added. In a script, "
            "--trust-commands approves them"
        )
    trust(programs)


@pool.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: [{name, source, models, policies, rhos, ...}]."
)
def list_(as_json: bool) -> None:
    """List all pools with their source and size; invalid files are reported below."""
    from cabs_core.data.pools.find import list_pools
    from cabs_core.data.pools.registry import retired

    pools, errors = list_pools()
    gone = retired()
    if as_json:
        records = [
            {
                "name": item.pool.name,
                "source": item.pool.source.kind,
                "models": item.pool.arm_names(),
                "policies": item.pool.policies,
                "rhos": item.pool.replay.rhos,
                "synthetic": item.pool.synthetic,
                "shipped": item.shipped,
                "retired": item.pool.name in gone,
                "path": str(item.path),
                "problems": item.problems,
            }
            for item in pools
        ]
        click.echo(json.dumps(records, indent=1))
    for item in [] if as_json else pools:
        p = item.pool
        marks = [
            m
            for m, on in (("synthetic", p.synthetic), ("shipped", item.shipped), ("retired", p.name in gone))
            if on
        ]
        models = p.arm_names()
        if models:
            size = f"{len(models)} models"
        else:
            size = "all models"
        click.echo(
            f"{p.name:28s} {p.source.kind:12s} {size:12s} {len(p.policies):3d} policies x "
            f"{len(p.replay.rhos):2d} rhos  {', '.join(marks)}"
        )
        for problem in item.problems:
            click.secho(f"  {problem}", fg="yellow")
    for error in errors:
        click.secho(f"left out: {error}", fg="yellow", err=True)


@pool.command("show")
@click.argument("name", shell_complete=complete_pool)
def show(name: str) -> None:
    """Show a pool's settings, the state of every stage and the number of fresh replays.

    Settings that have their default value are left out. A pool with a log has no replays.
    """
    from cabs_core.data.pools.find import find_pool
    from cabs_core.pipeline.artifacts import ArtifactStore, Chain

    pool_file = find_pool(name)
    click.echo(f"# {pool_file.path}")
    click.echo(json.dumps(pool_file.pool.model_dump(mode="json", exclude_defaults=True), indent=1))
    chain = Chain(ArtifactStore(), pool_file)
    for stage in chain.stages:
        click.echo(f"{stage:20s} {chain.status(chain.stage(stage)).state}")
    states = [chain.status(target).state for target in chain.replays()]
    if states:  # of a log there are none
        click.echo(f"{'replays':20s} {states.count('fresh')} of {len(states)} fresh")


@pool.command("retire")
@click.argument("name", shell_complete=complete_pool)
@click.option("--delete", is_flag=True, help="Delete its artifacts instead of setting them aside.")
def retire(name: str, delete: bool) -> None:
    """Take a pool out of runs, marts, reports and the leaderboard.

    Its artifacts are set aside; `restore` brings them back.
    """
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.pipeline.retention import retire_pool

    retire_pool(name, ArtifactStore(), delete=delete)
    _make_results()
    if delete:
        click.echo(f"pool {name} is retired, and its artifacts are deleted")
    else:
        click.echo(f"pool {name} is retired; `cabs pool restore {name}` takes it back")


@pool.command("restore")
@click.argument("name", shell_complete=complete_pool)
def restore(name: str) -> None:
    """Take a retired pool back, with its artifacts."""
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.pipeline.retention import restore_pool

    restore_pool(name, ArtifactStore())
    _make_results(name)
    click.echo(f"pool {name} is active again")


def _make_results(name: str = "") -> None:
    """Register the partitions of the active pools, and make the marts, reports and leaderboard that are due.

    Args:
        name: a pool that becomes active. Empty if there is none.
    """
    from cabs_dagster.cli.runner import CommandRunner, run_until_interrupted
    from cabs_dagster.partitions import register

    def work(runner: CommandRunner) -> None:
        register(runner.instance, runner.store, name)
        runner.make_results()

    run_until_interrupted(work)
