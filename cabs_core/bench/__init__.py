"""Benchmarks against peers, as ratios in one run. One module a subject, each with `main(json_path, quick=False)`."""
