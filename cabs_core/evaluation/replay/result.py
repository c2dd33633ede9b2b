"""The result of a replay: the traces of all trials."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError


@dataclass(frozen=True)
class ReplayResult:
    """Traces `[trials, T]` of one policy at one rho.

    Attributes:
        policy, rho, pool, seed, latency_weight, condition, options: settings of the replay.
        order: query (row of the problem) of each round.
        actions: arm that was played.
        propensities: probability of the played arm given the past (float32; for lin_ts see
            `policies.lin_ts`).
        rewards: clipped utility of the played arm.
        best_rewards: clipped utility of the best arm that was available in the round.
        gaps: certified gap of the exploration program where one was solved (float32), NaN elsewhere. None if
            the policy solves none.
        meta_weights: `[trials, T, M]` weight of every expert before the round (float32), or None.
        uncertified: `[trials]` number of solutions without certificate, or None.
        seconds: `[trials]` wall time of a trial's rounds, shared equally where trials run together, or None.
        scores, costs: realised score and cost (USD) of the played arm, or None (results made elsewhere).
        clusters: `[n]` equal values for queries that depend on each other. None if all are independent.
        turns: number of the turn in its conversation, from 0. None unless the condition is `sessions`.
        kept: True if the turn kept the last turn's model without a decision, or None as `turns`.
        random_rewards: mean clipped utility of all arms in the round, or None as `turns`.

    Examples:
        >>> from cabs_core import synthetic_problem
        >>> from cabs_core.evaluation.replay import replay
        >>> result = replay(synthetic_problem(n=50, K=3, d=4), "lin_ucb", rho=300.0, trials=2)
        >>> result.actions.shape, len(result.to_frame()), 0 <= result.score <= 1, result.cost > 0
        ((2, 50), 100, True, True)
    """

    policy: str
    rho: float
    order: np.ndarray
    actions: np.ndarray
    propensities: np.ndarray
    rewards: np.ndarray
    best_rewards: np.ndarray
    pool: str = ""
    seed: int = 0
    latency_weight: float = 0.0
    condition: str = "none"
    gaps: np.ndarray | None = None
    meta_weights: np.ndarray | None = None
    uncertified: np.ndarray | None = None
    seconds: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=dict)
    scores: np.ndarray | None = None
    costs: np.ndarray | None = None
    clusters: np.ndarray | None = None
    turns: np.ndarray | None = None
    kept: np.ndarray | None = None
    random_rewards: np.ndarray | None = None

    @property
    def trials(self) -> int:
        """Number of trials."""
        return len(self.actions)

    @property
    def rounds(self) -> int:
        """Number T of rounds in each trial."""
        return int(self.actions.shape[1])

    @property
    def utility(self) -> float:
        """Mean clipped utility of a round."""
        return float(self.rewards.mean())

    @property
    def score(self) -> float:
        """Mean score of the played arms, in [0, 1]."""
        return float(self.per_round("score").mean())

    @property
    def cost(self) -> float:
        """Mean cost of the played arms, USD a query."""
        return float(self.per_round("cost").mean())

    def per_round(self, measure: str) -> np.ndarray:
        """Return a measure of every round, `[trials, T]`.

        Args:
            measure: utility, score, cost (USD) or regret.

        Raises:
            DataError: the measure is unknown, or this result does not hold it.
        """
        table = {
            "utility": self.rewards,
            "score": self.scores,
            "cost": self.costs,
            "regret": self.best_rewards - self.rewards,
        }
        values: np.ndarray | None = table.get(measure)
        if values is None:
            reason = f"expected one of {', '.join(table)}"
            if measure in table:
                reason = "this result does not hold it"
            raise DataError(f"{self.policy}: measure {measure!r}: {reason}")
        return values

    def to_frame(self) -> pd.DataFrame:
        """Return one row a trial and round.

        Columns: trial, round, row (of the problem), arm (its index), propensity, reward, best_reward, and
            if they are known score, cost, turn and kept.
        """
        columns = {
            "row": self.order,
            "arm": self.actions,
            "propensity": self.propensities,
            "reward": self.rewards,
            "best_reward": self.best_rewards,
            "score": self.scores,
            "cost": self.costs,
            "turn": self.turns,
            "kept": self.kept,
        }
        trial, at = np.indices(self.actions.shape)
        frame = pd.DataFrame({"trial": trial.ravel(), "round": at.ravel()})
        return frame.assign(
            **{name: values.ravel() for name, values in columns.items() if values is not None}
        )

    def switches_per_session(self) -> np.ndarray:
        """Return the mean number of switches between arms in a conversation, `[trials]`.

        Raises:
            DataError: the replay had no conversations.
        """
        if self.turns is None:
            raise DataError(f"{self.policy}: only a replay under condition sessions has conversations")
        changed = (self.actions[:, 1:] != self.actions[:, :-1]) & (self.turns[:, 1:] > 0)
        switches: np.ndarray = changed.sum(axis=1) / (self.turns == 0).sum(axis=1)
        return switches

    def utilities(self) -> np.ndarray:
        """Return the mean clipped utility of every trial, `[trials]`."""
        means: np.ndarray = self.rewards.mean(axis=1)
        return means
