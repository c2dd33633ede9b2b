"""The newest fifth of the prompts: a world that drifts is found, and one that does not gives no alarm."""

import numpy as np

from cabs_core.evaluation.answer import Decisions, Newest, ScoredTable, newest_fifth

N = 500


def made(seed: int, lost: float = 0.0) -> ScoredTable:
    """`mid` is as good as `big`, but for `lost` on the newest fifth of the prompts."""
    rng = np.random.default_rng(seed)
    right = np.full((N, 2), 0.85)
    right[int(0.8 * N) :, 1] -= lost
    hard = np.where(rng.random(N)[:, None] < 0.8, rng.random(N)[:, None], rng.random((N, 2)))
    costs = np.full((N, 2), [0.009, 0.003])
    return ScoredTable(
        ("big", "mid"), (hard < right).astype(float), costs, np.array(["a"] * N), np.arange(N), 0
    )


def compared(table: ScoredTable, times: np.ndarray) -> Newest | None:
    return newest_fifth(table, times, "switch", Decisions("mid", table.single(1)))


def test_a_model_that_fails_on_the_newest_prompts_gives_another_answer() -> None:
    found = compared(made(0, lost=0.4), np.arange(N))
    assert found is not None and found.differs and found.high < 0
    assert (found.prompts, found.older_prompts, found.since) == (100, 400, 400.0)
    assert found.change == found.difference - found.older_difference


def test_a_world_without_drift_gives_a_false_alarm_in_at_most_a_twentieth_of_tables() -> None:
    found = [compared(made(seed), np.arange(N)) for seed in range(60)]
    assert sum(one is not None and one.differs for one in found) <= 3
    assert all(one is not None and one.low < one.change < one.high for one in found)


def test_prompts_without_a_time_count_for_neither_part() -> None:
    times = np.arange(N, dtype=float)
    times[:100] = np.nan
    found = compared(made(0), times)
    assert found is not None and found.prompts + found.older_prompts == N - 100


def test_nothing_is_said_if_most_prompts_have_one_time_or_too_few_are_independent() -> None:
    assert compared(made(0), np.zeros(N)) is None
    assert compared(made(0), np.full(N, np.nan)) is None
    few = made(0)
    alike = ScoredTable(few.models, few.scores, few.costs, few.tasks, np.arange(N) // 10, 0)
    assert compared(alike, np.arange(N)) is None
