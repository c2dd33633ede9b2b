"""Run workers forked from a warm process; what is kept between processes and queries to make runs short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.test_utils import create_run_for_test
from dagster._serdes import serialize_value

from cabs_dagster import code_versions, sqlite, warm
from cabs_dagster.instance import open_instance, template
from cabs_dagster.launcher import FORKED_TAG, WORKER_TAG, LocalRunLauncher, worker_alive, worker_tag

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture
def server():
    found = warm.WarmServer()
    yield found
    found.close()


def finished(instance: dg.DagsterInstance, run_id: str, seconds: float = 120) -> dg.DagsterRun:
    end = time.monotonic() + seconds * max(1.0, os.getloadavg()[0])
    while time.monotonic() < end:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        if run.is_finished:
            return run
        time.sleep(0.2)
    raise AssertionError(f"run {run_id} did not finish")


def make_run(instance: dg.DagsterInstance, job: str) -> dg.DagsterRun:
    repository = ReconstructableRepository.for_module("cabs_dagster.definitions", "defs", str(ROOT))
    found = repository.get_reconstructable_job(job)
    return instance.create_run_for_job(found.get_definition(), job_code_origin=found.get_python_origin())


@linux
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forked_workers_execute_runs_and_a_dead_server_is_replaced(cabs_home: Path, server) -> None:
    with open_instance() as instance:
        reference = serialize_value(instance.get_ref())
        pids = []
        for _ in range(2):
            run = make_run(instance, "prune_traces")
            pids.append(server.launch(run.run_id, reference))
            assert finished(instance, run.run_id).status == dg.DagsterRunStatus.SUCCESS
        first = server._process
        assert len({*pids, first.pid, os.getpid()}) == 4  # a process of its own for each run
        first.kill()
        first.wait()
        run = make_run(instance, "prune_traces")
        assert server.launch(run.run_id, reference)
        assert finished(instance, run.run_id).status == dg.DagsterRunStatus.SUCCESS
        assert server._process is not first


def test_the_server_forks_once_a_line_and_ends_with_its_input() -> None:
    requests, ours = os.pipe()
    theirs, answers = os.pipe()
    os.write(ours, b'{"run_id": "a"}\n{"run_id": "b"}\n')
    os.close(ours)
    code = (
        "import json, sys; from cabs_dagster import warm\n"
        f"found = warm.serve({requests}, {answers})\n"
        "sys.exit(0 if found is None else 7)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], pass_fds=(requests, answers), env=environment, timeout=120
    )
    os.close(answers)
    lines = os.read(theirs, 1000).splitlines()
    assert done.returncode == 0 and len({json.loads(line)["pid"] for line in lines}) == 2


def test_an_edited_source_file_changes_the_stamp(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "stamped"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warm, "_PACKAGES", ("stamped",))
    before = warm.source_stamp()
    assert warm.source_stamp() == before
    (package / "model.sql").write_text("select 1")
    with_sql = warm.source_stamp()
    (tmp_path / ".env").write_text("A=1")
    assert len({before, with_sql, warm.source_stamp()}) == 3


def test_a_forked_run_is_interrupted_by_a_signal_and_its_health_follows_the_process(cabs_home: Path) -> None:
    # as a worker does: what starts the tests may have set SIGINT to be ignored
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "try:\n print(1, flush=True)\n time.sleep(600)\nexcept KeyboardInterrupt:\n raise SystemExit(5)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline()
    with open_instance() as instance:
        tags = {WORKER_TAG: worker_tag(child.pid), FORKED_TAG: "yes"}
        run = create_run_for_test(instance, "a", status=dg.DagsterRunStatus.STARTED, tags=tags)
        assert isinstance(instance.run_launcher, LocalRunLauncher) and worker_alive(instance, run)
        assert instance.run_launcher.terminate(run.run_id)
        assert child.wait(timeout=60) == 5
        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELING
        assert not instance.run_launcher.terminate(run.run_id)
        assert instance.run_launcher.check_run_worker_health(run).status.value == "NOT_FOUND"


def test_the_launcher_can_be_told_to_start_cold(cabs_home: Path) -> None:
    text = template("sqlite").replace("warm: true", "warm: false")
    (cabs_home / "dagster" / "dagster.yaml").write_text(text)
    with open_instance() as instance:
        assert instance.run_launcher._server is None


def test_output_of_steps_is_kept_without_helper_processes(cabs_home: Path) -> None:
    with open_instance() as instance:
        key = ["run", "compute_logs", "step"]
        before = _children()
        with instance.compute_log_manager.capture_logs(key):
            assert _children() == before
            os.write(sys.stdout.fileno(), b"printed by a step\n")
        assert instance.compute_log_manager.get_log_data(key).stdout == b"printed by a step\n"
        assert instance.compute_log_manager.is_capture_complete(key)


def _children() -> set[str]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(path.read_text().split()) if path.exists() else set()


def test_connections_are_used_again_and_closed_on_release(cabs_home: Path) -> None:
    from sqlalchemy import text

    with open_instance() as instance:
        opened = []
        for _ in range(5):
            with instance.event_log_storage.index_connection() as connection:
                opened.append(connection.connection.dbapi_connection)
                assert connection.execute(text("PRAGMA synchronous")).scalar() == 1
        assert len(set(map(id, opened))) <= 2
        sqlite.release()
        assert not sqlite._ENGINES and not sqlite._KEPT
        assert instance.get_runs() == []  # opened anew


def test_parsed_sources_are_kept_for_the_next_process(cabs_home: Path, monkeypatch, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("import cabs_core.paths\nimport json\n")
    monkeypatch.setattr(code_versions, "_new", {})
    code_versions._parsed.cache_clear()
    code_versions._kept.cache_clear()
    found = code_versions._parse(source)
    assert found[1] == ("cabs_core.paths",)
    code_versions.remember()
    code_versions._parsed.cache_clear()
    code_versions._kept.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(code_versions, "_read", lambda path: pytest.fail("parsed again"))
        assert code_versions._parse(source) == found
    source.write_text("import cabs_core.atomic\n")
    assert code_versions._parse(source) != found
    code_versions._parsed.cache_clear()
    code_versions._kept.cache_clear()
