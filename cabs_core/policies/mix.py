"""`cabs_mix`: surrogate rewards and offline labels mixed at the level of predictions, not of policies.

CABS-D keeps its experts apart and mixes their policies, so a round played by one expert's policy is wasted on
the other's mistakes. Here three ridge models of the *score* see every round and only their predictions are
mixed, by how well each has predicted the outcomes of the arms that were played:

    A  starts from the train split (discounted by `warm`), then learns from realised scores;
    B  as A, and each round also from a surrogate score of every other arm,
       clip01(clip01(y_i + delta_j) - b_j), where b_j = sum (ybar_j - y_j) / (n_j + bias_prior) over the plays of
       j is the realised bias of the accuracy head;
    C  starts cold: it is right when everything learnt offline is wrong.

Mixture weights are proportional to exp(-temperature sum (y - clip01 f_m)^2). With f_j the mixed prediction and
w_j = sum_m weight_m sqrt(x' A_mj^-1 x), arm j's value is the expected clipped utility of f_j, plus a normal draw
of standard deviation `exploration` w_j times the margin (1 - rho chat_j)+; the largest value is played.
Scores are learnt, not utilities: one model serves every rho. The propensity is the probability that the arm's
value is the largest, by quadrature (`thompson.best_probabilities`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.compiled.jit import kernel
from cabs_core.compiled.rng import NOISE, normal
from cabs_core.compiled.utility import value_and_slope
from cabs_core.errors import PolicyError
from cabs_core.policies import checks
from cabs_core.policies.base import Options
from cabs_core.policies.lanes import Lane, Offline, Stream
from cabs_core.policies.requests import Choice, Decision, Reads, Request
from cabs_core.policies.rounds import CompiledPolicy, round_loop
from cabs_core.policies.thompson import CELLS, best_probabilities
from cabs_core.regression import dot, observe, product, quadratic, start_inverse, warm_start

MODELS = 3


class Model(NamedTuple):
    """What is learnt: inverses [K, d, d] and coefficients [K, d] of A, B and C, where B has an inverse for every group
    of arms (group int64 [K]); losses [3]; bias [K, 2], sum of (ybar - y) and number of plays."""

    inv_a: np.ndarray
    th_a: np.ndarray
    inv_b: np.ndarray
    group: np.ndarray
    th_b: np.ndarray
    inv_c: np.ndarray
    th_c: np.ndarray
    losses: np.ndarray
    bias: np.ndarray


class Parts(NamedTuple):
    """Options, the model, and work space: pmf, mean, sd [K], pair [2, K], gain [d]."""

    rho: float
    share: float
    bias_prior: float
    temperature: float
    exploration: float
    keys: np.ndarray
    model: Model
    pmf: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    pair: np.ndarray
    gain: np.ndarray


class Data(NamedTuple):
    """contexts [n, d]; costs, scores and predicted scores [n, K]; deltas [n, K, K], NaN where they are not known."""

    contexts: np.ndarray
    costs: np.ndarray
    scores: np.ndarray
    predicted: np.ndarray
    deltas: np.ndarray


class MixOptions(Options):
    """Settings of `cabs_mix`."""

    penalty: float = Field(10.0, gt=0, description="lambda of every ridge model")
    warm: float = Field(0.3, ge=0, le=1, description="Discount kappa of the train split in A and B")
    bias_prior: float = Field(20.0, gt=0, description="Plays that shrink the realised bias b_j")
    temperature: float = Field(3.0, ge=0, description="Of the mixture weights")
    exploration: float = Field(0.1, ge=0, description="Scale of the normal draw, in widths sqrt(x'A^-1 x)")


@kernel
def mix_weights(losses: np.ndarray, temperature: float, out: np.ndarray) -> None:
    """out [M] proportional to exp(-temperature losses), sum 1."""
    least = losses[0]
    for m in range(1, losses.size):
        least = min(least, losses[m])
    total = 0.0
    for m in range(losses.size):
        out[m] = np.exp(-temperature * (losses[m] - least))
        total += out[m]
    for m in range(losses.size):
        out[m] /= total


@kernel
def _values(parts: Parts, x: np.ndarray, costs: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> None:
    """Fill mean and sd [K] of the value of every arm; mean -inf where the arm is not available."""
    inv_a, th_a, inv_b, group, th_b, inv_c, th_c, _, _ = parts.model
    mean, sd, exploration, rho, share = parts.mean, parts.sd, parts.exploration, parts.rho, parts.share
    for j in range(mean.size):
        if not mask[j]:
            mean[j], sd[j] = -np.inf, 0.0
            continue
        f = weights[0] * dot(th_a[j], x) + weights[1] * dot(th_b[j], x) + weights[2] * dot(th_c[j], x)
        width = 0.0
        if exploration > 0.0:
            width = weights[0] * np.sqrt(quadratic(inv_a[j], x))
            width += weights[1] * np.sqrt(quadratic(inv_b[group[j]], x))
            width += weights[2] * np.sqrt(quadratic(inv_c[j], x))
        mean[j], slope = value_and_slope(f, costs[j], rho, share)
        sd[j] = slope * exploration * width


@kernel
def draw_largest(keys: np.ndarray, t: int, mean: np.ndarray, sd: np.ndarray) -> int:
    """Arm with the largest mean + sd N(0, 1) (the first of equals)."""
    arm, best = 0, -np.inf
    for j in range(mean.size):
        if mean[j] > -np.inf:
            value = mean[j]
            if sd[j] > 0.0:
                value += sd[j] * normal(keys, NOISE, t, j)
            if value > best:
                arm, best = j, value
    return arm


@kernel
def _decide(
    parts: Parts, data: Data, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Play the largest sampled value; pmf [K] and the mixture weights in the trace."""
    weights = trace[2:]
    mix_weights(parts.model.losses, parts.temperature, weights)
    _values(parts, data.contexts[row], data.costs[row], mask, weights)
    arm = draw_largest(parts.keys, t, parts.mean, parts.sd)
    best_probabilities(parts.mean, parts.sd, parts.pmf, parts.pair, CELLS)
    return arm, parts.pmf[arm]


