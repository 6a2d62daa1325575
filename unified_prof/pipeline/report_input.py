"""Paths that are read as reports: reports, recordings to convert, directories of ranks.

Commands that read recordings directly (`--convert`) use a cache of reports. Reports are stored
below `$XDG_CACHE_HOME/uprof/reports` (default `~/.cache`). Each directory is named after a hash of
the recording's content, so that a changed recording gets a new directory. Reports are written
atomically: several processes may request the same report. If the cache exceeds `MAX_BYTES`, the
least recently used reports are removed, except those used within the last `MIN_AGE_S` seconds. The
whole directory may be deleted at any time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.errors import OutputError, RawFormatError, StoreError, UprofError, UsageError
from unified_prof.pipeline import discovery, outputs, sources
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.discovery import FoundRecording
from unified_prof.pipeline.rank_runs import open_ranks, rank_report
from unified_prof.recording import run_directory
from unified_prof.recording.source import Missing
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import remove_abandoned
from unified_prof.sqlite.opening import detect
from unified_prof.version import VERSION

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.compare.comparable import Run
    from unified_prof.explain.api import Opened
    from unified_prof.pipeline.discovery import FoundRecording
    from unified_prof.recording.source import Missing
    from unified_prof.report.formats import Format, ReportRequest


# Output formats of Flight Recorder dumps.
_DUMP_FORMATS = ("text", "markdown", "json")
# Maximum number of ranks whose own reports follow the summary of the run.
_MAX_RANK_REPORTS = 4
_NAME = r"[A-Za-z0-9_][\w.+-]*"
_WORKLOAD_HINT = "for example --workload bert=base/bert:new/bert"

# Workload -> reports of the baseline and of the candidate.
WorkloadPairs = dict[str, tuple[list[Path], list[Path]]]


@contextmanager
def with_report_hint(*paths: Path) -> Iterator[None]:
    """If a path is not a report, add the command that converts it to the error's hint."""
    try:
        yield
    except StoreError as err:
        from unified_prof.pipeline.discovery import report_hint

        hints = (report_hint(path, str(err)) for path in paths)
        err.hint = next((hint for hint in hints if hint is not None), err.hint)
        raise


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Reports to read instead of the path that the user gave."""

    # A report, or a directory of reports if the path contains several recordings.
    path: Path
    # Recordings and their reports; empty if the path names reports.
    converted: tuple[tuple[FoundRecording, Path], ...] = ()
    # Recordings that could not be converted, and directories that could not be searched.
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    # Paths as the user gave them.
    given: tuple[Path, ...]
    # Reports to read instead.
    reports: tuple[Path, ...]

    @property
    def label(self) -> str:
        """Name shown for this side."""
        return ", ".join(map(str, self.given))

    def run(self) -> Run:
        """Load the run.

        Raises:
            UprofError: Same as `compare.runs.load`.
        """
        from unified_prof.compare import runs

        with with_report_hint(*self.given):
            run = runs.load(self.reports)
        return run if self.reports == self.given else replace(run, label=self.label)


@dataclass(frozen=True, slots=True)
class Reader:
    """How the paths that the user gave are read."""

    # If True, recordings are converted; otherwise paths are read as they are.
    convert: bool
    # Shows progress within its block.
    progress: Callable[[], AbstractContextManager[Callable[[str], None]]]
    # Receivers of messages.
    note: Callable[[str], None] = lambda _: None
    hint: Callable[[str], None] = lambda _: None
    # File that will be written; never one of the recordings, not even with --force.
    output: Path | None = None

    def reports(self, path: Path, *, several: bool = True) -> ReportInput:
        """Return the reports to read for `path`, and report what was converted.

        Raises:
            OutputError: The output is one of the recordings.
            UprofError: Same as `reports_of`.
        """
        if not self.convert:
            return ReportInput(path)

        with self.progress() as progress:
            ready = reports_of(path, several=several, progress=progress, note=self.note)
        output = self.output if self.output is not None and self.output.is_file() else None
        for recording in (path, *(found.path for found, _ in ready.converted)):
            if output is not None and recording.is_file() and output.samefile(recording):
                raise OutputError(
                    f"{output} is the recording itself and is never overwritten",
                    hint="choose another file",
                    slug="not-replaced",
                )
        for found, report in ready.converted:
            self.note(f"{found.path} is {found.source.title}; its report is {report}")
        return ready

    @contextmanager
    def opened(self, path: Path, capture: Path | None = None) -> Iterator[Opened]:
        """Open the reports of `path`, with those in which replayed graphs were captured.

        Raises:
            UprofError: Same as `reports` and `explain.api.open_reports`.
        """
        from unified_prof.explain.api import open_reports

        ready = self.reports(path)
        if capture is not None:
            capture = self.reports(capture, several=False).path
        with (
            with_report_hint(path),
            open_reports(ready.path, ready.missing, capture=capture) as opened,
        ):
            yield opened

    @contextmanager
    def ranks(self, path: Path, *, needed: bool = False) -> Iterator[Overview | None]:
        """Yield the ranks of a directory as one run, see `open_ranks`."""
        with ExitStack() as stack:
            with self.progress() as progress:
                ranks = open_ranks(path, progress=progress, note=self.hint, needed=needed)
                overview = stack.enter_context(ranks)
            yield overview

    def side(self, paths: Sequence[Path]) -> Side:
        """Return one side of a comparison, labelled with the paths that the user gave.

        Raises:
            UprofError: Same as `reports`; also if a path is a cluster summary.
        """
        from unified_prof.cluster.rank_partial import is_run_directory

        for path in paths:
            if is_run_directory(path):
                raise UsageError(
                    f"{path} is the summary of a cluster run, not the report of one process",
                    hint="compare two of them with `uprof cluster diff` or `uprof cluster gate`",
                    slug="summary-of-a-cluster",
                )
        return Side(tuple(paths), tuple(self.reports(path, several=False).path for path in paths))

    def run(self, paths: Sequence[Path]) -> Run:
        """Load a run from reports or recordings.

        Raises:
            UprofError: Same as `compare.runs.load` and `side`.
        """
        return self.side(paths).run()


@dataclass(frozen=True, slots=True)
class RenderedReport:
    """A run rendered in one format."""

    content: str | bytes
    # Description of what could not be read; empty if everything was read.
    missing: str
    # Other views of the run, and results of killed runs.
    hints: tuple[str, ...] = ()


def render_reports(
    path: Path,
    shape: Format,
    request: ReportRequest,
    reader: Reader,
    *,
    rank: int | None = None,
    capture: Path | None = None,
) -> RenderedReport:
    """Render a report, a directory of reports or a multi-rank run.

    `capture` is the report in which the replayed graphs were captured.

    Raises:
        UprofError: Same as the command `report`.
    """
    from unified_prof.pipeline import flight_recorder  # imports NumPy
    from unified_prof.sqlite.run_spool import recovery_hint

    recovery = recovery_hint(path) if rank is None and path.is_dir() else None
    hints = () if recovery is None else (recovery,)
    if dumps := flight_recorder.dump_files(path):
        if request.by is not None or rank is not None or shape.name not in _DUMP_FORMATS:
            raise UsageError(
                f"{path} has Flight Recorder dumps, shown as {', '.join(_DUMP_FORMATS)}",
                hint="omit --by and --rank, and choose one of these formats",
                slug="no-breakdown",
            )
        from unified_prof.report.renderers import dump_json
        from unified_prof.report.terminal import render_document

        found = flight_recorder.compare_dumps(path, dumps)
        if shape.name == "json":
            return RenderedReport(dump_json(found.fields()), found.missing, hints)
        text = render_document(found.document(request.top), shape.name, request)
        return RenderedReport(text, found.missing, hints)
    with ExitStack() as stack:
        overview = None
        together = request.by is None and not reader.convert and capture is None and shape.is_text
        if rank is not None or together:
            overview = stack.enter_context(reader.ranks(path, needed=rank is not None))
        if rank is not None:
            path = rank_report(overview, path, rank)
        elif overview is not None:
            # Ranks of a cluster summary may be missing.
            is_whole = path.is_dir() and overview.run.file.parent != path
            reports = None
            if is_whole and len(overview.run.read) <= _MAX_RANK_REPORTS:
                reports = stack.enter_context(reader.opened(path))
            else:
                hints = ("use --rank N to show the report of one rank", *hints)
            text = _render_ranks(overview, shape, request, reports)
            return RenderedReport(text, overview.coverage if overview.missing else "", hints)
        opened = stack.enter_context(reader.opened(path, capture))
        return RenderedReport(shape.produce(opened, request), opened.coverage.sentence, hints)


def _render_ranks(
    overview: Overview, shape: Format, request: ReportRequest, reports: Opened | None
) -> str:
    """Render a run, followed by the reports of its ranks if there are few."""
    from unified_prof.report import cluster_document, formats
    from unified_prof.report.figures import figures_document
    from unified_prof.report.renderers import dump_json

    if shape.name == "json":
        fields = figures_document(()) | {"coverage": None}
        if reports is not None:
            fields = json.loads(shape.text(reports, request))
        return dump_json(fields | {"cluster": cluster_document.run_fields(overview)})
    own = formats.ClusterRequest(
        top=request.top, full_names=request.full_names, width=request.width, color=request.color
    )
    text = formats.produce_cluster(shape, overview, own)
    if reports is None or shape.name == "html":
        return text
    if shape.name == "csv":
        return shape.text(reports, request)
    return f"{text}\n{shape.text(reports, request)}"


def parse_workloads(texts: Sequence[str]) -> WorkloadPairs:
    """Return the reports by workload.

    Raises:
        UsageError: A text is not NAME=BASE:NEW, or is ambiguous.
    """
    found: WorkloadPairs = {}
    for text in texts:
        match = re.fullmatch(rf"({_NAME})=(.+)", text)
        if match is None or ":" not in match[2]:
            raise UsageError(
                f"--workload {text!r}: expected NAME=BASE:NEW",
                hint=_WORKLOAD_HINT,
                slug="wrong-workload",
            )
        base, new = _two_paths(match[2], text)
        sides = found.setdefault(match[1], ([], []))
        sides[0].append(base)
        sides[1].append(new)
    return found


def _two_paths(text: str, whole: str) -> tuple[Path, Path]:
    """Split at the colon that yields two existing paths; file names may contain colons."""
    ways = [
        (Path(text[:at]), Path(text[at + 1 :]))
        for at, letter in enumerate(text)
        if letter == ":" and 0 < at < len(text) - 1
    ]
    there = [way for way in ways if all(path.exists() for path in way)]
    chosen = there or ways
    if len(chosen) != 1:
        missing = (
            "ambiguous, more than one pair of paths exists" if there else "no two existing paths"
        )
        raise UsageError(
            f"--workload {whole}: {missing}", hint=_WORKLOAD_HINT, slug="wrong-workload"
        )
    return chosen[0]


def _rank_or_path(path: Path) -> str:
    """Return `rank 3` if the recording contains its rank, else its path."""
    source = sources.find_source(path)
    with suppress(UprofError, OSError):
        if source is not None and (rank := source.rank(path)) is not None:
            return f"rank {rank}"
    return str(path)


# Maximum size of the cache, and seconds after its last use in which a report is kept.
MAX_BYTES = 20 << 30
MIN_AGE_S = 3600
_SCHEMA = "documented"
_SAMPLE_BYTES = 64 << 10
_DATABASES = (".db", ".sqlite")
_GONE = ".gone-"


def reports_of(
    path: Path,
    *,
    several: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> ReportInput:
    """Return the report of a recording, or the reports of a directory of recordings.

    Paths other than reports, recordings and directories of them are returned unchanged. `note` is
    called with a note about files that were skipped.

    Raises:
        UsageError: the path contains several recordings, but `several` is false.
        RawFormatError: no recording could be converted.
        OutputError: the cache cannot be written.
    """
    found, failed = _recordings(path, progress, note)
    if not found and not failed:
        return ReportInput(path)
    if len(found) > 1 and not several:
        choices = ", ".join(str(recording.path) for recording in found[:3])
        raise UsageError(
            f"{path} has {len(found)} recordings",
            hint=f"choose one of: {choices}",
            slug="several-recordings",
        )
    converted: list[tuple[FoundRecording, Path]] = []
    names = discovery.report_names(found, ranked=True)
    for number, (recording, name) in enumerate(zip(found, names, strict=True), start=1):
        at = f"{number} of {len(found)}, " if len(found) > 1 else ""
        try:
            report = _report(recording, name, partial(_prefixed, progress, at))
            converted.append((recording, report))
        except OutputError:
            raise
        except UprofError as err:
            failed.append((recording.path, err))
    if not converted or (failed and not several):
        raise failed[0][1]
    if len(converted) == 1 and not failed:
        return ReportInput(converted[0][1], tuple(converted))
    directory = _linked_directory([report for _, report in converted])
    missing = tuple(Missing(_rank_or_path(path), str(error)) for path, error in failed)
    return ReportInput(directory, tuple(converted), missing)


def root() -> Path:
    """Return the directory of the cache; a relative XDG_CACHE_HOME is invalid and ignored."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError as err:
            raise OutputError(
                "no home directory for cached reports",
                hint="set XDG_CACHE_HOME",
                slug="no-home-folder",
            ) from err
    return base / "uprof" / "reports"


