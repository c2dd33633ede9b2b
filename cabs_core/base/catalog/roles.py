"""Policies that the project itself asks for by name: baselines, references and defaults."""

RANDOM, BEST_SINGLE, ORACLE_BEST = "random", "best_single", "oracle_best"
#: replayed for comparison; nobody would deploy them as a router
NO_ROUTERS = (RANDOM, BEST_SINGLE)
#: what regret is relative to, and what `replay` plays, unless another is named
REFERENCE, PROPOSED = "lin_ucb", "cabs_d_linear"
#: what routes before there is any outcome (`router.cold`)
COLD_START = "pareto_bandit"
#: of a pool file that names none
DEFAULT_POLICIES = (
    *(RANDOM, BEST_SINGLE, ORACLE_BEST, "knn", "ridge", "carrot", "kernel_ridge", "epsilon_greedy"),
    *("square_cb", REFERENCE, "lin_ts", "lin_ucb_full", "cabs_c_linear", PROPOSED, "hier_mix"),
    *("cabs_c_linear@literal", "cabs_d_linear@literal", "cabs_c_linear@tuned", "cabs_d_linear@tuned"),
)
