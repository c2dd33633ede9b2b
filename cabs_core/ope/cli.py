"""`cabs evaluate`: what other policies would have earned on logged traffic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click


@click.command()
@click.option("--pool", required=True, help="Name of the model pool; its chain must have been run.")
@click.option(
    "--log",
    help="Event log (SQLite file, PostgreSQL URL) or table (.csv, .parquet). Default: the deployed router's.",
)
@click.option(
    "--policies", help="Policies, separated by commas. Default: all of the pool's that can be deployed."
)
@click.option("--rho", "rhos", help="Cost sensitivities, separated by commas. Default: all of the pool's.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print every estimate of score, cost and utility as JSON."
)
def evaluate(pool: str, log: str | None, policies: str | None, rhos: str | None, as_json: bool) -> None:
    """Estimate from a log what policies would have earned on its prompts, with 95 % intervals (doubly robust).

    A policy that the log cannot evaluate is refused, with the reason. Exit code 1 when every policy was refused.
    """
    from cabs_core.artifacts import ArtifactStore, Chain, Options
    from cabs_core.catalog import check_policy_name
    from cabs_core.ope.pool import make_estimates
    from cabs_core.pools import find_pool

    try:
        chosen = tuple(float(word) for word in (rhos or "").replace(" ", "").split(",") if word)
    except ValueError:
        raise click.BadParameter(
            f"{rhos!r}: expected numbers separated by commas, such as --rho 0,300"
        ) from None
    names = tuple(check_policy_name(word) for word in (policies or "").replace(" ", "").split(",") if word)
    made, rows = make_estimates(
        Chain(ArtifactStore(), find_pool(pool)), Options(), log=log, policies=names, rhos=chosen
    )
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print(rows)
        if made is not None:
            click.echo(f"\n{made.folder}")
    if all(row["refused"] for row in rows):
        raise SystemExit(1)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    first = rows[0]
    click.echo(f"{first['n']} scored decisions on {first['groups']} prompts; utility by DR, 95 % intervals")
    if first["assumed"]:
        click.secho(
            "no propensities in the log: they were estimated, and all rests on that model", fg="yellow"
        )
    click.echo(
        f"{'policy':26s} {'rho':>7s} {'utility':>8s} {'interval':>17s} {'minus the log':>14s} {'n_eff':>7s}"
    )
    for row in rows:
        if row["refused"]:
            click.echo(f"{row['policy']:26s} {row['rho']:7g} refused: {row['refused']}")
        elif (row["estimator"], row["outcome"]) == ("dr", "utility"):
            click.echo(
                f"{row['policy']:26s} {row['rho']:7g} {row['value']:8.4f} [{row['low']:.4f}, {row['high']:.4f}]"
                f" {row['difference']:+14.4f} {row['n_eff']:7.0f}"
            )
