"""The SQL models that tables and figures are made from, so that a page can name their files."""

_ROUNDS = ("stg_replay_rounds",)
_BOARD = ("mart_policy_leaderboard",)

#: {key of a table or figure: names of SQL models}
MODELS: dict[str, tuple[str, ...]] = {
    "arms": ("mart_arm_shares", "mart_routing_behaviour"),
    "budgets": _ROUNDS,
    "calibration": _ROUNDS,
    "coupled": ("mart_coupled_vs_decoupled",),
    "efficiency": ("mart_aiq", "mart_cost_savings", *_BOARD),
    "encoders": ("mart_encoder_robustness",),
    "estimated": ("mart_off_policy",),
    "differences": ("mart_off_policy",),
    "frontiers": ("mart_pareto_frontier", *_ROUNDS),
    "gaps": _BOARD,
    "latency": ("mart_decision_latency",),
    "leaderboard": _BOARD,
    "logged": ("mart_off_policy",),
    "money": ("mart_off_policy",),
    "oracle_arms": ("mart_oracle_quality",),
    "oracles": ("mart_oracle_quality",),
    "overview": ("mart_utility_by_regime",),
    "pools": (*_BOARD, "mart_pairwise_differences"),
    "presets": ("mart_presets",),
    "propensities": _ROUNDS,
    "recovery": ("mart_regret_curves",),
    "regret": ("mart_regret_curves",),
    "rho": ("mart_utility_by_rho",),
    "shares": _ROUNDS,
    "solver": ("mart_solver_certificates",),
    "tasks": _ROUNDS,
    "tuning": ("mart_tuning",),
    "utility": ("mart_utility_by_regime", *_BOARD),
}


def files_of(key: str) -> list[str]:
    """Return the paths in the repository of the SQL files that a table or figure is made from.

    The SQL models are marts, or the staging model `stg_replay_rounds`. The list is empty for a key that is
    not in `MODELS`.

    Args:
        key: name of the table or figure.
    """
    return [
        f"dbt_like_sql/{'staging' if name.startswith('stg_') else 'marts'}/{name}.sql"
        for name in MODELS.get(key, ())
    ]
