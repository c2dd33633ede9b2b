"""What the scores of a pool count, in the words of its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """Right answers, worth dollars; or, where a judge compares answers with a model's, comparisons won.

    Attributes:
        against: the model that all scores are comparisons with; else ''.
    """

    against: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Scale:
        """The scale of a pool with these settings (of its file, as JSON)."""
        scores = (settings.get("collect") or {}).get("scores") or ()
        return cls(next((str(s["against"]) for s in scores if s.get("against")), ""))

    @property
    def counted(self) -> str:
        """What utility counts."""
        return f"comparisons with {self.against}" if self.against else "right answers"

    @property
    def quality(self) -> str:
        """What a mean score is."""
        return "Comparisons won" if self.against else "Quality"

    @property
    def worth(self) -> str:
        """What stands before a value of the slider."""
        return "cost sensitivity" if self.against else "one right answer worth"

    @property
    def depends(self) -> str:
        """What a decision depends on."""
        return "how much cost counts" if self.against else "what a right answer is worth"

    @property
    def rho(self) -> str:
        """What rho is."""
        if self.against:
            return "the number of comparisons won that one dollar has to bring"
        return "1 / dollar value of a right answer"

    @property
    def examples(self) -> str:
        """What rho is, by two values."""
        if self.against:
            return f"ρ is {self.rho}; at ρ = 0 money does not matter."
        value = "1/ρ is the dollar value of one right answer"
        return f"{value}: at ρ = 500 it is worth $0.002, at ρ = 0 money does not matter."

    @property
    def unit(self) -> str:
        """What has the utility 1."""
        return "a comparison won, free of charge" if self.against else "a right, free answer"

    @property
    def hit(self) -> str:
        """Of an answer with at least half of the score."""
        return "won or drawn" if self.against else "right"

    @property
    def hits(self) -> str:
        """Of a model that gave one."""
        return "won or drew" if self.against else "was right"

    @property
    def explanation(self) -> str:
        """What such scores are, where that is not plain."""
        if not self.against:
            return ""
        return (
            f"Scores are comparisons with {self.against}'s answers: 1 where the judge prefers an answer, 0.5 "
            f"where it sees no difference, 0 where it prefers {self.against}'s. They are no shares of right "
            "answers, and what a comparison won is worth in dollars nobody has said."
        )
