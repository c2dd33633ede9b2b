"""What a stage found: a frozen dataclass in the stage's module, kept in its record as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

from cabs_core.base.errors import ProvenanceError
from cabs_core.pipeline.artifacts.provenance import EARLIER, Record


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a stage found, a JSON-able field a figure; each stage's module has a class of its own.

    Attributes:
        rows: number of rows of the stage's table; None where it writes none.
        checks: results of the checks of data that it ran, as `CheckResult` has them.
        blocked: what failed of those that stop the chain, in words.
        parts: {policy: hash of what a replay of this policy reads of the stage}.
    """

    rows: int | None = None
    checks: list[dict[str, Any]] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> Self:
        """Return what the stage found when it made the artifact of this record.

        Raises:
            ProvenanceError: another version of the stage's code wrote the summary.
        """
        if record.other_version or record.summary.keys() - {entry.name for entry in fields(cls)}:
            raise ProvenanceError(f"{record.described} was {record.other_version or EARLIER}")
        return cls(**record.summary)

    def shown(self) -> dict[str, Any]:
        """{words: figure, text, or rows with equal keys} for people, in the order in which they are shown."""
        return {} if self.rows is None else {"rows": self.rows}

    def outdated(self, chain: Any) -> list[str]:
        """Why it is to be made again although nothing changed, by its `Chain`; of stages that go on."""
        return []

    def lines(self) -> list[str]:
        """The same for a terminal; of stages that `cabs collect` makes."""
        return []
