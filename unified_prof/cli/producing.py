"""A path, as somebody names a run, to one of the formats: what `report` prints and `view` shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.cli import converting, hints, printing, report_ranks

if TYPE_CHECKING:
    from unified_prof.analysis.load import Opened
    from unified_prof.cluster.overview import Overview
    from unified_prof.report.formats import Format, Request


@dataclass(frozen=True, slots=True)
class Produced:
    """A run in one of the formats."""

    content: str | bytes
    missing: str
    """What of it could not be read; empty: all could."""
    has_ranks_alone: bool
    """Whether it is of ranks together, and not of each as well."""


def produced(
    path: Path,
    shape: Format,
    request: Request,
    *,
    rank: int | None = None,
    capture: Path | None = None,
    convert: bool = False,
    quiet: bool = False,
    output: Path | None = None,
) -> Produced:
    """Return a report, a folder of them or a run of ranks in a format.

    Args:
        path: as the user named it.
        shape: the format.
        request: what of it is wanted.
        rank: of several ranks of a run, this one.
        capture: where the graphs were captured that are replayed here.
        convert: whether recordings are taken too.
        quiet: whether to say errors only.
        output: what will be written.

    Raises:
        UprofError: as of `report`.
    """
    with ExitStack() as stack:
        overview = None
        together = request.by is None and not convert and capture is None and shape.is_text
        if rank is not None or together:
            overview = stack.enter_context(
                report_ranks.of_run(path, quiet=quiet, needed=rank is not None)
            )
        if rank is not None:
            path = report_ranks.file_of(overview, path, rank)
            overview = None
        reports = None
        if overview is None or len(overview.run.read) <= report_ranks.SHOWN_EACH:
            reports = stack.enter_context(
                _opened(path, overview, capture, convert=convert, quiet=quiet, output=output)
            )
        if overview is None:
            assert reports is not None
            return Produced(shape.produce(reports, request), reports.coverage.sentence, False)
        return Produced(
            report_ranks.produce(overview, shape, request, reports),
            overview.coverage if overview.missing else "",
            reports is None,
        )


def say_hints(path: Path, made: Produced) -> None:
    """Say what else there is to see, and what a killed run left."""
    if made.has_ranks_alone:
        printing.say("uprof: hint: --rank N shows the report of one rank")
    if path.is_dir() and (hint := hints.unrecovered(path)) is not None:
        printing.say(f"uprof: hint: {hint}")


@contextmanager
def _opened(
    path: Path,
    overview: Overview | None,
    capture: Path | None,
    *,
    convert: bool,
    quiet: bool,
    output: Path | None,
) -> Iterator[Opened | None]:
    """Open the reports; those of a run need not be there any more."""
    from unified_prof.analysis.load import open_reports

    if overview is not None and (not path.is_dir() or overview.run.file.parent == path):
        yield None
        return
    ready = converting.reports_of(path, convert=convert, quiet=quiet, output=output)
    if capture is not None:
        made = converting.reports_of(
            capture, convert=convert, quiet=quiet, several=False, output=output
        )
        capture = made.path
    with (
        hints.for_reports(path),
        open_reports(ready.path, ready.missing, capture=capture) as opened,
    ):
        yield opened
