"""Python code that nobody read, in a process with limits, and shut off from files, network and other
processes where that is possible.

What shuts it off is chosen once (`kind_of_box`): bubblewrap where it is installed, else the namespaces of
Linux (`unshare`) where the kernel lets this user make them, else nothing but limits. A root user's code runs
as nobody where the interpreter can be read by nobody.
"""

import ctypes
import os
import resource
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

_MEGABYTE = 1 << 20
#: most bytes of a file, and of all files where a box has its own; most processes and threads
_FILES, _PROCESSES = 16 * _MEGABYTE, 64
_NOBODY = 65534
_SYSTEM = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/lib32",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
)
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

#: Runs the code, then says so and is sent the tests, then sends back the word that came with them. The pipes
#: have numbers that
#: are drawn, nothing else keeps the word, and the code has run before it exists in the process.
_DRIVER = """
def main():
    import fcntl, os, random, sys
    def move(number):
        new = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, random.randrange(10, 60))
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, number)
        os.close(nothing)
        return new
    given, answer = move(0), move(1)
    def piece():
        size, data = int(os.read(given, 12)), b""
        while len(data) < size and (more := os.read(given, size - len(data))):
            data += more
        return data.decode()
    space = vars(sys.modules["__main__"])
    del space["main"]
    exec(compile(piece(), "answer.py", "exec"), space)
    os.write(answer, b"+")
    exec(compile(piece(), "tests.py", "exec"), space)
    os.write(answer, piece().encode())
    os._exit(0)
main()
"""

#: A root of its own: system and interpreter to be read, an empty /tmp, no other file; then no rights in it.
_UNSHARED = """
set -e
root=$1; size=$2; prefix=$3; user=$4; shift 4
mount -t tmpfs -o size=$size,mode=0755 none "$root"
for path in @SYSTEM@ "$prefix"; do
  [ -e "$path" ] && [ ! -e "$root$path" ] || continue
  if [ -L "$path" ]; then ln -s "$(readlink "$path")" "$root$path"; continue; fi
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root/etc"; : > "$root$path"; fi
  mount --bind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path" 2> /dev/null || mount -o remount,bind,ro,nosuid,nodev "$root$path"
done
mkdir "$root/proc" "$root/dev" "$root/tmp"
chmod 1777 "$root/tmp"
mount -t proc none "$root/proc" 2> /dev/null || :
for name in null zero random urandom; do
  : > "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
bare="--no-new-privs --bounding-set=-all --inh-caps=-all"
exec chroot "$root" setpriv $user $bare prlimit "--nproc=@PROCESSES@" env -C /tmp "$@"
""".replace("@SYSTEM@", " ".join(_SYSTEM)).replace("@PROCESSES@", str(_PROCESSES))


@dataclass(frozen=True)
class Box:
    """How code is shut off: `bubblewrap`, `unshare` or `limits`, and as which user (None: this one)."""

    kind: str
    user: int | None = None

    @property
    def in_words(self) -> str:
        """For people: what the code can reach."""
        if self.kind == "limits":
            return (
                "with limits alone: it can read this user's files and use the network. Install bubblewrap, "
                "or allow user namespaces, to shut it off"
            )
        return f"shut off from files, network and other processes ({self.kind})"

    @property
    def _as_user(self) -> str:
        """Options of setpriv."""
        return "" if self.user is None else f"--reuid={self.user} --regid={self.user} --clear-groups"

    def command(self, folder: str, size: int) -> list[str]:
        """What starts the driver. folder: an empty one; size: bytes of files."""
        run = [os.path.realpath(sys.executable), "-I", "-S", "-c", _DRIVER]
        if self.kind == "unshare":
            spaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
            spaces += ["--user", "--map-root-user"] if self.user is None else []
            given = [folder, str(size), sys.base_prefix, self._as_user]
            return ["unshare", *spaces, "sh", "-c", _UNSHARED, "sh", *given, *run]
        if self.kind == "bubblewrap":
            seen = [path for path in _SYSTEM if os.path.exists(path)]
            seen += [] if sys.base_prefix.startswith("/usr") else [sys.base_prefix]
            above = [str(path) for path in reversed(Path(sys.base_prefix).parents) if str(path) != "/"]
            shown = [part for path in above for part in ("--perms", "0755", "--dir", path)]
            for path in seen:
                link = os.path.islink(path)
                shown += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
            rights = (
                ["--unshare-user"]
                if self.user is None
                else ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            )
            rights += ["--cap-add", "CAP_SETPCAP"] if self.user is not None else []
            drop = [
                "setpriv",
                *self._as_user.split(),
                "--no-new-privs",
                "--bounding-set=-all",
                "--inh-caps=-all",
            ]
            return [
                str(shutil.which("bwrap")),
                *"--unshare-pid --unshare-net --unshare-ipc --unshare-uts --die-with-parent".split(),
                *"--new-session --cap-drop ALL".split(),
                *rights,
                *shown,
                *f"--proc /proc --dev /dev --perms 1777 --size {size} --tmpfs /tmp".split(),
                *"--chdir /tmp --remount-ro /".split(),
                *(drop if self.user is not None else []),
                "prlimit",
                f"--nproc={_PROCESSES}",
                *run,
            ]
        return run


