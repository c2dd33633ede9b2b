"""What became of a log: what was kept, what was left out and why, what was not read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cabs_core.base.errors import counted, listed

_SHOWN = 200  # characters of a list of names


@dataclass(frozen=True)
class Receipt:
    """Attributes:
    origin, format: the file, and who wrote it.
    records: entries that were looked at, such as rows, spans or observations: those kept and those left out.
    kept, scored: calls in the frame, and those of them that have a score.
    left_out: {why: how many entries}.
    columns_unused: names in the log that nothing was read from.
    same_model: groups of names that look like one model, {name: calls}.
    notes: what else a reader did, in words.
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
        """The receipt in words."""
        scored = "all" if self.scored == self.kept else f"{self.scored:,}"
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
        """The same, of a pool that merges {model: names}: those names are known to be one model."""
        known = [set(names) for names in merged.values()]
        groups = [group for group in self.same_model if not any(set(group) <= names for names in known)]
        notes = [f"{model} stands for {listed(names, _SHOWN)}" for model, names in merged.items()]
        return replace(self, same_model=groups, notes=[*self.notes, *notes])

    def __str__(self) -> str:
        return "\n".join(self.lines())


def merging(group: dict[str, int]) -> str:
    """Names that look like one model, with the line of a pool file that merges them."""
    names = list(group)
    shown = min(names, key=lambda name: (len(name), name)).strip()
    counts = ", ".join(f"{name!r} {count:,}" for name, count in group.items())
    merged = f"models: {{{shown}: [{_yaml(names)}]}}"
    return f"names that look like one model: {counts}. If they are one, merge them: {merged}"


def _yaml(names: Iterable[str]) -> str:
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/@")
    return ", ".join(name if set(name) <= plain else f"{name!r}" for name in names)
