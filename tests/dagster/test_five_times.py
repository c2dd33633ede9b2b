"""The same table with each prompt five times, through the whole chain: the same answer as once."""

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
replay: {{trials: 2, rhos: [100]}}
tuning_budget: 0
policies: [best_single, ridge]
"""


def answer(home: Path, name: str, times: int) -> dict:
    """Return the answer of a pool whose models a and b are each better at one kind of prompt."""
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
    return json.loads(path.read_text(encoding="utf-8"))["answer"]


@pytest.mark.slow
def test_five_copies_of_each_prompt_say_what_one_says(tmp_path: Path) -> None:
    once, five = (answer(tmp_path / "home", f"times{times}", times) for times in (1, 5))
    assert [(r["rung"], r["word"]) for r in once["rungs"]] == [(r["rung"], r["word"]) for r in five["rungs"]]
    assert once["recommended"] == five["recommended"]
    for name in ("keep", "switch"):
        rows = [next(r for r in found["details"]["rungs"] if r["rung"] == name) for found in (once, five)]
        assert rows[0]["independent"] == rows[1]["independent"]
        assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((rows[1]["low"], rows[1]["high"]), abs=1e-9)
