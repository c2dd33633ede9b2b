"""The replay problem: the arrays of a replay, their files, and synthetic ones for tests and benchmarks."""