@kernel
def _learn(parts: Parts, data: Data, row: int, arm: int, slot: int) -> None:
    """One outcome: losses of the three models first, then the models, then the realised bias."""
    inv_a, th_a, inv_b, group, th_b, inv_c, th_c, losses, bias = parts.model
    gain, x, score, deltas = parts.gain, data.contexts[row], data.scores[row, arm], data.deltas[row, arm]
    for m in range(3):
        theta = th_a if m == 0 else (th_b if m == 1 else th_c)
        error = score - min(1.0, max(0.0, dot(theta[arm], x)))
        losses[m] += error * error
    observe(inv_a[arm], th_a[arm], x, score, 1.0, gain)
    observe(inv_c[arm], th_c[arm], x, score, 1.0, gain)
    if np.isnan(deltas[arm]):
        return
    for g in range(inv_b.shape[0]):
        member = False
        for j in range(group.size):
            member = member or (group[j] == g and not np.isnan(deltas[j]))
        if not member:
            continue
        scale = 1.0 / (1.0 + product(inv_b[g], x, gain))
        for j in range(group.size):
            if group[j] == g and not np.isnan(deltas[j]):
                target = score
                if j != arm:
                    b = bias[j, 0] / (bias[j, 1] + parts.bias_prior)
                    surrogate = min(1.0, max(0.0, score + deltas[j]))
                    target = min(1.0, max(0.0, surrogate - b))
                step = scale * (target - dot(th_b[j], x))
                for i in range(x.size):
                    th_b[j, i] += step * gain[i]
        for i in range(x.size):
            s = scale * gain[i]
            for k in range(i + 1):
                inv_b[g, i, k] -= s * gain[k]
    bias[arm, 0] += data.predicted[row, arm] - score
    bias[arm, 1] += 1.0


