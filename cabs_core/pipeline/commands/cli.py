"""`cabs report | prune | data | evaluate`: commands that need no orchestrator."""

from __future__ import annotations

import json
import webbrowser
from typing import TYPE_CHECKING, Any

import click

from cabs_core.base.command import HelpGroup
from cabs_core.base.units import percentage
from cabs_core.data.pools.completion import complete_pool
from cabs_core.pipeline.commands.options import chain_of, takes_pool
from cabs_core.router.places_cli import log_place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cabs_core.data.pool_files.sections import LogFile


@click.command()
@takes_pool(
    "Name of the model pool; `cabs report NAME` is the same. Without it: the leaderboard of all pools.",
    required=False,
)
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser.")
@click.option("--goal", help="Answer a goal instead, such as 'quality: 0.95, of: gpt-4o'.")
def report(pool: str | None, open_it: bool, goal: str | None) -> None:
    """Print the path of a pool's HTML report (or of the leaderboard), or the answer to a goal.

    Goals: 'value_per_right_answer: 0.02'; 'quality: 0.95, of: gpt-4o'; 'budget_per_month: 500,
    requests_per_month: 100000'; 'latency: 2s, share: 0.95'; and combinations.
    """
    from cabs_core.base.errors import ProvenanceError
    from cabs_core.data.pools.find import find_pool
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.pipeline.pages import REPORTS, page_parts

    if goal is not None:
        _answer(pool, goal)
        return
    store = ArtifactStore()
    parts = page_parts(pool)
    if store.record(parts) is None:
        if pool:
            find_pool(pool)
        raise ProvenanceError(f"there is no report yet: run `cabs run --pool {pool or 'NAME'}` first")
    folder = store.folder(parts)
    if pool or store.remote:
        page = folder / "index.html"
    else:
        page = store.root / REPORTS / "index.html"
    click.echo(str(page))
    older = chain_of(pool).older_figures() if pool else None
    if older:
        click.secho(f"no answer: {older} `cabs run --pool {pool}` makes them anew", fg="yellow", err=True)
    if open_it and not _opened(page):
        click.echo("no browser could be opened here: open the page above in one yourself", err=True)
        raise SystemExit(1)


def _answer(pool: str | None, goal: str) -> None:
    """Print the answer to a goal of a pool, and `cabs export` for the option if it fulfils the goal.

    The command is printed only for an option that fulfils all conditions beyond noise. The option may be a
    model, rules or a router.

    Raises:
        click.UsageError: no pool is given.
    """
    from cabs_core.data.pool_files.goals import parse_goal
    from cabs_core.pipeline.goal import answer_for

    parsed = parse_goal(goal)
    if not pool:
        raise click.UsageError("a goal is of a pool: --pool NAME (`cabs pool list` shows them)")
    answer = answer_for(chain_of(pool), parsed)
    click.echo(answer.text)
    if answer.confirmed:
        click.echo(f"next: cabs export {pool} --goal {goal!r}")


def _opened(page: Path) -> bool:
    """Open a page in a browser, and return True if a browser could be opened."""
    try:
        return webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        return False


@click.command()
@click.option("--older-than", type=click.FloatRange(min=0.0), default=30.0, show_default=True, help="Days.")
@click.option(
    "--keep", "keep", multiple=True, help="A pool whose traces are kept; may be given several times."
)
@click.option("--delete", is_flag=True, help="Delete them. Without it, only say what would be deleted.")
def prune(older_than: float, keep: tuple[str, ...], delete: bool) -> None:
    """Delete the round-by-round traces of old replays; their summaries stay."""
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.pipeline.retention import prunable
    from cabs_core.pipeline.retention import prune as prune_one

    store = ArtifactStore()
    traces = list(prunable(store, older_than, keep))
    if delete:
        for trace in traces:
            prune_one(store, trace)
    size = sum(trace.bytes for trace in traces) / 1e6
    if delete:
        done = "deleted"
    else:
        done = "would be deleted (--delete does it)"
    click.echo(f"{len(traces)} traces, {size:.1f} MB {done}")


@click.command()
@takes_pool("Name of the model pool; its chain must have been run. `cabs evaluate NAME` is the same.")
@click.option(
    "--log",
    callback=log_place,
    help="Event log (SQLite file, PostgreSQL URL), or a log of calls: a table, or what another tool wrote. "
    "Default: CABS_LOG, else router.log of the pool file, else the deployed router's.",
)
@click.option(
    "--format",
    "written",
    help="Who wrote the log: table (the default), litellm, langfuse, openai, otel, ....",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="WHAT=PATH",
    help="Where the log holds prompt, model, ...: a column or a dotted path, such as score=metadata.rating.",
)
@click.option(
    "--score-range", nargs=2, type=float, help="The worst and the best score that can be given, such as 1 5."
)
@click.option(
    "--policies", help="Policies, separated by commas. Default: all of the pool's that can be deployed."
)
@click.option("--rho", "rhos", help="Cost sensitivities, separated by commas. Default: all of the pool's.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print every estimate of score, cost and utility as JSON."
)
def evaluate(
    pool: str,
    log: str | None,
    written: str | None,
    columns: tuple[str, ...],
    score_range: tuple[float, float] | None,
    policies: str | None,
    rhos: str | None,
    as_json: bool,
) -> None:
    """Estimate from a log what policies would have earned on its prompts, with 95 % intervals.

    Estimates are doubly robust. A policy that the log cannot evaluate is refused, with the reason. Exit code
    1 when every policy was refused.
    """
    import pyarrow.parquet as pq

    from cabs_core.base.catalog.policies import check_policy_name
    from cabs_core.pipeline.artifacts import make_artifact
    from cabs_core.pipeline.stages.off_policy import ESTIMATES
    from cabs_core.router.policies_on_log import evaluate_folds, evaluate_pool, logged_decisions

    try:
        chosen = tuple(float(word) for word in (rhos or "").replace(" ", "").split(",") if word)
    except ValueError:
        raise click.BadParameter(
            f"{rhos!r}: expected numbers separated by commas, such as --rho 0,300"
        ) from None
    names = tuple(check_policy_name(word) for word in (policies or "").replace(" ", "").split(",") if word)
    chain = chain_of(pool)
    made = None
    target = chain.stage("off_policy")
    how = _log_file(log, written, columns, score_range)
    if how or names or chosen:
        inputs = chain.require(target)
        if chain.pool.logged and how is None:
            rows, _ = evaluate_folds(chain.pool, inputs, policies=names, rhos=chosen)
        else:
            data = logged_decisions(chain.pool_file, inputs, how)
            click.echo("".join(f"{line}\n" for line in data.receipt if not as_json), nl=False)
            rows = evaluate_pool(chain.pool, inputs, data, policies=names, rhos=chosen)
    else:
        made = make_artifact(chain, target)
        rows = pq.read_table(made.folder / ESTIMATES).to_pylist()
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print_estimates(rows)
        if made is not None:
            click.echo(f"\n{made.folder}")
    if all(row["refused"] for row in rows):
        raise SystemExit(1)


