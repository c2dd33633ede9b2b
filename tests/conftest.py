"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from hub_server import HubServer

# no limit by the clock: an example takes as long as a busy machine lets it
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Each commit of a SQLite database waits for the disk, and a run makes hundreds: tests write into memory where
# there is room (and programs may be started from there).
_MEMORY = Path("/dev/shm")
if (
    _MEMORY.is_dir()
    and shutil.disk_usage(_MEMORY).free > 8 << 30
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first, so that no worker is left with one while the others have ended."""
    e2e, slow = ({i.path for i in items if i.get_closest_marker(mark)} for mark in ("e2e", "slow"))
    items.sort(key=lambda item: (item.path not in e2e, item.path not in slow))


_BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real outcome tables; skips where it is absent."""
    folder = Path(os.environ.get("CABS_DATA_DIR") or _BESIDE)
    if not (folder / "openllm_lb_v2_carrot.parquet").is_file():
        pytest.skip(f"the real outcome tables are not at {folder}: set CABS_DATA_DIR to run this test")
    return folder


@pytest.fixture
def cabs_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh CABS_HOME (and DAGSTER_HOME and pools folder under it) for one test."""
    home = tmp_path / "cabs_home"
    home.mkdir()
    monkeypatch.setenv("CABS_HOME", str(home))
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    monkeypatch.delenv("CABS_POOLS_DIR", raising=False)
    (home / "dagster").mkdir()
    return home


@pytest.fixture
def hub(cabs_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The local hub, with huggingface_hub and the raw-file host pointed at it; nothing is cached yet."""
    from hub_server import HubServer
    from huggingface_hub import constants

    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 15)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
        monkeypatch.setenv("CABS_GITHUB_RAW", server.url)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def tiny_pool(cabs_home: Path) -> Path:
    """The file of a pool whose chain takes seconds, in the pool folder of a fresh CABS_HOME."""
    from tests_support import TINY

    path = cabs_home / "pools" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def _ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from click.testing import CliRunner
    from tests_support import TINY, home_with, made_once

    from cabs_dagster.cli import main

    def run(home: Path) -> None:
        with home_with(TINY.replace("lin_ucb]", "ridge, lin_ucb]"), home):
            done = CliRunner().invoke(main, ["run", "tiny"])
            assert done.exit_code == 0, done.output

    return made_once(tmp_path_factory, "ran", run)


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CABS_HOME with the stages of the pool `tiny`, before any replay; to be copied."""
    from tests_support import TINY, home_with, made_once, made_stages

    def make(home: Path) -> None:
        with home_with(TINY, home):
            made_stages()

    return made_once(tmp_path_factory, "staged", make)


@pytest.fixture
def ran(_ran: Path, cabs_home: Path) -> Path:
    """A CABS_HOME of this test alone in which `cabs run tiny` went through."""
    return shutil.copytree(_ran, cabs_home, dirs_exist_ok=True)


@pytest.fixture
def s3(monkeypatch):
    """A client of an empty object store on this machine with a bucket `cabs`; fsspec's drivers find it,
    too."""
    s3fs = pytest.importorskip("s3fs", reason="needs the extra s3")
    moto = pytest.importorskip("moto.server", reason="needs moto[server]")
    import boto3
    import requests

    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name, value in {
        "ACCESS_KEY_ID": "test",
        "SECRET_ACCESS_KEY": "test",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    requests.post(f"http://{host}:{port}/moto-api/reset", timeout=30)
    client = boto3.client("s3")
    client.create_bucket(Bucket="cabs")
    yield client
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


# Not for the session: while Playwright runs, its loop stands in the thread, and asyncio.run would fail.
@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium found: install it to run this test")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def axe():
    """axe(page) -> faults of accessibility; none without `AXE_PATH`, the file axe.min.js of axe-core."""
    path = os.environ.get("AXE_PATH")
    source = Path(path).read_text(encoding="utf-8") if path else ""

    def check(page):
        if not source:
            return []
        page.evaluate(source)
        return [(v["id"], v["nodes"][0]["html"][:200]) for v in page.evaluate("axe.run()")["violations"]]

    return check
