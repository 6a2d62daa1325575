"""Counts what could not be measured or was left out, for the report to say so."""

from __future__ import annotations


class Anomalies:
    """Name -> how often, and the first case in words."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, name: str, detail: str, count: int = 1) -> None:
        """Count `name`; only the first `detail` is kept."""
        if count:
            before, first = self._found.get(name, (0, detail))
            self._found[name] = (before + count, first)

    def merge(self, others: Anomalies) -> None:
        """Add what another counted."""
        for name, (count, detail) in others._found.items():
            self.add(name, detail, count)

    def as_mapping(self) -> dict[str, tuple[int, str]]:
        """Return a copy of what was counted."""
        return dict(self._found)
