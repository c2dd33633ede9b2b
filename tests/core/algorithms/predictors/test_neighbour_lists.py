"""Lists of neighbours that are searched once, kept by content, and used by every predictor that looks at
neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from cabs_core.algorithms.predictors import make_score_predictor, neighbour_lists
from cabs_core.algorithms.predictors.neighbour_lists import LENGTH, NeighbourLists


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(500, 12)).astype(np.float32), rng.normal(size=(90, 12)).astype(np.float32)


def forbid_search(monkeypatch) -> None:
    def refuse(*arguments):
        raise AssertionError("searched again")

    monkeypatch.setattr(neighbour_lists.Points, "search", refuse)


def test_lists_are_the_nearest_in_order(vectors, tmp_path):
    points, rows = vectors
    near = NeighbourLists.cached(points, rows, tmp_path).near
    distance = np.linalg.norm(rows[:, None].astype(np.float64) - points, axis=2)
    distances = np.take_along_axis(distance, near, axis=1)
    np.testing.assert_allclose(distances, np.sort(distance, axis=1)[:, :LENGTH], rtol=1e-5)
    assert all(len(set(row)) == LENGTH for row in near.tolist())


@pytest.mark.parametrize("offset", [1e2, 1e3, 1e4])
def test_a_large_offset_of_the_features_moves_no_neighbour(offset, tmp_path):
    """The points lie on a grid that float32 holds exactly at every offset."""
    rng = np.random.default_rng(0)
    points, rows = (np.round(64 * rng.normal(size=(n, 6))) / 64 for n in (600, 80))
    y, lengths = (rng.random((600, 3)) < 0.5).astype(float), np.ones(600)

    def squares(near):
        return ((rows[:, None] - points[near]) ** 2).sum(axis=2)

    exact = np.sort(((rows[:, None] - points) ** 2).sum(axis=2), axis=1)
    far = [(x + offset).astype(np.float32) for x in (points, rows)]
    listed = NeighbourLists.cached(*far, tmp_path).near
    np.testing.assert_allclose(squares(listed), exact[:, :LENGTH], rtol=2e-6 * offset, atol=1e-6 * offset)
    for name in ("knn", "knn_literal"):
        near, moved = (
            make_score_predictor(name, k=30).fit(x, lengths, y).predict(at, lengths[:80])
            for x, at in ((points, rows), (points + offset, rows + offset))
        )
        # neighbours of equal distance are interchangeable
        assert (np.abs(near - moved).max(axis=1) > 1e-9).mean() < 0.1 * offset / 1e4 + 0.05


def test_a_search_is_made_once_and_again_where_the_file_is_damaged(vectors, tmp_path, monkeypatch):
    points, rows = vectors
    first = NeighbourLists.cached(points, rows, tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:50], b""):
        path.write_bytes(damaged)
        assert (NeighbourLists.cached(points, rows, tmp_path).near == first.near).all()
        assert path.read_bytes() == content
    forbid_search(monkeypatch)
    assert (NeighbourLists.cached(points, rows, tmp_path).near == first.near).all()
    with pytest.raises(AssertionError, match="searched again"):
        NeighbourLists.cached(points + 1, rows, tmp_path)


@pytest.mark.parametrize("name", ["knn", "knn_literal", "kernel_ridge"])
def test_predictions_from_lists_are_those_of_a_search(name, vectors, tmp_path, monkeypatch):
    points, rows = vectors
    rng = np.random.default_rng(1)
    y, lengths = (rng.random((500, 3)) < 0.5).astype(float), np.arange(500.0)
    held_out = (rows[:40], lengths[:40], y[:40])

    def fitted(*lists):
        predictor = make_score_predictor(name)
        for neighbours in lists:
            predictor.use(neighbours)
        return predictor.fit(points, lengths, y, validation=held_out)

    searched = fitted()
    expected = searched.predict(rows, lengths[:90])
    lists = NeighbourLists.cached(points, rows, tmp_path)
    of_other_prompts = NeighbourLists(points[1:], rows, lists.near - 1)
    assert (fitted(of_other_prompts).predict(rows, lengths[:90]) == expected).all()
    not_in_the_lists = fitted(lists).predict(rows + 1, lengths[:90])
    assert (not_in_the_lists == searched.predict(rows + 1, lengths[:90])).all()
    forbid_search(monkeypatch)
    assert (fitted(lists).predict(rows, lengths[:90]) == expected).all()
    searched.use(lists)  # as after loading
    assert (searched.predict(rows, lengths[:90]) == expected).all()
