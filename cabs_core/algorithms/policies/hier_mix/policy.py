"""`hier_mix`: Bayesian linear models of the score, one for every simple router, and their mixture.

docs/hier-mix.md has the models, their updates and weights, the choice and the search for changed models in
equations; `rounds` has the rounds, `models` the arithmetic. The reasons of the design:

The prior of the ridge model is tight where train prompts lie, and wide where only new prompts lie, which no
isotropic prior can be. Graded scores vary less than scores of 0 and 1: `dispersion` scales noise and log
likelihood by how binary they are (`utility.binary_share`), as a quasi-likelihood does (Wedderburn 1974). No
weight depends on a table.

Models that trust the offline order of the arms are averaged by weight, because averages of good predictors
are good. Models that distrust the order (ease, cold) are not averaged in, because they would then be tested
only on arms that the others like. Every round draws either the average or one of these models, in proportion
to their weights. While the anchored model is likelier than each of these, the weights are first raised to the
power `inverse_temperature`. Otherwise they are not, because a rival that is ahead after a few bad outcomes of
a good arm might never be left.

The anchored model stays rigid on purpose: a model that may shift all arms together explains the failures of
its favourite arm by a shift and goes on playing it, so each such model needs a rival with the same freedom
that distrusts the labels.

Scores are learnt, not utilities: one model serves every rho. Costs are learnt too.
"""

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.hier_mix.models import (
    STEPS,
    Anchored,
    Changes,
    Offset,
    Residual,
    eases,
    forget_changes,
    new_fit,
    own_variance,
    power_prior,
    scaling_of,
)
from cabs_core.algorithms.policies.hier_mix.rounds import (
    Constants,
    Data,
    Parts,
    Scratch,
    decide,
    learn,
)
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream, round_loop
from cabs_core.algorithms.policies.policy import DEFAULT_HORIZON, PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Reads, Request

LEAST_DISPERSION = 0.02
#: learnt arrays beside the models
_ARRAYS = ("scaling", "log_weights", "played", "paid", "alarm", "joined")
#: the axis of the arms in those arrays of the state that have one
_ARM_AXIS = dict.fromkeys(
    ("played", "joined", "c_chance", "c_shift", "a_var", "a_cross", "a_total", "a_level", "r_ridge"), 0
) | dict.fromkeys(("paid", "r_cov_arm", "r_mean_arm"), 1)
#: bytes of the arms' covariances above which the policy logs a warning, since every decision reads them
LARGE_STATE = 100e6
logger = logging.getLogger(__name__)

#: options of the preset `two_models`: the anchored and the cold model alone, without corrections
TWO_MODELS = {
    "corrections": (),
    "anchor_weight": 0.9,
    "dispersion": False,
    "cold_level": 0.3,
    "exploration": 0.5,
    "cost_prior": None,
    "inverse_temperature": 1.0,
    "force_above": 100.0,
}


class Correction(PolicyOptions):
    """Options of a further model beside the anchored and the cold model.

    The model predicts the score of arm j as an offset plus alpha + b_j + eta'z + delta_j'z at the scaled
    context z. The coefficients alpha and eta are shared by the arms, b_j and delta_j belong to arm j.
    Deviations are prior standard deviations of the coefficients, in units of the score.
    """

    offset: Literal["none", "mean", "static", "parallel", "shrunk", "ease", "ridge"] = Field(
        description="What is known before. none: 1/2; mean: the arm's mean score in the train split; static: "
        "the static prediction; parallel: the mean score and how much easier the prompt is for the arms' "
        "mean; shrunk: half way between parallel and static; ease: 1/2 and how much easier the prompt is, "
        "nothing of the arm; ridge: a ridge regression on the contexts of the train split, whose posterior "
        "is the prior of b_j and delta_j"
    )
    weight: float = Field(gt=0, lt=1, description="Prior weight")
    level: float = Field(0.3, gt=0, description="Deviation of alpha")
    arm: float = Field(gt=0, description="Deviation of b_j")
    context: float = Field(0.1, gt=0, description="Deviation of eta")
    arm_context: float = Field(gt=0, description="Deviation of delta_j")
    power: float = Field(
        0.3,
        ge=0,
        le=1,
        description="For offset ridge, whose arm and arm_context are the deviations before the train split "
        "is seen: the power of the train split's likelihood in the prior",
    )


