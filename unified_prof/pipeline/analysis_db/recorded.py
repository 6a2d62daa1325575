"""What analyses take from a recording itself: numbers of groups, the offset of its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unified_prof.vocabulary import group_hash


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a database made of a recording does not keep."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """Numbers of texts, names of communication groups among them."""
    offset_ns: int = 0
    """Of the epoch to the clock that times were taken with."""

    def group_name(self, text: str) -> str:
        """Return what stands in `group_name`: a group's number, which its name may be already."""
        if text in self.groups:
            return str(self.groups[text])
        return text if text.isdecimal() else str(group_hash(text))

    def start_us(self, ns: int) -> float:
        """Return a time as msprof computes it: the sum of two float64, a quarter of a us exact."""
        return (ns - self.offset_ns) / 1000 + self.offset_ns / 1000


def read_recorded(prof: Path) -> Recorded:
    """Read it from a PROF_* directory; what cannot be read is left out."""
    from unified_prof.decoders.prof.raw.directory import ProfDirectory
    from unified_prof.errors import RawFormatError

    try:
        directory = ProfDirectory(prof)
        texts = directory.dictionaries.hashes
    except RawFormatError:
        return Recorded()
    start = (directory.host or directory.devices[0]).start
    begin, begin_monotonic = (
        start.integer("collectionTimeBegin"),
        start.integer("clockMonotonicRaw"),
    )
    offset = 0 if begin is None or begin_monotonic is None else begin * 1000 - begin_monotonic
    return Recorded({text: number for number, text in texts.items()}, offset)
