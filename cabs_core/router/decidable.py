"""The reach of a log of scored decisions: the models whose mean score the log can already tell.

`evaluation.ope` says how many decisions that takes, as for `cabs evaluate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.base.statistics.uncertainty import ratio_error
from cabs_core.evaluation.ope.intervals import LEAST, more_decisions


@dataclass(frozen=True)
class Reach:
    """The reach of a log for one model.

    Attributes:
        model: name of the model.
        n_eff: number of equally weighted decisions that the log is worth for "always this model":
            (sum w)^2 / sum w^2 with w = 1 / p.
        half_width: half width of the 95 % interval of the model's importance-weighted mean score. None if
            `n_eff` is below `LEAST`.
        needed: number of further scored decisions until `n_eff` reaches `LEAST`, at the rate so far. 0 if it
            is reached, None if the model has no score yet.
    """

    model: str
    n_eff: float
    half_width: float | None
    needed: int | None


def reach_of(model: str, weights: Sequence[float], scores: Sequence[float], scored: int) -> Reach:
    """Return how far a log reaches for one model.

    Args:
        weights: weight of each scored decision of the model, 1 / p up to a factor. A decision of weight 0 is
            left out.
        scores: scores of the same decisions, from 0 to 1.
        scored: number of scored decisions of all models.
    """
    all_weights = np.asarray(weights, dtype=np.float64)
    counts = all_weights > 0.0
    w = all_weights[counts]
    s = np.asarray(scores, dtype=np.float64)[counts]
    n_eff = 0.0
    if len(w):
        n_eff = float(w.sum() ** 2 / (w**2).sum())
    half_width = None
    if n_eff >= LEAST:
        error = ratio_error(w * s, w)
        half_width = error.half_width(largest=1.0)
    return Reach(model, n_eff, half_width, more_decisions(scored, n_eff))


def in_words(reaches: Sequence[Reach]) -> str:
    """Return words on the models that a log can tell apart, and on the models that need more decisions.

    The parts are separated by semicolons. Models within reach (with a `half_width`) are named only if there
    are two or more, since a single mean has no other to compare with.
    """
    ready = [reach for reach in reaches if reach.half_width is not None]
    sentences = []
    if len(ready) >= 2:
        models = ", ".join(f"{reach.model} (±{reach.half_width:.3f})" for reach in ready)
        sentences.append(
            f"the log can tell mean scores of {models} apart where they differ by more; make it a pool "
            "(source kind logs)"
        )
    for reach in reaches:
        if reach.half_width is not None:
            continue
        if reach.needed is None:
            sentences.append(f"{reach.model}: no scored decision yet")
        else:
            sentences.append(
                f"{reach.model}: about {reach.needed:,} more scored decisions until the log can say anything"
            )
    return "; ".join(sentences)
