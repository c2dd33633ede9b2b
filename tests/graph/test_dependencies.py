"""Every package that the project imports is declared, and its version is said in one place."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import yaml

import cabs_core

ROOT = Path(__file__).resolve().parents[2]
OWN = {"cabs_core", "cabs_server", "cabs_dagster", "cabs_assets", "dbt_like_sql", "assets"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def plain(requirement: str) -> str:
    """`Dagster-Webserver[x]>=1` -> `dagster-webserver`."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def imported() -> dict[str, Path]:
    """{top-level module: a file that imports it}, of what the wheel holds."""
    importer: dict[str, Path] = {}
    for folder in ("cabs_core", "cabs_server", "cabs_dagster", "assets", "dbt_like_sql"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names.append(node.module)
                importer.update({name.partition(".")[0]: path for name in names})
    return {name: path for name, path in importer.items() if name not in OWN | sys.stdlib_module_names}


def test_every_import_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    declared = {plain(text) for group in (PROJECT["project"]["dependencies"], *extras) for text in group}
    installed = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in imported().items()
        if name in installed and not {plain(text) for text in installed[name]} & declared
    }
    assert not missing


def test_the_version_is_said_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "cabs_core.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == cabs_core.__version__
    releases = re.findall(r"^## (\d.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0].split()[0] == cabs_core.__version__
    deploy = (path.read_text(encoding="utf-8") for path in (ROOT / "deploy").rglob("*.yaml"))
    images = re.findall(r"cabs-(?:router:|dagster, tag: )([\d.]+)", "".join(deploy))
    assert len(images) == 2 and set(images) == {cabs_core.__version__}
