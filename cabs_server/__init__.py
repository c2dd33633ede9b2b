"""An OpenAI-compatible server in front of the models that a router chooses from.

    cabs serve --router router --upstreams upstreams.yaml

`upstreams` is the file that says where each model is called, `app` the application with its endpoints
(`completions`, `decisions`, `probes`; `guard` stands before each), `forwarding` one request with its attempts
(`candidates`, `attempt`), `keeper` the work beside requests (following the log, checkpoints, new bundles),
`limits` what one request, key and upstream may take, `litellm` the same inside LiteLLM. Nothing in
`cabs_core` imports any of it.
"""
