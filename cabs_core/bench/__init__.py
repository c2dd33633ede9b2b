"""Benchmarks against peers and measurements of this project: `cabs bench NAME` runs `main` of the module NAME."""
