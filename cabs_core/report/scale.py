"""What the scores of a pool count, in the words of its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Words:
    """Words where scores are of right answers, and where they are comparisons with a model's."""

    right: str
    compared: str

    def __get__(self, scale: Scale, owner: type | None = None) -> str:
        return self.compared.format(scale.against) if scale.against else self.right


@dataclass(frozen=True)
class Scale:
    """Right answers, worth dollars; or, where a judge compares answers with a model's, comparisons won.

    Attributes:
        against: the model that all scores are comparisons with; else ''.
        quality: what a mean score is; unit: what has the utility 1.
        rho: what it is; examples: the same by two values.
        hit: of an answer with at least half of the score; hits: of a model that gave one.
        explanation: what such scores are, where that is not plain.
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
        """The scale of a pool with these settings (of its file, as JSON)."""
        scores = (settings.get("collect") or {}).get("scores") or ()
        return cls(next((str(s["against"]) for s in scores if s.get("against")), ""))
