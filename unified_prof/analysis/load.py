"""Opens a report file, or a folder of them, as analyses, and says which of a run are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.read import folder
from unified_prof.analysis.read.coverage import Coverage, Missing
from unified_prof.analysis.read.source import recorded_facts
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.models.catalogue import CLUSTER, MSPROF, SKYLINE_MEMORY, SKYLINE_RUN_TIME
from unified_prof.store.reader import Report, open_report


class Opened:
    """The reports of a file or a folder that could be opened, and what is missing beside them.

    Attributes:
        path: what was opened.
        analyses: the reports; one that turns out to be damaged while it is read is `lose`d.
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
        """Note that a report could not be read to its end.

        Args:
            analysis: one of `analyses`.
            error: why not.
            part: what there is of it nevertheless, in words.
        """
        why = f"{error}; {part}" if part else str(error)
        self._missing.append(Missing(self._keys[id(analysis)], why))

    @property
    def coverage(self) -> Coverage:
        """Which reports there are, and which are missing."""
        return Coverage.of(self._keys.values(), self._missing)


@contextmanager
def open_reports(
    path: str | os.PathLike[str],
    lost: Iterable[Missing] = (),
    *,
    capture: str | os.PathLike[str] | None = None,
) -> Iterator[Opened]:
    """Open a report file, or all reports in a folder, of which at least one can be read.

    In a folder, a run time report and a memory report of one run (`run_time.sqlite` beside
    `memory.sqlite`) are one analysis. Databases there that are no reports are passed over, as are
    summaries of clusters; a report that cannot be read, and a rank that the folder's `run.json`
    expects and that left none, are part of the coverage.

    Args:
        path: the file or folder.
        lost: reports that are known to be missing beside those that are there.
        capture: report of the recording in which graphs were captured that this one replays.

    Raises:
        StoreError: the file is no report or cannot be read; the folder holds no report.
        UsageError: a question is asked that the report cannot answer.
    """
    path = Path(path)
    with ExitStack() as stack:
        captured = None if capture is None else stack.enter_context(_capture(Path(capture)))
        if not path.is_dir():
            report = stack.enter_context(open_report(path, any_revision=True))
            if report.family == CLUSTER:
                raise UsageError(
                    f"{path} is the summary of a cluster's run, not the report of one process",
                    hint=f"uprof cluster report {path}",
                    slug="summary-of-a-cluster",
                )
            if captured is not None and report.family != MSPROF:
                raise UsageError(
                    f"{path} is no timeline: it has no graphs of a capture", slug="no-timeline"
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
        found = folder.databases(path)
        for file in found.files:
            try:
                report = stack.enter_context(open_report(file, any_revision=True))
                if report.family != CLUSTER:
                    reports.append(report)
            except (StoreError, OutputError) as err:
                refused.append((file, err))
        missing = [*folder.missing(path, found, [one.path for one in reports], refused), *lost]
        if not reports:
            why = f": {missing[0].why}" if missing else ""
            raise StoreError(
                f"{path} holds no readable report{why}",
                hint=f"reports end in {', '.join(folder.SUFFIXES)}; make one with `uprof run`",
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
    """Open the report of the recording of a capture: one timeline with operations."""
    files = folder.databases(path).files if path.is_dir() else [path]
    if len(files) != 1:
        raise UsageError(
            f"{path} holds {len(files)} databases: name the one of the capture",
            slug="not-a-capture",
        )
    with open_report(files[0], any_revision=True) as report:
        if report.family != MSPROF or "PYTORCH_API" not in report.tables:
            raise UsageError(
                f"{path} has no operations: it is no recording of a capture", slug="not-a-capture"
            )
        yield report


@contextmanager
def open_analyses(
    path: str | os.PathLike[str], *, capture: str | os.PathLike[str] | None = None
) -> Iterator[list[Analysis]]:
    """Yield the analyses of a report file or of all reports in a folder, none of them missing.

    Args:
        path: the file or folder.
        capture: as of `open_reports`.

    Raises:
        StoreError: as of `open_reports`; also where a report of the folder is missing.
        UsageError: a question is asked that the report cannot answer.
    """
    with open_reports(path, capture=capture) as opened:
        if missing := opened.coverage.sentence:
            raise StoreError(f"{path}: {missing}", slug="ranks-missing")
        yield opened.analyses


@contextmanager
def open_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[list[Analysis]]:
    """Yield the analyses of report files that belong together, such as those of one run.

    Raises:
        StoreError: a file is no report or cannot be read.
    """
    with ExitStack() as stack:
        reports = [stack.enter_context(open_report(path, any_revision=True)) for path in paths]
        yield [_analysis(group) for group in _runs(reports)]


def _key(path: Path, report: Report) -> str:
    """Return whose report this is, by its name or by what it says of itself."""
    key = folder.key_of(path, report.path)
    if key == str(report.path):
        with suppress(StoreError):  # whoever asks it for figures will hear of that
            ranks = {value for name, value in recorded_facts(report) if name == "rank"}
            if len(ranks) == 1 and (rank := ranks.pop()).isdecimal():
                return f"rank {int(rank)}"
    return key


def _runs(reports: list[Report]) -> list[list[Report]]:
    """Put the two Skyline reports of one run together; everything else stands for itself."""
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
    # Of either family the other's half of the analyses is not imported.
    if reports[0].family in (SKYLINE_RUN_TIME, SKYLINE_MEMORY):
        from unified_prof.analysis.skyline import SkylineAnalysis

        return SkylineAnalysis(reports)
    from unified_prof.analysis.msprof import MsprofAnalysis

    return MsprofAnalysis(reports[0], capture)