def _recordings(
    path: Path, progress: Callable[[str], None], note: Callable[[str], None]
) -> tuple[list[FoundRecording], list[tuple[Path, UprofError]]]:
    """Return recordings and failures at `path`; both are empty for reports and unknown files."""
    if not path.is_dir():
        # A damaged database may be of any kind, so only a certain recording is converted.
        is_database = path.suffix in _DATABASES
        find_source = sources.certain_source if is_database else sources.find_source
        source = find_source(path) if path.is_file() else None
        return ([] if source is None else [FoundRecording(path, source)]), []
    if _holds_reports(path):
        return [], []
    found: list[FoundRecording] = []
    failed: list[tuple[Path, UprofError]] = []
    for recording in discovery.find([path], progress, note):
        if isinstance(recording, FoundRecording):
            found.append(recording)
        elif recording[0] != path or found:
            failed.append(recording)
    return found, failed


def _holds_reports(path: Path) -> bool:
    for file in run_directory.databases(path).files:
        with suppress(UprofError):
            if detect(file).family not in (None, catalogue.CLUSTER):
                return True
    return False


def _prefixed(progress: Callable[[str], None], prefix: str, stage: str) -> None:
    progress(f"{prefix}{stage}")


def _report(found: FoundRecording, name: str, progress: Callable[[str], None]) -> Path:
    try:
        entry = root() / _content_name(found)
    except OSError as err:
        raise RawFormatError(
            f"{err.filename or found.path}: {err.strerror or err}", slug="cannot-read"
        ) from err
    report = entry / f"{name}.db"
    if not report.is_file():
        _make_directory(entry)
        _make_room(keep=entry)
        try:
            convert(
                *(found.path, report),
                source=found.source,
                schema=_SCHEMA,
                force=True,
                progress=progress,
            )
        except BaseException:
            with suppress(OSError):  # another process uses it
                entry.rmdir()
            raise
    _touch(entry)
    return report


