"""An arm that joins as one that resembles another arm starts from what is known of that arm."""

from __future__ import annotations

import numpy as np
import pytest
from small_policies import small_networks

from cabs_core.algorithms.policies.registry import build_policy, policy_class
from cabs_core.algorithms.policies.request import Request
from cabs_core.algorithms.predictors.features import CONSTANT
from cabs_core.algorithms.regression.ridge import JOINED_ROUNDS, diluted_inverse, diluted_precision
from cabs_core.base.catalog.policies import policies
from cabs_core.base.errors import PolicyError

DIM = 4
OLD_ARMS = ["a", "b", "c"]
#: policies that a router may serve and that learn from the played arm
SERVED = [record.name for record in policies().values() if record.feedback == "bandit"]
LINEAR = ["epsilon_greedy", "square_cb", "lin_ucb", "lin_ts", "pareto_bandit"]
RESEMBLING = [*LINEAR, "cabs_c_linear", "cabs_d_linear", "neural_ucb", "cabs_c_neural", "cabs_d_neural"]


def request(x: np.ndarray, arms: int, available: np.ndarray | None = None) -> Request:
    """A request for which every arm is predicted to score .6 at no cost."""
    return Request(
        context=x,
        predicted_scores=np.full(arms, 0.6),
        predicted_costs=np.zeros(arms),
        static_costs=np.zeros(arms),
        surrogate=np.zeros((arms, arms)),
        static_scores={"kernel_ridge": np.full(arms, 0.6)},
        available=available,
    )


def contexts(rounds: int, seed: int) -> np.ndarray:
    """Contexts `[rounds, DIM]` with the squared norm and the constant of a router's contexts."""
    x = np.random.default_rng(seed).normal(size=(rounds, DIM)) * 4.0 / np.sqrt(DIM - 1)
    x[:, -1] = CONSTANT
    return x


def play(policy, rounds: int, seed: int) -> np.ndarray:
    """Names of the arms played in rounds where `new` is right on .9 of the requests and the others on .6."""
    rng = np.random.default_rng(seed)
    played = []
    for x in contexts(rounds, seed):
        decision = policy.decide(request(x, len(policy.arms)))
        name = decision.arms[decision.arm]
        right = rng.random() < (0.9 if name == "new" else 0.6)
        policy.update(decision, float(right), 0.0)
        played.append(name)
    return np.array(played)


def learnt(name: str, rounds: int = 300, seed: int = 1):
    policy = build_policy(name, arms=OLD_ARMS, dim=DIM, rho=0.0, seed=seed, **small_networks(name))
    play(policy, rounds, seed)
    return policy


@pytest.mark.parametrize("name", LINEAR)
def test_a_better_arm_among_equal_ones_is_played_in_most_of_the_last_250_of_1000_rounds(name):
    shares = []
    for seed in range(3):
        policy = learnt(name, seed=seed)
        policy.add_arm("new", like="a")
        shares.append((play(policy, 1000, seed + 10)[-250:] == "new").mean())
    assert np.mean(shares) >= 0.5, shares


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(SERVED) - set(LINEAR)))
def test_a_better_arm_is_played_by_every_other_policy_that_learns(name):
    shares = []
    for seed in range(2, 5):
        policy = build_policy(name, arms=OLD_ARMS, dim=DIM, rho=0.0, seed=seed)
        arms, counts = np.unique(play(policy, 300, seed), return_counts=True)
        # NeuralUCB may never have played some arm, and then has nothing that the new one could start from
        policy.add_arm("new", like=str(arms[counts.argmax()]))
        shares.append((play(policy, 1000, seed + 1)[-250:] == "new").mean())
    assert np.mean(shares) >= 0.5, shares


@pytest.mark.parametrize("name", ["lin_ts", "cabs_d_linear"])
def test_linear_models_start_at_the_estimate_of_the_other_arm_and_know_a_few_rounds(name):
    policy = learnt(name)
    policy.add_arm("new", like="b", margin=0.5)
    penalty = 10.0
    state = policy.algorithm.state()[0]
    experts = state["theta"].reshape(-1, 4, DIM)
    inverses = state["inverse"].reshape(-1, 4, DIM, DIM)
    for theta, inverse in zip(experts, inverses, strict=True):
        np.testing.assert_allclose(theta[3], 0.5 * theta[1])
        lower = np.tril(inverse[3])
        data = np.linalg.inv(lower + np.tril(lower, -1).T) - penalty * np.eye(DIM)
        assert data[-1, -1] / CONSTANT**2 == pytest.approx(JOINED_ROUNDS, rel=1e-6)


