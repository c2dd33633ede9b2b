"""`eagle`: Eagle (arXiv 2409.15518), which plays the arm of the largest mean of a global and a local rating.

Both ratings are on Elo's scale. The global ratings are fitted to the comparisons of all train prompts. The
local ratings start from the global ones and are updated by Elo's rule for the comparisons of the nearest
train prompts. `EagleOptions` has the K-factor, the number of prompts and the weight of the global rating.
An arm beats another on a prompt where its utility is larger; equal utilities are a draw.
"""

from typing import ClassVar

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies.neighbours import NearestPolicy
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Offline
from cabs_core.base.compiled.jit import kernel

#: 10^(gap / 400) = exp(gap _ELO)
_ELO = np.log(10.0) / 400.0


@kernel
def elo_updates(ratings: np.ndarray, results: np.ndarray, k_factor: float) -> None:
    """Update ratings [K] in place by Elo's rule, for every pair of arms in every row of results [m, K], in
    order.

    The larger result wins, equal results are a draw. The expected score of arm a against arm b is
    1 / (1 + 10^((R_b - R_a) / 400)).
    """
    for row in range(results.shape[0]):
        for a in range(ratings.size):
            for b in range(a + 1, ratings.size):
                won = 0.5
                if results[row, a] > results[row, b]:
                    won = 1.0
                elif results[row, a] < results[row, b]:
                    won = 0.0
                # exp takes a quarter of the time of a power of 10
                step = k_factor * (won - 1.0 / (1.0 + np.exp((ratings[b] - ratings[a]) * _ELO)))
                ratings[a] += step
                ratings[b] -= step


def bradley_terry(results: np.ndarray) -> np.ndarray:
    """Return the Bradley-Terry ratings [K] of largest likelihood for all comparisons in results [N, K].

    The ratings are on Elo's scale, with mean 1000. A tie is half a win. One more tie is added for every pair,
    which keeps the rating of an arm that never lost finite. The method is minorisation (Hunter 2004, Annals
    of Statistics 32(1)). Unlike ratings after a pass of Elo updates, these do not depend on the order of
    rows.
    """
    k = results.shape[1]
    if k < 2:
        return np.full(k, 1000.0)
    arms = np.ascontiguousarray(results.T)
    wins = (
        np.array([[(x > y).sum() + 0.5 * (x == y).sum() for y in arms] for x in arms], dtype=np.float64) + 0.5
    )
    np.fill_diagonal(wins, 0.0)
    games = wins + wins.T
    strength = np.ones(k)
    for _ in range(10_000):
        new = wins.sum(axis=1) / (games / (strength[:, None] + strength)).sum(axis=1)
        new /= np.exp(np.log(new).mean())
        close = np.abs(np.log(new / strength)).max() < 1e-12
        strength = new
        if close:
            break
    return 1000.0 + 400.0 * np.log10(strength)


@kernel
def local_ratings(
    start: np.ndarray, results: np.ndarray, near: np.ndarray, k_factor: float, out: np.ndarray
) -> None:
    """Fill out [n, K] with ratings that begin at start [K] and are updated for the rows near [n, k] of
    results [N, K], in the order of near.
    """
    for i in range(near.shape[0]):
        out[i] = start
        for r in range(near.shape[1]):
            elo_updates(out[i], results[near[i, r] : near[i, r] + 1], k_factor)


class EagleOptions(PolicyOptions):
    """Settings of `eagle`."""

    k_factor: float = Field(32.0, gt=0, description="K of the Elo updates of the local rating")
    neighbours: int = Field(20, ge=1)
    global_share: float = Field(0.5, ge=0, le=1, description="Weight of the global rating")


class Eagle(NearestPolicy):
    """The policy `eagle`; see the module. Local ratings are updated for the nearest neighbour first."""

    utilities: np.ndarray
    ratings: np.ndarray

    Settings = EagleOptions
    _ARRAYS: ClassVar = ("train", "utilities", "ratings")

    def fitted(self, points: np.ndarray, offline: Offline) -> tuple[np.ndarray, ...]:
        """Return the train points [N, e] and utilities [N, K], and the fitted global ratings [K]."""
        return points, offline.utilities, bradley_terry(offline.utilities)

    def rate(self, near: np.ndarray) -> np.ndarray:
        """Return the weighted mean of global and local ratings, [n, K].

        Args:
            near: indices [n, k] of the nearest train rows, the nearest first.
        """
        o = self.settings
        local = np.empty((len(near), len(self.ratings)))
        local_ratings(self.ratings, self.utilities, near, o.k_factor, local)
        ratings: np.ndarray = o.global_share * self.ratings + (1.0 - o.global_share) * local
        return ratings
