"""Whether a model's recent scores leave what the bundle expects of it on those prompts, by more than error.

The last RECENT scored draws of each model are compared with the score that the bundle predicts for their
prompts. Prompts are the units: scores of one prompt are averaged first. As in `checks.compare_with_champion`,
one more prompt is counted that went the other way, so that a few equal scores are no certainty, and the
levels of K models are shared out (Bonferroni).

A router asks the model of which it expects most, so what it expects of the models that it asks is too much on
average, and of those that it asks for exploration too little: SLACK is taken off. What is off by more is
told, whether the model changed or the bundle's predictions were never right.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import Manifest
from cabs_core.router.heads import Heads

#: scored draws of a model that are looked at; prompts without which nothing is said
RECENT, FEWEST = 300, 30
#: probability of a false line, for all models together
LEVEL = 0.01
#: score that expectations may be off without any change
SLACK = 0.05


@dataclass(frozen=True)
class ScoreGap:
    """Recent scores of a model minus what the bundle expects: mean over prompts, half its interval at LEVEL,
    number of prompts."""

    model: str
    mean: float
    half_width: float
    prompts: int

    @property
    def left(self) -> bool:
        """Whether it has left the expectation by more than error and SLACK."""
        return abs(self.mean) - SLACK > self.half_width


def recent_gaps(log: EventLog, manifest: Manifest, folder: str | Path) -> list[ScoreGap]:
    """One gap for each model with FEWEST or more prompts among its recent scored draws by this bundle."""
    heads: Heads | None = None
    gaps = []
    for j, model in enumerate(manifest.names):
        rows = log.recent_scores(manifest.id, model, RECENT)
        if len({row[0] for row in rows}) < FEWEST:
            continue
        heads = heads or Heads.of_bundle(folder)
        vectors = np.stack([row[2] for row in rows])
        expected = heads.expected_scores(vectors, np.array([row[1] for row in rows]))[:, j]
        residuals: dict[str, list[float]] = {}
        for (prompt, *_, score), value in zip(rows, expected.tolist(), strict=True):
            residuals.setdefault(prompt, []).append(score - value)
        means = np.array([np.mean(values) for values in residuals.values()])
        n, mean = len(means), float(means.mean())
        error = math.sqrt((float(((means - mean) ** 2).sum()) + 1.0) / n / (n - 1))
        quantile = float(special.stdtrit(n - 1, 1.0 - LEVEL / (2 * len(manifest.names))))
        gaps.append(ScoreGap(model, mean, quantile * error, n))
    return gaps


def in_a_sentence(gap: ScoreGap, *, learns: bool, policy: str, pool: str) -> str:
    """What is seen, and what would follow it."""
    how = "better" if gap.mean > 0 else "worse"
    seen = (
        f"{gap.model} answers {how} than the bundle expects: its last scored calls ({gap.prompts} prompts) "
        f"differ by {gap.mean:+.3f} ± {gap.half_width:.3f}"
    )
    if learns:
        return f"{seen}. {policy} learns from scores and follows, as far as it plays the model"
    return (
        f"{seen}. {policy} does not learn, so it goes on as before: a router that learns would follow "
        f"(cabs export {pool} --policy hier_mix), or ask the models again and run the pool"
    )
