"""Per-model averages that the paper prints for its three benchmarks (appendix, tables of model averages).

The averages are acceptance values for the remote sources, targets for `rescale_mean_cost`, and the means of
the demo.
"""

from typing import NamedTuple


class PublishedModel(NamedTuple):
    """One row of the paper's table of averages."""

    name: str  #: as the paper prints it
    source_name: str  #: as the data source spells it
    score: float  #: mean score, printed to three decimals
    cost: float  #: mean cost per query in USD, printed to 1e-7


_ROWS: dict[str, tuple[tuple[str, str, float, float], ...]] = {
    "routerbench": (
        ("gpt-3.5-turbo-1106", "gpt-3.5-turbo-1106", 0.619, 2.420e-4),
        ("claude-instant-v1", "claude-instant-v1", 0.598, 2.311e-4),
        ("claude-v1", "claude-v1", 0.630, 21.233e-4),
        ("claude-v2", "claude-v2", 0.636, 24.009e-4),
        ("gpt-4-1106-preview", "gpt-4-1106-preview", 0.781, 32.495e-4),
        ("meta_llama-2-70b-chat", "meta/llama-2-70b-chat", 0.328, 2.016e-4),
        ("mistralai_mixtral-8x7b-chat", "mistralai/mixtral-8x7b-chat", 0.547, 1.340e-4),
        ("zero-one-ai_Yi-34B-Chat", "zero-one-ai/Yi-34B-Chat", 0.647, 1.846e-4),
        ("WizardLM_WizardLM-13B-V1.2", "WizardLM/WizardLM-13B-V1.2", 0.431, 0.726e-4),
        ("meta_code-llama-instruct-34b-chat", "meta/code-llama-instruct-34b-chat", 0.202, 1.714e-4),
        ("mistralai_mistral-7b-chat", "mistralai/mistral-7b-chat", 0.306, 0.456e-4),
    ),
    "sprout": (
        ("claude-3-5-sonnet-v1", "aws-claude-3-5-sonnet-v1", 0.829, 76.614e-4),
        ("titan-text-premier-v1", "aws-titan-text-premier-v1", 0.581, 5.659e-4),
        ("openai-gpt-4o", "openai-gpt-4o", 0.845, 49.355e-4),
        ("openai-gpt-4o-mini", "openai-gpt-4o-mini", 0.808, 3.406e-4),
        ("granite-3-2b-instruct", "wxai-granite-3-2b-instruct-8k-max-tokens", 0.555, 0.848e-4),
        ("granite-3-8b-instruct", "wxai-granite-3-8b-instruct-8k-max-tokens", 0.660, 1.502e-4),
        ("llama-3-1-70b-instruct", "wxai-llama-3-1-70b-instruct", 0.810, 7.205e-4),
        ("llama-3-1-8b-instruct", "wxai-llama-3-1-8b-instruct", 0.690, 2.438e-4),
        ("llama-3-2-1b-instruct", "wxai-llama-3-2-1b-instruct", 0.462, 0.662e-4),
        ("llama-3-2-3b-instruct", "wxai-llama-3-2-3b-instruct", 0.632, 0.644e-4),
        ("llama-3-3-70b-instruct", "wxai-llama-3-3-70b-instruct", 0.806, 5.524e-4),
        ("llama-3-405b-instruct", "wxai-llama-3-405b-instruct", 0.776, 20.180e-4),
        ("mixtral-8x7b-instruct", "wxai-mixtral-8x7b-instruct-v01", 0.618, 3.743e-4),
    ),
    "openllm": (
        ("Yi-34B-Chat", "01-ai/Yi-34B-Chat", 0.421, 6.375e-4),
        ("Nous-Hermes-2-Mixtral-8x7B-DPO", "NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", 0.401, 4.926e-4),
        ("QwQ-32B-Preview", "Qwen/QwQ-32B-Preview", 0.552, 8.904e-4),
        ("Qwen2-72B-Instruct", "Qwen/Qwen2-72B-Instruct", 0.559, 6.678e-4),
        ("Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-72B-Instruct", 0.557, 8.904e-4),
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 0.423, 2.226e-4),
        ("WizardLM-2-8x22B", "alpindale/WizardLM-2-8x22B", 0.488, 9.852e-4),
        ("deepseek-llm-67b-chat", "deepseek-ai/deepseek-llm-67b-chat", 0.408, 7.049e-4),
        ("gemma-2-27b-it", "google/gemma-2-27b-it", 0.466, 6.132e-4),
        ("gemma-2-9b-it", "google/gemma-2-9b-it", 0.420, 2.300e-4),
        ("gemma-2b-it", "google/gemma-2b-it", 0.191, 0.767e-4),
        ("Llama-2-13b-chat-hf", "meta-llama/Llama-2-13b-chat-hf", 0.228, 2.472e-4),
        ("Meta-Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B-Instruct", 0.547, 6.442e-4),
        ("Mistral-7B-Instruct-v0.1", "mistralai/Mistral-7B-Instruct-v0.1", 0.258, 1.642e-4),
        ("Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.2", 0.308, 1.642e-4),
        ("Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3", 0.335, 1.642e-4),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1", 0.383, 4.927e-4),
        ("Llama-3.1-Nemotron-70B-Instruct-HF", "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", 0.500, 6.442e-4),
    ),
}
PUBLISHED = {name: tuple(PublishedModel(*row) for row in rows) for name, rows in _ROWS.items()}


def published_means(benchmark: str, arms: list[str]) -> dict[str, PublishedModel]:
    """Return {arm: the paper's row} for the arms that the paper lists, in its spelling or that of the source.

    Other arms are left out.

    Raises:
        KeyError: the benchmark is not in `PUBLISHED`.
    """
    rows = {name: row for row in PUBLISHED[benchmark] for name in (row.name, row.source_name)}
    return {arm: rows[arm] for arm in arms if arm in rows}
