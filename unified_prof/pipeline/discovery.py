"""Finds recordings, chooses directories and names for their reports, and finds existing reports.

Recordings are files, directories of them at any depth, archives and patterns.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from unified_prof.base.text import some_of, storable
from unified_prof.decoders.compression import format_of, head_of
from unified_prof.errors import (
    OutputError,
    RawFormatError,
    StoreError,
    UprofError,
    UsageError,
    system_errors,
)
from unified_prof.pipeline import analysis_db, sources
from unified_prof.pipeline.sources import Source
from unified_prof.pipeline.sources.base import Match
from unified_prof.pipeline.temporary_inputs import TemporaryInputs, is_archive
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.reader import open_report

# Maximum depth of directories that are searched; few systems open paths that are much longer.
MAX_DEPTH = 64
# Maximum files and directories below one directory, which take about half a minute.
MAX_ENTRIES = 250_000
# Maximum skipped files of a kind that are named.
_MAX_NAMES = 100
_SQLITE = b"SQLite format 3\0"
_Report = Callable[[str], None]


class FoundRecording(Struct, frozen=True):
    """A recording and the source that decodes it."""

    path: Path
    source: Source
    is_temporary: bool = False  # True for temporary files, next to which no report may be written.


FailedPath = tuple[Path, UprofError]


def find(
    paths: Sequence[Path],
    progress: _Report = lambda _: None,
    note: _Report = lambda _: None,
    temporary: TemporaryInputs | None = None,
) -> Iterator[FoundRecording | FailedPath]:
    """Yield each recording in `paths` once, and an error for each path without a recording.

    A directory that is not a recording is searched at any depth without following links; one that
    cannot be listed does not stop the search. A path with `*`, `?` or `[` that does not exist is a
    pattern, in which `**` matches any depth. `note` is called with a note about files that were
    skipped or ranks that are missing. `temporary` unpacks archives; without it, archives of several
    files are refused.
    """
    seen: set[str] = set()
    for given in paths:
        try:
            for path in paths_of_pattern(given):
                for found in _recordings(path, progress, note, temporary):
                    if not isinstance(found, FoundRecording):
                        yield found
                        continue
                    real = os.path.realpath(found.path)
                    if real not in seen:
                        seen.add(real)
                        yield found
        except UprofError as err:
            yield given, err


def paths_of_pattern(given: Path) -> list[Path]:
    """Return the paths that match a pattern; other paths, and patterns without match, are kept."""
    names: list[str] = []
    if glob.has_magic(str(given)) and not os.path.lexists(given):
        names = glob.glob(str(given), recursive=True)  # noqa: PTH207 (it takes whole paths)
    return list(map(Path, sorted(names))) or [given]


def refusal(path: Path) -> UprofError:
    """Return the error for a path that no source accepts; it names the format if known."""
    expected = "; ".join(source.description for source in sources.SOURCES)
    try:
        mode = path.stat().st_mode
    except OSError as err:
        text = "no such file" if isinstance(err, FileNotFoundError) else err.strerror
        # Paths have no empty parts.
        name = re.sub(r"^(\w{2,}):/", r"\1://", str(path))
        hint = "download the file first" if name != str(path) else None
        hint = "the pattern matches nothing" if glob.has_magic(str(path)) else hint
        return RawFormatError(f"{name}: {text}", hint=hint, slug="no-such-recording")
    if stat.S_ISDIR(mode):
        if reports := analysis_db.databases_in(path):
            return UsageError(
                f"{path} contains no raw data, only the finished database of a recording:"
                " nothing to convert",
                hint=f"show it with `uprof report {shlex.quote(str(reports[0]))}`",
                slug="already-a-report",
            )
        return RawFormatError(
            f"{path} is not a recording and contains none",
            hint=f"expected {expected}; links to directories are not followed",
            slug="not-a-recording",
        )
    if not stat.S_ISREG(mode):
        return RawFormatError(
            f"{path} is not a regular file",
            hint="write its content to a file first",
            slug="not-a-regular-file",
        )
    return _file_refusal(path, expected)


def _file_refusal(path: Path, expected: str) -> UprofError:
    if (unsupported := sources.unsupported_format(path)) is not None:
        return RawFormatError(
            f"{path} is {unsupported.description}, which uprof cannot convert",
            hint=unsupported.hint_for(path),
            slug="unsupported-recording",
        )
    try:
        with path.open("rb") as file:
            # Some files of /proc, which are empty, block.
            head = file.read(64) if path.stat().st_size else b""
    except OSError as err:
        return RawFormatError(f"cannot read {path}: {err.strerror or err}", slug="cannot-read")
    if head.startswith(_SQLITE):
        return _database_refusal(path, expected)
    if head and format_of(head) is not None:
        content = head_of(path)
        what = {None: "is compressed and damaged", b"": "is an empty file, compressed"}.get(
            content, "is not in a format that uprof can convert, compressed"
        )
        slug = "damaged-recording" if content is None else "not-a-recording"
        return RawFormatError(f"{path} {what}", hint=f"expected {expected}", slug=slug)
    what = "is not in a format that uprof can convert" if head else "is empty"
    slug = "not-a-recording" if head else "empty-file"
    return RawFormatError(f"{path} {what}", hint=f"expected {expected}", slug=slug)


def _database_refusal(path: Path, expected: str) -> UprofError:
    try:
        found = detect(path)
    except UprofError as err:  # here the database is a recording, not a report
        return RawFormatError(str(err), hint=err.hint, slug=err.slug)
    if found.family is not None:
        return UsageError(
            f"{path} is a finished report, nothing to convert",
            hint=f"show it with `uprof report {path}`",
            slug="already-a-report",
        )
    return RawFormatError(
        f"{path} is {found.description}, which uprof cannot convert",
        hint=f"expected {expected}",
        slug="unsupported-recording",
    )


def _recordings(
    path: Path, progress: _Report, note: _Report, temporary: TemporaryInputs | None
) -> Iterator[FoundRecording | FailedPath]:
    """Yield `path` if it is a recording, otherwise recordings below it and search errors.

    Raises UprofError if there are none.
    """
    is_temporary = temporary is not None and temporary.contains(path)
    if not path.is_dir():
        if temporary is not None and not temporary.is_unpacked(path) and is_archive(path):
            yield from _recordings(temporary.unpack(path, progress), progress, note, temporary)
            return
        source = sources.find_source(path)
        if source is None:
            raise refusal(path)
        yield FoundRecording(path, source, is_temporary)
        return
    if (source := sources.certain_source(path)) is not None:
        yield FoundRecording(path, source, is_temporary)
        return
    search = _Search(path, progress, is_temporary)
    is_empty = True
    for found in search.run():
        is_empty = False
        yield found
    if not is_empty:
        for sentence in search.notes():
            note(sentence)
    elif (source := sources.find_source(path)) is None:
        raise refusal(path)
    else:
        yield FoundRecording(path, source, is_temporary)


# Names that only recordings have: if no source accepts such a file, that is an error.
_RECORDING_NAME = re.compile(
    r"trace(?!_view)[^/]*\.json$|\.json\.(?:gz|xz|bz2|zst|zip)$|rank[_-]?\d+[^/]*\.(?:json|pickle)$",
    re.IGNORECASE,
)
# Names that recordings can have: if such a file is empty or cannot be decompressed, that is an
# error.
_POSSIBLE_NAME = re.compile(
    r"\.(?:json|pickle|pkl|sqlite)(?:\.(?:gz|xz|bz2|zst|zip))?$", re.IGNORECASE
)


class _Search:
    """Searches a directory for recordings, but not inside recordings."""

    def __init__(self, directory: Path, progress: _Report, is_temporary: bool) -> None:
        self._directory, self._progress = directory, progress
        self._is_temporary = is_temporary
        self._links: list[Path] = []
        self._too_deep: list[Path] = []
        self._skipped: dict[str, list[str]] = {}  # Other files by kind.
        self._ranks: dict[int, set[int]] = {}  # World size -> ranks found.

    def run(self) -> Iterator[FoundRecording | FailedPath]:
        """Yield the recordings in order of their names, and the unreadable files and directories.

        Raises RawFormatError if the directory itself cannot be listed.
        """
        levels = [iter(self._children(self._directory))]
        entries = 0
        while levels:
            child = next(levels[-1], None)
            if child is None:
                levels.pop()
                continue
            if entries == MAX_ENTRIES:
                text = f"{self._directory} has more than {MAX_ENTRIES:,} files and directories: "
                yield (
                    self._directory,
                    RawFormatError(
                        f"{text}{child.path} and everything after it was skipped",
                        hint="pass the directories of the recordings",
                        slug="input-too-long",
                    ),
                )
                return
            entries += 1
            path = Path(child.path)
            if (source := sources.certain_source(path)) is not None:
                with suppress(OSError, UprofError):  # decoding it raises the error
                    size, rank = source.world_size(path), source.rank(path)
                    if size is not None and rank is not None:
                        self._ranks.setdefault(size, set()).add(rank)
                yield FoundRecording(path, source, self._is_temporary)
            elif not child.is_dir(follow_symlinks=False):
                yield from self._other_file(path)
            elif len(levels) > MAX_DEPTH:
                self._too_deep.append(path)
            else:
                try:
                    levels.append(iter(self._children(path)))
                except RawFormatError as err:
                    yield path, err

    def _other_file(self, path: Path) -> Iterator[FoundRecording | FailedPath]:
        """Yield a file whose name, but not content, matches a recording; count other files.

        Otherwise an empty or truncated file of a rank would be ignored silently.
        """
        kind = path.suffix.lower() or "no ending"
        if _RECORDING_NAME.search(path.name):
            if (source := sources.find_source(path)) is not None:
                yield FoundRecording(path, source, self._is_temporary)
                return
            if isinstance(error := refusal(path), RawFormatError):
                yield path, error
                return
        elif is_archive(path):
            kind = "an archive (import it by name)"
        elif (unsupported := sources.unsupported_format(path)) is not None:
            kind = f"{unsupported.description} ({unsupported.hint_for(path)})"
        elif _POSSIBLE_NAME.search(path.name) and not head_of(path):
            yield path, refusal(path)
            return
        self._skipped.setdefault(kind, []).append(os.path.relpath(path, self._directory))

    def notes(self) -> Iterator[str]:
        """Yield notes about skipped files and missing ranks."""
        for what, paths in (
            ("links outside the directory are not followed", self._links),
            (
                f"directories more than {MAX_DEPTH} levels below {self._directory} are not"
                " searched",
                self._too_deep,
            ),
        ):
            if paths:
                yield f"{what}: {some_of(sorted(map(str, paths)), 1)}"
        kinds = sorted(self._skipped.items(), key=lambda item: -len(item[1]))
        if kinds:
            count = sum(len(files) for _, files in kinds)
            text = "; ".join(f"{kind}: {some_of(names, _MAX_NAMES)}" for kind, names in kinds)
            yield f"{count:,} other files in {self._directory} are not recordings: {text}"
        for size, ranks in self._ranks.items():
            missing = sorted(set(range(min(size, MAX_ENTRIES))) - ranks)
            if len(ranks) > 1 and missing:
                names = ", ".join(map(str, missing[:10])) + (", ..." if missing[10:] else "")
                count_text = f"{len(missing):,} of {size:,}"
                yield f"{count_text} ranks are missing in {self._directory}: {names}"

    def _children(self, directory: Path) -> list[os.DirEntry[str]]:
        """Return the visible files and directories of a directory, by name."""
        self._progress(f"searching {directory}")
        with (
            system_errors(RawFormatError, f"cannot list {directory}", slug="cannot-read"),
            os.scandir(directory) as entries,
        ):
            found = list(islice(entries, 4 * MAX_ENTRIES))  # some are filtered out
        return sorted(filter(self._is_searched, found), key=lambda entry: entry.name)

    def _is_searched(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith("."):
            return False
        try:
            if entry.is_dir(follow_symlinks=False):
                return True
            if entry.is_symlink() and entry.is_dir():
                if not Path(os.path.realpath(entry.path)).is_relative_to(self._real):
                    self._links.append(Path(entry.path))
                return False
            return entry.is_file()
        except OSError:  # a link to itself, or into a directory that may not be read
            return False

    @cached_property
    def _real(self) -> str:
        return os.path.realpath(self._directory)


def report_hint(path: Path, message: str) -> str | None:
    """Return a hint for a path that cannot be read as a report (with this message), or None."""
    from unified_prof.cluster import rank_partial
    from unified_prof.sqlite.run_spool import recovery_hint

    if not path.exists():  # Backslashes of a Windows path do not separate names elsewhere.
        folder, _, name = str(path).replace("\\", "/").rpartition("/")
        where = Path(folder) if Path(folder).is_dir() else Path()
        names = {one.name.casefold(): one for one in where.iterdir() if one != path}
        near = get_close_matches(name.casefold(), names, n=1)
        return f"did you mean {names[near[0]]}?" if near else None
    if rank_partial.is_run_directory(path):
        return (
            f"this is a cluster run: use `uprof cluster report {path}` for its tables, "
            f"`uprof report {path} --rank N` for one rank, `uprof export {path} --ranks "
            "N,...` for timelines"
        )
    if path.is_dir() and (hint := rank_partial.completion_hint(path) or recovery_hint(path)):
        return hint
    if path.is_file() and not path.stat().st_size:
        return None
    convert = f"run `uprof convert {path}` first, or use --convert"
    is_database = path.suffix in (".db", ".sqlite")  # If damaged, it can be of any kind.
    of = sources.certain_source if is_database else sources.find_source
    if (source := of(path)) is not None:
        if source.sniff(path) is Match.CERTAIN:
            return f"it is {source.description}; {convert}"
        return f"if it is {source.description}, {convert}"  # It only has the name of one.
    if (unsupported := sources.unsupported_format(path)) is not None:
        return f"it is {unsupported.description}; {unsupported.hint_for(path)}"
    if path.is_dir() and "no readable report" in message:
        inside = next((one for one in sorted(path.iterdir()) if sources.certain_source(one)), None)
        if inside is not None and (source := sources.certain_source(inside)) is not None:
            return f"{inside.name} is {source.description}; {convert}"
    return None


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


class ReportPlace(Struct, frozen=True):
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
            f"{place.existing[-1]} already exists",
            hint="use --force to overwrite it, or -o to write elsewhere",
            slug="already-exists",
        )
