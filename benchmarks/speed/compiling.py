"""Time of compiling the loops of policies into numba's cache, in processes side by side, as a first run does.

    NUMBA_CACHE_DIR=empty-folder python -m benchmarks.speed.compiling

Without NUMBA_CACHE_DIR the usual cache is filled, which is what `make kernels` does before the tests, because
tests that start at once would each compile the loops. If most loops are in the cache, nothing is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.script import Script, write_figures
from cabs_core.base.catalog.policies import all_policies
from cabs_core.evaluation.replay.compile_ahead import as_compiled, start_compiling


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile the loops of the policies, and print how many seconds passed until the last one was ready."""
    parser = Script(__file__, __doc__)
    parser.add_argument(
        "--policies", nargs="+", default=list(all_policies()), metavar="NAME", help="default: all policies"
    )
    asked = parser.parse_args(arguments)
    start = time.perf_counter()
    processes = start_compiling(asked.policies)
    compiled = list(as_compiled(asked.policies))
    seconds = time.perf_counter() - start
    if processes:
        print(f"{len(compiled)} policies compiled in {seconds:.1f} s by {processes} processes")
    else:
        print("nothing compiled: most loops are in the cache, or a second process would have no work")
    write_figures({"policies": len(compiled), "processes": processes, "seconds": seconds}, asked.json)


if __name__ == "__main__":
    main()
