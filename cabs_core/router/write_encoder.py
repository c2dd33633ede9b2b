"""Writes the encoder of a bundle: a transformer for ONNX Runtime, or the arrays of a fitted encoder."""

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

#: Mean utility that int8 may lose on validation.
INT8_LOSS = 0.002
#: Number of validation prompts on which the loss is measured, at most.
INT8_PROMPTS = 1000


def write_transformer(encoder: Encoder, encoding: Mapping[str, Any], folder: Path, *, int8: bool) -> None:
    """Write the transformer that made the stored embeddings for ONNX Runtime.

    Args:
        encoder: encoder of the pool file.
        encoding: `identity` and `dtype` of the stored embeddings.
        folder: folder of the encoder in the bundle.
        int8: True writes weights of 8 bits.

    Raises:
        ProvenanceError: the encoder that is installed is not the one that made the embeddings.
        EncoderError: the encoder cannot be found, or cannot be exported.
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
    """Check the utility of the bundle's plays from int8 embeddings against plays from stored embeddings.

    Args:
        folder: folder of the bundle that is being written.
        settings: JSON of the pool's encoder.
        problem: the validation split, of which the first `INT8_PROMPTS` queries are played.
        prompts: texts of the queries, in the same order.
        rho: score units per USD.

    Raises:
        RouterError: int8 loses more than `INT8_LOSS` of mean utility.
    """
    assert problem.embeddings is not None
    rows = np.arange(min(problem.n, INT8_PROMPTS))
    heads = Heads.of_bundle(folder)
    vectors = np.array(problem.embeddings)
    vectors[rows] = TextEncoder(settings, "", folder).encode(prompts[: len(rows)])

    def utilities(embeddings: np.ndarray) -> np.ndarray:
        arms = play_bundle(folder, heads, problem, rows, embeddings)
        return clipped_utility(problem.scores[rows, arms], problem.costs[rows, arms], rho)

    lost = utilities(problem.embeddings) - utilities(vectors)
    if lost.mean() > INT8_LOSS:
        if problem.clusters is None:
            clusters = None
        else:
            clusters = problem.clusters[rows]
        error = mean_error(lost, clusters=clusters).value
        raise RouterError(
            f"int8 would lose {lost.mean():.4f} ± {error:.4f} utility on {len(lost)} validation "
            f"prompts, more than {INT8_LOSS}: take router.int8 out of the pool file"
        )


def write_fitted(encoder: Encoder, train_prompts: Sequence[str], identity: str, folder: Path) -> None:
    """Fit an encoder that is no transformer on the train prompts, and write its values and arrays.

    Args:
        encoder: encoder of the pool file.
        identity: identity of the stored embeddings.
        folder: folder of the encoder in the bundle, which must not exist yet.

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
