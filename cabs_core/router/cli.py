"""The commands `cabs route`, `cabs feedback`, `cabs log` and `cabs rollback`, which work on a router."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from cabs_core.base.command import HelpGroup
from cabs_core.router.places_cli import LOG, ROUTER, local_router, log_of


@click.command()
@click.argument("text")
@ROUTER
@LOG
@click.option("--rho", type=float, help="Cost sensitivity for this prompt, score units per USD.")
@click.option("--budget", type=float, help="USD that the answer to this prompt may cost.")
@click.option("--available", help="Models that can be called now, separated by commas.")
@click.option(
    "--explain",
    is_flag=True,
    help="Explain the decision: score, cost and probability of each model, and the nearest prompts.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: {id, model, propensity, rho, scores, costs, probabilities}.",
)
def route(
    text: str,
    folder: Path | str,
    log: str | None,
    rho: float | None,
    budget: float | None,
    available: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Decide which model answers TEXT, and log the decision. TEXT - reads standard input."""
    from cabs_core.router.router import Router

    if text == "-":
        text = sys.stdin.read()
    folder = local_router(folder)
    router = Router.load(folder, log=log_of(folder, log))
    if available is None:
        names = None
    else:
        names = [n.strip() for n in available.split(",") if n.strip()]
    decision = router.route(text, rho=rho, budget=budget, available=names)
    routed: dict[str, Any] = {
        "id": decision.id,
        "model": decision.model,
        "propensity": decision.propensity,
        "rho": decision.rho,
        "scores": decision.scores,
        "costs": decision.costs,
        "probabilities": decision.probabilities,
    }
    if explain:
        routed["explanation"] = router.explain(decision)
    router.close()
    if as_json:
        click.echo(json.dumps(routed, indent=1))
        return
    click.echo(f"{decision.model}\n")
    click.echo(f"{'model':36s} {'score':>6s} {'cost, USD':>11s} {'probability':>12s}")
    for name in decision.scores:
        click.echo(
            f"{name:36s} {routed['scores'][name]:6.3f} {routed['costs'][name]:11.6f} "
            f"{routed['probabilities'][name]:12.3f}"
        )
    for near in routed.get("explanation", {}).get("neighbours", []):
        best = ", ".join(f"{k} {v:.2f}" for k, v in near["scores"].items())
        click.echo(f"\nnear ({near['distance']:.2f}): {near['text'][:100]!r}\n  {best}")
    click.echo(f"\nwhen you know how good the answer was: cabs feedback {decision.id} --score 1")


@click.command()
@click.argument("decision")
@click.option("--score", type=float, help="How good the answer was, from 0 to 1.")
@click.option("--cost", type=float, help="What the call cost, USD. Default: as recorded or expected.")
@click.option(
    "--source",
    help="Name of who gives the score. Default: user; with --retract: all who scored the decision.",
)
@click.option(
    "--by",
    type=click.Choice(["id", "response_id", "call_id"]),
    default="id",
    show_default=True,
    help="Kind of name that DECISION is.",
)
@click.option(
    "--retract",
    is_flag=True,
    help="Take the scores of the decision back. The router then learns again without them.",
)
@click.option("--row", is_flag=True, help="With --retract: take back the decision as well.")
@ROUTER
@LOG
def feedback(
    decision: str,
    score: float | None,
    cost: float | None,
    source: str | None,
    by: str,
    retract: bool,
    row: bool,
    folder: Path | str,
    log: str | None,
) -> None:
    """Tell the router how good the answer of a DECISION was, or take the score back."""
    from cabs_core.router.router import Router

    if retract == (score is not None) or (row and not retract):
        raise click.UsageError("give either --score, or --retract (with or without --row)")
    folder = local_router(folder)
    router = Router.load(folder, log=log_of(folder, log))
    try:
        if score is None:
            decided = router.named(**{by: decision})
            count = router.retract(decided.id, source=source, row=row)
            click.echo(f"scores taken back: {count}{', and the decision' if row else ''}")
            return
        result = router.feedback_by(**{by: decision}, score=score, cost=cost, source=source or "user")
        answer = router.about_feedback(result)
        click.echo(answer.get("note", result))
        if result == "conflict":
            raise SystemExit(1)
    finally:
        router.close()


@click.group(cls=HelpGroup)
def log() -> None:
    """Maintain the event log of a router."""


@log.command()
@click.option(
    "--older-than",
    type=click.FloatRange(min=0.0),
    required=True,
    metavar="DAYS",
    help="Age in days from which rows are removed.",
)
@ROUTER
@LOG
def compact(older_than: float, folder: Path | str, log: str | None) -> None:
    """Remove rows older than DAYS: decisions without a score, kept turns, and decisions that were taken back.

    A score that was taken back is removed with its decision alone. Rows of a conversation that went on within
    the last DAYS stay, unless they were taken back. The learnt state and all estimates stay as they are,
    since scored decisions, counts and costs stay. A removed decision can no longer be scored. Servers may run
    meanwhile.
    """
    import time

    from cabs_core.base.units import SECONDS_PER_DAY
    from cabs_core.data.events.log import EventLog
    from cabs_core.data.events.retention import compact as run

    events = EventLog.existing(log_of(local_router(folder), log), read_only=False)
    try:
        counts = run(events, time.time() - older_than * SECONDS_PER_DAY)
    finally:
        events.close()
    click.echo(f"{counts['removed']} rows removed, {counts['left']} left")


@click.command()
@ROUTER
def rollback(folder: Path | str) -> None:
    """Bring back the router that the last export replaced; a second call undoes the first."""
    from cabs_core.base.errors import RouterError
    from cabs_core.router.promotion import roll_back

    if isinstance(folder, str):
        raise RouterError(f"{folder} keeps no earlier router: export the one that you want to {folder} again")
    click.echo(f"router {roll_back(folder.absolute())} is back at {folder}")
