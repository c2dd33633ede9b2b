"""Neural regression of every arm's reward: many small networks trained side by side as batched torch tensors.

There is one network per lane and expert, with d inputs, one hidden layer of ReLU units and K outputs (one per
arm). All networks of a replay advance in lockstep, so a round is a few batched matrix products instead of
many small products per trial. Gradients are written out (two layers; a test compares them with autograd):
`torch.func.vmap(grad)` gives the same to 6e-17 and takes 2.6 times as long a step (20 networks, d = 33, 64
units, 18 arms, batches of 32, one thread). Adam is that of Kingma and Ba (2015). The loss is that of
NeuralUCB (Zhou et al. 2020, equation 4 there), with a mean over the observed rows instead of a sum: squared
error / 2 plus penalty / (2 n) times the squared distance of the weights from their start.

All tensors are float64: the covariances built on the hidden features have a penalty of 1e-3, where float32
fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from cabs_core.algorithms.regression.ridge import diluted_inverse

#: weights [n, d, h] and biases [n, 1, h] of the hidden units, [n, h, K] and [n, 1, K] of the outputs
Layers = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8


class NetworkBatch:
    """Batch of n networks of one shape with P parameters each.

    Attributes:
        dim, hidden, arms: d, h, K.
        flat, start: float64 [n, P], parameters and their start. first, second: [n, P], Adam's moments.
        steps: int64 [n], number of Adam steps of each network.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        arms: int,
        flat: ArrayLike,
        start: ArrayLike,
        first: ArrayLike,
        second: ArrayLike,
        steps: ArrayLike,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dim = int(dim)
        self.hidden = int(hidden)
        self.arms = int(arms)
        self.device = torch.device(device)
        self.flat, self.start, self.first, self.second = (
            torch.as_tensor(np.array(v), dtype=torch.float64).to(self.device)
            for v in (flat, start, first, second)
        )
        self.steps = torch.as_tensor(np.array(steps), dtype=torch.int64).to(self.device)
        self._layout()

    def _layout(self) -> None:
        """Make the gradient and the views of parameters and gradient as layers.

        Raises:
            ValueError: the number of parameters does not fit d, h and K.
        """
        d = self.dim
        h = self.hidden
        k = self.arms
        sizes = (d * h, h, h * k, k)
        if self.flat.shape[1] != sum(sizes):
            raise ValueError(
                f"parameters [{self.flat.shape[1]}] do not fit d={d}, h={h}, K={k}: {sum(sizes)}"
            )
        self.gradient = torch.zeros_like(self.flat)
        self._views = self.split(self.flat)
        self._gradients = self.split(self.gradient)

    def split(self, flat: torch.Tensor) -> Layers:
        """Return rows [n, P] of parameters, or of their gradients or moments, as views of the layers."""
        d = self.dim
        h = self.hidden
        k = self.arms
        n = flat.shape[0]
        a = d * h
        b = d * h + h
        c = d * h + h + h * k
        return (
            flat[:, :a].view(n, d, h),
            flat[:, a:b].view(n, 1, h),
            flat[:, b:c].view(n, h, k),
            flat[:, c:].view(n, 1, k),
        )

    @staticmethod
    def initial(dim: int, hidden: int, arms: int, normals: np.ndarray, output: float) -> np.ndarray:
        """Return the parameters [P] of one new network, from standard normal draws [d h + h K].

        The hidden layer has He weights, the last layer a tenth of He weights. Hidden biases are 0, output
        biases `output`.
        """
        a = dim * hidden
        w1 = normals[:a] * np.sqrt(2.0 / dim)
        w2 = normals[a : a + hidden * arms] * 0.1 * np.sqrt(2.0 / hidden)
        return np.concatenate([w1, np.zeros(hidden), w2, np.full(arms, output)])

    def arrays(self, index: int | slice) -> dict[str, np.ndarray]:
        """Return parameters, start, Adam's moments and steps of the networks at `index`, as arrays."""
        names = ("flat", "start", "first", "second", "steps")
        return {name: getattr(self, name)[index].cpu().numpy().copy() for name in names}

    @classmethod
    def join(
        cls,
        dim: int,
        hidden: int,
        arms: int,
        parts: Sequence[Mapping[str, np.ndarray]],
        device: str | torch.device = "cpu",
    ) -> NetworkBatch:
        """Return the batch of networks whose `arrays` are the parts, one network a part."""
        names = ("flat", "start", "first", "second", "steps")
        stacked = {name: np.stack([np.asarray(p[name]) for p in parts]) for name in names}
        return cls(dim, hidden, arms, **stacked, device=device)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute hidden units [n, B, h] and outputs [n, B, K] for inputs [n, B, d]."""
        w1, b1, w2, b2 = self._views
        hidden = torch.baddbmm(b1, x, w1).clamp_(min=0.0)
        return hidden, torch.baddbmm(b2, hidden, w2)

    def step(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
        rate: float,
        penalty: float,
        observed: torch.Tensor,
        active: torch.Tensor | None = None,
    ) -> None:
        """Take one Adam step of every network on its batch.

        Args:
            x: [n, B, d]. y, weight: [n, B, K]; weight 0 is for a value that was not observed.
            rate: learning rate. penalty: lambda. observed: [n], rows seen so far, which divide the penalty.
            active: bool [n] of the networks that take the step, None for all.
        """
        _, _, w2, _ = self._views
        g1, gb1, g2, gb2 = self._gradients
        hidden, out = self.forward(x)
        error = (out - y).mul_(weight).div_(x.shape[1])
        torch.bmm(hidden.transpose(1, 2), error, out=g2)
        torch.sum(error, dim=1, keepdim=True, out=gb2)
        back = torch.bmm(error, w2.transpose(1, 2)).mul_(hidden > 0)
        torch.bmm(x.transpose(1, 2), back, out=g1)
        torch.sum(back, dim=1, keepdim=True, out=gb1)
        if penalty > 0:
            self.gradient.add_((self.flat - self.start).mul_((penalty / observed.clamp(min=1.0))[:, None]))
        self._adam(rate, active)

    def _adam(self, rate: float, active: torch.Tensor | None) -> None:
        """Update the moments and parameters of the active networks by the present gradient."""
        gradient = self.gradient
        if active is None:
            self.steps += 1
            self.first.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
            self.second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            change = self._change(rate)
        else:
            self.steps += active
            row = active[:, None]
            self.first.copy_(torch.where(row, self.first * BETA1 + gradient * (1 - BETA1), self.first))
            self.second.copy_(
                torch.where(row, self.second * BETA2 + gradient * gradient * (1 - BETA2), self.second)
            )
            change = torch.where(row, self._change(rate), 0.0)
        self.flat.sub_(change)

    def _change(self, rate: float) -> torch.Tensor:
        """Return Adam's step [n, P], with bias-corrected moments, which is subtracted from the parameters."""
        t = self.steps.clamp(min=1).to(torch.float64)[:, None]
        size = rate / (1 - BETA1**t)
        root = (self.second / (1 - BETA2**t)).sqrt_().add_(EPSILON)
        return self.first.div(root).mul_(size)

    def resize_arms(self, keep: Sequence[int], added: int = 0, output: float = 0.0) -> NetworkBatch:
        """Return a copy whose outputs are those in `keep`, then `added` new outputs that predict `output`."""
        arms = len(keep) + added
        index = torch.as_tensor(list(keep), dtype=torch.int64, device=self.device)

        def change(flat: torch.Tensor, value: float) -> np.ndarray:
            w1, b1, w2, b2 = self.split(flat)
            n = flat.shape[0]
            h = self.hidden
            w2 = torch.cat([w2[:, :, index], w2.new_zeros(n, h, added)], dim=2)
            b2 = torch.cat([b2[:, :, index], b2.new_full((n, 1, added), value)], dim=2)
            return torch.cat([part.reshape(n, -1) for part in (w1, b1, w2, b2)], dim=1).cpu().numpy()

        return NetworkBatch(
            self.dim,
            self.hidden,
            arms,
            change(self.flat, output),
            change(self.start, output),
            change(self.first, 0.0),
            change(self.second, 0.0),
            self.steps.cpu().numpy(),
            device=self.device,
        )

    def copy_output(self, arm: int, factor: float) -> None:
        """Make the last output of every network predict `factor` times the output of `arm`.

        The start, towards which the penalty pulls, changes too, so that training does not undo the copy.
        """
        for flat in (self.flat, self.start):
            _, _, w2, b2 = self.split(flat)
            w2[:, :, -1] = factor * w2[:, :, arm]
            b2[:, :, -1] = factor * b2[:, :, arm]


