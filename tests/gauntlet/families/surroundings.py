"""Where a run may find itself: odd locales, disks, clocks, links, and other runs beside it."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cabs_core.pipeline.artifacts.provenance import RECORD_NAME, Record

from .. import homes
from ..homes import MINE, OTHER
from ..runner import Nonsense, pick

COUNT, QUICK, WHOLE_RUNS = 27, 1, True
LIMIT = 1800.0
YEAR = 365 * 24 * 3600
STAGES = ("outcomes", "oracles", f"replay/{MINE}", "marts", "reports", "leaderboard")


def prepare() -> tuple[Path, dict[str, str]]:
    """A finished home, and what it holds."""
    home = homes.finished()
    return home, homes.fingerprints(home)


def probe(tally, rng, ready) -> None:
    """One of the surroundings."""
    surrounding = pick(rng, SURROUNDINGS)
    try:
        how = surrounding(rng, *ready)
    except Nonsense as error:
        raise Nonsense(f"{surrounding.__name__}: {error}") from None
    tally.calls[f"{surrounding.__name__.replace('_', ' ')}{': ' + how if how else ''}"] += 1


def _forget(rng, home: Path) -> None:
    """Delete some of what was made, so that a run has something to do."""
    for stage in STAGES:
        if rng.random() < 0.4:
            shutil.rmtree(home / "artifacts" / stage, ignore_errors=True)
    shutil.rmtree(home / "artifacts" / pick(rng, STAGES), ignore_errors=True)


def _goes_on(home: Path, expected) -> None:
    homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
    homes.same(expected, homes.fingerprints(home))


def ascii_locale(rng, original: Path, expected) -> str:
    """A locale without umlauts, a home with them."""
    with homes.copied(original) as copy:
        home = copy.rename(copy.with_name("hömé 日本 🦉"))
        _forget(rng, home)
        locale = {"LC_ALL": pick(rng, ("C", "POSIX")), "PYTHONCOERCECLOCALE": "0"}
        if forbidden := bool(rng.random() < 0.3):  # Python takes UTF-8 in such a locale, unless it must not
            locale["PYTHONUTF8"] = "0"
        homes.in_words(_fresh(home, **locale), codes=(2,) if forbidden else (0,))
        if not forbidden:
            homes.same(expected, homes.fingerprints(home))
    return "not UTF-8 either: refused" if forbidden else ""


def read_only_home(rng, original: Path, expected) -> str:
    """A home that nobody may write to: said in words, and nothing in it is other than before."""
    with homes.copied(original) as home:
        _forget(rng, home)
        before, folders = homes.fingerprints(home), [home, *(p for p in home.rglob("*") if p.is_dir())]
        for folder in folders:
            folder.chmod(0o555)
        if rng.random() < 0.5:
            for path in home.rglob("*"):
                if path.is_file():
                    path.chmod(0o444)
        try:
            homes.in_words(homes.cabs(home, "run", "--pool", MINE, first=_without_privileges), codes=(2,))
            homes.same(before, homes.fingerprints(home))
        finally:
            for folder in folders:
                folder.chmod(0o755)
            for path in home.rglob("*"):
                if path.is_file():
                    path.chmod(0o644)
        _goes_on(home, expected)
    return ""


def full_disk(rng, original: Path, expected) -> str:
    """The disk fills up at some point; with more room the run goes on."""
    with tempfile.TemporaryDirectory(prefix="probe-disk-") as folder:
        size = int(10 ** rng.uniform(4.5, 7.0))
        if os.geteuid() or _mount(folder, f"size={size}"):
            return "not tried, a disk cannot be mounted here"
        try:
            home = Path(folder) / "home"
            try:
                homes.drop(home, MINE)
            except OSError:
                return "not even the pool file fits"
            ended = homes.in_words(homes.cabs(home, "run", "--pool", MINE))
            if _mount(folder, "remount,size=500000000"):
                raise Nonsense("the disk cannot be made larger")
            _goes_on(home, expected)
            return "refused, then went on" if ended.code else "it fitted"
        finally:
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


def another_time(rng, original: Path, expected) -> str:
    """Records and files dated in the future or the past, or a clock that jumped: nothing is made again for
    that."""
    with homes.copied(original) as home:
        shift = float(rng.choice([-50 * YEAR, -YEAR, YEAR, 10 * YEAR]))
        there = time.time() + shift
        dated = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(there))
        for path in (home / "artifacts").rglob(RECORD_NAME):
            path.write_bytes(dataclasses.replace(Record.parse(path.read_bytes()), created=dated).to_bytes())
        for path in (home / "artifacts").rglob("*"):
            os.utime(path, (there, there))
        real = time.time

        def jumped() -> None:
            if rng.random() < 0.5:
                time.time = lambda: real() - shift

        ended = homes.in_words(homes.cabs(home, "run", "--pool", MINE, first=jumped), codes=(0,))
        homes.same(expected, homes.fingerprints(home))
        if "6 policies" in ended.text or "made in" in ended.text:
            raise Nonsense(f"something was made again: {ended.text[-800:]}")
    return ""


def the_same_run_twice(rng, original: Path, expected) -> str:
    """Two runs of one pool at once: each succeeds or says why not, and the results are those of one."""
    with homes.copied(original) as home:
        _forget(rng, home)
        first = homes.start(home, "run", "--pool", MINE)
        time.sleep(float(rng.choice([0.0, 0.5, 5.0]) * rng.random()))
        second = homes.start(home, "run", "--pool", MINE)
        codes = sorted(homes.in_words(process.end()).code for process in (first, second))
        _goes_on(home, expected)
    return f"exit codes {codes}"


def two_pools_at_once(rng, original: Path, expected) -> str:
    """A run of one pool beside a run of another."""
    with homes.copied(original) as home:
        _forget(rng, home)
        homes.drop(home, OTHER, seed=8)
        both = [homes.start(home, "run", "--pool", name) for name in (MINE, OTHER)]
        codes = [homes.in_words(process.end()).code for process in both]
        homes.in_words(homes.cabs(home, "run", "--pool", OTHER), codes=(0,))
        homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
        mine = {name: value for name, value in expected.items() if f"/{MINE}/" in name}
        homes.same(mine, {n: v for n, v in homes.fingerprints(home).items() if f"/{MINE}/" in n})
    return f"exit codes {sorted(codes)}"


def folders_that_are_links(rng, original: Path, expected) -> str:
    """Folders of the home lie on another disk, or a link leads nowhere or in a circle."""
    with homes.copied(original) as home:
        _forget(rng, home)
        folder = home / pick(rng, ("artifacts", "embeddings", "cache", "dagster", "artifacts/reports"))
        kind = pick(rng, ("elsewhere", "nowhere", "circle"))
        folder.parent.mkdir(parents=True, exist_ok=True)
        if kind == "elsewhere":
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, home.with_name("elsewhere"))
            folder.symlink_to(home.with_name("elsewhere"))
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.symlink_to(folder if kind == "circle" else home.with_name("nowhere"))
        ended = homes.in_words(homes.cabs(home, "run", "--pool", MINE))
        if ended.code == 0:
            homes.same(expected, homes.fingerprints(home))
        elif kind == "elsewhere":
            raise Nonsense(f"refused: {ended.text[-600:]}")
        else:
            folder.unlink()
            _goes_on(home, expected)
        return f"{kind}, {'refused' if ended.code else 'went on'}"


def links_in_a_mirror(rng, original: Path, expected) -> str:
    """A pool whose files are links that lead nowhere, in a circle, to a device or to another file."""
    with homes.copied(original) as home:
        mirror = home / "pools" / "files"
        mirror.mkdir()
        names = ("carrot_openllm.csv", "sprout.parquet", "routerbench_0shot.pkl", "data", "train.parquet")
        for name in names:
            target = pick(
                rng, (mirror / name, home / "nothing", Path("/dev/zero"), Path("/etc/passwd"), home)
            )
            (mirror / name).symlink_to(target)
        source = pick(rng, ("sprout", "routerbench", "openllm_v2"))
        (home / "pools" / "linked.yaml").write_text(f"source: {{kind: {source}, mirror: files}}\n")
        homes.in_words(homes.cabs(home, "pool", "list"), codes=(0,))
        homes.in_words(homes.cabs(home, "run", "--pool", "linked"), codes=(2,))
        homes.in_words(homes.cabs(home, "run", "--pool", MINE), codes=(0,))
        homes.same(expected, homes.fingerprints(home))
    return ""


SURROUNDINGS = (
    ascii_locale,
    read_only_home,
    full_disk,
    another_time,
    the_same_run_twice,
    two_pools_at_once,
    folders_that_are_links,
    links_in_a_mirror,
)


def _fresh(home: Path, **more: str) -> homes.Ended:
    """`cabs run` in a new interpreter, for what is settled before the first import."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", "from cabs_dagster.cli import main; main()", "run", "--pool", MINE],
        env=homes.anew(home, **more),
        capture_output=True,
        timeout=homes.PATIENCE,
        check=False,
    )
    text = (done.stdout + done.stderr).decode("utf-8", errors="replace")
    return homes.Ended(done.returncode, text, time.monotonic() - began)


def _without_privileges() -> None:
    """Root, too, obeys the permissions of files then (Linux: no capabilities are left)."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
            raise OSError(ctypes.get_errno(), "capset")


def _mount(folder: str, options: str) -> int:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    return subprocess.run(command, check=False, capture_output=True).returncode
