"""The receipt of a log: the calls that were kept, and what was left out or not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import yaml

from cabs_core.base.errors import counted, listed

#: Characters of a list of names that are shown.
_SHOWN = 200


@dataclass(frozen=True)
class Receipt:
    """Account of one reading of a log.

    Attributes:
        origin: file that was read.
        format: format in which the file was read.
        records: number of entries in the log, such as rows, spans or observations.
        kept: number of calls in the frame.
        scored: number of these calls that have a score.
        left_out: {reason: number of entries that were left out}.
        columns_unused: names in the log from which nothing was read.
        same_model: groups of names that look like one model, {name: calls}.
        notes: further remarks, one line each.
    """

    origin: str
    format: str
    records: int
    kept: int
    scored: int
    left_out: dict[str, int] = field(default_factory=dict)
    columns_unused: list[str] = field(default_factory=list)
    same_model: list[dict[str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the receipt in words, one statement a line."""
        if self.scored == self.kept:
            scored = "all"
        else:
            scored = f"{self.scored:,}"
        lines = [
            f"{self.origin}: {counted(self.records, 'record')} ({self.format}), "
            f"{counted(self.kept, 'call')} kept, {scored} with a score"
        ]
        if self.left_out:
            reasons = sorted(self.left_out.items(), key=lambda item: -item[1])
            lines.append(f"left out: {listed((f'{count:,} {why}' for why, count in reasons), 2 * _SHOWN)}")
        lines += [merging(group) for group in self.same_model]
        lines += self.notes
        if self.columns_unused:
            lines.append(f"not read: {listed(self.columns_unused, _SHOWN)}")
        return lines

    def without(self, merged: Mapping[str, Sequence[str]]) -> Receipt:
        """Return the receipt of a pool that merges names of models.

        A group of `same_model` is left out if all its names became one model. A note for each model lists the
        names that it stands for.

        Args:
            merged: {model: names in the log that stand for it}.
        """
        known = [set(names) for names in merged.values()]
        groups = [group for group in self.same_model if not any(set(group) <= names for names in known)]
        notes = [f"{model} stands for {listed(names, _SHOWN)}" for model, names in merged.items()]
        return replace(self, same_model=groups, notes=[*self.notes, *notes])

    def __str__(self) -> str:
        return "\n".join(self.lines())


def merging(group: dict[str, int]) -> str:
    """Return a note about names that look like one model, with the line of a pool file that merges them."""
    names = list(group)
    shown = min(names, key=lambda name: (len(name), name)).strip()
    counts = ", ".join(f"{name!r} {count:,}" for name, count in group.items())
    # one line, whatever its length
    merged = yaml.safe_dump({shown: names}, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return f"names that look like one model: {counts}. If they are one, merge them: models: {merged.strip()}"