class LastLayerCovariance:
    """Covariances A^-1 of every (network, arm), which give the confidence widths of NeuralUCB.

    The features are phi = [hidden / sqrt(h), 1]. The width is sqrt(penalty phi'A^-1 phi), as in NeuralUCB
    (its sqrt(lambda g'Z^-1 g / m)), so at first it does not depend on the penalty.

    Attributes:
        inverse: A^-1, float64 [n, K, h + 1, h + 1], which starts at I / penalty.
    """

    def __init__(self, inverse: ArrayLike, penalty: float, device: str | torch.device = "cpu") -> None:
        self.inverse = torch.as_tensor(np.array(inverse), dtype=torch.float64).to(device)
        self.penalty = float(penalty)

    @staticmethod
    def initial(hidden: int, arms: int, penalty: float) -> np.ndarray:
        """Return A^-1 before the first row, [K, h + 1, h + 1]."""
        return np.tile(np.eye(hidden + 1) / penalty, (arms, 1, 1))

    def _features(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the features phi [n, h + 1] of hidden units [n, h]."""
        scale = 1.0 / np.sqrt(hidden.shape[1])
        return torch.cat([hidden * scale, hidden.new_ones(hidden.shape[0], 1)], dim=1)

    def squared_widths(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute penalty phi'A_j^-1 phi [n, K] for inputs with hidden units [n, h]."""
        phi = self._features(hidden)
        n, k, f, _ = self.inverse.shape
        projected = torch.bmm(self.inverse.reshape(n, k * f, f), phi[:, :, None]).view(n, k, f)
        return torch.bmm(projected, phi[:, :, None])[:, :, 0].mul_(self.penalty)

    def observe(self, hidden: torch.Tensor, arms: torch.Tensor, active: torch.Tensor | None = None) -> None:
        """Update each network's matrix of its played arm by a rank-one update.

        Args:
            hidden: hidden units [n, h]. arms: played arms, int64 [n].
            active: bool [n] of networks to update, or None for all.
        """
        phi = self._features(hidden)
        rows = torch.arange(len(arms), device=phi.device)
        if active is not None:
            rows = rows[active]
            phi = phi[active]
            arms = arms[active]
        chosen = self.inverse[rows, arms]
        gain = torch.bmm(chosen, phi[:, :, None])
        total = 1.0 + torch.bmm(phi[:, None, :], gain)
        self.inverse[rows, arms] = chosen - torch.bmm(gain / total, gain.transpose(1, 2))

    def copy_arm(self, arm: int) -> None:
        """Give the last arm the covariance of `arm`, as certain as after a few rounds (`diluted_inverse`).

        The covariance of `arm` stays as it is.
        """
        for inverse in self.inverse:
            diluted = diluted_inverse(inverse[arm].cpu().numpy(), self.penalty, 1.0)
            inverse[-1] = torch.as_tensor(diluted).to(inverse)

    def resize(self, keep: Sequence[int], added: int) -> None:
        """Keep the arms with the indices `keep`, and append `added` arms before their first row."""
        hidden = self.inverse.shape[-1] - 1
        fresh = torch.as_tensor(self.initial(hidden, added, self.penalty)).to(self.inverse)
        fresh = fresh[None].expand(self.inverse.shape[0], -1, -1, -1)
        index = torch.as_tensor(list(keep), dtype=torch.int64, device=self.inverse.device)
        self.inverse = torch.cat([self.inverse[:, index], fresh], dim=1)
