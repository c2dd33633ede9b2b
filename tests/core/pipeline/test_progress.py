"""Long work says how far it is."""

from __future__ import annotations

import pytest

from cabs_core.base.units import duration
from cabs_core.pipeline.artifacts.materialize import Options
from cabs_core.pipeline.stages import tuning
from cabs_core.pipeline.stages.progress import Progress


def test_it_speaks_after_a_few_seconds_and_then_every_ten() -> None:
    lines: list[str] = []
    times = iter([0.0, *(0.5 * i for i in range(1, 81))])
    progress = Progress(lines.append, "embedding", "prompts", clock=lambda: next(times))
    for done in range(50, 4050, 50):
        progress(done, 4000)
    assert lines[0] == "embedding: 300 of 4,000 prompts, 100 a second, about 37 s left"
    assert len(lines) == 4 and lines[-1].startswith("embedding: 3,300 of 4,000")


@pytest.mark.parametrize(("early", "bound", "most"), [(False, "about", ""), (True, "at most", "at most ")])
def test_slow_work_is_told_by_the_seconds_that_each_takes(early: bool, bound: str, most: str) -> None:
    """What it takes to begin is in the first piece: no rate is told from it."""
    lines: list[str] = []
    clock = iter([0.0, 40.0, 60.0]).__next__
    progress = Progress(lines.append, "training", "epochs", may_end_early=early, clock=clock)
    progress(1, 60)
    progress(3, 60)
    assert lines[0] == f"training: 1 of {most}60 epochs"
    assert lines[1] == f"training: 3 of {most}60 epochs, 10 s each, {bound} 10 minutes left"


def test_tuning_tells_the_share_of_all_policies_when_a_policy_begins() -> None:
    lines: list[str] = []
    tell = tuning._tell(Options(notify=lines.append), 2, 0, 1)
    tell(0.5, "tuning a: 1 of 2")
    tell(1.0, "tuning a: 2 of 2")
    tell(0.5, "tuning b: 1 of 2")
    assert lines == [
        "tuning a: 1 of 2 configurations (25 % of the tuning)",
        "tuning b: 1 of 2 configurations (75 % of the tuning)",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (60, "1 minute"), (1500, "25 minutes"), (12600, "3.5 hours")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