def test_square_cb_explores_an_arm_that_joins_as_if_the_play_began_with_it():
    policy = learnt("square_cb")
    policy.add_arm("new", like="a")
    play(policy, 20, 5)
    saved = policy.algorithm.state()[0]["joined"]
    assert saved.tolist() == [0.0, 0.0, 0.0, 300.0]
    x = contexts(1, 6)[0]
    values = np.clip(policy.algorithm.models.theta @ x, 0.0, 1.0)
    best = int(values.argmax())
    gamma = 64.0 * np.sqrt([321.0, 321.0, 321.0, 21.0])
    expected = 1.0 / (4.0 + gamma * (values[best] - values))
    expected[best] = 1.0 - np.delete(expected, best).sum()
    np.testing.assert_allclose(policy.decide(request(x, 4)).pmf, expected)
    policy.remove_arm("a")
    assert policy.algorithm.state()[0]["joined"].tolist() == [0.0, 0.0, 300.0]


def test_pareto_bandit_starts_at_the_estimate_of_the_other_arm_and_knows_a_few_rounds():
    policy = learnt("pareto_bandit")
    policy.add_arm("new", like="b")
    model = policy.algorithm.model
    np.testing.assert_allclose(model.theta[3], model.theta[1])
    np.testing.assert_allclose(model.inverse[3] @ model.precision[3], np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(model.precision[3] @ model.theta[3], model.moment[3])
    rounds = model.precision[3, -1, -1] - policy.algorithm.settings.penalty
    assert rounds == pytest.approx(min(JOINED_ROUNDS, model.precision[1, -1, -1] - model.floor[1]))


def test_a_network_predicts_of_the_new_arm_what_it_predicts_of_the_other():
    policy = learnt("neural_ucb", rounds=30)
    policy.add_arm("new", like="b")
    nets = policy.algorithm.core.nets
    for flat in (nets.flat, nets.start):
        _, _, w2, b2 = nets.split(flat)
        np.testing.assert_array_equal(w2[:, :, 3], w2[:, :, 1])
        np.testing.assert_array_equal(b2[:, :, 3], b2[:, :, 1])


@pytest.mark.parametrize("name", RESEMBLING)
def test_a_state_with_an_arm_that_resembles_another_is_saved_and_sound(name, tmp_path):
    policy = learnt(name, rounds=20)
    policy.add_arm("new", like="a")
    policy.save(tmp_path / "policy")
    assert play(policy, 5, 7).shape == (5,)


def test_data_of_few_rounds_stay_as_they_are_and_the_inverse_is_that_of_the_diluted_matrix():
    x = contexts(3, 0)
    few = 2.0 * np.eye(DIM) + x.T @ x
    np.testing.assert_allclose(diluted_precision(few, 2.0, CONSTANT), few)
    x = contexts(40, 1)
    many = 2.0 * np.eye(DIM) + x.T @ x
    expected = 2.0 * np.eye(DIM) + JOINED_ROUNDS / 40.0 * (x.T @ x)
    np.testing.assert_allclose(diluted_precision(many, 2.0, CONSTANT), expected)
    inverse = np.tril(np.linalg.inv(many))
    np.testing.assert_allclose(diluted_inverse(inverse, 2.0, CONSTANT), np.linalg.inv(expected))


def test_a_policy_that_knows_nothing_of_its_arms_refuses_and_stays_as_it_was():
    policy = build_policy("random", arms=OLD_ARMS)
    with pytest.raises(PolicyError, match=r"'a'.*'new'"):
        policy.add_arm("new", like="a")
    assert policy.arms == OLD_ARMS
    assert policy.version == 0
    policy.add_arm("new")
    assert policy.decide(Request()).probability == pytest.approx(0.25)


@pytest.mark.parametrize("margin", [-0.1, float("nan"), 11.0])
def test_a_margin_out_of_range_is_refused_before_the_policy_grows(margin):
    policy = learnt("lin_ts", rounds=5)
    with pytest.raises(PolicyError, match="margin"):
        policy.add_arm("new", like="a", margin=margin)
    assert len(policy.algorithm.models.theta) == 3


def test_every_served_policy_that_learns_can_start_an_arm_like_another():
    for name in SERVED:
        policy = build_policy(name, arms=OLD_ARMS, dim=DIM, rho=0.0, **small_networks(name))
        assert policy.algorithm.can_resemble, policy_class(name)
