"""How a collected table came about: what was asked and paid, how it was scored, where people differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cabs_core.algorithms.problem.gaps import real_values
from cabs_core.base.statistics.people import Sampled, corrected_sum
from cabs_core.base.statistics.uncertainty import real_weights
from cabs_core.base.units import money
from cabs_core.base.utility import clipped_utility, middle_rho
from cabs_core.report.evidence import Evidence
from cabs_core.report.names import label
from cabs_core.report.scale import Scale
from cabs_core.report.tables import PageTable, number, percent, signed_text, table_of, words
from cabs_core.report.verdict import Verdict


@dataclass(frozen=True)
class CollectionPart:
    """A sentence, banners, tables by key, and answers where judge and people differ."""

    text: str = ""
    banners: list[str] = field(default_factory=list)
    tables: dict[str, PageTable | None] = field(
        default_factory=lambda: {"collection": None, "instrument": None, "people": None}
    )
    examples: list[dict[str, Any]] = field(default_factory=list)


def collection_of(
    given: Mapping[str, Any] | None, evidence: Evidence | None, verdicts: list[Verdict], scale: Scale
) -> CollectionPart:
    """The page's part on a collection; an empty one for a pool that brought its outcomes.

    Args:
        given: answers and scores (what these stages found, see `chain.answers.AnswersSummary` and
            `chain.scores.ScoresSummary`), instrument (what was measured), table (scores.parquet).
    """
    if not given:
        return CollectionPart()
    answers, scores, measured = given["answers"], given["scores"], given["instrument"]
    by = ", ".join(f"{name} ({data['kind']})" for name, data in measured["scores"].items())
    cells = answers.prompts * len(answers.counts)
    drawn = f" (drawn: {answers.rows:,} of {cells:,} answers)" if answers.rows < cells else ""
    text = (
        f"{answers.prompts:,} of {answers.prompts_in_all:,} prompts were put to {len(answers.counts)} models"
        f"{drawn} for {money(answers.paid)}, and scored by {by}"
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
    banners = [
        *([stopped] if answers.stopped else []),
        *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in answers.repriced),
        *scores.limits,
    ]
    corrected = _corrected(given["table"], evidence, verdicts, list(measured["judges"]))
    examples = [e for data in measured["judges"].values() for e in data.get("examples", [])]
    tables = {
        "collection": _asked(answers.counts),
        "instrument": _instrument(measured["judges"]),
        "people": _people(measured["judges"]),
    }
    return CollectionPart(text, [*corrected, *banners], tables, examples)


def _asked(counts: Mapping[str, Mapping[str, float]]) -> PageTable | None:
    rows = [(model, c, max(c.get("calls", 0.0), 1.0)) for model, c in counts.items()]
    columns = {
        "Model": lambda r: words(r[0]),
        "Answers": lambda r: number(r[2], 0),
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
        (r for data in judges.values() for r in data.get("means", {}).items()),
        columns,
        "Prediction-powered: all judgements, corrected by the labelled sample.",
    )


def _corrected(
    table: Path, evidence: Evidence | None, verdicts: list[Verdict], judges: list[str]
) -> list[str]:
    """A sentence per verdict's middle rho: the difference as people would have it."""
    cases = {v.rho: v for v in verdicts if v.rho is not None}
    if evidence is None or not cases or len(judges) != 1:
        return []
    rho = middle_rho(cases)
    case = cases[rho]
    labels, column = pq.read_table(table).to_pandas(), f"people {judges[0]}"
    if column not in labels:
        return []
    problem, n, k = evidence.problem, evidence.problem.n, len(evidence.problem.arms)
    by_model = labels.pivot(index="query_id", columns="model", values=column)
    people = by_model.reindex(index=problem.query_ids, columns=list(problem.arms)).to_numpy(float)
    alone = np.zeros((n, k))
    alone[:, problem.arms.index(case.model)] = 1.0
    weight = _weights(evidence, case.router, rho) - alone
    judged, labelled = real_values(problem, rho).utility, ~np.isnan(people)
    of_judge, of_people = (clipped_utility(x, problem.costs, rho) for x in (problem.scores, people))
    by_people = np.where(labelled, judged + of_people - of_judge, np.nan)
    stands, seen = None, problem.observed
    if seen is not None:  # one of the answers that were asked was drawn to be labelled
        stands = (seen > 0).sum(axis=1, keepdims=True) * real_weights(seen)
    prompts = int(labelled.any(axis=1).sum())
    if prompts < 10:
        return [
            f"People labelled {prompts} test prompts only: too few to correct the verdict by (10 are needed)."
        ]
    found_by: Sampled = corrected_sum(weight, judged, by_people, problem.clusters, stands)
    return [
        f"Figures on this page are by the judge. As people would score: {label(case.router)} minus "
        f"{case.model} at ρ = {rho:g} is {signed_text(found_by.value)} ({signed_text(found_by.low)} to "
        f"{signed_text(found_by.high)}, 95 %; answers to {prompts} of {n} test prompts are labelled); by the "
        f"judge {signed_text((weight * judged).sum(axis=1).mean())}."
    ]


def _weights(evidence: Evidence, policy: str, rho: float) -> np.ndarray:
    """`[n, K]`: share of trials in which a policy asked each model a query."""
    trace = evidence.trace(policy, rho)
    counts = np.zeros((evidence.problem.n, len(evidence.problem.arms)))
    np.add.at(counts, (trace.order.ravel(), trace.actions.ravel()), 1.0)
    shares: np.ndarray = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    return shares
