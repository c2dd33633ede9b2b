"""Summaries: what a stage found, as a frozen dataclass in the stage's module, kept in its record as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

from cabs_core.base.errors import ProvenanceError
from cabs_core.pipeline.artifacts.provenance import EARLIER, Record


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of a stage that was made, each a JSON-able field. Each stage's module has a class of its own.

    Attributes:
        rows: number of rows of the stage's table; None if it writes none.
        checks: results of the checks of data that it ran, as `CheckResult` has them.
        blocked: failed checks that stop the chain, in words.
        parts: {policy: hash of what a replay of this policy reads of the stage}.
    """

    rows: int | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return the summary that the stage wrote into the record of its artifact.

        Raises:
            ProvenanceError: another version of the stage's code wrote the summary.
        """
        if record.other_version or record.summary.keys() - {entry.name for entry in fields(cls)}:
            raise ProvenanceError(f"{record.described} was {record.other_version or EARLIER}")
        return cls(**record.summary)

    def shown(self) -> dict[str, Any]:
        """Return {words: figure, text, or rows with equal keys} for people, in the order of display.

        A class without figures of its own shows the number of rows, or nothing if `rows` is None.
        """
        if self.rows is None:
            return {}
        return {"rows": self.rows}

    def outdated(self, chain: Any) -> list[str]:
        """Return reasons to make the stage again although its inputs, settings and code did not change.

        The list is empty unless a class overrides this method. The collection of answers does: a collection
        that its budget ended goes on once the budget allows more.

        Args:
            chain: the `Chain` of the pool.
        """
        return []

    def lines(self) -> list[str]:
        """Return the figures as lines for a terminal. Empty except for stages that `cabs collect` makes."""
        return []
