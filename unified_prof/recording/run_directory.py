"""The report files in a folder: which there are, whose they are, and which should be there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unified_prof.errors import UprofError
from unified_prof.recording.source import Missing
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.detect import detect

SUFFIXES = (".db", ".sqlite", ".sqlite3")
RUN_DOCUMENT = run_folder.FILE_NAME
"""What `uprof run` leaves beside the reports of a run of several ranks."""
_DEEPEST = 4
"""Folders below the given one that are searched: the layouts of the known tools need three."""

_REPORT_NAME = re.compile(
    r"(run_time|memory)(_.*)?\.sqlite|(msprof|msmonitor)_.*\.db"
    r"|ascend_(pytorch|mindspore)_profiler(_.*)?\.db"
)
_RANKS = (
    re.compile(r"(?:^|[_.-])rank[_-]?(\d+)(?=[_.-]|$)"),
    re.compile(r"^ascend_(?:pytorch|mindspore)_profiler_(\d+)\.db$"),
)
_NEAR = 4
"""A database, the folder of torch_npu's output, that of its recording, that of the rank."""
_SQLITE = b"SQLite format 3\0"
_MOST_RANKS = 1 << 20


@dataclass(slots=True)
class Found:
    """What a folder holds."""

    files: list[Path] = field(default_factory=list)
    """Everything that is named like a database."""
    documents: list[Path] = field(default_factory=list)
    """Each RUN_DOCUMENT."""
    closed: list[OSError] = field(default_factory=list)
    """Folders that cannot be listed."""


def databases(folder: Path) -> Found:
    """Search a folder and those below it for files that may be reports."""
    found = Found()
    for place, folders, files in os.walk(folder, onerror=found.closed.append):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < _DEEPEST else []
        found.files += [Path(place) / name for name in sorted(files) if name.endswith(SUFFIXES)]
        if RUN_DOCUMENT in files:
            found.documents.append(Path(place) / RUN_DOCUMENT)
    return found


def key_of(folder: Path, file: Path) -> str:
    """Return whose report a file is: `rank 3`, or the file itself where none is known."""
    rank = rank_of(folder, file)
    return str(file) if rank is None else f"rank {rank}"


def rank_of(folder: Path, file: Path) -> int | None:
    """Return the rank that a file, or a folder that it lies in, is named after."""
    inside = file.relative_to(folder) if file.is_relative_to(folder) else Path(file.name)
    return rank_in_names(inside.parts)


def rank_near(place: str) -> int | None:
    """Return the rank that a path says near its end, for files whose contents say none.

    Further up, folders are of the user's: that of a project may well be called `rank_1`.
    """
    return rank_in_names(re.split(r"[/\\]", place)[-_NEAR:])


def rank_in_names(parts: Sequence[str]) -> int | None:
    """Return the rank that parts of a path say, the last one that says any; None: none does."""
    for part in reversed(parts):
        for pattern in _RANKS:
            if found := pattern.search(part):
                return int(found[1])
    return None


def missing(
    folder: Path, found: Found, read: Sequence[Path], refused: Iterable[tuple[Path, Exception]]
) -> list[Missing]:
    """Return the reports that should be there and cannot be read, and the ranks without any.

    Args:
        folder: where was searched.
        found: what it holds.
        read: the reports that were opened.
        refused: the files that were not, and why.
    """
    lost = [
        Missing(key_of(folder, file), str(err))
        for file, err in refused
        if _should_be_a_report(file, read)
    ]
    lost += [
        Missing(str(err.filename), f"the folder {err.filename} cannot be read: {err.strerror}")
        for err in found.closed
    ]
    for document in found.documents:
        beside = [file for file in found.files if file.is_relative_to(document.parent)]
        known = {rank_of(folder, file) for file in beside}
        expected, reasons = _expected_ranks(document), _reasons(document)
        source = f"({document} lists {len(expected)} ranks)"
        lost += [
            Missing(f"rank {rank}", f"it left no report{reasons.get(rank, '')} {source}")
            for rank in expected
            if rank not in known
        ]
    return lost


def _should_be_a_report(file: Path, read: Sequence[Path]) -> bool:
    """Whether a file that cannot be read as a report was meant to be one.

    A sound database of another program is none, nor is a file of another format that only ends
    like one, unless its name says so: that of a report, or of one of those beside it but for
    numbers.
    """
    name = file.name
    if _REPORT_NAME.fullmatch(name) or _RANKS[0].search(name):
        return True
    if re.sub(r"\d+", "#", name) in {re.sub(r"\d+", "#", one.name) for one in read}:
        return True
    try:
        with file.open("rb") as stream:
            begin = stream.read(len(_SQLITE))
    except OSError:
        return True
    return not begin.strip(b"\0") or (begin == _SQLITE and not _is_sound(file))


def _is_sound(file: Path) -> bool:
    try:
        return detect(file).family is None
    except UprofError:
        return False


def _reasons(document: Path) -> dict[int, str]:
    """Return what the run itself has written down of ranks without a report."""
    try:
        run = run_folder.read(document.parent)
    except UprofError:
        return {}
    return {} if run is None else {rank: f": {why}" for rank, why in run.without_reports.items()}


def _expected_ranks(document: Path) -> list[int]:
    """Return the ranks that the run's own document expects; none where it cannot be read."""
    try:
        content = json.loads(document.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(content, dict):
        return []
    expected = content.get("expected_ranks")
    if isinstance(expected, list):
        return sorted({rank for rank in expected if isinstance(rank, int) and rank >= 0})
    size = content.get("world_size")
    if isinstance(size, int) and 1 < size <= _MOST_RANKS:
        return list(range(size))
    return []
