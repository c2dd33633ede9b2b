"""The part of a page on how a collected table came about.

It says which prompts were asked at which cost, how answers were scored, and how far judge and people differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cabs_core.base.units import money
from cabs_core.report.scale import Scale
from cabs_core.report.tables import PageTable, number, percent, table_of, words


@dataclass(frozen=True)
class CollectionPart:
    """The part of a page on a collection; empty for a pool that brought its outcomes.

    Attributes:
        text: sentences on prompts, models, costs and judges.
        banners: sentences on the limits of the collection.
        tables: {key: table, or None if there is nothing to show}.
        examples: answers on which judge and people differ, with model, prompt, answer and both scores.
    """

    text: str = ""
    banners: list[str] = field(default_factory=list)
    tables: dict[str, PageTable | None] = field(
        default_factory=lambda: {"collection": None, "instrument": None, "people": None}
    )
    examples: list[dict[str, Any]] = field(default_factory=list)


def collection_of(given: Mapping[str, Any] | None, scale: Scale) -> CollectionPart:
    """Make the part on a collection; an empty part for a pool that brought its outcomes.

    Args:
        given: {"answers": `AnswersSummary`, "scores": `ScoresSummary`, "instrument": measured properties of
            the judges}; None or empty if nothing was collected.
        scale: words for the scores of the pool.
    """
    if not given:
        return CollectionPart()
    answers = given["answers"]
    scores = given["scores"]
    measured = given["instrument"]
    judges = ", ".join(f"{name} ({data['kind']})" for name, data in measured["scores"].items())
    cells = answers.prompts * len(answers.counts)
    if answers.rows < cells:
        drawn = f" (drawn: {answers.rows:,} of {cells:,} answers)"
    else:
        drawn = ""
    text = (
        f"{answers.prompts:,} of {answers.prompts_in_all:,} prompts were put to {len(answers.counts)} models"
        f"{drawn} for {money(answers.paid)}, and scored by {judges}"
    )
    if measured["judges"]:
        text += f" for {money(scores.paid)}"
    text += "."
    if scale.against:
        text += f" {scale.explanation}"
    stopped = (
        f"The collection stopped early, after {answers.prompts:,} of {answers.prompts_in_all:,} prompts: "
        f"{answers.stopped}. Everything on this page is about these prompts."
    )
    banners = [stopped] if answers.stopped else []
    banners += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in answers.repriced]
    banners += scores.limits
    examples: list[dict[str, Any]] = []
    for judge in measured["judges"].values():
        examples += judge.get("examples", [])
    tables = {
        "collection": _asked(answers.counts),
        "instrument": _instrument(measured["judges"]),
        "people": _people(measured["judges"]),
    }
    return CollectionPart(text, banners, tables, examples)


def _asked(counts: Mapping[str, Mapping[str, float]]) -> PageTable | None:
    """Table of the answers of every model: refusals, tokens, seconds and cost.

    Args:
        counts: {model: {"calls", "refused", "truncated", "tokens in", "tokens out", "seconds", "usd": sums}}.
    """
    rows = [(model, sums, max(sums.get("calls", 0.0), 1.0)) for model, sums in counts.items()]
    columns = {
        "Model": lambda r: words(r[0]),
        "Answers": lambda r: number(r[1].get("calls", 0.0), 0),
        "Refused": lambda r: percent(r[1].get("refused", 0.0) / r[2], 1),
        "Cut off": lambda r: percent(r[1].get("truncated", 0.0) / r[2], 1),
        "Tokens in": lambda r: number(r[1]["tokens in"] / r[2], 0),
        "Tokens out": lambda r: number(r[1]["tokens out"] / r[2], 0),
        "Seconds": lambda r: number(r[1]["seconds"] / r[2], 2),
        "USD in all": lambda r: number(r[1]["usd"], 4),
    }
    note = "Tokens and seconds: means per call. A refused answer scores 0."
    return table_of("collection", "What was asked", rows, columns, note)


def _instrument(judges: Mapping[str, Mapping[str, Any]]) -> PageTable | None:
    """Table of the measured properties of every judge, such as its agreement with people."""
    names = (
        ("agreement", "same verdict as people"),
        ("kappa", "Cohen's kappa"),
        ("length", "error per doubling of an answer's length"),
        ("length of wrong answers", "the same where people reject the answer"),
    )
    rows = []
    for judge, data in judges.items():
        figures = [(text, data[key]) for key, text in names if key in data]
        if "own family" in data:
            family = data["own family"]
            figures.append((f"own family ({family['family']}) minus others", family))
        if "position" in data:
            figures += [
                ("worth of the first place", data["position"]["first"]),
                ("pairs whose winner depends on the order", data["position"]["flips"]),
            ]
        figures += [
            (f"judge minus people, {model}", value) for model, value in data.get("models", {}).items()
        ]
        rows += [(judge, text, value) for text, value in figures]
    columns = {
        "Judge": lambda r: words(r[0]),
        "Figure": lambda r: words(r[1]),
        "Value": lambda r: number(r[2]["value"]),
        "95 % from": lambda r: number(r[2]["low"]),
        "to": lambda r: number(r[2]["high"]),
        "Answers": lambda r: number(r[2]["n"], 0),
    }
    return table_of(
        "instrument",
        "The judge, measured",
        rows,
        columns,
        "Against answers that people labelled blind; intervals over prompts (shares: Clopper and Pearson).",
    )


def _people(judges: Mapping[str, Mapping[str, Any]]) -> PageTable | None:
    """Table of the mean score of every model by the judge, and as people would score."""
    columns = {
        "Model": lambda r: words(r[0]),
        "Mean by the judge": lambda r: number(r[1]["judge"]),
        "By people": lambda r: number(r[1]["people"]["value"]),
        "95 % from": lambda r: number(r[1]["people"]["low"]),
        "to": lambda r: number(r[1]["people"]["high"]),
    }
    return table_of(
        "people",
        "What people would give",
        (row for judge in judges.values() for row in judge.get("means", {}).items()),
        columns,
        "Prediction-powered: all judgements, corrected by the labelled sample.",
    )
