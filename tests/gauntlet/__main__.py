"""`python -m tests.gauntlet` runs the probes; the package says how."""

import os

# before NumPy is imported: forked children must not inherit busy thread pools
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

if __name__ == "__main__":
    from .runner import main

    raise SystemExit(main())
