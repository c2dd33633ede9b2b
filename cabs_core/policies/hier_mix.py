"""`hier_mix`: hierarchical Bayesian models of the score, one anchored on the static `kernel` prediction, one not.

Two linear models (`hier_kernels`) see every outcome:

    anchored  y = f0 + alpha + beta (f0 - mu) + b_j + eta.z: the static prediction f0 with shared corrections of
              its level, slope and dependence on the context, and a small one per arm;
    cold      y = 1/2 + alpha + b_j + eta.z + delta_j.z: no offline label in it.

z are the contexts without constant columns, centred and scaled to mean squared norm 1 on the train split. Each
model's weight is its prior weight times the Bernoulli likelihood of every played outcome under its prediction
(clipped to [clip, 1 - clip]), with a small fixed share back to the prior. Every round one model is sampled by
weight: averaging predictions instead gets stuck when the offline labels are wrong, since the anchored model is
then only tested on the arms that it likes. With g the sampled model's greedy arm, the value of arm j is its
expected utility plus `exploration` times the margin times N(0, 1) times the posterior deviation of (score of j -
score of g): what the arms have in common costs no exploration. Where the horizon is long enough, every third
round plays the least played arm until each has been played once.

The prior deviation of the level alpha decides how soon a wrong anchor is found out: a model that may shift all
arms together explains the failures of its favourite by a shift, and goes on playing it. With .1 the policy stays
half trusting on short streams; .03 ends that and costs nothing where the anchor is right. Small deviations of
beta and b_j also save exploration that a right anchor does not need. `WIDE_ANCHOR` holds the wider ones.

Scores are learnt, not utilities: one model serves every rho. The propensity is exact up to quadrature: the
models' probabilities of winning, mixed by their weights; 1 in a forced round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import ACTION, uniform
from cabs_core.errors import PolicyError
from cabs_core.policies.base import Options, Policy
from cabs_core.policies.hier_kernels import (
    anchored_learn,
    anchored_predict,
    cold_learn,
    cold_predict,
    contrast_deviation,
)
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.mix import arrival_table, draw_largest, value_and_slope
from cabs_core.policies.requests import Decision, Request
from cabs_core.policies.thompson import CELLS, best_probabilities

DEFAULT_HORIZON = 10_000
#: options with a less rigid anchored model, for comparison: slower to leave a wrong anchor
WIDE_ANCHOR = {"anchor_level": 0.1, "anchor_slope": 0.1, "anchor_arm": 0.02}


class HierOptions(Options):
    """Settings of `hier_mix`. Deviations are prior standard deviations, in units of the score."""

    base: str = Field("kernel", description="Static predictor to anchor on; 'carrot': the accuracy head")
    anchor_weight: float = Field(0.9, gt=0, lt=1, description="Prior weight of the anchored model")
    anchor_level: float = Field(0.03, gt=0, description="Deviation of alpha")
    anchor_slope: float = Field(0.03, gt=0, description="Deviation of beta")
    anchor_arm: float = Field(0.01, gt=0, description="Deviation of b_j")
    anchor_context: float = Field(0.1, gt=0, description="Deviation of eta")
    cold_level: float = Field(0.3, gt=0)
    cold_arm: float = Field(0.2, gt=0)
    cold_context: float = Field(0.2, gt=0)
    cold_arm_context: float = Field(0.05, gt=0, description="Deviation of delta_j")
    noise: float = Field(0.2, gt=0, description="Variance of a score given its expectation")
    exploration: float = Field(0.5, ge=0, description="Scale of the normal draw, in posterior deviations")
    clip: float = Field(0.02, gt=0, lt=0.5, description="Of predictions in the likelihood")
    share: float = Field(1e-4, ge=0, lt=1, description="Fixed share: weight moved back to the prior a round")
    force_above: float = Field(
        100.0, ge=0, description="Play every arm once when the horizon exceeds this x K"
    )

    @model_validator(mode="after")
    def _known_base(self):
        known = ("kernel", "ridge", "knn", "knn_literal", "carrot")
        if self.base not in known:
            raise ValueError(f"base must be one of {', '.join(known)}")
        return self


# Tuples of arrays that the kernels take:
#   anchored = (mean [d + 2], cov [d + 2, d + 2], var [K], cross [K, d + 2], total [K], level [K])
#   cold     = (mean [d + 1], cov [d + 1, d + 1], cov_arm [K, d + 1, d + 1], mean_arm [K, d + 1], prior [d + 1])
#   work     = scratch: (f, v, sd, mean, pmf, other [K], below [2, K], x [d + 1], difference, row, gain [d + 2],
#              u_anchored [K, d + 2], u_cold [K, d + 1])
#   numbers  = (rho, share, exploration, noise, clip, fixed share, prior weight of the anchored model)


def scratch(k: int, d: int) -> tuple[np.ndarray, ...]:
    """Arrays that the kernels write to."""
    vectors = [np.zeros(k) for _ in range(6)]
    vectors.append(np.zeros((2, k)))
    return (
        *vectors,
        np.zeros(d + 1),
        *(np.zeros(d + 2) for _ in range(3)),
        np.zeros((k, d + 2)),
        np.zeros((k, d + 1)),
    )


@kernel
def _values(model, z, base, costs, mask, numbers, anchored, cold, work):
    """Fill mean and sd [K] of the arms' values under one model (0 anchored, 1 cold); mean -inf: not available."""
    f, v, sd, mean, _, _, _, x, difference, _, _, u_anchored, u_cold = work
    rho, share, exploration = numbers[0], numbers[1], numbers[2]
    if model == 0:
        a_mean, _, a_var, a_cross, a_total, level = anchored
        anchored_predict(z, base, level, mask, a_mean, a_var, a_cross, a_total, f, u_anchored, v)
    else:
        c_mean, _, c_cov_arm, c_mean_arm, c_prior = cold
        x[0] = 1.0
        for i in range(z.size):
            x[i + 1] = z[i]
        cold_predict(x, mask, c_prior, c_mean, c_cov_arm, c_mean_arm, f, u_cold, v)
    greedy, most = -1, -np.inf
    for j in range(f.size):
        mean[j], sd[j] = -np.inf, 0.0
        if mask[j]:
            mean[j], _ = value_and_slope(f[j], costs[j], rho, share)
            if mean[j] > most:
                greedy, most = j, mean[j]
    if exploration == 0.0:
        return
    if model == 0:
        contrast_deviation(u_anchored, v, mask, greedy, anchored[1], sd, difference)
    else:
        contrast_deviation(u_cold, v, mask, greedy, cold[1], sd, difference)
    for j in range(f.size):
        if mask[j]:
            _, slope = value_and_slope(f[j], costs[j], rho, share)
            sd[j] *= exploration * slope


