"""What a command reads in place of what was named, without what it takes to convert it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.analysis.read.coverage import Missing
from unified_prof.errors import UprofError

if TYPE_CHECKING:
    from unified_prof.pipeline.discovery import Found


@dataclass(frozen=True, slots=True)
class Ready:
    """What can be read in place of what was named."""

    path: Path
    """A report; a folder of them where a folder held several recordings."""
    made: tuple[tuple[Found, Path], ...] = ()
    """The recordings, each with its report; none where reports were named."""
    lost: tuple[tuple[Path, UprofError], ...] = ()
    """Recordings that could not be converted, and folders that were not looked into."""

    @property
    def missing(self) -> tuple[Missing, ...]:
        """The lost ones as part of what is told of a folder of reports."""
        return tuple(Missing(_whose(path), str(error)) for path, error in self.lost)


def _whose(path: Path) -> str:
    """Return `rank 3` where the recording says it, else the recording."""
    from unified_prof.pipeline import sources

    source = sources.source_of(path)
    with suppress(UprofError, OSError):
        if source is not None and (rank := source.rank(path)) is not None:
            return f"rank {rank}"
    return str(path)
