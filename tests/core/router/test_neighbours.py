"""The train prompts that explain a decision."""

import shutil
from pathlib import Path

import numpy as np

from cabs_core.router.neighbours import Neighbours


def test_prompts_are_read_again_if_another_bundle_took_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "router" / "neighbours"
    place.parent.mkdir()
    assert Neighbours.load(place) is None
    for text in ("of the first bundle", "of the second bundle"):
        made = tmp_path / "made"
        Neighbours.sample(np.ones((1, 2)), [text], np.ones((1, 1)), ["a"]).save(made)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(made, place)
        shutil.rmtree(made)
        found = Neighbours.load(place)
        assert found is not None and found.texts == [text]
        assert Neighbours.load(place) is found, "an unchanged file is not read again"
