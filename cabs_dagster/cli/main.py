"""Entry point of `cabs`: the group and how errors are shown. Commands live in modules of their own."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from cabs_core.errors import CabsError, shortened

_LONGEST = 8000


class _Group(click.Group):
    """Shows the project's own errors, and files that the system refuses, as one message and exit code 2.

    `CABS_TRACEBACK=1` shows where they arose.
    """

    def invoke(self, ctx: click.Context):
        try:
            with _own_output():
                return super().invoke(ctx)
        except (CabsError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError) and not isinstance(error, CabsError):
                if error.errno == errno.EPIPE:  # click knows what to do
                    raise
                place = f"{error.filename} cannot be used" if error.filename else "the system refused"
                text = f"{place}: {error.strerror or error}"
            if os.environ.get("CABS_TRACEBACK"):
                raise
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(shortened(text.strip(), _LONGEST), err=True)
            sys.exit(2)


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
    """Correlation-aware contextual bandits for LLM routing, as a Dagster project."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def _register() -> None:
    from cabs_core.bench.cli import bench
    from cabs_core.chain.cli import data, evaluate, plan, prune, report
    from cabs_core.chain.collect_cli import collect, judge
    from cabs_core.router.cli import doctor, export, feedback, log, rollback, route, serve
    from cabs_dagster.cli.check import check
    from cabs_dagster.cli.pool import pool
    from cabs_dagster.cli.run import run
    from cabs_dagster.cli.ui import instance, ui

    for command in (run, plan, collect, judge, pool, data, check, report, bench, ui, instance, prune):
        main.add_command(command)
    for command in (export, route, feedback, doctor, log, rollback, serve, evaluate):
        main.add_command(command)


_register()
