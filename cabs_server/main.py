"""Entry point of `cabs-router`: the commands of a router, for an installation without Dagster."""

import click

from cabs_core.base.command import CommandGroup
from cabs_core.router.cli import feedback, log, rollback, route
from cabs_core.router.doctor_cli import doctor
from cabs_core.router.joining_cli import router
from cabs_server.cli import serve


@click.group(
    cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="cabs-routing")
def main() -> None:
    """Serve a router that `cabs export` made. Needs only what its requirements.txt lists."""


for command in (route, serve, feedback, doctor, rollback, log, router):
    main.add_command(command)
