"""An OpenAI-compatible server in front of the models that a router chooses from.

    cabs serve --router router --upstreams upstreams.yaml

`upstreams` is the file that says where each model is called, `app` the application with its endpoints
(`completions`, `decisions`, `probes`; `guard` stands before each), `forwarding` one call with its attempts,
`keeper` what runs beside requests (following the log, checkpoints, new bundles), `stand_in` a provider for
tests and for trying it out, `litellm` the same inside LiteLLM. Nothing in `cabs_core` imports any of it.
"""
