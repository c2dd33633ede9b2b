"""Tables with gaps used whole: what is predicted from what, and when a prediction is not trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.algorithms.problem.gaps import real_values, unknown_arms
from cabs_core.base.errors import DataError, PoolError
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits, split_under
from cabs_core.data.outcomes.gaps import compared_means, gaps_text
from cabs_core.data.validation.overview import overview
from cabs_core.evaluation.replay import replay

WORDS = ["alpha", "beta", "gamma", "delta", "sum", "proof"]


def table(gaps: str, n: int = 600, seed: int = 0) -> pd.DataFrame:
    """`large` is right in 90 % of the easy prompts and 70 % of the hard ones (with the word proof), `small`
    in 90 % and 10 %."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < 0.4
    text = [
        f"{'proof' if h else 'sum'} {' '.join(rng.choice(WORDS[:4], 6))} {rng.integers(1e9):x}" for h in hard
    ]
    rows = []
    for model, chance, usd in (("large", (0.9, 0.7), 1e-2), ("small", (0.9, 0.1), 1e-3)):
        score = rng.random(n) < np.where(hard, chance[1], chance[0])
        lacks = {"hard": hard & (rng.random(n) < 0.9), "random": rng.random(n) < 0.3}.get(
            gaps, np.zeros(n, bool)
        )
        rows += [
            (i, text[i], model, float(score[i]), usd * rng.uniform(0.5, 1.5))
            for i in range(n)
            if model == "large" or not lacks[i]
        ]
    return pd.DataFrame(rows, columns=["query_id", "prompt", "model", "score", "cost"])


@pytest.fixture
def with_gaps(pool_file, tmp_path: Path, cabs_home: Path):
    def make(frame: pd.DataFrame, **more):
        frame.to_parquet(tmp_path / "table.parquet")
        return pool_file(source={"kind": "file", "path": "table.parquet"}, missing="predict", **more)

    return make


def test_gaps_at_random_are_predicted_and_others_count_as_wrong(with_gaps) -> None:
    outcomes = load_outcomes(with_gaps(table("random")))
    assert len(outcomes) == 600 and outcomes.answered is not None
    missing = outcomes.answered == 0
    assert outcomes.report["gaps"]["small"]["at_random"] and set(outcomes.report["gaps"]) == {"small"}
    hard = np.array([p.startswith("proof") for p in outcomes.prompts])
    j = outcomes.arms.index("small")
    guess = outcomes.scores[:, j]
    assert guess[missing[:, j] & ~hard].mean() > 0.75 > 0.35 > guess[missing[:, j] & hard].mean()

    outcomes = load_outcomes(with_gaps(table("hard")))
    gap = outcomes.report["gaps"]["small"]
    assert not gap["at_random"] and gap["others"]["high"] < 0
    assert (outcomes.scores[outcomes.answered == 0] == 0).all() and (outcomes.costs > 0).all()
    (text,) = gaps_text(outcomes.report["gaps"])
    assert text.startswith("small ") and "count as wrong" in text and "95 % interval" in text


def test_held_out_outcomes_change_no_prediction(with_gaps) -> None:
    for gaps in ("random", "hard"):
        frame = table(gaps)
        pool_file = with_gaps(frame)
        before = load_outcomes(pool_file)
        split = make_splits(before, pool_file.pool.split)
        held_out = frame["query_id"].isin(before.query_ids[split != "train"].astype(int))
        altered = frame.assign(
            score=np.where(held_out, 1 - frame["score"], frame["score"]),
            cost=np.where(held_out, 7 * frame["cost"], frame["cost"]),
        )
        after = load_outcomes(with_gaps(altered))
        missing = before.answered == 0
        assert missing.any() and (before.answered == after.answered).all()
        assert (before.scores[missing] == after.scores[missing]).all()
        assert (before.costs[missing] == after.costs[missing]).all()
        assert before.report["gaps"] == after.report["gaps"]
        assert (before.scores != after.scores).any()


@pytest.mark.slow
def test_gaps_at_random_are_seldom_taken_for_others(with_gaps) -> None:
    wrong = sum(
        not load_outcomes(with_gaps(table("random", 200, seed))).report["gaps"]["small"]["at_random"]
        for seed in range(40)
    )
    assert wrong <= 8  # 3 expected of 40 (8 %, counted on 120 tables); more than 8 in one of 200 such tests


def test_full_tables_are_as_ever(with_gaps, pool_file) -> None:
    frame = table("none")
    ours = load_outcomes(with_gaps(frame))
    plain = load_outcomes(pool_file(source={"kind": "file", "path": "table.parquet"}))
    assert ours.answered is None and ours.content_hash() == plain.content_hash()


def test_pool_add_says_it_and_names_the_way_out(with_gaps, pool_file, tmp_path: Path) -> None:
    about = overview(with_gaps(table("hard")))
    (gap,) = gaps_text(about.outcomes.report["gaps"])
    assert "600" in about.text and gap in about.text
    with pytest.raises(DataError, match=r"check queries_kept.*missing: predict"):
        overview(pool_file(source={"kind": "file", "path": "table.parquet"}))


