"""The gauntlet: clients, attackers and failures, played against servers that really run.

What one process can show is tested in `tests/server`. `stage` has what the tests need: servers before a
stand-in upstream. `make gauntlet` plays all of it, with Anthropic's package and the `attacks`, which take ten
minutes and a machine with nothing else to do; `make test-slow` plays the rest.
"""
