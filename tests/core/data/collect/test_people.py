"""Labels of people are read for the answers whose score is that of the judge which they measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.data.collect.source import SCORES, read_people


def written(folder: Path, **columns: list[float | None]) -> Path:
    """Write scores of two models on two prompts, with further columns."""
    table = {
        "query_id": ["q1", "q1", "q2", "q2"],
        "model": ["a", "b", "a", "b"],
        "score": [1.0, 0.0, 1.0, 0.5],
    }
    pd.DataFrame({**table, **columns}).to_parquet(folder / SCORES)
    return folder


def test_labels_stand_at_their_prompt_and_model(tmp_path: Path) -> None:
    folder = written(
        tmp_path, **{"score judge": [1.0, 0.0, 1.0, 0.5], "people judge": [0.0, None, None, 1.0]}
    )
    people = read_people(folder, ["q2", "q1"], ["b", "a"])
    assert people is not None
    assert np.array_equal(people, [[1.0, np.nan], [np.nan, 0.0]], equal_nan=True)


def test_a_label_of_an_answer_that_another_scorer_had_a_part_in_is_left_out(tmp_path: Path) -> None:
    folder = written(
        tmp_path, **{"score judge": [0.5, 0.0, 1.0, 0.5], "people judge": [0.0, None, None, 1.0]}
    )
    people = read_people(folder, ["q1", "q2"], ["a", "b"])
    assert people is not None and np.isnan(people[0]).all() and people[1, 1] == 1.0


def test_without_labels_or_with_labels_for_two_judges_there_is_no_correction(tmp_path: Path) -> None:
    assert read_people(written(tmp_path), ["q1"], ["a"]) is None
    two = {f"{kind} {name}": [1.0, 0.0, 1.0, 0.5] for name in ("x", "y") for kind in ("score", "people")}
    assert read_people(written(tmp_path, **two), ["q1"], ["a"]) is None