#: prior weight of a model: exp(-.0046 x 500), where 500 rounds is about the length of the shortest streams
#: worth routing. The ease model has half this weight, since the mixture is not compared with it as a router
LEAST_WEIGHT = 0.1

#: deviation of the shared level in the models that distrust the order of the arms. With a wide deviation an
#: arm that was not yet played would be expected to be as good as the played arms, which are the favourites
DISTRUSTING_LEVEL = 0.02

#: the default corrections trust the offline labels of the arms by half (shrunk), in the order of the arms
#: alone (parallel; the best single model is of this kind), in the ease of the prompt alone (ease), and where
#: the train prompts lie (ridge)
CORRECTIONS = (
    Correction(offset="shrunk", weight=LEAST_WEIGHT, arm=0.03, arm_context=0.015),
    Correction(offset="parallel", weight=LEAST_WEIGHT, arm=0.03, arm_context=0.015),
    Correction(
        offset="ease",
        weight=LEAST_WEIGHT / 2,
        level=DISTRUSTING_LEVEL,
        arm=0.2,
        context=0.05,
        arm_context=0.05,
    ),
    Correction(offset="ridge", weight=LEAST_WEIGHT, arm=0.3, arm_context=0.5),
)
#: the anchored model has the prior weight that the corrections leave, less `LEAST_WEIGHT` for the cold model
ANCHOR_WEIGHT = round(1.0 - LEAST_WEIGHT / (1.0 - sum(c.weight for c in CORRECTIONS)), 4)


class HierOptions(PolicyOptions):
    """Settings of `hier_mix`. Deviations are prior standard deviations, in units of the score.

    The anchored model predicts f_j + alpha + beta (f_j - mu_j) + b_j + eta'z, with f_j the static prediction
    and mu_j the mean score of arm j in the train split. The coefficients of the cold model are those of
    `Correction`, with the offset 1/2.
    """

    base: str = Field(
        "kernel_ridge", description="Static predictor to anchor on; 'carrot': the accuracy head"
    )
    anchor_weight: float = Field(
        ANCHOR_WEIGHT,
        gt=0,
        lt=1,
        description="Prior weight of the anchored model, of what the corrections leave",
    )
    anchor_level: float = Field(0.03, gt=0, description="Deviation of alpha")
    anchor_slope: float = Field(0.03, gt=0, description="Deviation of beta")
    anchor_arm: float = Field(0.01, gt=0, description="Deviation of b_j")
    anchor_context: float = Field(0.1, gt=0, description="Deviation of eta")
    cold_level: float = Field(DISTRUSTING_LEVEL, gt=0, description="Deviation of alpha in the cold model")
    cold_arm: float = Field(0.2, gt=0, description="Deviation of b_j in the cold model")
    cold_context: float = Field(0.2, gt=0, description="Deviation of eta in the cold model")
    cold_arm_context: float = Field(0.05, gt=0, description="Deviation of delta_j in the cold model")
    corrections: tuple[Correction, ...] = Field(CORRECTIONS, max_length=8)
    noise: float = Field(0.2, gt=0, description="Variance of a score given its expectation")
    dispersion: bool = Field(
        True,
        description="Graded scores vary less than scores of 0 and 1: scale noise and log likelihood by their "
        "`binary_share`",
    )
    exploration: float = Field(0.3, ge=0, description="Scale of the normal draw, in posterior deviations")
    clip: float = Field(0.02, gt=0, lt=0.5, description="Of predictions in the likelihood")
    share: float = Field(1e-4, ge=0, lt=1, description="Fixed share: weight moved back to the prior a round")
    inverse_temperature: float = Field(
        3.0,
        gt=0,
        description="While the anchored model is likelier than every model that distrusts the order of the "
        "arms, what a round is played by is drawn in proportion to its weight to this power; otherwise in "
        "proportion to its weight",
    )
    force_above: float | None = Field(
        None, ge=0, description="Play every arm once if the horizon exceeds this x K; None for never"
    )

    cost_prior: float | None = Field(
        10.0,
        ge=0,
        description="Plays that a predicted cost counts for against what the arm has cost; "
        "None to use costs as predicted",
    )

    changes: float = Field(
        0.0,
        ge=0,
        le=0.05,
        description="Look for models that became better: expected utility a round that probes of other arms "
        "may cost, 0 for none",
    )
    restart: float | None = Field(
        40.0,
        gt=0,
        description="Forget what was learnt online once outcomes were this much more surprising than "
        "expected (nats); None for never",
    )
    propensity: Literal["integral", "sampled"] = Field(
        "integral",
        description="Logged: the probability of the arm, or 1 given the draws (quicker, same plays)",
    )

    @property
    def trusting(self) -> tuple[bool, ...]:
        """One bool for each model (anchored, corrections, cold), True if it starts from the offline order."""
        return (True, *(c.offset not in ("none", "ease") for c in self.corrections), False)

    @model_validator(mode="after")
    def _base_and_weights_are_valid(self) -> Self:
        """Raise ValueError if the base is unknown or the corrections' weights add up to 1 or more."""
        bases = ("kernel_ridge", "ridge", "knn", "knn_literal", "carrot")
        if self.base not in bases:
            raise ValueError(f"base must be one of {', '.join(bases)}")
        if sum(c.weight for c in self.corrections) >= 1.0:
            raise ValueError("the weights of the corrections must add up to less than 1")
        return self


