"""Chooses directories and names for reports, and finds existing reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unified_prof.base.text import storable
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.pipeline import analysis_db
from unified_prof.pipeline.discovery import FoundRecording

_RANK_IN_NAME = re.compile(r"(?<![a-z0-9])rank[_-]?\d", re.IGNORECASE)


def report_names(recordings: Sequence[FoundRecording], *, ranked: bool = False) -> list[str]:
    """Return a report name for each recording, unique even if case is ignored.

    Recordings with the same name get the name of a parent directory as prefix: the nearest level at
    which all differ (`rank0_trace`, `rank1_trace`), otherwise as many levels as needed. If they are
    in the same directory, the kind is appended. The same recordings in the same order always get
    the same names. If `ranked`, names that do not contain a rank are prefixed with the recorded
    rank.
    """
    result = [found.source.stem(found.path) for found in recordings]
    for members in _groups(
        (name.casefold(), str(found.path.resolve().parent))
        for name, found in zip(result, recordings, strict=True)
    ):
        kinds = {recordings[index].source.kind for index in members}
        if len(kinds) > 1:
            for index in members:
                result[index] = f"{result[index]}_{recordings[index].source.kind}"
    if ranked:
        result = [_with_rank(name, found) for name, found in zip(result, recordings, strict=True)]
    for members in _groups(name.casefold() for name in result):
        if len(members) > 1:
            folders = [recordings[index].path.resolve().parts[-2:0:-1] for index in members]
            for index, prefix in zip(members, _prefixes(folders), strict=True):
                result[index] = f"{prefix}{result[index]}"
    return _numbered(result)


def _groups(keys: Iterable[object]) -> Iterable[list[int]]:
    """Return one list of indexes for each distinct key."""
    found: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return found.values()


def _with_rank(name: str, found: FoundRecording) -> str:
    if found.source.report_names_rank or _RANK_IN_NAME.search(name):
        return name
    if (rank := found.source.rank(found.path)) is None:
        return name
    return f"rank{rank}_{name}"


def _prefixes(folders: Sequence[Sequence[str]]) -> list[str]:
    """Return a prefix for each recording, given the names of its parents, nearest first.

    The prefix is the name at the nearest level where all differ, otherwise the names of several
    levels.
    """
    levels = min(map(len, folders))
    for level in range(levels):
        if len({names[level] for names in folders}) == len(folders):
            return [f"{names[level]}_" for names in folders]
    for level in range(1, levels):
        joined = ["_".join(reversed(names[: level + 1])) for names in folders]
        if len(set(joined)) == len(joined):
            return [f"{name}_" for name in joined]
    return [f"{names[0]}_" if names else "" for names in folders]


def _numbered(given: Sequence[str]) -> list[str]:
    """Append numbers to names that are equal, ignoring case."""
    taken: dict[str, str] = {}
    for name in given:
        number, unique = 2, name
        while unique.casefold() in taken:
            unique, number = f"{name}_{number}", number + 1
        taken[unique.casefold()] = unique
    return list(taken.values())


# Endings of files that are not databases; a directory of such a name is probably a mistake.
_FILE_ENDINGS = frozenset(
    {".csv", ".gz", ".html", ".json", ".md", ".parquet", ".sqlite", ".txt", ".xml", ".zip"}
)

# Layouts: names and directories are those of the source, or those of torch_npu.
PLAIN = "plain"
ASCEND_PT = "ascend-pt"


@dataclass(frozen=True, slots=True)
class ReportPlace:
    """Path of one report, and existing reports there."""

    # Path of the report; in torch_npu's layout, the file is renamed when its rank is known.
    target: Path
    # Directory that may be created for the report; None if the user named the file.
    directory: Path | None = None
    layout: str = PLAIN
    existing: tuple[Path, ...] = ()  # Existing reports that it would replace or conflict with.


def choose(
    recordings: Sequence[FoundRecording], output: Path | None, layout: str = PLAIN
) -> list[ReportPlace | OutputError]:
    """Return the place for the report of each recording.

    All recordings are converted together; their names are made unique. `output` is a file if it
    ends in `.db` and is not a directory, else a directory; None: the default place.

    Raises:
        UsageError: `output` is a file, but several files would be written; or a source does not
            support the layout.
    """
    if output is not None and output.suffix.lower() in _FILE_ENDINGS and not output.is_dir():
        raise UsageError(
            f"-o {output}: the file of a database ends in .db",
            hint=f"use -o {output.with_suffix('.db')}, or the name of a directory",
            slug="wrong-output-place",
        )
    if output is not None and is_file(output):
        refuse_sharing(output, len(recordings), layout)
        return [ReportPlace(output) for _ in recordings]
    for found in recordings:
        if layout not in found.source.layouts:
            raise UsageError(
                f"{found.path} is {found.source.description}, which does not support"
                f" layout {layout}",
                hint=f"omit --layout, or convert it separately with layout {PLAIN}",
                slug="wrong-layout",
            )
    ranked = layout == PLAIN and (output is not None or len(recordings) > 1)
    names = report_names(recordings, ranked=ranked)
    return [
        _place(found, output, name, layout) for found, name in zip(recordings, names, strict=True)
    ]


def is_file(output: Path) -> bool:
    """Return True if `output` names a report file, False if it names a directory."""
    return output.suffix == ".db" and not output.is_dir()


def refuse_sharing(output: Path, recordings: int, layout: str) -> None:
    """Raise UsageError if `output` is a file, but several files would be written."""
    if recordings > 1 or layout != PLAIN:
        what = "several recordings" if recordings > 1 else f"layout {layout}"
        raise UsageError(
            f"{what} cannot be written to one file {output}",
            hint="use a directory with -o",
            slug="one-output-for-many",
        )


def _place(
    found: FoundRecording, output: Path | None, name: str, layout: str
) -> ReportPlace | OutputError:
    if output is None and found.is_temporary:
        output = Path()
    try:
        if layout == ASCEND_PT:
            outer = (output or Path()) / f"{name}{analysis_db.DIRECTORY_SUFFIX}"
            directory = outer / analysis_db.OUTPUT_DIRECTORY
            target = directory / analysis_db.database_name(None)
        else:
            target = found.source.report_path(found.path, output, name)
            directory = target.parent
        return with_existing(found, ReportPlace(target, directory, layout))
    except OSError as err:
        return OutputError(
            f"cannot search for reports of {found.path}: {err.strerror or err}", slug="cannot-read"
        )


def with_existing(found: FoundRecording, place: ReportPlace) -> ReportPlace:
    """Return `place` with its list of existing reports updated."""
    if place.directory is None:
        existing = [place.target] if place.target.exists() else []
    elif place.layout == ASCEND_PT:
        existing = analysis_db.databases_in(place.directory.parent)
    else:
        existing = found.source.existing_reports(place.target)
    return replace(place, existing=tuple(existing))


def existing_report(found: FoundRecording, place: ReportPlace, revision: str) -> Path | None:
    """Return the existing complete report of this recording, None if there is none.

    A report matches if its rows in UPROF_RUN identify the recording, its schema is `revision`, and
    it is newer than all files of the recording.
    """
    from unified_prof.sqlite.reader import open_report

    for path in place.existing:
        try:
            with open_report(path) as report:
                if report.revision != revision or "UPROF_RUN" not in report.tables:
                    continue
                facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
            wanted = {**found.source.identity(found.path), "command": found.source.command}
            is_newer = path.stat().st_mtime_ns >= found.source.modified_ns(found.path)
        except (StoreError, OSError):
            continue
        if is_newer and all(facts.get(name) == storable(value) for name, value in wanted.items()):
            return path
    return None


def refuse_existing(place: ReportPlace) -> None:
    """Raise OutputError if reports already exist at `place`."""
    if place.existing:
        raise OutputError(
            f"{place.existing[-1]} exists already",
            hint="use --force to overwrite it, or -o to write elsewhere",
            slug="already-exists",
        )
