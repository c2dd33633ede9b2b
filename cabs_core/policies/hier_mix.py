"""`hier_mix`: hierarchical Bayesian models of the score that trust a static prediction to several degrees.

All of these linear models (`hier_kernels`) see every outcome; the rounds are compiled in `hier_loop`:

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
quasi-likelihood does (Wedderburn 1974). Every round one model is drawn by weight. Averaging predictions instead
gets stuck when the offline labels are wrong, since the anchored model is then only tested on the arms that it likes.
While the anchored model is the likeliest, weights are raised to the power `inverse_temperature` first, so that rivals
with little weight are played less often. While a rival is the likeliest they are not: with the others hardly played, a
rival that is ahead after a few bad outcomes of a good arm might never be left. With g the drawn model's greedy arm, the
value of arm j is its expected utility plus `exploration` times the margin times N(0, 1) times the posterior deviation of
(score of j - score of g): what the arms have in common costs no exploration. With `force_above`, where the horizon is
long enough, every third round plays the least played arm until each has been played once.

The anchored and the cold model alone (preset `two_models`) fail when prompts of another kind come: the anchored
model's level is rigid, so the new level refutes it, and all knowledge of the arms is lost with it. The corrections
leave the level open and all use the prompt's ease. They differ in how much they trust of what the offline labels say
of the arms: all, half, only the order, or nothing. The anchored model stays rigid on purpose: a model that may shift
all arms together explains the failures of its favourite arm by a shift and goes on playing it, so each such model
needs a rival with the same freedom that distrusts the labels.

Costs are learnt too: an arm's predicted cost is multiplied by the ratio of paid to predicted costs of its calls, shrunk
to 1 as if `cost_prior` more calls had cost what was predicted.

The model behind an arm's name may change. A CUSUM (Page 1954) watches for it: every round adds the mixture's surprise
beyond what it expects, less an allowance, to a sum that never falls below 0. When the sum passes `restart`,
everything learnt online is forgotten.

Scores are learnt, not utilities: one model serves every rho. The propensity is exact up to quadrature: the
models' probabilities of winning, mixed by their probabilities of being drawn; 1 in a forced round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from cabs_core.policies import checks
from cabs_core.policies.base import DEFAULT_HORIZON, Policy
from cabs_core.policies.hier_arrays import Anchored, Constants, Residual, scratch
from cabs_core.policies.hier_loop import (
    decide_round,
    ease_of,
    fill_weights,
    learn_outcome,
    pay,
    restart,
    run_lane,
)
from cabs_core.policies.hier_options import OFFSETS, TWO_MODELS, Correction, HierOptions
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.mix import arrival_table, traced_weights
from cabs_core.policies.requests import Decision, Reads, Request

LEAST_DISPERSION = 0.02


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
        self.anchored = Anchored(
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

    def _residual_priors(self, k: int) -> Residual:
        d, models = self.dim, self._models()
        shared = np.array([[m.level, *[m.context] * d] for m in models]) ** 2
        arm = np.array([[m.arm, *[m.arm_context] * d] for m in models]) ** 2
        covariance = np.stack([np.diag(v) for v in shared])
        own = np.stack([np.tile(np.diag(v), (k, 1, 1)) for v in arm])
        kinds = np.array([OFFSETS.index(m.offset) for m in models], dtype=np.int64)
        return Residual(np.zeros_like(shared), covariance, own, np.zeros((len(models), k, d + 1)), arm, kinds)

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
        fill_weights(self.log_weights, 1.0, out)
        return out

    def constants(self, rho: float) -> Constants:
        """The settings as the kernels take them, at a rho."""
        o, models = self.settings, self._models()
        spread = max(self.share, LEAST_DISPERSION) if o.dispersion else 1.0
        return Constants(
            rho=float(rho),
            share=float(self.share),
            noise=o.noise * spread,
            clip=o.clip,
            fixed_share=o.share,
            dispersion=float(spread),
            cost_prior=-1.0 if o.cost_prior is None else o.cost_prior,
            inverse_temperature=o.inverse_temperature,
            integral=o.propensity == "integral",
            alarm=math.inf if o.restart is None else o.restart,
            prior_weights=self.prior_weights(),
            exploration=np.array([o.exploration, *(o.exploration * m.exploration for m in models)]),
            anchored_variances=np.array([o.anchor_level, o.anchor_slope, o.anchor_context, o.anchor_arm])
            ** 2,
            residual_variances=np.array([[m.level, m.context] for m in models]) ** 2,
        )

    def _force(self) -> bool:
        horizon = DEFAULT_HORIZON if self.horizon is None else self.horizon
        above = self.settings.force_above
        return above is not None and horizon > above * len(self._arms)

    def _base(self, request: Request) -> np.ndarray:
        values = self.static_scores_of(request, self.settings.base)
        return self.need(request, "predicted_scores", len(self._arms)) if values is None else values

    def reads(self) -> Reads:
        """Context, predicted costs, and the scores that the anchored model starts from."""
        anchor = self.settings.base
        of_head = anchor == "carrot"
        return Reads(context=True, costs=True, scores=of_head, static=None if of_head else anchor)

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
            decide_round(
                z, base, costs, mask, self.keys, self.round, self._force(), self.constants(rho), self.log_weights,
                self.plays, self.paid, self.anchored, self.residual, self.work,
            )
        )  # fmt: skip
        pmf = self.work.pmf.copy()
        ease = np.array([ease_of(base, self.anchored.level)])
        memory = {"z": z, "base": base.copy(), "ease": ease, "costs": costs.copy(), "weights": weights}
        return self._decision(arm, float(pmf[arm]), pmf, rho, memory)

    def _learn(self, decision: Decision, outcome: checks.Outcome) -> bool:
        """Learn from the realised score of the played arm."""
        arm = self.arm_today(decision, self.today(decision))
        if arm < 0:
            return False
        learn_outcome(
            outcome.memory["z"], float(outcome.memory["base"][decision.arm]), float(outcome.memory["ease"][0]), arm,
            outcome.score, self.constants(self.rho), self.log_weights, self.anchored, self.residual, self.alarm, self.work,
        )  # fmt: skip
        pay(self.paid, arm, outcome.cost, float(outcome.memory["costs"][decision.arm]))
        if self.settings.restart is not None and self.alarm[0] > self.settings.restart:
            constants = self.constants(self.rho)
            restart(constants, self.log_weights, self.paid, self.anchored, self.residual, self.alarm)
        return True

    def count(self, arm: str) -> None:
        """A copy of this policy played `arm`: count it, so that the arm is not forced later."""
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
        run_lane(
            lane.order, arrivals, immediate, self.round, start, stop, self.keys, self._force(), stream.contexts,
            self.scaling, base, stream.static_costs, stream.scores, stream.costs, stream.active_from, stream.active_until,
            self.constants(self.rho), self.log_weights, self.plays, self.paid, self.alarm, self.anchored, self.residual, self.work,
            lane.actions, lane.propensities, traced_weights(lane, self.experts),
        )  # fmt: skip
        self.round += stop - start

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Posteriors, model weights, plays, scaling of the contexts."""
        arrays = {
            "scaling": self.scaling,
            "log_weights": self.log_weights,
            "played": self.plays,
            "paid": self.paid,
            "alarm": self.alarm,
        }
        arrays |= {f"a_{name}": value for name, value in self.anchored._asdict().items()}
        return arrays | {f"r_{name}": value for name, value in self.residual._asdict().items()}, {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`; reads what earlier versions wrote, without costs and with two models."""
        if "c_mean" in arrays:
            then = {name: TWO_MODELS[name] for name in ("corrections", "dispersion", "inverse_temperature")}
            self.settings = self.settings.model_copy(update=then)
            old = {f"r_{name}": np.asarray(arrays[f"c_{name}"])[None] for name in Residual._fields[:-1]}
            arrays = {**arrays, **old, "r_kind": np.zeros(1, dtype=np.int64)}
        self.scaling, self.log_weights = np.array(arrays["scaling"]), np.array(arrays["log_weights"])
        earlier = "plays" in arrays  # its name in the versions that did not learn costs
        self.plays = np.array(arrays["plays" if earlier else "played"])
        self.paid = np.zeros((3, len(self._arms))) if earlier else np.array(arrays["paid"])
        self.alarm = np.zeros(1) if earlier else np.array(arrays["alarm"])
        self.anchored = Anchored(*(np.array(arrays[f"a_{name}"]) for name in Anchored._fields))
        self.residual = Residual(*(np.array(arrays[f"r_{name}"]) for name in Residual._fields))
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
        """The layout of versions that did not learn costs."""
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
        """The new arm's deviations start at their priors; it uses at once what the arms share."""
        a, r, new = self.anchored, self.residual, self._residual_priors(1)
        self.anchored = a._replace(
            var=np.append(a.var, self.settings.anchor_arm**2),
            cross=np.vstack([a.cross, np.zeros(self.dim + 2)]),
            total=np.append(a.total, 0.0),
            level=np.append(a.level, a.level.mean()),
        )
        self.residual = r._replace(
            cov_arm=np.concatenate([r.cov_arm, new.cov_arm], axis=1),
            mean_arm=np.concatenate([r.mean_arm, new.mean_arm], axis=1),
        )
        self.plays, self.paid = np.append(self.plays, 0), np.hstack([self.paid, np.zeros((3, 1))])

    def _shrink(self, index: int) -> None:
        a, r = self.anchored, self.residual
        self.anchored = Anchored(a.mean, a.cov, *(np.delete(v, index, axis=0) for v in a[2:]))
        self.residual = r._replace(
            cov_arm=np.delete(r.cov_arm, index, axis=1), mean_arm=np.delete(r.mean_arm, index, axis=1)
        )
        self.plays, self.paid = np.delete(self.plays, index), np.delete(self.paid, index, axis=1)


def scaling_of(contexts: np.ndarray) -> np.ndarray:
    """[2, d]: centre and factor that make mean |z|^2 = 1; the factor of constant features is 0."""
    x = np.asarray(contexts, dtype=np.float64)
    center, variance = x.mean(axis=0), x.var(axis=0)
    variance = np.where(variance > 1e-12 * (1.0 + center**2), variance, 0.0)
    factor = 1.0 / np.sqrt(variance.sum()) if variance.sum() > 0 else 0.0
    return np.stack([center, np.where(variance > 0, factor, 0.0)])
