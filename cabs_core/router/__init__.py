"""A router for deployment: the policy that won a replay, from a prompt's text to a decision.

    from cabs_core import Router
    router = Router.load("router", log="router.events.sqlite")
    decision = router.route("prompt text")                   # .id .model .propensity .scores .costs
    router.feedback(decision.id, score=1.0, cost=2e-4)       # now, later, twice, or never

`build` makes bundles from a pool's artifacts, `checks` compares them with the replay and with each other,
`learner` applies the log (`data.events`) to a policy, `promotion` replaces a bundle and takes it back, and
`policies_on_log` and `compare_on_log` estimate from a log what other policies would have earned.
`cabs_server` listens for requests.
"""
