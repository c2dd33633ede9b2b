"""What the project says of a policy stands in its record: no other code names one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cabs_core.base.catalog.policies import policies, policy_record
from cabs_core.base.errors import PolicyError

ROOT = Path(__file__).parents[4]
#: rooms that are about single policies; benchmarks play the policies that they time
ABOUT_POLICIES = {"catalog", "policies", "predictors"}
FILES = sorted(
    file.relative_to(ROOT)
    for package in ("cabs_core", "cabs_server", "cabs_dagster", "assets", "dbt_like_sql")
    for file in (ROOT / package).rglob("*.py")
    if not {*file.relative_to(ROOT).parts} & ABOUT_POLICIES
)
#: names of policies that are also those of predictors, kinds of oracle or ways to split
WORDS = {"random", "ridge", "knn", "kernel_ridge"}


def names(source: str) -> Iterator[str]:
    """Policies that are whole string constants of the code, and modules of single policies that it
    imports."""
    modules = {record.path.partition(":")[0] for record in policies().values()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isascii():
            try:
                yield policy_record(node.value).name
            except PolicyError:
                continue
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            yield node.module


@pytest.mark.parametrize("room", sorted({str(file.parent) for file in FILES}))
def test_no_policy_is_named(room: str) -> None:
    allowed = set() if room == "cabs_core/report" else WORDS
    named = {
        f"{file}: {name}"
        for file in FILES
        if str(file.parent) == room
        for name in names((ROOT / file).read_text(encoding="utf-8"))
        if name not in allowed
    }
    assert not named


def test_the_search_finds_names_presets_and_modules() -> None:
    source = "from cabs_core.algorithms.policies.cabs_c import CabsC\n"
    source += "x = ['lin_ucb', 'cabs_d_linear@literal', 'lin_ucb and more']"
    assert sorted(names(source)) == ["cabs_core.algorithms.policies.cabs_c", "cabs_d_linear", "lin_ucb"]


def test_records_refer_to_policies_that_exist() -> None:
    for record in policies().values():
        for name in (*record.experts, *filter(None, [record.bandit])):
            assert name in policies(), record.name
        assert not record.bandit or record.kind == "upper bound"
