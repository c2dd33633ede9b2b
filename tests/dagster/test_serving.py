"""Nothing of `dagster dev` is left behind when it, or the process that started it, is killed by force."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from cabs_core.base.errors import CabsError
from cabs_dagster.instance import workspace
from cabs_dagster.instance.serve import require_free
from tests.gauntlet.stage import wait

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel tells of dead parents on Linux only"
)

ROOT = Path(__file__).resolve().parents[2]
#: a stand-in for `dagster dev`: starts a "web server" and a "run", writes down the process ids, waits. Its
#: own command line does not name the service
FAKE = """
import os, subprocess, sys, time
from pathlib import Path
sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
pids = [os.getpid(), *(subprocess.Popen([*sleep, name]).pid for name in ("dagster_" "webserver", "run"))]
Path("pids.tmp").write_text(" ".join(map(str, pids)))
os.replace("pids.tmp", "pids")
time.sleep(100)
"""
SERVE = """import sys
from cabs_dagster.instance.serve import serve
sys.exit(serve([sys.executable, '-c', sys.argv[1]]))"""


@pytest.fixture
def served(request, tmp_path: Path):
    """(the process that serves, process ids of the stand-in, its service and its run)."""
    interrupts = getattr(request, "param", signal.SIG_DFL)  # what its parent does with SIGINT

    def prepare() -> None:
        signal.signal(signal.SIGINT, interrupts)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may themselves run under nohup

    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, FAKE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=prepare,
    )
    assert wait(lambda: (tmp_path / "pids").exists(), 120.0)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    yield process, pids
    for pid in (process.pid, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def gone(pid: int) -> bool:
    """No such process, or one that ended and nobody has asked after (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.mark.slow
def test_services_and_runs_end_when_dagster_dev_is_killed(served) -> None:
    process, (dev, service, run) = served
    os.kill(dev, signal.SIGKILL)
    assert process.wait(timeout=120) == -signal.SIGKILL % 256
    assert gone(service) and gone(run)


def test_dagster_dev_is_interrupted_when_its_parent_is_killed(served) -> None:
    process, (dev, _, _) = served
    process.kill()
    process.wait()
    assert wait(lambda: gone(dev), 120.0)


@pytest.mark.slow
@pytest.mark.parametrize("served", [signal.SIG_IGN], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_in_the_background_too(served, number) -> None:
    """A shell without job control starts background commands with SIGINT ignored."""
    process, (dev, service, run) = served
    os.kill(process.pid, number)
    assert process.wait(timeout=120) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert wait(lambda: gone(dev), 120.0)
    if number != signal.SIGKILL:
        assert gone(service) and gone(run)


def test_a_service_that_ends_is_named_and_ends_the_rest(served) -> None:
    process, (dev, service, run) = served
    time.sleep(2.5)  # services are looked for once a second
    os.kill(service, signal.SIGKILL)
    assert process.wait(timeout=120) == 1
    assert "web server" in process.stderr.read().decode()
    assert gone(dev) and gone(run)


#: a service that takes two seconds to end, and starts another of its kind
SLOW = """
import signal, subprocess, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), sys.exit()))
sleep = "import time; time.sleep(100)"
api = subprocess.Popen([sys.executable, "-c", sleep, "dagster", "api", "grpc"]).pid
Path("ready").write_text(str(api))
time.sleep(100)
"""
STARTS_SLOW = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLOW!r}, "dagster", "code-server"])
time.sleep(100)
"""


@pytest.mark.slow
def test_who_asks_twice_leaves_nothing_behind_either(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, STARTS_SLOW],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    assert wait(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text(), 120.0)
    api = int((tmp_path / "ready").read_text())
    for _ in range(3):
        process.terminate()
        time.sleep(0.5)
    assert process.wait(timeout=120) == 130
    assert gone(api)


@pytest.mark.slow
def test_ctrl_c_gives_its_code(served) -> None:
    process, (dev, service, _) = served
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group
    assert process.wait(timeout=120) == 130
    assert gone(dev) and gone(service)


def test_a_busy_port_is_refused_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CabsError, match=f"port {port} .* cabs ui --port {port + 1}"):
            require_free(port)
    require_free(port)


def test_the_ui_imports_from_where_the_package_lies(cabs_home: Path) -> None:
    """Without a working directory Dagster's code server imports what lies in the current directory first."""
    (module,) = (entry["python_module"] for entry in yaml.safe_load(workspace().read_text())["load_from"])
    assert workspace().parent == cabs_home / "dagster" and module["location_name"] == "cabs"
    assert Path(module["working_directory"], *module["module_name"].split(".")).with_suffix(".py").is_file()
