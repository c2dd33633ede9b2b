"""Asking models: once per call, within the budget, over failures of some of them;
and nothing goes anywhere else."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import numpy as np
import pytest
from collect_support import JUDGE, MODELS, Running, write_pool

from cabs_core.base.errors import DataError, RouterError
from cabs_core.data.collect.answers import CollectError, collect_answers, write_answers
from cabs_core.data.collect.plan import collection_of, described, plan_of
from cabs_core.data.collect.scoring import Cell, score_cells
from cabs_core.data.collect.source import cells_of
from cabs_core.data.collect.store import AnswerStore, StoredAnswer
from tests.stand_in.models import PRICES, is_right


def paid(provider: Running) -> float:
    """USD that the provider charged."""
    bill = [(account, *PRICES[model]) for model, account in provider.bill.items()]
    return sum(account.input * into + account.output * out for account, into, out in bill) / 1e6


def cells_in(collection, store: AnswerStore, folder: Path) -> list[Cell]:
    """Ask for the answers, write them, and read them as the scores do."""
    collected = collect_answers(collection, store)
    folder.mkdir()
    write_answers(collection, collected, store, folder)
    return cells_of(folder)


def test_every_prompt_to_every_model_once(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port))
    with AnswerStore() as store:
        collected = collect_answers(collection, store)
        assert collected.prompts == 40 and provider.answered() == 160
        folder = tmp_path / "answers"
        folder.mkdir()
        summary = write_answers(collection, collected, store, folder)
        again = collect_answers(collection, store)
    assert again.spent == 0 and again.paid == pytest.approx(collected.spent)
    assert collected.spent == pytest.approx(paid(provider))
    assert summary["models"]["grand"]["calls"] == 40
    cells = cells_of(folder)
    scored = score_cells(collection, cells, AnswerStore())
    assert scored.score.tolist() == [float(is_right(c.model, c.prompt)) for c in cells]
    assert provider.requests() == dict.fromkeys(MODELS, 40)  # and no judge


def test_a_sample_asks_its_prompts_of_every_model(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port, n=300, sample=50))
    with AnswerStore() as store:
        assert [line.calls for line in plan_of(collection, store)] == [50] * len(MODELS)
        assert collect_answers(collection, store).prompts == 50
    assert provider.requests() == dict.fromkeys(MODELS, 50)


def test_a_larger_sample_keeps_the_prompts_of_the_smaller_one(provider: Running, tmp_path, cabs_home):
    with AnswerStore() as store:
        for sample in (40, 70):
            collect_answers(collection_of(write_pool(tmp_path, provider.port, n=300, sample=sample)), store)
    assert provider.requests() == dict.fromkeys(MODELS, 70)


def test_a_new_prompt_or_model_asks_only_what_is_new(provider: Running, tmp_path, cabs_home):
    with AnswerStore() as store:
        collect_answers(collection_of(write_pool(tmp_path, provider.port, models=("tiny", "coder"))), store)
        assert provider.answered() == 80
        grown = collection_of(write_pool(tmp_path, provider.port, models=("tiny", "coder", "grand")))
        plan = {line.model: line for line in plan_of(grown, store)}
        assert [plan[m].calls - plan[m].known for m in ("tiny", "coder", "grand")] == [0, 0, 40]
        assert plan["tiny"].usd == plan["coder"].usd == 0.0 < plan["grand"].usd
        collect_answers(grown, store)
        assert provider.answered() == 120
        more = write_pool(tmp_path, provider.port, n=45, models=("tiny", "coder"))
        collect_answers(collection_of(more), store)
        assert provider.answered() == 130
        # other parameters are another question
        pool = write_pool(tmp_path, provider.port, models=("tiny", "coder"), params={"max_tokens": 50})
        collect_answers(collection_of(pool), store)
        assert provider.answered() == 130 and sum(provider.requests().values()) == 210


def test_the_plan_asks_for_money_first(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port, scores=[JUDGE]))
    with AnswerStore() as store:
        lines = plan_of(collection, store)
        assert [line.calls for line in lines] == [40, 40, 40, 40, 160]
        assert all(line.low <= line.usd <= line.high for line in lines)
        assert provider.requests() == {}
        before = sum(line.usd for line in lines[:4])
        low, high = sum(line.low for line in lines[:4]), sum(line.high for line in lines[:4])
        collected = collect_answers(collection, store)
        assert low <= collected.spent <= high and before > 0
        assert [line.known for line in plan_of(collection, store)][:4] == [40] * 4
        cells = cells_in(collection, store, tmp_path / "answers")
        scored = score_cells(collection, cells, store)
        after = plan_of(collection, store)[4]  # the judge's questions that were asked are due no more
        assert (after.calls, after.known, after.usd) == (160, 160, 0.0)
        again = score_cells(collection, cells, store)
        assert scored.spent > 0 == again.spent and np.array_equal(scored.score, again.score)
    truth = np.array([is_right(cell.model, cell.prompt) for cell in cells])
    assert 0.7 < (scored.score == truth).mean() < 0.95
    assert "USD" in "\n".join(described(lines, collection, 0.0))


@pytest.mark.parametrize("most", [0.002, 0.01, 0.03])
def test_the_budget_is_never_passed(provider: Running, tmp_path, cabs_home, most):
    collection = collection_of(write_pool(tmp_path, provider.port, n=200, max_usd=most))
    with AnswerStore() as store:
        try:
            collected = collect_answers(collection, store)
            assert "budget" in collected.stopped and 30 <= collected.prompts < 200
            # it ends where another call could pass the limit, not where calls that are under way could
            dearest = max(c.bound for t in collection.models for c in collection.calls(t))
            assert collected.paid > most - dearest
        except CollectError as error:
            assert "max_usd" in str(error)
    assert 0 < paid(provider) <= most
    # a second run spends nothing more: the budget is for all runs together
    with AnswerStore() as store:
        try:
            collect_answers(collection, store)
        except CollectError:
            pass
    assert paid(provider) <= most


@pytest.mark.slow
def test_models_in_trouble_stop_no_other(provider: Running, tmp_path, cabs_home):
    troubled = ("coder-limited-soon-flaps", "coder-cut-often", "coder-often")
    models = ("tiny", *troubled, "writer-vanishes", "grand-revoked")
    pool = write_pool(tmp_path, provider.port, n=80, models=models, attempts=15)
    with AnswerStore() as store, pytest.raises(CollectError) as error:
        collect_answers(collection_of(pool), store)
    text = str(error.value)
    states = {line.split(":")[0].strip(): line for line in text.splitlines() if line.startswith("  ")}
    for model in models[:4]:
        assert "80 answered" in states[model] and "given up" not in states[model]
    assert all(provider.requests()[model] > 80 for model in troubled)
    assert "does not exist" in states["writer-vanishes"] and "50 answered" in states["writer-vanishes"]
    assert "its key" in states["grand-revoked"] and "0 answered" in states["grand-revoked"]
    assert provider.requests()["grand-revoked"] <= 16
    # without them, nothing that was answered is asked again
    before = provider.requests()
    pool = write_pool(tmp_path, provider.port, n=80, models=models[:4], attempts=15)
    with AnswerStore() as store:
        assert collect_answers(collection_of(pool), store).spent == 0
    assert provider.requests() == before


def test_a_model_that_cannot_be_reached_is_given_up(provider: Running, tmp_path, cabs_home):
    pool = write_pool(tmp_path, provider.port, models=("tiny", "coder"), patience=0.5, attempts=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = free.getsockname()[1]
    path, place = tmp_path / "upstreams.yaml", "coder: {url: http://127.0.0.1:"
    path.write_text(path.read_text().replace(f"{place}{provider.port}", f"{place}{gone}"))
    with AnswerStore() as store, pytest.raises(CollectError, match="cannot be reached"):
        collect_answers(collection_of(pool), store)
    assert provider.requests() == {"tiny": 40}


def test_nothing_is_sent_anywhere_else(provider: Running, tmp_path, cabs_home, monkeypatch):
    """Every address that the process connects to while it collects and judges
    is one of the upstreams file."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    met, connect = set(), socket.socket.connect

    def seen(self, address):
        met.add(address)
        return connect(self, address)

    selector = asyncio.selector_events.BaseSelectorEventLoop
    original = selector.sock_connect

    async def noted(self, sock, address):
        met.add(address)
        return await original(self, sock, address)

    monkeypatch.setattr(socket.socket, "connect", seen)
    monkeypatch.setattr(selector, "sock_connect", noted)
    collection = collection_of(write_pool(tmp_path, provider.port, scores=[JUDGE]))
    with AnswerStore() as store:
        score_cells(collection, cells_in(collection, store, tmp_path / "a"), store)
    assert met == {("127.0.0.1", provider.port)}


