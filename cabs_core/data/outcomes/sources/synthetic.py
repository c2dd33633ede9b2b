"""The synthetic demo: generated outcomes with the paper's RouterBench models, mean scores and mean costs.

Nothing here is a measurement of those models. Means per model are the published ones; everything else (which
model is good at what, how hard a prompt is, how outcomes correlate) is invented, so that the whole chain can
be tried without a network. An item-response model with correlated skills produces the scores:

    logit_qj = skill_j . load_family + topic effects - slope_j * difficulty
               + hidden_q + hidden_{q, vendor} + b_j

where `hidden` is what the prompt's text does not tell (it correlates the models on a query beyond the text),
and b_j makes the mean score of model j the published one.
"""

import numpy as np

from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.outcomes.published import PUBLISHED
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.sources.demo_prompts import FAMILIES, generate_prompts, topic_count
from cabs_core.data.outcomes.table import text_array
from cabs_core.data.pool_files.table import SyntheticSource

#: invented relative strengths (math, code, knowledge, language), vendor, and length of answers
_TRAITS = {
    "gpt-3.5-turbo-1106": ((0.3, 0.6, 0.0, -0.1), "openai", 0.9),
    "claude-instant-v1": ((0.1, 0.0, 0.1, 0.5), "anthropic", 1.0),
    "claude-v1": ((0.1, -0.2, 0.3, 0.6), "anthropic", 1.1),
    "claude-v2": ((0.5, 0.7, -0.1, -0.6), "anthropic", 1.3),
    "gpt-4-1106-preview": ((0.8, 0.6, 0.4, -0.2), "openai", 1.2),
    "meta_llama-2-70b-chat": ((-0.6, -0.5, 0.4, 0.6), "open", 1.3),
    "mistralai_mixtral-8x7b-chat": ((0.5, 0.2, 0.1, -0.3), "open", 1.0),
    "zero-one-ai_Yi-34B-Chat": ((-0.5, -0.8, 0.8, 0.5), "open", 1.0),
    "WizardLM_WizardLM-13B-V1.2": ((-0.3, -0.4, 0.1, 0.8), "open", 1.1),
    "meta_code-llama-instruct-34b-chat": ((0.3, 1.8, -0.9, -0.6), "open", 0.8),
    "mistralai_mistral-7b-chat": ((-0.1, 0.3, -0.1, 0.1), "open", 0.8),
}
_SKILL_WEIGHT = 1.3
_TOPIC_SD = 0.35
_TOPIC_ARM_SD = 0.45
_HIDDEN_SD = 1.4
_HIDDEN_VENDOR_SD = 0.5


def synthetic_raw(source: SyntheticSource) -> RawOutcomes:
    """Return the outcomes of eleven models on `source.queries` generated prompts.

    The outcomes depend on `source.queries` and `source.seed` alone.
    """
    rows = PUBLISHED["routerbench"]
    arms = [row.name for row in rows]
    n = source.queries
    k = len(arms)
    streams = [np.random.default_rng([source.seed, purpose]) for purpose in range(5)]
    table = generate_prompts(n, streams[0])
    loads = np.array([family.loads for family in FAMILIES])
    skills = np.array([_TRAITS[arm][0] for arm in arms])
    vendors, vendor = np.unique([_TRAITS[arm][1] for arm in arms], return_inverse=True)

    world = streams[1]
    topic_effect = _TOPIC_SD * world.standard_normal(topic_count())[:, None]
    topic_effect = topic_effect + _TOPIC_ARM_SD * world.standard_normal((topic_count(), k))
    slope = 0.9 + 0.15 * world.standard_normal(k)
    hidden = _HIDDEN_SD * streams[2].standard_normal(n)[:, None]
    hidden = hidden + _HIDDEN_VENDOR_SD * streams[2].standard_normal((n, len(vendors)))[:, vendor]
    logits = _SKILL_WEIGHT * loads[table.family] @ skills.T + topic_effect[table.topic]
    logits = logits - slope * table.difficulty[:, None] + hidden
    graded = np.array([family.graded for family in FAMILIES])[table.family]
    noise = streams[3].logistic(size=(n, k))
    scores = np.column_stack(
        [_calibrated(logits[:, j] + noise[:, j], graded, rows[j].score) for j in range(k)]
    )

    lengths = streams[4]
    n_input = np.array([max(4, round(len(p) / BYTES_A_TOKEN)) for p in table.prompts], dtype=np.float64)
    typical = np.array([family.output_tokens for family in FAMILIES])[table.family]
    verbosity = np.array([_TRAITS[arm][2] for arm in arms])
    common = lengths.normal(0, 0.25, n)[:, None]
    n_output = typical[:, None] * verbosity * np.exp(common + lengths.normal(0, 0.2, (n, k)))
    n_output = np.maximum(1, np.round(n_output))
    costs = n_input[:, None] + 2.0 * n_output
    costs *= np.array([row.cost for row in rows]) / costs.mean(axis=0)
    return RawOutcomes(
        query_ids=text_array([f"demo.{i:05d}" for i in range(n)]),
        prompts=table.prompts,
        tasks=text_array([FAMILIES[f].name for f in table.family]),
        arms=arms,
        scores=scores,
        costs=costs,
        input_tokens=np.repeat(n_input[:, None], k, axis=1),
        output_tokens=n_output,
        origin=f"synthetic source (seed {source.seed})",
        report={"rows_read": n * k, "synthetic": True},
    )


def _calibrated(latent: np.ndarray, graded: np.ndarray, mean: float) -> np.ndarray:
    """Return scores whose mean is `mean`, or the next larger mean that n scores can have.

    The scores come from the latent values, to which one offset is added for all prompts.

    Args:
        latent: logits with noise, `[n]`.
        graded: bool `[n]`, True for scores in quarters instead of 0 or 1.
        mean: wanted mean score.
    """

    def scores(offset: float) -> np.ndarray:
        shifted = latent + offset
        quarters = np.round(4 / (1 + np.exp(-shifted))) / 4
        return np.where(graded, quarters, (shifted > 0).astype(np.float64))

    low = -20.0
    high = 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if scores(middle).mean() < mean:
            low = middle
        else:
            high = middle
    return scores(high)
