"""`cabs ui` and `cabs instance`."""

import os
import sys

import click


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=3000, show_default=True, help="Port on 127.0.0.1."
)
def ui(port: int) -> None:
    """Start Dagster's UI and daemon on this machine, at http://127.0.0.1:3000 unless --port says otherwise.

    Reports are served beside it, read-only, at CABS_REPORTS_URL if that is an http address of this machine
    without a path, and not at all otherwise. By default that is a port of 127.0.0.1 that belongs to this
    CABS_HOME and does not change.
    """
    from cabs_core.base.atomic import remove_leftovers
    from cabs_core.data.pools.registry import active_pools
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.pipeline.page_server import page_server, reports_url
    from cabs_dagster.instance import open_instance, workspace
    from cabs_dagster.instance.recover import recover
    from cabs_dagster.instance.serve import require_free, serve
    from cabs_dagster.partitions import observe, planner_in, register

    require_free(port)
    store = ArtifactStore()
    pages = page_server(store)
    with open_instance() as instance:
        recover(instance)
        if not store.remote:
            remove_leftovers(store.root)
        register(instance, store)
        observe(instance, planner_in(instance, store))
    for error in active_pools()[1]:
        click.echo(f"left out: {error}", err=True)
    # `dg dev`, its successor, is in a package of its own, for developers
    quiet = ["-W", "ignore:Function `dev_command` is superseded"]
    os.environ["PYTHONSAFEPATH"] = "1"  # modules are not looked for in the current directory
    command = [sys.executable, *quiet, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    command += ["-w", str(workspace())]
    click.echo(f"http://127.0.0.1:{port}  (DAGSTER_HOME {os.environ['DAGSTER_HOME']}; Ctrl-C ends it)")
    if pages:
        click.echo(f"{reports_url()}  reports, read-only")
    code = serve(command, pages.serve_forever if pages else None)
    with open_instance() as instance:
        recover(instance)  # runs that had to be killed
    sys.exit(code)


@click.command()
@click.option("--postgres", is_flag=True, help="Print the PostgreSQL template instead.")
def instance(postgres: bool) -> None:
    """Print the dagster.yaml that `cabs` writes into an empty DAGSTER_HOME."""
    from cabs_dagster.instance import template

    click.echo(template("postgres" if postgres else "sqlite"), nl=False)