class CabsMix(CompiledPolicy):
    """See the module. Needs contexts, predicted scores and costs and surrogate deltas; serves any rho.

    The latency term of the utility plays no part in its choice: nothing predicts latencies.
    """

    Settings: ClassVar = MixOptions
    any_rho: ClassVar[bool] = True
    needs_context: ClassVar[bool] = True
    loop = staticmethod(round_loop(_decide, _learn))

    def start(self, offline: Offline | None) -> None:
        """A and B from the train split, C from nothing."""
        o, k, d = self.settings, len(self.arms), self.dim
        inverses = [start_inverse(n, d, o.penalty) for n in (k, 1, k)]
        thetas = [np.zeros((k, d)) for _ in range(MODELS)]
        if offline is not None and len(offline) and o.warm > 0:
            inverse, theta = offline.once(
                ("cabs_mix", o.penalty, o.warm),
                lambda: warm_start(offline.contexts, offline.scores, o.penalty, o.warm),
            )
            for m in range(2):
                inverses[m][:], thetas[m][:] = inverse, theta
        # B observes every arm in every round, so all arms known from the start share one inverse
        self.model = Model(
            inverses[0], thetas[0], inverses[1], np.zeros(k, dtype=np.int64), thetas[1], inverses[2], thetas[2],
            np.zeros(MODELS), np.zeros((k, 2)),
        )  # fmt: skip
        self.resized()

    def resized(self) -> None:
        k = len(self.arms)
        self._work = np.empty(k), np.empty(k), np.empty(k), np.empty((2, k)), np.empty(self.dim)
        self._nothing = np.zeros((1, k)), np.zeros((1, k, k))

    @property
    def experts(self) -> int:
        """Weights of A, B and C."""
        return MODELS

    def parts(self, lane: Lane | None = None, rho: float | None = None) -> Parts:
        """Options, at the policy's rho or another, and models."""
        o = self.settings
        return Parts(
            self.rho if rho is None else rho, self.share, o.bias_prior, o.temperature, o.exploration, self.keys, self.model,
            *self._work,
        )  # fmt: skip

    def data(self, stream: Stream) -> Data:
        """Contexts, static costs, scores, predictions and deltas."""
        return Data(
            stream.contexts, stream.static_costs, stream.scores, stream.predicted_scores, stream.deltas
        )

    def _costs(self, request: Request) -> np.ndarray:
        name = "predicted_costs" if request.static_costs is None else "static_costs"
        return self.need(request, name, len(self.arms), 0.0)

    def weights(self) -> np.ndarray:
        """Current mixture weights [3] of A, B, C."""
        out = np.empty(MODELS)
        mix_weights(self.model.losses, self.settings.temperature, out)
        return out

    def reads(self) -> Reads:
        """Context, both heads, surrogates."""
        return Reads(context=True, scores=True, costs=True, surrogate=True)

    def choose(self, request: Request) -> Choice:
        """Play the largest sampled value."""
        k = len(self.arms)
        rho, mask = self.rho_of(request), self.mask(request)
        x, predicted = self.need(request, "context", self.dim), self.need(request, "predicted_scores", k)
        surrogate = checks.surrogate(self.name, request.surrogate, k)
        scores, deltas = self._nothing
        row, trace = Data(x[None], self._costs(request)[None], scores, scores, deltas), self.new_trace()
        arm, probability = _decide(self.parts(rho=rho), row, 0, mask, self.round, 0, trace)
        memory = {"context": x.copy(), "predicted": predicted.copy(), "weights": trace[2:]}
        pmf = self._work[0].copy()
        return Choice(int(arm), float(probability), pmf, rho, memory, surrogate)

    def learn(self, decision: Decision, outcome: checks.Outcome) -> None:
        """Learn from a realised score and, where deltas are known, from surrogate scores of the other arms."""
        delta, k = self.deltas_for(decision, outcome), len(self.arms)
        places = np.arange(k) if outcome.places is None else outcome.places
        deltas = np.full((1, k, k), np.nan)
        if delta is not None:
            deltas[0, outcome.arm] = np.where(places >= 0, delta[places], np.nan)
        predicted = outcome.memory["predicted"][places][None]
        scores = np.full((1, k), outcome.score)
        row = Data(outcome.memory["context"][None], predicted, scores, predicted, deltas)
        _learn(self.parts(), row, 0, outcome.arm, 0)

    def trace(self, decision: Decision, lane: Lane, t: int) -> None:
        """Mixture weights before the round."""
        if lane.meta_weights is not None:
            lane.meta_weights[t] = decision.memory["weights"]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Models, losses and realised biases."""
        return self.model._asdict(), {}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self.model = Model(*(np.array(arrays[name]) for name in Model._fields))

    def layout(self) -> dict[str, checks.Field]:
        """The state's arrays; all arms known from the start share one matrix of B, a later arm has its own."""
        k, d, s = len(self.arms), self.dim, checks.state
        return {
            "inv_a": s(k, d, d), "th_a": s(k, d), "inv_b": s("groups", d, d),
            "group": s(k, low=0, high=k - 1, dtype=checks.I8), "th_b": s(k, d), "inv_c": s(k, d, d),
            "th_c": s(k, d), "losses": s(MODELS, low=0.0), "bias": s(k, 2),
        }  # fmt: skip

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """PolicyError for negative variances, and where an arm belongs to a group without a matrix."""
        for name in ("inv_a", "inv_b", "inv_c"):
            checks.check_variances(where, name, arrays[name])
        if (
            not len(arrays["inv_b"])
            or arrays["group"].max() >= len(arrays["inv_b"])
            or arrays["bias"][:, 1].min() < 0
        ):
            raise PolicyError(f"{where}: group, inv_b and bias do not belong together")

    def memory_layout(self, arms: int) -> dict[str, checks.Field]:
        """What `choose` keeps."""
        return {
            "context": checks.Field((self.dim,)), "predicted": checks.Field((arms,)),
            "weights": checks.probabilities(MODELS),
        }  # fmt: skip

    def grow(self) -> None:
        fresh = start_inverse(1, self.dim, self.settings.penalty)
        new = {
            name: np.concatenate([getattr(self.model, name), fresh]) for name in ("inv_a", "inv_b", "inv_c")
        }
        for name in ("th_a", "th_b", "th_c", "bias"):
            old = getattr(self.model, name)
            new[name] = np.concatenate([old, np.zeros((1, old.shape[1]))])
        # an arm that comes later has seen fewer rounds: B keeps an inverse of its own for it
        self.model = self.model._replace(group=np.append(self.model.group, len(self.model.inv_b)), **new)

    def shrink(self, index: int) -> None:
        names = ("inv_a", "th_a", "inv_c", "th_c", "th_b", "bias", "group")
        arrays = {name: np.delete(getattr(self.model, name), index, axis=0) for name in names}
        used, arrays["group"] = np.unique(arrays["group"], return_inverse=True)
        self.model = self.model._replace(inv_b=np.ascontiguousarray(self.model.inv_b[used]), **arrays)
