"""What `dg scaffold defs` adds in a checkout: assets, schedules, components beside those of the chain.

Loaded by `cabs_dagster.definitions`; the chain itself is in `assets/`.
"""
