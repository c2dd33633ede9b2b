"""Strategy `adaptive`: it asks cells with probabilities that are known, stops when the verdict is decided and
is rarely wrong at any look."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from collect_support import CONTAINS, JUDGE, Running, serving, write_pool

from cabs_core.data.collect.adaptive import looking
from cabs_core.data.collect.answers import collect_answers, looks
from cabs_core.data.collect.plan import collection_of, plan_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.verdict import FLOOR, look, radius, shares_of
from cabs_core.data.outcomes.gaps import gaps_text
from cabs_core.data.outcomes.load import load_outcomes
from cabs_core.data.pool_files import read_pool_file
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, make_artifact
from cabs_core.pipeline.stages.answers import AnswersSummary, fewest_of

MODELS = ["a", "b", "c"]


def world(rng, n, gap):
    """n prompts of two kinds; models a and b are each better at one by `gap`."""
    kinds = rng.integers(0, 2, n)
    prompts = [f"{('add', 'write')[k]} {'number' if k == 0 else 'poem'} {i}" for i, k in enumerate(kinds)]
    chance = np.column_stack([0.6 + gap * (kinds == 0), 0.6 + gap * (kinds == 1), np.full(n, 0.5)])
    return prompts, (rng.random((n, 3)) < chance).astype(float), np.tile([1e-4, 1e-4, 1e-4], (n, 1))


def seen(table, n, observed=None):
    """The look after n prompts of a world."""
    prompts, scores, costs = table
    observed = np.ones(scores.shape) if observed is None else observed
    return look(prompts[:n], MODELS, scores[:n], costs[:n], observed[:n], 1.0, tuned=120)


def decided(table, rng, sample=100):
    """The decision of the whole collection by cells, unsure if there is none."""
    _, scores, costs = table
    n, observed, shares, done = len(scores), np.zeros(scores.shape), np.ones(scores.shape[1]), 0
    for last in looks(sample, n):
        observed[done:last] = np.where(rng.random((last - done, len(shares))) < shares, shares, 0.0)
        done, verdict = last, seen(table, last, observed)
        if verdict.decision != "unsure":
            break
        shares = shares_of(np.array(verdict.matters), costs.mean(axis=0))
    return verdict.decision


def test_the_sequence_holds_at_all_looks_together():
    rng, outside = np.random.default_rng(0), 0
    for _ in range(400):
        x = rng.normal(size=1000)
        outside += any(abs(x[:n].mean()) > radius(n, 1.0, 200) for n in range(50, 1001, 10))
    assert outside / 400 < 0.05
    assert radius(200, 1.0, 200) < radius(200, 1.0, 2000) and radius(1, 1.0, 10) == np.inf


@pytest.mark.slow
def test_without_a_gain_a_router_is_rarely_announced_at_any_look():
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(40):
        wrong += decided(world(rng, 300, 0.0), rng) == "deploy"
    assert wrong <= 5  # 5 % of 40 is 2; 5 has probability .05


def test_a_clear_gain_is_found_before_all_is_paid():
    table = world(np.random.default_rng(2), 400, 0.35)
    assert next(n for n in range(60, 401, 20) if seen(table, n).decision != "unsure") <= 240
    assert seen(table, 400).decision == "deploy"


def test_a_router_that_has_not_learnt_yet_is_no_reason_to_keep_one_model():
    """Nothing but the single model was ever chosen:
    the difference is 0 without any spread, and decides nothing."""
    scores = np.tile([0.0, 0.0, 1.0], (60, 1))
    verdict = seen(([f"word{i}" for i in range(60)], scores, np.full((60, 3), 1e-4)), 60)
    assert verdict.difference == 0 and verdict.decision == "unsure"


@pytest.mark.parametrize("scores", [[CONTAINS], [JUDGE]])
def test_it_stops_early_and_pays_less(provider: Running, tmp_path, cabs_home, scores):
    pool = write_pool(
        tmp_path,
        provider.port,
        n=300,
        scores=scores,
        strategy="adaptive",
        sample=60,
        rest={"router": {"rho": 30}},
    )
    collection = collection_of(pool)
    assert pool.pool.router_rho == 30
    with AnswerStore() as store:
        answers = collect_answers(
            collection, store, lambda text: None, looking(collection, store, lambda text: None)
        )
    assert (
        answers.looks[-1]["decision"] == "deploy"
        and 60 <= answers.prompts < 300
        and "decided" in answers.stopped
    )
    asked = provider.requests()
    assert sum(asked[m] for m in ("tiny", "coder", "writer", "grand")) <= 4 * answers.prompts


def test_it_goes_on_until_every_split_has_enough(provider: Running, tmp_path, cabs_home):
    """Decided after the sample, but a tenth of 60 prompts is no validation split."""
    pool_file = write_pool(tmp_path, provider.port, n=300, strategy="adaptive", sample=60)
    chain = Chain(ArtifactStore(), pool_file)
    answers = AnswersSummary.of(make_artifact(chain, chain.stage("answers")).record)
    assert fewest_of(pool_file.pool) == 150 <= answers.prompts < 300 and "decided" in answers.stopped
    assert [look["decision"] for look in answers.looks] == ["deploy"] * len(answers.looks)
    for stage in ("scores", "outcomes", "splits"):
        assert not make_artifact(chain, chain.stage(stage)).record.summary.get("blocked")


def test_sample_asks_the_sample(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port, n=300, strategy="sample", sample=50))
    with AnswerStore() as store:
        assert collect_answers(collection, store).prompts == 50
    assert set(provider.requests().values()) == {50}


def adaptive_pool(folder, port, n=300, **more):
    """Two models of which the dear one is best at everything, so that many parts are asked."""
    more = {"models": ("tiny", "grand"), "rest": {"router": {"rho": 30}}, "sample": 40} | more
    return write_pool(folder, port, n=n, strategy="adaptive", **more)


def collected(pool, look_at=lambda observed: None):
    """What a run of the collection comes to; `look_at` is told what every look sees."""
    collection = collection_of(pool)
    with AnswerStore() as store:
        examine = looking(collection, store, lambda text: None)

        def looked(observed):
            look_at(observed)
            return examine(observed)

        return collection, collect_answers(collection, store, lambda text: None, looked)


class Killed(Exception):
    """Stands for the end of a process."""


def test_what_is_resumed_is_what_a_run_through_makes(tmp_path, cabs_home, monkeypatch):
    runs = []
    for looks_done in (0, 1, 2, 3):  # 0: a run through
        folder = tmp_path / str(looks_done)
        monkeypatch.setenv("CABS_HOME", str(folder / "home"))
        with serving() as provider:
            pool, count = adaptive_pool(folder, provider.port), itertools.count(1)

            def die(observed, count=count, looks_done=looks_done):
                if next(count) == looks_done:
                    raise Killed

            try:
                _, answers = collected(pool, die)
                assert not looks_done
            except Killed:
                _, answers = collected(pool)
            runs.append((answers, provider.answered(), provider.again()))
    (through, asked, _), *resumed = runs
    assert len(through.looks) > 3 and (through.observed[: through.prompts] == 0).any()
    assert (through.observed[: through.prompts] > 0).any(axis=1).all()  # every prompt has an answer
    for table, asked_again, twice in resumed:
        assert np.array_equal(through.observed, table.observed) and through.prompts == table.prompts
        assert asked == asked_again and twice == 0


def test_a_probability_that_was_noted_stands(provider: Running, tmp_path, cabs_home):
    """The price of a model rises tenfold once all is asked: nothing is asked again, and nothing left out."""
    _, first = collected(adaptive_pool(tmp_path, provider.port))
    before, path = provider.answered(), tmp_path / "upstreams.yaml"
    path.write_text(re.sub(r"(grand: .*output: )", r"\g<1>1", path.read_text()))
    collection, again = collected(read_pool_file(tmp_path / "asked.yaml"))
    same = min(first.prompts, again.prompts)
    assert np.array_equal(first.observed[:same], again.observed[:same])
    extra = int((again.observed[first.prompts : again.prompts] > 0).sum())
    assert provider.answered() == before + extra
    with AnswerStore() as store:  # the plan knows what was drawn, and asks all models what was not
        lines = {line.model: line for line in plan_of(collection, store)}
        shares = collection.shares(store)
    begun = int(np.flatnonzero((shares < 1).any(axis=1)).max()) + 1
    for j, target in enumerate(collection.models):
        due = int((collection.draws[:begun, j] < shares[:begun, j]).sum()) + 300 - begun
        assert lines[target.name].calls == due
        assert lines[target.name].known == int((again.observed[: again.prompts, j] > 0).sum())


def test_cells_are_asked_with_the_probability_that_is_recorded(tmp_path, cabs_home):
    """20,000 draws: of each model, of pairs of them, and where a share hangs on what was drawn before."""
    collection = collection_of(adaptive_pool(tmp_path, 9, n=10, models=("tiny", "coder", "grand")))
    shares, seeds = np.array([0.2, 0.5, 0.9]), 20_000
    asked = np.empty((seeds, 3))
    later = np.empty(seeds)
    for seed in range(seeds):
        drawn = replace(collection, collect=collection.collect.model_copy(update={"seed": seed})).draws
        asked[seed] = drawn[4] < shares
        share = 0.3 if asked[seed, 0] else 0.7
        later[seed] = (drawn[5, 0] < share) / share - 1.0

    def z(values, p):
        return (values.mean() - p) / np.sqrt(p * (1 - p) / seeds)

    assert all(abs(z(asked[:, j], p)) < 3 for j, p in enumerate(shares))
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert all(abs(z(asked[:, i] * asked[:, j], shares[i] * shares[j])) < 3 for i, j in pairs)
    assert abs(later.mean() / (later.std() / np.sqrt(seeds))) < 3


def test_the_table_has_the_probabilities_and_the_chain_counts_with_them(
    provider: Running, tmp_path, cabs_home
):
    pool_file = adaptive_pool(
        tmp_path, provider.port, rest={"router": {"rho": 30}, "oracle": {"kind": "ridge"}}
    )
    chain = Chain(ArtifactStore(), pool_file)
    answers = AnswersSummary.of(make_artifact(chain, chain.stage("answers")).record)
    make_artifact(chain, chain.stage("scores"))
    outcomes = load_outcomes(pool_file, {s: chain.verified(chain.stage(s)) for s in ("answers", "scores")})
    drawn, collection = outcomes.drawn, collection_of(pool_file)
    assert len(outcomes) == answers.prompts and (drawn == 0).any() and (drawn[drawn > 0] >= FLOOR).all()
    with AnswerStore() as store:
        shares = collection.shares(store)
    row = {query: i for i, query in enumerate(collection.prompts.ids)}
    place = np.argsort(collection.order)
    at = place[[row[q] for q in outcomes.query_ids.tolist()]]
    assert np.array_equal(drawn, np.where(collection.draws[at] < shares[at], shares[at], 0.0))
    gaps = outcomes.report["gaps"]
    assert gaps and all(gap["at_random"] and gap["drawn"] for gap in gaps.values())
    assert "was drawn" in gaps_text(gaps)[0] and answers.rows == (drawn > 0).sum()
    assert chain.status(chain.stage("answers")).state == "fresh"


def test_shares_go_to_what_matters_and_is_cheap():
    matters, dear = np.array([0.3, 0.3, 0.0]), np.array([1e-2, 1e-4, 1e-4])
    shares = shares_of(matters, dear)
    assert shares[1] == 1.0 and FLOOR <= shares[0] < 1 and FLOOR <= shares[2] < 1
    assert shares_of(matters, np.zeros(3)).tolist() == [1.0] * 3  # what is free is always asked
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(2, 9))
        shares = shares_of(rng.random(k) * rng.integers(0, 2, k), 10.0 ** rng.uniform(-6, 0, k))
        assert shares.max() == 1.0 and shares.min() >= FLOOR
