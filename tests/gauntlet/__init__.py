"""The gauntlet: clients, attackers and failures, played against servers that really run.

What one process can show is tested in `tests/server`.

    python -m tests.gauntlet [--only WORD] [--short]

A behaviour is a function with a docstring "what happens -> what is expected"; it returns whether that was
seen, and what was seen (`play.behaviour`). Modules are themes. `environment` makes the virtual environment
with the clients, `stage` what behaviours need: servers before a stand-in upstream. `--short` plays what the
extra dev suffices for.
"""
