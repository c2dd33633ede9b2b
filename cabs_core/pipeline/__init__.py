"""What is made when, and from what.

`artifacts` has the stages, their freshness and the store, `stages` what each does, `commands` those that need
no orchestrator; the modules here are pages, their server and what stands of a pool. Assets, jobs and the
command `cabs` are shells around it. Public: `check_policy`.
"""
