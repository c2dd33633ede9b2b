"""`cabs report`: where the report of a pool lies."""

from __future__ import annotations

import click


@click.command()
@click.option("--pool", help="Name of the model pool. Without it: the leaderboard of all pools.")
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


def _opened(page) -> bool:
    """Whether a browser took the page."""
    import webbrowser

    try:
        return webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        return False
