"""Every public function, class and method says what it is, the errors that it raises, shapes of arrays,
and the units or ranges of what is paid, scored and drawn."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: raised for whoever writes code, not data
OURS = {"AssertionError", "NotImplementedError", "TypeError"}
#: parameter -> the unit or range that its docstring, or that of its class or module, gives
_USD, _SHARE = r"USD|dollar", r"[\[(]0, 1\]|0 to 1|0 or 1|probabilit"
UNITS = dict.fromkeys(("rho", "cost", "costs", "price", "prices"), _USD) | {
    "budget": f"{_USD}|tokens|configurations|overrides",
    **dict.fromkeys(("score", "propensity", "propensities"), f"{_SHARE}|units of its log"),
}


def raised(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names of the errors that a function raises itself and does not catch again."""
    names, waiting = set(), list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Try) and node.handlers:
            waiting += [*node.handlers, *node.orelse, *node.finalbody]
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(ast.unparse(node.exc.func).rpartition(".")[2])
        waiting += ast.iter_child_nodes(node)
    return {name for name in names if name.endswith("Error")} - OURS


def faults(files: dict[str, str]) -> Iterator[str]:
    """What public names of {file: source} leave unsaid; a method also says what its namesakes say."""
    trees = {name: ast.parse(source) for name, source in files.items()}
    methods: dict[str, str] = {}
    for node in (
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ):
        for method in node.body:
            if isinstance(method, FUNCTIONS):
                methods[method.name] = methods.get(method.name, "") + (ast.get_docstring(method) or "")

    def visit(body: list[ast.stmt], where: str, around: str, in_class: bool) -> Iterator[str]:
        for node in body:
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
                continue
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if "click" in decorators or "overload" in decorators:  # a command: its help says what it does
                continue
            inherited = methods[node.name] if in_class and isinstance(node, FUNCTIONS) else ""
            text, name = ast.get_docstring(node) or inherited, f"{where}:{node.lineno} {node.name}"
            if not text:
                yield f"{name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from visit(node.body, where, around + text, True)
                continue
            text_around = text + inherited + around
            if unsaid := sorted(error for error in raised(node) if error not in text_around):
                yield f"{name} raises {', '.join(unsaid)}, which its docstring does not name"
            names = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
            bare = [n for n in names if n in UNITS and not re.search(UNITS[n], text_around)]
            if bare and "kernel" not in decorators:
                yield f"{name} takes {', '.join(bare)}; its docstring gives neither unit nor range"
            arrays = ast.unparse(node.returns) if node.returns else ""
            if arrays.startswith("np.ndarray") and "kernel" not in decorators and "[" not in text_around:
                yield f"{name} returns an array; its docstring gives no shape"

    for name, tree in trees.items():
        yield from visit(tree.body, name, ast.get_docstring(tree) or "", False)


def test_public_names_say_what_they_are() -> None:
    paths = sorted(
        path for package in ("cabs_core", "cabs_server") for path in (ROOT / package).rglob("*.py")
    )
    files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    assert list(faults(files)) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f(): ...", "f has no docstring"),
        ("class A:\n  'd'\n  def g(self): ...", "g has no docstring"),
        ("def f():\n  'd'\n  if x:\n    raise DataError('x')", "f raises DataError"),
        ("def f() -> np.ndarray:\n  'An array.'", "f returns an array"),
        ("def f() -> np.ndarray:\n  '`[n]` costs.'", ""),
        ("def f(rho): 'At a rho.'", "f takes rho"),
        ("def f(*, score): 'A score.'", "f takes score"),
        ("def f(rho, score): 'rho per USD, a score in [0, 1].'", ""),
        ("'Costs are in USD.'\ndef f(cost): 'A cost.'", ""),
        ("class A:\n  'd'\n  def g(self):\n    'd'\nclass B:\n  'd'\n  def g(self): ...", ""),
    ],
)
def test_what_is_left_unsaid_is_found(source: str, fault: str) -> None:
    messages = list(faults({"file.py": source}))
    assert (fault in messages[0]) if fault else not messages
