"""Records, content hashes, and the store: local and on an fsspec URL, atomic, verified."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from tests_support import in_another_format

from cabs_core.base import atomic
from cabs_core.base.errors import ProvenanceError
from cabs_core.base.hashing import hash_folder, stable_hash
from cabs_core.pipeline.artifacts import ArtifactStore
from cabs_core.pipeline.artifacts.provenance import FORMAT, RECORD_NAME, Recipe, Record
from cabs_core.pipeline.artifacts.results import Summary


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, cabs_home: Path) -> ArtifactStore:
    return ArtifactStore("" if request.param == "local" else f"memory://{uuid.uuid4().hex}/artifacts")


def put(store: ArtifactStore, parts=("splits", "p"), text="1", **more) -> Record:
    with store.write(parts) as folder:
        (folder / "sub").mkdir()
        (folder / "a.txt").write_text(text)
        (folder / "sub" / "b.txt").write_text("2")
        files = hash_folder(folder)
        record = replace(Recipe("splits", "p", "c").record(files, {}), **more)
        (folder / RECORD_NAME).write_bytes(record.to_bytes())
    return record


def test_what_is_written_is_read(store: ArtifactStore) -> None:
    record = put(store)
    assert store.record(("splits", "p")) == record
    folder = store.verified(("splits", "p"), record)
    assert (folder / "a.txt").read_text() == "1"
    assert (folder / "sub" / "b.txt").read_text() == "2"
    assert store.children(("splits",)) == ["p"]


def test_a_failed_write_changes_nothing(store: ArtifactStore) -> None:
    record = put(store)
    with pytest.raises(RuntimeError), store.write(("splits", "p")) as folder:
        (folder / "a.txt").write_text("half")
        raise RuntimeError
    assert store.record(("splits", "p")) == record
    store.verified(("splits", "p"), record)
    assert store.children(("splits",)) == ["p"]


def test_move_and_delete(store: ArtifactStore) -> None:
    record = put(store)
    store.move(("splits", "p"), ("retired", "splits", "p"))
    assert store.record(("splits", "p")) is None
    assert store.record(("retired", "splits", "p")) == record
    store.delete(("retired", "splits", "p"))
    assert store.record(("retired", "splits", "p")) is None
    store.move(("splits", "nothing"), ("retired", "nothing"))


def test_an_altered_or_missing_file_is_named(cabs_home: Path) -> None:
    store = ArtifactStore()
    record = put(store)
    path = store.folder(("splits", "p")) / "a.txt"
    path.write_text("9")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ProvenanceError, match=r"a\.txt was altered.*splits of pool p"):
        store.verified(("splits", "p"), record)
    path.unlink()
    with pytest.raises(ProvenanceError, match=r"a\.txt is missing"):
        store.verified(("splits", "p"), record)
    pruned = replace(record, pruned=("a.txt",))
    store.verified(("splits", "p"), pruned)


def test_an_artifact_that_another_run_made_again_is_whole(cabs_home: Path) -> None:
    """Only what is measured differs then; a reader may hold the record from before."""
    store = ArtifactStore()

    def made(seconds: str, text: str = "1") -> Record:
        with store.write(("router", "p")) as folder:
            (folder / "a.txt").write_text(text)
            (folder / "seconds.txt").write_text(seconds)
            record = Recipe("router", "p", "c", {}, {}, ("seconds.txt",)).record(
                hash_folder(folder), {}, seconds=1.0
            )
            (folder / RECORD_NAME).write_bytes(record.to_bytes())
        return record

    held = made("1.5")
    assert made("1.7").content == held.content
    assert store.damage(("router", "p"), held) == []
    made("1.7", "another result")
    assert store.damage(("router", "p"), held) != []
    made("1.8")
    (store.folder(("router", "p")) / "seconds.txt").write_text("2")
    assert store.damage(("router", "p"), held) == ["seconds.txt was altered since it was written"]


def test_a_broken_record_says_what_to_do(cabs_home: Path) -> None:
    store = ArtifactStore()
    put(store)
    (store.folder(("splits", "p")) / RECORD_NAME).write_text("{")
    with pytest.raises(ProvenanceError, match="materialise splits/p again"):
        store.record(("splits", "p"))


@pytest.mark.parametrize(("format", "age"), [(FORMAT - 1, "earlier"), (FORMAT + 1, "later")])
def test_a_record_of_another_version_says_so_and_its_artifact_is_not_used(
    store: ArtifactStore, format: int, age: str
) -> None:
    parts = ("splits", "p")
    made = put(store, parts)
    written = in_another_format(made.to_bytes(), format)
    with store.write(parts) as folder:
        (folder / RECORD_NAME).write_bytes(written)
    record = store.record(parts)
    assert record is not None and (record.described, record.created) == (made.described, made.created)
    assert f"made by a{'n' if age == 'earlier' else ''} {age} version" in record.other_version
    assert Recipe("splits", "p", "c").outdated(record) == [record.other_version]
    with pytest.raises(ProvenanceError, match=f"{age} version"):
        store.verified(parts, record)
    with pytest.raises(ProvenanceError, match=f"{age} version"):
        Summary.of(record)


def test_a_record_without_a_field_that_this_version_has_is_of_an_earlier_version() -> None:
    values = json.loads(Recipe("s", "p", "c").record({}, {}).to_bytes())
    del values["seal"], values["packages"]
    data = json.dumps(values | {"seal": stable_hash(values, 32)}).encode()
    assert Record.parse(data).other_version


def test_a_summary_with_a_figure_that_this_version_does_not_know_is_of_an_earlier_version() -> None:
    record = Recipe("splits", "p", "c").record({}, {"rows": 5, "gone": 1})
    with pytest.raises(ProvenanceError, match=r"splits of pool p.*earlier version"):
        Summary.of(record)


def test_leftovers_of_dead_processes_are_removed_and_those_of_living_ones_kept(cabs_home: Path) -> None:
    store = ArtifactStore()
    put(store)
    dead, alive = (
        store.root / "splits" / f".q.{atomic.writer(pid)}.abcdef12.tmp" for pid in (2**22 - 3, os.getpid())
    )
    dead.mkdir(), alive.mkdir()
    assert atomic.remove_leftovers(store.root) == 1
    assert not dead.exists() and alive.exists()


def test_what_another_machine_writes_is_left_alone_for_a_day(cabs_home: Path) -> None:
    store = ArtifactStore()
    put(store)
    left = store.root / "splits" / f".q.0123abcd-{2**22 - 3}.abcdef12.tmp"
    left.mkdir()
    (left / "a.txt").touch()
    os.utime(left, (0, 0))
    assert atomic.remove_leftovers(store.root) == 0
    os.utime(left / "a.txt", (0, 0))
    assert atomic.remove_leftovers(store.root) == 1


def test_leftovers_beside_a_path_are_those_of_its_own_name_alone(tmp_path: Path) -> None:
    for name in ("router[1]", "router1", "router*", "routers"):
        (tmp_path / f".{name}.{atomic.writer(2**22 - 3)}.abcdef12.tmp").mkdir()
    assert atomic.remove_leftovers_beside(tmp_path / "router[1]") == 1
    assert atomic.remove_leftovers_beside(tmp_path / "router*") == 1
    assert sorted(path.name.split(".")[1] for path in tmp_path.iterdir()) == ["router1", "routers"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_new_artifact_takes_the_place_of_an_old_one(
    cabs_home: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    store = ArtifactStore()
    put(store, text="old")
    (store.folder(("splits", "p")) / "only_old").touch()
    put(store, text="new")
    assert (store.folder(("splits", "p")) / "a.txt").read_text() == "new"
    assert not (store.folder(("splits", "p")) / "only_old").exists()
    assert atomic.remove_leftovers(store.root) == 0
    assert [p.name for p in (store.root / "splits").iterdir()] == ["p"]


@pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged in one step on Linux only")
def test_at_no_moment_of_a_replacement_is_there_neither(
    cabs_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore()
    put(store, text="old")
    path = store.folder(("splits", "p")) / "a.txt"
    seen = []
    for module, name in ((os, "replace"), (os, "rename"), (shutil, "rmtree"), (atomic, "exchange")):
        real = getattr(module, name)

        def step(*args, real=real, **more):
            seen.append(path.read_text())
            done = real(*args, **more)
            seen.append(path.read_text())
            return done

        monkeypatch.setattr(module, name, step)
    put(store, text="new")
    assert seen[0] == "old" and seen[-1] == "new" and set(seen) == {"old", "new"}


def test_the_key_depends_on_everything_and_not_on_order() -> None:
    base = Recipe("s", "p", "c", {"a": 1, "b": 2}, {"x": "1"})
    assert base.key == Recipe("s", "p", "c", {"b": 2, "a": 1}, {"x": "1"}).key
    for change in (
        {"name": "t"},
        {"partition": "q"},
        {"code_version": "d"},
        {"config": {"a": 1, "b": 3}},
        {"inputs": {"x": "2"}},
    ):
        assert replace(base, **change).key != base.key


def test_reasons_name_inputs_settings_and_code() -> None:
    record = Recipe("s", "p", "c1", {"a": 1, "gone": 2}, {"x": "1", "y": "1"}).record({}, {})
    assert Recipe("s", "p", "c2", {"a": 2}, {"x": "2", "z": "1"}).outdated(record) == [
        "x changed",
        "y is no longer an input",
        "z is a new input",
        "setting a: 1 -> 2",
        "setting gone: 2 -> null",
        "code version c1 -> c2",
    ]


def test_a_record_survives_the_way_to_disk_and_back_and_no_change_of_it_does() -> None:
    record = Recipe("s", "p", "c", {"a": [1, 2]}, {"x": "1"}, ("t",)).record(
        {"f": {"sha256": "0", "bytes": 3}, "t": {"sha256": "1", "bytes": 3}}, {"rows": 5, "_x": {"y": None}}
    )
    data = record.to_bytes()
    assert Record.parse(data) == record
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(ValueError):
            Record.parse(bytes(changed))
