"""The same table with each prompt five times, through the whole chain: the same verdict as once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests_support import at_home, output_of

PROMPTS = 200
POOL = """\
name: {name}
source: {{kind: file, path: {name}.csv, columns: {{query_id: id, prompt: question, cost: usd}}}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
features: {{dim: 8}}
split: {{fractions: [0.4, 0.1, 0.5]}}
replay: {{trials: 2, rhos: [100]}}
tuning_budget: 0
policies: [best_single, ridge]
"""


def verdict(home: Path, name: str, times: int) -> dict:
    """The verdict of a pool whose models a and b are each better at one kind of prompt."""
    rng = np.random.default_rng(4)
    kinds = rng.integers(0, 2, PROMPTS)
    words = np.array(["".join(rng.choice(list("bcdfghjklmnprstvz"), 5)) for _ in range(500)])
    rows = []
    for i, kind in enumerate(kinds):
        what = ("add these numbers together", "write a poem about it")[kind]
        text = f"{what} {' '.join(rng.choice(words, 8))}"
        right = rng.random(3) < (0.95 if kind == 0 else 0.5, 0.95 if kind == 1 else 0.5, 0.5)
        rows += [
            {"id": f"{i}-{copy}", "question": text, "model": "abc"[j], "score": float(right[j]), "usd": 1e-4}
            for copy in range(times)
            for j in range(3)
        ]
    folder = home / "pools"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.yaml").write_text(POOL.format(name=name), encoding="utf-8")
    with at_home(home):
        output_of("run", name)
    path = home / "artifacts" / "reports" / name / "verdict.json"
    return json.loads(path.read_text(encoding="utf-8"))["overall"]


@pytest.mark.slow
def test_five_copies_of_each_prompt_say_what_one_says(tmp_path: Path) -> None:
    once, five = (verdict(tmp_path / "home", f"times{times}", times) for times in (1, 5))
    assert once["decision"] == five["decision"] == "deploy"
    assert five["queries"] == 5 * once["queries"] and five["independent"] == once["independent"]
    widths = [case["utility"]["high"] - case["utility"]["low"] for case in (once, five)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
