"""Embeds a list of prompts through the store, so that only prompts never seen before are computed."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.base.catalog.encoders import encoder_record
from cabs_core.base.errors import DataError
from cabs_core.data.encoders.base import PromptEncoder, encoder_class
from cabs_core.data.encoders.chunks import canonical_shards
from cabs_core.data.encoders.report import EmbeddingReport
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.encoders.store import EmbeddingStore, prompt_key
from cabs_core.data.pool_files.sections import Encoder

Progress = Callable[[int, int], None]


def embed_prompts(
    prompts: Sequence[str],
    encoder: Encoder,
    *,
    store: str | Path,
    device: str = "auto",
    fit_prompts: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, EmbeddingReport]:
    """Return the embeddings of prompts, from the store or computed and stored.

    A run that was killed and is started again with the same prompts goes on after the last stored shard. It
    gives the bytes of an uninterrupted run, unless a batch ran out of memory in one of the runs.

    Args:
        prompts: texts. They may repeat, may be empty, and are cut to `encoder.max_length` tokens.
        encoder: the pool's encoder settings.
        store: folder of the embedding store, shared by all encoders and pools.
        device: 'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N'.
        fit_prompts: prompts on which a fitted encoder (`tfidf-svd`) is fitted, which are those of the train
            split. None fits on `prompts`, which lets the words of the test prompts (never scores) into the
            embeddings.
        progress: called with (prompts embedded, prompts to embed) after every stored shard.

    Returns:
        The embeddings `[n, e]` float32, in the order of the prompts, and a report.

    Raises:
        DataError: there are no prompts, or one is no text.
        EncoderError: the encoder cannot be found or loaded.
    """
    begin = time.perf_counter()
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise DataError(f"prompt {i} is {prompt!r:.80} ({type(prompt).__name__}): expected text")
    if not len(prompts):
        raise DataError("there are no prompts to embed: the outcome table is empty")
    backend = _backend(encoder, device, prompts if fit_prompts is None else fit_prompts)
    keys = [prompt_key(p) for p in prompts]
    texts = dict(zip(keys, prompts, strict=True))
    shelf = EmbeddingStore(store, backend.identity)
    plan, planned = shelf.open_plan(list(texts))
    new = sum(key not in shelf for key in texts)
    new_tokens = 0
    computing = time.perf_counter()
    if planned:
        rows = canonical_shards([len(texts[k]) for k in planned], planned)
        shards = [[planned[i] for i in shard] for shard in rows]
        shards = [s for s in shards if any(k not in shelf for k in s)]
        done = 0
        total = sum(map(len, shards))
        computed = backend.run([[texts[key] for key in shard] for shard in shards])
        for shard, (vectors, counts) in zip(shards, computed, strict=True):
            shelf.commit(shard, vectors, counts)
            new_tokens += int(counts[:, 0].sum())
            done += len(shard)
            if progress is not None:
                progress(done, total)
        shelf.close_plan(plan)
    seconds = time.perf_counter() - computing
    vectors, counts = shelf.get(keys)
    rate = 1.0 / max(seconds, 1e-9)
    report = EmbeddingReport(
        encoder=encoder.name,
        identity=backend.identity,
        dim=vectors.shape[1],
        normalized=encoder.normalize,
        prompts=len(prompts),
        unique=len(texts),
        embedded=new,
        reused=len(texts) - new,
        empty=sum(not p.strip() for p in prompts),
        tokens=int(counts[:, 0].sum()),
        truncated=int((counts[:, 1] > 0).sum()),
        dropped_tokens=int(counts[:, 1].sum()),
        seconds=time.perf_counter() - begin,
        prompts_per_second=new * rate,
        tokens_per_second=new_tokens * rate,
        rejected_shards=shelf.rejected,
        **backend.facts(),
    )
    return vectors, report


def _backend(encoder: Encoder, device: str, fit_prompts: Sequence[str]) -> _Transformer | _ByClass:
    """Return the object that computes the embeddings of an encoder."""
    record = encoder_record(encoder.name)
    if record is not None and record.path:
        return _ByClass(encoder, encoder_class(record), fit_prompts)
    return _Transformer(encoder, device)


Shards = Iterator[tuple[np.ndarray, np.ndarray]]


class _Transformer:
    """A transformer whose weights are read only when there is something to compute."""

    def __init__(self, encoder: Encoder, device: str):
        from cabs_core.data.encoders.transformer import choose_device, choose_dtype  # noqa: PLC0415  (torch: seconds)

        self.encoder = encoder
        self.files = resolve(encoder)
        self.device = choose_device(device)
        self.dtype = choose_dtype(encoder.dtype, self.device)
        self.identity = self.files.identity(encoder, self.dtype)
        self.max_length = encoder.max_length
        self.stats: Any = None

    def run(self, shards: list[list[str]]) -> Shards:
        """Yield the embeddings of every shard, and the tokens read and cut off of every prompt."""
        import torch  # noqa: PLC0415  (torch takes seconds)

        from cabs_core.data.encoders.transformer import TransformerEncoder  # noqa: PLC0415  (torch: seconds)

        if not shards:
            return
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
        model = TransformerEncoder(
            self.files,
            max_length=self.encoder.max_length,
            normalize=self.encoder.normalize,
            device=self.device,
            dtype=self.dtype,
        )
        self.stats = model.stats
        self.max_length = model.max_length
        # the next shard is tokenised while this one is computed
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(model.tokenize, shards[0])
            for i in range(len(shards)):
                tokens = waiting.result()
                if i + 1 < len(shards):
                    waiting = ahead.submit(model.tokenize, shards[i + 1])
                yield model.encode(tokens), np.stack([tokens.lengths, tokens.dropped], axis=1)

    def facts(self) -> dict[str, Any]:
        """Return the fields of the report that depend on the kind of encoder."""
        from cabs_core.data.encoders.transformer import device_name  # noqa: PLC0415  (torch takes seconds)

        stats = self.stats
        return {
            "pooling": self.files.pooling,
            "max_length": self.max_length,
            "device": self.device,
            "device_name": device_name(self.device),
            "dtype": self.dtype,
            "padding_share": 1.0 - stats.tokens / stats.padded if stats and stats.padded else 0.0,
            "peak_memory_mb": peak_memory_mb(self.device),
            "oom_halvings": stats.halvings if stats else 0,
        }


class _ByClass:
    """A `PromptEncoder`, made and fitted only when there is something to compute."""

    def __init__(self, encoder: Encoder, kind: type[PromptEncoder], fit_prompts: Sequence[str]):
        self.encoder = encoder
        self.kind = kind
        self.fit_prompts = fit_prompts
        self.identity = kind.identity(encoder, fit_prompts)

    def run(self, shards: list[list[str]]) -> Shards:
        """Yield the embeddings of every shard, and the tokens read and cut off of every prompt."""
        if shards:
            model = self.kind.make(self.encoder, self.fit_prompts)
            for shard in shards:
                yield model.encode(shard)

    def facts(self) -> dict[str, Any]:
        """Return the fields of the report that depend on the kind of encoder."""
        return {
            "pooling": self.kind.pooling,
            "max_length": self.encoder.max_length if self.encoder.of else 0,
            "device": "cpu",
            "device_name": "CPU",
            "dtype": "float32",
            "padding_share": 0.0,
            "peak_memory_mb": peak_memory_mb("cpu"),
            "oom_halvings": 0,
        }


def peak_memory_mb(device: str) -> float:
    """Return the peak of used memory in MiB.

    On CUDA it is the peak of what was allocated since the run began, otherwise the peak resident size of this
    process.
    """
    if device.startswith("cuda"):
        import torch  # noqa: PLC0415  (torch takes seconds)

        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak / 2**20
    return peak / 2**10
