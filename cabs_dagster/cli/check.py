"""`cabs check` (filled in below)."""

import click


@click.command()
def check() -> None:
    """Run checks."""
