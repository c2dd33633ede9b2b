"""`cabs_c_neural` and `cabs_d_neural`: CABS with a network in place of the ridge models (paper, section "From linear
to neural bandits").

Algorithms, options and readings are those of `cabs`; only the regression differs. Rows that a ridge model would
see with weight w and target y enter the network's history with that weight and target. No step of CABS-C needs the
regression's widths. CABS-D's standard expert is a neural bandit: neural_ts (Thompson sampling on the last layer's
widths, the counterpart of the linear policy's lin_ts) by default, square_cb as in the paper, neural_ucb or
epsilon_greedy.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, ValidationError, create_model, field_validator

from cabs_core.errors import PolicyError
from cabs_core.policies.cabs import (
    CabsC,
    CabsCOptions,
    CabsD,
    CabsDOptions,
    ExpertSpec,
    cabs_expert,
    expert_specs,
    known_experts,
)
from cabs_core.policies.linear.bandits import OPTIONS as LINEAR_BANDITS
from cabs_core.policies.linear.bandits import bandit_expert
from cabs_core.policies.linear.expert_policy import Expert, ModelOptions
from cabs_core.policies.linear.kernel_arrays import Mixture
from cabs_core.policies.neural.policy import NeuralOptions, NeuralPolicy, neural_expert

# what belongs to ridge models only
_NOT_NEURAL = set(ModelOptions.model_fields)
_CABS_FIELDS = {name: f for name, f in CabsCOptions.model_fields.items() if name not in _NOT_NEURAL}

_C_FIELDS: dict[str, Any] = {name: (field.annotation, field) for name, field in _CABS_FIELDS.items()}
NeuralCabsCOptions = create_model(
    "NeuralCabsCOptions",
    __base__=NeuralOptions,
    __doc__="Settings of the networks and of CABS-C (`cabs.CabsCOptions`, less its regression).",
    **_C_FIELDS,
)


def _cabs_row(options: Any) -> Expert:
    return cabs_expert(CabsCOptions(**{name: getattr(options, name) for name in _CABS_FIELDS}))


class CabsCNeural(NeuralPolicy):
    """CABS-C (Algorithm 1) with a network."""

    Settings: ClassVar = NeuralCabsCOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = CabsC.PRESETS

    def expert_list(self) -> list[Expert]:
        """One expert, CABS-C."""
        return [_cabs_row(self.settings)]

    def mixture(self) -> Mixture:
        """How the arm is chosen from p (option `play`)."""
        return CabsC.mixture(self)  # type: ignore[arg-type]  # it reads the same options


class _UCB(NeuralOptions):
    alpha: float = Field(0.1, gt=0)


class _TS(NeuralOptions):
    v: float = Field(0.1, gt=0)


def _standard_expert(policy: str, name: str, own: dict[str, Any]) -> Expert:
    """A neural bandit as an expert; `own` holds its exploration settings only."""
    try:
        if name == "neural_ucb":
            return neural_expert("lin_ucb", alpha=_UCB(**own).alpha)
        if name == "neural_ts":
            return neural_expert("lin_ts", v=_TS(**own).v)
        foreign = sorted(set(own) & {*_NOT_NEURAL, "target", "propensity"})
        if foreign:
            raise PolicyError(f"{policy}: expert {name!r} has no options {foreign}")
        return bandit_expert(name, LINEAR_BANDITS[name](**own))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(x) for x in first["loc"])
        raise PolicyError(f"{policy}: expert {name!r}, option {place}: {first['msg']}") from None


STANDARD = ("epsilon_greedy", "square_cb", "neural_ucb", "neural_ts")


# what the mixture itself has; experts and regression differ from the linear policy's
_MIXTURE_FIELDS = {
    name: field
    for name, field in CabsDOptions.model_fields.items()
    if name not in {*_NOT_NEURAL, *NeuralOptions.model_fields, "experts"}
}
_D_FIELDS: dict[str, Any] = {name: (field.annotation, field) for name, field in _MIXTURE_FIELDS.items()}
_Mixture = create_model("_Mixture", __base__=NeuralOptions, **_D_FIELDS)


class NeuralCabsDOptions(_Mixture):
    """Settings of the networks and of CABS-D (`cabs.CabsDOptions`).

    experts: each a name or [name, options]; names: epsilon_greedy, square_cb, neural_ucb, neural_ts and cabs_c.
    """

    experts: tuple[ExpertSpec, ...] = (("neural_ts", {}), ("cabs_c", {}))

    @field_validator("experts", mode="before")
    @classmethod
    def _specs(cls, value: Any) -> Any:
        return expert_specs(value)

    @field_validator("experts")
    @classmethod
    def _known(cls, value: tuple[ExpertSpec, ...]) -> tuple[ExpertSpec, ...]:
        return known_experts(value, (*STANDARD, "cabs_c"))


class CabsDNeural(NeuralPolicy):
    """CABS-D (Algorithm 2) with a network for every expert."""

    Settings: ClassVar = NeuralCabsDOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        **CabsD.PRESETS,
        "lin_ucb_expert": {
            **CabsD.PRESETS["lin_ucb_expert"],
            "experts": (("neural_ucb", {}), ("cabs_c", {})),
        },
    }

    def expert_list(self) -> list[Expert]:
        """The experts of the options."""
        members = []
        for name, own in self.settings.experts:
            if name == "cabs_c":
                if "play" in own:
                    raise PolicyError(
                        f"{self.name}: play is an option of the mixture, not of an expert: give play beside experts"
                    )
                if set(own) & (set(NeuralOptions.model_fields) - {"target"}):
                    raise PolicyError(f"{self.name}: network settings are common to all experts, not {own}")
                if own.get("target", self.settings.target) != self.settings.target:
                    raise PolicyError(
                        f"{self.name}: all experts learn the same target, {self.settings.target!r}"
                    )
                common = {"target": self.settings.target}
                options = CabsCNeural.parse(f"cabs_c_neural@{self.settings.cabs_preset}", {**own, **common})
                members.append(_cabs_row(options))
            else:
                members.append(_standard_expert(self.name, name, dict(own)))
        return members

    def mixture(self) -> Mixture:
        """Loss, learning rate and grid of the weights."""
        return CabsD.mixture(self)  # type: ignore[arg-type]  # the same options, arms and horizon
