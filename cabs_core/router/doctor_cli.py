"""The command `cabs doctor`, which prints a report on a router."""

import json
import time
from pathlib import Path
from typing import Any

import click

from cabs_core.base.errors import one_line
from cabs_core.base.units import money, percentage
from cabs_core.router.places_cli import LOG, ROUTER, local_router


@click.command()
@ROUTER
@LOG
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
def doctor(folder: Path | str, log: str | None, as_json: bool) -> None:
    """Report plays and learning curves per model, decisions without a score, costs and problems of a router.

    The exit code is 1 if there is a problem.
    """
    from cabs_core.router.doctor import examine

    facts = examine(local_router(folder), log)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        _show_calls(facts)
        _show_costs(facts)
        _show_bundles(facts)
        _show_findings(facts)
    if facts["problems"]:
        raise SystemExit(1)


def _show_calls(facts: dict[str, Any]) -> None:
    """Print the counts of decisions, a table of the models, and the learning curve.

    Args:
        facts: the report that `doctor.examine` returned, here and in the functions below.
    """
    click.echo(f"router {facts['bundle']}: {facts['policy']} of pool {facts['pool']}, log {facts['log']}")
    click.echo(
        f"{facts['decisions']} decisions, {facts['rewards']} scored, {facts['unscored']} waiting "
        f"({facts['unscored_old']} for more than a week), {facts['failed']} calls failed"
    )
    click.echo(f"\n{'model':36s} {'plays':>7s} {'scored':>7s} {'score':>6s} {'cost, USD':>10s}  over time")
    for arm in facts["arms"]:
        if arm["mean_score"] is None:
            score = ""
        else:
            score = f"{arm['mean_score']:.3f}"
        if arm["mean_cost"] is None:
            cost = ""
        else:
            cost = f"{arm['mean_cost']:.6f}"
        curve = " ".join(f"{value:.2f}" for value in arm["curve"])
        counts = f"{arm['decisions']:7d} {arm['scored']:7d}"
        click.echo(f"{arm['model']:36s} {counts} {score:>6s} {cost:>10s}  {curve}")
    curve = " ".join(f"{value:.3f}" for value in facts["curve"]["utility"])
    click.echo(f"\nutility over time: {curve or 'nothing scored yet'}")


def _show_costs(facts: dict[str, Any]) -> None:
    """Print the number of answered calls and their cost, and the kinds of calls among them."""
    calls = facts["answered"]
    parts = [
        f"{calls[name]['calls']} {words} ({money(calls[name]['usd'])})"
        for name, words in (("kept", "turns that kept their model"), ("named", "calls that named theirs"))
        if calls[name]["calls"]
    ]
    notes = [
        f"{calls[name]} {words}"
        for name, words in (("estimated", "were estimated"), ("unknown", "have no cost"))
        if calls[name]
    ]
    sentence = f"{calls['calls']} calls answered, {money(calls['usd'])} in all"
    if parts:
        sentence += f", of it {' and '.join(parts)}"
    if notes:
        sentence += f"; {', '.join(notes)}"
    click.echo(sentence)


def _show_bundles(facts: dict[str, Any]) -> None:
    """Print calls of other bundles, changes of the models, and a note if the policy does not learn."""
    others = [row for row in facts["bundles"] if row["bundle"] != facts["bundle"]]
    if others and not facts["decisions"] and not facts["kept_turns"]:
        click.echo("this bundle has decided nothing yet; what the log holds is of others:")
    for row in others:
        if row["last"] is None:
            last = "all compacted"
        else:
            last = _minute(row["last"])
        click.echo(f"bundle {row['bundle']}: {row['calls']} calls, the last {last}")
    before: set[str] = set()
    for row in facts["arm_sets"]:
        models = set(row["arms"])
        if before and models != before:
            changes = [f"{name} came" for name in sorted(models - before)]
            changes += [f"{name} left" for name in sorted(before - models)]
            names = ", ".join(row["arms"])
            click.echo(f"models since {_minute(row['since'])}: {names} ({', '.join(changes)})")
        before = models
    if not facts["learns"]:
        click.echo(f"{facts['policy']} does not learn: scores are recorded, and change nothing")


def _show_findings(facts: dict[str, Any]) -> None:
    """Print the saving, failed calls, the lease, what the log can decide, notes and problems."""
    saved = facts["saved"]
    if saved is not None:
        more = percentage(saved["usd"] / saved["fixed_usd"] - 1, signed=True)
        click.echo(
            f"{saved['calls']} answered calls cost {money(saved['usd'])}; {saved['model']} alone was "
            f"expected to cost {money(saved['fixed_usd'])} ({more})"
        )
    for failure in facts["failures"]:
        reason = one_line(failure["reason"] or "no reason was logged")
        click.echo(f"failed: {failure['calls']} calls of {failure['model']}: {reason}")
    if facts["lease"]:
        seconds = facts["lease"]["seconds_left"]
        if seconds > 0.0:
            until = f"{seconds:.0f} s left"
        else:
            until = f"ended {-seconds:.0f} s ago"
        click.echo(f"lease: {facts['lease']['holder']}, {until}")
    click.echo(f"what the log can decide: {facts['decides']}")
    for note in facts["notes"]:
        click.echo(f"note: {one_line(note)}")
    for problem in facts["problems"]:
        click.secho(f"problem: {one_line(problem)}", fg="yellow")


def _minute(seconds: float) -> str:
    """Return a time since 1970 as date and minute in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
