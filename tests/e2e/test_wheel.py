"""Sdist and wheel hold every file of the package under names of its own and work without a checkout; so does
`pip -e`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from e2e_support import ROOT
from fresh_environments import call, copy_sources, empty_environment, environment_of_its_own, install
from packaging.specifiers import SpecifierSet

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: folder of the repository: name of the package
PACKAGES = {name: name for name in ("cabs_core", "cabs_server", "cabs_dagster", "dbt_like_sql")} | {
    "assets": "cabs_assets"
}


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    [wheel] = (built / "dist").glob("*.whl")
    return wheel


def test_it_holds_every_file_and_runs_without_a_checkout(built: Path, wheel: Path, tmp_path: Path) -> None:
    call(sys.executable, "-m", "twine", "check", "--strict", *(built / "dist").iterdir(), cwd=tmp_path)
    source = built / "source"
    expected = {
        f"{PACKAGES[name]}/{path.relative_to(source / name).as_posix()}"
        for name in PACKAGES
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected

    program = environment_of_its_own(tmp_path / "venv")
    install(program, wheel, cwd=tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    words = ("run", "--pool", "demo", "--rho", "300", "--policies", "random,lin_ucb")
    output = call(program.with_name("cabs"), *words, cwd=outside)
    assert "3 runs in" in output and str(tmp_path / "venv") in output.splitlines()[0]
    assert (outside / "home" / "artifacts" / "reports" / "demo" / "index.html").is_file()


def test_an_editable_install_reads_the_folder_assets(tmp_path: Path) -> None:
    source, program = copy_sources(tmp_path / "source"), environment_of_its_own(tmp_path / "venv")
    install(program, "-e", source, cwd=tmp_path)
    code = "import cabs_assets, cabs_dagster.definitions as d; print(cabs_assets.__file__, d.__file__)"
    places = call(program, "-c", code, cwd=tmp_path).split()
    assert places == [str(source / "assets" / "__init__.py"), str(source / "cabs_dagster" / "definitions.py")]


def other_interpreters() -> list[Path]:
    """Those of the versions that the project declares which are installed here, beside this one."""
    declared = SpecifierSet(PROJECT["requires-python"])
    versions = [f"3.{minor}" for minor in range(30) if f"3.{minor}.0" in declared]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    interpreters = {}
    for version in versions:
        for path in (shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")):
            asked = path and subprocess.run(
                [str(path), "-c", "import sys, ensurepip; print(*sys.version_info[:2], sep='.')"],
                capture_output=True,
                text=True,
            )
            if path and asked and asked.stdout.strip() == version:  # a shim of pyenv may stand for nothing
                interpreters[version] = Path(path)
    interpreters.pop("{}.{}".format(*sys.version_info), None)
    return list(interpreters.values())


def test_it_installs_on_the_other_pythons(wheel: Path, tmp_path: Path) -> None:
    """Metadata and grammar; the workflow that releases runs the demo there, with all libraries."""
    if not (interpreters := other_interpreters()):
        pytest.skip("no other Python of those that the project declares is installed")
    for number, interpreter in enumerate(interpreters):
        program = empty_environment(tmp_path / f"venv{number}", interpreter)
        install(program, wheel, cwd=tmp_path)
        code = (
            "import compileall, sysconfig, warnings, cabs_core; from importlib.metadata import version\n"
            "warnings.simplefilter('error')\n"
            "assert version('cabs-routing') == cabs_core.__version__\n"
            "assert compileall.compile_dir(sysconfig.get_path('purelib'), quiet=1, force=True)\n"
        )
        call(program, "-c", code, cwd=tmp_path)
