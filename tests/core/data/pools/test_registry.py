"""Adding, retiring and restoring pools; a registry that cannot be read says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_support import chain_of, finished_replay

from cabs_core.base.errors import PoolError
from cabs_core.data.pools.find import find_pool, list_pools
from cabs_core.data.pools.registry import active_pool, active_pools, add_pool, retired
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.retention import restore_pool, retire_pool


def test_add_copies_the_file_and_reports_changes(cabs_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.yaml"
    source.write_text("source: {kind: synthetic, queries: 300}\n")
    added = add_pool(source)
    assert (added.verb, added.pool_file.pool.name, added.changes) == ("added", "mine", [])
    assert find_pool("mine").path == cabs_home / "pools" / "mine.yaml"
    source.write_text("source: {kind: synthetic, queries: 400}\n")
    assert add_pool(source).changes == ["source.queries: 300 -> 400"]
    assert add_pool(source).changes == ["nothing changed"]


def test_add_with_an_invalid_model_of_today_leaves_the_pool_folder_as_it_was(
    cabs_home: Path, tmp_path: Path
) -> None:
    source = tmp_path / "mine.yaml"
    source.write_text("source: {kind: synthetic, queries: 300}\n")
    copy = cabs_home / "pools" / "mine.yaml"
    with pytest.raises(PoolError, match="today"):
        add_pool(source, today="log")
    assert not copy.exists()
    add_pool(source)
    earlier = copy.read_bytes()
    with pytest.raises(PoolError, match="today"):
        add_pool(source, today="log")
    assert copy.read_bytes() == earlier


def test_add_keeps_the_way_to_the_table(cabs_home: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("prompt,model,score,cost\n")
    (tmp_path / "own.yaml").write_text("source: {kind: file, path: t.csv}\n")
    assert add_pool(tmp_path / "own.yaml").pool_file.table_path() == tmp_path / "t.csv"


def test_add_refuses_a_taken_name_and_an_invalid_file_and_writes_nothing(
    cabs_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("name: demo\nsource: {kind: synthetic}\n")
    with pytest.raises(PoolError, match="'demo' is taken"):
        add_pool(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text("source: {kind: synthetic}\ntypo: 1\n")
    with pytest.raises(PoolError, match="typo"):
        add_pool(tmp_path / "y.yaml")
    assert not (cabs_home / "pools").exists()


def test_retire_sets_artifacts_aside_and_restore_brings_them_back(tiny_pool: Path) -> None:
    target, store = finished_replay(0.0, "random"), ArtifactStore()
    retire_pool("tiny", store)
    assert retired() == {"tiny"} and "tiny" not in {p.pool.name for p in active_pools()[0]}
    assert store.children(("replay",)) == [] and store.children(("outcomes",)) == []
    with pytest.raises(PoolError, match="cabs pool restore tiny"):
        active_pool("tiny")
    restore_pool("tiny", store)
    assert chain_of().status(target).state == "fresh" and active_pool("tiny").pool.name == "tiny"
    with pytest.raises(PoolError, match="not retired"):
        restore_pool("tiny", store)
    with pytest.raises(PoolError, match="no pool called"):
        retire_pool("nothing", store)


def test_artifacts_that_were_set_aside_can_be_deleted_also_without_the_pool_file(tiny_pool: Path) -> None:
    store = ArtifactStore()
    finished_replay(0.0, "random")
    retire_pool("tiny", store)
    assert store.children(("retired", "replay")) == ["tiny"]
    tiny_pool.unlink()
    retire_pool("tiny", store, delete=True)
    assert store.children(("retired", "replay")) == []
    with pytest.raises(PoolError, match="no pool called"):
        retire_pool("tiny", store, delete=True)


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"retired": 5}', '{"retired": [1]}', "\x00"])
def test_a_damaged_registry_is_named_and_not_overwritten(tiny_pool: Path, cabs_home: Path, text: str) -> None:
    path = cabs_home / "registry.json"
    path.write_text(text)
    with pytest.raises(PoolError, match=r"registry\.json cannot be read"):
        active_pools()
    with pytest.raises(PoolError, match=r"registry\.json"):
        retire_pool("tiny", ArtifactStore())
    assert path.read_text() == text


def test_a_pool_whose_policy_cannot_be_imported_is_listed_with_the_reason(
    cabs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy with an option is imported to check the option; its module is broken."""

    def broken(path: str) -> object:
        raise ModuleNotFoundError("No module named 'left_pad'")

    monkeypatch.setattr("cabs_core.data.pools.find.resolve_name", broken)
    folder = cabs_home / "pools"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("source: {kind: synthetic}\npolicies: [{lin_ucb: {alpha: 2}}]\n")
    pools, errors = list_pools()
    assert errors == []
    (mine,) = (pool for pool in pools if pool.pool.name == "mine")
    (problem,) = mine.problems
    assert "lin_ucb" in problem and "left_pad" in problem
