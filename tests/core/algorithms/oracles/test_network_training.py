"""The oracle network and its training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cabs_core.algorithms.oracles import network_training
from cabs_core.algorithms.oracles.frozen_network import FrozenNetwork, NetworkShape, Rows
from cabs_core.algorithms.oracles.network import OracleNetwork
from cabs_core.algorithms.oracles.network_training import residual_slopes, train_network, validation_errors
from cabs_core.base.errors import ProvenanceError


@pytest.fixture(scope="module")
def rows(data):
    costs = (data.outcomes.costs - data.outcomes.costs.mean(axis=0)) / data.outcomes.costs.std(axis=0)

    def part(name):
        at = data.split == name
        return Rows(data.embeddings[at] * 3.0, data.outcomes.scores[at], costs[at])

    return part


def untrained(k: int = 4, inputs: int = 12) -> OracleNetwork:
    torch.manual_seed(3)
    network = OracleNetwork(NetworkShape(inputs, k, hidden=16, propagation=8))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network.eval()


def test_all_anchors_at_once_equal_one_anchor_at_a_time():
    network = untrained()
    x, y = torch.randn(6, 12), torch.rand(6, 4)
    with torch.no_grad():
        heads = network(x, y)
        h = network.trunk(x)
        for b in range(6):
            for i in range(4):
                surprise = y[b, i] - heads.scores[b, i]
                u = torch.nn.functional.gelu(
                    network.to_u.weight @ h[b]
                    + network.to_u.bias
                    + network.anchor[i]
                    + surprise * network.anchor_surprise[i]
                )
                for j in range(4):
                    slow = (
                        heads.scores[b, j]
                        + surprise * network.direct[i, j]
                        + network.from_u.weight[j] @ u
                        + network.from_u.bias[j]
                    )
                    assert abs(float(slow - heads.surrogates[b, i, j])) < 1e-4


def test_context_only_heads_do_not_see_the_scores():
    network = untrained()
    x = torch.randn(5, 12)
    with torch.no_grad():
        without, first, second = network(x), network(x, torch.zeros(5, 4)), network(x, torch.ones(5, 4))
    assert without.surrogates is None and first.features.shape == (5, 128)
    for name in ("scores", "costs", "features", "readout"):
        assert torch.equal(getattr(without, name), getattr(first, name))
    assert torch.equal(first.scores, second.scores) and not torch.equal(first.surrogates, second.surrogates)


def test_the_propagation_loss_leaves_the_accuracy_head_alone():
    network = untrained()
    heads = network(torch.randn(5, 12), torch.rand(5, 4))
    heads.surrogates.sum().backward()
    assert network.accuracy.weight.grad is None and network.direct.grad is not None


def test_start_is_the_mean_and_the_residual_regression():
    network = OracleNetwork(NetworkShape(12, 3))
    slopes = torch.rand(3, 3)
    network.start_at(torch.tensor([0.2, 0.5, 0.8]), slopes)
    assert torch.equal(network.direct, slopes)
    np.testing.assert_allclose(network.accuracy.bias.detach(), [0.2, 0.5, 0.8])


def test_residual_slopes_are_regressions_of_one_arm_on_another():
    rng = np.random.default_rng(0)
    common = rng.normal(size=4000)
    residuals = np.stack([common, 0.5 * common + 0.1 * rng.normal(size=4000), np.zeros(4000)], axis=1)
    slopes = residual_slopes(residuals)
    for i, j in ((0, 1), (1, 0)):
        assert slopes[i, j] == pytest.approx(np.polyfit(residuals[:, i], residuals[:, j], 1)[0], abs=0.02)
    assert (slopes[2] == 0).all()


def test_training_beats_the_means_and_stops_at_the_best_epoch(rows):
    network, log = train_network(
        rows("train"), rows("validation"), hidden=32, learning_rate=3e-3, max_epochs=80, patience=4
    )
    best = log.epochs[log.best_epoch]
    first = log.epochs[0]
    assert best["accuracy"] < first["accuracy"] and best["propagation"] < 0.98 * best["accuracy"]
    assert best["cost"] < 0.95 * first["cost"]
    # an epoch counts as better by 1e-5 or more
    assert best["criterion"] <= min(e["criterion"] for e in log.epochs) + 1e-5
    assert len(log.epochs) == log.best_epoch + 5 and "no improvement" in log.stopped
    # the returned weights are those of the best epoch
    tensors = [torch.tensor(a, dtype=torch.float32) for a in vars(rows("validation")).values()]
    assert validation_errors(network, *tensors)["accuracy"] == pytest.approx(best["accuracy"], abs=1e-7)
    test = rows("test")
    error = ((network.freeze().outputs(test.inputs, "scores") - test.scores) ** 2).mean()
    assert error < ((rows("train").scores.mean(axis=0) - test.scores) ** 2).mean()


def test_the_same_seed_gives_the_same_network_bit_for_bit(rows):
    def train(seed, threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            torch.rand(threads)  # the caller's generator must neither matter nor be disturbed
            state = torch.get_rng_state()
            network, _ = train_network(rows("train"), rows("validation"), seed=seed, hidden=16, max_epochs=2)
            assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        return torch.cat([p.flatten() for p in network.state_dict().values()])

    assert torch.equal(train(1, 1), train(1, 2))
    assert not torch.equal(train(1, 1), train(2, 1))


def test_without_epochs_left_it_says_so(rows):
    _, log = train_network(rows("train"), rows("validation"), hidden=8, max_epochs=1)
    assert log.stopped == "max_epochs = 1" and len(log.epochs) == 2


def test_of_many_train_rows_every_epoch_takes_other_ones(rows, monkeypatch):
    seen = []
    forward = OracleNetwork.forward

    def watch(self, x, scores=None):
        if self.training:
            seen.append(x)
        return forward(self, x, scores)

    monkeypatch.setattr(OracleNetwork, "forward", watch)
    monkeypatch.setattr(network_training, "MANY", 100)
    monkeypatch.setattr(network_training, "EPOCH", 40)
    train_network(rows("train"), rows("validation"), hidden=8, max_epochs=3)
    taken = torch.cat(seen)
    assert len(taken) == 3 * 40
    assert 40 < len(torch.unique(taken, dim=0)) < 120 < len(rows("train").scores)


def test_two_arms_and_graded_scores_train(data):
    rng = np.random.default_rng(0)

    def part(n):
        return Rows(rng.normal(size=(n, 5)), rng.random((n, 2)), rng.normal(size=(n, 2)))

    network, _ = train_network(part(60), part(20), hidden=8, max_epochs=2)
    outputs = network.freeze().outputs(rng.normal(size=(7, 5)), "surrogates", rng.random((7, 2)))
    assert outputs.shape == (7, 2, 2) and np.isfinite(outputs).all()


@pytest.mark.parametrize("n", [0, 1, 2049])
def test_the_frozen_network_is_torchs_for_any_number_of_rows(n):
    network = untrained()
    x, y = torch.randn(n, 12), torch.rand(n, 4)
    with torch.no_grad():
        whole = network(x, y)
    frozen = network.freeze()
    for head in ("scores", "costs", "features", "surrogates"):
        outputs = frozen.outputs(x.numpy(), head, y.numpy())
        expected = getattr(whole, head).numpy()
        assert outputs.dtype == np.float32 and outputs.shape == expected.shape
        np.testing.assert_allclose(outputs, expected, atol=5e-6)


def test_a_network_of_another_shape_is_refused(tmp_path):
    frozen = untrained().freeze()
    frozen.save(tmp_path / "n.safetensors")
    same = FrozenNetwork.load(tmp_path / "n.safetensors", vars(frozen.shape))
    assert all(np.array_equal(same.weights[name], value) for name, value in frozen.weights.items())
    with pytest.raises(ProvenanceError, match=r"'trunk.0.weight' is \(16, 12\), expected \(16, 13\)"):
        FrozenNetwork.load(tmp_path / "n.safetensors", vars(frozen.shape) | {"inputs": 13})
    with pytest.raises(ProvenanceError, match="'anchor' is missing"):
        FrozenNetwork(frozen.shape, {k: v for k, v in frozen.weights.items() if k != "anchor"})
    (tmp_path / "n.safetensors").write_bytes(b"nothing")
    with pytest.raises(ProvenanceError, match="Train it again"):
        FrozenNetwork.load(tmp_path / "n.safetensors", vars(frozen.shape))


@pytest.mark.slow
def test_l1_fits_medians_and_huber_means():
    rng = np.random.default_rng(5)

    def part(n):
        return Rows(np.zeros((n, 3)), (rng.random((n, 2)) < 0.3).astype(float), np.zeros((n, 2)))

    train, validation = part(400), part(200)
    accuracy = {}
    for loss in ("huber", "l1"):
        _, log = train_network(
            train,
            validation,
            hidden=8,
            max_epochs=25,
            patience=100,
            learning_rate=0.02,
            dropout=0.0,
            loss=loss,
        )
        # one epoch of Adam jitters by how the processor rounds; the middle of the last ones does not
        accuracy[loss] = np.median([epoch["accuracy"] for epoch in log.epochs[-12:]])
    mean, median = (((validation.scores - value) ** 2).mean() for value in (0.3, 0.0))
    assert abs(accuracy["huber"] - mean) < 0.3 * (median - mean)
    assert abs(accuracy["l1"] - median) < 0.3 * (median - mean)
