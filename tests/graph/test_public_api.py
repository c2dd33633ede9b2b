"""Dagster is used by its public interface only: nothing private imported or reached, nothing of it replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("assets", "cabs_core", "cabs_dagster", "dbt_like_sql", "tests")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def is_dagster(module: str) -> bool:
    return module.split(".")[0].startswith("dagster")


def is_private(module: str) -> bool:
    return is_dagster(module) and any(part.startswith("_") for part in module.split("."))


def faults(source: str) -> Iterator[str]:
    """`line: what` for every use of Dagster's inside in a source text."""
    tree = ast.parse(source)
    names: set[str] = set()  # what of Dagster's this file has names for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.split(".")[0] for alias in node.names if is_dagster(alias.name)
            }
            yield from (f"{node.lineno}: imports {a.name}" for a in node.names if is_private(a.name))
        elif isinstance(node, ast.ImportFrom) and is_dagster(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (f"{node.lineno}: imports {name}" for name in whole if is_private(name))

    def of_dagster(node: ast.AST) -> bool:
        """Whether an expression is something of Dagster's: `dg`, `dg.X`, `dg.X.y`, a name imported from it."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and of_dagster(node):
            if node.attr.startswith("_") and not node.attr.startswith("__"):
                yield f"{node.lineno}: reaches {ast.unparse(node)}"
            if isinstance(node.ctx, ast.Store | ast.Del):
                yield f"{node.lineno}: replaces {ast.unparse(node)}"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0] if node.args else None
            text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            if (
                called in ("setattr", "delattr", "object", "setitem")
                and first is not None
                and of_dagster(first)
            ):
                yield f"{node.lineno}: replaces something of {ast.unparse(first)}"
            if called in ("setattr", "delattr", "patch") and is_dagster(text) and "." in text:
                yield f"{node.lineno}: replaces {text}"
            if called in ("import_module", "__import__") and is_private(text):
                yield f"{node.lineno}: imports {text}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_public_interface_is_used(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from dagster._core.storage import runs",
        "import dagster._utils",
        "from dagster import _check",
        "import dagster_postgres._x as x",
        "import dagster as dg\ndg._core.x()",
        "import dagster as dg\ndg.DagsterInstance.launch_run = 1",
        "from dagster import DagsterInstance\nDagsterInstance.x = 1",
        "import dagster as dg\nsetattr(dg.DagsterInstance, 'x', 1)",
        "import dagster as dg\ndef test(monkeypatch):\n    monkeypatch.setattr(dg.DagsterInstance, 'get', None)",
        "def test(monkeypatch):\n    monkeypatch.setattr('dagster.DagsterInstance.get', None)",
        "import dagster as dg\nfrom unittest import mock\nmock.patch.object(dg.DagsterInstance, 'get')",
        "from unittest import mock\nmock.patch('dagster.DagsterInstance.get')",
        "import importlib\nimportlib.import_module('dagster._core')",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(faults(source))


def test_the_search_leaves_ordinary_use_alone() -> None:
    source = "import dagster as dg\ndefs = dg.Definitions()\nname = dg.__version__\nobject.x = 1\n"
    assert list(faults(source)) == []


def test_the_core_and_the_sql_project_do_not_know_dagster() -> None:
    for path in FILES:
        if path.relative_to(ROOT).parts[0] not in ("cabs_core", "dbt_like_sql"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            above = ("cabs_dagster", "cabs_assets", "assets")
            bad = [name for name in found if is_dagster(name) or name.split(".")[0] in above]
            assert not bad, f"{path.relative_to(ROOT)} imports {bad}"
