"""Probes: thousands of files that no sane caller would write, and runs that are disturbed, against the
promises of SECURITY.md.

    make probes                                        every family, full counts, two at once
    python -m tests.probes pool_files outcome_tables --count 500
    python -m tests.probes --quick                     the part that the test suite runs
    python -m tests.probes --probe pool_files:17 --seed 3   one probe again, in this process, for a debugger

A family is a module of `families` (see `runner.Family` for what it defines); a new file there is found by
itself.
Every probe runs in a forked process with a time limit, so a crash or a hang is counted, not suffered.
"""
