"""Counts what was skipped, unmatched, unknown or not measurable, for a report to say so.

The one counter of anomalies: decoders, the tracker, the writer of reports and their readers all
count into one of these, and `UPROF_ANOMALIES` is what it looks like on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """How many cases there were, and the first of them in words."""

    cases: int
    detail: str
    """Empty: nobody put a case into words."""


class Ledger(Mapping[str, Entry]):
    """Name of an anomaly (snake_case) -> its count and first case, in order of first occurrence."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, detail: str = "", count: int = 1) -> None:
        """Count `count` cases of `name`; none at all leaves no trace.

        Counts of the same name add up; the first `detail` that says something is kept.
        """
        if count:
            before, first = self._entries.get(name, (0, ""))
            self._entries[name] = Entry(before + int(count), first or detail)

    def merge(self, others: Mapping[str, tuple[int, str]]) -> None:
        """Add what was counted elsewhere."""
        for name, (count, detail) in others.items():
            self.add(name, detail, count)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._entries!r})"
