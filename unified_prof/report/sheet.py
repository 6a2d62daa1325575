"""What texts for people are written on: a terminal's page, or one inside a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unified_prof.report.tables import Column


class Sheet(Protocol):
    """Grows from top to bottom; whoever writes on it knows nothing of what it is made of."""

    def title(self, text: str) -> None:
        """Add a line that says what follows."""

    def heading(self, text: str) -> None:
        """Add a line that says what the next table is."""

    def gap(self) -> None:
        """Set what follows apart."""

    def fact(self, what: str, text: str) -> None:
        """Add a line of the headline."""

    def remark(self, what: str, text: str) -> None:
        """Add a line about something odd."""

    def plain(self, text: str) -> None:
        """Add a line."""

    def note(self, text: str) -> None:
        """Add a line of less importance."""

    def left_out(self, count: int) -> None:
        """Say how many rows of a table are not shown."""

    def table(self, columns: Sequence[Column]) -> None:
        """Add a table."""
