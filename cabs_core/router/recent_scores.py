"""Recent scores of a model against the scores that the bundle expects of it on the same prompts.

The last `RECENT` scored draws of each model are compared with the scores that the bundle predicts for their
prompts. Prompts are the units: the scores of one prompt are averaged first. To the sum of squared deviations
1 is added, so that equal scores do not give an error of 0. The K models of the bundle share `LEVEL`
(Bonferroni): the interval of one model has the error `LEVEL` / K.

A router asks the model of which it expects most, so its expectations of the models that it asks are too high
on average, and of those that it asks for exploration too low. A gap is therefore significant only where it is
larger than `SLACK` and the half width of its interval together, whether the model changed or the bundle's
predictions were never right.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import special

from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import Manifest
from cabs_core.router.heads import Heads

#: Scored draws of a model that are looked at.
RECENT = 300
#: Prompts below which nothing is reported.
FEWEST = 30
#: Probability of a false report, for all models together.
LEVEL = 0.01
#: Difference in score that is expected without any change.
SLACK = 0.05


@dataclass(frozen=True)
class ScoreGap:
    """Recent scores of a model minus the scores that the bundle expects.

    Attributes:
        model: name of the model.
        mean: the mean over prompts of a prompt's mean score minus the expected score.
        half_width: half the width of the interval of `mean`, of error `LEVEL` / K for K models.
        prompts: number of prompts.
    """

    model: str
    mean: float
    half_width: float
    prompts: int

    @property
    def is_significant(self) -> bool:
        """True if `mean`, taken without its sign, is larger than `half_width` and `SLACK` together."""
        return abs(self.mean) - SLACK > self.half_width


def recent_gaps(log: EventLog, manifest: Manifest, folder: str | Path) -> list[ScoreGap]:
    """Return a gap, significant or not, for each model with at least `FEWEST` prompts among its last `RECENT`
    scored draws by this bundle.

    Args:
        log: the router's log of events.
        manifest: the manifest of the bundle.
        folder: the folder of the bundle. Its predictors are read only if some model has enough prompts.
    """
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
        n = len(means)
        mean = float(means.mean())
        error = math.sqrt((float(((means - mean) ** 2).sum()) + 1.0) / n / (n - 1))
        quantile = float(special.stdtrit(n - 1, 1.0 - LEVEL / (2 * len(manifest.names))))
        gaps.append(ScoreGap(model, mean, quantile * error, n))
    return gaps


def in_a_sentence(gap: ScoreGap, *, learns: bool, policy: str, pool: str) -> str:
    """Return a sentence that tells a gap, and what can be done about it.

    If the policy learns, the sentence says that it follows the change. If not, it names another policy to
    export, or a new run of the pool.

    Args:
        learns: True if the router's policy learns from scores.
        policy, pool: names of the router's policy and pool.
    """
    direction = "better" if gap.mean > 0 else "worse"
    finding = (
        f"{gap.model} answers {direction} than the bundle expects: its last scored calls ({gap.prompts} "
        f"prompts) differ by {gap.mean:+.3f} ± {gap.half_width:.3f}"
    )
    if learns:
        return f"{finding}. {policy} learns from scores and follows, as far as it plays the model"
    return (
        f"{finding}. {policy} does not learn, so it goes on as before: a router that learns would follow "
        f"(cabs export {pool} --policy hier_mix), or ask the models again and run the pool"
    )
