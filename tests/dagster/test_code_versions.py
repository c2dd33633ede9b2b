"""Code versions follow imports, ignore comments and docstrings, and stop at registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from cabs_core.catalog import all_policies
from cabs_dagster import code_versions, stages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "pkg"
    (root / "sub").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "a.py": "from pkg.b import f\n\ndef g():\n    import pkg.sub.c\n    return f()\n",
        "b.py": "def f():\n    return 1\n",
        "registry.py": "CLASSES = {'a': 'pkg.a:g', 'd': 'pkg.d:h'}\n",
        "d.py": "from pkg.registry import CLASSES\n",
        "sub/__init__.py": "",
        "sub/c.py": "X = 2\n",
    }.items():
        (root / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(code_versions, "PACKAGES", ("pkg",))
    monkeypatch.setattr(code_versions, "_roots", lambda: {"pkg": root})
    code_versions._parsed.cache_clear()
    yield root
    code_versions._parsed.cache_clear()


def test_closure_follows_imports_inside_functions(package: Path) -> None:
    assert set(code_versions.closure(["pkg.a"])) == {"pkg.a", "pkg.b", "pkg.sub.c"}


def test_closure_follows_module_names_in_strings_but_not_beyond_a_stop(package: Path) -> None:
    assert "pkg.a" in code_versions.closure(["pkg.d"])
    assert set(code_versions.closure(["pkg.d"], stop=["pkg.registry"])) == {"pkg.d"}
    assert set(code_versions.closure(["pkg.a"], stop=["pkg.sub.*"])) == {"pkg.a", "pkg.b"}


def test_comments_docstrings_and_layout_do_not_matter_but_code_does(package: Path) -> None:
    before = code_versions.code_version(["pkg.a"])
    (package / "b.py").write_text(
        '"""Now documented."""\n\n\ndef f():\n    """One."""\n    # why\n    return (1)\n'
    )
    assert code_versions.code_version(["pkg.a"]) == before
    (package / "b.py").write_text("def f():\n    return 2\n")
    assert code_versions.code_version(["pkg.a"]) != before
    (package / "d.py").write_text("Y = 1\n")
    assert code_versions.code_version(["pkg.b"]) == code_versions.code_version(["pkg.b"])


def test_a_missing_start_is_an_error(package: Path) -> None:
    with pytest.raises(LookupError, match=r"pkg\.nothing"):
        code_versions.code_version(["pkg.nothing"])


def test_changing_one_policy_changes_that_policy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = code_versions.module_file("cabs_core.policies.hier_mix")
    before = {policy: stages.policy_code_version(policy) for policy in all_policies()}
    real = code_versions._parse
    monkeypatch.setattr(code_versions, "_parse", lambda p: ("other", real(p)[1]) if p == changed else real(p))
    stages.policy_code_version.cache_clear()
    after = {policy: stages.policy_code_version(policy) for policy in all_policies()}
    stages.policy_code_version.cache_clear()
    assert {policy for policy in before if before[policy] != after[policy]} == {"hier_mix"}


@pytest.mark.parametrize("name", list(stages.POOL_STAGES))
def test_every_module_that_a_stage_starts_from_exists(name: str) -> None:
    assert all(code_versions.module_file(module) for module in stages.POOL_STAGES[name].code)


@pytest.mark.parametrize("policy", all_policies())
def test_every_policy_has_a_module(policy: str) -> None:
    assert stages.policy_modules(policy)
    assert all(code_versions.module_file(module) for module in stages.policy_modules(policy))
