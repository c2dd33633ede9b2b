"""Sdist and wheel hold every file of the package under names of its own and work without a checkout; so does `pip -e`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from e2e_support import ROOT
from fresh_environments import call, environment_of_its_own, install

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

#: folder of the repository: name of the package
PACKAGES = {name: name for name in ("cabs_core", "cabs_dagster", "dbt_like_sql")} | {"assets": "cabs_assets"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the wheel is built from: building leaves files behind."""
    for needed in ("pip", "setuptools", "build", "twine"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    folder = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        caches = shutil.ignore_patterns("__pycache__", "*.pyc", "*.nb?")
        shutil.copytree(ROOT / name, folder / name, ignore=caches)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built from it, as `make dist` makes them; by suffix."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder.parent)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    call(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=folder.parent)
    return {"whl": wheel, "tar.gz": sdist}


@pytest.mark.parametrize("form", ["whl", "tar.gz"])
def test_it_holds_every_file_and_runs_without_a_checkout(
    source: Path, built: dict[str, Path], tmp_path: Path, form: str
) -> None:
    expected = {
        f"{PACKAGES[name]}/{path.relative_to(source / name).as_posix()}"
        for name in PACKAGES
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    names = {name for name in zipfile.ZipFile(built["whl"]).namelist() if ".dist-info/" not in name}
    assert names == expected

    program = environment_of_its_own(tmp_path / "venv")
    install(program, built[form], cwd=tmp_path)
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
