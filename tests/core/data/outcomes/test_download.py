"""The real download code against a hub on localhost."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer
from huggingface_hub import constants

from cabs_core.base.atomic import writer
from cabs_core.base.errors import DataError, StorageError
from cabs_core.data.outcomes.download import RemoteFile, fetch

CONTENT = bytes(range(256)) * 1200
SHA = hashlib.sha256(CONTENT).hexdigest()
REPO = "someone/outcomes"


def hub_file(**changes) -> RemoteFile:
    fields = {"name": "data/a.bin", "repo": REPO, "revision": COMMIT, "size": len(CONTENT), "sha256": SHA}
    return RemoteFile(**{**fields, **changes})


def raw_file(hub: HubServer, **changes) -> RemoteFile:
    fields = {"name": "a.bin", "url": f"{hub.url}/raw/a.bin", "size": len(CONTENT), "sha256": SHA}
    return RemoteFile(**{**fields, **changes})


def put_both(hub: HubServer, content: bytes = CONTENT) -> None:
    hub.put(REPO, "data/a.bin", content)
    hub.put_raw("/raw/a.bin", content)


def either(hub: HubServer, kind: str, **changes) -> RemoteFile:
    return hub_file(**changes) if kind == "hub" else raw_file(hub, **changes)


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_download_is_verified_and_cached(hub: HubServer, kind: str) -> None:
    put_both(hub)
    first = fetch(either(hub, kind))
    assert first.path.read_bytes() == CONTENT
    assert (first.sha256, first.size) == (SHA, len(CONTENT))
    gets = len(hub.gets())
    assert fetch(either(hub, kind)).path == first.path
    assert len(hub.gets()) == gets == 1


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_cut_connection_is_tried_again(hub: HubServer, kind: str) -> None:
    put_both(hub)
    hub.state.cut_after = [100_000]
    assert fetch(either(hub, kind)).path.read_bytes() == CONTENT
    (_, first), (_, second) = hub.gets()
    assert first is None
    if kind == "hub":  # it goes on where it was cut; plain HTTPS begins again
        assert second is not None and 0 < int(second.removeprefix("bytes=").split("-")[0]) <= 100_000


def test_what_a_killed_download_left_is_removed(hub: HubServer, cabs_home: Path) -> None:
    put_both(hub)
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = cabs_home / "downloads" / SHA[:16] / f".a.bin.{writer(dead.pid)}.0123abcd.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(CONTENT[:5000])
    assert fetch(raw_file(hub)).path.read_bytes() == CONTENT
    assert [path.name for path in left.parent.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("link", ["elsewhere", "nowhere", "circle"])
def test_nothing_is_written_through_a_link(
    hub: HubServer, cabs_home: Path, tmp_path: Path, link: str
) -> None:
    put_both(hub)
    other, place = tmp_path / "other", cabs_home / "downloads" / SHA[:16] / "a.bin"
    place.parent.mkdir(parents=True)
    if link == "elsewhere":
        other.write_bytes(b"somebody's")
    place.symlink_to(place if link == "circle" else other)
    path = fetch(raw_file(hub)).path
    assert path.read_bytes() == CONTENT and not path.is_symlink()
    assert link != "elsewhere" or other.read_bytes() == b"somebody's"
    assert link != "nowhere" or not other.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the size of files stands for a full disk")
@pytest.mark.parametrize("kind", ["hub", "https"])
def test_a_full_disk_is_not_blamed_on_the_server(hub: HubServer, cabs_home: Path, kind: str) -> None:
    put_both(hub)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"a\.bin.* cannot be written: .* bytes are free in"):
            fetch(either(hub, kind))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(hub.gets()) == 1, "tried again on the same disk"
    assert fetch(either(hub, kind)).path.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["hub", "https"])
@pytest.mark.parametrize("wrong", [CONTENT[:-1] + b"?", CONTENT[:-100], CONTENT + b"more"])
def test_wrong_content_is_refused_and_named(hub: HubServer, cabs_home: Path, kind: str, wrong: bytes) -> None:
    put_both(hub, wrong)
    with pytest.raises(DataError) as caught:
        fetch(either(hub, kind))
    message = str(caught.value)
    assert ("SHA-256" in message and SHA in message) or f"{len(CONTENT):,}" in message
    assert not [path for path in (cabs_home / "downloads").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_truncated_body_is_never_returned(hub: HubServer, cabs_home: Path, kind: str) -> None:
    """The server announces the whole length, but every answer ends early and no range is honoured."""
    put_both(hub)
    hub.state.cut_after = [1000] * 60
    hub.state.ignore_ranges = True
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch(either(hub, kind))
    hub.state.cut_after = []
    assert fetch(either(hub, kind)).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("EntryNotFound", "no such file"),
        ("RepoNotFound", "no such dataset"),
        ("RevisionNotFound", "no revision"),
    ],
)
def test_not_found_on_the_hub(hub: HubServer, code: str, expected: str) -> None:
    hub.state.missing_code = code
    with pytest.raises(DataError, match=expected):
        fetch(hub_file())


def test_not_found_over_https(hub: HubServer) -> None:
    with pytest.raises(DataError, match="answered 404"):
        fetch(raw_file(hub))
    assert len(hub.gets()) == 1, "a 404 is not worth a retry"


@pytest.mark.parametrize("kind", ["hub", "https"])
@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_is_asked_again(hub: HubServer, kind: str, status: int) -> None:
    put_both(hub)
    hub.state.refuse = [status, status]
    assert fetch(either(hub, kind)).path.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_busy_for_ever_gives_up(hub: HubServer, kind: str) -> None:
    put_both(hub)
    hub.state.refuse = [503] * 200
    with pytest.raises(DataError, match=r"kept answering 503.*source\.mirror"):
        fetch(either(hub, kind))


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_without_network(hub: HubServer, kind: str) -> None:
    put_both(hub)
    file = either(hub, kind)
    hub.stop()
    with pytest.raises(DataError, match=r"cannot be reached.*source\.mirror"):
        fetch(file)


def test_an_error_without_words_is_reported_by_its_class(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)
    with pytest.raises(DataError, match=r"cannot be reached.*\(TimeoutError\)"):
        fetch(raw_file(hub))


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_cached_copy_without_network_and_offline(
    hub: HubServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_both(hub)
    file = either(hub, kind)
    fetch(file)
    hub.stop()
    assert fetch(file).path.read_bytes() == CONTENT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(file).path.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_offline_without_cache(hub: HubServer, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_both(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="offline mode is on"):
        fetch(either(hub, kind))
    assert not hub.gets()


@pytest.mark.parametrize("kind", ["hub", "https"])
def test_damaged_cache_is_repaired(hub: HubServer, kind: str) -> None:
    put_both(hub)
    path = fetch(either(hub, kind)).path
    damaged = path.resolve()
    damaged.write_bytes(CONTENT[:1000])
    assert fetch(either(hub, kind)).path.read_bytes() == CONTENT


def test_unpinned_file_is_locked_at_first_download(hub: HubServer, cabs_home: Path) -> None:
    file = hub_file(revision=None, size=None, sha256=None)
    put_both(hub)
    first = fetch(file)
    assert (first.revision, first.sha256) == (COMMIT, SHA)
    lock = cabs_home / "locks" / "someone__outcomes.json"
    assert json.loads(lock.read_text()) == {
        "revision": COMMIT,
        "files": {"data/a.bin": {"bytes": len(CONTENT), "sha256": SHA}},
    }
    assert fetch(file).revision == COMMIT

    put_both(hub, CONTENT[:-1] + b"?")
    first.path.resolve().unlink()
    asked = len(hub.state.requests)
    with pytest.raises(DataError, match=SHA) as caught:
        fetch(file)
    assert "someone__outcomes.json" in str(caught.value)
    later = [path for _, path, _ in hub.state.requests[asked:]]
    assert later and all(f"/resolve/{COMMIT}/" in path for path in later), (
        "the locked revision, not the newest"
    )


def test_damaged_lock_record(hub: HubServer, cabs_home: Path) -> None:
    lock = cabs_home / "locks" / "someone__outcomes.json"
    lock.parent.mkdir()
    lock.write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        fetch(hub_file(revision=None, size=None, sha256=None))


def test_mirror_never_asks_the_network(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "mirror"
    folder.mkdir()
    with pytest.raises(DataError, match="has no data/a"):
        fetch(hub_file(), mirror=str(folder))
    (folder / "a.bin").write_bytes(CONTENT)
    assert fetch(hub_file(), mirror=str(folder)).path == folder / "a.bin"
    (folder / "a.bin").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DataError, match=SHA):
        fetch(hub_file(), mirror=str(folder))
    assert not hub.state.requests


def test_other_schemes_are_refused(cabs_home: Path) -> None:
    for url in ("http://example.org/a.bin", "file:///etc/passwd", "ftp://example.org/a.bin"):
        with pytest.raises(DataError, match="https only"):
            fetch(RemoteFile("a.bin", url=url))


def test_environment_of_the_hub_is_respected(hub: HubServer, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and a token, in a process of its own, as a user sets them."""
    put_both(hub)
    code = (
        "from cabs_core.data.outcomes.download import RemoteFile, fetch\n"
        f"print(fetch(RemoteFile('data/a.bin', repo={REPO!r}, size={len(CONTENT)}, sha256={SHA!r})).path)"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf_home"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "hf_of_the_user",
        "HF_HUB_DISABLE_XET": "1",
        "CABS_HOME": str(tmp_path / "other_home"),
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "hf_home")
    assert "Bearer hf_of_the_user" in hub.state.tokens


def test_token_is_not_sent_to_other_hosts(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_user")
    put_both(hub)
    fetch(raw_file(hub))
    assert hub.state.tokens == {None}
