"""Several judges of one answer: the mean counts, their differences are said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cabs_core.base.errors import DataError, PoolError
from cabs_core.data.outcomes.judges import judges_text, mean_of_judges

cells = st.one_of(st.just(float("nan")), st.floats(0, 1))


@given(arrays(np.float64, (3, 4, 2), elements=cells))
def test_the_mean_of_those_that_are_there(stacked) -> None:
    mean, summary = mean_of_judges(list(stacked), ["a", "b", "c"], ["x", "y"])
    squares, noises = [], []
    for i in range(4):
        for j in range(2):
            known = [v for v in stacked[:, i, j] if not np.isnan(v)]
            assert np.isnan(mean[i, j]) if not known else mean[i, j] == pytest.approx(np.mean(known))
            if len(known) > 1:
                squares.append(np.var(known, ddof=1))
                noises.append(squares[-1] / len(known))
    assert summary["answers"] == len(squares)
    assert summary["spread"] == pytest.approx(np.sqrt(np.mean(squares)) if squares else 0.0, abs=1e-9)
    assert summary["noise"] == pytest.approx(np.sqrt(np.mean(noises)) if noises else 0.0, abs=1e-9)


def table(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = [
        {
            "prompt": f"prompt {i}",
            "model": m,
            "ada": s,
            "bob": min(s + 0.1, 1.0),
            "cid": 1.0 if m == "small" else 0.2,
            "cost": 1e-3,
        }
        for i in range(n)
        for m, s in (("small", rng.uniform(0.2, 0.4)), ("large", rng.uniform(0.7, 0.9)))
    ]
    frame = pd.DataFrame(rows)
    frame.loc[3, "bob"] = None
    return frame


def test_a_table_with_three_judges(load_table) -> None:
    frame = table()
    outcomes = load_table(frame, columns={"score": "ada", "judges": ["bob", "cid"]})
    expected = frame[["ada", "bob", "cid"]].mean(axis=1).to_numpy().reshape(-1, 2)
    order = [outcomes.arms.index(m) for m in ("small", "large")]
    by_text = {p: i for i, p in enumerate(outcomes.prompts)}
    rows = [by_text[f"prompt {i}"] for i in range(40)]
    np.testing.assert_allclose(outcomes.scores[rows][:, order], expected)
    summary = outcomes.report["judges"]
    assert summary["names"] == ["ada", "bob", "cid"] and summary["answers"] == 80
    assert summary["best"] == {"ada": "large", "bob": "large", "cid": "small"}
    text = judges_text(summary)
    assert "means of 3 judges (ada, bob, cid), who differ by 0." in text
    assert f"By cid alone small would be the best model, not {summary['best_of_mean']}." in text


def test_a_wide_table_with_two_judges(load_table) -> None:
    frame = pd.DataFrame(
        {
            "prompt": list("abcd"),
            "x_ada": [1, 0, 1, 0],
            "x_bob": [0, 0, 1, 1],
            "y_ada": [1, 1, 1, 1],
            "y_bob": [1, 1, 1, 1],
            "x_usd": [1.0] * 4,
            "y_usd": [2.0] * 4,
        }
    )
    columns = {"score": "{model}_ada", "judges": ["{model}_bob"], "cost": "{model}_usd"}
    outcomes = load_table(frame, ".csv", layout="wide", columns=columns, models=["x", "y"])
    assert outcomes.scores[:, outcomes.arms.index("x")].tolist() == [0.5, 0.0, 1.0, 0.5]
    assert outcomes.report["judges"]["spread"] == pytest.approx(np.sqrt(2 * 0.5 / 8))


@pytest.mark.parametrize(
    ("judge", "message"),
    [("dora", "dora"), ("ada", "names a column twice"), ("cid", r"row 6.*column 'cid'")],
)
def test_judges_that_are_not_there_stand_twice_or_have_a_bad_cell(load_table, judge, message) -> None:
    frame = table()
    frame.loc[5, "cid"] = 7.0
    with pytest.raises((DataError, PoolError), match=message):
        load_table(frame, columns={"score": "ada", "judges": [judge]})
