"""`cabs plan | report | prune | data`: commands that read what is there and need no orchestrator."""

from __future__ import annotations

import json
import webbrowser
from collections import Counter
from typing import TYPE_CHECKING

import click

from cabs_core.chain.options import pool_argument, pool_name, pool_option
from cabs_core.pools.completion import complete_pool

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@pool_argument
@pool_option("Name of the model pool; `cabs plan NAME` is the same.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: [{target, state, reasons}].")
def plan(name: str | None, pool: str | None, as_json: bool) -> None:
    """Show what `cabs run` would make and why, without making it."""
    from cabs_core.artifacts import POOL_STAGES, ArtifactStore, Chain
    from cabs_core.pools.registry import active_pool

    chain = Chain(ArtifactStore(), active_pool(pool_name(name, pool)))
    estimates = None
    if chain.pool.logged:
        from cabs_core.ope.pool import estimates_status  # here: numba takes seconds

        estimates = estimates_status(chain)
    if as_json:
        found = [
            {
                "target": s.target.name,
                "partition": s.target.partition,
                "state": s.state,
                "reasons": list(s.reasons),
            }
            for s in chain.overview()
        ]
        if estimates:
            found.append(
                {
                    "target": "off_policy",
                    "partition": chain.pool.name,
                    "state": estimates[0],
                    "reasons": estimates[1],
                }
            )
        click.echo(json.dumps(found, indent=1))
        return
    for stage in POOL_STAGES:
        status = chain.status(chain.stage(stage))
        click.echo(f"{stage:20s} {status.state:8s} {'; '.join(status.reasons)}")
    if estimates:
        click.echo(f"{'off_policy':20s} {estimates[0]:8s} {'; '.join(estimates[1])}")
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, dict[str, None]] = {}
    for target in chain.replays():
        status = chain.status(target)
        counts.setdefault(target.policy or "", Counter())[status.state] += 1
        reasons.setdefault(target.policy or "", {}).update(dict.fromkeys(status.reasons))
    for policy, states in counts.items():
        text = ", ".join(f"{count} {state}" for state, count in states.items())
        click.echo(f"replay of {policy:27s} {text}  {'; '.join(reasons[policy])}")


@click.command()
@pool_option("Name of the model pool. Without it: the leaderboard of all pools.")
@click.option("--open", "open_it", is_flag=True, help="Open it in the browser.")
def report(pool: str | None, open_it: bool) -> None:
    """Print the path of a pool's HTML report (or of the leaderboard)."""
    from cabs_core.artifacts import ArtifactStore
    from cabs_core.chain.pages import REPORTS, page_parts
    from cabs_core.errors import ProvenanceError

    store = ArtifactStore()
    parts = page_parts(pool)
    if store.record(parts) is None:
        if pool:
            from cabs_core.pools import find_pool

            find_pool(pool)
        raise ProvenanceError(f"there is no report yet: run `cabs run --pool {pool or 'NAME'}` first")
    folder = store.folder(parts)
    page = folder / "index.html" if pool or store.remote else store.root / REPORTS / "index.html"
    click.echo(str(page))
    if open_it and not _opened(page):
        click.echo("no browser could be opened here: open the page above in one yourself", err=True)
        raise SystemExit(1)


def _opened(page: Path) -> bool:
    """Whether a browser took the page."""
    try:
        return webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        return False


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


@click.group()
def data() -> None:
    """Outcome tables of the pools' sources."""


@data.command("fetch")
@click.argument("name", shell_complete=complete_pool)
def fetch(name: str) -> None:
    """Download the table of a pool's source, verify it, read it, and show what it holds.

    Files are compared with their pinned size and SHA-256, or with those of the first download. What is there is not
    downloaded again; `cabs run` then needs no network. For a table that you supply, says where it must be.
    """
    from cabs_core.catalog import sources
    from cabs_core.pools.registry import active_pool
    from cabs_core.validation.overview import overview

    pool_file = active_pool(name)
    found = overview(pool_file)
    files = found.outcomes.report.get("files", [])
    if sources()[pool_file.pool.source.kind].table:
        files = [{"name": str(pool_file.table_path()), "sha256": pool_file.external_files()["table"]}]
    for file in files:
        size = f"{file['bytes']:,} bytes, " if file.get("bytes") else ""
        revision = f", revision {file['revision']}" if file.get("revision") else ""
        click.echo(f"{file['name']}: {size}sha256 {file['sha256']}{revision}")
    if not files:
        click.echo(f"pool {name} is generated: there is nothing to fetch")
    click.echo(found.text)
    click.echo(f"next: cabs run --pool {name}")
