"""The chain from a pool file to its report: stages, their inputs, and the commands that make them.

`artifacts` has the stages, their freshness and the store, `stages` the work of each stage, and `commands` the
commands that need no orchestrator. The modules here are pages, their server and the standing of a pool.
Assets, jobs and the command `cabs` are shells around this package. Public: `check_policy`.
"""
