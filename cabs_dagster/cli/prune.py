"""`cabs prune`: trace retention from the command line."""

from __future__ import annotations

import click


@click.command()
@click.option("--older-than", default=30.0, show_default=True, help="Days.")
@click.option(
    "--keep", "keep", multiple=True, help="A pool whose traces are kept; may be given several times."
)
@click.option("--delete", is_flag=True, help="Delete them. Without it, only say what would be deleted.")
def prune(older_than: float, keep: tuple[str, ...], delete: bool) -> None:
    """Delete the round-by-round traces of old replays; their summaries stay."""
    from cabs_core.artifacts import ArtifactStore
    from cabs_core.chain.retention import prunable
    from cabs_core.chain.retention import prune as prune_one

    store = ArtifactStore()
    found = list(prunable(store, older_than, keep))
    if delete:
        for trace in found:
            prune_one(store, trace)
    size = sum(trace.bytes for trace in found) / 1e6
    click.echo(
        f"{len(found)} traces, {size:.1f} MB {'deleted' if delete else 'would be deleted (--delete does it)'}"
    )
