"""Answers that the user brings in a table, such as those of a batch job, stored like collected answers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

from cabs_core.base.errors import DataError, listed
from cabs_core.data.collect.calls import AskedModel, Question
from cabs_core.data.collect.plan import Collection
from cabs_core.data.collect.store import AnswerStore, StoredAnswer
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN, text_tokens
from cabs_core.data.endpoints.usage import Tokens
from cabs_core.data.tables import open_table
from cabs_core.data.tables.cells import number_column, prompt_column, text_column

#: Columns with token counts.
_TOKENS = ("n_input_tokens", "n_output_tokens")


@dataclass(frozen=True)
class Brought:
    """Counts of the answers in a table.

    Attributes:
        kept: answers that were stored.
        known: answers to calls that had an answer before.
        others: answers to prompts that the pool does not have.
    """

    kept: int
    known: int
    others: int

    @property
    def in_words(self) -> str:
        """The counts in one line."""
        return (
            f"{self.kept:,} answers kept, {self.known:,} known before, {self.others:,} to prompts that the "
            "pool does not have"
        )


def keep_answers(collection: Collection, path: Path, store: AnswerStore) -> Brought:
    """Store the answers of a table, so that the collection does not ask for them.

    The answers count as paid at the prices of the upstreams file. A call that has an answer already keeps
    that answer. The whole table is checked before the first answer is stored.

    Args:
        path: a table with the columns prompt, model and answer. The columns n_input_tokens, n_output_tokens
            and latency (seconds) are read if they are there. If one of the two counts is missing in a row,
            both are estimated from the texts.

    Raises:
        DataError: a column is missing, a value is wrong, a model is none of the pool's, or no prompt is one
            of the pool's.
    """
    table = open_table(path)
    for column in ("prompt", "model", "answer"):
        if not table.has(column):
            raise DataError(
                f"{path}: no column {column!r}; expected prompt, model and answer, found "
                f"{listed(table.columns)}"
            )
    optional = [column for column in (*_TOKENS, "latency") if table.has(column)]
    frame = table.read(["prompt", "model", "answer", *optional])
    prompts = prompt_column(frame["prompt"], table.place("prompt")).tolist()
    models = text_column(frame["model"], "model", table.place("model")).tolist()
    answers = text_column(frame["answer"], "answer", table.place("answer")).tolist()
    numbers = {c: number_column(frame[c], c, table.place(c)).tolist() for c in optional}
    targets = {target.name: target for target in collection.models}
    places = {text: place for place, text in enumerate(collection.prompts.texts)}
    for row, model in enumerate(models):
        if model not in targets:
            where = table.place("model").at(row)
            raise DataError(
                f"{where}: {model!r:.100} is no model of the pool; expected one of {listed(targets)}"
            )
    kept = 0
    known = 0
    others = 0
    with store.asking():
        for row, (prompt, model, text) in enumerate(zip(prompts, models, answers, strict=True)):
            if prompt not in places:
                others += 1
                continue
            call = collection.call(targets[model], places[prompt])
            if store.known([call.key]):
                known += 1
                continue
            values = {name: column[row] for name, column in numbers.items()}
            store.receive(store.send(call.key, model, 0.0), _stored(call, targets[model], text, values))
            kept += 1
    if not kept and not known:
        raise DataError(f"{path}: none of its {others:,} rows has a prompt of the pool")
    return Brought(kept, known, others)


def _stored(call: Question, target: AskedModel, text: str, values: dict[str, float]) -> StoredAnswer:
    """Return an answer of the table as the store keeps it, priced by its tokens.

    Both token counts are estimated from the texts of call and answer unless the row has both: a single count
    is not used. The latency is unknown if the row has none.

    Args:
        values: n_input_tokens, n_output_tokens and latency (seconds) of the row. A value may be absent or
            NaN.
    """
    counts = [values.get(name, math.nan) for name in _TOKENS]
    estimated = any(math.isnan(count) for count in counts)
    if estimated:
        counts = [math.ceil(call.characters / BYTES_A_TOKEN), math.ceil(text_tokens(text))]
    seconds = values.get("latency", math.nan)
    answer = StoredAnswer(
        key=call.key,
        model=target.name,
        state="answered",
        text=text,
        sha=hashlib.sha256(text.encode()).hexdigest()[:32],
        tokens=Tokens(input=counts[0], output=counts[1]),
        estimated=estimated,
        seconds=None if math.isnan(seconds) else seconds,
        note="brought in a table",
    )
    return replace(answer, usd=target.cost_of(answer))
