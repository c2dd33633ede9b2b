"""`pareto_bandit`: LinUCB with a prior from the train split and geometric forgetting; ParetoBandit and PILOT.

Every arm has a ridge model of the score, A = sum of x x^T and b = sum of y x. The arm played has the largest

    x.theta + alpha sqrt(x^T A^-1 x / max(gamma^s, 1/200)) - penalty,       theta = A^-1 b,

s = rounds since the arm was last played or updated. Before an arm learns, A and b are multiplied by gamma^dt,
dt = rounds since its last update. s and dt count up to 1,000 rounds. When less than a tenth of the ridge
penalty is left in A, it is filled up again. The prior is the ridge regression on the train split, scaled so
that the last diagonal entry of A is `prior_rounds`: the last feature is the constant, and is taken as 1
whatever its value in the contexts, so that A counts rounds; the ridge penalty is then added to A, and to b so
that theta does not change.

Source: ParetoBandit (package paretobandit 0.1.1, Apache-2.0; equations read in `policy.py`, `router.py`,
`costs.py`); PILOT (arXiv 2508.21141) is LinUCB with a prior and a budget on top, without forgetting: preset
`pilot`. What differs here: ties go to the first arm, not to a random one, and predictions of the prior are
not rescaled where they exceed 1.5 (contexts here are bounded).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream, round_loop
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Reads, Request
from cabs_core.algorithms.regression.ridge import diluted_precision, dot, observe, quadratic
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import price

#: largest number of rounds that are counted as staleness (this and the next two: from the source)
MAX_STALENESS = 1000
#: largest factor by which staleness raises a variance
MAX_INFLATION = 200.0
#: share of the ridge penalty below which the penalty is filled up again
LEAST_SHARE = 0.1


class ParetoModel(NamedTuple):
    """Learnt arrays of all arms.

    Attributes:
        inverse, precision: [K, d, d], A^-1 and A. moment, theta: [K, d], b and A^-1 b.
        floor: [K], part of the ridge penalty that discounting has left in A.
        updated, played: int64 [K], rounds of the last update and of the last play.
    """

    inverse: np.ndarray
    precision: np.ndarray
    moment: np.ndarray
    theta: np.ndarray
    floor: np.ndarray
    updated: np.ndarray
    played: np.ndarray


class ParetoParts(NamedTuple):
    """Arguments of the kernels.

    Attributes:
        alpha, gamma, penalty: options. model: learnt arrays.
        clock: int64 [1], number of rounds so far. gain: [d], work space.
    """

    alpha: float
    gamma: float
    penalty: float
    model: ParetoModel
    clock: np.ndarray
    gain: np.ndarray


class ParetoData(NamedTuple):
    """Arrays of n queries, or of one request, as the kernels take them.

    Attributes:
        contexts: [n, d], whose last feature is 1.
        penalties: [n, K], in score units: rho times the expected costs, or with cost 'log' `lambda_c` times
            the arms' scaled log costs.
        scores: [n, K], realised scores, read at the played arm.
    """

    contexts: np.ndarray
    penalties: np.ndarray
    scores: np.ndarray


class ParetoOptions(PolicyOptions):
    """Settings of `pareto_bandit`; defaults are the source's for a warm start."""

    alpha: float = Field(0.01, ge=0, description="Scale of the confidence bonus")
    gamma: float = Field(0.997, gt=0, le=1, description="Forgetting a round; 1: none")
    penalty: float = Field(1.0, gt=0, description="lambda of the ridge")
    prior_rounds: float = Field(
        1163.9,
        ge=0,
        description="Rounds that the train split counts for (last diagonal entry of A), 0 for none",
    )
    cost: Literal["linear", "log"] = Field(
        "linear",
        description="linear: rho times the expected cost. log: lambda_c times the arm's mean cost, scaled by "
        "logarithms to [0, 1] between the cheapest and the dearest arm, as in the source, and rho plays no "
        "part",
    )
    lambda_c: float = Field(0.3, ge=0, description="Of cost 'log'")


