"""Answers that a user brings in a table: kept once, priced, and never asked for."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from collect_support import MODELS, Running, write_pool

from cabs_core.base.errors import DataError
from cabs_core.data.collect.answers import collect_answers
from cabs_core.data.collect.brought import keep_answers
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore
from tests.stand_in.models import answer_of, make_prompts, make_traces

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"


def table(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "brought.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_what_was_brought_is_not_asked_and_the_rest_is(provider: Running, tmp_path: Path, cabs_home: Path):
    collection = collection_of(write_pool(tmp_path, provider.port))
    texts = collection.prompts.texts
    rows = [{"prompt": text, "model": "grand", "answer": "mine", "latency": 2.0} for text in texts]
    rows.append(rows[0] | {"prompt": "another prompt"})
    with AnswerStore() as store:
        path = table(tmp_path, rows)
        first, second = (keep_answers(collection, path, store) for _ in range(2))
        assert (first.kept, first.known, first.others) == (40, 0, 1)
        assert (second.kept, second.known, second.others) == (0, 40, 1)
        collect_answers(collection, store)
        assert provider.requests() == {name: 40 for name in MODELS if name != "grand"}
        target = next(t for t in collection.models if t.name == "grand")
        (answer,) = store.get([collection.call(target, 0).key]).values()
    assert (answer.text, answer.seconds, answer.estimated) == ("mine", 2.0, True)
    assert answer.usd == target.cost_of(answer) > 0


def test_counts_of_tokens_are_priced(tmp_path: Path, cabs_home: Path):
    collection = collection_of(write_pool(tmp_path, 9))
    row = {"prompt": collection.prompts.texts[0], "model": "tiny", "answer": "a"}
    path = table(tmp_path, [row | {"n_input_tokens": 1000, "n_output_tokens": 500}])
    with AnswerStore() as store:
        keep_answers(collection, path, store)
        paid, _, _ = collection.spent(store)
    assert paid == pytest.approx((1000 * 0.1 + 500 * 0.2) / 1e6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "unheard-of"}, "'unheard-of' is no model of the pool"),
        ({"prompt": "none of the pool"}, "none of its 1 rows has a prompt of the pool"),
        ({"answer": None}, "row 2.*answer"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, cabs_home: Path, change: dict[str, object], said: str):
    collection = collection_of(write_pool(tmp_path, 9))
    row = {"prompt": collection.prompts.texts[0], "model": "tiny", "answer": "a"}
    with AnswerStore() as store, pytest.raises(DataError, match=said):
        keep_answers(collection, table(tmp_path, [row | change]), store)


def test_a_wrong_model_in_the_last_row_keeps_no_answer(tmp_path: Path, cabs_home: Path):
    collection = collection_of(write_pool(tmp_path, 9))
    row = {"prompt": collection.prompts.texts[0], "model": "tiny", "answer": "a"}
    path = table(tmp_path, [row, row | {"model": "unheard-of"}])
    with AnswerStore() as store:
        with pytest.raises(DataError, match="row 3: 'unheard-of'"):
            keep_answers(collection, path, store)
        assert collection.spent(store)[0] == 0.0


def test_a_table_without_its_columns_is_refused(tmp_path: Path, cabs_home: Path):
    collection = collection_of(write_pool(tmp_path, 9))
    with AnswerStore() as store, pytest.raises(DataError, match="no column 'answer'"):
        keep_answers(collection, table(tmp_path, [{"prompt": "p", "model": "tiny"}]), store)


def test_the_examples_of_the_pages_are_what_their_models_answer():
    prompts = pd.read_csv(EXAMPLES / "prompts.csv", dtype=str)
    assert prompts.to_dict("records") == make_prompts(300)
    answers = pd.read_csv(EXAMPLES / "answers.csv", dtype=str)
    assert len(answers) == 300 * len(MODELS)
    assert all(answer_of(row.model, row.prompt) == row.answer for row in answers.itertuples())
    traces = pd.read_json(EXAMPLES / "traces.jsonl.gz", lines=True)
    assert traces["id"].tolist() == [trace["id"] for trace in make_traces(2600)]
