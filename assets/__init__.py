"""Software-defined assets: one module for each part of the chain, thin shells over
`cabs_core.pipeline.stages`.

Installed as `cabs_assets`, so that no top-level package of a wheel is called `assets`. Put together in
`cabs_dagster.build`.
"""
