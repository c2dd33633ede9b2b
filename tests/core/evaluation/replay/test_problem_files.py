"""Replay problems: checks, files, hashes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import DataError, ProvenanceError
from cabs_core.evaluation.replay import replay


@pytest.fixture(scope="module")
def problem():
    return synthetic_problem(n=60, K=3, d=4, seed=1, latencies=True)


def test_round_trip(tmp_path, problem):
    problem.save(tmp_path / "p")
    loaded = ReplayProblem.load(tmp_path / "p")
    assert loaded.content_hash() == problem.content_hash()
    assert loaded.arms == problem.arms and loaded.metadata == problem.metadata
    for name, value in problem.arrays().items():
        np.testing.assert_array_equal(loaded.arrays()[name], value, err_msg=name)
    assert loaded.scores.flags.writeable, "compiled code takes writable arrays (copy on write)"
    first = replay(problem, "cabs_d_linear", rho=300.0, trials=2)
    again = replay(loaded, "cabs_d_linear", rho=300.0, trials=2)
    assert np.array_equal(first.actions, again.actions)


def test_writing_to_a_loaded_problem_leaves_the_files_alone(tmp_path, problem):
    problem.save(tmp_path / "p")
    ReplayProblem.load(tmp_path / "p").scores[:] = 0.5
    assert ReplayProblem.load(tmp_path / "p").content_hash() == problem.content_hash()


def test_hash_covers_content_not_names(problem):
    assert replace(problem, name="other", pool="x").content_hash() == problem.content_hash()
    changed = problem.costs.copy()
    changed[3, 1] *= 1.0001
    assert replace(problem, costs=changed).content_hash() != problem.content_hash()


@pytest.mark.parametrize("damage", ["array", "missing", "meta", "traversal", "format"])
def test_altered_files_are_refused(tmp_path, problem, damage):
    folder = problem.save(tmp_path / "p")
    meta = json.loads((folder / "meta.json").read_text())
    if damage == "array":
        values = np.load(folder / "costs.npy")
        values[0, 0] += 1e-6
        np.save(folder / "costs.npy", values)
    elif damage == "missing":
        (folder / "scores.npy").unlink()
    elif damage == "meta":
        meta["arms"][0] = "other"
    elif damage == "traversal":
        meta["arrays"]["static_scores.../../secret"] = meta["arrays"]["scores"]
    else:
        meta["format"] = 99
    if damage in ("meta", "traversal", "format"):
        (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ProvenanceError):
        ReplayProblem.load(folder)


def test_pickled_arrays_are_refused(tmp_path, problem):
    folder = problem.save(tmp_path / "p")
    np.save(folder / "tasks.npy", np.array([{"a": 1}] * problem.n, dtype=object), allow_pickle=True)
    with pytest.raises(ProvenanceError):
        ReplayProblem.load(folder)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("scores", lambda a: a + 2.0, r"scores\[0, 0\] is 2|scores\[0, 0\] is 3"),
        ("costs", lambda a: -a, r"costs\[0, 0\]"),
        ("contexts", lambda a: np.where(np.arange(a.shape[1]) == 1, np.nan, a), r"contexts\[0, 1\] is nan"),
        ("predicted_scores", lambda a: a[:, :2], r"predicted_scores has shape \(60, 2\)"),
        ("surrogate_deltas", lambda a: a + 0.1, "zero where the anchor"),
        ("offline_scores", lambda a: a[:-1], "offline_scores has shape"),
    ],
)
def test_bad_arrays_are_named(problem, field, change, message):
    with pytest.raises(DataError, match=message):
        replace(problem, **{field: change(getattr(problem, field))})


def test_rows(problem):
    part = problem.rows(np.arange(10, 20))
    assert part.n == 10 and part.query_ids[0] == problem.query_ids[10]
    np.testing.assert_array_equal(part.static_scores["ridge"], problem.static_scores["ridge"][10:20])
    assert len(part.offline_scores) == len(problem.offline_scores)
