"""`cabs trace`: a figure of a report, printed again from the rows that it is the mean of."""

from pathlib import Path

import click

from cabs_core.pipeline.commands.options import chain_of, takes_pool

_FIGURES = ("quality", "cost", "utility")


@click.command()
@takes_pool("Name of the model pool; `cabs trace NAME` is the same.")
@click.option(
    "--figure", type=click.Choice(_FIGURES), default="quality", show_default=True, help="Which mean."
)
@click.option("--policy", required=True, help="The policy, such as ridge or cabs_d_linear@literal.")
@click.option("--rho", required=True, type=float, help="1 / what a right answer is worth in USD.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the rows there. Default: standard output.",
)
def trace(pool: str, figure: str, policy: str, rho: float, out: Path | None) -> None:
    """Print a figure of a policy at one rho again, from its rows, and the rows as CSV.

    A row is a round: trial, prompt's identifier, model asked, its score and cost in the outcome table.
    """
    from cabs_core.base.atomic import write_text
    from cabs_core.pipeline.trace import traced_figure

    traced = traced_figure(chain_of(pool), figure, policy, rho)
    text = traced.rows.to_csv(index=False)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
    for line in (*traced.text, *([f"rows: {out}"] if out else [])):
        click.echo(line, err=True)
