"""Stage `scores`: the answers of a collected pool scored, and how good the instrument is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.errors import DataError
from cabs_core.base.statistics.people import corrected_mean
from cabs_core.base.units import money, percentage
from cabs_core.data.collect import instrument
from cabs_core.data.collect.answers import ANSWERS
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.scorers.labels import blank_sheet, read_labels
from cabs_core.data.collect.scoring import Cell, Scored, score_cells, scorer_settings
from cabs_core.data.collect.source import PART, PEOPLE, SCORES, cells_of
from cabs_core.data.collect.store import WORTHLESS, AnswerStore
from cabs_core.data.collect.trust import require_trusted
from cabs_core.pipeline.artifacts.results import Summary

if TYPE_CHECKING:
    from cabs_core.data.collect.plan import Collection
    from cabs_core.data.pool_files.collect import Judge
    from cabs_core.pipeline.artifacts import Chain, Options, Target

INSTRUMENT = "instrument.json"
#: largest number of answers that are shown because judge and people differ, and characters of each text
_EXAMPLES = 10
_LONGEST = 600


@dataclass(frozen=True, kw_only=True)
class ScoresSummary(Summary):
    """Scores of collected answers, and the quality of the instrument that gave them.

    Attributes:
        unscored: number of answers without a score; unread: {judge: number of replies without a grade}.
        means: {model: mean score} of the models of which an answer has a score.
        kinds: {score: its kind}; judges: {judge: see `_measured`}.
        spent, paid: USD for judging in the run that made these scores, and in all runs.
        limits: warnings about judges, refused and truncated answers, and faults of scoring, in sentences.
    """

    unscored: int
    means: dict[str, float]
    kinds: dict[str, str]
    spent: float
    paid: float
    unread: dict[str, int]
    limits: list[str]
    judges: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return the figures of the summary under the names that a person reads, for Dagster's metadata."""
        return {
            **super().shown(),
            "without a score": self.unscored,
            "mean score": self.means,
            "scored by": self.kinds,
            "judging, USD in this run": self.spent,
            "judging, USD in all": self.paid,
            "replies without a grade": self.unread,
        }

    def lines(self) -> list[str]:
        """Return mean scores, their limits and the cost of judging as lines for a terminal."""
        return [
            *(f"  {model}: mean score {score:.3f}" for model, score in self.means.items()),
            *(f"note: {text}" for text in self.limits),
            f"scores: {money(self.spent)} in the run that made them, {money(self.paid)} in all",
        ]


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> ScoresSummary:
    """Score every answer, measure every judge, and write the scores and `instrument.json` to the folder.

    With `collect.keep: hash` the texts of the answers are then deleted from the answer store.
    """
    require_trusted(chain.pool_file)
    collection = collection_of(chain.pool_file)
    cells = cells_of(inputs["answers"])
    with AnswerStore() as store:
        hidden = collection.collect.keep == "hash"
        if hidden:
            cells = _with_texts(cells, inputs["answers"], store)
        scored = score_cells(collection, cells, store, options.notify)
        if hidden:
            store.forget_texts(pq.read_table(inputs["answers"] / ANSWERS, columns=["key"])["key"].to_pylist())
    people = {j.called: _people(j, collection, cells) for j in collection.collect.judges}
    _write(folder / SCORES, cells, scored, people)
    shown: dict[str, Any] = {
        "scores": scorer_settings(collection.collect.scores),
        "judges": {
            j.called: _measured(j, collection, cells, scored, people[j.called])
            for j in collection.collect.judges
        },
        "refusals": _refusals(cells, scored),
    }
    (folder / INSTRUMENT).write_text(json.dumps(shown, indent=1, ensure_ascii=False), encoding="utf-8")
    sentences = [
        f"judge {name}: {text}"
        for name, data in shown["judges"].items()
        for text in instrument.warnings(data)
    ]
    sentences += shown["refusals"]
    sentences += scored.faults
    means, without = mean_scores([c.model for c in cells], scored.score)
    sentences += without
    return ScoresSummary(
        rows=len(cells),
        unscored=int(np.isnan(scored.score).sum()),
        means=means,
        kinds={s.called: s.kind for s in collection.collect.scores},
        spent=scored.spent,
        paid=scored.paid,
        unread=scored.unread,
        limits=sentences,
        judges=shown["judges"],
    )


