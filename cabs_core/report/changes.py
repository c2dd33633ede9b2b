"""Changes since the last report of a pool.

Every `verdict.json` holds the facts of its report, and those of an earlier report that they differ from.
"""

import json
from pathlib import Path
from typing import Any

from cabs_core.base.units import money, percentage
from cabs_core.report.names import label


def previous_facts(path: Path | None, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Read the facts of the last report whose facts differ from `facts`.

    A page that is built again from equal facts keeps comparing with the report before.

    Args:
        path: `verdict.json` of the last report; None if nobody says where one is.
        facts: facts of the report that is being made.

    Returns:
        None if there is no such report, or if the file is not the JSON of a report.

    Raises:
        OSError: the file is there and cannot be read.
    """
    if path is None or not path.is_file():
        return None
    try:
        last = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(last, dict) or "facts" not in last:
        return None
    facts_of_last: dict[str, Any] = last["facts"]
    earlier: dict[str, Any] | None = last.get("previous")
    if facts_of_last == facts:
        return earlier
    return facts_of_last


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> list[str] | None:
    """Return a sentence for each difference between the facts of two reports.

    The best router's figures are compared as they are printed, so smaller differences do not count.

    Args:
        before: facts of the earlier report; None if there is none.
        now: facts of the new report: headline, router (the best one) with its utility, score and cost,
            queries, trials, rhos, models, policies, and problem (its hash).

    Returns:
        an empty list if nothing of note differs; None if there is no earlier report.
    """
    if before is None:
        return None
    sentences = []
    if before.get("headline") != now["headline"]:
        sentences.append(f"Verdict: {before.get('headline')} → {now['headline']}.")
    if before.get("router") != now["router"]:
        sentences.append(f"Best router: {label(str(before.get('router')))} → {label(now['router'])}.")
    for name, text, show in (
        ("utility", "Its mean utility", lambda x: f"{x:.3f}"),
        ("score", "Its mean score", lambda x: percentage(x, 1)),
        ("cost", "Its cost per 1,000 requests", money),
    ):
        if before.get(name) is not None and show(before[name]) != show(now[name]):
            sentences.append(
                f"{text.replace('Its', 'The best router’s', 1)}: {show(before[name])} → {show(now[name])}."
            )
    for name, text in (
        ("queries", "Held-out queries"),
        ("trials", "Trials"),
        ("rhos", "Values of ρ compared"),
    ):
        if before.get(name) != now[name]:
            sentences.append(f"{text}: {before.get(name)} → {now[name]}.")
    for name, text in (("models", "Models"), ("policies", "Policies")):
        old = before.get(name, [])
        new = now[name]
        show = label if name == "policies" else str
        added = [show(x) for x in new if x not in old]
        gone = [show(x) for x in old if x not in new]
        if added:
            sentences.append(f"{text} added: {', '.join(added)}.")
        if gone:
            sentences.append(f"{text} gone: {', '.join(gone)}.")
    if before.get("problem") != now["problem"]:
        sentences.append("The replayed problem is another: outcomes, split, features or oracles changed.")
    return sentences
