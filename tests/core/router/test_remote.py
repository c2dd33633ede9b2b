"""A router on an object store: exported to it, served from it, replaced under a running server; slow,
failing, damaged."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from server_support import FIGURES, wait
from starlette.testclient import TestClient

from cabs_core.base.errors import ProvenanceError, RouterError, StorageError
from cabs_core.router import remote
from cabs_core.router.bundle import read_manifest
from cabs_core.router.remote import Follower, fetch, fetch_or_keep, local_folder, publish
from cabs_server.app import make_app
from cabs_server.main import main

URL = "s3://cabs/routers/tiny"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.slow
def test_a_running_server_takes_the_router_that_is_put_there(s3, make_bundle, monkeypatch) -> None:
    old, new = make_bundle("ridge"), make_bundle("lin_ts")
    first = publish(old, URL)
    folder = fetch(URL)
    assert read_manifest(folder).id == first and fetch(URL) == folder
    monkeypatch.setattr("cabs_server.app.Follower", lambda url: Follower(url, 0.1))
    with TestClient(
        make_app(
            folder, None, source=URL, log=":memory:", every=0.05, metrics=FIGURES.removeprefix("http://")
        ),
        base_url="http://127.0.0.1",
    ) as client:
        assert client.get("/healthz").json()["bundle"] == first
        second = publish(new, URL)
        assert wait(lambda: client.get("/healthz").json()["bundle"] == second)
        assert "cabs_follower_failures_total" in client.get(f"{FIGURES}/metrics").text
    names = [o["Key"] for o in s3.list_objects_v2(Bucket="cabs")["Contents"]]
    expected = {f"routers/tiny/{n}" for n in (*read_manifest(new).files, "router.json")}
    assert set(names) == expected  # nothing is left of the first


def test_the_command_line_takes_a_url(s3, make_bundle) -> None:
    publish(make_bundle("ridge"), URL)
    done = CliRunner().invoke(main, ["route", "how many legs?", "--json", "--router", URL])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        main, ["feedback", json.loads(done.output)["id"], "--score", "1", "--router", URL]
    )
    assert done.exit_code == 0 and "recorded" in done.output
    done = CliRunner().invoke(main, ["doctor", "--router", URL])
    assert "1 decisions, 1 scored" in done.output
    done = CliRunner().invoke(main, ["rollback", "--router", URL])
    assert done.exit_code == 2 and "keeps no earlier router" in done.output
    assert not Path("s3:").exists()


def test_what_is_not_there_is_said(s3, make_bundle) -> None:
    with pytest.raises(RouterError, match=f"no router.*{URL}"):
        fetch(URL)
    s3.put_object(Bucket="cabs", Key="routers/tiny/report.html", Body=b"mine")
    with pytest.raises(StorageError, match=r"'report.html' and no router"):
        publish(make_bundle("ridge"), URL)


def test_a_router_is_put_over_an_earlier_one_and_over_no_file_of_a_user(s3, make_bundle) -> None:
    first = publish(make_bundle("ridge"), URL)
    s3.put_object(Bucket="cabs", Key="routers/tiny/notes/today.md", Body=b"mine")
    with pytest.raises(StorageError, match=r"'notes/today.md', which is no part of a router"):
        publish(make_bundle("lin_ts"), URL)
    assert read_manifest(fetch(URL)).id == first, "nothing was written"
    s3.delete_object(Bucket="cabs", Key="routers/tiny/notes/today.md")
    s3.put_object(Bucket="cabs", Key="routers/tiny/policy/left_by_an_interrupted_upload.npz", Body=b"")
    second = publish(make_bundle("lin_ts"), URL)
    assert read_manifest(fetch(URL)).id == second
    assert s3.list_objects_v2(Bucket="cabs", Prefix="routers/tiny/policy/left")["KeyCount"] == 0


@pytest.mark.slow
def test_a_damaged_or_half_uploaded_router_is_refused_and_the_copy_stays(s3, make_bundle) -> None:
    first = publish(make_bundle("ridge"), URL)
    folder = fetch(URL)
    new = read_manifest(make_bundle("lin_ts"))
    body = (make_bundle("lin_ts") / "router.json").read_bytes()
    s3.put_object(Bucket="cabs", Key="routers/tiny/router.json", Body=body)
    with pytest.raises(ProvenanceError, match=r"altered|missing"):
        fetch(URL)
    assert read_manifest(folder).id == first and fetch_or_keep(URL) == folder
    assert publish(make_bundle("lin_ts"), URL) == new.id and read_manifest(fetch(URL)).id == new.id
    header = json.loads(body)
    header["files"]["../../outside"] = "0" * 64
    s3.put_object(Bucket="cabs", Key="routers/tiny/router.json", Body=json.dumps(header).encode())
    with pytest.raises(ProvenanceError):
        fetch(URL)


def test_a_damaged_copy_is_fetched_again(s3, make_bundle) -> None:
    publish(make_bundle("ridge"), URL)
    folder = fetch(URL)
    (folder / "policy" / "state.npz").write_bytes(b"damaged")
    read_manifest(fetch(URL))  # which compares the hashes of all files


def test_a_store_that_is_away_delays_a_new_router_and_nothing_else(s3, make_bundle, monkeypatch) -> None:
    publish(make_bundle("ridge"), URL)
    folder = fetch(URL)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    assert fetch_or_keep(URL) == folder  # a server starts
    shutil.rmtree(local_folder(URL))
    with pytest.raises(StorageError, match=r"bucket.*credentials.*endpoint"):
        fetch_or_keep(URL)


def test_a_slow_store_holds_up_no_request(make_bundle, monkeypatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(url: str) -> Path:
        asked.set()
        answer.wait(60)
        raise StorageError("at last")

    monkeypatch.setattr(remote, "fetch", slow)
    monkeypatch.setattr("cabs_server.app.Follower", lambda url: Follower(url, 0.01))
    with TestClient(
        make_app(make_bundle("ridge"), None, source=URL, log=":memory:"), base_url="http://127.0.0.1"
    ) as client:
        assert asked.wait(20)
        assert client.post("/v1/decision", json={"text": "how many legs?"}).status_code == 200
        answer.set()
        assert wait(lambda: client.app.state.follower.failures > 0)
