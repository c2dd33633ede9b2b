"""Names of policies that were changed: what was written with the earlier name still works and means the same."""

import hashlib
import json

import numpy as np
import pytest

from cabs_core.catalog import check_policy_name, current_name, policy_label, random_key
from cabs_core.chain.options import parse_policies
from cabs_core.policies import build_policy
from cabs_core.policies.requests import Request
from cabs_core.pools import find_pool
from cabs_core.predictors import load_score_predictor, make_score_predictor
from cabs_core.problem import ReplayProblem
from cabs_core.problem.synthetic import synthetic_problem
from cabs_core.replay import replay


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=40, K=3, d=4, pool="toys")


def test_names_are_replaced_and_others_stay():
    assert current_name("kernel") == "kernel_ridge"
    assert current_name("kernel@nothing") == "kernel_ridge@nothing"
    assert current_name("knn@literal") == "knn@literal"
    assert current_name("not a policy") == "not a policy"
    assert check_policy_name("kernel") == "kernel_ridge"
    assert policy_label("kernel") == policy_label("kernel_ridge")
    assert parse_policies("kernel, knn", find_pool("demo").pool) == ("kernel_ridge", "knn")


def test_random_numbers_are_those_of_the_earlier_name():
    assert random_key("kernel_ridge") == random_key("kernel") == "kernel"


def test_a_replay_by_the_earlier_name_is_the_same(problem):
    old, new = (replay(problem, name, rho=300.0, trials=2) for name in ("kernel", "kernel_ridge"))
    assert old.policy == new.policy == "kernel_ridge"
    np.testing.assert_array_equal(old.actions, new.actions)
    np.testing.assert_array_equal(old.propensities, new.propensities)


def test_a_pool_file_may_name_it_as_before_but_not_twice():
    pool = find_pool("demo").pool
    settings = pool.model_dump()
    old = type(pool)(**{**settings, "policies": ["random", "kernel"], "reference_policy": "kernel"})
    assert old.policies == ("random", "kernel_ridge") and old.reference_policy == "kernel_ridge"
    with pytest.raises(ValueError, match="more than once"):
        type(pool)(**{**settings, "policies": ["kernel", "kernel_ridge"]})


def test_a_problem_saved_with_the_earlier_name_is_read(problem, tmp_path):
    """The content hash is the one it was saved with, so nothing made from it is taken for out of date."""
    folder = problem.save(tmp_path / "problem")
    meta = json.loads((folder / "meta.json").read_text())
    meta["arrays"]["static_scores.kernel"] = meta["arrays"].pop("static_scores.kernel_ridge")
    (folder / "static_scores.kernel_ridge.npy").rename(folder / "static_scores.kernel.npy")
    (folder / "meta.json").write_text(json.dumps(meta))
    plain = ReplayProblem.load(folder, verify=False)
    meta["content_hash"] = _hash_of(meta)
    (folder / "meta.json").write_text(json.dumps(meta))
    for read in (plain, ReplayProblem.load(folder)):
        np.testing.assert_array_equal(
            read.static_scores["kernel_ridge"], problem.static_scores["kernel_ridge"]
        )
    assert ReplayProblem.load(folder).content_hash() == meta["content_hash"]


def _hash_of(meta):
    text = json.dumps([meta["arms"], meta["arrays"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_predictor_saved_with_the_earlier_name_is_read(tmp_path):
    rng = np.random.default_rng(0)
    x, lengths, y = rng.normal(size=(60, 5)), rng.uniform(1, 90, 60), rng.uniform(size=(60, 3))
    fitted = make_score_predictor("kernel", landmarks=20).fit(x, lengths, y)
    header = fitted.save(tmp_path / "p") / "predictor.json"
    header.write_text(header.read_text().replace('"kernel_ridge"', '"kernel"'))
    read = load_score_predictor(tmp_path / "p")
    assert read.name == "kernel_ridge"
    np.testing.assert_array_equal(read.predict(x, lengths), fitted.predict(x, lengths))


def test_a_policy_takes_predictions_under_the_earlier_name(problem):
    scores, costs = problem.static_scores["kernel_ridge"][0], problem.predicted_costs[0]
    for name, options in (("kernel", {}), ("hier_mix", {"base": "kernel"})):
        played = []
        for key in ("kernel", "kernel_ridge"):
            policy = build_policy(name, arms=problem.arms, dim=problem.dim, rho=100.0, **options)
            assert policy.name == current_name(name)
            request = Request(context=problem.contexts[0], static_scores={key: scores}, static_costs=costs)
            played.append(policy.decide(request).pmf)
        np.testing.assert_array_equal(*played)
