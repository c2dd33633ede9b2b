"""`cabs_c_neural` and `cabs_d_neural`: CABS with a network in place of the ridge models (paper, section "From
linear to neural bandits").

Algorithms, options, presets and readings are those of `cabs`; only the regression differs. Rows that a ridge
model would see with weight w and target y enter the network's history with that weight and target. No step of
CABS-C needs the regression's widths. CABS-D's standard expert is a neural bandit: neural_ts (Thompson
sampling on the last layer's widths, the counterpart of the linear policy's lin_ts) by default, square_cb as
in the paper, neural_ucb or epsilon_greedy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from cabs_core.algorithms.policies.cabs import (
    CabsCRule,
    CabsDRule,
    Coupled,
    Decoupled,
    ExpertSpec,
    cabs_expert,
)
from cabs_core.algorithms.policies.linear.bandits import OPTIONS as LINEAR_BANDITS
from cabs_core.algorithms.policies.linear.bandits import bandit_expert
from cabs_core.algorithms.policies.linear.expert_policy import Expert, ModelOptions
from cabs_core.algorithms.policies.neural.policy import NeuralOptions, NeuralPolicy, neural_expert
from cabs_core.base.errors import PolicyError, first_fault


class NeuralCabsCOptions(CabsCRule, NeuralOptions):
    """Settings of `cabs_c_neural`: those of CABS-C (`cabs.CabsCRule`), and of the networks."""


class CabsCNeural(Coupled, NeuralPolicy):
    """CABS-C (Algorithm 1) with a network."""

    Settings: ClassVar = NeuralCabsCOptions


class NeuralCabsDOptions(CabsDRule, NeuralOptions):
    """Settings of `cabs_d_neural`: those of CABS-D (`cabs.CabsDRule`), and of the networks of all experts.

    experts: epsilon_greedy, square_cb, neural_ucb, neural_ts and cabs_c.
    """

    expert_names = ("epsilon_greedy", "square_cb", "neural_ucb", "neural_ts", "cabs_c")
    experts: tuple[ExpertSpec, ...] = (("neural_ts", {}), ("cabs_c", {}))


class _UCB(NeuralOptions):
    alpha: float = Field(0.1, gt=0)


class _TS(NeuralOptions):
    v: float = Field(0.1, gt=0)


class CabsDNeural(Decoupled, NeuralPolicy):
    """CABS-D (Algorithm 2) with a network for every expert."""

    Settings: ClassVar = NeuralCabsDOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        **Decoupled.PRESETS,
        "lin_ucb_expert": {
            **Decoupled.PRESETS["lin_ucb_expert"],
            "experts": (("neural_ucb", {}), ("cabs_c", {})),
        },
    }

    def surrogate_expert(self, options: Mapping[str, Any]) -> Expert:
        """CABS-C; its network is that of all experts.

        Raises:
            PolicyError: options of the network, which all experts share.
        """
        if set(options) & (set(NeuralOptions.model_fields) - {"target"}):
            raise PolicyError(f"{self.name}: network settings are common to all experts, not {options}")
        name = f"cabs_c_neural@{self.settings.cabs_preset}"
        return cabs_expert(CabsCNeural.parse(name, {**options, "target": self.settings.target}))

    def standard_expert(self, name: str, options: Mapping[str, Any]) -> Expert:
        """A neural bandit, of which the options are its exploration alone.

        Raises:
            PolicyError: an option that the expert does not have, or out of its range.
        """
        try:
            if name == "neural_ucb":
                return neural_expert("lin_ucb", alpha=_UCB(**options).alpha)
            if name == "neural_ts":
                return neural_expert("lin_ts", v=_TS(**options).v)
            foreign = sorted(set(options) & {*ModelOptions.model_fields, "target", "propensity"})
            if foreign:
                raise PolicyError(f"{self.name}: expert {name!r} has no options {foreign}")
            return bandit_expert(name, LINEAR_BANDITS[name](**options))
        except ValidationError as error:
            raise PolicyError(f"{self.name}: expert {name!r}, option {first_fault(error)[0]}") from None
