"""Stage `prompt_embeddings`: one vector a query; only prompts never seen before are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cabs_core.base.paths import cabs_home
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.inputs import encoder_prompts, outcomes_of, plain, splits_of
from cabs_core.pipeline.artifacts.results import Summary
from cabs_core.pipeline.stages.progress import Progress

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain, Options, Target


@dataclass(frozen=True, kw_only=True)
class PromptEmbeddingsSummary(Summary):
    """Vectors of a pool's prompts.

    Attributes:
        dimensions: length of a vector.
        encoding: the encoder, how many prompts it saw for the first time, and how long that took.
    """

    dimensions: int
    encoding: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return the figures to show: those of every summary, `dimensions` and `encoding`."""
        return {**super().shown(), "dimensions": self.dimensions, "encoding": self.encoding}


def build(
    chain: Chain, target: Target, folder: Path, inputs: dict[str, Path], options: Options
) -> PromptEmbeddingsSummary:
    """Embed the prompts in the order of the outcomes, write them to `embeddings.npy`, and summarise them.

    Vectors come from the store under `cabs_home()` where it has them, and new ones are added to it.

    Args:
        chain: the run's chain of stages. Its pool holds the encoder's settings.
        target: not read.
        folder: folder to write `embeddings.npy` to, `[n, e]` float32, a row a prompt.
        inputs: {name of an earlier stage: its folder}. With "splits" an encoder that is fitted (such as
            tfidf-svd) is fitted on the train prompts of one split, or on all prompts if there are several.
        options: settings of the run, of which the device and the progress messages are used.
    """
    table = outcomes_of(inputs)
    train = None
    if "splits" in inputs:
        train = encoder_prompts(table, splits_of(inputs))
    vectors, report = embed_prompts(
        table.prompts,
        chain.pool.encoder,
        store=cabs_home() / "embeddings",
        device=options.device,
        fit_prompts=train,
        progress=Progress(options.notify, "embedding", "prompts"),
    )
    np.save(folder / "embeddings.npy", np.ascontiguousarray(vectors, dtype=np.float32), allow_pickle=False)
    return PromptEmbeddingsSummary(
        rows=len(vectors), dimensions=int(vectors.shape[1]), encoding=plain(report)
    )
