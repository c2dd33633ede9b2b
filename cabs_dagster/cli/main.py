"""Entry point of `cabs`: the group and how errors are shown. Commands live in modules of their own."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import click

from cabs_core.base.command import CommandGroup


class _Group(CommandGroup):
    """Group of the commands of `cabs`, which shows errors on the streams that the command began with.

    `CommandGroup` says which errors end with one message. Any other error ends with its traceback.
    """

    def around(self) -> AbstractContextManager[None]:
        """Return `_own_output()`, in which the group runs a command."""
        return _own_output()


@contextmanager
def _own_output() -> Iterator[None]:
    """Restore standard output and error at the end.

    While a step runs, Dagster sends both to a log file, and it leaves them there when the disk is full.
    """
    kept: list[tuple[int, int]] = []
    for number in (1, 2):
        with suppress(OSError):  # closed
            kept.append((os.dup(number), number))
    try:
        yield
    finally:
        for copy, number in kept:
            os.dup2(copy, number)
            os.close(copy)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="cabs-routing")
def main() -> None:
    """Correlation-aware contextual bandits for LLM routing, as a Dagster project.

    \f
    Before a command runs, the telemetry of Dagster and of Hugging Face is switched off, unless the
    environment sets it. click shows only the text above as help.
    """
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def _register() -> None:
    """Add all commands to the group, in the order in which the help lists them."""
    from cabs_core.algorithms.policies.cli import policies
    from cabs_core.pipeline.commands.cli import data, evaluate, prune, report
    from cabs_core.pipeline.commands.collect_cli import collect, judge
    from cabs_core.pipeline.commands.export_cli import export
    from cabs_core.router.cli import feedback, log, rollback, route
    from cabs_core.router.doctor_cli import doctor
    from cabs_core.router.joining_cli import router
    from cabs_dagster.cli.check import check
    from cabs_dagster.cli.deploy import deploy
    from cabs_dagster.cli.plan import plan
    from cabs_dagster.cli.pool import pool
    from cabs_dagster.cli.run import run
    from cabs_dagster.cli.ui import instance, ui
    from cabs_server.cli import serve

    for command in (
        run,
        plan,
        collect,
        judge,
        pool,
        policies,
        data,
        check,
        report,
        ui,
        instance,
        prune,
    ):
        main.add_command(command)
    for command in (export, deploy, router, route, feedback, doctor, log, rollback, serve, evaluate):
        main.add_command(command)


_register()
