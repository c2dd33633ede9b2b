"""A log as an outcome table: what is real stays, what is predicted comes from answers to train prompts
alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests_support import event_row

from cabs_core.base.errors import DataError, RouterError
from cabs_core.data.events.log import EventLog
from cabs_core.data.outcomes import Outcomes, load_outcomes, make_splits
from cabs_core.data.outcomes.logged import predicted_cells, prompt_features
from cabs_core.data.pool_files.sections import Split
from cabs_core.data.validation.run import run_checks

MODELS = ["large", "medium", "small"]
WORDS = ["sum", "poem", "code", "law", "name"]


def calls(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Logged calls: `large` is better at sums, `small` at names; drawn with the probabilities in
    `propensity`."""
    rng = np.random.default_rng(seed)
    mu = np.array([0.5, 0.3, 0.2])
    arm, word = rng.choice(3, n, p=mu), rng.integers(0, len(WORDS), n)
    right = np.where(word == 0, [0.95, 0.5, 0.1][0] * (arm == 0) + 0.1 * (arm != 0), 0.5)
    right = np.where(word == 4, 0.9 * (arm == 2) + 0.2 * (arm != 2), right)
    return pd.DataFrame(
        {
            "prompt": [f"{WORDS[w]} number {i} of {WORDS[w]} things" for i, w in enumerate(word)],
            "model": [MODELS[a] for a in arm],
            "score": (rng.random(n) < right).astype(float),
            "cost": np.array([1e-2, 1e-3, 1e-4])[arm] * rng.uniform(0.8, 1.2, n),
            "propensity": mu[arm],
        }
    )


@pytest.fixture
def outcomes_of_log(pool_file, tmp_path: Path, cabs_home: Path):
    """Outcomes of a pool whose source is this table."""

    def make(frame: pd.DataFrame, **fields) -> Outcomes:
        frame.to_csv(tmp_path / "calls.csv", index=False)
        source = {"kind": "logs", "path": "calls.csv", **fields.pop("source", {})}
        return load_outcomes(pool_file(source=source, **fields))

    return make


def test_answers_are_kept_and_the_others_are_predicted(outcomes_of_log) -> None:
    frame = calls()
    outcomes = outcomes_of_log(frame, models=MODELS)
    played = np.array([MODELS.index(m) for m in frame["model"]])
    rows = np.arange(len(frame))
    assert outcomes.query_ids.tolist() == [str(i + 2) for i in rows]  # rows of the CSV file
    assert (outcomes.answered.sum(axis=1) == 1).all() and (outcomes.answered.argmax(axis=1) == played).all()
    assert (outcomes.scores[rows, played] == frame["score"]).all()
    assert np.allclose(outcomes.costs[rows, played], frame["cost"], rtol=0)
    assert np.allclose(outcomes.propensities[rows, played], frame["propensity"])
    assert np.isnan(outcomes.propensities).sum() == 2 * len(frame)
    sums = np.char.startswith(outcomes.prompts, "sum ")
    names = np.char.startswith(outcomes.prompts, "name ")
    missing = outcomes.answered == 0
    means = {
        w: [outcomes.scores[r & missing[:, j], j].mean() for j in range(3)]
        for w, r in (("s", sums), ("n", names))
    }
    assert means["s"][0] > means["s"][1] + 0.3 and means["n"][2] > means["n"][0] + 0.3
    assert outcomes.report["decisions"] == {m: int((frame["model"] == m).sum()) for m in MODELS}


def test_the_times_of_calls_are_those_of_the_table(outcomes_of_log) -> None:
    frame = calls()
    frame["time"] = [f"2026-03-01T10:{i // 60:02d}:{i % 60:02d}Z" for i in range(len(frame))]
    outcomes = outcomes_of_log(frame, models=MODELS)
    assert outcomes.times is not None and (np.diff(outcomes.times) == 1.0).all()


def test_predictions_know_nothing_of_validation_and_test(outcomes_of_log) -> None:
    """With every held-out outcome changed, no other cell changes."""
    frame = calls()
    outcomes = outcomes_of_log(frame, models=MODELS)
    held = make_splits(outcomes, Split()) != "train"
    assert 0.2 < held.mean() < 0.4
    changed = frame.assign(
        score=np.where(held, 1.0 - frame["score"], frame["score"]), cost=np.where(held, 0.5, frame["cost"])
    )
    again = outcomes_of_log(changed, models=MODELS)
    same = (outcomes.answered == 0) | ~held[:, None]
    assert (outcomes.scores[same] == again.scores[same]).all() and (
        outcomes.costs[same] == again.costs[same]
    ).all()
    assert (outcomes.scores[~same] != again.scores[~same]).all()


