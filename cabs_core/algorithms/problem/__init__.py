"""The replay problem: the arrays of a replay, their files, and synthetic ones for tests and benchmarks."""

from cabs_core.algorithms.problem.replay_problem import ReplayProblem

__all__ = ["ReplayProblem"]
