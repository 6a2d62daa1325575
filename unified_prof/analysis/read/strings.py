"""The texts of STRING_IDS, and which of them say that nothing is known."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from unified_prof.analysis.read.source import Source
from unified_prof.vocabulary import NOT_AVAILABLE

NOTHING_KNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNKNOWN", None})
"""Texts that say that msprof does not know."""


class Strings:
    """The texts of STRING_IDS."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _texts(self) -> dict[int, str]:
        return dict(self._source.rows("SELECT id, value FROM STRING_IDS"))

    def get(self, number: int) -> str | None:
        """Return the text of an id, None if there is none or it says "not available"."""
        text = self._texts.get(number)
        return None if text in NOTHING_KNOWN else str(text)

    def texts(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the texts of many ids."""
        return [self.get(number) for number in numbers]
