"""docs/your-own-table.md: each setting that it shows does what it says, on a generated table of that kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from cabs_core.errors import DataError
from cabs_core.pool_files.goals import Goal
from cabs_core.pools import load_pool_file
from cabs_core.router.example import write_example
from cabs_core.validation.overview import overview

PAGE = (Path(__file__).parents[2] / "docs" / "your-own-table.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def shown(word: str) -> dict[str, Any]:
    """The settings of the one block that begins with a word."""
    (block,) = (b for b in BLOCKS if b.startswith(word))
    found: dict[str, Any] = yaml.safe_load(block.splitlines()[0] if word == "goal" else block)
    return found


@pytest.fixture
def said(cabs_home: Path, tmp_path: Path):
    """What `cabs pool add` says of the example's table, changed, with further settings."""
    columns = {"prompt": "question", "score": "correct", "cost": "usd"}

    def add(change, **more: Any) -> str:
        frame = pd.read_csv(write_example(tmp_path / "plain.csv"))
        change(frame).to_csv(tmp_path / "table.csv", index=False)
        own = more.pop("columns", {})
        pool = {"source": {"kind": "file", "path": "table.csv", "columns": columns | own}, **more}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(pool))
        return overview(load_pool_file(tmp_path / "mine.yaml")).text

    return add


@pytest.mark.slow
def test_stars_words_and_per_cent(said) -> None:
    stars = said(lambda f: f.assign(correct=1 + 4 * f["correct"]), **shown("score_range"))
    words = said(lambda f: f.assign(correct=np.where(f["correct"] == 1, "yes", "no")))
    percent = said(lambda f: f.assign(correct=[f"{100 * c}%" for c in f["correct"]]))
    assert stars == words == percent == said(lambda f: f)
    with pytest.raises(DataError, match=r"set score_range: \[1, 5\]"):
        said(lambda f: f.assign(correct=1 + 4 * f["correct"]))


def test_several_judges(said) -> None:
    names = shown("source")["source"]["columns"]
    text = said(
        lambda f: f.assign(judge_a=f["correct"], judge_b=f["correct"], judge_c=1 - f["correct"]),
        columns=names,
    )
    assert "means of 3 judges (judge_a, judge_b, judge_c)" in text


def test_costs_and_the_unit_of_latencies(said) -> None:
    prices = shown("prices")
    text = said(lambda f: f.assign(n_input_tokens=100, n_output_tokens=50), **prices, columns={"cost": None})
    assert "costs: from prices" in text and re.search(r"large +0\.\d+ +0\.75", text)
    text = said(lambda f: f.assign(latency_ms=1200), columns={"latency": "latency_ms"})
    assert "read as milliseconds; median 1.2 s" in text


def test_gaps_and_what_to_accept(said) -> None:
    def partly(frame: pd.DataFrame) -> pd.DataFrame:
        hard = frame["question"].str.startswith(("Integrate", "How many primes"))
        return frame[~hard | (frame["model"] != "small")]

    with pytest.raises(DataError, match=r"queries_kept.*missing: predict"):
        said(partly)
    assert "so the figures hold for the others" in said(partly, **shown("accept"))
    assert "small was not tried on" in said(partly, missing="predict")


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def test_near_duplicates(said) -> None:
    def copied(frame: pd.DataFrame) -> pd.DataFrame:
        own = frame.assign(question=[f"{_letters(i // 3)}: {q}" for i, q in enumerate(frame["question"])])
        first = own.head(30)
        return pd.concat([own, first.assign(question=first["question"].str.upper())])

    assert "near-duplicates: 20 prompts in 10 groups" in said(copied)


def test_goals() -> None:
    (block,) = (b for b in BLOCKS if b.startswith("goal"))
    goals = [Goal.model_validate(yaml.safe_load(line)["goal"]) for line in block.splitlines()]
    assert len(goals) == 3 and goals[0].of == "large"
