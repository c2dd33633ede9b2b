"""Everything Dagster about the project: definitions, partitions, provenance, checks, sensors, the CLI.

The algorithms live in `cabs_core`, which knows nothing of Dagster; the assets themselves in `assets`.
"""
