"""Code that nobody read: it passes by being right, and reaches nothing that it should not."""

from __future__ import annotations

import os
import resource
import socket
import time
from pathlib import Path

import pytest

from cabs_core.data.collect.scorers.box import Box, kind_of_box, run_in
from cabs_core.data.collect.scorers.text import chosen_letter, code_of, json_value, last_number

TESTS = "assert add(2, 3) == 5"
RIGHT = "def add(a, b):\n    return a + b\n"
BOXES = list(dict.fromkeys([kind_of_box(), Box("limits")]))
boxes = pytest.mark.parametrize("box", BOXES, ids=lambda box: box.kind)


def run(code: str, box: Box | None = None, tests: str = TESTS, seconds: float = 10.0) -> bool:
    return run_in(box or kind_of_box(), code, tests, seconds, 256)


@boxes
def test_right_code_passes_and_wrong_code_does_not(box: Box) -> None:
    assert run(RIGHT, box)
    assert run(
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int' = 5\n" + RIGHT,
        box,
        "assert P().x == add(2, 3)",
    )
    threads = (
        "import threading\ndef add(a, b):\n"
        "    t = threading.Thread(target=print)\n    t.start(); t.join()\n    return a + b\n"
    )
    assert run(threads, box)
    assert run(RIGHT + "s = 'é' * 300_000\n", box, f"{TESTS}\nassert len(s) == 300_000\n# {'x' * 200_000}")
    assert not run(RIGHT.replace("+", "-"), box)
    assert not run("def add(a, b:", box) and not run(RIGHT, box, "assert add(")


#: ways to claim success
CLAIMS = {
    "exit": "import sys\nsys.exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "print of its own file": "import sys\nprint(open(sys.argv[0] or __file__).read())",
    "a word to every descriptor": (
        "import os\nfor f in range(64):\n    try: os.write(f, b'+' * 40)\n    except OSError: pass"
    ),
    "exit in the tests": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "nothing": "",
}


@boxes
@pytest.mark.parametrize("claim", CLAIMS)
def test_failing_code_cannot_say_that_it_passed(box: Box, claim: str) -> None:
    assert not run(CLAIMS[claim], box)
    assert not run(CLAIMS[claim] + "\ndef add(a, b):\n    return 0", box)


@boxes
def test_limits(box: Box) -> None:
    assert not run("while True: pass", box, seconds=0.5)
    assert not run("x = [0] * 10**9\n" + RIGHT, box)
    assert not run("open('/tmp/big', 'wb').write(b'x' * 10**8)\n" + RIGHT, box)
    assert not run("import os\nassert os.environ.get('HOME') or os.environ.get('CABS_HOME')\n" + RIGHT, box)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not run("while True: print('x' * 10**6)", box, seconds=1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, (
        "kilobytes: what is printed is not kept"
    )


@pytest.mark.skipif(
    kind_of_box().kind == "limits", reason="this machine lets nobody make namespaces, and has no bubblewrap"
)
class TestShutOff:
    """What a box takes away."""

    def test_other_processes(self) -> None:
        look = (
            "import os\nfound = []\nfor name in os.listdir('/proc') if os.path.isdir('/proc') else []:\n"
            "    if name.isdigit() and int(name) != os.getpid():\n"
            "        found.append(open(f'/proc/{name}/environ', 'rb').read())\n"
            "assert not any(found), found\n"
        )
        assert run(look + RIGHT)
        assert not run(f"import os\nos.kill({os.getpid()}, 0)\n" + RIGHT)

    def test_files(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("key")
        for path in (secret, Path(__file__), "/etc/passwd", "/var", "/home"):
            assert not run(f"import os\nassert os.path.exists({str(path)!r})\n" + RIGHT), path
        for path in ("/usr/x", os.path.realpath("/bin") + "/x", "/x", "/dev/x"):
            assert not run(f"open({path!r}, 'w')\n" + RIGHT), path
        assert run("open('/tmp/x', 'w').write('y' * 1000)\nopen('z', 'w')\n" + RIGHT)
        many = "for i in range(60):\n    open(f'/tmp/{i}', 'wb').write(b'x' * 10**6)\n"
        assert not run(many + RIGHT), "60 MB in many files"

    def test_network(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert not run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\n" + RIGHT)

    def test_rights(self) -> None:
        for call in (
            "os.chroot('/')",
            "os.setuid(0)\nassert os.getuid() == 0 and os.listdir('/root')",
            "os.sethostname",
        ):
            assert not run(f"import os\n{call}\n" + RIGHT), call
        mount = "import ctypes\nassert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0\n"
        assert not run(mount + RIGHT) and not run(
            mount.replace("mount(b'none', b'/tmp', b'tmpfs', 0, None)", "unshare(0x10000000)") + RIGHT
        )

    @pytest.mark.skipif(
        kind_of_box() == Box("unshare") and os.geteuid() == 0, reason="the kernel counts no processes of root"
    )
    def test_processes(self) -> None:
        assert not run(
            "import os, time\nfor _ in range(200):\n    if not os.fork(): time.sleep(30)\n" + RIGHT
        )

    def test_a_daemon_ends_with_it(self) -> None:
        mark = f"daemon{os.getpid()}x{time.monotonic_ns()}"
        leave = (
            "import os, sys, time\nif not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
            f"    os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', {mark!r}])\n"
            "time.sleep(0.3)\n"
        )
        assert run(leave + RIGHT)
        end = time.monotonic() + 30  # the kernel ends them, in its own time
        while (
            alive := [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark in _read(p)]
        ) and time.monotonic() < end:
            time.sleep(0.05)
        assert not alive


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def test_answers_are_run_in_the_tightest_box() -> None:
    assert (kind_of_box().kind == "limits") == ("limits alone" in kind_of_box().in_words)
    assert run_in(kind_of_box(), code_of(f"Here:\n```python\n{RIGHT}```"), TESTS, 10.0, 256)


@pytest.mark.parametrize(
    "read", [code_of, chosen_letter, last_number, lambda t: json_value(t) if "{" in t else None]
)
@pytest.mark.parametrize(
    "text",
    [
        "```" + "\n" * 200_000,
        "```python" + " " * 200_000 + "x",
        "answer" + " " * 200_000,
        "answer is" + "*\n" * 100_000,
    ],
)
def test_long_runs_of_one_character_take_linear_time(read, text: str) -> None:
    """They took quadratic time (minutes) or worse; a processor second is ample."""
    begin = time.process_time()
    read(text)
    assert time.process_time() - begin < 1.0
