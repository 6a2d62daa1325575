"""Opens a report file, or a folder of them, as analyses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.msprof import MsprofAnalysis
from unified_prof.analysis.skyline import MEMORY, RUN_TIME, SkylineAnalysis
from unified_prof.errors import StoreError
from unified_prof.store.reader import Report, open_report

_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_DEEPEST = 4
"""Folders below the given one that are searched: the layouts of the known tools need three."""


@contextmanager
def open_analyses(path: str | os.PathLike[str]) -> Iterator[list[Analysis]]:
    """Yield the analyses of a report file or of all reports in a folder; at least one.

    In a folder, a run time report and a memory report of one run (`run_time.sqlite` beside
    `memory.sqlite`) are one analysis. Databases there that are no reports are passed over.

    Raises:
        StoreError: the file is no report or cannot be read; the folder holds no report.
        UsageError: a question is asked that the report cannot answer.
    """
    path = Path(path)
    with ExitStack() as stack:
        if not path.is_dir():
            yield [_analysis([stack.enter_context(open_report(path, any_revision=True))])]
            return
        reports: list[Report] = []
        refused: list[str] = []
        for file in _databases(path):
            try:
                reports.append(stack.enter_context(open_report(file, any_revision=True)))
            except StoreError as err:
                refused.append(str(err))
        if not reports:
            found = f"; {refused[0]}" if refused else ""
            raise StoreError(
                f"{path} holds no report{found}",
                hint=f"reports end in {', '.join(_SUFFIXES)}; make one with `uprof run`",
            )
        yield [_analysis(group) for group in _runs(reports)]


@contextmanager
def open_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[list[Analysis]]:
    """Yield the analyses of report files that belong together, such as those of one run.

    Raises:
        StoreError: a file is no report or cannot be read.
    """
    with ExitStack() as stack:
        reports = [stack.enter_context(open_report(path, any_revision=True)) for path in paths]
        yield [_analysis(group) for group in _runs(reports)]


def _databases(folder: Path) -> list[Path]:
    found = []
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < _DEEPEST else []
        found += [Path(place) / name for name in sorted(files) if name.endswith(_SUFFIXES)]
    return found


def _runs(reports: list[Report]) -> list[list[Report]]:
    """Put the two Skyline reports of one run together; everything else stands for itself."""
    groups: dict[tuple[Path, str], list[Report]] = {}
    for report in reports:
        key = (report.path.parent, report.path.name)
        if report.family in (RUN_TIME, MEMORY):
            stem = report.path.stem.replace("run_time", "").replace("memory", "")
            pair = (report.path.parent, f"skyline{stem}")
            if not any(other.family == report.family for other in groups.get(pair, [])):
                key = pair
        groups.setdefault(key, []).append(report)
    return list(groups.values())


def _analysis(reports: list[Report]) -> Analysis:
    if reports[0].family in (RUN_TIME, MEMORY):
        return SkylineAnalysis(reports)
    return MsprofAnalysis(reports[0])
