"""Units as people read them: one function each, and nobody else writes them."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from cabs_core.base import units

ROOT = Path(__file__).parents[3]
PRODUCT = ("cabs_core", "cabs_server", "cabs_dagster", "assets", "dbt_like_sql", "benchmarks")
#: `12%`, `{share:.1%}`, `{{ x }}%`, and `{100 * share:.0f} %` beside `percentage`
OWN_FORM = re.compile(r"(?<!\\xa)[0-9}]%|\} %")
#: widths of a style, and a template's own signs
NO_SHARE = re.compile(r"width: ?(\d+|\{\{[^{}]+\}\})%|\{%.*?%\}")


def own_forms(line: str) -> bool:
    return "LIKE" not in line and bool(OWN_FORM.search(NO_SHARE.sub("", line)))


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(units).failed == 0


def test_a_range_has_one_sign() -> None:
    assert units.percentages(0.06, 0.191) == "6 to 19 %"
    assert units.percentage(-0.3, signed=True) == "−30 %" and units.percentage(0.3, signed=True) == "+30 %"


def test_nobody_else_writes_a_percentage() -> None:
    files = [
        path
        for room in PRODUCT
        for kind in ("*.py", "*.j2", "*.js", "*.sql", "*.yml", "*.yaml")
        for path in sorted((ROOT / room).rglob(kind))
        if path != Path(units.__file__)
    ]
    assert len(files) > 300
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if own_forms(line)
    ]
    assert not wrong, "write a share with `cabs_core.base.units.percentage`:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line", ["f'{share:.1%} of', ", "'costs 12% more'", "f'{100 * share:.0f} % of'", "<td>{{ share }}%</td>"]
)
def test_other_forms_are_seen(line: str) -> None:
    assert own_forms(line)
