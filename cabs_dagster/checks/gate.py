"""The gate behind `cabs check`: evaluate all checks of a pool, collect the verdicts, write them as JUnit or Markdown.

A failed non-blocking check leaves a Dagster run green, so that runs alone cannot be a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

import dagster as dg

from cabs_core.pools import PoolFile
from cabs_dagster import jobs
from cabs_dagster.partitions import grid_key, register
from cabs_dagster.planning import Chain

Outcome = Literal["passed", "warning", "error", "broken"]


@dataclass(frozen=True)
class Case:
    """Verdict of one check on one partition; `broken`: it could not be evaluated."""

    place: str
    name: str
    outcome: Outcome
    text: str
    run_id: str = ""


def run_checks(
    pool_file: PoolFile,
    instance: dg.DagsterInstance,
    *,
    rhos: Iterable[float] = (),
    replay_again: bool = True,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Case]:
    """Evaluate the checks of everything that is there of a pool, recorded in the instance."""
    from assets.replay import replay_key
    from cabs_dagster.checks import REPLAY_CHECKS
    from cabs_dagster.checks.data import data_check_specs
    from cabs_dagster.checks.results import REPRODUCIBLE
    from cabs_dagster.running import Runner
    from cabs_dagster.sql import sql_models, test_specs

    runner = Runner(instance)
    pool = pool_file.pool
    chain = Chain(runner.store, pool_file)
    names = [name for name in REPLAY_CHECKS if replay_again or name != REPRODUCIBLE]
    cases: list[Case] = []
    there = [s for s in ("outcomes", "splits") if runner.store.record((s, pool.name)) is not None]
    if there:
        register(instance, [pool])
        notify(f"{pool.name}: {', '.join(there)}")
        keys = {spec.key for stage in there for spec in data_check_specs(stage)}
        cases += _evaluate(runner, jobs.PREPARE, pool.name, keys, pool.name)
    for rho in tuple(rhos) or pool.replay.rhos:
        statuses = [chain.status(t) for t in chain.replays([rho])]
        old = [s for s in statuses if s.record is not None and s.state != "fresh"]
        cases += [
            Case(
                _place(s.target.key, s.target.partition),
                "up_to_date",
                "error",
                f"{'; '.join(s.reasons)}: run it again",
            )
            for s in old
        ]
        targets = [s.target for s in statuses if s.state == "fresh"]
        if targets:
            notify(f"{pool.name}: {len(targets)} replays at rho {rho:g}")
            keys = {dg.AssetCheckKey(replay_key(t.policy or ""), name) for t in targets for name in names}
            cases += _evaluate(runner, jobs.REPLAY, str(grid_key(pool.name, rho)), keys, pool.name)
    if cases and runner.store.children(("marts",)):
        notify("SQL tests of the marts")
        keys = {spec.key for model in sql_models() for spec in test_specs(model)}
        cases += _evaluate(runner, jobs.MARTS, None, keys, pool.name)
    return cases


def _evaluate(runner, job: str, partition: str | None, keys: set[dg.AssetCheckKey], pool: str) -> list[Case]:
    """Launch a run of nothing but these checks and collect what they said."""
    run_id, events, failures = runner.run_checks(job, partition, keys, {"cabs/pool": pool})
    cases, seen = [], set()
    for event in events:
        if event.event_type_value != dg.DagsterEventType.ASSET_CHECK_EVALUATION.value:
            continue
        found = event.asset_check_evaluation_data
        seen.add(dg.AssetCheckKey(found.asset_key, found.check_name))
        outcome: Outcome = "passed"
        if not found.passed:
            outcome = "error" if found.severity == dg.AssetCheckSeverity.ERROR else "warning"
        cases.append(
            Case(
                _place(found.asset_key, partition), found.check_name, outcome, found.description or "", run_id
            )
        )
    lines = [line for text in failures for line in text.splitlines()]
    for key in sorted(keys - seen):
        own = [
            line for line in lines if line.strip().startswith(f"{key.asset_key.path[-1].replace('__', '@')}:")
        ]
        text = "; ".join(own or lines[:3]) or "it gave no result"
        cases.append(Case(_place(key.asset_key, partition), key.name, "broken", text, run_id))
    return cases


def _place(key: dg.AssetKey, partition: str | None) -> str:
    return key.to_user_string() + (f" [{partition}]" if partition else "")


def as_junit(cases: list[Case]) -> str:
    """JUnit XML: one suite an asset; warnings pass, with their text as output."""
    suites: dict[str, list[Case]] = {}
    for case in cases:
        suites.setdefault(case.place.partition(" [")[0], []).append(case)
    failures, errors = (sum(c.outcome == o for c in cases) for o in ("error", "broken"))
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="cabs check" tests="{len(cases)}" failures="{failures}" errors="{errors}">',
    ]
    for name, members in sorted(suites.items()):
        counts = [sum(c.outcome == o for c in members) for o in ("error", "broken")]
        lines.append(
            f'<testsuite name={quoteattr(name)} tests="{len(members)}" failures="{counts[0]}" errors="{counts[1]}">'
        )
        for case in members:
            head = f"<testcase classname={quoteattr(case.place)} name={quoteattr(case.name)}"
            text = _xml(case.text)
            if case.outcome == "passed":
                lines.append(f"{head}/>")
            elif case.outcome == "warning":
                lines.append(f"{head}><system-out>warning: {escape(text)}</system-out></testcase>")
            else:
                tag = "failure" if case.outcome == "error" else "error"
                lines.append(
                    f"{head}><{tag} message={quoteattr(text[:300])}>{escape(text)}</{tag}></testcase>"
                )
        lines.append("</testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _xml(text: str) -> str:
    """Text without the control characters that XML does not allow."""
    return "".join(c if c in "\n\t" or ord(c) >= 32 else " " for c in text)


def as_markdown(cases: list[Case]) -> str:
    """A summary table by asset, and one line for everything that did not pass."""
    marks = {"error": "ERROR", "broken": "could not be evaluated", "warning": "warning"}
    totals = {o: sum(c.outcome == o for c in cases) for o in ("passed", "warning", "error", "broken")}
    verdict = "failed" if totals["error"] or totals["broken"] or not cases else "passed"
    lines = [f"## cabs check: {verdict}", ""]
    lines.append(
        ", ".join(f"{count} {name}" for name, count in totals.items() if count) or "nothing was checked"
    )
    bad = [c for c in cases if c.outcome != "passed"]
    if bad:
        lines += ["", "| where | check | verdict | what |", "|---|---|---|---|"]
        lines += [
            f"| {c.place.replace('|', chr(92) + '|')} | {c.name} | {marks[c.outcome]} | {_cell(c.text)} |"
            for c in bad
        ]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
