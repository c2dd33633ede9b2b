"""What `cabs bench NAME` runs: `main` of the module NAME. Studies for the docs are in `benchmarks/` of the repository."""