def test_what_is_left_out_is_counted(outcomes_of_log) -> None:
    frame = calls()
    frame.loc[:9, "score"] = np.nan
    frame.loc[10:14, "cost"] = np.nan
    outcomes = outcomes_of_log(frame, models=["large", "medium"])
    kept = (frame["model"] != "small") & frame["score"].notna() & frame["cost"].notna()
    assert len(outcomes) == kept.sum() and outcomes.arms == ["large", "medium"]
    others = int((frame["model"] == "small").sum())
    assert outcomes.report["without_score"] >= others
    assert sum(outcomes.report["missing_costs"].values()) == outcomes.report["queries_dropped"] > 0


def test_a_log_needs_no_propensities_and_takes_constant_costs(outcomes_of_log) -> None:
    frame = calls().drop(columns=["propensity", "cost"])
    outcomes = outcomes_of_log(
        frame, models=MODELS, cost_per_call=dict(zip(MODELS, (0.01, 0.001, 0.0001), strict=True))
    )
    assert outcomes.propensities is None
    assert np.allclose(outcomes.costs, [[0.01, 0.001, 0.0001]])


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (
            lambda f: f.assign(propensity=0.0),
            {},
            r"calls.csv, row 2: the propensity is 0; .*\(400 such rows\)",
        ),
        (
            lambda f: f.assign(propensity=f["propensity"].where(f.index != 7)),
            {},
            r"row 9: the propensity is missing; .*leave the column out",
        ),
        (
            lambda f: f[(f["model"] != "small") | (f.index < 20)],
            {},
            r"'small' has \d scored decisions on train prompts; 5",
        ),
        (lambda f: f.drop(columns="score"), {}, "no call has a score"),
        (lambda f: f.drop(columns="cost"), {}, "no decision has a score and a cost"),
        (
            lambda f: f.assign(cost=f["cost"].where(f.index != 3)),
            {"missing": "error"},
            r"row 5: no cost \(1 such row\)",
        ),
        (
            lambda f: f,
            {"source": {"columns": {"propensity": "p"}}},
            "no column 'p', which source.columns.propensity",
        ),
    ],
)
def test_bad_logs_name_the_row(outcomes_of_log, change, fields, message) -> None:
    with pytest.raises(DataError, match=message):
        outcomes_of_log(change(calls()), **fields)


def test_five_scored_train_decisions_of_a_model_are_enough(outcomes_of_log) -> None:
    frame = calls(60).assign(split=["test", "train", "validation", "train"] * 15, model="large")
    given = {"source": {"columns": {"split": "split"}}, "split": {"kind": "column"}, "models": MODELS[:2]}
    frame.loc[1:9:2, "model"] = "medium"
    assert outcomes_of_log(frame, **given).report["decisions"] == {"large": 55, "medium": 5}
    frame.loc[9, "model"] = "large"
    with pytest.raises(DataError, match="'medium' has 4 scored decisions on train prompts; 5"):
        outcomes_of_log(frame, **given)


def test_the_length_of_a_prompt_is_standardised_by_train_prompts() -> None:
    """The logarithms of 2, 4 and 8 are 1, 2 and 3 times that of 2, and those of train prompts are 1 and 2."""
    features = prompt_features(["a", "abc", "abcdefg"], np.arange(2))
    assert features[:, 0] == pytest.approx([-1.0, 1.0, 3.0])
    alike = prompt_features(["a", "b", "c"], np.arange(3))
    assert alike[:, 0].tolist() == [0.0, 0.0, 0.0]


def test_features_of_many_prompts_are_the_length_and_64_components() -> None:
    words = np.random.default_rng(0).choice(list("abcdefghijklmnop"), (300, 30))
    prompts = ["".join(letters) for letters in words]
    assert prompt_features(prompts, np.arange(300)).shape == (300, 65)


