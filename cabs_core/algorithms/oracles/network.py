"""The oracle network of the paper (appendix, Implementation Details): a shared trunk and four heads.

* accuracy: ybar_j(x), from the context alone (the affinity oracle);
* propagation: g(x, i, y_i) -> surrogate score of every arm once anchor i scored y_i (the reward oracle);
* cost: z-scored cost of every arm;
* features: a 128-d representation for the bandits, trained through a linear read-out of the scores.

The propagation head works on the surprise s = y_i - ybar_i(x): surrogate_j = ybar_j + s G_ij + (V u)_j with
u = gelu(W h + E_i + s F_i), h the trunk's output. G starts at the slopes of the regression of one arm's
residual on another's, so that training begins at the best propagation that does not depend on the context.
"""

from dataclasses import dataclass

import torch
from torch import nn

from cabs_core.algorithms.oracles.frozen_network import FrozenNetwork, NetworkShape


@dataclass
class NetworkHeads:
    """Outputs of the network for a batch of B prompts.

    Attributes:
        scores: `[B, K]`. surrogates: `[B, K anchors, K]`, or None without scores of anchors.
        costs: `[B, K]`, z-scored. features: `[B, F]`. readout: `[B, K]`, scores read from the features.
    """

    scores: torch.Tensor
    surrogates: torch.Tensor | None
    costs: torch.Tensor
    features: torch.Tensor
    readout: torch.Tensor


class OracleNetwork(nn.Module):
    """The network of the module's docstring: a shared trunk and four heads."""

    def __init__(self, shape: NetworkShape):
        super().__init__()
        self.shape = shape
        k = shape.arms
        h = shape.hidden
        p = shape.propagation
        first, second = (
            [nn.Linear(width, h), nn.LayerNorm(h), nn.GELU(), nn.Dropout(shape.dropout)]
            for width in (shape.inputs, h)
        )
        self.trunk = nn.Sequential(*first, *second)
        self.accuracy = nn.Linear(h, k)
        self.cost = nn.Linear(h, k)
        self.cost_skip = nn.Linear(shape.inputs, k)
        self.features = nn.Sequential(nn.Linear(h, shape.features), nn.Tanh())
        self.readout = nn.Linear(shape.features, k)
        self.to_u = nn.Linear(h, p)
        self.anchor = nn.Parameter(torch.randn(k, p) * p**-0.5)
        self.anchor_surprise = nn.Parameter(torch.randn(k, p) * p**-0.5)
        self.direct = nn.Parameter(torch.zeros(k, k))
        self.from_u = nn.Linear(p, k)
        for layer in (self.accuracy, self.cost, self.cost_skip, self.readout, self.from_u):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)

    def start_at(self, means: torch.Tensor, slopes: torch.Tensor) -> None:
        """Set the weights at which training begins: biases to the arms' mean scores `[K]`, and G to residual
        regression slopes `[K anchors, K]`.
        """
        with torch.no_grad():
            self.accuracy.bias.copy_(means)
            self.readout.bias.copy_(means)
            self.direct.copy_(slopes)

    def forward(self, x: torch.Tensor, scores: torch.Tensor | None = None) -> NetworkHeads:
        """Return all heads for inputs `[B, inputs]`, and surrogates for every anchor if scores `[B, K]` are
        given.
        """
        h = self.trunk(x)
        ybar = self.accuracy(h)
        features = self.features(h)
        surrogates = None
        if scores is not None:
            # detached, so that the propagation loss does not train the accuracy head
            known = ybar.detach()
            surprise = (scores - known).unsqueeze(-1)
            u = nn.functional.gelu(self.to_u(h).unsqueeze(1) + self.anchor + surprise * self.anchor_surprise)
            surrogates = known.unsqueeze(1) + surprise * self.direct + self.from_u(u)
        costs = self.cost(h) + self.cost_skip(x)
        return NetworkHeads(ybar, surrogates, costs, features, self.readout(features))

    def freeze(self) -> FrozenNetwork:
        """Return the network as NumPy arrays, which all code after training uses."""
        return FrozenNetwork(
            self.shape, {name: value.cpu().numpy() for name, value in self.state_dict().items()}
        )
