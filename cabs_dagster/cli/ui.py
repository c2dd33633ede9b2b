"""`cabs ui` and `cabs instance`."""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.option("--port", default=3000, show_default=True, help="Port on 127.0.0.1.")
def ui(port: int) -> None:
    """Open Dagster's UI and daemon on this machine: http://127.0.0.1:3000."""
    from cabs_core.paths import project_root
    from cabs_core.pools import list_pools
    from cabs_dagster.external import observe
    from cabs_dagster.instance import open_instance
    from cabs_dagster.launcher import recover
    from cabs_dagster.partitions import register
    from cabs_dagster.planning import Chain
    from cabs_dagster.serving import serve
    from cabs_dagster.storage import ArtifactStore

    with open_instance() as instance:
        recover(instance)
        ArtifactStore().remove_leftovers()
        pools, errors = list_pools()
        register(instance, [p.pool for p in pools])
        observe(instance, *(Chain(ArtifactStore(), p) for p in pools))
    for error in errors:
        click.echo(f"left out: {error}", err=True)
    # `dg dev`, its successor, is in a package of its own, for developers
    quiet = ["-W", "ignore:Function `dev_command` is superseded"]
    command = [sys.executable, *quiet, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    workspace = project_root() / "workspace.yaml"
    command += ["-w", str(workspace)] if workspace.is_file() else ["-m", "cabs_dagster.definitions"]
    click.echo(f"http://127.0.0.1:{port}  (DAGSTER_HOME {os.environ['DAGSTER_HOME']}; Ctrl-C ends it)")
    sys.exit(serve(command))


@click.command()
@click.option("--postgres", is_flag=True, help="Print the PostgreSQL template instead.")
def instance(postgres: bool) -> None:
    """Print the dagster.yaml that `cabs` writes into an empty DAGSTER_HOME."""
    from cabs_dagster.instance import template

    click.echo(template("postgres" if postgres else "sqlite"), nl=False)
