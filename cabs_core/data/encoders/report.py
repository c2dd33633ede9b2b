"""A report on embedding prompts: counts, device, numeric type, throughput, memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EmbeddingReport:
    """Report of one `embed_prompts` call. Token counts refer to all prompts asked for, new or stored.

    Attributes:
        encoder: name of the encoder.
        identity: hash of everything on which the embeddings depend.
        dim: width of the embeddings.
        pooling: the way in which token states become one vector.
        normalized: True if the embeddings have unit length.
        max_length: tokens kept per prompt; 0 if prompts are never cut.
        prompts, unique: prompts asked for, and how many of them differ.
        embedded, reused: unique prompts computed now, and found in the store.
        empty: prompts without a visible character.
        tokens: tokens after cutting, special tokens included.
        truncated, dropped_tokens: prompts longer than max_length, and tokens cut off them.
        device, device_name, dtype: device and numeric type by which new embeddings were computed.
        seconds, prompts_per_second, tokens_per_second: wall time of the whole call; rates of new prompts.
        padding_share: share of padding among the tokens that the network computed.
        peak_memory_mb: on CUDA the peak of allocated memory, on a CPU the peak resident size of the process.
        oom_halvings: times a batch was halved because it did not fit into memory.
        rejected_shards: stored files set aside because their content did not match their checksum.
    """

    encoder: str
    identity: str
    dim: int
    pooling: str
    normalized: bool
    max_length: int
    prompts: int
    unique: int
    embedded: int
    reused: int
    empty: int
    tokens: int
    truncated: int
    dropped_tokens: int
    device: str
    device_name: str
    dtype: str
    seconds: float
    prompts_per_second: float
    tokens_per_second: float
    padding_share: float
    peak_memory_mb: float
    oom_halvings: int
    rejected_shards: int
