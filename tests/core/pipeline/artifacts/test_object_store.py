"""Artifacts on an object store: the same contents as on a folder, shared by machines, errors in words, kill
-9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from tests_support import TINY, chain_of

from cabs_core.base.errors import StorageError, is_transient
from cabs_core.pipeline.artifacts import ArtifactStore, make_artifact
from cabs_core.pipeline.artifacts.materialize import produce
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Recipe
from tests.gauntlet.stage import wait

pytest.importorskip("s3fs", reason="needs the extra s3")
Store = pytest.importorskip("tests.object_store", reason="needs moto, of the extra dev").Store


def all_made(chain) -> dict[str, tuple[str, bool]]:
    """{artifact: (content hash, whether it was there already)} of a pool's stages and replays of one rho."""
    targets = [chain.stage(name) for name in chain.stages if name != "off_policy"]
    targets += chain.replays([500.0])
    made = {t.partition + t.name: make_artifact(chain, t) for t in targets}
    return {name: (m.record.content, m.reused) for name, m in made.items()}


@pytest.mark.slow
def test_contents_are_those_of_a_folder_and_another_machine_uses_them_again(
    s3, tmp_path, monkeypatch
) -> None:
    made = {}
    for machine, artifacts in (("alone", ""), ("one", "s3://cabs/team"), ("two", "s3://cabs/team")):
        home = tmp_path / machine
        (home / "pools").mkdir(parents=True)
        (home / "pools" / "tiny.yaml").write_text(TINY, encoding="utf-8")
        monkeypatch.setenv("CABS_HOME", str(home))
        monkeypatch.setenv("CABS_ARTIFACTS", artifacts)
        made[machine] = all_made(chain_of())
    assert {n: c for n, (c, _) in made["one"].items()} == {n: c for n, (c, _) in made["alone"].items()}
    assert len(made["two"]) > 8 and all(reused for _, reused in made["two"].values())
    assert not any(reused for _, reused in made["one"].values())


def test_what_the_store_refuses_is_said(s3, monkeypatch) -> None:
    def write(url: str) -> None:
        with ArtifactStore(url).write(("splits", "tiny")) as folder:
            (folder / "a.txt").write_text("a")

    with pytest.raises(StorageError, match=r"no bucket 'nobody'.*CABS_ARTIFACTS is s3://nobody/x"):
        write("s3://nobody/x")
    assert [b["Name"] for b in s3.list_buckets()["Buckets"]] == ["cabs"]  # a mistyped one is not made
    with pytest.raises(StorageError, match=r"fsspec driver.*is installed"):
        ArtifactStore("nosuch://x")


def test_a_store_that_is_away_is_said_and_tried_again(s3, monkeypatch) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match=r"bucket.*credentials.*endpoint") as caught:
        ArtifactStore("s3://cabs/x").record(("splits", "tiny"))
    assert is_transient(caught.value)


@pytest.mark.slow
def test_a_slow_store_that_fails_now_and_then_costs_time_only(tmp_path, monkeypatch) -> None:
    """Every fourth request fails with 503: the drivers ask again.

    Once all fail, that is said, and tried again later.
    """
    import s3fs

    with Store(delay_s=0.02, fail_every=4) as unreliable:
        for name, value in {**unreliable.settings, "CABS_HOME": str(tmp_path / "one")}.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        store = ArtifactStore("s3://cabs/team")
        recipe = Recipe("splits", "tiny", "", {}, {})
        write = lambda folder: [(folder / f"{i}.txt").write_text(str(i)) for i in range(12)] and {}  # noqa: E731
        record = produce(store, ("splits", "tiny"), recipe, write, "r")
        monkeypatch.setenv("CABS_HOME", str(tmp_path / "two"))
        folder = ArtifactStore("s3://cabs/team").verified(("splits", "tiny"), record)
        assert (folder / "11.txt").read_text() == "11" and unreliable.requests > 30
        unreliable.fail_every = 1
        with pytest.raises(StorageError, match=r"bucket.*credentials.*endpoint") as caught:
            store.record(("splits", "tiny"))
        assert is_transient(caught.value)
    s3fs.S3FileSystem.clear_instance_cache()


WRITER = """
import sys
from pathlib import Path
from cabs_core.pipeline.artifacts import ArtifactStore
with ArtifactStore("s3://cabs/team").write(("splits", "tiny")) as folder:
    for i in range(400):
        (folder / f"{i:03d}.bin").write_bytes(b"x" * 20_000)
    (folder / sys.argv[1]).write_text("{}")
"""


@pytest.mark.slow
def test_killed_in_the_middle_of_an_upload_there_is_no_artifact_and_the_next_run_makes_it(s3) -> None:
    store = ArtifactStore("s3://cabs/team")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, RECORD_NAME], env=os.environ.copy())
    assert wait(lambda: s3.list_objects_v2(Bucket="cabs").get("KeyCount"), 120.0)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    uploaded = s3.list_objects_v2(Bucket="cabs").get("KeyCount", 0)
    assert 0 < uploaded < 401
    assert store.record(("splits", "tiny")) is None
    with store.write(("splits", "tiny")) as folder:
        (folder / "whole.txt").write_text("whole")
    keys = [o["Key"] for o in s3.list_objects_v2(Bucket="cabs")["Contents"]]
    assert keys == ["team/splits/tiny/whole.txt"]  # what the killed run had sent is gone


def test_an_artifact_that_another_run_replaces_meanwhile_is_read_again(s3, cabs_home, monkeypatch) -> None:
    """Two runs on one bucket: both write the leaderboard, and neither ends with a key that does not exist."""
    store, parts = ArtifactStore("s3://cabs/team"), ("leaderboard",)
    monkeypatch.setattr("cabs_core.pipeline.artifacts.store._PAUSE", 0.01)

    def write(text: str):
        return produce(
            store,
            parts,
            Recipe("leaderboard", "", text, {}, {}),
            lambda f: (f / "a.txt").write_text(text) and {},
            "r",
        )

    first = write("one")
    second = write("two")
    assert (store.written_folder(parts, first) / "a.txt").read_text() == "one", (
        "what was written stays at hand"
    )

    def forget_copies() -> None:
        for copy in (cabs_home / "cache").rglob("a.txt"):
            copy.unlink()
            (copy.parent / RECORD_NAME).unlink()

    forget_copies()
    get, seen = store.bucket.fs.get_file, []

    def slow(remote, local):
        if not seen:  # between reading the record and the file, another machine puts its own there
            seen.append(remote)
            s3.delete_object(Bucket="cabs", Key="team/leaderboard/" + RECORD_NAME)
            s3.delete_object(Bucket="cabs", Key="team/leaderboard/a.txt")
            elsewhere = ArtifactStore("s3://cabs/team")
            elsewhere.bucket.fs.invalidate_cache()
            with elsewhere.write(parts) as folder:
                (folder / "a.txt").write_text("three")
                (folder / RECORD_NAME).write_bytes(first.to_bytes())
            forget_copies()
            raise FileNotFoundError(remote)
        return get(remote, local)

    monkeypatch.setattr(store.bucket.fs, "get_file", slow)
    assert (store.folder(parts) / "a.txt").read_text() == "three" and seen
    assert second.content != first.content
    s3.delete_object(Bucket="cabs", Key="team/leaderboard/a.txt")
    forget_copies()
    store.bucket.fs.invalidate_cache()
    assert "a file is missing" in store.damage(parts, first)[0]
