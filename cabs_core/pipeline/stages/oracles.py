"""Stage `oracles`: what is learned offline, on the train split alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.oracles.diagnostics import diagnose
from cabs_core.algorithms.oracles.neighbours import neighbour_lists
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.data.inputs import embeddings_of, outcomes_of, plain, split_of
from cabs_core.data.outcomes import outcomes_under
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.stages.progress import Progress

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target

DIAGNOSTICS = "diagnostics.json"


@dataclass(frozen=True, kw_only=True)
class OraclesSummary(Summary):
    """`chosen`: settings of the kind that was kept; `validation`: its figures; `training`: the losses."""

    chosen: Any
    validation: Any
    training: Any

    def shown(self) -> dict[str, Any]:
        training = {"training": self.training} if self.training else {}
        return {"chosen": self.chosen, "validation": self.validation, **training}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> OraclesSummary:
    """Train all heads; where outcomes are complete, diagnose them on the test split."""
    pool, split, vectors, true = chain.pool, split_of(inputs), embeddings_of(inputs), outcomes_of(inputs)
    table = outcomes_under(true, split, pool.replay.condition, pool.oracle.oracle_seed)
    oracle = train_oracles(
        vectors,
        table,
        split,
        pool.oracle,
        features=pool.features,
        device=options.device,
        lists=neighbour_lists(vectors, split),
        progress=Progress(options.notify, "training the oracle network", "epochs", may_end_early=True),
    )
    oracle.save(folder)
    if not pool.logged:  # of a log, most of what would be compared with is a prediction itself
        report = diagnose(oracle, vectors, true, split)
        (folder / DIAGNOSTICS).write_text(json.dumps(report, indent=1, sort_keys=True), encoding="utf-8")
    return OraclesSummary(
        chosen=plain(oracle.chosen),
        validation=plain(oracle.metrics.get("validation", {})),
        training=plain(oracle.metrics.get("training")),
    )
