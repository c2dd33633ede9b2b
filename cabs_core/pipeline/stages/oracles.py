"""Stage `oracles`: what is learned offline, on the train split alone, in every fold anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cabs_core.algorithms.oracles.diagnostics import diagnose
from cabs_core.algorithms.oracles.neighbours import neighbour_lists
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.data.inputs import FoldData, fold_folder, plain
from cabs_core.data.outcomes import outcomes_under
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.stages.progress import Progress

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target

DIAGNOSTICS = "diagnostics.json"


@dataclass(frozen=True, kw_only=True)
class OraclesSummary(Summary):
    """Summary of the oracles that were trained in the first fold.

    Attributes:
        chosen: settings of the kind of oracle that was kept; validation: its figures on validation queries.
        training: losses of the network, None without a network.
        device: hardware that trained the network, empty if there is no network. Predictions of a processor
            and a GPU differ at equal error, so the record names the hardware. Another device is no reason to
            train again.
        folds: number of folds.
    """

    chosen: Any
    validation: Any
    training: Any
    device: str = ""
    folds: int = 1

    def shown(self) -> dict[str, Any]:
        if self.training:
            training = {"training": self.training, "trained on": self.device}
        else:
            training = {}
        return {"chosen": self.chosen, "validation": self.validation, **training}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> OraclesSummary:
    """Train the oracles of every fold, and write them to the folder.

    The first fold's oracles are also diagnosed on its test split, unless the pool's source is a log.
    """
    pool = chain.pool
    folds = FoldData.read(inputs)
    device = pool.oracle.device or options.device
    summary: OraclesSummary | None = None
    for fold, split in enumerate(folds.splits):
        words = "training the oracle network" + (f", fold {fold + 1}" if len(folds.splits) > 1 else "")
        oracle = train_oracles(
            folds.vectors,
            outcomes_under(folds.table_of(split), split, pool.replay.condition, pool.oracle.oracle_seed),
            split,
            pool.oracle,
            features=pool.features,
            device=device,
            lists=neighbour_lists(folds.vectors, split),
            progress=Progress(options.notify, words, "epochs", may_end_early=True),
        )
        place = fold_folder(folder, fold)
        place.mkdir(exist_ok=True)
        oracle.save(place)
        if summary is not None:
            continue
        if not pool.logged:  # of a log, most of what would be compared with is a prediction itself
            report = diagnose(oracle, folds.vectors, folds.table, split)
            (folder / DIAGNOSTICS).write_text(json.dumps(report, indent=1, sort_keys=True), encoding="utf-8")
        summary = OraclesSummary(
            chosen=plain(oracle.chosen),
            validation=plain(oracle.metrics.get("validation", {})),
            training=plain(oracle.metrics.get("training")),
            device="" if oracle.network is None else _hardware(device),
            folds=len(folds.splits),
        )
    assert summary is not None  # there is a fold
    return summary


def _hardware(device: str) -> str:
    """Return the name of the hardware behind `auto`, `cpu` or `cuda`."""
    from cabs_core.data.encoders.transformer import choose_device, device_name  # noqa: PLC0415  (torch: seconds)

    return device_name(choose_device(device))
