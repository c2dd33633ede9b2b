"""Options of `hier_mix`: its models and their prior deviations."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from cabs_core.policies.base import Options

#: options with a less rigid anchored model, for comparison: slower to leave a wrong anchor
WIDE_ANCHOR = {"anchor_level": 0.1, "anchor_slope": 0.1, "anchor_arm": 0.02}
#: the policy without corrections
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


#: offsets of the residual models, by the number the kernels know
OFFSETS = ("none", "mean", "static", "parallel", "shrunk", "ease", "ridge")


class Correction(Options):
    """A model beside the anchored and the cold one: it predicts what `offset` leaves, by arm and context.

    Deviations are prior standard deviations, in units of the score.
    """

    offset: Literal["none", "mean", "static", "parallel", "shrunk", "ease", "ridge"] = Field(
        description="What is known before. none: 1/2; mean: the arm's mean score in the train split; static: the static "
        "prediction; parallel: the mean score and how much easier the prompt is for the arms' mean; shrunk: half way "
        "between parallel and static; ease: 1/2 and how much easier the prompt is, nothing of the arm; ridge: a ridge "
        "regression on the contexts of the train split, whose posterior is the prior of b_j and delta_j"
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
        description="For offset ridge, whose arm and arm_context are the deviations before the train split is seen: the "
        "power of the train split's likelihood in the prior",
    )


#: prior weight of a model: a mix pays log(1 / weight) once for a rival that is right, so 500 rounds, about as many as the
#: shortest streams worth routing have, at .0046 nats a round: exp(-.0046 x 500). The ease model is none of the simple
#: routers that the mix is judged against and has half of it
LEAST_WEIGHT = 0.1

#: deviation of the shared level in the models that distrust the order of the arms: with a free one, an arm that was not yet
#: played is expected to be as good as those that were, and these are favourites
DISTRUSTING_LEVEL = 0.02

#: of what the offline labels say of the arms: half, their order alone (the best single model is one of these), nothing
#: but how easy the prompt is, and a ridge regression that is sure where the train prompts lie
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
#: what they leave is the anchored model's, but for the cold model's least weight
ANCHOR_WEIGHT = round(1.0 - LEAST_WEIGHT / (1.0 - sum(c.weight for c in CORRECTIONS)), 4)


class HierOptions(Options):
    """Settings of `hier_mix`. Deviations are prior standard deviations, in units of the score."""

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
    cold_level: float = Field(DISTRUSTING_LEVEL, gt=0)
    cold_arm: float = Field(0.2, gt=0)
    cold_context: float = Field(0.2, gt=0)
    cold_arm_context: float = Field(0.05, gt=0, description="Deviation of delta_j")
    corrections: tuple[Correction, ...] = Field(CORRECTIONS, max_length=8)
    noise: float = Field(0.2, gt=0, description="Variance of a score given its expectation")
    dispersion: bool = Field(
        True,
        description="Graded scores vary less than scores of 0 and 1: scale noise and likelihood by `share`",
    )
    exploration: float = Field(0.3, ge=0, description="Scale of the normal draw, in posterior deviations")
    clip: float = Field(0.02, gt=0, lt=0.5, description="Of predictions in the likelihood")
    share: float = Field(1e-4, ge=0, lt=1, description="Fixed share: weight moved back to the prior a round")
    inverse_temperature: float = Field(
        3.0,
        gt=0,
        description="While the anchored model is likelier than every model that distrusts the order of the arms, what a round "
        "is played by is drawn in proportion to its weight to this power; otherwise in proportion to its weight",
    )
    force_above: float | None = Field(
        None, ge=0, description="Play every arm once when the horizon exceeds this x K; None: never"
    )

    cost_prior: float | None = Field(
        10.0,
        ge=0,
        description="Plays that a predicted cost counts for against what the arm has cost; None: as predicted",
    )

    changes: float = Field(
        0.0,
        ge=0,
        le=0.05,
        description="Look for models that became better: expected utility a round that probes of other arms may cost, 0: none",
    )
    restart: float | None = Field(
        40.0,
        gt=0,
        description="Forget what was learnt online once outcomes were this much more surprising than expected (nats); "
        "None: never",
    )
    propensity: Literal["integral", "sampled"] = Field(
        "integral",
        description="Logged: the probability of the arm, or 1 given the draws (quicker, same plays)",
    )

    @property
    def trusting(self) -> tuple[bool, ...]:
        """Of the anchored model, the corrections and the cold model: whether it starts from the offline order of arms."""
        return (True, *(c.offset not in ("none", "ease") for c in self.corrections), False)

    @model_validator(mode="after")
    def _known_base(self) -> Self:
        bases = ("kernel_ridge", "ridge", "knn", "knn_literal", "carrot")
        if self.base not in bases:
            raise ValueError(f"base must be one of {', '.join(bases)}")
        if sum(c.weight for c in self.corrections) >= 1.0:
            raise ValueError("the weights of the corrections must add up to less than 1")
        return self