def test_what_cannot_be_is_refused(with_gaps, tmp_path: Path) -> None:
    frame = table("hard")
    for setting, why in (
        ({"condition": "task_shift"}, "would see other tasks"),
        ({"condition": "noisy_oracle"}, "exchanges labels"),
        ({"condition": "sessions"}, "cost of a turn"),
        ({"latency_weight": 0.1}, "would have taken"),
    ):
        with pytest.raises(PoolError, match=f"missing is predict.*{why}.*drop_"):
            with_gaps(frame, replay=setting)
    few = frame[(frame["model"] == "large") | (frame["query_id"] < 3)]
    with pytest.raises(DataError, match=r"'small' has .* answers .*; 5 are needed"):
        load_outcomes(with_gaps(few))


def problem_of(pool_file, outcomes: Outcomes):
    split = split_under(outcomes, pool_file.pool.split, pool_file.pool.replay.condition)
    x = np.array([[float(p.startswith("proof")), 1.0, len(p) / 50] for p in outcomes.prompts])
    pool = pool_file.pool.model_copy(
        update={"oracle": pool_file.pool.oracle.model_copy(update={"kind": "ridge"})}
    )
    oracles = train_oracles(x, outcomes, split, pool.oracle, features=pool.features)
    return build_problems(outcomes, split, x, oracles, pool)["test"]


@pytest.mark.slow
def test_estimates_rest_on_real_answers(with_gaps, tmp_path: Path) -> None:
    off = []
    for seed in range(8):
        full = table("none", 1500, seed)
        frame = table("random", 1500, seed)
        pool_file = with_gaps(frame)
        outcomes = load_outcomes(pool_file)
        outcomes.save(tmp_path / "saved")
        problem = problem_of(pool_file, Outcomes.load(tmp_path / "saved"))
        problem.save(tmp_path / "problem")
        problem = type(problem).load(tmp_path / "problem")
        j = problem.arms.index("small")
        assert unknown_arms(problem) == [] and problem.observed[:, j].mean() < 0.8
        # wrong predictions: the estimate stays that of the real answers
        lifted = replace(problem, predicted_scores=problem.predicted_scores + 0.3)
        cells = real_values(lifted, 0.0)
        truth = (
            full[full["model"] == "small"].set_index("query_id").loc[problem.query_ids.astype(int), "score"]
        )
        off.append(cells.score[:, j].mean() - truth.mean())
        assert (cells.score[:, 1 - j] == problem.scores[:, 1 - j]).all()
    assert abs(np.mean(off)) < 0.03 and len(set(off)) == 8


@pytest.mark.slow
def test_estimates_hold_where_the_stream_changes(with_gaps) -> None:
    """Mean utility of a policy that learns under a condition: as cells say, and as the whole table does."""
    off: dict[str, list[float]] = {}
    for seed in range(6):
        frame = table("none", 1200, seed)
        hard, chance = frame["prompt"].str.startswith("proof"), np.where(frame["model"] == "small", 0.4, 1.0)
        frame["task"] = np.where(hard, "proof", "sum") + (frame["query_id"] % 2).astype(str)
        asked = np.random.default_rng([seed, 2]).random(len(frame)) < chance
        whole = frame.pivot(index="query_id", columns="model", values=["score", "cost"])
        given = with_gaps(frame[asked])
        problem = problem_of(given, load_outcomes(given))
        cells, rows = real_values(problem, 20.0).utility, whole.loc[problem.query_ids.astype(int)]
        truth = clipped_utility(
            rows["score"][problem.arms].to_numpy(), rows["cost"][problem.arms].to_numpy(), 20.0
        )
        for condition in ("drift", "arms_arrive", "arms_disappear", "delayed_rewards"):
            played = replay(problem, "lin_ucb", 20.0, 2, 0, condition=condition)
            at = played.order, played.actions
            off.setdefault(condition, []).append(float((cells[at] - truth[at]).mean()))
    for condition, errors in off.items():
        assert abs(np.mean(errors)) < 3.5 * np.std(errors, ddof=1) / np.sqrt(6) + 1e-4, condition
        assert np.std(errors) < 0.04, condition


def test_missing_answers_count_as_wrong_where_gaps_are_not_at_random(with_gaps) -> None:
    pool_file = with_gaps(table("hard"))
    problem = problem_of(pool_file, load_outcomes(pool_file))
    j = problem.arms.index("small")
    assert unknown_arms(problem) == [j]
    missing = problem.observed[:, j] == 0
    assert missing.any()
    assert (real_values(problem, 0.0).score[missing, j] == 0).all()


def test_a_difference_that_changes_no_decision_is_no_finding() -> None:
    """Predictions that hardly vary differ surely and by next to nothing."""
    tried = np.arange(80_000) < 40_000
    values = np.where(tried, np.tile([0.70, 0.71], 40_000), np.tile([0.702, 0.712], 40_000))
    near, far = (compared_means(values + more * ~tried, tried, 2, np.arange(80_000)) for more in (0.0, 0.02))
    assert near is not None and far is not None and near["p"] < 1e-6
    assert not near["differs"] and far["differs"]
