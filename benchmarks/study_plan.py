"""The plan of a study: its tables, conditions, policies and rhos, and the paths of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabs_core.algorithms.policies.hier_mix.policy import CORRECTIONS
from cabs_core.base.catalog.conditions import STREAM_CONDITIONS
from cabs_core.base.catalog.policies import asset_name

#: options of `hier_mix` with a less rigid anchored model: slower to leave a wrong anchor
WIDE_ANCHOR = {"anchor_level": 0.1, "anchor_slope": 0.1, "anchor_arm": 0.02}
LONG_RHOS = tuple(float(r) for r in range(0, 1001, 50))
SHORT_RHOS = (0.0, 150.0, 300.0, 400.0, 550.0, 700.0, 800.0, 900.0, 1000.0)
FEW_RHOS = (150.0, 550.0, 900.0)
#: folder -> stress condition
CONDITIONS = {
    "clean": "none",
    "shift": "task_shift",
    "severe": "severe_shift",
    "corrupted": "corrupted_oracle",
    "noisy": "noisy_oracle",
    "upgrade": "none",  # `study_problems.upgraded`
    **{name: name for name in STREAM_CONDITIONS},
}
#: conditions under which the same queries are routed as under `clean`
SAME_QUERIES = ("corrupted", "noisy", *STREAM_CONDITIONS)
POLICIES = tuple(
    """
    random best_single oracle_best knn knn@literal carrot ridge kernel_ridge avengers_pro mf mf@pair
    mirt hier_shrink guarded_knn eagle uniroute equirouter dr_policy stack pareto_bandit epsilon_greedy
    square_cb lin_ucb lin_ts lin_ucb@warm lin_ts@warm lin_ucb_full cabs_c_linear@literal
    cabs_d_linear@literal cabs_c_linear cabs_d_linear cabs_c_linear@tuned cabs_d_linear@tuned
    hier_mix hier_mix@two_models lin_ts_score cabs_c_all_arms cabs_c_tuned_warm hier_mix_wide
    """.split()
)
#: options that change what is logged, not what is played
SILENT = {
    name: {"propensity": "sampled"} for name in ("lin_ts", "lin_ts@warm", "hier_mix", "hier_mix@two_models")
}


def _weights(least: float, without: str = "") -> dict[str, Any]:
    """Return options of hier_mix with other prior weights of its corrections.

    Args:
        least: weight of every correction but the ease, which has half of it.
        without: offset of a correction that is left out; '' keeps all.
    """
    weights = {c.offset: least for c in CORRECTIONS} | {"ease": least / 2}
    corrections = [
        c.model_copy(update={"weight": weights[c.offset]}) for c in CORRECTIONS if c.offset != without
    ]
    rest = 1.0 - sum(c.weight for c in corrections)
    return {"corrections": tuple(corrections), "anchor_weight": 1.0 - least / rest}


#: policies with options, under a name of their own
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lin_ts_score": ("lin_ts", {"propensity": "sampled", "target": "score"}),
    "cabs_c_all_arms": ("cabs_c_linear", {"graph": "all", "gamma": 16.0}),
    "cabs_c_tuned_warm": ("cabs_c_linear@tuned", {"warm": 0.3}),
    "hier_mix_wide": ("hier_mix@two_models", {**WIDE_ANCHOR, "propensity": "sampled"}),
}
#: options of hier_mix that are tried one at a time, under names of their own; each is the ablation of one
#: part
HIER_SETS: dict[str, tuple[str, dict[str, Any]]] = {
    name: ("hier_mix", {**options, "propensity": "sampled"})
    for name, options in {
        **{f"hier_mix_no_{c.offset}": _weights(0.1, without=c.offset) for c in CORRECTIONS},
        "hier_mix_no_cold": {"anchor_weight": 0.9999},
        "hier_mix_least_05": _weights(0.05),
        "hier_mix_exploration_1": {"exploration": 1.0},
        "hier_mix_no_power": {"inverse_temperature": 1.0},
        "hier_mix_no_restart": {"restart": None},
        "hier_mix_changes": {"changes": 0.001},
    }.items()
}
VARIANTS |= HIER_SETS
#: (policy, reference, condition, least mean difference); None: no bound, reported only
MARGINS = (
    ("cabs_c_all_arms", "lin_ts", "clean", 0.02),
    ("cabs_c_all_arms", "lin_ts", "shift", 0.02),
    ("cabs_c_linear", "lin_ts", "clean", 0.012),
    ("hier_mix", "lin_ts", "clean", 0.03),
    ("hier_mix", "lin_ts", "shift", 0.025),
    ("hier_mix", "lin_ts", "severe", 0.02),
    ("hier_mix", "lin_ts", "corrupted", 0.01),
    ("hier_mix", "ridge", "clean", 0.0),
    ("hier_mix", "ridge", "severe", 0.0),
    ("kernel_ridge", "ridge", "clean", 0.004),
    ("hier_mix", "kernel_ridge", "clean", -0.006),
    ("hier_mix", "kernel_ridge", "shift", -0.006),
)


#: protocol `field`: the tables, smallest first, so that a first complete picture comes soon
FIELD_POOLS = (
    "llmdrift",
    "simple_evals_ru",
    "routerbench_sub3",
    "zeroeval",
    "paretobandit_k4",
    "llmrouter_dcrouter",
    "mmlu_pro_tiger",
    "openllm_lb_v2_carrot",
)
FIELD_CONDITIONS = ("clean", "shift", "corrupted", "noisy", "severe", "upgrade")
FIELD_POLICIES = tuple(
    """
    random oracle_best best_single ridge kernel_ridge lin_ts_score hier_mix hier_mix@two_models
    knn carrot avengers_pro mf mirt hier_shrink guarded_knn eagle uniroute dr_policy stack pareto_bandit
    pareto_bandit@pilot lin_ucb lin_ts lin_ts@warm cabs_c_linear cabs_d_linear cabs_c_linear@tuned
    cabs_d_linear@tuned
    """.split()
)
#: simple routers; a default policy must never be clearly worse than one of them
SIMPLE = ("best_single", "ridge", "kernel_ridge", "lin_ts_score")
#: what every policy is compared with, in every cell
REFERENCE = "kernel_ridge"
#: a cold bandit that gets the offline labels, too
WARM = "lin_ts@warm"
#: what options are chosen for and by: for each table by rehearsals of the others
CHOICE_CONDITIONS = ("clean", "shift", "corrupted", "upgrade")
CANDIDATES = ("hier_mix", "hier_mix@two_models", *HIER_SETS)
#: protocol -> (tables, conditions, split seeds, policies) where nothing else is asked for
DEFAULTS = {
    "full": (("openllm_lb_v2_carrot",), ("clean",), (0, 1, 2), POLICIES),
    "field": (FIELD_POOLS, FIELD_CONDITIONS, (0, 1, 2), FIELD_POLICIES),
    "choose": (FIELD_POOLS, CHOICE_CONDITIONS, (0,), (*SIMPLE, WARM, "hier_mix")),
}


@dataclass(frozen=True)
class Setup:
    """Settings of the problems of a study that differ from the pools. None takes the setting of the pool.

    encoder, oracle: names of the encoder and kind of the oracle. mean_cost: grand mean cost in USD of the
    pools whose rhos are not the paper's, so that one grid of rhos means the same on every table. most: test
    queries, drawn at random where a split has more. rehearsal: the test queries are left out and the others
    are split again, under the same condition: what options are chosen by.
    """

    encoder: str | None = None
    oracle: str | None = None
    mean_cost: float | None = None
    most: int | None = None
    rehearsal: bool = False


FIELD_SETUP = Setup("tfidf-svd", "ridge", 5e-4, 4000)
#: test queries of a rehearsal at most
REHEARSED = 1500


@dataclass(frozen=True)
class Plan:
    """The cells of a study: pools x conditions x split seeds x policies, each split with its rhos and
    trials.
    """

    pools: tuple[str, ...]
    conditions: tuple[str, ...]
    split_seeds: tuple[int, ...]
    policies: tuple[str, ...]
    protocol: str = "full"
    setup: Setup = Setup()

    def grid(self, split_seed: int) -> tuple[tuple[float, ...], int]:
        """Return the rhos and the number of trials of a split. Protocol `full` replays the first split at
        length.
        """
        if self.protocol == "choose":
            return FEW_RHOS, 5
        if self.protocol == "full" and split_seed == self.split_seeds[0]:
            return LONG_RHOS, 10
        return SHORT_RHOS, 5

    @property
    def shared(self) -> tuple[tuple[float, ...], int]:
        """The rhos and the number of trials that every split of the plan has. The tables are about these."""
        return self.grid(self.split_seeds[0] if len(self.split_seeds) == 1 else -1)


def cell_path(work: Path, pool: str, condition: str, split_seed: int, policy: str, rho: float) -> Path:
    """Return the path of the file of one (condition, split, policy, rho)."""
    name = policy if policy in VARIANTS else asset_name(policy)
    return work / "cells" / pool / condition / f"seed{split_seed}" / name / f"{int(rho):04d}.npz"
