"""A name with a leading underscore belongs to its module: no other module or test of ours imports or replaces it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cabs_core", "cabs_dagster", "cabs_assets", "dbt_like_sql")
OF_NAMED_TUPLES = ("_fields", "_replace", "_asdict", "_make")  # public in spite of their names
FILES = sorted(path for folder in (*PACKAGES, "assets", "tests") for path in (ROOT / folder).rglob("*.py"))


def is_ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in OF_NAMED_TUPLES


def reached(source: str) -> Iterator[str]:
    """`line: name` for every private name of another module of ours in a source text."""
    tree = ast.parse(source)
    modules: set[str] = set()  # what the file calls our modules, classes and functions
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name.split(".")[0] for a in node.names if is_ours(a.name)}
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            modules |= {a.asname or a.name for a in node.names}
            yield from (f"{node.lineno}: {node.module}.{a.name}" for a in node.names if is_private(a.name))

    def root(node: ast.AST) -> str:
        while isinstance(node, ast.Attribute):
            node = node.value
        return node.id if isinstance(node, ast.Name) else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and root(node) in modules:
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            ours = bool(node.args) and (root(node.args[0]) in modules or any(map(is_ours, texts)))
            yield from (
                f"{node.lineno}: {text}" for text in texts if ours and is_private(text.rpartition(".")[2])
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_names_stay_where_they_are(path: Path) -> None:
    assert list(reached(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "from cabs_core.atomic import _x",
        "from cabs_core import atomic\natomic._x()",
        "import cabs_core.atomic\ncabs_core.atomic._x()",
        "from cabs_core import atomic\ndef test(monkeypatch):\n    monkeypatch.setattr(atomic, '_x', 1)",
        "def test(monkeypatch):\n    monkeypatch.setattr('cabs_core.atomic._x', 1)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(reached(source))


def test_the_search_leaves_public_names_alone() -> None:
    assert not list(reached("from cabs_core import atomic\natomic.write_text(atomic.__file__, self._x)"))
