"""Counts what could not be measured or was left out, for the report to say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Anomalies:
    """Name -> how often, and the first case in words."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, name: str, detail: str, count: int = 1) -> None:
        """Count `name`; only the first `detail` is kept."""
        if count:
            before, first = self._found.get(name, (0, detail))
            self._found[name] = (before + count, first)

    @contextmanager
    def fenced(self, name: str, what: str) -> Iterator[None]:
        """Turn a failure of the block into the anomaly `name`: the program is not to blame.

        Args:
            name: The anomaly.
            what: What is missing from the report where the block failed.
        """
        try:
            yield
        except Exception as error:
            self.add(name, f"{what}: {in_one_line(error)}")

    def merge(self, others: Anomalies) -> None:
        """Add what another counted."""
        for name, (count, detail) in others._found.items():
            self.add(name, detail, count)

    def as_mapping(self) -> dict[str, tuple[int, str]]:
        """Return a copy of what was counted."""
        return dict(self._found)


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
