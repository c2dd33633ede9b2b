"""A transformer encoder: tokens, batches, forward passes on CPU or CUDA, pooling.

CPU: every batch runs on one thread and as many batches side by side as torch has threads, because small
matrix products share cores badly; a result therefore does not depend on the number of cores. CUDA: pinned
host memory, asynchronous copies, large batches, and attention without cuDNN, which would build a plan for
every new shape of a batch. bfloat16 follows autocast (matrix products in bfloat16, layer
norms and residual sums in float32) with the linear weights cast once. A batch that does not fit into memory
is halved, and the limit is kept for the rest of the run.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders.chunks import token_batches
from cabs_core.data.encoders.resolve import EncoderFiles

CPU_TOKENS, CUDA_TOKENS = 1024, 32_768
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass
class TokenIds:
    """Token ids of n prompts.

    Attributes:
        ids: int64 array of token ids for every prompt.
        dropped: number of tokens that were cut off each prompt, `[n]`.
    """

    ids: list[np.ndarray]
    dropped: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of every prompt, shape [n]."""
        return np.fromiter((len(i) for i in self.ids), dtype=np.int64, count=len(self.ids))


@dataclass
class ForwardStats:
    """Totals of the forward passes.

    Attributes:
        tokens: tokens of prompts.
        padded: tokens with padding.
        halvings: number of times that a batch was halved for lack of memory.
    """

    tokens: int = 0
    padded: int = 0
    halvings: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, tokens: int = 0, padded: int = 0, halvings: int = 0) -> None:
        """Add counts to the totals. Several threads may do so at once."""
        with self._lock:
            self.tokens += tokens
            self.padded += padded
            self.halvings += halvings


