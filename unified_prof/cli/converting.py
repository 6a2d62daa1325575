"""`--convert` of the commands that read reports: recordings are taken as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof import streams
from unified_prof.cli import hints, printing
from unified_prof.errors import OutputError, UsageError

if TYPE_CHECKING:
    from unified_prof.analysis.compare.comparable import Run
    from unified_prof.pipeline.ready import Ready

Convert = Annotated[
    bool,
    typer.Option(
        "--convert",
        help="Take recordings of other profilers too; their reports are kept in ~/.cache/uprof.",
    ),
]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    given: tuple[Path, ...]
    """As the user named it."""
    reports: tuple[Path, ...]
    """What to read in its place."""
    made: bool
    """Whether reports were made of recordings."""

    @property
    def label(self) -> str:
        """What the user calls it."""
        return ", ".join(map(str, self.given))

    def run(self) -> Run:
        """Return the run that the reports are of.

        Raises:
            UprofError: as of `analysis.compare.runs.load`.
        """
        from unified_prof.analysis.compare import runs

        with hints.for_reports(*self.given):
            run = runs.load(self.reports)
        return replace(run, label=self.label) if self.made else run


def reports_of(
    path: Path,
    *,
    convert: bool,
    quiet: bool,
    several: bool = True,
    output: Path | None = None,
) -> Ready:
    """Return what to read in place of `path`, and say what was made of what.

    Args:
        path: As the user named it.
        convert: Whether recordings may be converted; else `path` is read as it is.
        quiet: Whether to say errors only.
        several: Whether a folder of several recordings is of use.
        output: What will be written; never one of the recordings, not even by force.

    Raises:
        OutputError: the output is one of the recordings.
        UprofError: as of `pipeline.cache.reports_of`.
    """
    from unified_prof.pipeline.ready import Ready

    if not convert:
        return Ready(path)
    from unified_prof.pipeline import cache

    def note(sentence: str) -> None:
        if not quiet:
            printing.say(f"uprof: note: {sentence}")

    with printing.progress_line(enabled=streams.is_terminal() and not quiet) as progress:
        ready = cache.reports_of(path, several=several, progress=progress, note=note)
    _refuse_recording(output, (path, *(found.path for found, _ in ready.made)))
    for found, report in ready.made:
        note(f"{found.path} is {found.source.title}; its report is {report}")
    return ready


def _refuse_recording(output: Path | None, recordings: Iterable[Path]) -> None:
    if output is None or not output.is_file():
        return
    for recording in recordings:
        if recording.is_file() and output.samefile(recording):
            raise OutputError(
                f"{output} is the recording itself, which is never replaced",
                hint="name another file",
                slug="not-replaced",
            )


def side_of(
    paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None
) -> Side:
    """Return one side of a comparison: what to read, under the names that the user knows.

    Raises:
        UprofError: as of `reports_of`; also where a path is the summary of a cluster's run.
    """
    from unified_prof.cluster.places import is_run

    for path in paths:
        if is_run(path):
            raise UsageError(
                f"{path} is the summary of a cluster's run, not the report of one process",
                hint="compare two of them with `uprof cluster diff` or `uprof cluster gate`",
                slug="summary-of-a-cluster",
            )
    ready = [
        reports_of(path, convert=convert, quiet=quiet, several=False, output=output)
        for path in paths
    ]
    return Side(tuple(paths), tuple(one.path for one in ready), any(one.made for one in ready))


def run_of(paths: Sequence[Path], *, convert: bool, quiet: bool, output: Path | None = None) -> Run:
    """Return the run that reports, or recordings, are of.

    Raises:
        UprofError: as of `analysis.compare.runs.load`, and of `side_of`.
    """
    return side_of(paths, convert=convert, quiet=quiet, output=output).run()
