"""The wheel holds every file of the package under names of its own, and works without a checkout; so does `pip -e`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from e2e_support import ROOT, environment, patience

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

#: folder of the repository: name of the package
PACKAGES = {name: name for name in ("cabs_core", "cabs_dagster", "dbt_like_sql")} | {"assets": "cabs_assets"}


def call(*words: object, cwd: Path, **more: str) -> str:
    """Run a program that must succeed; its output. Nothing of this checkout is on its path."""
    settings = environment(cwd / "home", **more)
    settings.pop("PYTHONPATH")
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=settings, capture_output=True, text=True,
        timeout=900 * patience(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is built from: building leaves files behind."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        caches = shutil.ignore_patterns("__pycache__", "*.pyc", "*.nb?")
        shutil.copytree(ROOT / name, folder / name, ignore=caches)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


def environment_of_its_own(folder: Path) -> Path:
    """Interpreter of a new virtual environment that has all libraries of this one, but not this project."""
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    program = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    place = call(program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder.parent)
    # a folder that is named in a .pth file is searched, but the .pth files in it are not read
    Path(place.strip(), "shared.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return program


def install(program: Path, *what: object, cwd: Path) -> None:
    alone = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    call(sys.executable, "-m", "pip", "--python", program, "install", "-q", *alone, *what, cwd=cwd)


def test_the_wheel_holds_every_file_and_runs_without_a_checkout(source: Path, tmp_path: Path) -> None:
    expected = {
        f"{PACKAGES[name]}/{path.relative_to(source / name).as_posix()}"
        for name in PACKAGES
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    call(sys.executable, "-m", "pip", "wheel", "-q", *alone, "-w", tmp_path, source, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected

    program = environment_of_its_own(tmp_path / "venv")
    install(program, wheel, cwd=tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    words = ("run", "--pool", "demo", "--rho", "300", "--policies", "random,lin_ucb")
    said = call(program.with_name("cabs"), *words, cwd=outside)
    assert "3 runs in" in said and str(tmp_path / "venv") in said.splitlines()[0]
    assert (outside / "home" / "artifacts" / "reports" / "demo" / "index.html").is_file()


def test_an_editable_install_reads_the_folder_assets(source: Path, tmp_path: Path) -> None:
    program = environment_of_its_own(tmp_path / "venv")
    install(program, "-e", source, cwd=tmp_path)
    code = "import cabs_assets, cabs_dagster.definitions as d; print(cabs_assets.__file__, d.__file__)"
    found = call(program, "-c", code, cwd=tmp_path).split()
    assert found == [str(source / "assets" / "__init__.py"), str(source / "cabs_dagster" / "definitions.py")]
