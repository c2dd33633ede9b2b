"""Pools that are odd, and right: one rho with one trial, a hundred models, a thousand rhos."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from .. import homes
from ..runner import Nonsense, pick

COUNT, QUICK, WHOLE_RUNS = 6, 0, True
LIMIT = 1800.0
SETTINGS = """\
source: {{kind: file, path: t.csv}}
encoder: {{name: tfidf-svd}}
oracle: {{kind: ridge}}
features: {{kind: pca, dim: 4}}
split: {{fractions: [0.4, 0.3, 0.3]}}
replay: {{trials: {trials}, rhos: {rhos}}}
tuning_budget: {budget}
policies: [{policies}]
"""


def prepare() -> None:
    """Import what a run imports."""
    homes.warm()


def probe(tally, rng, ready) -> None:
    """One odd pool, planned and run to its report."""
    kind = pick(rng, ("one rho, one trial", "a hundred models", "a thousand rhos"))
    models = 100 if kind == "a hundred models" else int(rng.integers(2, 5))
    rhos = [float(r) for r in range(1000)] if kind == "a thousand rhos" else [float(rng.integers(0, 900))]
    policies = "random, best_single" if len(rhos) > 1 else "random, best_single, lin_ucb, cabs_d_linear"
    with tempfile.TemporaryDirectory(prefix="probe-odd-") as folder:
        home = Path(folder)
        (home / "pools").mkdir()
        rows = ["prompt,model,score,cost"]
        for query in range(60):
            ease, words = rng.normal(), " ".join(f"w{w}" for w in rng.integers(0, 30, 6))
            for model in range(models):
                right = int(rng.normal() + 2 * ease + model / models > 0)
                rows.append(f"q{query} {words},m{model},{right},{1e-4 * (1 + model):.6f}")
        (home / "pools" / "t.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        text = SETTINGS.format(
            trials=1 if kind == "one rho, one trial" else 2,
            rhos=rhos,
            budget=int(rng.integers(0, 2)),
            policies=policies,
        )
        (home / "pools" / "odd.yaml").write_text(text, encoding="utf-8")
        planned = homes.in_words(homes.cabs(home, "plan", "--pool", "odd", "--json"), codes=(0,))
        targets = json.loads(planned.text[planned.text.index("[") :])
        if sum(t["target"].startswith("replay/") for t in targets) != len(rhos) * len(policies.split(",")):
            raise Nonsense(f"planned {len(targets)} targets for {len(rhos)} rhos")
        some = ["--rho", "0,17,999"] if len(rhos) > 1 else []
        homes.in_words(homes.cabs(home, "run", "--pool", "odd", *some), codes=(0,))
        if not (home / "artifacts" / "reports" / "odd" / "index.html").is_file():
            raise Nonsense("there is no report")
    tally.calls[kind] += 1
