"""`cabs router`: commands for the models of a router, and for the answers that it wants scored."""

from pathlib import Path

import click

from cabs_core.base.command import HelpGroup
from cabs_core.router.places_cli import LOG, ROUTER, local_router, log_of


@click.group(cls=HelpGroup)
def router() -> None:
    """Add a model to a router, remove one while it serves, and list the answers that it wants scored."""


@router.command("add-model")
@click.argument("name")
@click.option(
    "--scored",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Table of the model's scored prompts: prompt, score, and cost in USD if it is known. 8 to 50 rows "
    "are enough; a router that does not learn needs 20 or more.",
)
@click.option("--like", metavar="MODEL", help="A model of the router that is about as good.")
@click.option(
    "--upstreams",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The upstreams file, which has the prices of all models.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Let a router that does not learn take the model in with fewer than 20 scored prompts.",
)
@ROUTER
@LOG
def add_model(
    name: str,
    scored: Path | None,
    like: str | None,
    upstreams: Path | None,
    anyway: bool,
    folder: Path | str,
    log: str | None,
) -> None:
    """Add the model NAME to the router, which keeps everything it has learnt.

    Either --scored or --like says how good the model is; give exactly one of them.

    Put the model into the upstreams file of a running server first. The server then takes up the router from
    its folder.
    """
    from cabs_core.data.endpoints.upstreams import load_upstreams
    from cabs_core.router.joining import NewModel, join
    from cabs_core.router.scored_table import read_scored

    if upstreams is None:
        models = {}
    else:
        models = load_upstreams(upstreams).models
    rows = None if scored is None else read_scored(scored)
    place = _local_folder(folder)
    new = NewModel(name, scored=rows, like=like, anyway=anyway)
    bundle = join(place, new, models, log=log_of(place, log))
    click.echo(f"router {bundle} at {place}: {name} has joined; `cabs rollback --router {place}` undoes it")


@router.command("remove-model")
@click.argument("name")
@ROUTER
@LOG
def remove_model(name: str, folder: Path | str, log: str | None) -> None:
    """Remove the model NAME from the router, which keeps what it has learnt about the others."""
    from cabs_core.router.joining import remove_model as remove

    place = _local_folder(folder)
    bundle = remove(place, name, log=log_of(place, log))
    click.echo(f"router {bundle} at {place}: {name} has left; `cabs rollback --router {place}` undoes it")


@router.command("to-score")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Number of rows at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of CSV.")
@ROUTER
@LOG
def to_score(limit: int, as_json: bool, folder: Path | str, log: str | None) -> None:
    """List the decisions whose score is wanted and has not come, newest first.

    A server marks them (`cabs serve --score-share 0.05`). The scores go to `cabs feedback ID --score 1`, or
    to POST /v1/feedback. Prompts are listed if the server keeps them (`--keep-prompts`).
    """
    import json

    from cabs_core.base.csv_cells import csv_text
    from cabs_core.data.events.log import EventLog
    from cabs_core.router.marks import QUEUE, queue

    events = EventLog.existing(log_of(local_router(folder), log))
    try:
        rows = queue(events, limit)
    finally:
        events.close()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo(csv_text(QUEUE, ([row[name] for name in QUEUE] for row in rows)), nl=False)


def _local_folder(place: Path | str) -> Path:
    """Return the folder of a router whose models are to change, or fail if it is a URL.

    A router on a store is changed in a folder and published anew from there.
    """
    if isinstance(place, str):
        raise click.UsageError(f"{place} is on a store: change the router in a folder, and publish that")
    return place
