"""Software-defined assets: one module a stage, thin shells over `cabs_core`. Assembled in `cabs_dagster.build`."""