@kernel
def _trust(log_weights):
    """Weight of the anchored model."""
    return 1.0 / (1.0 + np.exp(log_weights[1] - log_weights[0]))


@kernel
def _decide(z, base, costs, mask, keys, t, force, numbers, log_weights, plays, anchored, cold, work):
    """Play a round: returns the arm and fills pmf [K] in work."""
    sd, mean, pmf, other, below = work[2], work[3], work[4], work[5], work[6]
    if force and t % 3 == 2:
        least = -1
        for j in range(mask.size):
            if mask[j] and (least < 0 or plays[j] < plays[least]):
                least = j
        if plays[least] == 0:
            pmf[:] = 0.0
            pmf[least] = 1.0
            plays[least] += 1
            return least
    trust = _trust(log_weights)
    model = 0 if uniform(keys, ACTION, t, 0) < trust else 1
    _values(1 - model, z, base, costs, mask, numbers, anchored, cold, work)
    best_probabilities(mean, sd, other, below, CELLS)
    _values(model, z, base, costs, mask, numbers, anchored, cold, work)
    best_probabilities(mean, sd, pmf, below, CELLS)
    weight = trust if model == 0 else 1.0 - trust
    for j in range(pmf.size):
        pmf[j] = weight * pmf[j] + (1.0 - weight) * other[j]
    arm = draw_largest(keys, t, mean, sd)
    plays[arm] += 1
    return arm


@kernel
def _likelihood(score, predicted, clip):
    p = min(1.0 - clip, max(clip, predicted))
    return score * np.log(p) + (1.0 - score) * np.log(1.0 - p)


@kernel
def _learn(z, base, arm, score, numbers, log_weights, anchored, cold, work):
    """An outcome of `arm`, whose static prediction is `base`: both models, then their weights."""
    a_mean, a_cov, a_var, a_cross, a_total, level = anchored
    c_mean, c_cov, c_cov_arm, c_mean_arm, c_prior = cold
    x, row, gain = work[7], work[9], work[10]
    noise, clip, share, prior = numbers[3], numbers[4], numbers[5], numbers[6]
    x[0] = 1.0
    for i in range(z.size):
        x[i + 1] = z[i]
    d = x.size
    first = anchored_learn(
        z, base, level[arm], arm, score, noise, a_mean, a_cov, a_var, a_cross, a_total, row, gain
    )
    second = cold_learn(
        x, arm, score, noise, c_prior, c_mean, c_cov, c_cov_arm, c_mean_arm, row[:d], gain[:d]
    )
    log_weights[0] += _likelihood(score, first, clip)
    log_weights[1] += _likelihood(score, second, clip)
    trust = (1.0 - share) * _trust(log_weights) + share * prior
    log_weights[0] = np.log(max(trust, 1e-300))
    log_weights[1] = np.log(max(1.0 - trust, 1e-300))


