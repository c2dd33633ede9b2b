"""docs/traces.md: the line of each tool reads the tool's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from cabs_core import read_log
from cabs_core.data.logs.read import FIVE_LINES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "traces.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (\w+), \[(\w+\.jsonl)\]\(examples/\2\) \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
#: calls, their scores and what is left out of each example
EXPECTED = {
    "LangSmith": ([1.0], {"not a chat call (chain)": 1, "failed": 1}),
    "Braintrust": ([0.25], {"not a chat call (eval)": 1}),
    "Weave": ([1.0], {"failed": 1}),
    "Portkey": ([1.0], {"answered from a cache": 1}),
    "Cloudflare": ([1.0], {"answered from a cache": 1}),
    "MLflow": ([1.0], {"failed": 1}),
    "Bedrock": ([1.0], {"failed": 1}),
}


def test_every_tool_has_its_line() -> None:
    assert {tool for tool, _, _ in LINES} == set(EXPECTED)
    assert FIVE_LINES in PAGE


@pytest.mark.parametrize(("tool", "file", "columns"), LINES)
def test_the_line_of_a_tool_reads_its_example(tool: str, file: str, columns: str) -> None:
    log = read_log(DOCS / "examples" / file, "table", yaml.safe_load(columns))
    scores, left_out = EXPECTED[tool]
    assert log.frame["score"].tolist() == scores and log.receipt.left_out == left_out
    assert log.frame["prompt"].tolist() == ["Where is my parcel?"]
    known = log.frame["cost"].notna() | log.details["input_tokens"].notna()
    assert known.all()
