"""For which models a log of scored decisions already tells the mean score of always asking that model.

How many decisions that takes is said by `evaluation.ope`, as for `cabs evaluate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cabs_core.base.statistics.uncertainty import ratio_error
from cabs_core.evaluation.ope.intervals import LEAST, more_decisions


@dataclass(frozen=True)
class Reach:
    """How far the log reaches for one model.

    Attributes:
        n_eff: decisions it is worth for "always this model": (sum w)^2 / sum w^2, w = 1 / p.
        half_width: of a 95 % interval of its mean score, importance-weighted; None below `LEAST`.
        needed: further scored decisions until `LEAST`, at the rate so far; 0: reached; None: no score yet.
    """

    model: str
    n_eff: float
    half_width: float | None
    needed: int | None


def reach(model: str, weights: Sequence[float], scores: Sequence[float], scored: int) -> Reach:
    """How far a log reaches for one model.

    Args:
        weights: of its scored decisions, 1 / p up to a factor, or 0: it counts for nothing. scores: theirs.
        scored: number of scored decisions of all models.
    """
    w, s = np.asarray(weights, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    w, s = w[w > 0.0], s[w > 0.0]
    n_eff = float(w.sum() ** 2 / (w**2).sum()) if len(w) else 0.0
    half = None
    if n_eff >= LEAST:
        error = ratio_error(w * s, w)
        half = error.half_width(largest=1.0)
    return Reach(model, n_eff, half, more_decisions(scored, n_eff))


def in_words(reaches: Sequence[Reach]) -> str:
    """What the log can decide, and when it can decide more."""
    ready = [r for r in reaches if r.half_width is not None]
    sentences = []
    if len(ready) >= 2:
        models = ", ".join(f"{r.model} (±{r.half_width:.3f})" for r in ready)
        sentences.append(
            f"the log can tell mean scores of {models} apart where they differ by more; make it a pool "
            "(source kind logs)"
        )
    for r in reaches:
        if r.half_width is None:
            sentences.append(
                f"{r.model}: no scored decision yet"
                if r.needed is None
                else f"{r.model}: about {r.needed:,} more scored decisions until the log can say anything"
            )
    return "; ".join(sentences)
