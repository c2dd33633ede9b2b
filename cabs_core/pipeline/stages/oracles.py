"""Stage `oracles`: fits predictors of every model's score and cost, called oracles, in every fold anew.

Oracles are fitted on the train split. The validation split ends a network's training and chooses the kind of
oracle that is kept. The test split is only used to diagnose them.
"""

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
    """Summary of the stage: figures of the first fold's oracles, and the number of folds.

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
        """Return the chosen settings and the validation figures for people.

        If a network was trained, its losses and its hardware follow.
        """
        if self.training:
            training = {"training": self.training, "trained on": self.device}
        else:
            training = {}
        return {"chosen": self.chosen, "validation": self.validation, **training}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> OraclesSummary:
    """Train the predictors of score and cost (oracles) of every fold, and write them to the folder.

    The first fold's oracles are also compared with its test split in `diagnostics.json`, unless the pool's
    source is a log.

    Args:
        chain: chain of the pool, whose settings are followed.
        target: the stage's artifact, which is not read here.
        folder: folder of the artifact. The first fold's oracles lie at its top, those of other folds in
            folders of their own.
        inputs: {stage: folder} of the artifacts that are read.
        options: device of the network, and the function that is told of the progress.

    Returns:
        The summary of the first fold's oracles.
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
    """Return the name of the hardware behind a device setting such as `auto`, `cpu`, `cuda` or `cuda:1`."""
    from cabs_core.data.encoders.transformer import choose_device, device_name  # noqa: PLC0415  (torch: seconds)

    return device_name(choose_device(device))
