"""Collecting answers: put every prompt to every model, and write the table of answers."""

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

ANSWERS, PROMPTS = "answers.parquet", "prompts.parquet"
#: prompts whose answers are held in memory at a time
_BLOCK = 1000
#: least number of prompts of a part where the budget may end first
_STEP = 20
_SCHEMA = pa.schema(
    [(n, pa.string()) for n in ("query_id", "model", "key", "state", "text", "sha", "finish")]
    + [(n, pa.float64()) for n in ("n_input_tokens", "n_output_tokens", "cost", "latency")]
    + [("estimated", pa.bool_())]
)


class CollectError(CabsError):
    """A collection could not be completed; the message says how each model is doing. Answers are kept."""


@dataclass
class Collected:
    """What a collection came to.

    Attributes:
        prompts: number of prompts, the first of `order`, that every model has answered.
        lanes: how each model did in this run. spent, paid: USD in this run, and in all. in_flight: calls that
            were under way when an earlier run died.
        stopped: why it ended before all prompts, if it did; by_budget: that was the budget.
    """

    prompts: int
    lanes: dict[str, ModelRun]
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
    """Make the calls that have no answer yet.

    Raises:
        CollectError: a model could not be asked everything; the message says why, per model, and what to do.
        RouterError: an API key is missing. StorageError: the store cannot be written to.
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
        models, lanes = collection.models, dict[str, ModelRun]()
        collected = Collected(0, lanes, 0.0, 0.0, in_flight)
        progress = Tally(collection.size * len(models))

        def make(first: int, last: int) -> bool:
            def calls(target: AskedModel) -> Iterator[Question]:
                return collection.calls(target, first, last)

            collected.spent += ask(calls, models, progress, collect, store, purse, notify, lanes)
            _refuse_failures(collection, models, lanes, purse.refused)
            return purse.refused

        for last in parts(collection, purse.most - purse.spent):
            first = collected.prompts
            if make(first, last):
                done = first + collection.answered(store, first, last)
                # a call that was refused while dearer ones were under way may fit now
                while done < last and purse.allows(collection.most(store, done)):
                    for lane in lanes.values():
                        lane.reopen()
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
    """Why a collection that its budget ended after `done` prompts can go on; '' where it cannot.

    Args:
        paid: USD when it ended; more than the store knows where the answers are kept elsewhere.
    """
    if done >= collection.size:
        return ""
    most, cap = collection.most(store, done), collection.collect.max_usd
    left = cap - max(sum(collection.spent(store)[:2]), paid)
    if most > 0 and most > left:
        return ""
    return (
        f"max_usd allows more prompts: {money(left)} of {money(cap)} is left, the next may cost {money(most)}"
    )


def parts(collection: Collection, budget: float) -> list[int]:
    """Return the numbers of prompts after which all models wait for each other; the last one is the end.

    Where the budget (USD left) may end before the prompts do, the models go on side by side in small parts:
    an answer of one model is of no use if the others cannot be paid for the same prompt.
    """
    goal = collection.size
    most = sum(call.bound for target in collection.models for call in collection.calls(target, 0, goal))
    if most <= budget:
        return [goal]
    step = max(_STEP, goal // 50)
    return [*range(step, goal, step), goal]


def _refuse_failures(
    collection: Collection, models: Sequence[AskedModel], lanes: dict[str, ModelRun], budget: bool
) -> None:
    bad = [
        t.name
        for t in models
        if lanes[t.name].state.startswith("given up") or (lanes[t.name].unanswered and not budget)
    ]
    if not bad:
        return
    lines = [f"  {t.name}: {described(lanes[t.name])}" for t in models]
    raise CollectError(
        f"pool {collection.pool_file.pool.name}: {', '.join(bad)} could not be asked everything. What was "
        "answered is kept, and not asked again:\n"
        + "\n".join(lines)
        + f"\nMend it, or take {bad[0]!r} out of models, and run it again"
    )


def described(lane: ModelRun) -> str:
    """How a model did, in words."""
    text = f"{lane.answered + lane.known:,} answered ({lane.known:,} known before), {money(lane.usd)}"
    if lane.again:
        text += f", {lane.again:,} repeats"
    if lane.unanswered:
        text += (
            f", {lane.unanswered:,} without an answer{f' ({lane.note})' if lane.note and lane.open else ''}"
        )
    return text if lane.open else f"{text}; {lane.state}"


def write_answers(
    collection: Collection, collected: Collected, store: AnswerStore, folder: Path
) -> dict[str, Any]:
    """Write `prompts.parquet` and `answers.parquet`, a block at a time, with costs at today's prices.

    Returns:
        models: counts of what is in them, per model; repriced: sentences about prices that changed.
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
