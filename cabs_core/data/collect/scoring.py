"""Scoring of collected answers: each scorer on the answers to which it applies, and their weighted mean."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cabs_core.base.errors import DataError, counted
from cabs_core.base.units import money
from cabs_core.data.collect.answers import CollectError, described
from cabs_core.data.collect.asking import ModelRun, Purse, Tally, ask
from cabs_core.data.collect.calls import AskedModel, Question
from cabs_core.data.collect.plan import Collection, check_keys
from cabs_core.data.collect.scorers import judge as judging
from cabs_core.data.collect.scorers.command import ScoreFault, command_score
from cabs_core.data.collect.scorers.labels import read_labels
from cabs_core.data.collect.scorers.text import text_score
from cabs_core.data.collect.store import WORTHLESS, AnswerStore
from cabs_core.data.collect.trust import trusted_program
from cabs_core.data.pool_files.collect import Command, Judge, Labels, Scorer

#: Answers without a score that a note names.
_SHOWN_FAULTS = 3


@dataclass(frozen=True)
class Cell:
    """One answer to score.

    Attributes:
        query: id of the query.
        prompt: text of the prompt.
        task: task of the query.
        row: {column: text} of the columns that scorers read.
        model: model that answered. Judges are not told the model; programs of the user are.
        state: state of the answer, as in `StoredAnswer`.
        text: text of the answer. None if it was not kept or there is none.
    """

    query: str
    prompt: str
    task: str
    row: Mapping[str, str]
    model: str
    state: str
    text: str | None


@dataclass
class Scored:
    """Scores of N answers.

    Attributes:
        score: [N] in [0, 1], NaN if an answer has no score.
        parts: {scorer: [N] scores in [0, 1], NaN if the scorer gives an answer no score}.
        preferences: {judge that compares: [(place of the answer, share of wins when it stands first, share of
            wins when it stands second), ...]} of the answers with a grade in both orders.
        spent: cost of judging in this run, USD.
        paid: cost of judging in all runs, USD.
        unread: {judge: number of its replies that hold no grade}.
        faults: sentences about answers to which a program of the user gave no score.
    """

    score: np.ndarray
    parts: dict[str, np.ndarray]
    preferences: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)
    spent: float = 0.0
    paid: float = 0.0
    unread: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def score_cells(
    collection: Collection,
    cells: Sequence[Cell],
    store: AnswerStore,
    notify: Callable[[str], None] = lambda text: None,
) -> Scored:
    """Score every answer by the pool's scorers.

    The score of an answer is the weighted mean of the scorers that give it a score, NaN if none does. A
    refused or rejected answer has the score 0 by every scorer that applies to its task.

    Args:
        notify: called with sentences about the progress.

    Raises:
        CollectError: a judge could not be asked everything, or its budget ended.
        DataError: a text was not kept, or a reference, a file or a program is wrong.
        UntrustedCommand: nobody approved a program as it is now.
        RouterError: the API key of a judge is not set, or its file cannot be read.
    """
    n = len(cells)
    scored = Scored(np.full(n, np.nan), {})
    lost = next((c for c in cells if c.text is None and c.state not in WORTHLESS), None)
    if lost is not None:
        raise DataError(
            f"pool {collection.pool_file.pool.name}: the answer of {lost.model} to query {lost.query} was "
            "kept as a hash, so it cannot be scored again: set collect.keep: text and ask again under other "
            "params, or keep the scores as they were"
        )
    total = np.zeros(n)
    weight = np.zeros(n)
    worthless = np.array([c.state in WORTHLESS for c in cells], dtype=bool)
    for scorer in collection.collect.scores:
        applies = np.array([not scorer.tasks or c.task in scorer.tasks for c in cells], dtype=bool)
        values = np.full(n, np.nan)
        values[applies & worthless] = 0.0
        places = np.flatnonzero(applies & ~worthless).tolist()
        if isinstance(scorer, Judge):
            _judge(scorer, collection, cells, places, store, values, scored, notify)
        elif isinstance(scorer, Labels):
            path = collection.pool_file.existing_file(scorer.path, "collect.scores.path")
            labels = read_labels(path, scorer.score_range)
            for i in places:
                values[i] = labels.score_of(
                    cells[i].query, cells[i].prompt, cells[i].model, cells[i].text or ""
                )
        elif isinstance(scorer, Command):
            _run_command(scorer, collection, cells, places, values, scored)
        else:
            score = text_score(scorer, collection.pool_file.existing_file)
            for i in places:
                values[i] = score(cells[i].prompt, cells[i].text or "", cells[i].row)
        scored.parts[scorer.called] = values
        there = ~np.isnan(values)
        total[there] += scorer.weight * values[there]
        weight[there] += scorer.weight
    scored.score[weight > 0] = total[weight > 0] / weight[weight > 0]
    return scored


def _run_command(
    scorer: Command,
    collection: Collection,
    cells: Sequence[Cell],
    places: Sequence[int],
    values: np.ndarray,
    scored: Scored,
) -> None:
    """Fill in the scores that a program of the user gives.

    An answer on which the program fails stays without a score.

    Args:
        places: places of the answers that are scored.
        values: [N] scores, which are changed.
        scored: result, which gets a sentence about failures.

    Raises:
        UntrustedCommand: nobody approved the program as it is now.
        DataError: the program fails on every answer.
    """
    program = trusted_program(collection.pool_file, scorer)

    def attempt(place: int) -> float | ScoreFault:
        cell = cells[place]
        answer = {
            "query_id": cell.query,
            "task": cell.task,
            "model": cell.model,
            "prompt": cell.prompt,
            "answer": cell.text or "",
            "reference": None if scorer.column is None else cell.row[scorer.column],
        }
        try:
            return command_score(program.words, answer, scorer.seconds)
        except ScoreFault as fault:
            return fault

    faults: list[str] = []
    workers = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        for place, result in zip(places, workers.map(attempt, places), strict=True):
            if isinstance(result, ScoreFault):
                faults.append(f"query {cells[place].query}, model {cells[place].model}: {result}")
            else:
                values[place] = result
    finally:
        workers.shutdown(cancel_futures=True)  # an interruption starts no further program
    if not faults:
        return
    text = f"{scorer.called}: {counted(len(faults), 'answer')} of {len(places):,} without a score"
    if len(faults) == len(places):
        raise DataError(
            f"pool {collection.pool_file.pool.name}: {text}; the first: {faults[0]}. The answers are kept: "
            "mend the program, approve it (cabs pool add) and run it again"
        )
    scored.faults.append(f"{text}, such as {'; '.join(faults[:_SHOWN_FAULTS])}")


def _judge(
    judge: Judge,
    collection: Collection,
    cells: Sequence[Cell],
    places: Sequence[int],
    store: AnswerStore,
    values: np.ndarray,
    scored: Scored,
    notify: Callable[[str], None],
) -> None:
    """Fill in the scores that a judge gives.

    A judge that compares sees each answer together with that of the model `against`, in both orders. The
    score is its mean share of wins, and 0.5 for the model `against` itself. An answer stays without a score
    if no reply on it holds a grade.

    Args:
        places: places of the answers that are scored.
        values: [N] scores, which are changed.
        scored: result, which gets costs, preferences and the number of unread replies.

    Raises:
        CollectError: the judge could not be asked everything, or its budget ended.
        RouterError: the API key of the judge is not set, or its file cannot be read.
    """
    target = collection.judges[judge.called]
    questions = list(_questions(judge, target, cells, places))
    keys = list(dict.fromkeys(call.key for _, call, _ in questions))
    check_keys([target])
    with store.asking(notify):
        paid, perhaps, in_flight = store.spent(keys)
        if in_flight:
            notify(f"{in_flight} calls of the judge, under way when a run ended, count with {money(perhaps)}")
        purse = Purse(judge.max_usd, paid + perhaps)

        def calls(_: AskedModel) -> Iterator[Question]:
            return (call for _, call, _ in questions)

        runs: dict[str, ModelRun] = {}
        scored.spent += ask(
            calls, [target], Tally(len(questions)), collection.collect, store, purse, notify, runs
        )
    run = runs[target.name]
    if purse.refused or not run.open or run.unanswered:
        if purse.refused:
            what = f"its budget ended (max_usd {judge.max_usd:g})"
        else:
            what = "it could not be asked everything"
        raise CollectError(
            f"pool {collection.pool_file.pool.name}: judge {judge.called}: {what}: {described(run)}. What "
            "it said is kept; mend it and run it again"
        )
    scored.paid += purse.spent
    replies = store.get(keys)
    unread = 0
    shares: dict[int, list[float]] = {}
    for place, call, first in questions:
        text = replies[call.key].text or ""
        if judge.against:
            value = judging.preference_of(text)
        else:
            value = judging.grade_of(text, judge.levels)
        if value is None:
            unread += 1
            continue
        shares.setdefault(place, []).append(value if first else 1.0 - value)
    for place, both in shares.items():
        values[place] = float(np.mean(both))
        if judge.against and len(both) == 2:
            scored.preferences.setdefault(judge.called, []).append((place, both[0], both[1]))
    if judge.against:
        for i in places:
            if cells[i].model == judge.against:
                values[i] = 0.5
    scored.unread[judge.called] = unread


def _questions(
    judge: Judge, target: AskedModel, cells: Sequence[Cell], places: Sequence[int]
) -> Iterator[tuple[int, Question, bool]]:
    """Yield (place, call, is_first): one call for each answer, or one in each order if the judge compares.

    The answers of the model `against` get no call. If this model has no answer to a query, an empty text
    stands for its answer. `is_first` is True if the answer stands first in the question.
    """
    others = {cell.query: cell.text or "" for cell in cells if cell.model == judge.against}
    for i in places:
        cell = cells[i]
        if cell.model == judge.against:
            continue
        second = others.get(cell.query, "")
        asked = judging.questions(judge, target, cell.prompt, cell.text or "", second, dict(cell.row))
        for number, call in enumerate(asked):
            yield i, call, number == 0


def scorer_settings(scorers: Iterable[Scorer]) -> dict[str, Any]:
    """Return {scorer: settings} as JSON values, for the record of an artifact.

    The settings are kind, weight and tasks, and for a judge also its model, whether it has labels, and the
    model against which it compares.
    """
    return {
        s.called: {
            "kind": s.kind,
            "weight": s.weight,
            "tasks": list(s.tasks),
            **(
                {"model": s.model, "labels": bool(s.labels), "against": s.against}
                if isinstance(s, Judge)
                else {}
            ),
        }
        for s in scorers
    }
