"""Opening of reports as analyses, the Python API `advise` and `what_if`, and batch size estimates.

Memory grows linearly with the batch size, plus a constant: a line through the measured peaks. The
distance of the peaks from the line is its error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from unified_prof.base.display import DisplayedList
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.explain.report_questions import Analysis, Change, WhatIfResult
from unified_prof.explain.what_if import WITHOUT
from unified_prof.recording import run_directory
from unified_prof.recording.model import Advice
from unified_prof.recording.source import Coverage, Missing, recorded_facts
from unified_prof.schema.catalogue import (
    CLUSTER,
    MSPROF,
    SKYLINE_MEMORY,
    SKYLINE_RUN_TIME,
    WATCH_FILES,
)
from unified_prof.sqlite.reader import Report, open_report


class Opened:
    """The reports of a file or directory, and what is missing.

    Attributes:
        path: File or directory.
        analyses: Readable reports; call `lose` if one turns out to be damaged while it is read.
    """

    def __init__(
        self,
        path: Path,
        groups: list[list[Report]],
        missing: list[Missing],
        capture: Report | None = None,
    ) -> None:
        self.path = path
        self.analyses = [_analysis(group, capture) for group in groups]
        self._keys: dict[int, str] = {}
        self._missing = missing
        for analysis, reports in zip(self.analyses, groups, strict=True):
            self._keys[id(analysis)] = _key(path, reports[0])

    def lose(self, analysis: Analysis, error: StoreError, *, part: str | None = None) -> None:
        """Record that an analysis could not be read completely; `part` names what was read."""
        why = f"{error}; {part}" if part else str(error)
        self._missing.append(Missing(self._keys[id(analysis)], why))

    @property
    def coverage(self) -> Coverage:
        """Present and missing reports."""
        return Coverage.from_reports(self._keys.values(), self._missing)


@contextmanager
def open_reports(
    path: str | os.PathLike[str],
    lost: Iterable[Missing] = (),
    *,
    capture: str | os.PathLike[str] | None = None,
) -> Iterator[Opened]:
    """Open a report file, or all reports in a directory with at least one readable report.

    In a directory, `run_time.sqlite` and `memory.sqlite` of one run are one analysis. Databases of
    other programs and cluster summaries are ignored; unreadable reports, and ranks of `run.json`
    without a report, are listed in the coverage.

    Args:
        path: File or directory.
        lost: Reports that are known to be missing.
        capture: Report of the recording in which the graphs of this one were captured.

    Raises:
        StoreError: The file is not a readable report, or the directory has none.
        UsageError: The report or the capture is of the wrong kind.
    """
    path = Path(path)
    if path.match(WATCH_FILES) or any(path.glob(WATCH_FILES)):
        raise UsageError(
            f"{path} has the steps of a watched run, not a report of operations",
            hint="show it with uprof report, or name a directory in its captures/",
            slug="no-report",
        )
    with ExitStack() as stack:
        captured = None if capture is None else stack.enter_context(_capture(Path(capture)))
        if not path.is_dir():
            report = stack.enter_context(open_report(path, any_revision=True))
            if report.family == CLUSTER:
                raise UsageError(
                    f"{path} is the summary of a multi-rank run, not the report of one process",
                    hint=f"uprof cluster report {path}",
                    slug="summary-of-a-cluster",
                )
            if captured is not None and report.family != MSPROF:
                raise UsageError(
                    f"{path} is not a timeline, so it has no captured graphs", slug="no-timeline"
                )
            if captured is not None and path.samefile(captured.path):
                raise UsageError(
                    f"{path} cannot be its own capture",
                    hint="name the report of the recording in which its graphs were captured",
                    slug="not-a-capture",
                )
            yield Opened(path, [[report]], [*lost], captured)
            return
        reports: list[Report] = []
        refused: list[tuple[Path, Exception]] = []
        found = run_directory.databases(path)
        for file in found.files:
            try:
                report = stack.enter_context(open_report(file, any_revision=True))
                if report.family != CLUSTER:
                    reports.append(report)
            except (StoreError, OutputError) as err:
                refused.append((file, err))
        missing = [
            *run_directory.missing(path, found, [report.path for report in reports], refused),
            *lost,
        ]
        if not reports:
            why = f": {missing[0].why}" if missing else ""
            raise StoreError(
                f"{path} contains no readable report{why}",
                hint=f"reports end in {', '.join(run_directory.SUFFIXES)};"
                " make one with `uprof run` or `uprof convert`",
                slug="no-report",
            )
        runs = _runs(reports)
        if captured is not None and (len(runs) > 1 or runs[0][0].family != MSPROF):
            raise UsageError(
                f"{path} holds {len(runs)} reports: a capture belongs to one timeline",
                hint="name the report of the process",
                slug="not-a-capture",
            )
        yield Opened(path, runs, missing, captured)


@contextmanager
def _capture(path: Path) -> Iterator[Report]:
    """Open the report of a graph capture; it must be one timeline with operations."""
    files = run_directory.databases(path).files if path.is_dir() else [path]
    if len(files) != 1:
        names = {file.name for file in files}
        raise UsageError(
            f"{path} is not a device report, but --with requires one"
            if names <= {"run_time.sqlite", "memory.sqlite"}
            else f"{path} has {len(files)} databases, but --with requires a single one",
            hint="record one with `uprof run --report timeline`, or name its file",
            slug="not-a-capture",
        )
    with open_report(files[0], any_revision=True) as report:
        if report.family != MSPROF or "PYTORCH_API" not in report.tables:
            raise UsageError(
                f"{path} has no operations, so it is not the recording of a graph capture",
                slug="not-a-capture",
            )
        yield report


@contextmanager
def open_analyses(
    path: str | os.PathLike[str], *, capture: str | os.PathLike[str] | None = None
) -> Iterator[list[Analysis]]:
    """Yield the analyses of a report file or of all reports in a directory, see `open_reports`.

    Raises:
        StoreError: As `open_reports`, or a report of the directory is missing.
    """
    with open_reports(path, capture=capture) as opened:
        if missing := opened.coverage.sentence:
            raise StoreError(f"{path}: {missing}", slug="ranks-missing")
        yield opened.analyses


@contextmanager
def open_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[list[Analysis]]:
    """Yield the analyses of several report files; raises StoreError if one is unreadable."""
    with ExitStack() as stack:
        reports = [stack.enter_context(open_report(path, any_revision=True)) for path in paths]
        yield [_analysis(group) for group in _runs(reports)]


def _key(path: Path, report: Report) -> str:
    """Return the display key of a report, by its file name or its recorded rank."""
    key = run_directory.key_of(path, report.path)
    if key == str(report.path):
        with suppress(StoreError):  # reported when its figures are read
            ranks = {value for name, value in recorded_facts(report) if name == "rank"}
            if len(ranks) == 1 and (rank := ranks.pop()).isdecimal():
                return f"rank {int(rank)}"
    return key


def _runs(reports: list[Report]) -> list[list[Report]]:
    """Group the two Skyline reports of one run; every other report is a separate group."""
    groups: dict[tuple[Path, str], list[Report]] = {}
    for report in reports:
        key = (report.path.parent, report.path.name)
        if report.family in (SKYLINE_RUN_TIME, SKYLINE_MEMORY):
            stem = report.path.stem.replace("run_time", "").replace("memory", "")
            pair = (report.path.parent, f"skyline{stem}")
            if not any(other.family == report.family for other in groups.get(pair, [])):
                key = pair
        groups.setdefault(key, []).append(report)
    return list(groups.values())


def _analysis(reports: list[Report], capture: Report | None = None) -> Analysis:
    # The modules of the other family are not imported, which takes 0.1 s.
    if reports[0].family in (SKYLINE_RUN_TIME, SKYLINE_MEMORY):
        from unified_prof.explain.skyline import SkylineAnalysis

        return SkylineAnalysis(reports)
    from unified_prof.explain.msprof import MsprofAnalysis

    return MsprofAnalysis(reports[0], capture)


def advise(path: str | os.PathLike[str]) -> list[Advice]:
    """Return findings and skipped rules of a report, or of each report in a directory.

    Raises:
        StoreError: A file is not a readable report.
    """
    with open_analyses(path) as analyses:
        return DisplayedList(analysis.advice() for analysis in analyses)


def what_if(
    path: str | os.PathLike[str],
    *,
    faster: Mapping[str, float] | None = None,
    without: str | Iterable[str] = (),
    top: int = 10,
) -> list[WhatIfResult]:
    """Estimate the step time if parts of a timeline, or of each in a directory, were faster.

    Args:
        path: Report or directory.
        faster: Names and factors, such as `{"aten::mm": 2}`.
        without: Name or names to remove.
        top: Number of candidates to evaluate if there are no changes.

    Raises:
        StoreError: A file is not a readable report.
        UsageError: No recorded item has one of the names, or the report is not a timeline.
    """
    changes = [Change(name, factor) for name, factor in (faster or {}).items()]
    gone = [without] if isinstance(without, str) else without
    changes += [Change(name, WITHOUT) for name in gone]
    with open_analyses(path) as analyses:
        return [analysis.what_if(changes, top=top) for analysis in analyses]


MIN_PEAKS_FOR_ERROR = 3  # Minimum number of peaks for an error: two peaks are always on a line.


class Measured(Struct, frozen=True):
    """Median iteration and peak memory of one batch size, None if not measured."""

    batch_size: int
    iteration_ms: float | None
    peak_bytes: int | None
    failure: str | None = None  # Why nothing was measured.

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second."""
        return None if not self.iteration_ms else self.batch_size / self.iteration_ms * 1e3


