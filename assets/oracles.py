"""Assets `oracles`, `replay_problem` and `tuning`: what is learned offline, and what a replay reads."""

import dagster as dg

from cabs_dagster import specs
from cabs_dagster.metadata import guarded, stage_result
from cabs_dagster.names import declare, named
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import PoliciesConfig, StageConfig

from .data import DeviceConfig


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage("oracles", "oracles", "python", "pytorch"),
        pool="gpu",
        op_tags=specs.ray_tags(),
        description="Accuracy, cost and propagation heads and the feature head, trained on the train split "
        "and stopped on validation; the better kind is chosen on validation.",
    )
)
def oracles(context: dg.AssetExecutionContext, config: DeviceConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        return stage_result(context, cabs, "oracles", config.force, config.device)[2]


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage("replay_problem", "oracles", "python", "numpy"),
        description="Contexts, scores, costs, predictions and surrogate differences as memory-mapped arrays: "
        "one problem for the test split and its twin for validation, under the pool's stress condition if it "
        "names one.",
    )
)
def replay_problem(context: dg.AssetExecutionContext, config: StageConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        return stage_result(context, cabs, "replay_problem", config.force)[2]


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.stage("tuning", "replay", "python"),
        description="Settings of the pool's policies, chosen by replaying the validation problem with an "
        "equal budget. A replay depends on its own policy's settings only.",
    )
)
def tuning(context: dg.AssetExecutionContext, config: PoliciesConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        return stage_result(context, cabs, "tuning", config.force, policies=config.policies)[2]
