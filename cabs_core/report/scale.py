"""Words for the scores of a pool.

Most scores count right answers. In a pool whose judge compares answers with those of one model, scores count
comparisons that were won. `Scale` has the words for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Words:
    """An attribute of `Scale` with two values: one for right answers, one for comparisons.

    Attributes:
        right: value if scores count right answers.
        compared: value if scores are comparisons; `{0}` stands for the model that answers are compared with.
    """

    right: str
    compared: str

    def __get__(self, scale: Scale, owner: type | None = None) -> str:
        """Return the words for the scores of `scale`."""
        if scale.against:
            return self.compared.format(scale.against)
        return self.right


@dataclass(frozen=True)
class Scale:
    """Words for scores that count right answers, or comparisons won.

    Attributes:
        against: the model with whose answers a judge compared all others; empty for right answers.
        quality: name of a mean score.
        unit: name of an answer of utility 1.
        rho: definition of rho.
        examples: rho explained by two values.
        hit: adjective for an answer with at least half of the full score.
        hits: verb for a model that gave such an answer.
        explanation: sentence on what comparisons are; empty for right answers.
    """

    against: str = ""

    quality = _Words("Quality", "Comparisons won")
    unit = _Words("a right, free answer", "a comparison won, free of charge")
    rho = _Words(
        "1 / dollar value of a right answer",
        "the number of comparisons won that one dollar has to bring",
    )
    examples = _Words(
        "1/ρ is the dollar value of one right answer: at ρ = 500 it is worth $0.002, at ρ = 0 money does not "
        "matter.",
        f"ρ is {rho.compared}; at ρ = 0 money does not matter.",
    )
    hit = _Words("right", "won or drawn")
    hits = _Words("was right", "won or drew")
    explanation = _Words(
        "",
        "Scores are comparisons with {0}'s answers: 1 where the judge prefers an answer, 0.5 where it sees "
        "no difference, 0 where it prefers {0}'s. They are no shares of right answers, and what a comparison "
        "won is worth in dollars nobody has said.",
    )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Scale:
        """Return the scale of a pool whose pool file has these settings, as plain values.

        Its scores are comparisons if an entry of `collect.scores` has `against`. The first such entry counts.
        """
        scores = (settings.get("collect") or {}).get("scores") or ()
        for score in scores:
            if score.get("against"):
                return cls(str(score["against"]))
        return cls()
