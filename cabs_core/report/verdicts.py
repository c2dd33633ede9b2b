"""Outcomes of the checks of a pool, written for other tools.

`as_junit` writes XML that build servers read, `as_markdown` a table for a pull request.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

#: carriage returns, which a parser reads as newlines, and characters that XML 1.0 forbids
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

CheckOutcome = Literal["passed", "warning", "error", "broken"]


@dataclass(frozen=True)
class Case:
    """Outcome of one check on one partition.

    Attributes:
        place: the asset and its partition, such as `outcomes [my_pool]`.
        name: name of the check.
        outcome: `broken` means that the check could not be evaluated.
        text: description of the check's result.
        run_id: id of the Dagster run; empty if there is no run.
    """

    place: str
    name: str
    outcome: CheckOutcome
    text: str
    run_id: str = ""


def as_junit(cases: list[Case]) -> str:
    """Return JUnit XML with a suite for each asset.

    An error is a `failure`, a broken check an `error`. A warning passes, with its text as output.
    """
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
    """Return the name of the asset that a case belongs to."""
    return case.place.partition(" [")[0]


def _counted(name: str, cases: list[Case]) -> dict[str, str]:
    """Return the XML attributes of a suite: its name and the numbers of cases, failures and errors.

    A case with outcome `error` counts as a failure, a `broken` one as an error.
    """
    failures = sum(case.outcome == "error" for case in cases)
    errors = sum(case.outcome == "broken" for case in cases)
    return {"name": name, "tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}


def _xml(text: str) -> str:
    """Return the text with a space in place of each carriage return and each character that XML forbids."""
    return _NOT_XML.sub(" ", text)


def as_markdown(cases: list[Case]) -> str:
    """Return a headline, the number of cases by outcome, and a table of the cases that did not pass.

    The headline says `failed` if a case is an error or broken, or if there are no cases.
    """
    marks = {"error": "ERROR", "broken": "could not be evaluated", "warning": "warning"}
    totals = {}
    for outcome in ("passed", "warning", "error", "broken"):
        totals[outcome] = sum(case.outcome == outcome for case in cases)
    if totals["error"] or totals["broken"] or not cases:
        verdict = "failed"
    else:
        verdict = "passed"
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
    """Return the first 300 characters of a text as one cell of a Markdown table."""
    return text[:300].replace("|", "\\|").replace("\n", " ")