def test_hashes_instead_of_texts(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port, keep="hash"))
    with AnswerStore() as store:
        cells = cells_in(collection, store, tmp_path / "a")
    assert all(c.text is None for c in cells)


def test_an_unpriced_model_is_refused_before_anything_is_sent(provider: Running, tmp_path, cabs_home):
    pool = write_pool(tmp_path, provider.port)
    (tmp_path / "upstreams.yaml").write_text(
        "models:\n" + "".join(f"  {m}: {{url: http://127.0.0.1:{provider.port}/v1}}\n" for m in MODELS)
    )
    with pytest.raises(DataError, match="tiny has no price"):
        collection_of(pool)


def test_a_missing_key_is_named_before_anything_is_sent(provider: Running, tmp_path, cabs_home):
    pool = write_pool(tmp_path, provider.port)
    path = tmp_path / "upstreams.yaml"
    path.write_text(path.read_text().replace("price", "key_env: NO_SUCH_KEY, price"))
    with AnswerStore() as store, pytest.raises(RouterError, match="NO_SUCH_KEY"):
        collect_answers(collection_of(pool), store)
    assert provider.requests() == {}


def test_the_first_of_two_answers_is_kept(tmp_path):
    with AnswerStore(tmp_path / "a.sqlite") as store:
        for text in ("one", "two"):
            store.receive(store.send("k", "m", 1.0), StoredAnswer("k", "m", "answered", text, usd=0.5))
        lost = store.send("k", "m", 2.0)
        assert lost == 3
        assert store.get(["k"])["k"].text == "one"
        assert store.spent(["k"]) == (0.5, 3.0, 2)
