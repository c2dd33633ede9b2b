"""Who decides: the paper's policies, those of the field, and what they are made of.

`policies` decide and learn, `predictors` and `oracles` are fitted before, `solver` has the exploration
program, `graph` and `regression` are parts of both, `problem` has the arrays of a replay. Nothing here
replays, or writes a router. Public: `Policy`, `SafePolicy`, `Request`, `Decision`, `build_policy`,
`load_policy`, `ReplayProblem`, `problems_from_arrays`, `synthetic_problem`, `solve_exploration`.
"""
