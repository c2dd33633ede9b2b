"""Ingredients of a bundle: the artifacts of a pool, read from their folders or given as arrays."""

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
        outcomes: the table of n prompts.
        split: split of every prompt, `[n]`: train, validation or test.
        embeddings: embedding of every prompt, `[n, e]`.
        problem: function that returns the replay problem of `validation` or `test`. Each problem is as large
            as the train split, so no problem is loaded before it is needed.
        oracles: function that returns the oracles, which are as large.
        options: {policy: tuned settings}.
        encoding: `identity` and `dtype` of the embeddings.
        fitted_on: prompts on which a fitted encoder was fitted.
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
        """Read the ingredients from the artifacts of a chain.

        Args:
            folders: {stage: folder} of the inputs of stage `router`.

        Raises:
            ProvenanceError: the record of the embeddings does not say which encoder made them.
        """
        table = outcomes_of(folders)
        splits = splits_of(folders)
        return cls(
            outcomes=table,
            split=splits[0],
            embeddings=embeddings_of(folders),
            problem=lambda split: ReplayProblem.load(folders["replay_problem"] / split),
            oracles=partial(Oracles.load, folders["oracles"]),
            options=tuned_options(folders),
            encoding=_encoding(folders["prompt_embeddings"]),
            fitted_on=encoder_prompts(table, splits),
        )


def _encoding(folder: Path) -> dict[str, Any]:
    """Return `identity` and `dtype` of the embeddings in a folder, from their record."""
    try:
        record = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        encoding: dict[str, Any] = record["summary"]["encoding"]
        return encoding
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProvenanceError(
            f"{folder} does not say which encoder made its embeddings ({error!r}): embed the prompts again"
        ) from None
