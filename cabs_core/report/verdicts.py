"""Verdicts of checks for people and machines: JUnit XML for a build, Markdown for a pull request."""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

CheckOutcome = Literal["passed", "warning", "error", "broken"]


@dataclass(frozen=True)
class Case:
    """Verdict of one check on one partition; `broken`: it could not be evaluated."""

    place: str
    name: str
    outcome: CheckOutcome
    text: str
    run_id: str = ""


def as_junit(cases: list[Case]) -> str:
    """JUnit XML: one suite an asset; warnings pass, with their text as output."""
    root = Element("testsuites", _counted("cabs check", cases))
    for name, members in groupby(sorted(cases, key=_suite), _suite):
        of_asset = list(members)
        suite = SubElement(root, "testsuite", _counted(name, of_asset))
        for case in of_asset:
            element = SubElement(suite, "testcase", classname=case.place, name=case.name)
            text = _xml(case.text)
            if case.outcome == "warning":
                SubElement(element, "system-out").text = f"warning: {text}"
            elif case.outcome != "passed":
                tag = "failure" if case.outcome == "error" else "error"
                SubElement(element, tag, message=text[:300]).text = text
    indent(root, "")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{tostring(root, encoding="unicode")}\n'


def _suite(case: Case) -> str:
    return case.place.partition(" [")[0]


def _counted(name: str, cases: list[Case]) -> dict[str, str]:
    """Attributes of a suite."""
    failures, errors = (sum(c.outcome == outcome for c in cases) for outcome in ("error", "broken"))
    return {"name": name, "tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}


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
