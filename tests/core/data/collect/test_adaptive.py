"""Strategy `adaptive`: it stops when the verdict is decided, is rarely wrong at any look,
and drops no model that matters."""

from __future__ import annotations

import numpy as np
import pytest
from collect_support import CONTAINS, JUDGE, Running, write_pool

from cabs_core.data.collect.adaptive import looking, rho_of
from cabs_core.data.collect.answers import collect_answers
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.collect.verdict import idle, look, most, radius

MODELS = ["a", "b", "c"]


def world(rng, n, gap):
    """n prompts of two kinds; models a and b are each better at one by `gap`."""
    kinds = rng.integers(0, 2, n)
    prompts = [f"{('add', 'write')[k]} {'number' if k == 0 else 'poem'} {i}" for i, k in enumerate(kinds)]
    chance = np.column_stack([0.6 + gap * (kinds == 0), 0.6 + gap * (kinds == 1), np.full(n, 0.5)])
    return prompts, (rng.random((n, 3)) < chance).astype(float), np.tile([1e-4, 1e-4, 1e-4], (n, 1))


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
        prompts, scores, costs = world(rng, 300, 0.0)
        wrong += any(
            look(prompts[:n], MODELS, scores[:n], costs[:n], 1.0, tuned=120).decision == "deploy"
            for n in (60, 100, 150, 220, 300)
        )
    assert wrong <= 5  # 5 % of 40 is 2; 5 has probability .05


def test_a_clear_gain_is_found_before_all_is_paid():
    prompts, scores, costs = world(np.random.default_rng(2), 400, 0.35)
    decided = next(
        n
        for n in range(60, 401, 20)
        if look(prompts[:n], MODELS, scores[:n], costs[:n], 1.0, tuned=120).decision != "unsure"
    )
    assert decided <= 240 and look(prompts, MODELS, scores, costs, 1.0, tuned=120).decision == "deploy"


@pytest.mark.slow
def test_the_bound_of_rare_values_holds_at_all_lengths_together():
    rng = np.random.default_rng(4)
    under = sum(most((rng.random(600) < 0.01).astype(float)) < 0.01 for _ in range(100))
    assert under <= 9  # 5 of 100 are allowed; more than 9 have probability .03
    nothing = [most(np.zeros(n)) for n in (60, 300, 1000)]
    assert nothing == pytest.approx([np.log(6 / 0.05) / n for n in (60, 300, 1000)], rel=0.4)
    assert most(np.full(500, 0.5)) > 0.5 and most(np.ones(20)) == pytest.approx(0.9995)


def test_only_models_that_a_perfect_router_would_not_miss_are_dropped():
    rng = np.random.default_rng(3)
    _, scores, costs = world(rng, 900, 0.2)
    assert idle(MODELS, scores, costs, 1.0) == {}
    dear = np.column_stack([costs[:, 0], costs[:, 1], np.full(900, 5.0)])
    assert list(idle(MODELS, scores, dear, 1.0)) == ["c"]
    # two that stand in for each other: the dearer goes, the other stays
    twins = np.column_stack([scores[:, 0], scores[:, 1], scores[:, 0]])
    assert list(idle(MODELS, twins, np.tile([1e-4, 1e-4, 2e-4], (900, 1)), 1.0)) == ["c"]
    # that a model was of no use in sixty prompts says little: it may be all that is right for one in twenty
    assert idle(MODELS, scores[:60], dear[:60], 1.0) == {}


def test_a_router_that_has_not_learnt_yet_is_no_reason_to_keep_one_model():
    """Nothing but the single model was ever chosen:
    the difference is 0 without any spread, and decides nothing."""
    scores = np.tile([0.0, 0.0, 1.0], (60, 1))
    found = look([f"word{i}" for i in range(60)], MODELS, scores, np.full((60, 3), 1e-4), 1.0, tuned=120)
    assert found.difference == 0 and found.decision == "unsure"


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
    assert rho_of(pool.pool) == 30
    with AnswerStore() as store:
        found = collect_answers(
            collection, store, lambda text: None, looking(collection, store, lambda text: None)
        )
    assert (
        found.looks[-1]["decision"] == "deploy" and 60 <= found.prompts < 300 and "decided" in found.stopped
    )
    asked = provider.requests()
    assert sum(asked[m] for m in ("tiny", "coder", "writer", "grand")) <= 4 * found.prompts


def test_sample_asks_the_sample(provider: Running, tmp_path, cabs_home):
    collection = collection_of(write_pool(tmp_path, provider.port, n=300, strategy="sample", sample=50))
    with AnswerStore() as store:
        assert collect_answers(collection, store).prompts == 50
    assert set(provider.requests().values()) == {50}