@kernel
def _run(
    order, arrivals, immediate, first, start, stop, keys, force, contexts, scaling, base, costs, scores,
    active_from, active_until, numbers, log_weights, plays, anchored, cold, work, actions, propensities, traced,
):  # fmt: skip
    k, d = costs.shape[1], contexts.shape[1]
    mask, z = np.ones(k, dtype=np.bool_), np.empty(contexts.shape[1])
    due = 0
    while due < arrivals.shape[0] and arrivals[due, 0] < start:
        due += 1
    for t in range(start, stop):
        query = order[t]
        for j in range(k):
            mask[j] = active_from[j] <= t < active_until[j]
        for i in range(d):
            z[i] = (contexts[query, i] - scaling[0, i]) * scaling[1, i]
        trust = _trust(log_weights)
        traced[t, 0], traced[t, 1] = trust, 1.0 - trust
        arm = _decide(
            z, base[query], costs[query], mask, keys, first + t - start, force, numbers, log_weights, plays,
            anchored, cold, work,
        )  # fmt: skip
        actions[t], propensities[t] = arm, work[4][arm]
        while immediate or (due < arrivals.shape[0] and arrivals[due, 0] == t):
            s = t if immediate else arrivals[due, 1]
            played = order[s]
            for i in range(d):
                z[i] = (contexts[played, i] - scaling[0, i]) * scaling[1, i]
            a = actions[s]
            _learn(z, base[played, a], a, scores[played, a], numbers, log_weights, anchored, cold, work)
            if immediate:
                break
            due += 1