class Fit(Struct, frozen=True):
    """The line through the peaks, and the largest batch that fits into `memory_bytes`."""

    fixed_bytes: float
    bytes_per_sample: float
    # Maximum distance of a peak from the line; None for two peaks.
    error_bytes: float | None
    memory_bytes: int | None = None
    # Largest batch with the error added; None if no memory size is given or none fits.
    largest_batch: int | None = None
    largest_without_error: int | None = None


def fit(measured: Sequence[Measured], memory_bytes: int | None = None) -> Fit | None:
    """Return the line through the peaks, or None for fewer than two; see `Fit`."""
    known = {one.batch_size: one.peak_bytes for one in measured if one.peak_bytes is not None}
    if len(known) < 2:
        return None
    sizes = np.array(list(known), np.float64)
    peaks = np.array(list(known.values()), np.float64)
    slope, fixed = (float(value) for value in np.polyfit(sizes, peaks, 1))
    error = float(np.abs(peaks - (fixed + slope * sizes)).max())
    error_bytes = error if len(known) >= MIN_PEAKS_FOR_ERROR else None

    def largest(spare: float) -> int | None:
        if memory_bytes is None or slope <= 0:
            return None
        result = int((memory_bytes - fixed - spare) // slope)
        return result if result >= 1 else None

    return Fit(fixed, slope, error_bytes, memory_bytes, largest(error_bytes or 0.0), largest(0.0))
