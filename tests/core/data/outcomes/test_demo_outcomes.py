"""The synthetic demo: published means, structure that the text carries, room for a router."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes import PUBLISHED, Outcomes, load_outcomes, make_splits
from cabs_core.data.outcomes.load import apply_pool
from cabs_core.data.outcomes.sources.demo_prompts import FAMILIES, generate_prompts
from cabs_core.data.outcomes.sources.synthetic import synthetic_raw
from cabs_core.data.pool_files.table import SyntheticSource
from cabs_core.data.pools.find import find_pool
from cabs_core.data.validation.alignment import text_features


def outcomes_of(pool):
    return apply_pool(synthetic_raw(pool.source), pool)


@pytest.fixture(scope="module")
def demo() -> Outcomes:
    return load_outcomes(find_pool("demo"))


def test_means_are_the_published_ones(demo: Outcomes) -> None:
    assert demo.arms == [row.name for row in PUBLISHED["routerbench"]] and demo.report["synthetic"]
    for row, score, cost in zip(PUBLISHED["routerbench"], demo.scores.mean(axis=0), demo.costs.mean(axis=0)):
        assert score == pytest.approx(row.score, abs=1.5 / len(demo)), row.name
        assert cost == pytest.approx(row.cost), row.name


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_means_hold_for_every_seed_and_size(seed: int) -> None:
    raw = synthetic_raw(SyntheticSource(kind="synthetic", queries=400, seed=seed))
    published = [row.score for row in PUBLISHED["routerbench"]]
    np.testing.assert_allclose(raw.scores.mean(axis=0), published, atol=1.5 / 400)


def test_it_is_reproducible_and_seeded(demo: Outcomes) -> None:
    pool = find_pool("demo").pool
    assert outcomes_of(pool).content_hash() == demo.content_hash()
    other = pool.model_copy(update={"source": pool.source.model_copy(update={"seed": 8})})
    assert outcomes_of(other).content_hash() != demo.content_hash()


def test_scores_are_graded_and_correlated(demo: Outcomes) -> None:
    assert set(np.unique(demo.scores)) == {0, 0.25, 0.5, 0.75, 1}
    correlation = np.corrcoef(demo.scores.T)[np.triu_indices(len(demo.arms), 1)]
    assert correlation.min() > -0.05 and 0.15 < correlation.mean() < 0.5


def test_a_router_has_something_to_gain_and_something_to_learn(demo: Outcomes) -> None:
    """random < best single < learned from the text < best per query, in every cost regime and not by a
    landslide."""
    splits = make_splits(demo, find_pool("demo").pool.split)
    train, test = splits != "test", splits == "test"
    features = text_features(demo.prompts, dim=32)
    predicted = Ridge(alpha=30).fit(features[train], demo.scores[train]).predict(features).clip(0, 1)
    gains = []
    for rho in (0, 150, 300, 550, 800, 1000):
        utility = np.clip(demo.scores - rho * demo.costs, 0, 1)
        margin = np.clip(1 - rho * demo.costs[train].mean(axis=0), 0, None)
        played = (predicted * margin).argmax(axis=1)
        learned = utility[np.arange(len(demo)), played][test].mean()
        single = utility[test][:, utility[train].mean(axis=0).argmax()].mean()
        oracle, random = utility[test].max(axis=1).mean(), utility[test].mean()
        assert random + 0.1 < single < learned < oracle - 0.08, rho
        gains.append(learned - single)
    assert 0.01 < np.mean(gains) < 0.12


def test_generator_of_prompts() -> None:
    prompts = generate_prompts(3000, np.random.default_rng(0)).prompts
    assert len(set(prompts)) == 3000 and not any("{" in prompt for prompt in prompts)


@pytest.mark.slow
def test_more_prompts_than_the_templates_give() -> None:
    import cabs_core.data.outcomes.sources.demo_prompts as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DAYS", ("Monday",))
        patch.setattr(module, "PEOPLE", ("Ana",))
        patch.setattr(module, "FAMILIES", FAMILIES[:1])
        with pytest.raises(DataError, match="many prompts"):
            module.generate_prompts(4500, np.random.default_rng(0))
