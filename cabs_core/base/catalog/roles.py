"""Names of the policies that the project itself uses as baselines, references and defaults."""

RANDOM = "random"
BEST_SINGLE = "best_single"
#: plays the best arm of each query, which it knows: an upper bound, and no router
ORACLE_BEST = "oracle_best"
#: policies that are replayed for comparison and never deployed as a router
NO_ROUTERS = (RANDOM, BEST_SINGLE)
#: policy that cumulative regret is relative to, unless a pool file names another one
REFERENCE = "lin_ucb"
#: policy that `replay` plays, unless another one is named
PROPOSED = "cabs_d_linear"
#: policy that routes before any outcome is known (`router.cold`)
COLD_START = "pareto_bandit"
#: policies of a pool file that names none. `name@preset` is a policy with a named set of options
DEFAULT_POLICIES = (
    *(RANDOM, BEST_SINGLE, ORACLE_BEST, "knn", "ridge", "carrot", "kernel_ridge", "epsilon_greedy"),
    *("square_cb", REFERENCE, "lin_ts", "lin_ucb_full", "cabs_c_linear", PROPOSED, "hier_mix"),
    *("cabs_c_linear@literal", "cabs_d_linear@literal", "cabs_c_linear@tuned", "cabs_d_linear@tuned"),
)