@kernel_part
def staleness_factor(gamma: float, rounds: int) -> float:
    """Return the factor by which a variance grows after `rounds` without a play or update of the arm.

    The factor is 1 / max(gamma^rounds, 1/200), where more than `MAX_STALENESS` (1,000) rounds count as 1,000.
    """
    if gamma >= 1.0 or rounds <= 0:
        return 1.0
    return 1.0 / max(gamma ** min(rounds, MAX_STALENESS), 1.0 / MAX_INFLATION)


@kernel
def _decide(
    parts: ParetoParts, data: ParetoData, row: int, mask: np.ndarray, t: int, slot: int, trace: np.ndarray
) -> tuple[int, float]:
    """Return the arm of largest upper bound less penalty (the first of equals) and 1; count the round."""
    inverse, _, _, theta, _, updated, played = parts.model
    x = data.contexts[row]
    penalties = data.penalties[row]
    clock = parts.clock
    alpha = parts.alpha
    gamma = parts.gamma
    arm = -1
    best = -np.inf
    for j in range(mask.size):
        if mask[j]:
            idle = clock[0] - max(updated[j], played[j])
            variance = quadratic(inverse[j], x) * staleness_factor(gamma, idle)
            value = dot(theta[j], x) + alpha * np.sqrt(max(variance, 1e-12)) - penalties[j]
            if arm < 0 or value > best:
                arm = j
                best = value
    clock[0] += 1
    played[arm] = clock[0]
    return arm, 1.0


@kernel
def _forget(
    arm: int,
    now: int,
    gamma: float,
    penalty: float,
    inverse: np.ndarray,
    precision: np.ndarray,
    moment: np.ndarray,
    theta: np.ndarray,
    floor: np.ndarray,
    updated: np.ndarray,
) -> None:
    """Multiply an arm's A and b by gamma for every round since its last update, up to round `now`.

    More than `MAX_STALENESS` (1,000) rounds count as 1,000. If less than `LEAST_SHARE` of the ridge penalty
    is left in A then, it is filled up again. With gamma 1, only the round of the last update changes.
    """
    if gamma < 1.0:
        decay = gamma ** min(now - updated[arm], MAX_STALENESS)
        d = theta.shape[1]
        faded = floor[arm] * decay
        for i in range(d):
            moment[arm, i] *= decay
            for k in range(d):
                precision[arm, i, k] *= decay
        if faded < penalty * LEAST_SHARE:
            for i in range(d):
                precision[arm, i, i] += penalty - faded
            inverse[arm] = np.linalg.inv(precision[arm])
            theta[arm] = np.dot(inverse[arm], moment[arm])
            floor[arm] = penalty
        else:
            floor[arm] = faded
            for i in range(d):
                for k in range(d):
                    inverse[arm, i, k] /= decay
    updated[arm] = now


@kernel
def _learn(parts: ParetoParts, data: ParetoData, row: int, arm: int, slot: int) -> None:
    """Discount the model of `arm`, then add the row's context and the arm's score to it."""
    inverse, precision, moment, theta, floor, updated, _ = parts.model
    _forget(
        arm, parts.clock[0], parts.gamma, parts.penalty, inverse, precision, moment, theta, floor, updated
    )
    x = data.contexts[row]
    score = data.scores[row, arm]
    for i in range(x.size):
        moment[arm, i] += score * x[i]
        for k in range(x.size):
            precision[arm, i, k] += x[i] * x[k]
    observe(inverse[arm], theta[arm], x, score, 1.0, parts.gain)


def log_costs(means: np.ndarray) -> np.ndarray:
    """Scale the logarithms of mean costs [K] from 0 (the cheapest) to 1 (the dearest).

    A cost of 0 counts as the least positive cost. All entries are .5 if no cost is positive or all positive
    costs are equal.
    """
    positive = means[means > 0]
    if not len(positive) or positive.min() == positive.max():
        return np.full(len(means), 0.5)
    low = np.log(positive.min())
    high = np.log(positive.max())
    scaled: np.ndarray = np.clip((np.log(np.maximum(means, positive.min())) - low) / (high - low), 0.0, 1.0)
    return scaled