def _make_directory(entry: Path) -> None:
    outputs.make_directory(entry.parents[1])
    with suppress(OSError):  # making the entry below raises the error
        entry.parent.mkdir(mode=0o700)
    outputs.make_directory(entry)
    remove_abandoned(entry)


def _content_name(found: FoundRecording) -> str:
    """Return a name for the content of a recording.

    The name is a hash of the beginning, end, length and modification time of each file. A change in
    the middle of a long file changes its modification time.
    """
    digest = blake2b(digest_size=16)

    def add(*facts: object) -> None:
        digest.update(repr(facts).encode("utf-8", "backslashreplace") + b"\n")

    path, source = found.path, found.source
    add(VERSION, _SCHEMA, source.kind, sorted(source.identity(path).items()))
    add(source.modified_ns(path))
    for file in _files(path):
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            add(str(file.relative_to(path)), status.st_size, status.st_mtime_ns)
            digest.update(stream.read(_SAMPLE_BYTES))
            if status.st_size > _SAMPLE_BYTES:
                stream.seek(max(_SAMPLE_BYTES, status.st_size - _SAMPLE_BYTES))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for place, directories, names in os.walk(path):
        directories.sort()
        for name in sorted(names):
            if (file := Path(place, name)).is_file():
                yield file


def _linked_directory(reports: Sequence[Path]) -> Path:
    """Return a directory with links to reports in several directories."""
    digest = blake2b(repr([str(report) for report in reports]).encode(), digest_size=16)
    directory = root() / f"{digest.hexdigest()}-all"
    _make_directory(directory)
    for report in reports:
        try:
            (directory / report.name).symlink_to(Path("..", report.parent.name, report.name))
        except FileExistsError:
            pass  # from an earlier run: its target is part of the directory's name
        except OSError as err:
            raise OutputError(
                f"cannot write {directory}: {err.strerror or err}", slug="cannot-write"
            ) from err
    _touch(directory)
    return directory


def _touch(entry: Path) -> None:
    with suppress(OSError):  # it may be removed, or belong to another user
        os.utime(entry)


def _make_room(keep: Path) -> None:
    """Remove the least recently used reports until the size is below the limit."""
    entries: list[tuple[float, int, Path]] = []
    with suppress(OSError), os.scandir(keep.parent) as found:
        for entry in found:
            with suppress(OSError):
                path = Path(entry.path)
                if entry.name.startswith(_GONE):
                    shutil.rmtree(path, ignore_errors=True)
                elif path != keep and entry.is_dir(follow_symlinks=False):
                    size = sum(file.lstat().st_size for file in path.iterdir())
                    entries.append((entry.stat().st_mtime, size, path))
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        if total <= MAX_BYTES or used > time.time() - MIN_AGE_S:
            break
        total -= size
        with suppress(OSError):
            gone = path.with_name(f"{_GONE}{path.name}")
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
