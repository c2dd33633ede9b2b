"""A router before anything was measured, from models and their prices alone.

The prior says that dearer models are better: ten times the price is worth `PER_DECADE` of score, around
`MEAN`. Policy `pareto_bandit` starts from the prior as if `PRIOR_ROUNDS` calls of each model had confirmed
it, and unlearns it as scores arrive. (`hier_mix` would trust the prior for thousands of calls, since a prior
without noise looks certain.) A uniform floor of exploration keeps the log evaluable. The bundle has no
evidence, so in mode `guarded` the fallback answers until scores show that the policy earns more, and in
`shadow` always. Contexts are fitted on prompts that are made up.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.base.catalog.roles import COLD_START
from cabs_core.base.errors import RouterError
from cabs_core.base.paths import cabs_home
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.endpoints.tokens import text_tokens
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.data.outcomes import Outcomes, make_splits
from cabs_core.data.outcomes.sources.demo_prompts import generate_prompts
from cabs_core.data.outcomes.table import text_array
from cabs_core.data.pool_files import pool_from
from cabs_core.data.pool_files.rhos import grid_for_costs
from cabs_core.router.build import build_bundle
from cabs_core.router.ingredients import Ingredients
from cabs_core.router.price_prior import TYPICAL_TOKENS, price_of, prior_scores

#: Share of uniform exploration, if none is given.
EPSILON = 0.1
#: Calls of each model as which the prior counts.
PRIOR_ROUNDS = 20.0
#: Number of made-up prompts on which contexts are fitted.
_PROMPTS = 600


def build_cold(
    target: str | Path,
    upstreams: Mapping[str, Upstream],
    *,
    name: str = "cold",
    encoder: str = "all-MiniLM-L6-v2",
    rho: float | None = None,
    epsilon: float | None = None,
    mode: str = "route",
    policy: str | None = None,
) -> None:
    """Write a bundle of models of which nothing is known but their prices.

    Args:
        target: folder of the bundle.
        upstreams: {model: its endpoint, with its price}.
        name: name of the bundle's pool.
        encoder: name of the encoder, as in a pool file.
        rho: cost sensitivity, score units per USD. None takes the middle of a grid for these prices.
        epsilon: share of uniform exploration. None takes `EPSILON`.
        mode: `route`, `shadow` or `guarded`.
        policy: name of the policy. None takes the policy that starts from a prior.

    Raises:
        RouterError: there are fewer than two models, or a model has no price.
        EncoderError: there is no such encoder.
    """
    models = list(upstreams)
    if len(models) < 2:
        raise RouterError(f"the upstreams file holds {len(models)} models: a router needs two")
    prices = np.empty(len(models))
    for j, model in enumerate(models):
        try:
            prices[j] = price_of(upstreams[model])
        except RouterError as error:
            raise RouterError(f"model {model!r:.100}: {error}") from None
    texts = list(dict.fromkeys(generate_prompts(_PROMPTS, np.random.default_rng(0)).prompts))
    n = len(texts)
    tokens = np.array([text_tokens(text) for text in texts])
    costs = np.column_stack(
        [[upstreams[m].usd_of_tokens(float(t), TYPICAL_TOKENS) for t in tokens] for m in models]
    )
    ids = text_array([f"p{i}" for i in range(n)])
    tasks = text_array(["all"] * n)
    scores = np.tile(prior_scores(prices), (n, 1))
    table = Outcomes(query_ids=ids, prompts=texts, tasks=tasks, arms=models, scores=scores, costs=costs)
    grid = grid_for_costs(costs.mean(axis=0))
    settings = {
        "name": name,
        "source": {"kind": "synthetic"},
        "encoder": {"name": encoder},
        "oracle": {"kind": "ridge"},
        "models": models,
        "replay": {"rhos": sorted({*grid, *([] if rho is None else [rho])})},
        "policies": [COLD_START],
    }
    pool = pool_from(settings)
    split = make_splits(table, pool.split)
    fit = [t for t, s in zip(texts, split, strict=True) if s == "train"]
    vectors, report = embed_prompts(texts, pool.encoder, store=cabs_home() / "embeddings", fit_prompts=fit)
    oracles = train_oracles(vectors, table, split, pool.oracle, features=pool.features)
    ingredients = Ingredients(
        outcomes=table,
        split=split,
        embeddings=vectors,
        problem=build_problems(table, split, vectors, oracles, pool).__getitem__,
        oracles=lambda: oracles,
        options={COLD_START: {"prior_rounds": PRIOR_ROUNDS}},
        encoding={"identity": report.identity, "dtype": report.dtype},
        fitted_on=fit,
    )
    build_bundle(
        target,
        pool,
        ingredients,
        policy=policy or COLD_START,
        rho=rho,
        epsilon=EPSILON if epsilon is None else epsilon,
        mode=mode,
        prompts=False,
        free=[model for model in models if upstreams[model].free],
        provenance={"cold": True},
    )
