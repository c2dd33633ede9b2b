"""`cabs serve`: a router that listens."""

from pathlib import Path
from typing import Any

import click

from cabs_core.base.command import end_on_interrupt
from cabs_core.router.places_cli import LOG, ROUTER, local_router, log_of


@click.command()
@ROUTER
@LOG
@click.option(
    "--upstreams",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file that says where each model is called. Without it: decisions and feedback only.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. One beyond this machine needs CABS_SERVER_KEYS.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--mode", type=click.Choice(["route", "shadow", "guarded"]), help="Default: the router's own.")
@click.option("--epsilon", type=float, help="Share of uniform exploration. Default: the router's own.")
@click.option(
    "--score-share",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    help=(
        "Share of decisions marked to be scored (x-cabs-score: wanted; cabs router to-score). Default: none."
    ),
)
@click.option(
    "--score-rule",
    type=click.Choice(["uniform", "seldom"]),
    default="uniform",
    show_default=True,
    help="Which ones: all alike, or rather those whose model is seldom drawn.",
)
@click.option("--budget-per-request", type=float, help="Target in USD a request, instead of rho.")
@click.option("--budget-per-day", type=float, help="Target in USD a day, instead of rho.")
@click.option(
    "--sticky",
    type=click.Choice(["session", "tools", "off"]),
    default="session",
    show_default=True,
    help=(
        "When a conversation keeps its model: unless a switch pays for the lost cache, in tool loops, never."
    ),
)
@click.option(
    "--route-by",
    type=click.Choice(["last_user", "first_user", "conversation"]),
    default="last_user",
    show_default=True,
    help="Text by which a request is routed: its last or first user message, or all of them.",
)
@click.option(
    "--harness-block",
    "harness_blocks",
    multiple=True,
    metavar="TAG",
    help="A further block of an agent's harness that is no text of a person, such as project_context.",
)
@click.option(
    "--text-pattern",
    metavar="REGEX",
    help="Where the person's text stands in the template of an application: 'Question: (.*)'.",
)
@click.option(
    "--budget-cap-per-day", type=float, help="Limit in USD a day (UTC): beyond it only free models answer."
)
@click.option(
    "--fail-closed", is_flag=True, help="Where the router itself fails: 503, not the fallback model."
)
@click.option("--client-costs", is_flag=True, help="Feedback may bring the cost of a call, within bounds.")
@click.option("--otel", is_flag=True, help="Send spans by OpenTelemetry's gen_ai conventions (extra otel).")
@click.option(
    "--echo",
    is_flag=True,
    help="Answer at the server itself with the name of the chosen model: no upstream is needed or called.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1, 1024),
    default=20,
    show_default=True,
    help="MiB that the body of a request may have.",
)
@click.option(
    "--requests-per-key",
    type=click.IntRange(1, 100_000),
    default=64,
    show_default=True,
    help="Requests of a key under way at once in a worker; further ones get a 429.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, 100_000),
    default=512,
    show_default=True,
    help="Requests under way at once in a worker; further ones get a 429.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help=(
        "Answer /metrics, /readyz and /healthz at a further address without a key. Default: /metrics asks "
        "for an admin's key."
    ),
)
@click.option(
    "--grace",
    type=click.IntRange(1, 3600),
    default=20,
    show_default=True,
    help="Seconds that open streams have to end after SIGTERM.",
)
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True)
@click.option("--keep-prompts", is_flag=True, help="Log the prompts themselves, not just their hashes.")
@click.option(
    "--check", is_flag=True, help="Check router, upstreams, keys and log, say what is found, and stop."
)
def serve(
    folder: Path | str,
    log: str | None,
    upstreams: Path | None,
    host: str,
    port: int,
    workers: int,
    grace: int,
    log_format: str,
    check: bool,
    **options: Any,
) -> None:
    """Serve a router as an OpenAI-compatible API.

    API keys of the upstreams come from the environment, and are never stored or logged. A router that is
    exported to the same folder, and a changed upstreams file, are picked up without a restart. With --check
    nothing is served, and the exit code is 1 if there is a problem.
    """
    end_on_interrupt()
    from cabs_server.start import serve as run

    local = local_router(folder)
    if check:
        from cabs_server.upstreams import check_serving

        budgets = {
            name: options[name] for name in ("budget_per_request", "budget_per_day", "mode", "epsilon")
        }
        lines, problems = check_serving(local, log_of(local, log), upstreams, **budgets)
        for line in lines:
            click.echo(line)
        for problem in problems:
            click.secho(f"problem: {problem}", fg="yellow")
        if problems:
            raise SystemExit(1)
        click.echo("all is well")
        return
    settings = {
        "folder": str(local.absolute()),
        "source": folder if isinstance(folder, str) else None,
        "log": None if log is None else str(log),
        "upstreams": None if upstreams is None else str(upstreams.absolute()),
        **options,
    }
    run(settings, host=host, port=port, workers=workers, grace=grace, log_format=log_format)
