"""`cabs router`: the models that a router chooses between."""

from __future__ import annotations

from pathlib import Path

import click

from cabs_core.base.command import HelpGroup
from cabs_core.router.places_cli import LOG, ROUTER, local_router, log_of


@click.group(cls=HelpGroup)
def router() -> None:
    """Models that join a router or leave it, while it serves."""


@router.command("add-model")
@click.argument("name")
@click.option(
    "--scored",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Table of its scored prompts: prompt, score, and cost in USD where it is known; 8 to 50 rows do.",
)
@click.option("--like", metavar="MODEL", help="A model of the router that it is about as good as.")
@click.option("--price-only", is_flag=True, help="Nothing is known but prices, in the file of --upstreams.")
@click.option(
    "--upstreams",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The upstreams file, which has the prices of all models.",
)
@ROUTER
@LOG
def add_model(
    name: str,
    scored: Path | None,
    like: str | None,
    price_only: bool,
    upstreams: Path | None,
    folder: Path | str,
    log: str | None,
) -> None:
    """A model NAME joins the router; what it has learnt stays.

    Put it into the upstreams file of a running server first: the server takes it up from the router's folder.
    """
    from cabs_core.data.endpoints.upstreams import load_upstreams
    from cabs_core.router.joining import join
    from cabs_core.router.scored_table import read_scored

    if price_only and upstreams is None:
        raise click.UsageError("--price-only needs --upstreams, the file that has the prices")
    models = {} if upstreams is None else load_upstreams(upstreams).models
    rows = None if scored is None else read_scored(scored)
    place = _folder(folder)
    made = join(place, name, models, scored=rows, like=like, price_only=price_only, log=log_of(place, log))
    click.echo(f"router {made} at {place}: {name} has joined; `cabs rollback --router {place}` undoes it")


@router.command("remove-model")
@click.argument("name")
@ROUTER
@LOG
def remove_model(name: str, folder: Path | str, log: str | None) -> None:
    """A model NAME leaves the router; what it has learnt of the others stays."""
    from cabs_core.router.joining import remove_model as leave

    place = _folder(folder)
    made = leave(place, name, log=log_of(place, log))
    click.echo(f"router {made} at {place}: {name} has left; `cabs rollback --router {place}` undoes it")


def _folder(place: Path | str) -> Path:
    """A folder, in which the router is replaced; one on a store is published anew from there."""
    if isinstance(place, str):
        raise click.UsageError(f"{place} is on a store: change the router in a folder, and publish that")
    return local_router(place)
