"""`cabs doctor`: how a router is doing, in words."""

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
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
def doctor(folder: Path | str, log: str | None, as_json: bool) -> None:
    """Report on a router: plays and learning curves per model, decisions without a score, costs, problems.

    Exit code 1 when something is wrong.
    """
    from cabs_core.router.doctor import examine

    facts = examine(local_router(folder), log)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        click.echo(f"router {facts['bundle']}: {facts['policy']} of pool {facts['pool']}, log {facts['log']}")
        click.echo(
            f"{facts['decisions']} decisions, {facts['rewards']} scored, {facts['unscored']} waiting "
            f"({facts['unscored_old']} for more than a week), {facts['failed']} calls failed"
        )
        click.echo(
            f"\n{'model':36s} {'plays':>7s} {'scored':>7s} {'score':>6s} {'cost, USD':>10s}  over time"
        )
        for arm in facts["arms"]:
            score = "" if arm["mean_score"] is None else f"{arm['mean_score']:.3f}"
            cost = "" if arm["mean_cost"] is None else f"{arm['mean_cost']:.6f}"
            curve = " ".join(f"{v:.2f}" for v in arm["curve"])
            click.echo(
                f"{arm['model']:36s} {arm['decisions']:7d} {arm['scored']:7d} {score:>6s} {cost:>10s}  "
                f"{curve}"
            )
        curve = " ".join(f"{v:.3f}" for v in facts["curve"]["utility"])
        click.echo(f"\nutility over time: {curve or 'nothing scored yet'}")
        _show_costs(facts)
        if (saved := facts["saved"]) is not None:
            more = percentage(saved["usd"] / saved["fixed_usd"] - 1, signed=True)
            click.echo(
                f"{saved['calls']} answered calls cost {money(saved['usd'])}; {saved['model']} alone was "
                f"expected to cost {money(saved['fixed_usd'])} ({more})"
            )
        for one in facts["failures"]:
            click.echo(
                f"failed: {one['calls']} calls of {one['model']}: "
                f"{one_line(one['reason'] or 'no reason was logged')}"
            )
        if facts["lease"]:
            left = facts["lease"]["seconds_left"]
            until = f"{left:.0f} s left" if left > 0.0 else f"ended {-left:.0f} s ago"
            click.echo(f"lease: {facts['lease']['holder']}, {until}")
        click.echo(f"what the log can decide: {facts['decides']}")
        for note in facts["notes"]:
            click.echo(f"note: {one_line(note)}")
        for problem in facts["problems"]:
            click.secho(f"problem: {one_line(problem)}", fg="yellow")
    if facts["problems"]:
        raise SystemExit(1)


def _show_costs(facts: dict[str, Any]) -> None:
    """What was answered by whom and what it cost, in words."""
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
    click.echo(
        f"{calls['calls']} calls answered, {money(calls['usd'])} in "
        f"all{', of it ' if parts else ''}{' and '.join(parts)}{'; ' if notes else ''}{', '.join(notes)}"
    )
    others = [one for one in facts["bundles"] if one["bundle"] != facts["bundle"]]
    if others and not facts["decisions"] and not facts["kept_turns"]:
        click.echo("this bundle has decided nothing yet; what the log holds is of others:")
    for one in others:
        last = (
            "all compacted"
            if one["last"] is None
            else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["last"]))
        )
        click.echo(f"bundle {one['bundle']}: {one['calls']} calls, the last {last}")
    before: list[str] = []
    for one in facts["arm_sets"]:
        if set(one["arms"]) != set(before) and before:
            came, left = (sorted(set(a) - set(b)) for a, b in ((one["arms"], before), (before, one["arms"])))
            day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["since"]))
            words = [f"{name} came" for name in came] + [f"{name} left" for name in left]
            click.echo(f"models since {day}: {', '.join(one['arms'])} ({', '.join(words)})")
        before = one["arms"]
    if not facts["learns"]:
        click.echo(f"{facts['policy']} does not learn: scores are recorded, and change nothing")
