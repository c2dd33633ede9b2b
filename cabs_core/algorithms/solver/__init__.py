"""The exploration program of CABS, solved exactly, with proof, in microseconds.

Every round of CABS minimises, over distributions p on K arms (paper, theorem `convex_method`, equation 5),

    F(p) = p.f + max_a [ (1/gamma) sum_j (p_j - 1{j=a})^2 / W_j - f_a ],      W = G'p,

with predicted losses f (any reals), exploration parameter gamma > 0 and feedback graph G, G[i, j] = 1 when
playing i reveals j (weights in (0, 1] for expected edges; the diagonal is positive).

From Python:

    solution = solve_exploration(losses, graph, gamma, tol=1e-8)
    solution.p, solution.objective, solution.gap, solution.iterations, solution.certified
    batch = solve_exploration_batch(losses, graphs, gammas, tol)     # the same with a leading axis B

From compiled code (`api.make_workspace`, `workspace.solve_kernel`):

    workspace = make_workspace(K)                    # in Python: picks and compiles the kernel for this K
    ...
    @njit(nogil=True, cache=True)
    def my_replay(..., workspace, p):                # p: float64 [K]
        gap, iterations, certified = solve_kernel(f, G, gamma, tol, workspace, p)

The workspace carries the address of the kernel for its K (`workspace`), so the caller compiles once for all K
and can be cached on disk. It serves one thread at a time, in the process that made it. Nothing allocates,
takes the GIL or raises; count rounds that were not certified and report them.

Up to 48 arms a kernel compiled for that K runs (vectors of eight arms). Above that, the program is solved on
a few arms with p = 0 for the others, and certified for all. A slower, more careful kernel on LAPACK takes
over whatever is not certified; it uses BLAS threads, so limit them to one when several solves run at once.

`gap` bounds F(p) - F* and is computed from (p, q) alone, independently of the iteration that found them
(`program.certificate` is the same formula in NumPy). tol is in the units of the losses: 1e-8 by default;
1e-6 is enough for sweeps.
"""
