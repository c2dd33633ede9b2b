"""Virtual environments of a test's own, without this checkout on any path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from e2e_support import ROOT, environment, patience


def copy_sources(folder: Path) -> Path:
    """Put a copy of what the wheel is built from into `folder`: building leaves files behind."""
    for name in ("cabs_core", "cabs_server", "cabs_dagster", "dbt_like_sql", "assets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def call(*words: object, cwd: Path, **more: str) -> str:
    """Run a program that must succeed; its output. Nothing of this checkout is on its path."""
    settings = environment(cwd / "home", **more)
    settings.pop("PYTHONPATH")
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=settings,
        capture_output=True,
        text=True,
        timeout=900 * patience(),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def empty_environment(folder: Path, interpreter: str | Path = sys.executable) -> Path:
    """Interpreter of a new virtual environment that holds nothing."""
    call(interpreter, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def environment_of_its_own(folder: Path) -> Path:
    """Interpreter of a new virtual environment that has all libraries of this one, but not this project."""
    program = empty_environment(folder)
    place = call(program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder.parent)
    # a folder that is named in a .pth file is searched, but the .pth files in it are not read
    Path(place.strip(), "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return program


def install(program: Path, *what: object, cwd: Path) -> None:
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    call(sys.executable, "-m", "pip", "--python", program, "install", "-q", *alone, *what, cwd=cwd)