class HierMix(CompiledPolicy):
    """The policy `hier_mix`, a mixture of Bayesian linear models of the score; see docs/hier-mix.md.

    The policy needs contexts, static predictions of scores (option `base`) and costs, and serves any rho. If
    a problem or request has no prediction of that name, the accuracy head takes its place. The latency term
    of the utility plays no part in the choice, since nothing predicts latencies.
    """

    Settings: ClassVar = HierOptions
    PRESETS: ClassVar = {"two_models": TWO_MODELS}
    any_rho: ClassVar[bool] = True
    needs_context: ClassVar[bool] = True
    corrects_costs: ClassVar[bool] = True
    loop = staticmethod(round_loop(decide, learn))

    def prepare(self) -> None:
        """Derive the residual models, the prior weights and the kernels' constants from the options.

        The residual models are the corrections and, last, the cold model. The prior weights are those of the
        anchored model, then those of the residual models.
        """
        o = self.settings
        cold = {name: getattr(o, f"cold_{name}") for name in ("level", "arm", "context", "arm_context")}
        self.models = (*o.corrections, Correction(offset="none", weight=0.5, **cold))
        weights = [m.weight for m in o.corrections]
        trusting = np.array(o.trusting)
        rest = 1.0 - sum(weights)
        self.prior_weights = np.array([rest * o.anchor_weight, *weights, rest * (1.0 - o.anchor_weight)])
        # noise and log likelihoods are scaled by this
        if o.dispersion:
            spread = float(max(self.share, LEAST_DISPERSION))
        else:
            spread = 1.0
        self.constants = Constants(
            rho=self.rho,
            share=self.share,
            noise=o.noise * spread,
            clip=o.clip,
            fixed_share=o.share,
            dispersion=spread,
            cost_prior=-1.0 if o.cost_prior is None else o.cost_prior,
            inverse_temperature=o.inverse_temperature,
            integral=o.propensity == "integral",
            alarm=math.inf if o.restart is None else o.restart,
            changes=o.changes,
            group=np.flatnonzero(trusting),
            singles=np.flatnonzero(~trusting),
            prior_weights=self.prior_weights,
            exploration=o.exploration,
            anchored_variances=np.square([o.anchor_level, o.anchor_slope, o.anchor_context, o.anchor_arm]),
            residual_variances=np.array([[m.level, m.context] for m in self.models]) ** 2,
        )

    def start(self, offline: Offline | None) -> None:
        """Set the priors. The train split gives the scaling of contexts and the mean score of every arm.

        Without a train split, contexts are not scaled and every mean score is 0.5.
        """
        o = self.settings
        k = len(self.arms)
        d = self.dim
        self.scaling = np.stack([np.zeros(d), np.ones(d)])
        level = np.full(k, 0.5)
        if offline is not None and len(offline):
            self.scaling = offline.once("hier_mix scaling", lambda: scaling_of(offline.contexts)).copy()
            level = offline.scores.mean(axis=0)
        shared = np.array([o.anchor_level, o.anchor_slope, *[o.anchor_context] * d]) ** 2
        nothing = np.zeros((k, d + 2)), np.zeros(k)
        self.anchored = Anchored(
            np.zeros(d + 2), np.diag(shared), np.full(k, o.anchor_arm**2), *nothing, level
        )
        self.residual = self._residual_priors(k, offline)
        self.log_weights = np.log(self.prior_weights)
        self.played = np.zeros(k, dtype=np.int64)
        self.paid = np.zeros((3, k))
        self.alarm = np.zeros(1)
        self.joined = np.zeros(k, dtype=np.int64)
        self.changes = Changes(np.zeros((k, STEPS.size)), np.zeros(k), np.zeros(1))
        forget_changes(self.changes.chance, self.changes.shift)
        self.resized()

    def _residual_priors(self, k: int, offline: Offline | None) -> Residual:
        """Return the residual models of k arms before any outcome; log a warning if they are large."""
        d = self.dim
        models = self.models
        size = 8.0 * len(models) * k * (d + 1) ** 2
        if size > LARGE_STATE:
            logger.warning(
                "hier_mix keeps %.0f MB for %d models and %d features, and every decision reads them: "
                "give fewer features (features: {dim: 32}), or take another policy",
                *(size / 1e6, k, d),
            )
        shared = np.array([[m.level, *[m.context] * d] for m in models]) ** 2
        arm = np.array([[m.arm, *[m.arm_context] * d] for m in models]) ** 2
        kinds = np.array([Offset[m.offset.upper()] for m in models], dtype=np.int64)
        ridge = np.zeros((k, d + 1))
        ridge[:, 0] = 0.5
        for m in np.flatnonzero(kinds == Offset.RIDGE):
            if offline is not None and len(offline):
                weight = models[m].power / self.constants.noise
                key = ("hier_mix ridge", *arm[m, :2], weight)
                compute = partial(power_prior, offline, self.scaling, arm[m].copy(), weight)
                ridge, seen = offline.once(key, compute)
                arm[m] = 1.0 / (1.0 / arm[m] + seen)
        covariance = np.stack([np.diag(v) for v in shared])
        corrections = np.stack([np.tile(np.diag(v), (k, 1, 1)) for v in arm])
        start = np.zeros((len(models), k, d + 1))
        return Residual(np.zeros_like(shared), covariance, corrections, start, arm, kinds, ridge.copy())

    @property
    def experts(self) -> int:
        """Number of models: the anchored model, the corrections and the cold model."""
        return len(self.prior_weights)

    def _base(self, request: Request) -> np.ndarray:
        """Return the static predictions [K] of a request, or else its predicted scores."""
        values = self.static_scores_of(request, self.settings.base)
        if values is None:
            return self.need(request, "predicted_scores", len(self.arms))
        return values

    def reads(self) -> Reads:
        """Return the fields that the policy reads: context, predicted costs, and scores to anchor on."""
        anchor = self.settings.base
        of_head = anchor == "carrot"
        return Reads(context=True, costs=True, scores=of_head, static=None if of_head else anchor)

    def choose(self, request: Request) -> Choice:
        """Play one round of `decide` on the request as a table with one row."""
        rho = self.rho_of(request)
        mask = self.mask(request)
        x = self.need(request, "context", self.dim)
        base = self._base(request)
        costs = self.costs_of(request)
        z = (x - self.scaling[0]) * self.scaling[1]
        states.array(self.name, "Request.context, scaled as the train split,", z, states.Field((self.dim,)))
        row = self._row(z, base, costs)
        trace = self.new_trace()
        arm, probability = decide(self.parts(rho=rho), row, 0, mask, self.round, 0, trace)
        memory = {"z": z, "base": base.copy(), "ease": row.ease, "costs": costs.copy(), "weights": trace[2:]}
        return Choice(int(arm), float(probability), self.work.pmf.copy(), rho, memory)

    def _row(
        self, z: np.ndarray, base: np.ndarray, costs: np.ndarray, ease: np.ndarray | None = None
    ) -> Data:
        """Return a request as a table of one row.

        Args:
            z: scaled context [d]. base: static predictions [K].
            ease: how much easier the prompt is for the arms' mean (`eases`), as it was at the decision, [1].
                None computes it now.
        """
        nothing = np.zeros((1, len(base)))
        base = base[None]
        if ease is None:
            ease = eases(base, self.anchored.level)
        return Data(z[None], base, costs[None], ease, nothing, nothing)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Update the models and weights with an outcome, as the request looked at its decision."""
        memory = outcome.memory
        k = len(self.arms)
        # the kernel reads the row's entry of the played arm alone, so an arm that was added since plays no
        # part
        if outcome.places is None:
            places = np.arange(k)
        else:
            places = outcome.places
        row = self._row(memory["z"], memory["base"][places], memory["costs"][places], memory["ease"])
        row = row._replace(scores=np.full((1, k), outcome.score), charged=np.full((1, k), outcome.cost))
        learn(self.parts(), row, 0, outcome.arm, 0)

    def count(self, arm: str) -> None:
        """Count a round that a copy of this policy played, and a play of `arm` if it is still there."""
        super().count(arm)
        if arm in self.arms:
            self.played[self.arms.index(arm)] += 1

    def trace(self, decision: Decision) -> np.ndarray:
        """Return NaN and 0, since no program was solved, and the models' weights at the decision."""
        return np.array([np.nan, 0.0, *decision.memory["weights"]])

    def parts(self, lane: Lane | None = None, rho: float | None = None) -> Parts:
        """Return the arguments of the kernels: options, state and work space.

        Args:
            lane: one trial of a replay, for policies that keep data in it. `HierMix` does not read it.
            rho: score units per USD, None for the policy's own.
        """
        if rho in (None, self.rho):
            constants = self.constants
        else:
            constants = self.constants._replace(rho=rho)
        learnt = (self.log_weights, self.played, self.paid, self.alarm, self.joined)
        models = (self.changes, self.anchored, self.residual)
        return Parts(self.keys, self.force, constants, *learnt, *models, self.work)

    def data(self, stream: Stream) -> Data:
        """Return the queries of a stream as the table that the kernels read, with scaled contexts."""
        base = stream.static_scores.get(self.settings.base, stream.predicted_scores)
        z = (stream.contexts - self.scaling[0]) * self.scaling[1]
        ease = eases(base, self.anchored.level)
        return Data(z, base, stream.static_costs, ease, stream.scores, stream.costs)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for prefix, model in (("c", self.changes), ("a", self.anchored), ("r", self.residual)):
            arrays |= {f"{prefix}_{name}": value for name, value in model._asdict().items()}
        return arrays, {}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        for name in _ARRAYS:
            setattr(self, name, np.array(arrays[name]))
        self.changes = Changes(*(np.array(arrays[f"c_{name}"]) for name in Changes._fields))
        self.anchored = Anchored(*(np.array(arrays[f"a_{name}"]) for name in Anchored._fields))
        self.residual = Residual(*(np.array(arrays[f"r_{name}"]) for name in Residual._fields))
        self.resized()

    def layout(self) -> dict[str, states.Field]:
        """Return the fields of the learnt arrays. Variances by which kernels divide are positive."""
        m = len(self.models)
        k = len(self.arms)
        d = self.dim
        s = states.learnt
        low = states.POSITIVE
        rounds = states.MOST_ROUNDS
        kinds = max(Offset)
        return {
            "scaling": s(2, d),
            "log_weights": s(self.experts),
            "played": s(k, low=0, high=rounds, dtype=states.I8),
            "paid": s(3, k, low=0.0),
            "alarm": s(1, low=0.0),
            "joined": s(k, low=0, high=1, dtype=states.I8),
            "c_chance": s(k, STEPS.size, low=0.0, high=1.0),
            "c_shift": s(k, low=-1.0, high=1.0),
            "c_purse": s(1, low=0.0),
            "a_mean": s(d + 2),
            "a_cov": s(d + 2, d + 2),
            "a_var": s(k, low=low),
            "a_cross": s(k, d + 2),
            "a_total": s(k),
            "a_level": s(k),
            "r_mean": s(m, d + 1),
            "r_cov": s(m, d + 1, d + 1),
            "r_cov_arm": s(m, k, d + 1, d + 1),
            "r_mean_arm": s(m, k, d + 1),
            "r_prior": s(m, d + 1, low=low),
            "r_kind": s(m, low=0, high=kinds, dtype=states.I8),
            "r_ridge": s(k, d + 1),
        }

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise an error that begins with `where` if a covariance in a state has a bad variance."""
        for name in ("a_cov", "r_cov", "r_cov_arm"):
            states.check_variances(where, name, arrays[name])

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return the fields of the memory that `choose` keeps with a decision, for `arms` models."""
        return {
            "z": states.Field((self.dim,)),
            "base": states.Field((arms,)),
            "ease": states.Field((1,)),
            "costs": states.Field((arms,), 0.0),
            "weights": states.probabilities(self.experts),
        }

    def resized(self) -> None:
        """Allocate the work space for the current number of arms, and decide if every arm is played once."""
        k = len(self.arms)
        choices = 1 + self.constants.singles.size
        above = self.settings.force_above
        horizon = self.horizon
        self.force = above is not None and (DEFAULT_HORIZON if horizon is None else horizon) > above * k
        self.work = Scratch(
            fit=new_fit(k, self.dim),
            sd=np.zeros(k),
            mean=np.zeros(k),
            pmf=np.zeros(k),
            part=np.zeros(k),
            cost=np.zeros(k),
            below=np.zeros((3, k)),
            weights=np.zeros(self.experts),
            chances=np.zeros(choices),
            logs=np.zeros(choices),
            average=np.zeros((2, k)),
        )

    def add_arm(self) -> None:
        """Add an arm whose own level has a wide prior, since the train split does not know it.

        Its mean score and ridge model start at the means of the other arms, its other deviations at their
        priors. The shared coefficients apply to it at once.
        """
        arrays, _ = self.state()
        chance = np.zeros((1, STEPS.size))
        shift = np.zeros(1)
        forget_changes(chance, shift)
        starts = {
            "joined": 1,
            "c_chance": chance[0],
            "c_shift": shift[0],
            "a_var": own_variance(self.settings.anchor_arm**2, 1),
            "a_level": arrays["a_level"].mean(),
            "r_cov_arm": [np.diag([own_variance(v[0], 1), *v[1:]]) for v in arrays["r_prior"]],
            "r_ridge": arrays["r_ridge"].mean(axis=0),
        }
        for name, axis in _ARM_AXIS.items():
            end = arrays[name].shape[axis]
            arrays[name] = np.insert(arrays[name], end, starts.get(name, 0.0), axis)
        self.restore(arrays, {})

    def remove_arm(self, index: int) -> None:
        arrays, _ = self.state()
        for name, axis in _ARM_AXIS.items():
            arrays[name] = np.delete(arrays[name], index, axis)
        self.restore(arrays, {})
