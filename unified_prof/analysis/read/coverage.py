"""Which reports of a run there are, and which are missing: nothing is left out without a word."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RANK = re.compile(r"rank (\d+)")


@dataclass(frozen=True, slots=True)
class Missing:
    """A report that is not there, or cannot be read to its end."""

    what: str
    """`rank 3`, or the file where no rank is known."""
    why: str

    @property
    def rank(self) -> int | None:
        """The rank, where it is known."""
        found = _RANK.fullmatch(self.what)
        return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of the reports that should be there were read whole."""

    unit: str
    """`ranks`, or `reports` where ranks are not known."""
    expected: int
    whole: int
    missing: tuple[Missing, ...]

    @classmethod
    def of(cls, read: Iterable[str], missing: Iterable[Missing]) -> Coverage:
        """Return the coverage of reports by what they are of: `rank 3`, or a file."""
        missing = tuple(sorted(missing, key=lambda one: (one.rank is None, one.rank or 0)))
        incomplete = {one.what for one in missing}
        every = {*read} | incomplete
        unit = "ranks" if all(_RANK.fullmatch(one) for one in every) else "reports"
        return cls(unit, len(every), len(every - incomplete), missing)

    @property
    def headline(self) -> str:
        """How many there are: `7 of 8 ranks`."""
        return f"{self.whole:,} of {self.expected:,} {self.unit}"

    @property
    def reasons(self) -> list[str]:
        """Why each missing one is missing."""
        return [one.why if one.rank is None else f"{one.what}: {one.why}" for one in self.missing]

    @property
    def sentence(self) -> str:
        """All of it on one line, empty where nothing is missing."""
        return "; ".join([self.headline, *self.reasons]) if self.missing else ""
