"""`cabs trace`: a figure of a report, printed again from the rows that it is the mean of."""

from __future__ import annotations

from pathlib import Path

import click

from cabs_core.chain.options import takes_pool

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
    from cabs_core.artifacts import ArtifactStore, Chain
    from cabs_core.atomic import write_text
    from cabs_core.chain.replay import trace_again
    from cabs_core.errors import ResultError
    from cabs_core.pools import find_pool
    from cabs_core.report.data import PoolData
    from cabs_core.report.evidence import load_evidence
    from cabs_core.report.rows import FIGURES, figure_in_mart, figure_of, rows_of

    pool_file, store = find_pool(pool), ArtifactStore()
    name, chain = pool_file.pool.name, Chain(store, pool_file)
    if store.remote:
        folders = [store.mirror(parts) for parts in (("marts",), ("replay", name), ("replay_problem", name))]
        artifacts = folders[0]
    else:
        artifacts = store.root
    data = PoolData(name, artifacts)
    evidence = load_evidence(
        name, artifacts, str(data.info["problem_hash"]), settings=data.settings.get("replay"),
        again=lambda policy, rho: trace_again(chain, policy, rho),
    )  # fmt: skip
    if evidence is None:
        raise ResultError(
            f"the problem that the marts are of is gone: `cabs run --pool {name}` makes all anew"
        )
    rows = rows_of(evidence, policy, rho)
    text = rows.to_csv(index=False)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_text(out, text)
    column, factor, mart_column, unit = FIGURES[figure]
    mean = f"mean of {column}" if factor == 1 else f"{factor:,.0f} x mean of {column}"
    click.echo(
        f"{figure} of {policy} at rho {rho:g}: {figure_of(rows, figure):.6g} ({unit}), the {mean} over {len(rows):,} rounds of "
        f"{rows['trial'].nunique()} trials and {rows['query_id'].nunique():,} prompts"
        + (f", in {out}" if out else ""),
        err=True,
    )
    if (rows["observed"] < 1).any():
        click.echo(
            f"{int((rows['observed'] < 1).sum()):,} of these answers are not in the table: scores and costs are estimates, "
            "right on average only",
            err=True,
        )
    click.echo(
        f"mart_utility_by_rho.{mart_column} (dbt_like_sql/marts/mart_utility_by_rho.sql): "
        f"{figure_in_mart(data, figure, policy, rho):.6g}",
        err=True,
    )
