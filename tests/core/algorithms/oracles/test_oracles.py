"""Training of all oracles, the choice per head, files, replay problems, stress conditions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from cabs_core.algorithms.oracles.from_arrays import problems_from_arrays
from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.problems import build_problems
from cabs_core.algorithms.oracles.train import blend_share, pair_error, train_oracles
from cabs_core.algorithms.predictors.kernel_ridge import KernelPredictor
from cabs_core.base.errors import DataError, PolicyError, PoolError, ProvenanceError
from cabs_core.data.outcomes import outcomes_under, split_under, splits
from cabs_core.data.pool_files import pool_from
from cabs_core.data.pool_files.sections import Features, Oracle, Split
from cabs_core.evaluation.replay.engine import make_stream

QUICK = {"max_epochs": 3, "learning_rate": 1e-3, "hidden": 16}


def rows_of(data, name):
    at = data.split == name
    return (
        data.embeddings[at],
        data.outcomes.prompt_lengths[at],
        data.outcomes.scores[at],
        data.outcomes.costs[at],
    )


@pytest.fixture(scope="module")
def quick(data):
    return train_oracles(data.embeddings, data.outcomes, data.split, Oracle(**QUICK))


def predictions(oracles, data, part):
    """All that oracles say of a part of the data."""
    x, lengths, y, _ = rows_of(data, part)
    scores = ("mean", "ridge", "knn", "kernel_ridge", "network", "blend", None)
    costs = ("lengths", "ridge", "network", None)
    return {
        "scores": {name: oracles.predict_scores(x, lengths, model=name) for name in scores},
        "costs": {name: oracles.predict_costs(x, lengths, model=name) for name in costs},
        "contexts": {kind: oracles.contexts(x, lengths, kind) for kind in ("pca", "head")},
        "surrogates": oracles.surrogate_deltas(x, lengths, y),
    }


def test_auto_takes_the_least_validation_error_of_every_head(auto):
    errors = auto.metrics["validation"]
    for head in ("propagation", "cost"):
        assert errors[head][auto.chosen[head]] == min(errors[head].values())
    assert errors["contrasts"][auto.chosen["accuracy"]] == min(errors["contrasts"].values())
    candidates = {"mean", "ridge", "knn", "kernel_ridge", "tasks", "network", "blend"}
    assert set(errors["accuracy"]) == set(errors["contrasts"]) == candidates
    assert set(errors["propagation"]) == {"correlation", "network", "blend"}
    assert set(errors["cost"]) == {"lengths", "ridge", "network"}
    assert all(0.0 < auto.blend[head] < 1.0 for head in ("accuracy", "propagation"))
    assert auto.blend["tasks"] < 0.3, "these tasks say nothing"


def test_the_blend_is_the_shrunk_least_squares_mixture():
    rng = np.random.default_rng(0)
    first, second = rng.random((1000, 3)), rng.random((1000, 3))
    assert blend_share(first, second, 0.8 * first + 0.2 * second) == pytest.approx((1000 * 0.8 + 250) / 1500)
    assert blend_share(first, second, 3 * first - 2 * second) == pytest.approx((1000 + 250) / 1500)
    assert blend_share(first, first, second) == 0.5


def test_better_levels_with_worse_contrasts_are_not_chosen(data, monkeypatch):
    """kernel_ridge is made to know how hard every prompt is and to confuse the arms: least error of levels,
    not chosen."""
    y, at = (
        data.outcomes.scores,
        {row.tobytes(): i for i, row in enumerate(data.embeddings.astype(np.float64))},
    )

    def knows_levels(self, x, lengths):
        rows = [at[row.tobytes()] for row in x]
        level = y[rows].mean(axis=1, keepdims=True)
        return level + 0.08 * (y[rows] - level)

    monkeypatch.setattr(KernelPredictor, "_predict", knows_levels)
    oracles = train_oracles(data.embeddings, data.outcomes, data.split, Oracle(**QUICK, kind="auto"))
    errors = oracles.metrics["validation"]
    assert errors["accuracy"]["kernel_ridge"] < errors["accuracy"]["ridge"]
    assert errors["contrasts"]["kernel_ridge"] > errors["contrasts"]["ridge"]
    assert oracles.chosen["accuracy"] != "kernel_ridge"


def test_guessed_tasks_are_a_candidate_that_reads_no_label(data, tmp_path):
    """On tasks that decide they get a share; a prompt's own task is not asked for, and one task gives no
    candidate."""
    place = (data.embeddings[:, :2] > 0) @ np.array([1, 2])
    chance = np.array(
        [[0.9, 0.5, 0.1, 0.3], [0.1, 0.9, 0.5, 0.3], [0.5, 0.1, 0.9, 0.3], [0.3, 0.5, 0.1, 0.9]]
    )[place]
    scores = (np.random.default_rng(1).random((len(place), 4)) < chance).astype(float)
    outcomes = replace(data.outcomes, scores=scores, tasks=np.array([f"t{p}" for p in place]))
    oracles = train_oracles(data.embeddings, outcomes, data.split, Oracle(kind="auto", max_epochs=1))
    assert oracles.blend["tasks"] > 0.15
    contrast = oracles.metrics["validation"]["contrasts"]
    assert contrast["tasks"] < contrast["kernel_ridge"]
    x, lengths, *_ = rows_of(data, "test")
    mixed = oracles.predict_scores(x, lengths, model="tasks")
    share = oracles.blend["tasks"]
    parts = [oracles.predictors[name].predict(x, lengths) for name in ("tasks", "kernel_ridge")]
    np.testing.assert_allclose(mixed, share * parts[0] + (1 - share) * parts[1])
    oracles.save(tmp_path / "o")
    np.testing.assert_array_equal(
        Oracles.load(tmp_path / "o").predict_scores(x, lengths, model="tasks"), mixed
    )
    one = replace(outcomes, tasks=np.full(len(place), "same"))
    alone = train_oracles(data.embeddings, one, data.split, Oracle(kind="auto", max_epochs=1))
    assert "tasks" not in alone.predictors and "tasks" not in alone.metrics["validation"]["accuracy"]


def test_recorded_errors_are_those_of_the_predictions(auto, data):
    x, lengths, y, c = rows_of(data, "validation")
    for name, error in auto.metrics["validation"]["accuracy"].items():
        assert ((auto.predict_scores(x, lengths, model=name) - y) ** 2).mean() == pytest.approx(
            error, abs=1e-6
        )
    for name, error in auto.metrics["validation"]["propagation"].items():
        surrogates = auto.surrogate_scores(x, lengths, y, model=name)
        assert pair_error(surrogates, y) == pytest.approx(error, abs=1e-6)
        slow = np.mean([(surrogates[:, i, j] - y[:, j]) ** 2 for i in range(4) for j in range(4) if i != j])
        assert pair_error(surrogates, y) == pytest.approx(slow)
    for name, error in auto.metrics["validation"]["cost"].items():
        gap = (auto.predict_costs(x, lengths, model=name) - c) / c.std(axis=0)
        assert (gap**2).mean() == pytest.approx(error, rel=1e-5)


def test_the_chosen_heads_are_useful_on_test(auto, data):
    x, lengths, y, c = rows_of(data, "test")
    ybar = auto.predict_scores(x, lengths)
    mean = data.outcomes.scores[data.split == "train"].mean(axis=0)
    assert ((ybar - y) ** 2).mean() < 0.92 * ((mean - y) ** 2).mean()
    assert pair_error(auto.surrogate_scores(x, lengths, y), y) < 0.985 * ((ybar - y) ** 2).mean()
    assert ((auto.predict_costs(x, lengths) - c) ** 2).mean() < 0.3 * c.var(axis=0).mean()
    assert ybar.min() >= 0 and ybar.max() <= 1 and auto.predict_costs(x, lengths).min() > 0


def test_nothing_of_the_test_split_enters(quick, data):
    test = data.split == "test"
    scores, costs, embeddings = (
        data.outcomes.scores.copy(),
        data.outcomes.costs.copy(),
        data.embeddings.copy(),
    )
    scores[test], costs[test], embeddings[test] = 1.0 - scores[test], 0.5, 7.0
    altered = replace(data.outcomes, scores=scores, costs=costs)
    second = train_oracles(embeddings, altered, data.split, Oracle(**QUICK))
    assert quick.chosen == second.chosen and quick.blend == second.blend
    np.testing.assert_equal(predictions(quick, data, "validation"), predictions(second, data, "validation"))


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("network", {"accuracy": "network", "propagation": "network", "cost": "network", "features": "pca"}),
        ("ridge", {"accuracy": "ridge", "propagation": "correlation", "cost": "ridge", "features": "pca"}),
    ],
)
def test_the_kind_can_be_fixed(data, kind, chosen):
    oracles = train_oracles(data.embeddings, data.outcomes, data.split, Oracle(kind=kind, **QUICK))
    assert oracles.chosen == chosen and (oracles.network is None) == (kind == "ridge")
    if kind == "ridge":
        with pytest.raises(DataError, match="no network"):
            oracles.predict_scores(data.embeddings, data.outcomes.prompt_lengths, model="network")


def test_feature_head(data):
    settings = Features(kind="head", dim=6)
    oracles = train_oracles(
        data.embeddings, data.outcomes, data.split, Oracle(kind="ridge", **QUICK), features=settings
    )
    z = oracles.contexts(data.embeddings, data.outcomes.prompt_lengths)
    assert z.shape == (500, 7) and (z[:, -1] == 2.0).all()
    train = z[data.split == "train", :6]
    assert (train**2).sum(axis=1).mean() == pytest.approx(16.0)
    errors = oracles.metrics["validation"]["features"]
    auto = train_oracles(
        data.embeddings, data.outcomes, data.split, Oracle(**QUICK), features=Features(kind="auto", dim=6)
    )
    assert auto.chosen["features"] == min(
        auto.metrics["validation"]["features"], key=lambda n: auto.metrics["validation"]["features"][n]
    )
    assert set(errors) == {"pca", "head"}


def test_saved_and_loaded_oracles_are_the_same(auto, data, tmp_path):
    folder = auto.save(tmp_path / "oracles")
    again = Oracles.load(folder)
    np.testing.assert_equal(predictions(again, data, "test"), predictions(auto, data, "test"))
    assert again.metrics == json.loads(json.dumps(auto.metrics)) and again.chosen == auto.chosen
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".md", ".safetensors", ".npz"}


def test_trained_again_the_files_are_the_same_byte_for_byte(quick, data, tmp_path):
    again = train_oracles(data.embeddings, data.outcomes, data.split, Oracle(**QUICK))
    once, twice = (
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (quick.save(tmp_path / "once"), again.save(tmp_path / "twice"))
    )
    assert once == twice


def test_damaged_files_are_noticed(auto, tmp_path):
    folder = auto.save(tmp_path / "oracles")
    weights = folder / "network.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ProvenanceError, match="Train it again"):
        Oracles.load(folder)
    (folder / "oracles.json").write_text('{"format": 99}')
    with pytest.raises(ProvenanceError, match="format 99"):
        Oracles.load(folder)
    with pytest.raises(ProvenanceError, match="no readable oracles"):
        Oracles.load(tmp_path / "nothing")


def test_incomplete_files_are_noticed(quick, tmp_path):
    folder = quick.save(tmp_path / "oracles")
    path = folder / "oracles.json"
    whole = path.read_text(encoding="utf-8")
    for name in json.loads(whole):
        settings = json.loads(whole)
        del settings[name]
        path.write_text(json.dumps(settings), encoding="utf-8")
        with pytest.raises(ProvenanceError, match="Train"):
            Oracles.load(folder)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ProvenanceError, match="Train"):
        Oracles.load(folder)
    path.write_text(whole, encoding="utf-8")
    save_file({"correlation": np.eye(3)}, folder / "arrays.safetensors")
    with pytest.raises(ProvenanceError, match=r"incomplete oracles .* Train them again"):
        Oracles.load(folder)


def test_problems_of_a_log_say_which_cells_are_measured_and_how_likely_they_were(auto, data):
    answered = np.eye(len(data.outcomes.arms))[np.arange(len(data.split)) % 4]
    mu = np.where(answered > 0, 0.3, np.nan)
    log = replace(data.outcomes, answered=answered, propensities=mu)
    train, pool = (
        data.split == "train",
        pool_from({"name": "small", "source": {"kind": "logs", "path": "l"}}),
    )
    problem_of_log = build_problems(log, data.split, data.embeddings, auto, pool)["test"]
    np.testing.assert_array_equal(problem_of_log.offline_answered, answered[train])
    np.testing.assert_array_equal(problem_of_log.offline_propensities, 0.3 * answered[train])
    offline = make_stream(problem_of_log, 300.0).offline
    assert (
        offline.answered is problem_of_log.offline_answered
        and offline.propensities is problem_of_log.offline_propensities
    )
    unknown = build_problems(replace(log, propensities=None), data.split, data.embeddings, auto, pool)["test"]
    assert unknown.offline_propensities is None
    for table in (
        data.outcomes,
        log,
    ):  # a whole table, and one with gaps, where several models answer a prompt
        test_problem = build_problems(table, data.split, data.embeddings, auto, data.pool)["test"]
        assert test_problem.offline_answered is None and test_problem.offline_propensities is None


def test_problems_hold_what_the_oracles_say(auto, data):
    problems = build_problems(data.outcomes, data.split, data.embeddings, auto, data.pool)
    assert set(problems) == {"test", "validation"}
    for name, problem in problems.items():
        x, lengths, y, c = rows_of(data, name)
        np.testing.assert_array_equal(problem.scores, y)
        np.testing.assert_array_equal(problem.costs, c)
        # of other rows at once: a product of matrices may round otherwise
        predicted = auto.predict_scores(x, lengths), auto.predict_costs(x, lengths)
        np.testing.assert_allclose(problem.predicted_scores, predicted[0], rtol=1e-12)
        np.testing.assert_allclose(problem.predicted_costs, predicted[1], rtol=1e-12)
        reached = y[:, :, None] + problem.surrogate_deltas
        off = ~np.eye(4, dtype=bool)
        np.testing.assert_allclose(reached[:, off], auto.surrogate_scores(x, lengths, y)[:, off], atol=1e-6)
        assert set(problem.static_scores) == {"knn", "knn_literal", "ridge", "kernel_ridge"}
        assert (problem.name, problem.pool, problem.metadata["condition"]) == (name, "small", "none")
        train = rows_of(data, "train")
        np.testing.assert_array_equal(problem.offline_scores, train[2])
        np.testing.assert_array_equal(problem.offline_contexts, auto.contexts(train[0], train[1]))
    again = build_problems(data.outcomes, data.split, data.embeddings, auto, data.pool)
    assert problems["test"].content_hash() == again["test"].content_hash()


def test_of_many_validation_queries_a_sample_is_learned_from_and_played(data, monkeypatch):
    monkeypatch.setattr(splits, "DECIDING", 30)
    rows = splits.validation_rows(data.split)
    oracles = train_oracles(data.embeddings, data.outcomes, data.split, Oracle(kind="ridge"))
    predicted = oracles.predict_scores(data.embeddings[rows], data.outcomes.prompt_lengths[rows])
    recorded = oracles.metrics["validation"]["accuracy"]["ridge"]
    assert recorded == pytest.approx(((predicted - data.outcomes.scores[rows]) ** 2).mean(), rel=1e-12)
    problems = build_problems(data.outcomes, data.split, data.embeddings, oracles, data.pool)
    np.testing.assert_array_equal(problems["validation"].query_ids, data.outcomes.query_ids[rows])
    assert problems["test"].n == (data.split == "test").sum()
    from_arrays = problems_from_arrays(
        data.outcomes.scores, data.outcomes.costs, contexts=data.embeddings, split=data.split.tolist()
    )
    np.testing.assert_array_equal(
        from_arrays["validation"].contexts, data.embeddings[rows].astype(np.float64)
    )


def test_oracles_of_other_arms_are_refused(auto, data):
    renamed = replace(data.outcomes, arms=["a", "b", "c", "d"])
    with pytest.raises(ProvenanceError, match="train them again"):
        build_problems(renamed, data.split, data.embeddings, auto, data.pool)
    with pytest.raises(ProvenanceError, match="5-d"):
        build_problems(data.outcomes, data.split, data.embeddings[:, :5], auto, data.pool)


def test_bad_input_is_named(data):
    with pytest.raises(DataError, match="do not belong to 500 outcomes"):
        train_oracles(data.embeddings[:-1], data.outcomes, data.split)
    split = np.full(500, "test", dtype="<U10")
    split[:4] = "train"
    with pytest.raises(DataError, match="at least 8 train and 2 validation"):
        train_oracles(data.embeddings, data.outcomes, split)


def test_corrupted_labels_mislead_offline_and_leave_test_alone(data):
    split = split_under(data.outcomes, data.pool.split, "corrupted_oracle")
    np.testing.assert_array_equal(split, data.split)
    altered = outcomes_under(data.outcomes, split, "corrupted_oracle")
    test = split == "test"
    np.testing.assert_array_equal(altered.scores[test], data.outcomes.scores[test])
    rank = np.argsort(data.outcomes.scores[~test].mean(axis=0), kind="stable")
    np.testing.assert_array_equal(altered.scores[~test][:, rank], data.outcomes.scores[~test][:, rank[::-1]])
    oracles = train_oracles(data.embeddings, altered, split, Oracle(kind="ridge"))
    problems = build_problems(altered, split, data.embeddings, oracles, data.pool)
    best = problems["test"].scores.mean(axis=0).argmax()
    assert problems["test"].predicted_scores.mean(axis=0).argmin() == best
    assert problems["test"].metadata["condition"] == "corrupted_oracle"


def test_shifted_splits_hold_out_tasks(data):
    split = split_under(data.outcomes, Split(test_tasks=("task1", "task4")), "severe_shift")
    assert set(data.outcomes.tasks[split == "test"]) == {"task1", "task4"}
    with pytest.raises(PoolError, match=r"needs split\.test_tasks"):
        split_under(data.outcomes, Split(), "severe_shift")
    with pytest.raises(PolicyError, match="unknown stress condition"):
        outcomes_under(data.outcomes, split, "bad weather")
