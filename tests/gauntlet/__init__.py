"""The gauntlet: everything that attacks the project or kills it while it works.

Three parts share this folder:

    families, runner, homes   probes: absurd files and disturbed runs, against the promises of SECURITY.md.
                              A probe runs in a forked process with a time limit, so a crash or a hang counts.
    stage, attacker, attacks  clients, attackers and failing providers, played against servers that run
    kills, test_*_runs        kill -9 and signals sent to servers, to `cabs run` and to Dagster

    make gauntlet             servers and kills, with the attacks and Anthropic's client
    make probes               every family of probes, full counts, two at once
    python -m tests.gauntlet pool_files outcome_tables --count 500
    python -m tests.gauntlet --quick                   the part of the probes that the test suite runs
    python -m tests.gauntlet --probe pool_files:17 --seed 3   one probe again, in this process, for a debugger

A family is a module of `families`; `runner.Family` says what the module defines, and a new file there is
found by itself. The attacks take ten minutes and need a machine with nothing else to do; `make test` and
`make test-slow` run the rest. Behaviour that one process can show is tested in `tests/server`.
"""
