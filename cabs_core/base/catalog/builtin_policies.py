"""The policies of this package, in the order of reports. A new one is a module and a record here."""

from typing import Any

from cabs_core.base.catalog.field_routers import PARETO_BANDIT, STATIC_ROUTERS, static_router
from cabs_core.base.catalog.policy_record import PolicyRecord

_STATIC = "cabs_core.algorithms.policies.static"
_BANDITS = "cabs_core.algorithms.policies.linear.bandits:LinearBandit"
_PENALTY = (3.0, 10.0, 30.0)
_TARGET = ("utility", "score")
_RATES = (3e-4, 1e-3, 3e-3)
_CABS_C = ("practical", "literal", "tuned", "published")
_CABS_D = (*_CABS_C, "lin_ucb_expert")


def _linear_bandit(
    name: str, title: str, description: str, path: str = _BANDITS, **more: Any
) -> PolicyRecord:
    """Record of a linear bandit, which starts cold or from the train split."""
    warm: dict[str, Any] = {"presets": ("default", "warm"), "preset_starts": {"warm": "labels"}}
    return PolicyRecord(name, "bandit", path, title, description, **warm, **more)


BUILT_IN = (
    PolicyRecord(
        "random",
        family="static",
        path="cabs_core.algorithms.policies.uniform:RandomPolicy",
        title="Random",
        description="the uniformly random arm.",
        feedback="none",
        style=(8, "2 3", 0),
    ),
    static_router(
        "best_single",
        f"{_STATIC}:BestSingle",
        "Best single model",
        "the one arm that did best on the train split at this rho.",
        style=(9, "6 3", 7),
    ),
    PolicyRecord(
        "oracle_best",
        family="static",
        path=f"{_STATIC}:OracleBest",
        title="Best arm per query",
        description="the best arm of each query: an upper bound, not a router.",
        feedback="full",
        style=(9, "8 3 2 3", 3),
    ),
    static_router(
        "knn",
        f"{_STATIC}:Predicted",
        "kNN",
        "the k-nearest-neighbour router fitted on the train split.",
        presets=("default", "literal"),
        references=("Hu et al. 2024, RouterBench: the kNN router",),
        style=(5, "6 3", 6),
    ),
    static_router(
        "ridge",
        f"{_STATIC}:Predicted",
        "Ridge",
        "the ridge regression router fitted on the train split.",
        style=(2, "6 3", 4),
    ),
    static_router(
        "carrot",
        f"{_STATIC}:Carrot",
        "CARROT",
        "the CARROT router: accuracy and cost heads of the oracle.",
        references=("Somerstep et al. 2025, CARROT: a cost aware rate optimal router",),
        style=(4, "6 3", 5),
    ),
    static_router(
        "kernel_ridge",
        f"{_STATIC}:Predicted",
        "Kernel ridge",
        "the kernel ridge regression router (Nystrom features, rotated labels, stacked).",
        references=("Williams and Seeger 2001: the Nystrom approximation",),
        style=(3, "", 3),
    ),
    *STATIC_ROUTERS,
    _linear_bandit(
        "epsilon_greedy",
        "ε-greedy",
        "epsilon-greedy with disjoint ridge regressions.",
        tuning={"eps0": (0.05, 0.1, 0.2, 0.5, 1.0), "penalty": _PENALTY, "target": _TARGET},
        references=("Langford and Zhang 2007: the epoch-greedy algorithm",),
        style=(7, "", 0),
        headline=True,
    ),
    _linear_bandit(
        "square_cb",
        "SquareCB",
        "SquareCB: inverse gap weighting over a regression oracle.",
        tuning={"gamma": (16.0, 32.0, 64.0, 128.0, 256.0), "penalty": _PENALTY, "target": _TARGET},
        references=("Foster and Rakhlin 2020: Beyond UCB",),
        style=(6, "6 3", 1),
    ),
    _linear_bandit(
        "lin_ucb",
        "LinUCB",
        "disjoint LinUCB; the reference of relative regret.",
        tuning={"alpha": (0.05, 0.1, 0.2, 0.4, 0.8), "penalty": _PENALTY, "target": _TARGET},
        references=("Li et al. 2010: a contextual-bandit approach to news article recommendation",),
        style=(8, "", 6),
        headline=True,
    ),
    _linear_bandit(
        "lin_ts",
        "LinTS",
        "linear Thompson sampling.",
        tuning={"v": (0.03, 0.05, 0.1, 0.2, 0.4), "penalty": _PENALTY, "target": _TARGET},
        references=("Agrawal and Goyal 2013: Thompson sampling with linear payoffs",),
        style=(2, "", 7),
        headline=True,
    ),
    _linear_bandit(
        "lin_ucb_full",
        "LinUCB, full feedback",
        "LinUCB's learner with the rewards of all arms observed.",
        path="cabs_core.algorithms.policies.linear.full_feedback:FullFeedback",
        feedback="full",
        tuning={"penalty": (1.0, 3.0, 10.0, 30.0, 100.0, 300.0), "target": _TARGET},
        style=(9, "2 3", 1),
        headline=True,
        bandit="lin_ucb",
    ),
    PARETO_BANDIT,
    PolicyRecord(
        "cabs_c_linear",
        family="cabs",
        path="cabs_core.algorithms.policies.cabs:CabsC",
        title="CABS-C linear",
        description="CABS-C: surrogate rewards on a feedback graph, linear learner.",
        start="surrogates",
        presets=_CABS_C,
        tuning={
            "gamma": (4.0, 16.0, 64.0, 256.0),
            "penalty": _PENALTY,
            "target": _TARGET,
            "bias": ("none", "realised"),
            "graph": ("all", "sigmoid_similarity"),
            "pseudo_weight": (1.0, 0.5),
        },
        references=("the paper, Algorithm 1",),
        style=(5, "", 3),
        headline=True,
    ),
    PolicyRecord(
        "cabs_d_linear",
        family="cabs",
        path="cabs_core.algorithms.policies.cabs:CabsD",
        title="CABS-D linear",
        description="CABS-D: a decoupled mixture of a standard and a surrogate expert, linear.",
        start="surrogates",
        presets=_CABS_D,
        tuning={
            "eta": (0.01, 0.03, 0.1, 0.3),
            "meta_loss": ("realised", "doubly_robust"),
            "penalty": _PENALTY,
            "target": _TARGET,
            "experts": (
                (("lin_ts", {}), ("cabs_c", {})),
                (("lin_ts", {}), ("cabs_c", {"gamma": 64.0})),
                (("square_cb", {}), ("cabs_c", {})),
            ),
        },
        references=("the paper, Algorithm 2",),
        style=(0, "", 2),
        headline=True,
        experts=("cabs_c_linear", "lin_ts"),
    ),
    PolicyRecord(
        "hier_mix",
        family="mix",
        path="cabs_core.algorithms.policies.hier_mix:HierMix",
        title="Hier-mix",
        description="hier_mix: hierarchical Bayesian linear models, anchored offline to several degrees.",
        start="labels",
        presets=("default", "two_models"),
        tuning={
            "exploration": (0.15, 0.3, 0.6),
            "anchor_weight": (0.6, 0.9, 0.97),
            "anchor_context": (0.05, 0.1, 0.2),
        },
        style=(1, "", 0),
        headline=True,
    ),
    PolicyRecord(
        "neural_ucb",
        family="neural",
        path="cabs_core.algorithms.policies.neural.policy:NeuralUCB",
        title="NeuralUCB",
        description="NeuralUCB: a small network, optimism from its last layer.",
        tuning={"alpha": (0.01, 0.03, 0.1, 0.3, 1.0), "learning_rate": _RATES, "target": _TARGET},
        references=("Zhou et al. 2020: neural contextual bandits with UCB-based exploration",),
        style=(7, "6 3", 2),
    ),
    PolicyRecord(
        "neural_ucb_full",
        family="neural",
        path="cabs_core.algorithms.policies.neural.policy:NeuralUCB",
        title="NeuralUCB, full feedback",
        description="NeuralUCB's learner with the rewards of all arms observed.",
        feedback="full",
        tuning={"learning_rate": _RATES, "penalty": (1e-4, 1e-3, 1e-2), "target": _TARGET},
        style=(0, "2 3", 2),
        bandit="neural_ucb",
    ),
    PolicyRecord(
        "cabs_c_neural",
        family="neural",
        path="cabs_core.algorithms.policies.neural.cabs:CabsCNeural",
        title="CABS-C neural",
        description="CABS-C with a neural learner.",
        start="surrogates",
        presets=_CABS_C,
        tuning={
            "gamma": (4.0, 16.0, 64.0, 256.0),
            "target": _TARGET,
            "bias": ("none", "realised"),
            "graph": ("all", "sigmoid_similarity"),
            "learning_rate": _RATES,
        },
        references=("the paper, Algorithm 1",),
        style=(3, "6 3", 5),
        headline=True,
    ),
    PolicyRecord(
        "cabs_d_neural",
        family="neural",
        path="cabs_core.algorithms.policies.neural.cabs:CabsDNeural",
        title="CABS-D neural",
        description="CABS-D with neural experts.",
        start="surrogates",
        presets=_CABS_D,
        tuning={
            "eta": (0.01, 0.03, 0.1, 0.3),
            "meta_loss": ("realised", "doubly_robust"),
            "target": _TARGET,
            "learning_rate": _RATES,
        },
        references=("the paper, Algorithm 2",),
        style=(6, "", 4),
        headline=True,
        experts=("cabs_c_neural", "neural_ucb"),
    ),
)
