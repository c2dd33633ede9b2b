"""Verdicts of checks for people and machines: JUnit XML for a build, Markdown for a pull request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

Outcome = Literal["passed", "warning", "error", "broken"]


@dataclass(frozen=True)
class Case:
    """Verdict of one check on one partition; `broken`: it could not be evaluated."""

    place: str
    name: str
    outcome: Outcome
    text: str
    run_id: str = ""


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
