"""Asset `theory`: what the paper's theorems predict, measured on generated bandits; of no pool."""

import dagster as dg
from pydantic import Field

from cabs_core.pipeline.theory import theory_code_version
from cabs_dagster import specs
from cabs_dagster.metadata import guarded
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import StageConfig

from .results import page_metadata


class TheoryConfig(StageConfig):
    seeds: int = Field(5, ge=2, description="Repetitions of every experiment; intervals are over them.")


@dg.asset(
    required_resource_keys={CABS},
    **specs.common("theory", "theory", "python", "html", "numba"),
    code_version=theory_code_version(),
    description="Experiments E1 to E3 on the theorems, as a page with plots.",
)
def theory(context: dg.AssetExecutionContext, config: TheoryConfig) -> dg.MaterializeResult:
    with guarded():
        cabs = cabs_of(context)
        # here: loading the code location stays quick
        from cabs_core.pipeline.theory.experiments import THEORY, make_theory

        store = cabs.store()
        made = make_theory(store, config.seeds, cabs.options(context, config.force))
        shown = page_metadata(made, store, THEORY)
        return dg.MaterializeResult(data_version=dg.DataVersion(made.record.content), metadata=shown)
