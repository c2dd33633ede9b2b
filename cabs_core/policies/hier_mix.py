"""`hier_mix`: hierarchical Bayesian models of the score, anchored on the static `kernel_ridge` prediction to several degrees.

Linear models (`hier_kernels`) that all see every outcome:

    anchored    y = f0 + alpha + beta (f0 - mu) + b_j + eta.z: the static prediction f0 with shared corrections of
                its level, slope and dependence on the context, and a small one per arm;
    correction  y = o_j + alpha + b_j + eta.z + delta_j.z: what an offset leaves, by arm and by arm and context. The
                offset o_j is f0, the arms' mean scores with the prompt's ease, half way between, or the ease alone
                (`hier_options.Correction`); the ease is the mean over arms of f0 - mu;
    cold        the same with o_j = 1/2: no offline label in it.

z are the contexts without constant columns, centred and scaled to mean squared norm 1 on the train split. Each
model's weight is its prior weight times the Bernoulli likelihood of every played outcome under its prediction
(clipped to [clip, 1 - clip]), with a small fixed share back to the prior. Graded scores vary less than scores of 0
and 1: `dispersion` scales noise and log likelihood by how binary they are (`utility.binary_share`), as a
quasi-likelihood does (Wedderburn 1974). Every round one model is sampled by weight: averaging predictions instead
gets stuck when the offline labels are wrong, since the anchored model is then only tested on the arms that it likes.
With g the sampled model's greedy arm, the value of arm j is its expected utility plus `exploration` times the margin
times N(0, 1) times the posterior deviation of (score of j - score of g): what the arms have in common costs no
exploration. Where the horizon is long enough, every third round plays the least played arm until each has been played
once.

Anchored and cold model alone (preset `two_models`) fail where prompts of another kind come: the anchored model, whose
level is rigid, is refuted by the new level, and with it all that is known of the arms. The corrections know nothing of
the level and share its knowledge of the prompts' ease, so what decides between them is what the offline labels say of the
arms: all of it holds, half of it, only their order, or nothing. The anchored model stays rigid on purpose: a model that may
shift all arms together explains the failures of its favourite by a shift and goes on playing it, so each such model needs a
rival with the same freedom that distrusts the arms.

Costs are learnt too: the predicted cost of an arm is multiplied by what its calls cost over what was predicted for them,
shrunk to 1 as if `cost_prior` more calls had cost what was predicted.

Models change under their names. What the mixture is more surprised by than it expects to be, less an allowance a round, is
summed up and never below 0 (the CUSUM of Page 1954); where the sum passes `restart`, everything learnt online is forgotten.

Scores are learnt, not utilities: one model serves every rho. The propensity is exact up to quadrature: the
models' probabilities of winning, mixed by their weights; 1 in a forced round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import ACTION, draw, uniform
from cabs_core.compiled.utility import value_and_slope
from cabs_core.policies import checks
from cabs_core.policies.base import Policy
from cabs_core.policies.hier_kernels import (
    anchored_learn,
    anchored_predict,
    contrast_deviation,
    residual_learn,
    residual_predict,
)
from cabs_core.policies.hier_options import OFFSETS, TWO_MODELS, Correction, HierOptions
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.mix import arrival_table, draw_largest, traced_weights
from cabs_core.policies.requests import Decision, Request
from cabs_core.policies.thompson import CELLS, best_probabilities

DEFAULT_HORIZON = 10_000
LEAST_DISPERSION = 0.02

# Tuples of arrays that the kernels take (C residual models: the corrections, then the cold one):
#   anchored = (mean [d + 2], cov [d + 2, d + 2], var [K], cross [K, d + 2], total [K], level [K])
#   residual = (mean [C, d + 1], cov [C, d + 1, d + 1], cov_arm [C, K, d + 1, d + 1], mean_arm [C, K, d + 1],
#               prior [C, d + 1], kind [C]: 0 offset 1/2, 1 the arms' mean scores, 2 the static prediction)
#   work     = scratch: (f, v, sd, mean, pmf, other, offset [K], below [2, K], x [d + 1], difference, row, gain [d + 2],
#              u_anchored [K, d + 2], u_residual [K, d + 1], weights [C + 1], cost [K])
#   paid     = [3, K] over the outcomes of every arm: their number, what they cost, what was predicted (USD)
#   numbers  = (rho, share, noise, clip, fixed share, dispersion, cost prior, whether propensities are integrals, alarm that
#               restarts, then per model: prior weight [C + 1],
#               exploration [C + 1], then prior variances: anchored level, slope, context, arm; per residual model level, context)
_HEAD = 9
#: what the alarm leaves out a round, in nats: surprises of a mixture that is only slightly wrong
ALLOWANCE = 0.1


def scratch(k: int, d: int, models: int) -> tuple[np.ndarray, ...]:
    """Arrays that the kernels write to."""
    return (
        *(np.zeros(k) for _ in range(7)),
        np.zeros((2, k)),
        np.zeros(d + 1),
        *(np.zeros(d + 2) for _ in range(3)),
        np.zeros((k, d + 2)),
        np.zeros((k, d + 1)),
        np.zeros(models),
        np.zeros(k),
    )


@kernel
def _offset(kind, base, level, ease):
    """Offset of a residual model (number in `OFFSETS`) for an arm with this static prediction and mean score."""
    if kind == 0:
        return 0.5
    if kind == 1:
        return level
    if kind == 2:
        return base
    if kind == 3:
        return level + ease
    if kind == 4:
        return level + ease + 0.5 * (base - level - ease)
    return 0.5 + ease


@kernel
def _ease(base, level):
    """How much easier than the train prompts this one is, for the mean of all arms."""
    total = 0.0
    for j in range(base.size):
        total += base[j] - level[j]
    return total / base.size


@kernel
def _values(model, z, base, costs, mask, numbers, anchored, residual, work):
    """Fill mean and sd [K] of the arms' values under one model (0 anchored, then the residual ones); mean -inf: not
    available."""
    f, v, sd, mean, _, _, offset, _, x, difference, _, _, u_anchored, u_residual, weights, _ = work
    rho, share, exploration = numbers[0], numbers[1], numbers[_HEAD + weights.size + model]
    level = anchored[5]
    if model == 0:
        a_mean, _, a_var, a_cross, a_total, _ = anchored
        anchored_predict(z, base, level, mask, a_mean, a_var, a_cross, a_total, f, u_anchored, v)
    else:
        r_mean, _, r_cov_arm, r_mean_arm, r_prior, r_kind = residual
        m = model - 1
        x[0] = 1.0
        for i in range(z.size):
            x[i + 1] = z[i]
        ease = _ease(base, level)
        for j in range(f.size):
            offset[j] = _offset(r_kind[m], base[j], level[j], ease)
        residual_predict(
            x, offset, mask, r_prior[m], r_mean[m], r_cov_arm[m], r_mean_arm[m], f, u_residual, v
        )
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
        contrast_deviation(u_residual, v, mask, greedy, residual[1][model - 1], sd, difference)
    for j in range(f.size):
        if mask[j]:
            _, slope = value_and_slope(f[j], costs[j], rho, share)
            sd[j] *= exploration * slope


@kernel
def _weigh(log_weights, out):
    """out [M] = weights of the models, from their logarithms up to a constant; the last is what the others leave."""
    rest = 1.0
    for m in range(out.size - 1):
        total = 0.0
        for k in range(out.size):
            total += np.exp(log_weights[k] - log_weights[m])
        out[m] = 1.0 / total
        rest -= out[m]
    out[-1] = max(0.0, rest)


@kernel
def _calibrated(costs, paid, prior, out):
    """out [K] = predicted costs times what every arm cost over what was predicted, shrunk to 1 by `prior` plays."""
    for j in range(costs.size):
        out[j] = costs[j]
        if prior >= 0.0 and paid[0, j] > 0.0 and paid[2, j] > 0.0:
            out[j] *= (prior + paid[0, j] * paid[1, j] / paid[2, j]) / (prior + paid[0, j])


@kernel
def _restart(numbers, log_weights, paid, anchored, residual, alarm):
    """Forget what was learnt online."""
    a_mean, a_cov, a_var, a_cross, a_total, _ = anchored
    r_mean, r_cov, r_cov_arm, r_mean_arm, r_prior, r_kind = residual
    first = _HEAD + 2 * log_weights.size
    alarm[0] = 0.0
    paid[:] = 0.0
    a_mean[:] = 0.0
    a_cov[:] = 0.0
    for i in range(a_mean.size):
        a_cov[i, i] = numbers[first + min(i, 2)]
    a_var[:] = numbers[first + 3]
    a_cross[:] = 0.0
    a_total[:] = 0.0
    r_mean[:] = 0.0
    r_cov[:] = 0.0
    r_mean_arm[:] = 0.0
    r_cov_arm[:] = 0.0
    for m in range(r_kind.size):
        for i in range(r_mean.shape[1]):
            r_cov[m, i, i] = numbers[first + 4 + 2 * m + min(i, 1)]
            for j in range(r_cov_arm.shape[1]):
                r_cov_arm[m, j, i, i] = r_prior[m, i]
    for m in range(log_weights.size):
        log_weights[m] = np.log(numbers[_HEAD + m])


@kernel
def _pay(paid, arm, cost, predicted):
    """Add an outcome's cost."""
    paid[0, arm] += 1.0
    paid[1, arm] += cost
    paid[2, arm] += predicted