@pytest.mark.parametrize(
    ("seen", "slope"),
    [
        ([-3.0, -1.0, 1.0, 3.0], 20 / 20.01),  # on a line: the least penalty
        ([1.0, 0.0, 2.0, 2.0], 5 / 30),
        ([0.0, 1.0, 0.0, 1.0], 2 / 1020),  # nearly without a trend: the greatest penalty
    ],
)
def test_predictions_are_shrunk_by_a_penalty_between_a_hundredth_and_a_thousand(
    seen: list[float], slope: float
) -> None:
    """The squares of the feature sum to 20; with the penalty added they divide the sum of its products."""
    feature = np.array([-3.0, -1.0, 1.0, 3.0])
    given = np.ones((4, 1), dtype=bool)
    predicted = predicted_cells(feature[:, None], np.arange(4), given, np.array(seen)[:, None])
    assert predicted[:, 0] == pytest.approx(np.mean(seen) + slope * feature, rel=1e-6)


def test_checks_that_compare_models_on_a_query_do_not_apply(outcomes_of_log) -> None:
    outcomes = outcomes_of_log(calls(600))
    results = {r.name: r for r in run_checks("outcomes", outcomes)}
    assert all(r.passed for r in results.values())
    for name in ("alignment_blocks", "models_distinct", "duplicates_agree"):
        assert results[name].observed == "does not apply: of a log, one model answered each prompt"


def test_an_event_log_that_keeps_prompts_is_a_source(pool_file, tmp_path: Path, cabs_home: Path) -> None:
    frame = calls()
    for keep in (True, False):
        place = tmp_path / f"{keep}.sqlite"
        write_events(place, frame, keep)
        pool = pool_file(source={"kind": "logs", "path": place.name}, models=MODELS)
        if not keep:
            with pytest.raises(DataError, match=r"keep no prompt.*--keep-prompts"):
                load_outcomes(pool)
            continue
        outcomes = load_outcomes(pool)
        assert len(outcomes) == len(frame) - 1 and outcomes.report["without_score"] == 1
        assert outcomes.prompts == frame["prompt"].tolist()[:-1]
        before = pool.external_files()
        with closing(EventLog(place)) as log:  # open, so that what is new is in the file beside it
            append(log, frame.iloc[:1], keep, start=len(frame))
            assert pool.external_files() != before


def write_events(place: Path, frame: pd.DataFrame, keep: bool) -> None:
    """A router's log of these calls; the last one is not scored."""
    with closing(EventLog(place)) as log:
        append(log, frame, keep)


def append(log: EventLog, frame: pd.DataFrame, keep: bool, start: int = 0) -> None:
    names = [str(i) for i in range(start, start + len(frame))]
    pmf = np.array([0.5, 0.3, 0.2])
    log.add_decisions(
        event_row(name, row.model, p=row.propensity, pmf=pmf, target=pmf, prompt=row.prompt if keep else None)
        for name, row in zip(names, frame.itertuples(), strict=True)
    )
    for name, row in list(zip(names, frame.itertuples(), strict=True))[:-1]:
        log.add_reward(name, row.score, row.cost, "test", name)


def test_another_file_is_no_event_log(pool_file, tmp_path: Path, cabs_home: Path) -> None:
    (tmp_path / "x.sqlite").write_text("not a database, " * 100)
    with pytest.raises(RouterError, match="event log"):
        load_outcomes(pool_file(source={"kind": "logs", "path": "x.sqlite"}, models=MODELS))


@pytest.mark.parametrize("script", ["english", "chinese", "japanese"])
def test_wording_tells_in_every_script(script: str) -> None:
    """A model that fails at proofs: what it scores is predicted from the wording, with spaces between words
    or without."""
    words = {
        "english": ("prove that ", "translate ", [f"word{i} " for i in range(40)]),
        "chinese": ("证明", "翻译", [chr(0x4E00 + 37 * i) for i in range(200)]),
        "japanese": ("証明して", "翻訳して", [chr(0x3042 + i) for i in range(60)]),
    }
    rng = np.random.default_rng(0)
    proof, other, parts = words[script]
    hard = rng.random(400) < 0.5
    prompts = [(proof if h else other) + "".join(rng.choice(parts, 12)) for h in hard]
    train = np.arange(200)
    features = prompt_features(prompts, train)
    predicted = predicted_cells(
        features, train, np.ones((400, 1), dtype=bool), np.where(hard, 0.1, 0.9)[:, None]
    )
    assert predicted[200:][hard[200:], 0].mean() < 0.3 < 0.7 < predicted[200:][~hard[200:], 0].mean()
