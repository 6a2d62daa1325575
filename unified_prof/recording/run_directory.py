"""Search of a directory for report files, with their ranks and the missing reports."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from unified_prof.errors import UprofError
from unified_prof.recording.source import Missing
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.opening import detect

SUFFIXES = (".db", ".sqlite", ".sqlite3")
# File that `uprof run` writes beside the reports of several ranks.
RUN_DOCUMENT = run_folder.FILE_NAME
# Maximum depth of the search; the directory layouts of known tools need three levels.
_MAX_DEPTH = 4

_REPORT_NAME = re.compile(
    r"(run_time|memory)(_.*)?\.sqlite|(msprof|msmonitor)_.*\.db"
    r"|ascend_(pytorch|mindspore)_profiler(_.*)?\.db"
)
_RANKS = (
    re.compile(r"(?:^|[_.-])rank[_-]?(\d+)(?=[_.-]|$)"),
    re.compile(r"^ascend_(?:pytorch|mindspore)_profiler_(\d+)\.db$"),
)
# Parts of a path that may name the rank: database, torch_npu's output, recording, rank.
_NEAR = 4
_SQLITE = b"SQLite format 3\0"
_MAX_RANKS = 1 << 20


class Found(Struct):
    """Files found in a directory."""

    files: list[Path] = field(default_factory=list)  # Files that are named like a database.
    documents: list[Path] = field(default_factory=list)  # Each RUN_DOCUMENT.
    closed: list[OSError] = field(default_factory=list)  # Directories that cannot be listed.


def databases(folder: Path) -> Found:
    """Search a directory and its subdirectories for files that may be reports."""
    result = Found()
    for place, folders, files in os.walk(folder, onerror=result.closed.append):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < _MAX_DEPTH else []
        result.files += [Path(place) / name for name in sorted(files) if name.endswith(SUFFIXES)]
        if RUN_DOCUMENT in files:
            result.documents.append(Path(place) / RUN_DOCUMENT)
    return result


def key_of(folder: Path, file: Path) -> str:
    """Return `rank 3`, or the path of the file if its rank is unknown."""
    rank = rank_of(folder, file)
    return str(file) if rank is None else f"rank {rank}"


def rank_of(folder: Path, file: Path) -> int | None:
    """Return the rank in the name of a file or of a directory around it, or None."""
    inside = file.relative_to(folder) if file.is_relative_to(folder) else Path(file.name)
    return rank_in_names(inside.parts)


def rank_near(place: str) -> int | None:
    """Return the rank in the last parts of a path, or None.

    Parent directories further up are ignored: a user's project may be called `rank_1`.
    """
    return rank_in_names(re.split(r"[/\\]", place)[-_NEAR:])


def rank_in_names(parts: Sequence[str]) -> int | None:
    """Return the rank in the last part of a path that has one, or None."""
    for part in reversed(parts):
        for pattern in _RANKS:
            if match := pattern.search(part):
                return int(match[1])
    return None


def missing(
    folder: Path, found: Found, read: Sequence[Path], refused: Iterable[tuple[Path, Exception]]
) -> list[Missing]:
    """Return the unreadable reports, and the ranks without a report.

    `read` are the reports that were opened, `refused` the other files, with reasons.
    """
    lost = [
        Missing(key_of(folder, file), str(err))
        for file, err in refused
        if _should_be_a_report(file, read)
    ]
    lost += [
        Missing(str(err.filename), f"the directory {err.filename} cannot be read: {err.strerror}")
        for err in found.closed
    ]
    for document in found.documents:
        nearby = [file for file in found.files if file.is_relative_to(document.parent)]
        known = {rank_of(folder, file) for file in nearby}
        expected, reasons = _expected_ranks(document), _reasons(document)
        source = f"({document} lists {len(expected)} ranks)"
        lost += [
            Missing(f"rank {rank}", f"it left no report{reasons.get(rank, '')} {source}")
            for rank in expected
            if rank not in known
        ]
    return lost


def _should_be_a_report(file: Path, read: Sequence[Path]) -> bool:
    """Return True if an unreadable file was probably a report.

    An intact database of another program is not a report. A file of another format is not one
    either, unless it is named like a report or, apart from numbers, like another report in its
    directory.
    """
    name = file.name
    if _REPORT_NAME.fullmatch(name) or _RANKS[0].search(name):
        return True
    if re.sub(r"\d+", "#", name) in {re.sub(r"\d+", "#", one.name) for one in read}:
        return True
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return False  # a pipe, which would block, or a device
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
    """Return the reasons why ranks have no report, from the run's document."""
    try:
        run = run_folder.read(document.parent)
    except UprofError:
        return {}
    return {} if run is None else {rank: f": {why}" for rank, why in run.without_reports.items()}


def _expected_ranks(document: Path) -> list[int]:
    """Return the ranks in the run's document; none if it cannot be read."""
    try:
        content = json.loads(run_folder.content(document))
    except (OSError, UprofError, ValueError, RecursionError):
        return []
    if not isinstance(content, dict):
        return []
    expected = content.get("expected_ranks")
    if isinstance(expected, list):
        return sorted({rank for rank in expected if isinstance(rank, int) and rank >= 0})
    size = content.get("world_size")
    return list(range(size)) if isinstance(size, int) and 1 < size <= _MAX_RANKS else []