def counting(contexts: np.ndarray) -> np.ndarray:
    """Return contexts [..., d] whose last feature, the constant, is 1, so that its sum counts rounds."""
    inputs = np.array(contexts, dtype=np.float64)
    inputs[..., -1] = 1.0
    return inputs


def _moments(offline: Offline) -> tuple[np.ndarray, np.ndarray]:
    """Return X'X [d, d] and Y'X [K, d] of the train split."""
    x = counting(offline.contexts)
    return x.T @ x, offline.scores.T @ x


class ParetoBandit(CompiledPolicy):
    """The policy LinUCB with a prior and forgetting; see the module for the formula.

    The policy needs contexts whose last feature is constant, and predicted costs. It learns scores, so that
    with cost 'linear' one model serves every rho.
    """

    Settings: ClassVar = ParetoOptions
    PRESETS: ClassVar = {"cold": {"prior_rounds": 0.0, "alpha": 0.05}, "pilot": {"gamma": 1.0}}
    any_rho: ClassVar[bool] = True
    needs_context: ClassVar[bool] = True
    loop = staticmethod(round_loop(_decide, _learn))

    def start(self, offline: Offline | None) -> None:
        """Start with the prior of the train split, or with cold models if there is no train split or
        `prior_rounds` is 0.
        """
        o = self.settings
        k = len(self.arms)
        d = self.dim
        precision = np.tile(o.penalty * np.eye(d), (k, 1, 1))
        moment = np.zeros((k, d))
        self.price = np.full(k, 0.5)
        if offline is not None and len(offline):
            self.price = log_costs(offline.costs.mean(axis=0))
            if o.prior_rounds > 0:
                gram, sums = offline.once("pareto_bandit", lambda: _moments(offline))
                gram = gram + o.penalty * np.eye(d)
                scale = o.prior_rounds / gram[-1, -1]
                theta = np.linalg.solve(gram, sums.T).T
                precision = np.tile(gram * scale + o.penalty * np.eye(d), (k, 1, 1))
                moment = sums * scale + o.penalty * theta
        inverse = np.linalg.inv(precision)
        theta = np.einsum("kij,kj->ki", inverse, moment)
        stamps = [np.zeros(k, dtype=np.int64) for _ in range(2)]
        self.model = ParetoModel(inverse, precision, moment, theta, np.full(k, o.penalty), *stamps)
        self.clock = np.zeros(1, dtype=np.int64)
        self.gain = np.empty(d)
        self.resized()

    def resized(self) -> None:
        """Allocate the row of zeros that stands in for unknown scores, for today's number of arms."""
        self._no_scores = np.zeros((1, len(self.arms)))

    def parts(self, lane: Lane | None = None) -> ParetoParts:
        """Return the policy's options and its own arrays, not copies. The lane is not used."""
        o = self.settings
        return ParetoParts(o.alpha, o.gamma, o.penalty, self.model, self.clock, self.gain)

    def data(self, stream: Stream) -> ParetoData:
        costs = f"pareto_bandit:{self.rho!r}:{self.settings.cost}:{self.settings.lambda_c!r}"

        def penalties() -> np.ndarray:
            values = self._penalties(stream.static_costs, self.rho)
            # a copy: a view may not be written to, and the loop would be compiled once more for it
            return np.array(np.broadcast_to(values, stream.scores.shape), order="C")

        return ParetoData(
            stream.once("pareto_bandit", lambda: counting(stream.contexts)),
            stream.once(costs, penalties),
            stream.scores,
        )

    def _penalties(self, costs: np.ndarray | None, rho: float) -> np.ndarray:
        """Return the penalties of the arms in score units, rho times the expected costs [..., K].

        With cost 'log' neither is read, and the penalties are `lambda_c` times the scaled log costs [K].
        """
        if self.settings.cost == "log":
            penalties: np.ndarray = self.settings.lambda_c * self.price
        else:
            assert costs is not None
            penalties = price(costs, rho)
        return penalties

    def reads(self) -> Reads:
        """Return the fields of a request that the policy reads: the context and the predicted costs."""
        return Reads(context=True, costs=True)

    def choose(self, request: Request) -> Choice:
        k = len(self.arms)
        rho = self.rho_of(request)
        mask = self.mask(request)
        x = counting(self.need(request, "context", self.dim))
        costs = None
        if self.settings.cost == "linear":
            costs = self.costs_of(request)
        row = ParetoData(x[None], self._penalties(costs, rho)[None], self._no_scores)
        arm = int(_decide(self.parts(), row, 0, mask, self.round, 0, self.new_trace())[0])
        pmf = np.zeros(k)
        pmf[arm] = 1.0
        return Choice(arm, 1.0, pmf, rho, {"context": x})

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        row = ParetoData(
            outcome.memory["context"][None], self._no_scores, np.full_like(self._no_scores, outcome.score)
        )
        _learn(self.parts(), row, 0, outcome.arm, 0)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self.model._asdict() | {"clock": self.clock, "price": self.price}, {}

    def layout(self) -> dict[str, states.Field]:
        """Return the fields of the learnt arrays: those of `ParetoModel`, `clock`, which counts rounds, and
        `price`, the arms' scaled log costs.
        """
        k = len(self.arms)
        d = self.dim
        s = states.learnt
        counts = s(k, low=0, high=states.MOST_ROUNDS, dtype=states.I8)
        return {
            "inverse": s(k, d, d),
            "precision": s(k, d, d),
            "moment": s(k, d),
            "theta": s(k, d),
            "floor": s(k, low=states.POSITIVE),
            "updated": counts,
            "played": counts,
            "clock": counts._replace(shape=(1,)),
            "price": s(k, low=0.0, high=1.0),
        }

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise PolicyError if a variance is negative or `played` or `updated` is after the last round."""
        states.check_variances(where, "inverse", arrays["inverse"])
        if max(arrays["updated"].max(), arrays["played"].max()) > arrays["clock"][0]:
            raise PolicyError(f"{where}: updated and played must not exceed clock")

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return the fields that are kept of a decision until its score comes: the context alone."""
        return {"context": states.Field((self.dim,))}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self.model = ParetoModel(*(np.array(arrays[name]) for name in ParetoModel._fields))
        self.clock = np.array(arrays["clock"])
        self.price = np.array(arrays["price"])

    def add_arm(self) -> None:
        """Add an arm with a cold model; under cost 'log' it has the mean price of the others."""
        d = self.dim
        penalty = self.settings.penalty
        now = self.clock[0]
        fresh = (np.eye(d) / penalty, penalty * np.eye(d), np.zeros(d), np.zeros(d), penalty, now, now)
        self.model = ParetoModel(
            *(
                np.append(old, np.array([new], dtype=old.dtype), axis=0)
                for old, new in zip(self.model, fresh, strict=True)
            )
        )
        self.price = np.append(self.price, self.price.mean())

    @property
    def can_resemble(self) -> bool:
        """True, since a new arm can start at the learnt model of another arm, see `resemble`."""
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the estimate of arm `arm`, with the certainty of a few rounds.

        The last arm also takes over the scaled log cost of arm `arm`. The margin is not used, since the
        policy learns scores.
        """
        model = self.model
        penalty = self.settings.penalty
        model.theta[-1] = model.theta[arm]
        # `floor` is the part of the ridge penalty that discounting has left in the arm's matrix
        data = model.precision[arm] + (penalty - model.floor[arm]) * np.eye(self.dim)
        model.precision[-1] = diluted_precision(data, penalty, 1.0)
        model.inverse[-1] = np.linalg.inv(model.precision[-1])
        model.moment[-1] = model.precision[-1] @ model.theta[-1]
        self.price[-1] = self.price[arm]

    def remove_arm(self, index: int) -> None:
        self.model = ParetoModel(*(np.delete(a, index, axis=0) for a in self.model))
        self.price = np.delete(self.price, index)
