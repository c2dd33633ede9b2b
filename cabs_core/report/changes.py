"""What changed since the last report of a pool: the facts of both, compared."""

import json
from pathlib import Path
from typing import Any

from cabs_core.base.units import money, percentage
from cabs_core.report.names import label


def previous_facts(path: Path | None, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The facts of the last report that said something else; None where there was none.

    A page that is built again from the same facts keeps comparing with the one before.
    """
    if path is None or not path.is_file():
        return None
    try:
        last = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not isinstance(last, dict) or "facts" not in last:
        return None
    return last.get("previous") if last["facts"] == facts else last["facts"]


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> list[str] | None:
    """Sentences about what differs; None for a first report, empty where nothing of note differs."""
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
        old, new = before.get(name, []), now[name]
        show = label if name == "policies" else str
        added, gone = [show(x) for x in new if x not in old], [show(x) for x in old if x not in new]
        if added:
            sentences.append(f"{text} added: {', '.join(added)}.")
        if gone:
            sentences.append(f"{text} gone: {', '.join(gone)}.")
    if before.get("problem") != now["problem"]:
        sentences.append("The replayed problem is another: outcomes, split, features or oracles changed.")
    return sentences