class HierMix(Policy):
    """See the module. Needs contexts, static predictions of scores (option `base`) and costs; serves any rho.

    Where a problem or request has no prediction of that name, the accuracy head takes its place. The latency
    term of the utility plays no part in its choice: nothing predicts latencies.
    """

    Settings: ClassVar = HierOptions
    any_rho: ClassVar[bool] = True

    def start(self, offline: Offline | None) -> None:
        """Priors; the scaling of the contexts and the mean prediction of every arm come from the train split."""
        o, k, d = self.settings, len(self.arms), self.dim
        self.scaling = np.stack([np.zeros(d), np.ones(d)])
        level = np.full(k, 0.5)
        if offline is not None and len(offline):
            self.scaling = offline.once("hier_mix scaling", lambda: scaling_of(offline.contexts)).copy()
            level = offline.scores.mean(axis=0)
        shared = np.array([o.anchor_level, o.anchor_slope, *[o.anchor_context] * d]) ** 2
        self.anchored = (
            np.zeros(d + 2), np.diag(shared), np.full(k, o.anchor_arm**2), np.zeros((k, d + 2)), np.zeros(k), level,
        )  # fmt: skip
        prior = np.array([o.cold_arm, *[o.cold_arm_context] * d]) ** 2
        self.cold = (
            np.zeros(d + 1), np.diag(np.array([o.cold_level, *[o.cold_context] * d]) ** 2),
            np.tile(np.diag(prior), (k, 1, 1)), np.zeros((k, d + 1)), prior,
        )  # fmt: skip
        self.log_weights = np.log(np.array([o.anchor_weight, 1.0 - o.anchor_weight]))
        self.plays = np.zeros(k, dtype=np.int64)
        self.work = scratch(k, d)

    @property
    def experts(self) -> int:
        """Weights of the anchored and the cold model."""
        return 2

    def weights(self) -> np.ndarray:
        """Current weights [2] of the anchored and the cold model."""
        trust = _trust(self.log_weights)
        return np.array([trust, 1.0 - trust])

    def _numbers(self, rho: float) -> np.ndarray:
        o = self.settings
        return np.array([rho, self.share, o.exploration, o.noise, o.clip, o.share, o.anchor_weight])

    def _force(self) -> bool:
        horizon = DEFAULT_HORIZON if self.horizon is None else self.horizon
        return horizon > self.settings.force_above * len(self.arms)

    def _base(self, request: Request) -> np.ndarray:
        k = len(self.arms)
        values = request.static_scores.get(self.settings.base)
        if values is None:
            return self.need(request, "predicted_scores", (k,))
        values = np.ascontiguousarray(values, dtype=np.float64)
        if values.shape != (k,) or not np.isfinite(values).all():
            raise PolicyError(f"{self.name}: static_scores[{self.settings.base!r}]: expected finite [{k}]")
        return values

    def decide(self, request: Request) -> Decision:
        """Sample a model, then an arm."""
        rho, mask = self.rho_of(request), self.mask(request)
        x, base = self.need(request, "context", (self.dim,)), self._base(request)
        name = "predicted_costs" if request.static_costs is None else "static_costs"
        costs = self.need(request, name, (len(self.arms),))
        z = (x - self.scaling[0]) * self.scaling[1]
        weights = self.weights()
        arm = int(
            _decide(
                z, base, costs, mask, self.keys, self.round, self._force(), self._numbers(rho), self.log_weights,
                self.plays, self.anchored, self.cold, self.work,
            )
        )  # fmt: skip
        pmf = self.work[4].copy()
        self.round += 1
        memory = {"z": z, "base": base.copy(), "weights": weights}
        return Decision(arm, float(pmf[arm]), pmf, self.round - 1, rho, tuple(self.arms), memory)

    def update(
        self, decision, score, cost, *, latency_penalty=0.0, deltas=None, all_scores=None, all_costs=None
    ) -> bool:
        """Learn from the realised score of the played arm."""
        self.check_outcome(score, cost)
        name = decision.arm_name
        if name not in self.arms:
            return False
        _learn(
            decision.memory["z"], float(decision.memory["base"][decision.arm]), self.arms.index(name),
            float(score), self._numbers(self.rho), self.log_weights, self.anchored, self.cold, self.work,
        )  # fmt: skip
        return True

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: it need not be forced any more."""
        super().count(arm)
        if arm in self.arms:
            self.plays[self.arms.index(arm)] += 1

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Weights before the round."""
        lane.meta_weights[t] = decision.memory["weights"]

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """The same rounds in a compiled loop."""
        base = stream.static_scores.get(self.settings.base, stream.predicted_scores)
        arrivals, immediate = arrival_table(lane)
        _run(
            lane.order, arrivals, immediate, self.round, start, stop, self.keys, self._force(), stream.contexts,
            self.scaling, base, stream.static_costs, stream.scores, stream.active_from, stream.active_until,
            self._numbers(self.rho), self.log_weights, self.plays, self.anchored, self.cold, self.work,
            lane.actions, lane.propensities, lane.meta_weights,
        )  # fmt: skip
        self.round += stop - start

    _ANCHORED = ("a_mean", "a_cov", "a_var", "a_cross", "a_total", "a_level")
    _COLD = ("c_mean", "c_cov", "c_cov_arm", "c_mean_arm", "c_prior")

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Posteriors, model weights, plays, scaling of the contexts."""
        arrays = {"scaling": self.scaling, "log_weights": self.log_weights, "plays": self.plays}
        arrays |= dict(zip(self._ANCHORED, self.anchored, strict=True))
        return arrays | dict(zip(self._COLD, self.cold, strict=True)), {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.scaling, self.log_weights = np.array(arrays["scaling"]), np.array(arrays["log_weights"])
        self.plays = np.array(arrays["plays"])
        self.anchored = tuple(np.array(arrays[name]) for name in self._ANCHORED)
        self.cold = tuple(np.array(arrays[name]) for name in self._COLD)
        self.work = scratch(len(self.arms), self.dim)

    def _grow(self) -> None:
        """The new arm's deviations have their priors; what the arms share it has at once."""
        o, d = self.settings, self.dim
        a, c = self.anchored, self.cold
        var = np.append(a[2], o.anchor_arm**2)
        level = np.append(a[5], a[5].mean())
        self.anchored = (a[0], a[1], var, np.vstack([a[3], np.zeros(d + 2)]), np.append(a[4], 0.0), level)
        cov_arm = np.concatenate([c[2], np.diag(c[4])[None]])
        self.cold = (c[0], c[1], cov_arm, np.vstack([c[3], np.zeros(d + 1)]), c[4])
        self.plays = np.append(self.plays, 0)
        self.work = scratch(len(self.arms) + 1, d)

    def _shrink(self, index: int) -> None:
        a, c = self.anchored, self.cold
        self.anchored = (a[0], a[1], *(np.delete(v, index, axis=0) for v in a[2:]))
        self.cold = (c[0], c[1], np.delete(c[2], index, axis=0), np.delete(c[3], index, axis=0), c[4])
        self.plays = np.delete(self.plays, index)
        self.work = scratch(len(self.arms) - 1, self.dim)


def scaling_of(contexts: np.ndarray) -> np.ndarray:
    """[2, d]: centre and factor that make mean |z|^2 = 1; the factor of constant features is 0."""
    x = np.asarray(contexts, dtype=np.float64)
    center, variance = x.mean(axis=0), x.var(axis=0)
    variance = np.where(variance > 1e-12 * (1.0 + center**2), variance, 0.0)
    factor = 1.0 / np.sqrt(variance.sum()) if variance.sum() > 0 else 0.0
    return np.stack([center, np.where(variance > 0, factor, 0.0)])