def _with_texts(cells: list[Cell], answers: Path, store: AnswerStore) -> list[Cell]:
    """Return the cells with their texts from the store, None where the store lacks a text.

    A pool with `collect.keep: hash` has its texts only in the store, and `build` removes them from there
    after the answers are scored.
    """
    keys = pq.read_table(answers / ANSWERS, columns=["key"])["key"].to_pylist()
    known = store.get(keys)
    return [
        Cell(**(vars(c) | {"text": known[k].text if k in known else None}))
        for c, k in zip(cells, keys, strict=True)
    ]


def _people(judge: Judge, collection: Collection, cells: Sequence[Cell]) -> np.ndarray:
    """Return the labels `[N]` of people on the scale of a judge, NaN where an answer has no label."""
    if judge.labels is None:
        return np.full(len(cells), np.nan)
    labels = read_labels(collection.pool_file.existing_file(judge.labels, "collect.scores.labels"))
    people = np.array([labels.score_of(c.query, c.prompt, c.model, c.text or "") for c in cells])
    if judge.against is None:
        return people
    return compared_with(people, cells, judge.against)


def _write(path: Path, cells: Sequence[Cell], scored: Scored, people: Mapping[str, np.ndarray]) -> None:
    """Write the scores, their parts and the labels of people as a parquet file."""
    columns: dict[str, Any] = {
        "query_id": pa.array([c.query for c in cells], pa.string()),
        "model": pa.array([c.model for c in cells], pa.string()),
        "score": pa.array(scored.score, from_pandas=True),
    }
    columns |= {f"{PART}{name}": pa.array(values, from_pandas=True) for name, values in scored.parts.items()}
    columns |= {
        f"{PEOPLE}{name}": pa.array(labels, from_pandas=True)
        for name, labels in people.items()
        if not np.isnan(labels).all()
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def mean_scores(models: Sequence[str], scores: np.ndarray) -> tuple[dict[str, float], list[str]]:
    """Return {model: mean score}, sorted, and a sentence about each model of which no answer has a score.

    Args:
        models: name of the model of each answer.
        scores: score of each answer, NaN for an answer without a score.
    """
    names = np.array(models, dtype=object)
    means = {}
    sentences = []
    for model in sorted(set(models)):
        values = scores[(names == model) & ~np.isnan(scores)]
        if len(values):
            means[model] = round(float(values.mean()), 4)
        else:
            sentences.append(f"none of the answers of {model} has a score")
    return means, sentences


def _measured(
    judge: Judge, collection: Collection, cells: Sequence[Cell], scored: Scored, people: np.ndarray
) -> dict[str, Any]:
    """Return the measurement of a judge as a dict.

    The dict names the judge's model. For a judge that compares two answers it has the effect of their order.
    If people labelled at least two of the answers that the judge scored, the dict has the agreement with
    people, corrected means and up to 10 examples where both differ by 0.5 or more, the largest first. If they
    labelled fewer, `labelled` is 0.
    """
    values = scored.parts[judge.called]
    shown: dict[str, Any] = {"model": collection.judges[judge.called].model, "labelled": 0}
    pairs = scored.preferences.get(judge.called, [])
    if pairs:
        shown["position"] = instrument.position([(cells[i].query, a, b) for i, a, b in pairs])
    rows = np.flatnonzero(~np.isnan(people) & ~np.isnan(values)).tolist()
    if len(rows) < 2:
        return shown
    chosen = [cells[i] for i in rows]
    shown |= instrument.measure(
        shown["model"],
        values[rows],
        people[rows],
        [c.query for c in chosen],
        [c.model for c in chosen],
        np.array([len(c.text or "") for c in chosen]),
    )
    shown["means"] = _corrected(cells, values, people)
    apart = sorted(rows, key=lambda i: -abs(values[i] - people[i]))[:_EXAMPLES]
    shown["examples"] = [
        {
            "prompt": cells[i].prompt[:_LONGEST],
            "answer": (cells[i].text or "")[:_LONGEST],
            "model": cells[i].model,
            "judge": float(values[i]),
            "people": float(people[i]),
        }
        for i in apart
        if abs(values[i] - people[i]) >= 0.5
    ]
    return shown


def _corrected(cells: Sequence[Cell], values: np.ndarray, people: np.ndarray) -> dict[str, Any]:
    """Return {model: {"judge": mean by the judge, "people": estimated mean by people (prediction-powered)}}.

    Models with fewer than two answers that both judge and people scored are left out.
    """
    names = np.array([c.model for c in cells], dtype=object)
    means = {}
    for model in sorted(set(names.tolist())):
        mine = (names == model) & ~np.isnan(values)
        labelled = mine & ~np.isnan(people)
        if labelled.sum() >= 2:
            queries = np.array([cells[i].query for i in np.flatnonzero(labelled).tolist()])
            corrected = corrected_mean(values[labelled], people[labelled], values[mine & ~labelled], queries)
            means[model] = {"judge": float(values[mine].mean()), "people": asdict(corrected)}
    return means


def _refusals(cells: Sequence[Cell], scored: Scored) -> list[str]:
    """Return warnings about refused and truncated answers, one sentence each.

    A model has a sentence if a notable share of its answers is refused or truncated. The last sentence says
    that refusals decide which model is best, if they do.
    """
    models = list(dict.fromkeys(c.model for c in cells))
    states = np.array([c.state for c in cells], dtype=object)
    names = np.array([c.model for c in cells], dtype=object)
    sentences = []
    for model in models:
        mine = states[names == model]
        for state, what in (
            ("refused", "refused to answer"),
            ("truncated", "were cut at the limit of tokens (collect.params)"),
        ):
            part = float((mine == state).mean())
            if part > instrument.NOTABLE:
                sentences.append(f"{model}: {percentage(part)} of its answers {what}")
    query, arm = (np.unique(x, return_inverse=True)[1] for x in ([c.query for c in cells], names.astype(str)))
    table = np.full((query.max(initial=-1) + 1, len(models)), np.nan)
    refused = np.zeros(table.shape, dtype=bool)
    table[query, arm] = scored.score
    refused[query, arm] = np.isin(states, WORTHLESS)
    text = instrument.refusals_decide(sorted(models), table, refused)
    if text:
        return [*sentences, text]
    return sentences


def sheet(answers: Path, number: int, seed: int, beside: Sequence[str] = ()) -> pd.DataFrame:
    """Return about `number` answers for people to label, without the models' names, drawn at random.

    The table has the columns of `blank_sheet`. Every prompt gives one answer before any prompt gives a second
    one. An answer that several models gave to a prompt stands once.

    Args:
        answers: folder of the artifact `answers`.
        number: number of answers. Answers of the models `beside` can exceed this number.
        seed: seed of the draw.
        beside: models with which a judge compares others. Their answers to the chosen prompts are returned,
            too.

    Raises:
        DataError: the texts were not kept, or no model answered.
    """
    cells = [c for c in cells_of(answers) if c.state in ("answered", "truncated")]
    if not cells:
        raise DataError("no model answered a prompt: there is nothing to label")
    if cells[0].text is None:
        raise DataError("the answers were kept as hashes (collect.keep: hash): label before, or keep texts")
    rng = np.random.default_rng(seed)
    by_query: dict[str, list[int]] = {}
    for i in rng.permutation(len(cells)).tolist():
        by_query.setdefault(cells[i].query, []).append(i)
    queries = list(by_query)
    chosen: dict[int, None] = {}
    # a second answer of a prompt, which says less than one of another, only once every prompt has one
    for turn in range(max(map(len, by_query.values()))):
        for query in queries:
            if len(chosen) >= number:
                break
            mine = by_query[query]
            if turn < len(mine):
                chosen[mine[turn]] = None
                chosen.update(dict.fromkeys(i for i in mine if cells[i].model in beside))
    order = rng.permutation(list(chosen)).tolist()
    return blank_sheet([cells[i].prompt for i in order], [cells[i].text or "" for i in order])


def compared_with(people: np.ndarray, cells: Sequence[Cell], against: str) -> np.ndarray:
    """Return labels `[N]` on the scale of a judge that compares with one model.

    A label is 1 if people score an answer higher than that model's answer to the same prompt, 0.5 as high, 0
    lower. It is NaN if either has no label, and for the model's own answers.
    """
    theirs = {c.query: value for c, value in zip(cells, people, strict=True) if c.model == against}
    their_labels = np.array([np.nan if c.model == against else theirs.get(c.query, np.nan) for c in cells])
    preferred: np.ndarray = 0.5 + 0.5 * np.sign(people - their_labels)
    return preferred
