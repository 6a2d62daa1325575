"""Costs of a run by source line, and their lines after the file was edited."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from unified_prof.base.text import parsed_fact
from unified_prof.explain.api import open_reports
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording import run_directory
from unified_prof.recording.model import Finding

# Directories that contain no runs, and limits of the search for the newest run.
_IGNORED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox"})
_MAX_DEPTH, _MAX_ENTRIES = 4, 20_000
_REPORT_NAMES = ("run_time", "memory", "msprof_")
# Changed regions longer than this are not aligned: their lines have no costs.
_MAX_ALIGNED_LINES = 2_000
_MAX_DIGITS = 10  # Longer line numbers are damage.


@dataclass(frozen=True, slots=True)
class LineCost:
    """Cost of one source line per step; None is "not measured"."""

    name: str  # Operation, or several: `linear (+1)`.
    percent: float | None = None
    total_ns: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    recomputed_ns: float | None = None
    size_bytes: int | None = None
    findings: tuple[Finding, ...] = ()


_FIGURES = tuple(one.name for one in fields(LineCost) if one.name not in ("name", "findings"))


@dataclass(frozen=True, slots=True)
class SourceCosts:
    """Costs of a run by file and line."""

    path: Path
    recorded_at: float  # Unix time, s.
    # File as recorded, relative to the project or absolute -> line (from 1) -> cost.
    files: Mapping[str, Mapping[int, LineCost]]
    # File -> hash of its content when it ran; empty for recordings of other profilers.
    hashes: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None

    def file_of(self, path: Path) -> str | None:
        """Return the recorded name of a file, or None if the run has no costs of it."""
        if self.root is not None and path.is_relative_to(self.root):
            name = path.relative_to(self.root).as_posix()
            return name if name in self.files else None
        text = path.as_posix()
        if text in self.files:
            return text
        fitting = [name for name in self.files if f"/{text}".endswith(f"/{name}")]
        return max(fitting, key=len, default=None)


def read_source_costs(path: Path) -> SourceCosts:
    """Return the costs by line of a report; of a directory of ranks, those of the first one.

    Raises StoreError if the report cannot be read, and UsageError if it is not the report of a
    process.
    """
    with open_reports(path) as opened:
        analysis = opened.analyses[0]
        facts = dict(analysis.summary.facts)
        files: dict[str, dict[int, LineCost]] = {}
        for file, line, cost in _lines(analysis):
            files.setdefault(file, {})[line] = cost
    root = facts.get("project_root")
    return SourceCosts(
        path,
        path.stat().st_mtime,
        files,
        parsed_fact(facts, "source_hashes", dict),
        None if root is None else Path(root),
    )


def _lines(analysis: Analysis) -> Iterator[tuple[str, int, LineCost]]:
    findings = analysis.advice(quick=True).findings
    if "line" not in analysis.summary.available:
        return
    found = analysis.breakdown("line")
    costs: dict[tuple[str, int], LineCost] = {}
    for row in found.rows:
        if (place := file_and_line(row.name)) is not None:
            before = costs.get(place)
            cost = LineCost(
                row.detail or row.kind,
                found.percent(row) if row.total_ns is not None else None,
                row.total_ns,
                row.forward_ns,
                row.backward_ns,
                row.extra.get("recomputed_ns"),
                row.size_bytes,
                tuple(one for one in findings if names_line(one, row.name)),
            )
            costs[place] = cost if before is None else _merged(before, cost)
    for (file, line), cost in costs.items():
        yield file, line, cost


def file_and_line(name: str) -> tuple[str, int] | None:
    """Return the parts of `file:line`, the name of a row by line; None for other names."""
    file, _, number = name.rpartition(":")
    is_line = number.isascii() and number.isdecimal() and len(number) < _MAX_DIGITS
    return (file, int(number)) if file and is_line else None


def names_line(finding: Finding, line: str) -> bool:
    """Return True if a finding names `file:line` in its evidence or text."""
    if any(row.get("line") == line for row in finding.evidence):
        return True
    return re.search(rf"(?<![\w./\\-]){re.escape(line)}(?!\d)", finding.text) is not None


def _merged(one: LineCost, other: LineCost) -> LineCost:
    """Return the cost of a line with a row for its operations and one for its weights."""
    timed = one if one.total_ns is not None else other
    return replace(total((one, other)), name=timed.name, findings=one.findings or other.findings)


def total(costs: Iterable[LineCost]) -> LineCost:
    """Return the sum of the costs of several lines."""
    costs = list(costs)
    sums: dict[str, Any] = {}
    for name in _FIGURES:
        known = [value for one in costs if (value := getattr(one, name)) is not None]
        sums[name] = sum(known) if known else None
    return LineCost(f"{len(costs)} line{'s' * (len(costs) != 1)}", **sums)


def newest_run(folder: Path) -> Path | None:
    """Return the newest report below a directory, or the directory of the reports of its run."""
    newest: tuple[float, Path] | None = None
    entries = 0
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = [one for one in folders if depth < _MAX_DEPTH and one not in _IGNORED]
        entries += len(folders) + len(files)
        if entries > _MAX_ENTRIES:
            break
        for name in files:
            if name.startswith(_REPORT_NAMES) and name.endswith(run_directory.SUFFIXES):
                try:
                    time = Path(place, name).stat().st_mtime
                except OSError:
                    continue
                if newest is None or time > newest[0]:
                    is_database = name.startswith("msprof_")
                    newest = time, Path(place, name) if is_database else Path(place)
    return None if newest is None else newest[1]


class LineMap:
    """Lines of a file as it ran, in its current text."""

    def __init__(self, before: Sequence[str], now: Sequence[str]) -> None:
        head = 0
        shorter = min(len(before), len(now))
        while head < shorter and before[head] == now[head]:
            head += 1
        tail = 0
        while tail < shorter - head and before[-1 - tail] == now[-1 - tail]:
            tail += 1
        # (first line before, first line now, number of lines), counted from 0, ascending.
        self._blocks = [(0, 0, head)] if head else []
        old, new = before[head : len(before) - tail], now[head : len(now) - tail]
        if len(old) <= _MAX_ALIGNED_LINES and len(new) <= _MAX_ALIGNED_LINES:
            found = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            self._blocks += [(head + one.a, head + one.b, one.size) for one in found if one.size]
        if tail:
            self._blocks.append((len(before) - tail, len(now) - tail, tail))

    def now(self, line: int) -> int | None:
        """Return the current number of a line (from 1), None if it was changed or deleted."""
        at = bisect_right(self._blocks, line - 1, key=lambda block: block[0]) - 1
        if at < 0:
            return None
        first, moved, size = self._blocks[at]
        return moved + line - first if line - 1 < first + size else None
