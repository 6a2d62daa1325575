"""Counts what could not be measured or was left out, for the report to say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unified_prof.ledger import Ledger


class Anomalies(Ledger):
    """A ledger into which failures of the tracker's own work go."""

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


def in_one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
