"""Ranks of a run that are shown together: `uprof trace --ranks`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import converting, printing, report_ranks
from unified_prof.errors import StoreError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.base import OverTime
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.stored import Rank

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 256
"""Ranks of one trace: viewers draw no more, and each of them is read whole."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which ranks, and which step of them."""

    ranks: tuple[int, ...] | None
    """None: those that tell most of the step."""
    step: int | None

    @classmethod
    def of(cls, ranks: str | None, step: int | None) -> Wanted:
        """Return what `0,8-11` means.

        Raises:
            UsageError: it is no list of ranks, or of too many.
        """
        if ranks is None:
            return cls(None, step)
        found: dict[int, None] = {}
        for piece in ranks.split(","):
            match = _RANGE.fullmatch(piece.strip())
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if low > high:
                raise UsageError(
                    f"--ranks takes numbers such as 0,8-11, not {ranks!r}",
                    hint="say which ranks",
                    slug="wrong-ranks",
                )
            if high - low >= _MOST or len(found) + high - low >= _MOST:
                raise UsageError(
                    f"--ranks: a trace takes {_MOST} ranks at most, not {ranks!r}",
                    slug="wrong-ranks",
                )
            found |= dict.fromkeys(range(low, high + 1))
        return cls(tuple(found), step)


@dataclass(frozen=True, slots=True)
class Together:
    """Ranks on one clock, as far as there is one."""

    named: list[tuple[str, OverTime]]
    """Each with the prefix of its names."""
    ranks: list[int]
    islands: list[list[int]]
    """The ranks by the clock that they share."""


@contextmanager
def timelines(
    path: Path, wanted: Wanted, *, convert: bool, quiet: bool, output: Path | None = None
) -> Iterator[Together]:
    """Open the recordings of chosen ranks of a run, moved to its common clock.

    Raises:
        StoreError: there is no run, or a rank's recording is not there any more.
        UsageError: the run has no such rank or step; a recording has to be converted first.
    """
    from unified_prof.analysis.load import open_reports
    from unified_prof.cluster.lanes import telling_ranks
    from unified_prof.cluster.shifted import Shifted, islands, window_of

    with ExitStack() as stack:
        overview = stack.enter_context(report_ranks.of_run(path, quiet=quiet, needed=True))
        if overview is None:
            raise report_ranks.no_run(path, "--ranks and --step are for those; leave them out")
        numbers = wanted.ranks if wanted.ranks is not None else telling_ranks(overview)
        chosen = [overview.rank(number).rank for number in numbers]
        found: list[tuple[str, OverTime]] = []
        for rank in chosen:
            window = window_of(overview.run, rank, wanted.step)
            file = recording_of(overview, rank)
            ready = converting.reports_of(
                file, convert=convert, quiet=quiet, several=False, output=output
            )
            reports = stack.enter_context(open_reports(ready.path))
            told = f"rank {rank.rank}" + (f" ({rank.host})" if rank.host else "")
            found += [
                (f"{told}: ", Shifted(one, overview.run.clock(rank), window))
                for one in reports.analyses
            ]
        together = islands(chosen)
        if not quiet and (len(together) > 1 or None in together):
            printing.say(
                "uprof: warning: these ranks share no event that would tell their clocks: "
                + "; ".join(", ".join(map(str, ranks)) for ranks in together.values())
            )
        yield Together(found, [one.rank for one in chosen], [*together.values()])


def recording_of(overview: Overview, rank: Rank) -> Path:
    """Return where a rank's recording lies: as it was named, or beside the run.

    Raises:
        StoreError: it is not there.
    """
    run = overview.run
    if rank.file is None:
        raise StoreError(
            f"rank {rank.rank} of {run.path} has no recording",
            hint=rank.why or "",
            slug="rank-without-recording",
        )
    named = Path(rank.file)
    for candidate in (named, run.file.parent / named, run.file.parent.parent / named):
        if candidate.exists():
            return candidate
    raise StoreError(
        f"the recording of rank {rank.rank}, {rank.file}, is not there any more",
        hint=f"{run.path} was made of it; bring it back, or build the run again",
        slug="rank-without-recording",
    )