@kernel
def _decide(
    z,
    base,
    predicted_costs,
    mask,
    keys,
    t,
    force,
    numbers,
    log_weights,
    plays,
    paid,
    anchored,
    residual,
    work,
):
    """Play a round: returns the arm and fills pmf [K] in work."""
    sd, mean, pmf, other, below, weights = work[2], work[3], work[4], work[5], work[7], work[14]
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
    costs = work[15]
    _calibrated(predicted_costs, paid, numbers[6], costs)
    _weigh(log_weights, weights)
    model = draw(weights, uniform(keys, ACTION, t, 0))
    pmf[:] = 0.0
    if numbers[7] > 0.0:
        for m in range(weights.size):
            if m != model and weights[m] > 0.0:
                _values(m, z, base, costs, mask, numbers, anchored, residual, work)
                best_probabilities(mean, sd, other, below, CELLS)
                for j in range(pmf.size):
                    pmf[j] += weights[m] * other[j]
    _values(model, z, base, costs, mask, numbers, anchored, residual, work)
    if numbers[7] > 0.0:
        best_probabilities(mean, sd, other, below, CELLS)
        for j in range(pmf.size):
            pmf[j] += weights[model] * other[j]
    arm = draw_largest(keys, t, mean, sd)
    if not numbers[7] > 0.0:
        pmf[arm] = 1.0
    plays[arm] += 1
    return arm