def _log_file(
    path: str | None, written: str | None, columns: Sequence[str], score_range: tuple[float, float] | None
) -> LogFile | None:
    """Return the log that the options of `evaluate` describe, or None if they name no log.

    Raises:
        click.UsageError: the options do not fit together, or a value is not valid.
    """
    from pydantic import ValidationError

    from cabs_core.base.errors import first_fault
    from cabs_core.data.pool_files.columns import LogColumns
    from cabs_core.data.pool_files.sections import LogFile

    known = LogColumns.model_fields
    odd = [text for text in columns if text.partition("=")[0] not in known or "=" not in text]
    if odd:
        raise click.UsageError(
            f"--column {odd[0]!r:.100}: expected WHAT=PATH, WHAT one of {', '.join(known)}"
        )
    given = {"format": written, "score_range": score_range} | (
        {"columns": dict(text.split("=", 1) for text in columns)} if columns else {}
    )
    given = {name: value for name, value in given.items() if value}
    if path is None:
        if given:
            raise click.UsageError("--format, --column and --score-range are of a --log")
        return None
    try:
        return LogFile(path=path, **given)
    except ValidationError as error:
        raise click.UsageError(f"--log: {first_fault(error)[0]}") from None


def _print_estimates(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the doubly robust estimates of utility, with refused policies and their reasons."""
    first = rows[0]
    click.echo(f"{first['n']} scored decisions on {first['groups']} prompts; utility by DR, 95 % intervals")
    if first["assumed"]:
        click.secho(
            "no propensities in the log: they were estimated, and all rests on that model", fg="yellow"
        )
    click.echo(
        f"{'policy':26s} {'rho':>7s} {'utility':>8s} {'interval':>17s} {'minus the log':>14s} {'n_eff':>7s}"
    )
    for reason in dict.fromkeys(
        row["no_interval"] for row in rows if row["no_interval"] and row["estimator"] == "dr"
    ):
        click.secho(f"no interval: {reason}", fg="yellow")
    for row in rows:
        if row["refused"]:
            click.echo(f"{row['policy']:26s} {row['rho']:7g} refused: {row['refused']}")
        elif (row["estimator"], row["outcome"]) == ("dr", "utility"):
            click.echo(
                f"{row['policy']:26s} {row['rho']:7g} {row['value']:8.4f} {_ends(row):>17s}"
                f" {row['difference']:+14.4f} {row['n_eff']:7.0f}"
            )
            if row["manski_width"]:
                never = percentage(row["manski_width"], 1)
                click.echo(f"{'':35s}the log never plays {never} of that, which may earn anything")


def _ends(row: Mapping[str, Any]) -> str:
    """Return the 95 % interval of an estimate as `[low, high]`, or `none` if the estimate has no interval."""
    if row["low"] is None:
        return "none"
    return f"[{row['low']:.4f}, {row['high']:.4f}]"


@click.group(cls=HelpGroup)
def data() -> None:
    """Read, download and show outcome tables of the pools' sources."""


@data.command("fetch")
@click.argument("name", shell_complete=complete_pool)
def fetch(name: str) -> None:
    """Download the table of a pool's source, verify it, read it, and show what it holds.

    Files are compared with their pinned size and SHA-256, or with those of the first download. What is there
    is not downloaded again; `cabs run` then needs no network. For a table that you supply, says where it must
    be.
    """
    from cabs_core.base.catalog.sources import sources
    from cabs_core.base.hashing import hash_file
    from cabs_core.data.pools.registry import active_pool
    from cabs_core.data.tables.files import files_of
    from cabs_core.data.validation.overview import overview

    pool_file = active_pool(name)
    table = overview(pool_file)
    files = table.outcomes.report.get("files", [])
    if sources()[pool_file.pool.source.kind].table:
        files = [{"name": str(file), "sha256": hash_file(file)} for file in files_of(pool_file.table_path())]
    for file in files:
        if file.get("bytes"):
            size = f"{file['bytes']:,} bytes, "
        else:
            size = ""
        if file.get("revision"):
            revision = f", revision {file['revision']}"
        else:
            revision = ""
        click.echo(f"{file['name']}: {size}sha256 {file['sha256']}{revision}")
    if not files:
        click.echo(f"pool {name} is generated: there is nothing to fetch")
    click.echo(table.text)
    click.echo(f"next: cabs run --pool {name}")
