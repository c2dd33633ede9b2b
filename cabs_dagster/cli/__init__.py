"""The command line `cabs`. Each command imports what it needs when it runs: `cabs --help` is quick."""

from cabs_dagster.cli.main import main

__all__ = ["main"]
