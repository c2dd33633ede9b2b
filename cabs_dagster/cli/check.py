"""`cabs check`: the gate for continuous integration."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from cabs_core.pipeline.commands.options import parse_rhos, takes_pool


@click.command()
@takes_pool(
    "Check this pool only; `cabs check NAME` is the same. Default: every active pool with artifacts.",
    required=False,
)
@click.option(
    "--rho",
    "rhos",
    help="Check the pool's replays at these cost sensitivities only, such as 0,900 or low. Needs a pool.",
)
@click.option("--quick", is_flag=True, help="Do not play a sample of trials again.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write a JUnit XML file.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write a Markdown summary.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: [{place, name, outcome, text, run_id}].")
@click.option("--warnings-as-errors", is_flag=True, help="Fail on warnings too.")
def check(
    pool: str | None,
    rhos: str | None,
    quick: bool,
    junit: Path | None,
    markdown: Path | None,
    warnings_as_errors: bool,
    as_json: bool,
) -> None:
    """Run the asset checks on what is there, from the files, and record them in the Dagster instance.

    Exit code 0: all passed, or there were only warnings and no --warnings-as-errors; 1: a check of severity
    ERROR failed, could not be evaluated (a table is gone, say, or a pool file not valid), or there was
    nothing to check; 2: wrong usage, as when the pool that is named has no valid file.
    """
    from cabs_core.base.atomic import write_text
    from cabs_core.base.errors import CabsError, counted
    from cabs_core.data.pools.registry import active_pool, active_pools
    from cabs_core.pipeline.artifacts import ArtifactStore
    from cabs_core.report.verdicts import Case, as_junit, as_markdown
    from cabs_dagster.cli.gate import run_checks
    from cabs_dagster.due import planner_of
    from cabs_dagster.instance import open_instance

    if rhos and not pool:
        raise click.UsageError("--rho needs --pool, because every pool has its own cost sensitivities")
    pools, errors = ([active_pool(pool)], []) if pool else active_pools()
    broken: list[tuple[str, CabsError]] = [(e.path.stem if e.path else "", e) for e in errors]
    begun = planner_of(ArtifactStore(), pools).begun
    cases: list[Case] = []
    with open_instance() as instance:
        for pool_file in (p for p in pools if p.pool.name in begun):
            chosen = parse_rhos(rhos, pool_file.pool.replay.rhos) if pool else ()
            try:
                cases += run_checks(
                    pool_file, instance, rhos=chosen, audit=not quick, notify=partial(click.echo, err=True)
                )
            except CabsError as error:  # its table is gone, say: other pools have their checks
                broken.append((pool_file.pool.name, error))
    cases += [Case(f"pool_file [{name}]", "valid", "broken", str(error)) for name, error in broken]
    if junit:
        write_text(junit, as_junit(cases))
    if markdown:
        write_text(markdown, as_markdown(cases))
    if as_json:
        click.echo(json.dumps([asdict(case) for case in cases], indent=1))
    failed = [c for c in cases if c.outcome in ("error", "broken")]
    warned = [c for c in cases if c.outcome == "warning"]
    places: dict[tuple[str, str], list[str]] = {}
    for case in [*failed, *warned]:  # one fault may stop many checks
        places.setdefault((case.outcome, case.text), []).append(f"{case.place}: {case.name}")
    for (outcome, text), names in places.items():
        click.secho(
            f"{outcome:8s} {'; '.join(names)}: {text}",
            fg="yellow" if outcome == "warning" else "red",
            err=as_json,
        )
    passed = counted(len(cases) - len(failed) - len(warned), "check")
    click.echo(
        f"{passed} passed, {counted(len(warned), 'warning')}, {counted(len(failed), 'error')}", err=as_json
    )
    if not cases:
        click.secho(
            f"there was nothing to check: run `cabs run --pool {pool or 'NAME'}` first", fg="red", err=True
        )
    raise SystemExit(1 if failed or not cases or (warnings_as_errors and warned) else 0)
