"""Collection of answers: every prompt is put to every model, and the table of answers is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.errors import CabsError
from cabs_core.base.units import money
from cabs_core.data.collect.asking import ModelRun, Purse, Tally, ask
from cabs_core.data.collect.calls import AskedModel, Question
from cabs_core.data.collect.plan import Collection, check_keys, repriced
from cabs_core.data.collect.store import AnswerStore, StoredAnswer
from cabs_core.data.endpoints.usage import Tokens
from cabs_core.data.pool_files.collect import FEWEST

#: File of the answers in the folder of the artifact.
ANSWERS = "answers.parquet"
#: File of the prompts in the folder of the artifact.
PROMPTS = "prompts.parquet"
#: Prompts whose answers are in memory at a time.
_BLOCK = 1000
#: Least number of prompts of a part if the budget may end before the prompts do.
_STEP = 20
#: Columns of the file of answers.
_SCHEMA = pa.schema(
    [(n, pa.string()) for n in ("query_id", "model", "key", "state", "text", "sha", "finish")]
    + [(n, pa.float64()) for n in ("n_input_tokens", "n_output_tokens", "cost", "latency")]
    + [("estimated", pa.bool_())]
)


class CollectError(CabsError):
    """Error of a collection that could not be completed. The answers that came are kept."""


@dataclass
class Collected:
    """Result of a collection.

    Attributes:
        prompts: number of prompts, the first ones of `Collection.order`, that every model has answered.
        runs: {model: its state in this run}.
        spent: cost of this run, USD.
        paid: cost of all runs, USD.
        in_flight: calls that were under way when an earlier run died. Each counts in `paid` with its largest
            cost.
        stopped: why the collection ended before all prompts, or ''.
        by_budget: True if the budget ended it.
    """

    prompts: int
    runs: dict[str, ModelRun]
    spent: float
    paid: float
    in_flight: int
    stopped: str = ""
    by_budget: bool = False


def collect_answers(
    collection: Collection,
    store: AnswerStore,
    notify: Callable[[str], None] = lambda text: None,
) -> Collected:
    """Make the calls of a collection that have no answer yet, and return what came of them.

    Args:
        notify: called with sentences about the progress.

    Raises:
        CollectError: a model could not be asked everything, or the budget ended after too few prompts. The
            message says why for each model, and what to do.
        RouterError: an API key is missing.
        StorageError: the store cannot be written to.
    """
    collect = collection.collect
    check_keys(collection.models)
    with store.asking(notify):
        paid, perhaps, in_flight = collection.spent(store)
        if in_flight:
            notify(
                f"{in_flight} calls were under way when an earlier run ended: they are asked again if they "
                f"have no answer, and count with the most that they can have cost, {money(perhaps)}"
            )
        purse = Purse(collect.max_usd, paid + perhaps)
        models = collection.models
        runs: dict[str, ModelRun] = {}
        collected = Collected(0, runs, 0.0, 0.0, in_flight)
        progress = Tally(collection.size * len(models))

        def make(first: int, last: int) -> bool:
            def calls(target: AskedModel) -> Iterator[Question]:
                return collection.calls(target, first, last)

            collected.spent += ask(calls, models, progress, collect, store, purse, notify, runs)
            _refuse_failures(collection, models, runs, purse.refused)
            return purse.refused

        for last in parts(collection, purse.most - purse.spent):
            first = collected.prompts
            if make(first, last):
                done = first + collection.answered(store, first, last)
                # a call that was refused while dearer ones were under way may fit now
                while done < last and purse.allows(collection.most_cost(store, done)):
                    purse.refused = False
                    for run in runs.values():
                        run.reopen()
                    make(done, done + 1)
                    done += collection.answered(store, done, last)
                collected.prompts, collected.by_budget = done, True
                collected.stopped = (
                    f"the budget: another call could have passed max_usd ({money(collect.max_usd)})"
                )
                break
            collected.prompts = last
        collected.paid = purse.spent
    if collected.prompts < min(FEWEST, collection.size):
        raise CollectError(
            f"pool {collection.pool_file.pool.name}: {collected.stopped or 'too few prompts'}; "
            f"{collected.prompts} prompts have all their answers, and {FEWEST} are the least that a "
            "table is made of. Raise collect.max_usd: what was answered is kept"
        )
    return collected


def affordable(collection: Collection, store: AnswerStore, done: int, paid: float) -> str:
    """Return why a collection that stopped at its budget can go on now, or '' if it cannot.

    Args:
        done: number of prompts that all models had answered.
        paid: cost of the collection when it stopped, USD. The store knows less if the answers were collected
            with another store.
    """
    if done >= collection.size:
        return ""
    most = collection.most_cost(store, done)
    cap = collection.collect.max_usd
    left = cap - max(sum(collection.spent(store)[:2]), paid)
    if most > 0 and most > left:
        return ""
    return (
        f"max_usd allows more prompts: {money(left)} of {money(cap)} is left, the next may cost {money(most)}"
    )


def parts(collection: Collection, budget: float) -> list[int]:
    """Return the numbers of prompts after which the models wait for each other.

    The last number is that of all prompts that are asked, `Collection.size`. If the budget may end before
    the prompts do, the models advance together in small parts, since an answer of one model is of no use if
    the others cannot be paid for the same prompt.

    Args:
        budget: USD that are left.
    """
    goal = collection.size
    most = sum(call.bound for target in collection.models for call in collection.calls(target, 0, goal))
    if most <= budget:
        return [goal]
    step = max(_STEP, goal // 50)
    return [*range(step, goal, step), goal]


def _refuse_failures(
    collection: Collection, models: Sequence[AskedModel], runs: dict[str, ModelRun], budget: bool
) -> None:
    """Raise an error if a model was given up or left calls without an answer.

    Args:
        budget: True if the budget refused a call. Calls without an answer are then no failure.

    Raises:
        CollectError: a model was given up or left calls without an answer.
    """
    bad = [
        t.name
        for t in models
        if runs[t.name].state.startswith("given up") or (runs[t.name].unanswered and not budget)
    ]
    if not bad:
        return
    lines = [f"  {t.name}: {described(runs[t.name])}" for t in models]
    raise CollectError(
        f"pool {collection.pool_file.pool.name}: {', '.join(bad)} could not be asked everything. What was "
        "answered is kept, and not asked again:\n"
        + "\n".join(lines)
        + f"\nMend it, or take {bad[0]!r} out of models, and run it again"
    )


def described(run: ModelRun) -> str:
    """Return in words how many calls a model answered, what they cost, and why it stopped."""
    text = f"{run.answered + run.known:,} answered ({run.known:,} known before), {money(run.usd)}"
    if run.again:
        text += f", {run.again:,} repeats"
    if run.unanswered:
        text += f", {run.unanswered:,} without an answer"
        if run.note and run.open:
            text += f" ({run.note})"
    if run.open:
        return text
    return f"{text}; {run.state}"


def write_answers(
    collection: Collection, collected: Collected, store: AnswerStore, folder: Path
) -> dict[str, Any]:
    """Write the prompts that all models answered, and the answers, with costs at today's prices.

    Args:
        folder: folder of the artifact, in which `prompts.parquet` and `answers.parquet` are written.

    Returns:
        models: {model: {count: value}} with calls, USD, tokens and seconds.
        repriced: sentences about prices that changed.
    """
    chosen = np.sort(collection.order[: collected.prompts])
    prompts = collection.prompts.take(chosen)
    columns = sorted(prompts.rows[0]) if len(prompts) else []
    table = {"query_id": prompts.ids, "prompt": prompts.texts, "task": prompts.tasks}
    if prompts.splits is not None:
        table["split"] = prompts.splits
    table |= {f"column {c}": [row[c] for row in prompts.rows] for c in columns}
    pq.write_table(
        pa.table({k: pa.array(v, pa.string()) for k, v in table.items()}),
        folder / PROMPTS,
        compression="zstd",
    )
    counts: dict[str, dict[str, float]] = {t.name: {} for t in collection.models}
    hidden = collection.collect.keep == "hash"
    with pq.ParquetWriter(folder / ANSWERS, _SCHEMA, compression="zstd") as writer:
        for start in range(0, len(chosen), _BLOCK):
            rows: list[dict[str, Any]] = []
            places = chosen[start : start + _BLOCK].tolist()
            for target in collection.models:
                keys = [collection.call(target, i).key for i in places]
                answers = store.get(keys)
                for i, key in zip(places, keys, strict=True):
                    answer = answers[key]
                    cost = target.cost_of(answer)
                    rows.append(_row(collection.prompts.ids[i], target, answer, cost, hidden))
                    _count(counts[target.name], answer, cost)
            writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
    changed = [repriced(name, row.get("usd", 0.0), row.get("usd today", 0.0)) for name, row in counts.items()]
    return {"models": counts, "repriced": [sentence for sentence in changed if sentence]}


def _row(query: str, target: AskedModel, answer: StoredAnswer, cost: float, hidden: bool) -> dict[str, Any]:
    """Return a row of the file of answers.

    Args:
        hidden: True to leave out the text.
    """
    return {
        "query_id": query,
        "model": target.name,
        "key": answer.key,
        "state": answer.state,
        "text": None if hidden else answer.text,
        "sha": answer.sha,
        "finish": answer.finish,
        "n_input_tokens": None if answer.tokens is None else answer.tokens.input,
        "n_output_tokens": None if answer.tokens is None else answer.tokens.output,
        "cost": cost,
        "latency": answer.seconds,
        "estimated": answer.estimated,
    }


def _count(counts: dict[str, float], answer: StoredAnswer, cost: float) -> None:
    """Add an answer to the counts of its model, in place.

    Args:
        cost: cost of the answer at today's prices, USD.
    """
    tokens = answer.tokens or Tokens()
    values = {
        "calls": 1.0,
        answer.state: 1.0,
        "usd": answer.usd,
        "usd today": cost,
        "tokens in": tokens.input,
        "tokens out": tokens.output,
        "seconds": answer.seconds or 0.0,
        "without usage": float(answer.estimated),
    }
    for name, value in values.items():
        counts[name] = counts.get(name, 0.0) + value
