"""The short gauntlet: what the extra dev suffices for, theme by theme. `make gauntlet` plays all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gauntlet.environment import make_routers
from tests.gauntlet.play import THEMES, behaviours, play_all, row
from tests.gauntlet.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]
#: `attacks` takes ten minutes and a machine with nothing else to do: `make gauntlet` plays it
SHORT = {
    theme: [b for b in behaviours(short=True) if b.theme == theme] for theme in THEMES if theme != "attacks"
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Bundles and the stand-in upstream."""
    folder = tmp_path_factory.mktemp("gauntlet")
    made = Stage(folder / "stage", make_routers(folder / "routers"))
    yield made
    made.close()


@pytest.mark.parametrize("theme", [theme for theme, short in SHORT.items() if short])
def test_each_is_seen_as_expected(stage: Stage, theme: str) -> None:
    """A package that is not there is a row that was not played, not a failure."""
    wrong = [row(r) for r in play_all(stage, SHORT[theme]) if r.verdict == "FAIL"]
    assert not wrong, "\n".join(wrong)
