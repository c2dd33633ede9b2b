"""The encoder that a bundle is written with: a transformer for ONNX Runtime, or fitted arrays."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.errors import ProvenanceError, RouterError
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.base import encoder_class
from cabs_core.data.encoders.onnx import export
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.pool_files.sections import Encoder
from cabs_core.router.checks import play_bundle
from cabs_core.router.encoder import ARRAYS, VALUES, TextEncoder
from cabs_core.router.heads import Heads

#: mean utility that int8 may lose on validation, and how many prompts say so at most
INT8_LOSS, INT8_PROMPTS = 0.002, 1000


def write_transformer(encoder: Encoder, encoding: Mapping[str, Any], folder: Path, *, int8: bool) -> None:
    """Write the encoder of the stored embeddings for ONNX Runtime.

    Raises:
        ProvenanceError: the encoder that is installed is not the one that made the embeddings.
        EncoderError: it is not to be had, or cannot be exported.
    """
    from cabs_core.data.encoders.transformer import TransformerEncoder  # noqa: PLC0415  (torch takes seconds)

    files = resolve(encoder)
    installed = files.identity(encoder, encoding["dtype"])
    if installed != encoding["identity"]:
        raise ProvenanceError(
            f"the embeddings were made with encoder {encoder.name!r} of content {encoding['identity']}, here "
            f"it is {installed} ({files.folder}): install the same weights and tokenizer, or embed again"
        )
    torch_encoder = TransformerEncoder(files, max_length=encoder.max_length, normalize=encoder.normalize)
    export(torch_encoder, folder, int8=int8)


def check_int8(
    folder: Path, settings: dict[str, Any], problem: ReplayProblem, prompts: Sequence[str], rho: float
) -> None:
    """Play the validation problem from int8 and from stored vectors, INT8_PROMPTS queries at most.

    Raises:
        RouterError: mean utility at rho (score units per USD) falls by more than INT8_LOSS.
    """
    assert problem.embeddings is not None
    rows = np.arange(min(problem.n, INT8_PROMPTS))
    heads = Heads.of_bundle(folder)
    vectors = np.array(problem.embeddings)
    vectors[rows] = TextEncoder(settings, "", folder).encode(prompts[: len(rows)])
    utilities = [
        clipped_utility(problem.scores[rows, arms], problem.costs[rows, arms], rho)
        for arms in (play_bundle(folder, heads, problem, rows, e) for e in (problem.embeddings, vectors))
    ]
    lost = utilities[0] - utilities[1]
    if lost.mean() > INT8_LOSS:
        clusters = None if problem.clusters is None else problem.clusters[rows]
        error = mean_error(lost, clusters=clusters).value
        raise RouterError(
            f"int8 would lose {lost.mean():.4f} ± {error:.4f} utility on {len(lost)} validation "
            f"prompts, more than {INT8_LOSS}: take router.int8 out of the pool file"
        )


def write_fitted(encoder: Encoder, train_prompts: Sequence[str], identity: str, folder: Path) -> None:
    """Write the JSON and arrays of an encoder that is no transformer, fitted on the train prompts.

    Raises:
        ProvenanceError: the stored embeddings were made by an encoder that was fitted on other prompts, or
            distilled from another transformer.
    """
    record = encoder_record(encoder.name)
    assert record is not None  # an encoder without a record is a transformer
    kind = encoder_class(record)
    installed = kind.identity(encoder, train_prompts)
    if installed != identity:
        raise ProvenanceError(
            f"the embeddings were made by {encoder.name} "
            f"{'distilled from another transformer' if encoder.of else 'fitted on other prompts'} "
            f"({identity}, here {installed}): embed again"
        )
    arrays, values = kind.make(encoder, train_prompts).state()
    folder.mkdir()
    (folder / VALUES).write_text(json.dumps(values), encoding="utf-8")
    with open(folder / ARRAYS, "wb") as handle:
        np.savez(handle, allow_pickle=False, **arrays)
