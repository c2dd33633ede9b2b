"""Batched networks against torch's autograd and Adam, and their widths against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cabs_core.algorithms.regression.neural import LastLayerCovariance, NetworkBatch


def batch(n=3, d=4, h=5, k=2, seed=0, output=0.3):
    rng = np.random.default_rng(seed)
    flat = np.stack([NetworkBatch.initial(d, h, k, rng.normal(size=d * h + h * k), output) for _ in range(n)])
    zero = np.zeros_like(flat)
    return NetworkBatch(d, h, k, flat, flat + 0.01, zero, zero, np.zeros(n, dtype=np.int64))


def modules(nets):
    """The same networks as torch modules."""
    out = []
    for i in range(len(nets.flat)):
        w1, b1, w2, b2 = (v[i].clone() for v in nets.split(nets.flat))
        first, last = torch.nn.Linear(nets.dim, nets.hidden).double(), None
        last = torch.nn.Linear(nets.hidden, nets.arms).double()
        with torch.no_grad():
            first.weight.copy_(w1.T)
            first.bias.copy_(b1[0])
            last.weight.copy_(w2.T)
            last.bias.copy_(b2[0])
        out.append(torch.nn.Sequential(first, torch.nn.ReLU(), last))
    return out


def flatten(module):
    first, last = module[0], module[2]
    return torch.cat([first.weight.T.reshape(-1), first.bias, last.weight.T.reshape(-1), last.bias])


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 999),
    n=st.integers(1, 4),
    d=st.integers(1, 5),
    h=st.integers(1, 6),
    k=st.integers(1, 4),
)
def test_training_is_autograd_with_torch_adam(seed, n, d, h, k):
    nets = batch(n, d, h, k, seed)
    reference, start = modules(nets), nets.start.clone()
    optimisers = [torch.optim.Adam(m.parameters(), lr=0.01, eps=1e-8) for m in reference]
    rng = np.random.default_rng(seed + 1)
    observed = torch.as_tensor(rng.integers(1, 50, size=n).astype(float))
    for _ in range(4):
        x, y = torch.as_tensor(rng.normal(size=(n, 6, d))), torch.as_tensor(rng.random((n, 6, k)))
        w = torch.as_tensor(rng.integers(0, 3, size=(n, 6, k)).astype(float))
        nets.step(x, y, w, 0.01, 0.05, observed)
        for i, (module, optimiser) in enumerate(zip(reference, optimisers)):
            loss = 0.5 * (w[i] * (module(x[i]) - y[i]) ** 2).sum() / 6
            loss = loss + 0.5 * 0.05 / observed[i] * ((flatten(module) - start[i]) ** 2).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            torch.testing.assert_close(nets.flat[i], flatten(module).detach(), atol=1e-10, rtol=1e-8)


def test_inactive_networks_do_not_move():
    nets, twins = batch(), batch()
    rng = np.random.default_rng(0)
    x, y = torch.as_tensor(rng.normal(size=(3, 4, 4))), torch.as_tensor(rng.random((3, 4, 2)))
    w, seen = torch.ones_like(y), torch.full((3,), 9.0, dtype=torch.float64)
    nets.step(x, y, w, 0.01, 0.1, seen)
    twins.step(x, y, w, 0.01, 0.1, seen, active=torch.tensor([True, False, True]))
    start = batch().flat
    torch.testing.assert_close(twins.flat[[0, 2]], nets.flat[[0, 2]], atol=0, rtol=0)
    torch.testing.assert_close(twins.flat[1], start[1], atol=0, rtol=0)
    assert twins.steps.tolist() == [1, 0, 1] and float(twins.first[1].abs().sum()) == 0.0


def test_last_layer_width_is_that_of_the_full_matrix():
    nets = batch(n=2, d=3, h=4, k=3)
    inverse = np.stack([LastLayerCovariance.initial(4, 3, 1e-3)] * 2)
    widths = LastLayerCovariance(inverse, 1e-3)
    matrices = np.tile(1e-3 * np.eye(5), (2, 3, 1, 1))
    rng = np.random.default_rng(5)
    for _ in range(30):
        x = torch.as_tensor(rng.normal(size=(2, 3)))
        hidden = nets.forward(x[:, None])[0][:, 0]
        arms = torch.as_tensor(rng.integers(0, 3, size=2))
        phi = np.concatenate([hidden.numpy() / 2.0, np.ones((2, 1))], axis=1)
        expected = [
            [1e-3 * phi[i] @ np.linalg.solve(matrices[i, j], phi[i]) for j in range(3)] for i in range(2)
        ]
        np.testing.assert_allclose(widths.squared_widths(hidden), expected, rtol=1e-7)
        active = torch.tensor([True, bool(rng.random() < 0.5)])
        widths.observe(hidden, arms, active)
        for i in range(2):
            if active[i]:
                matrices[i, arms[i]] += np.outer(phi[i], phi[i])


def test_arms_keep_what_they_learnt_when_others_come_and_go():
    nets = batch(n=2, d=3, h=4, k=3)
    spread = LastLayerCovariance(np.stack([LastLayerCovariance.initial(4, 3, 0.5)] * 2), 0.5)
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(2, 3)))
    hidden = nets.forward(x[:, None])[0][:, 0]
    spread.observe(hidden, torch.tensor([0, 2]))
    out, before = nets.forward(x[:, None])[1][:, 0], spread.squared_widths(hidden)
    resized = nets.resize_arms([0, 2], added=1, output=0.7)
    spread.resize([0, 2], 1)
    changed = resized.forward(x[:, None])[1][:, 0]
    torch.testing.assert_close(changed[:, :2], out[:, [0, 2]])
    torch.testing.assert_close(changed[:, 2], torch.full((2,), 0.7, dtype=torch.float64))
    torch.testing.assert_close(spread.squared_widths(hidden)[:, :2], before[:, [0, 2]])


def test_parameters_must_fit_the_shape():
    with pytest.raises(ValueError, match="do not fit"):
        NetworkBatch(3, 4, 2, *(np.zeros((1, 5)) for _ in range(4)), np.zeros(1, dtype=np.int64))