@lru_cache(maxsize=1)
def kind_of_box() -> Box:
    """The tightest box in which a program that is right passes on this machine."""
    users: tuple[int | None, ...] = (_NOBODY, None) if os.geteuid() == 0 else (None,)
    kinds = [k for k, needs in (("bubblewrap", "bwrap"), ("unshare", "unshare")) if shutil.which(needs)]
    boxes = [Box(kind, user) for user in users for kind in kinds] + [Box("limits", user) for user in users]
    return next((box for box in boxes[:-1] if _works(box)), boxes[-1])


def _works(box: Box) -> bool:
    try:
        return run_in(box, "x = 1", "assert x", 30.0, 512)
    except OSError:  # of the start: no such program, or nobody may not read the interpreter
        return False


def run_in(box: Box, code: str, tests: str, seconds: float, megabytes: int) -> bool:
    """Whether code, and then its tests, end without an error, in so many seconds and megabytes of memory.

    What they print is not kept. At the end their processes are killed: all, or without a box the group's.
    """
    if box.kind == "limits":
        _hide_this_process()
    with tempfile.TemporaryDirectory(prefix="cabs-tests-", ignore_cleanup_errors=True) as folder:
        user: dict[str, Any] = {}
        if box.user is not None and box.kind == "limits":  # a box changes the user by itself, once it is made
            user = {"user": box.user, "group": box.user, "extra_groups": []}
            os.chown(folder, box.user, box.user)
        process = subprocess.Popen(
            box.command(folder, _FILES),
            cwd=folder,
            env={} if box.kind == "limits" else _PATH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
            preexec_fn=_limits(seconds, megabytes, boxed=box.kind != "limits"),
            **user,
        )
        assert process.stdin and process.stdout  # pipes
        try:
            return _talk(process.stdin, process.stdout, code, tests, time.monotonic() + seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _talk(given: IO[bytes], answer: IO[bytes], code: str, tests: str, end: float) -> bool:
    word = secrets.token_hex(16)
    try:
        _send(given, code, end)
        if _heard(answer, 1, end) != b"+":
            return False
        _send(given, tests, end)
        _send(given, word, end)
        return _heard(answer, len(word) + 1, end) == word.encode()
    except (BrokenPipeError, TimeoutError):
        return False


def _send(pipe: IO[bytes], text: str, end: float) -> None:
    data = text.encode("utf-8", "replace")
    data = b"%12d" % len(data) + data
    os.set_blocking(pipe.fileno(), False)
    while data:
        if not select.select([], [pipe], [], max(end - time.monotonic(), 0.0))[1]:
            raise TimeoutError
        data = data[os.write(pipe.fileno(), data[:65536]) :]


def _heard(pipe: IO[bytes], most: int, end: float) -> bytes:
    """What comes until the pipe ends, at most so many bytes."""
    data = b""
    while len(data) < most and select.select([pipe], [], [], max(end - time.monotonic(), 0.0))[0]:
        more = os.read(pipe.fileno(), most - len(data))
        if not more:
            break
        data += more
    return data


def _limits(seconds: float, megabytes: int, *, boxed: bool) -> Callable[[], None]:
    """What the process limits before it starts: time, memory, size of files, processes, core dumps."""
    limits = [
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, megabytes * _MEGABYTE),
        (resource.RLIMIT_FSIZE, _FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ]
    if not boxed:  # the limit counts all processes of the user; a box has a count of its own
        limits.append((resource.RLIMIT_NPROC, _tasks() + _PROCESSES))

    def limit() -> None:
        for kind, most in limits:
            resource.setrlimit(kind, (most, most))

    return limit


def _tasks() -> int:
    """Processes and threads of this machine, at least those of this user."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    except (OSError, IndexError, ValueError):
        return 4096


@lru_cache(maxsize=1)
def _hide_this_process() -> None:
    """Other processes of the user may not read this one's environment and memory (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
