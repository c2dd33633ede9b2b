"""`random`: the policy that draws an available arm uniformly, and learns nothing."""

from typing import ClassVar

import numpy as np

from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream, round_loop
from cabs_core.algorithms.policies.request import Choice, Offline, Reads, Request
from cabs_core.base.compiled.jit import kernel
from cabs_core.base.compiled.rng import ACTION, draw, uniform


@kernel
def _decide_uniformly(
    parts: tuple[np.ndarray, np.ndarray],
    data: None,
    row: int,
    mask: np.ndarray,
    t: int,
    slot: int,
    trace: np.ndarray,
) -> tuple[int, float]:
    """Return an available arm, drawn uniformly, and its probability; parts: keys, and pmf [K] to fill."""
    keys, pmf = parts
    count = mask.sum()
    for j in range(pmf.size):
        pmf[j] = mask[j] / count
    arm = draw(pmf, uniform(keys, ACTION, t, 0))
    return arm, pmf[arm]


@kernel
def _learn_nothing(parts: tuple[np.ndarray, np.ndarray], data: None, row: int, arm: int, slot: int) -> None:
    """Do nothing: the policy does not learn."""


class RandomPolicy(CompiledPolicy):
    """The policy `random`, uniform over the available arms."""

    learns = False
    any_rho: ClassVar[bool] = True
    loop = staticmethod(round_loop(_decide_uniformly, _learn_nothing))

    def start(self, offline: Offline | None) -> None:
        """Do nothing: there is nothing to prepare."""

    def parts(self, lane: Lane | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys of the policy's random numbers, and an array [K] for the kernel's pmf.

        A replay and a single request take the same parts, so `lane` is not used.
        """
        return self.keys, np.empty(len(self.arms))

    def data(self, stream: Stream) -> None:
        """Return None, because the policy reads nothing."""

    def reads(self) -> Reads:
        """Return a `Reads` without any field: the policy reads nothing of a request."""
        return Reads()

    def choose(self, request: Request) -> Choice:
        """Return an available arm, drawn uniformly, with its probability and the pmf [K] of all arms."""
        rho = self.rho_of(request)
        mask = self.mask(request)
        parts = self.parts()
        arm, probability = _decide_uniformly(parts, None, 0, mask, self.round, 0, self.new_trace())
        return Choice(int(arm), float(probability), parts[1], rho)
