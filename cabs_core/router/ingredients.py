"""What a bundle is made of: a pool's artifacts, or the same as arrays at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import ProvenanceError
from cabs_core.data.inputs import embeddings_of, encoder_prompts, outcomes_of, splits_of, tuned_options
from cabs_core.data.outcomes import Outcomes


@dataclass(frozen=True)
class Ingredients:
    """Outcomes, embeddings, oracles and problems that belong together.

    Attributes:
        outcomes: the table of n prompts. split: `[n]` of train, validation or test. embeddings: `[n, e]`.
        problem: the replay problem of `validation` or `test`; called when it is needed, for each is as large
            as the train split. oracles: likewise.
        options: {policy: tuned settings}. encoding: `identity` and `dtype` of the embeddings.
        fitted_on: prompts that an encoder which is fitted learnt from.
    """

    outcomes: Outcomes
    split: np.ndarray
    embeddings: np.ndarray
    problem: Callable[[str], ReplayProblem]
    oracles: Callable[[], Oracles]
    options: Mapping[str, Mapping[str, Any]]
    encoding: Mapping[str, Any]
    fitted_on: Sequence[str]

    @classmethod
    def read(cls, folders: Mapping[str, Path]) -> Ingredients:
        """From {stage: folder} of the inputs of stage `router`.

        Raises:
            ProvenanceError: nothing says which encoder made the embeddings.
        """
        table = outcomes_of(folders)
        splits = splits_of(folders)
        return cls(
            table,
            splits[0],
            embeddings_of(folders),
            lambda split: ReplayProblem.load(folders["replay_problem"] / split),
            partial(Oracles.load, folders["oracles"]),
            tuned_options(folders),
            _encoding(folders["prompt_embeddings"]),
            encoder_prompts(table, splits),
        )


def _encoding(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        encoding: dict[str, Any] = record["summary"]["encoding"]
        return encoding
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProvenanceError(
            f"{folder} does not say which encoder made its embeddings ({error!r}): embed the prompts again"
        ) from None