class TransformerEncoder:
    """Transformer with its tokenizer, loaded on a device, that computes embeddings.

    Args:
        files: the encoder's files, as `resolve` returns them.
        max_length: tokens kept per prompt, lowered to the limits of the tokenizer and of the network.
        normalize: True scales embeddings to unit length.
        device: 'cpu', 'cuda' or 'cuda:N'.
        dtype: 'float32' or 'bfloat16'.
        batch_tokens: tokens computed at once, padding included; None: `CPU_TOKENS` or `CUDA_TOKENS`.
        model: a network to use instead of the one in `files.folder`. The encoder then has no tokenizer.

    Raises:
        EncoderError: the files cannot be loaded.
    """

    def __init__(
        self,
        files: EncoderFiles,
        *,
        max_length: int = 256,
        normalize: bool = True,
        device: str = "cpu",
        dtype: str = "float32",
        batch_tokens: int | None = None,
        model: Any = None,
    ):
        self.files = files
        self.normalize = normalize
        self.device = torch.device(device)
        self.dtype = getattr(torch, dtype)
        self.stats = ForwardStats()
        self.tokenizer: Any = None
        try:
            self.model = self._prepared(self._load() if model is None else model)
        except (OSError, ValueError, ImportError, KeyError, RuntimeError, UnpicklingError) as error:
            raise EncoderError(
                f"encoder {files.name!r}: cannot be loaded from {files.folder} ({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0][:300]})"
            ) from error
        self.max_length = self._longest(max_length)
        self._rust = self._rust_tokenizer()
        self.batch_tokens = batch_tokens or (CUDA_TOKENS if self.device.type == "cuda" else CPU_TOKENS)
        self._rows_that_fit = 1 << 30

    def _load(self) -> Any:
        """Load tokenizer and network, and return the network; of an encoder-decoder only the encoder."""
        from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415  (seconds, not always needed)
        from transformers.utils import logging  # noqa: PLC0415  (seconds, not always needed)

        folder = self.files.folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = AutoModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, trust_remote_code=False
            )
        finally:
            if bars:
                logging.enable_progress_bar()
        if model.config.is_encoder_decoder:
            return model.get_encoder()
        return model

    def _prepared(self, model: Any) -> Any:
        """Return the model in evaluation mode on its device.

        For bfloat16 the linear weights are cast once instead of in every pass.
        """
        model = model.eval().requires_grad_(False)
        if self.dtype == torch.bfloat16:
            for module in model.modules():
                if isinstance(module, torch.nn.Linear):
                    module.to(torch.bfloat16)
        return model.to(self.device)

    def _longest(self, most: int) -> int:
        """Return the most tokens per prompt: the least of `most` and the limits of tokenizer and network.

        The result is at least 2.
        """
        config = self.model.config
        # a tokenizer without a limit says so with a huge number
        if self.tokenizer is None:
            limits = [most]
        else:
            limits = [most, self.tokenizer.model_max_length]
        positions = getattr(config, "max_position_embeddings", None)
        if positions and getattr(config, "position_embedding_type", "absolute") == "absolute":
            roberta = "roberta" in str(getattr(config, "model_type", ""))
            if roberta:
                padding = int(getattr(config, "pad_token_id", 0)) + 1
            else:
                padding = 0
            limits.append(positions - padding)
        return max(2, int(min(limits)))

    def _rust_tokenizer(self) -> Any:
        """Return the tokenizer in Rust, set to cut at `max_length`, or None if the encoder has none."""
        rust = getattr(self.tokenizer, "backend_tokenizer", None)
        if rust is not None:
            rust.no_padding()
            rust.enable_truncation(self.max_length)
        return rust

    def tokenize(self, texts: list[str]) -> TokenIds:
        """Return the token ids of texts, cut to `max_length`, special tokens included."""
        # a lone surrogate is not text: the tokenizer (UTF-8) would refuse it
        texts = [t.encode("utf-8", "replace").decode("utf-8") for t in texts]
        if self._rust is not None:
            return self._tokenize_in_rust(texts)
        batch = self.tokenizer(
            texts,
            truncation=True,
            max_length=self.max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids = [np.asarray(i, dtype=np.int64) for i in batch["input_ids"]]
        dropped = np.zeros(len(ids), dtype=np.int64)
        for i in [i for i, row in enumerate(ids) if len(row) == self.max_length]:
            dropped[i] = len(self.tokenizer(texts[i], verbose=False)["input_ids"]) - len(ids[i])
        return TokenIds(ids, dropped)

    def _tokenize_in_rust(self, texts: list[str]) -> TokenIds:
        """Tokenize by the Rust tokenizer itself, which is faster than the wrapper of transformers."""
        encodings = self._rust.encode_batch_fast(texts)
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        special = self.tokenizer.num_special_tokens_to_add(pair=False)
        dropped = np.zeros(len(ids), dtype=np.int64)
        for i, row in enumerate(ids):
            if len(row) == self.max_length:
                overflowing = encodings[i].overflowing
                dropped[i] = sum(max(len(rest.ids) - special, 0) for rest in overflowing)
        return TokenIds(ids, dropped)

    def encode(self, tokens: TokenIds) -> np.ndarray:
        """Return embeddings `[n, e]` float32. The embedding of a prompt without any token is zero."""
        lengths = tokens.lengths
        some = np.flatnonzero(lengths)
        batches = [some[b] for b in token_batches(lengths[some].tolist(), self.batch_tokens)]
        if self.device.type == "cuda":
            parts = [self._batch(tokens, rows) for rows in batches]
            torch.cuda.synchronize(self.device)
        else:
            parts = self._on_cores(tokens, batches)
        if parts:
            width = parts[0].shape[1]
        else:
            width = self.model.config.hidden_size
        out = np.zeros((len(lengths), width), dtype=np.float32)
        for rows, part in zip(batches, parts):
            out[rows] = part.numpy()
        return out

    def _on_cores(self, tokens: TokenIds, batches: list[np.ndarray]) -> list[torch.Tensor]:
        """Return the embeddings of every batch, computed side by side on one thread each."""
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            if len(batches) == 1:  # a thread would cost more than it gains
                return [self._batch(tokens, batches[0])]
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return list(pool.map(lambda rows: self._batch(tokens, rows), batches))
        finally:
            torch.set_num_threads(threads)

    def _batch(self, tokens: TokenIds, rows: np.ndarray) -> torch.Tensor:
        """Return the embeddings of one batch on the host. A batch that does not fit into memory is halved.

        Raises:
            EncoderError: a single prompt does not fit into memory.
        """
        if len(rows) > self._rows_that_fit:
            parts = np.array_split(rows, -(-len(rows) // self._rows_that_fit))
            return torch.cat([self._batch(tokens, part) for part in parts])
        try:
            return self._pass(tokens, rows)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            text = str(error).lower()
            memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if not memory and not any(words in text for words in _OUT_OF_MEMORY):
                raise
            if len(rows) == 1:
                raise EncoderError(
                    f"encoder {self.files.name!r}: a single prompt of {len(tokens.ids[rows[0]])} tokens does "
                    f"not fit into the memory of {self.device}. Lower encoder.max_length, or use another "
                    "device"
                ) from None
        # outside the except block, whose traceback would keep the failed pass's tensors alive
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._rows_that_fit = min(self._rows_that_fit, (len(rows) + 1) // 2)
        self.stats.add(halvings=1)
        return self._batch(tokens, rows)

    @torch.inference_mode()
    def _pass(self, tokens: TokenIds, rows: np.ndarray) -> torch.Tensor:
        """Return the embeddings of the prompts in some rows from one forward pass, float32 on the host.

        On CUDA the copy to the host may still be running.
        """
        cuda = self.device.type == "cuda"
        lengths = tokens.lengths[rows]
        longest = int(lengths.max())
        real = np.arange(longest) < lengths[:, None]
        table = np.full(real.shape, getattr(self.tokenizer, "pad_token_id", None) or 0, dtype=np.int64)
        table[real] = np.concatenate([tokens.ids[i] for i in rows])
        ids = torch.from_numpy(table)
        ids = ids.pin_memory() if cuda else ids
        mask = None
        if not real.all():
            mask = torch.from_numpy(real.astype(np.int64))
            mask = (mask.pin_memory() if cuda else mask).to(self.device, non_blocking=True)
        states = self._states(ids.to(self.device, non_blocking=True), mask).float()
        vectors = self.pool(states, mask)
        self.stats.add(tokens=int(lengths.sum()), padded=real.size)
        if not cuda:
            return vectors
        host = torch.empty(vectors.shape, dtype=torch.float32, pin_memory=True)
        return host.copy_(vectors, non_blocking=True)

    def _states(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the last hidden states of the network, `[n, t, e]`, for padded token ids `[n, t]`."""
        mask = torch.ones_like(ids) if mask is None else mask
        reduced = self.dtype == torch.bfloat16
        with self._attention(), torch.autocast(self.device.type, torch.bfloat16, enabled=reduced):
            states: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return states

    def _attention(self) -> AbstractContextManager[None]:
        """Return the context of a forward pass: on CUDA every attention of torch but cuDNN's.

        cuDNN builds a plan for each new shape of a batch. 60,000 prompts of mixed length have some hundred
        shapes, whose plans took 8.5 of 14.3 s on an H100.
        """
        if self.device.type != "cuda":
            return nullcontext()
        attention: AbstractContextManager[None] = sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        )
        return attention

    def pool(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the embedding of every prompt, `[n, e]`, from its token states `[n, t, e]`.

        An embedding is the first state or the mean of the states, by the encoder's files. Its length is 1 if
        the encoder normalizes.

        Args:
            states: last hidden states of the network.
            mask: `[n, t]`, 1 for a token and 0 for padding. None if there is no padding.
        """
        if self.files.pooling == "cls":
            vectors = states[:, 0]
        elif mask is None:
            vectors = states.mean(dim=1)
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)
            vectors = (states * weights).sum(dim=1) / weights.sum(dim=1)
        if self.normalize:
            return torch.nn.functional.normalize(vectors, dim=1)
        return vectors


def choose_device(device: str) -> str:
    """Return the device: for 'auto' it is 'cuda' if torch sees one, else 'cpu'.

    Other names are checked, but not the number N of 'cuda:N'.

    Raises:
        EncoderError: the device is unknown, or CUDA is asked for and absent.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "cpu"
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise EncoderError(f"device {device!r} is not known: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EncoderError(
            f"device {device!r}: torch {torch.__version__} sees no CUDA device; use auto or cpu"
        )
    return device


def choose_dtype(dtype: str, device: str) -> str:
    """Return the numeric type: for 'auto' bfloat16 if the hardware multiplies it natively, else float32."""
    if dtype != "auto":
        return dtype
    if device.startswith("cuda"):
        if torch.cuda.get_device_capability(device)[0] >= 8:
            return "bfloat16"
        return "float32"
    native = torch.cpu.get_capabilities()
    if native.get("avx512_bf16") or native.get("amx_tile"):
        return "bfloat16"
    return "float32"


def device_name(device: str) -> str:
    """Return a readable name of the hardware, for reports.

    The name of a GPU is its model; a CPU is described by its instruction set and number of threads.
    """
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    processor = f"{torch.backends.cpu.get_cpu_capability()} CPU"
    return f"{processor}, {torch.get_num_threads()} of {os.cpu_count()} threads"