@kernel
def _likelihood(score, predicted, clip):
    p = min(1.0 - clip, max(clip, predicted))
    return score * np.log(p) + (1.0 - score) * np.log(1.0 - p)


@kernel
def _surprise(score, predicted, clip):
    """Log loss of a prediction less what it expects of itself, in nats."""
    p = min(1.0 - clip, max(clip, predicted))
    return (p - score) * np.log(p / (1.0 - p))


@kernel
def _learn(z, base, ease, arm, score, numbers, log_weights, anchored, residual, alarm, work):
    """An outcome of `arm`, whose static prediction is `base`: all models, then their weights; the alarm [1] is the sum of
    what the mixture was more surprised than it expects to be, less ALLOWANCE a round, never below 0."""
    a_mean, a_cov, a_var, a_cross, a_total, level = anchored
    r_mean, r_cov, r_cov_arm, r_mean_arm, r_prior, r_kind = residual
    x, row, gain, weights = work[8], work[10], work[11], work[14]
    noise, clip, share, dispersion = numbers[2], numbers[3], numbers[4], numbers[5]
    x[0] = 1.0
    for i in range(z.size):
        x[i + 1] = z[i]
    d = x.size
    _weigh(log_weights, weights)
    mixed = 0.0
    predicted = anchored_learn(
        z, base, level[arm], arm, score, noise, a_mean, a_cov, a_var, a_cross, a_total, row, gain
    )
    mixed += weights[0] * predicted
    log_weights[0] += _likelihood(score, predicted, clip) / dispersion
    for m in range(r_kind.size):
        predicted = residual_learn(
            x, _offset(r_kind[m], base, level[arm], ease), arm, score, noise, r_prior[m], r_mean[m], r_cov[m], r_cov_arm[m],
            r_mean_arm[m], row[:d], gain[:d],
        )  # fmt: skip
        mixed += weights[m + 1] * predicted
        log_weights[m + 1] += _likelihood(score, predicted, clip) / dispersion
    alarm[0] = max(0.0, alarm[0] + _surprise(score, mixed, clip) / dispersion - ALLOWANCE)
    _weigh(log_weights, weights)
    rest = 1.0
    for m in range(weights.size - 1):
        weights[m] = (1.0 - share) * weights[m] + share * numbers[_HEAD + m]
        rest -= weights[m]
    weights[-1] = rest
    for m in range(weights.size):
        log_weights[m] = np.log(max(weights[m], 1e-300))


