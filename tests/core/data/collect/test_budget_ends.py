"""An artifact of answers that its budget ended: it stands while the budget is spent, goes on where more is
affordable, and costs what tokens cost today.
"""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from collect_support import Running, write_pool

from cabs_core.data.collect.answers import ANSWERS, affordable
from cabs_core.data.collect.plan import collection_of, plan_in_words
from cabs_core.data.collect.store import AnswerStore
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact
from cabs_core.pipeline.stages.answers import AnswersSummary


def status(pool_file):
    chain = Chain(ArtifactStore(), pool_file)
    return chain.status(chain.stage("answers"))


def made(pool_file):
    chain = Chain(ArtifactStore(), pool_file)
    return make_artifact(chain, chain.stage("answers"))


def test_a_spent_budget_keeps_its_answers_and_its_verdict(provider: Running, tmp_path, cabs_home) -> None:
    pool = write_pool(tmp_path, provider.port, n=200, max_usd=0.04)
    first = made(pool)
    assert first.record.summary["by_budget"] and 30 <= first.record.summary["prompts"] < 200
    assert status(pool).state == "fresh" and made(pool).reused
    assert any("the budget ends after" in line for line in plan_in_words(pool))
    # another pool pays for the same prompts: what is there is used, though the budget is spent
    other = write_pool(tmp_path / "other", provider.port, n=200, rest={"name": "other"})
    made(other)
    assert status(pool).state == "stale" and "max_usd allows more prompts" in status(pool).reasons[0]
    before = provider.answered()
    assert made(pool).record.summary["prompts"] == 200 and provider.answered() == before
    assert status(pool).state == "fresh"


def test_what_is_affordable_now_is_asked(provider: Running, tmp_path, cabs_home) -> None:
    pool = write_pool(tmp_path, provider.port, n=200, max_usd=0.04)
    summary = made(pool).record.summary
    collection = collection_of(pool)
    with AnswerStore() as store:
        paid = summary["paid"]
        assert not affordable(collection, store, summary["prompts"], paid)
        assert affordable(collection, store, summary["prompts"], 0.0) == ""  # the store knows better
        collection.collect.__dict__["max_usd"] = 1.0
        assert affordable(collection, store, summary["prompts"], paid)
        assert not affordable(collection, store, 200, paid)
    with AnswerStore(tmp_path / "elsewhere.sqlite") as empty:  # the answers were paid for on another machine
        collection.collect.__dict__["max_usd"] = 0.04
        assert not affordable(collection, empty, summary["prompts"], paid)


def test_a_changed_price_is_said_and_counts(provider: Running, tmp_path, cabs_home) -> None:
    pool = write_pool(tmp_path, provider.port, n=40)
    first = made(pool)
    costs = pq.read_table(first.folder / ANSWERS, columns=["model", "cost"]).to_pandas()
    path, paid = tmp_path / "upstreams.yaml", first.record.summary["paid"]
    lines = path.read_text().splitlines()
    (place,) = [i for i, line in enumerate(lines) if line.strip().startswith("grand:")]
    assert "price: {input: " in lines[place]
    entry, rest = lines[place].split("price: {input: ")
    tokens_in, rest = rest.split(", output: ")
    tokens_out, rest = rest.split("}", 1)
    doubled = f"price: {{input: {2 * float(tokens_in)}, output: {2 * float(tokens_out)}}}"
    path.write_text("\n".join([*lines[:place], f"{entry}{doubled}{rest}", *lines[place + 1 :]]))
    remark = "the price of grand changed"
    assert status(pool).state == "stale" and any(remark in line for line in plan_in_words(pool))
    again, before = made(pool), provider.answered()
    assert provider.answered() == before
    assert again.record.summary["paid"] == pytest.approx(paid)
    assert any(remark in line for line in AnswersSummary.of(again.record).lines())
    today = pq.read_table(again.folder / ANSWERS, columns=["model", "cost"]).to_pandas()
    ratio = today.groupby("model")["cost"].sum() / costs.groupby("model")["cost"].sum()
    assert ratio["grand"] == pytest.approx(2.0) and ratio.drop("grand").tolist() == pytest.approx([1.0] * 3)
