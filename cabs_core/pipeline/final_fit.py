"""The ingredients of the router that is exported: fitted on all rows of a table that has folds."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.data.inputs import FoldData
from cabs_core.data.pool_files import ModelPool
from cabs_core.evaluation.replay.tuning import tune_policies
from cabs_core.router.ingredients import Ingredients


def fit_on_all_rows(pool: ModelPool, inputs: dict[str, Path], policy: str) -> Ingredients:
    """Return the ingredients of a router of this policy, with every row used for training or validation.

    The test rows of the first fold join the train rows of this fold. The fold's validation rows stop training
    and choose settings, as in every fold. No row is left on which this router could be judged, and none is
    needed, because the pool's answer has judged the policy in folds.

    Args:
        inputs: {stage: folder} of the inputs of stage `router`.
    """
    read = Ingredients.read(inputs)
    data = FoldData.read(inputs)
    split = np.where(data.splits[0] == "validation", "validation", "train")
    table = data.table_of(split)
    oracles = train_oracles(data.vectors, table, split, pool.oracle, features=pool.features, device="auto")
    validation = build_problems(table, split, data.vectors, oracles, pool)["validation"]
    tuned = tune_policies(validation, pool.model_copy(update={"policies": (policy,)}))
    problems = {"validation": validation, "test": replace(validation, name="test")}
    return replace(
        read,
        outcomes=table,
        split=split,
        embeddings=data.vectors,
        problem=problems.__getitem__,
        oracles=lambda: oracles,
        options={name: dict(entry["options"]) for name, entry in tuned.items()},
    )