@kernel
def _run(
    order, arrivals, immediate, first, start, stop, keys, force, contexts, scaling, base, costs, scores, charged,
    active_from, active_until, numbers, log_weights, plays, paid, alarm, anchored, residual, work, actions, propensities, traced,
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
        _weigh(log_weights, work[14])
        for m in range(log_weights.size):
            traced[t, m] = work[14][m]
        arm = _decide(
            z, base[query], costs[query], mask, keys, first + t - start, force, numbers, log_weights, plays,
            paid, anchored, residual, work,
        )  # fmt: skip
        actions[t], propensities[t] = arm, work[4][arm]
        while immediate or (due < arrivals.shape[0] and arrivals[due, 0] == t):
            s = t if immediate else arrivals[due, 1]
            played = order[s]
            for i in range(d):
                z[i] = (contexts[played, i] - scaling[0, i]) * scaling[1, i]
            a = actions[s]
            _learn(
                z, base[played, a], _ease(base[played], anchored[5]), a, scores[played, a], numbers, log_weights, anchored,
                residual, alarm, work,
            )  # fmt: skip
            _pay(paid, a, charged[played, a], costs[played, a])
            if alarm[0] > numbers[8]:
                _restart(numbers, log_weights, paid, anchored, residual, alarm)
            if immediate:
                break
            due += 1


class HierMix(Policy):
    """See the module. Needs contexts, static predictions of scores (option `base`) and costs; serves any rho.

    Where a problem or request has no prediction of that name, the accuracy head takes its place. The latency
    term of the utility plays no part in its choice: nothing predicts latencies.
    """

    Settings: ClassVar = HierOptions
    PRESETS: ClassVar = {"two_models": TWO_MODELS}
    any_rho: ClassVar[bool] = True
    needs_context: ClassVar[bool] = True

    def start(self, offline: Offline | None) -> None:
        """Priors; the scaling of the contexts and the mean prediction of every arm come from the train split."""
        o, k, d = self.settings, len(self._arms), self.dim
        self.scaling = np.stack([np.zeros(d), np.ones(d)])
        level = np.full(k, 0.5)
        if offline is not None and len(offline):
            self.scaling = offline.once("hier_mix scaling", lambda: scaling_of(offline.contexts)).copy()
            level = offline.scores.mean(axis=0)
        shared = np.array([o.anchor_level, o.anchor_slope, *[o.anchor_context] * d]) ** 2
        self.anchored = (
            np.zeros(d + 2), np.diag(shared), np.full(k, o.anchor_arm**2), np.zeros((k, d + 2)), np.zeros(k), level,
        )  # fmt: skip
        self.residual = self._residual_priors(k)
        self.log_weights = np.log(self.prior_weights())
        self.plays, self.paid = np.zeros(k, dtype=np.int64), np.zeros((3, k))
        self.alarm = np.zeros(1)
        self.work = scratch(k, d, len(self.log_weights))

    def _models(self) -> tuple[Correction, ...]:
        """The residual models: the corrections, and the cold model last."""
        o = self.settings
        cold = Correction(
            offset="none", weight=0.5, level=o.cold_level, arm=o.cold_arm, context=o.cold_context,
            arm_context=o.cold_arm_context, exploration=1.0,
        )  # fmt: skip
        return (*o.corrections, cold)

    def _residual_priors(self, k: int):
        d, models = self.dim, self._models()
        shared = np.array([[m.level, *[m.context] * d] for m in models]) ** 2
        arm = np.array([[m.arm, *[m.arm_context] * d] for m in models]) ** 2
        covariance = np.stack([np.diag(v) for v in shared])
        own = np.stack([np.tile(np.diag(v), (k, 1, 1)) for v in arm])
        kinds = np.array([OFFSETS.index(m.offset) for m in models], dtype=np.int64)
        return np.zeros_like(shared), covariance, own, np.zeros((len(models), k, d + 1)), arm, kinds

    def prior_weights(self) -> np.ndarray:
        """Prior weights [2 + corrections] of the anchored model, the corrections and the cold model, sum 1."""
        o = self.settings
        corrections = [m.weight for m in o.corrections]
        rest = 1.0 - sum(corrections)
        return np.array([rest * o.anchor_weight, *corrections, rest * (1.0 - o.anchor_weight)])

    @property
    def experts(self) -> int:
        """Weights of the models."""
        return len(self.settings.corrections) + 2

    def weights(self) -> np.ndarray:
        """Current weights of the anchored model, the corrections and the cold model."""
        out = np.empty(self.experts)
        _weigh(self.log_weights, out)
        return out

    def _numbers(self, rho: float) -> np.ndarray:
        o = self.settings
        explorations = [o.exploration, *(o.exploration * m.exploration for m in self._models())]
        spread = max(self.share, LEAST_DISPERSION) if o.dispersion else 1.0
        head = (
            rho, self.share, o.noise * spread, o.clip, o.share, spread, -1.0 if o.cost_prior is None else o.cost_prior,
            float(o.propensity == "integral"), math.inf if o.restart is None else o.restart,
        )  # fmt: skip
        variances = [v**2 for v in (o.anchor_level, o.anchor_slope, o.anchor_context, o.anchor_arm)]
        variances += [v**2 for m in self._models() for v in (m.level, m.context)]
        return np.array([*head, *self.prior_weights(), *explorations, *variances])

    def _force(self) -> bool:
        horizon = DEFAULT_HORIZON if self.horizon is None else self.horizon
        return horizon > self.settings.force_above * len(self._arms)

    def _base(self, request: Request) -> np.ndarray:
        values = self.static_scores_of(request, self.settings.base)
        return self.need(request, "predicted_scores", len(self._arms)) if values is None else values

    def _decide(self, request: Request) -> Decision:
        """Sample a model, then an arm."""
        rho, mask = self.rho_of(request), self.mask(request)
        x, base = self.need(request, "context", self.dim), self._base(request)
        name = "predicted_costs" if request.static_costs is None else "static_costs"
        costs = self.need(request, name, len(self._arms), 0.0)
        z = (x - self.scaling[0]) * self.scaling[1]
        checks.array(self.name, "Request.context, scaled as the train split,", z, checks.Field((self.dim,)))
        weights = self.weights()
        arm = int(
            _decide(
                z, base, costs, mask, self.keys, self.round, self._force(), self._numbers(rho), self.log_weights,
                self.plays, self.paid, self.anchored, self.residual, self.work,
            )
        )  # fmt: skip
        pmf = self.work[4].copy()
        ease = np.array([_ease(base, self.anchored[5])])
        memory = {"z": z, "base": base.copy(), "ease": ease, "costs": costs.copy(), "weights": weights}
        return self._decision(arm, float(pmf[arm]), pmf, rho, memory)

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from the realised score of the played arm."""
        arm = self.arm_today(decision, self.today(decision))
        if arm < 0:
            return False
        _learn(
            outcome.memory["z"], float(outcome.memory["base"][decision.arm]), float(outcome.memory["ease"][0]), arm,
            outcome.score, self._numbers(self.rho), self.log_weights, self.anchored, self.residual, self.alarm, self.work,
        )  # fmt: skip
        _pay(self.paid, arm, outcome.cost, float(outcome.memory["costs"][decision.arm]))
        if self.settings.restart is not None and self.alarm[0] > self.settings.restart:
            numbers = self._numbers(self.rho)
            _restart(numbers, self.log_weights, self.paid, self.anchored, self.residual, self.alarm)
        return True

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: it need not be forced any more."""
        super().count(arm)
        if arm in self._arms:
            self.plays[self._arms.index(arm)] += 1

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Weights before the round."""
        if lane.meta_weights is not None:
            lane.meta_weights[t] = decision.memory["weights"]

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """The same rounds in a compiled loop."""
        checks.check_lane(self, stream, lane, start, stop)
        base = stream.static_scores.get(self.settings.base, stream.predicted_scores)
        arrivals, immediate = arrival_table(lane)
        _run(
            lane.order, arrivals, immediate, self.round, start, stop, self.keys, self._force(), stream.contexts,
            self.scaling, base, stream.static_costs, stream.scores, stream.costs, stream.active_from, stream.active_until,
            self._numbers(self.rho), self.log_weights, self.plays, self.paid, self.alarm, self.anchored, self.residual, self.work,
            lane.actions, lane.propensities, traced_weights(lane, self.experts),
        )  # fmt: skip
        self.round += stop - start

    _ANCHORED = ("a_mean", "a_cov", "a_var", "a_cross", "a_total", "a_level")
    _RESIDUAL = ("r_mean", "r_cov", "r_cov_arm", "r_mean_arm", "r_prior", "r_kind")

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Posteriors, model weights, plays, scaling of the contexts."""
        arrays = {
            "scaling": self.scaling,
            "log_weights": self.log_weights,
            "played": self.plays,
            "paid": self.paid,
            "alarm": self.alarm,
        }
        arrays |= dict(zip(self._ANCHORED, self.anchored, strict=True))
        return arrays | dict(zip(self._RESIDUAL, self.residual, strict=True)), {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`; reads what earlier versions wrote, without costs and with two models."""
        if "c_mean" in arrays:
            self.settings = self.settings.model_copy(update={"corrections": (), "dispersion": False})
            old = dict(
                zip(self._RESIDUAL, ("c_mean", "c_cov", "c_cov_arm", "c_mean_arm", "c_prior"), strict=False)
            )
            arrays = {**arrays, **{new: np.asarray(arrays[name])[None] for new, name in old.items()}}
            arrays["r_kind"] = np.zeros(1, dtype=np.int64)
        self.scaling, self.log_weights = np.array(arrays["scaling"]), np.array(arrays["log_weights"])
        earlier = "plays" in arrays  # its name in the versions that did not learn costs
        self.plays = np.array(arrays["plays" if earlier else "played"])
        self.paid = np.zeros((3, len(self._arms))) if earlier else np.array(arrays["paid"])
        self.alarm = np.zeros(1) if earlier else np.array(arrays["alarm"])
        self.anchored = tuple(np.array(arrays[name]) for name in self._ANCHORED)
        self.residual = tuple(np.array(arrays[name]) for name in self._RESIDUAL)
        self._resized()  # an earlier version's state may have fewer models than the options say

    def layout(self) -> dict[str, checks.Field]:
        """Variances are positive: they are divided by."""
        m, k, d, s, low = len(self._models()), len(self._arms), self.dim, checks.state, checks.POSITIVE
        kinds = s(m, low=0, high=len(OFFSETS) - 1, dtype=checks.I8)
        return self._common_layout(self.experts) | {
            "r_mean": s(m, d + 1), "r_cov": s(m, d + 1, d + 1), "r_cov_arm": s(m, k, d + 1, d + 1),
            "r_mean_arm": s(m, k, d + 1), "r_prior": s(m, d + 1, low=low), "r_kind": kinds,
        }  # fmt: skip

    def _common_layout(self, models: int) -> dict[str, checks.Field]:
        k, d, s, low = len(self._arms), self.dim, checks.state, checks.POSITIVE
        return {
            "scaling": s(2, d), "log_weights": s(models),
            "played": s(k, low=0, high=checks.MOST_ROUNDS, dtype=checks.I8), "paid": s(3, k, low=0.0), "alarm": s(1, low=0.0), "a_mean": s(d + 2),
            "a_cov": s(d + 2, d + 2), "a_var": s(k, low=low), "a_cross": s(k, d + 2), "a_total": s(k), "a_level": s(k),
        }  # fmt: skip

    def layout_of(self, names: Collection[str]) -> dict[str, checks.Field]:
        """Also what earlier versions wrote: without costs, and before that with two models."""
        if "plays" not in names:
            return self.layout()
        if "c_mean" not in names:
            return self._earlier(self.layout())
        k, d, s, low = len(self._arms), self.dim, checks.state, checks.POSITIVE
        return self._earlier(self._common_layout(2)) | {
            "c_mean": s(d + 1), "c_cov": s(d + 1, d + 1), "c_cov_arm": s(k, d + 1, d + 1), "c_mean_arm": s(k, d + 1),
            "c_prior": s(d + 1, low=low),
        }  # fmt: skip

    @staticmethod
    def _earlier(layout: dict[str, checks.Field]) -> dict[str, checks.Field]:
        """Before costs were learnt."""
        known = {name: field for name, field in layout.items() if name not in ("paid", "alarm")}
        return known | {"plays": known.pop("played")}

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """PolicyError for negative variances."""
        for name in ("a_cov", "c_cov", "c_cov_arm", "r_cov", "r_cov_arm"):
            if name in arrays:
                checks.check_variances(where, name, arrays[name])

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What `_decide` keeps."""
        return {
            "z": checks.Field((self.dim,)), "base": checks.Field((arms,)), "ease": checks.Field((1,)),
            "costs": checks.Field((arms,), 0.0), "weights": checks.probabilities(self.experts),
        }  # fmt: skip

    def _resized(self) -> None:
        self.work = scratch(len(self._arms), self.dim, self.experts)

    def _grow(self) -> None:
        """The new arm's deviations have their priors; what the arms share it has at once."""
        o, d = self.settings, self.dim
        a, r = self.anchored, self.residual
        var = np.append(a[2], o.anchor_arm**2)
        level = np.append(a[5], a[5].mean())
        self.anchored = (a[0], a[1], var, np.vstack([a[3], np.zeros(d + 2)]), np.append(a[4], 0.0), level)
        fresh = self._residual_priors(1)
        own, means = np.concatenate([r[2], fresh[2]], axis=1), np.concatenate([r[3], fresh[3]], axis=1)
        self.residual = (r[0], r[1], own, means, r[4], r[5])
        self.plays, self.paid = np.append(self.plays, 0), np.hstack([self.paid, np.zeros((3, 1))])

    def _shrink(self, index: int) -> None:
        a, r = self.anchored, self.residual
        self.anchored = (a[0], a[1], *(np.delete(v, index, axis=0) for v in a[2:]))
        own, means = (np.delete(v, index, axis=1) for v in r[2:4])
        self.residual = (r[0], r[1], own, means, r[4], r[5])
        self.plays, self.paid = np.delete(self.plays, index), np.delete(self.paid, index, axis=1)


def scaling_of(contexts: np.ndarray) -> np.ndarray:
    """[2, d]: centre and factor that make mean |z|^2 = 1; the factor of constant features is 0."""
    x = np.asarray(contexts, dtype=np.float64)
    center, variance = x.mean(axis=0), x.var(axis=0)
    variance = np.where(variance > 1e-12 * (1.0 + center**2), variance, 0.0)
    factor = 1.0 / np.sqrt(variance.sum()) if variance.sum() > 0 else 0.0
    return np.stack([center, np.where(variance > 0, factor, 0.0)])
