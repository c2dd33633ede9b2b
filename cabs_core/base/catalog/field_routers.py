"""Records of published routers, and of predictors of this project that they are compared with."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from cabs_core.base.catalog.policy_record import PolicyRecord

_PREDICTED = "cabs_core.algorithms.policies.static:Predicted"
_NEIGHBOURS = "cabs_core.algorithms.policies.neighbours"
_DECISIONS = "cabs_core.algorithms.policies.decisions"


def static_router(name: str, path: str, title: str, description: str, **more: Any) -> PolicyRecord:
    """Record of a static router that is fitted on the train split's labels."""
    return PolicyRecord(name, "static", path, title, description, feedback="none", start="labels", **more)


def _grid(**values: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """List all combinations of values as dicts `{name: value}`, for a predictor's option `settings`."""
    return tuple(dict(zip(values, point, strict=True)) for point in product(*values.values()))


STATIC_ROUTERS = (
    static_router(
        "avengers_pro",
        f"{_NEIGHBOURS}:AvengersPro",
        "Avengers-Pro",
        "Avengers-Pro: the nearest clusters rank the models by accuracy and cost.",
        tuning={
            "clusters": (10, 25, 50, 100),
            "beta": (3.0, 9.0, 27.0),
            "top": (1, 3, 5),
            "vote": ("rank", "score"),
        },
        references=("Zhang et al. 2025, Avengers-Pro, arXiv 2508.12631",),
    ),
    static_router(
        "mf",
        _PREDICTED,
        "Matrix factorisation",
        "matrix factorisation of scores by prompt embedding and model vector.",
        presets=("default", "pair"),
        tuning={"settings": _grid(dim=(32, 128), learning_rate=(3e-4, 1e-3, 3e-3), noise=(0.0, 0.05))},
        references=(
            "Zhuang et al. 2024, EmbedLLM, arXiv 2410.02223",
            "Ong et al. 2024, RouteLLM, arXiv 2406.18665",
        ),
    ),
    static_router(
        "mirt",
        _PREDICTED,
        "MIRT",
        "multidimensional item response theory (IRT-Router).",
        tuning={
            "settings": _grid(dim=(8, 32, 64), learning_rate=(1e-3, 3e-3), weight_decay=(1e-5, 1e-4, 1e-3))
        },
        references=("Song et al. 2025, IRT-Router, arXiv 2506.01048",),
    ),
    static_router(
        "hier_shrink",
        _PREDICTED,
        "HierShrink",
        "means of small clusters shrunk to those of large ones.",
        tuning={"settings": _grid(coarse=(10, 20), fine=(100, 200), strength=(6.0, 24.0, 96.0))},
        references=("vllm-project/semantic-router, issue 3459",),
    ),
    static_router(
        "guarded_knn",
        f"{_NEIGHBOURS}:GuardedKnn",
        "Guarded kNN",
        "kNN that leaves the best single model only for a clear lead.",
        tuning={"neighbours": (20, 50, 100, 200), "z": (0.0, 0.5, 1.0, 1.64)},
        references=("experientiallabs/experiential, issue 259",),
    ),
    static_router(
        "eagle",
        "cabs_core.algorithms.policies.eagle:Eagle",
        "Eagle",
        "Eagle: half global, half local Elo ratings.",
        tuning={
            "neighbours": (20, 50, 100),
            "k_factor": (4.0, 16.0, 32.0),
            "global_share": (0.25, 0.5, 0.75),
        },
        references=("Zhao et al. 2024, Eagle, arXiv 2409.15518",),
    ),
    static_router(
        "equirouter",
        f"{_DECISIONS}:EquiRouter",
        "EquiRouter",
        "EquiRouter's loss: learns how the models rank on a prompt, the cheaper first where they tie.",
        presets=("default", "literal"),
        references=("Lai and Ye 2026, When Routing Collapses, arXiv 2602.03478",),
    ),
    static_router(
        "dr_policy",
        f"{_DECISIONS}:DrPolicy",
        "DR policy learning",
        "classification by least regret on doubly robust utilities (causal LLM routing).",
        references=("Tsiourvas et al. 2025, Causal LLM Routing, arXiv 2505.16037",),
    ),
    static_router(
        "uniroute",
        "cabs_core.algorithms.policies.uniroute:UniRoute",
        "UniRoute",
        "UniRoute: models as error vectors on clusters, so that later ones need few outcomes and no "
        "training.",
        tuning={"settings": _grid(clusters=(10, 25, 50, 100))},
        references=("Jitkrittum et al. 2025, Universal model routing, arXiv 2502.08773",),
    ),
    static_router(
        "stack",
        _PREDICTED,
        "Stack",
        "an ensemble of static predictors, weighted per model by cross-fitted stacking.",
        tuning={"settings": _grid(pull=(100.0, 500.0, 2000.0), folds=(3, 5))},
        references=("Wolpert 1992: stacked generalization",),
    ),
)
PARETO_BANDIT = PolicyRecord(
    "pareto_bandit",
    family="bandit",
    path="cabs_core.algorithms.policies.pareto_bandit:ParetoBandit",
    title="ParetoBandit",
    description="ParetoBandit: LinUCB with an offline prior and forgetting (PILOT: preset `pilot`, without "
    "forgetting).",
    start="labels",
    presets=("default", "pilot", "cold"),
    preset_starts={"cold": "nothing"},
    tuning={
        "alpha": (0.01, 0.05, 0.2),
        "gamma": (0.994, 0.997, 1.0),
        "prior_rounds": (300.0, 1163.9, 5000.0),
    },
    references=("the package paretobandit 0.1.1", "Panda et al. 2025, PILOT, arXiv 2508.21141"),
)
