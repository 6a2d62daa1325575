"""Paths that are read as reports: reports, recordings to convert, directories of ranks.

A directory of ranks is one multi-rank run, with the recording of each rank.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from unified_prof.errors import OutputError, StoreError, UprofError, UsageError
from unified_prof.schema.catalogue import CLUSTER, WATCH_FILES

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.stored_run import RankRecord
    from unified_prof.cluster.summary import RunSummary
    from unified_prof.compare.comparable import Run
    from unified_prof.explain.api import Opened
    from unified_prof.recording.source import Missing
    from unified_prof.report.formats import Format, ReportRequest


@contextmanager
def open_ranks(
    path: Path,
    *,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    needed: bool = False,
) -> Iterator[Overview | None]:
    """Yield the ranks of a directory as one run, or None if it does not hold a multi-rank run.

    A run written by `uprof cluster build` is read as it is; a directory of databases is combined in
    memory if their rank numbers differ and they share groups. If `needed`, two recordings of one
    rank are an error; otherwise `note` is called with a sentence if recordings do not belong to one
    run. Raises StoreError if the summary of a run is damaged, and UsageError if a run is needed,
    but two recordings have the same rank.
    """
    if is_summary(path):
        from unified_prof.cluster.stored_run import open_run

        with open_run(path) as run:
            yield _overview(run)
        return
    databases = _databases(path)
    if len(databases) < 2:
        yield None
        return
    from unified_prof.pipeline import cluster

    summary: RunSummary | None = None
    try:
        summary = cluster.summary_of(databases, progress=progress)
    except UsageError as err:  # two recordings of one rank
        text = f"{path} is not a multi-rank run: {err}"
        if needed:
            raise UsageError(text, hint=err.hint, slug="not-several-ranks") from err
        note(text)
    except UprofError:  # no recording with a rank
        pass
    if summary is None or summary.ranks_read < 2 or not summary.tables["GROUP"]:
        yield None
        return
    with _opened(summary, path) as overview:
        yield overview


@contextmanager
def _opened(summary: RunSummary, location: str | Path) -> Iterator[Overview]:
    """Write a summary to a temporary file and open it."""
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.cluster.stored_run import StoredRun
    from unified_prof.sqlite import skyline_writer
    from unified_prof.sqlite.atomic import temporary_folder
    from unified_prof.sqlite.reader import open_report

    with temporary_folder() as folder:
        file = folder / SUMMARY_FILE_NAME
        skyline_writer.write_cluster_summary(file, summary.tables, {})
        with open_report(file) as report:
            yield _overview(StoredRun(location, report))


@contextmanager
def open_watched(location: str) -> Iterator[Overview | None]:
    """Yield the ranks of a watched run in a directory or at a URL; None if there is none.

    Raises RawFormatError if the URL cannot be read, and StoreError if no rank can be read, or the
    ranks have too few steps in common.
    """
    from unified_prof.pipeline.remote import StorageDirectory, local_path
    from unified_prof.sqlite.atomic import temporary_folder

    stored = StorageDirectory(location)
    is_directory = stored.is_remote or local_path(location).is_dir()
    names = (
        [name for name in stored.names() if name.startswith("watch_rank")] if is_directory else ()
    )
    if not any(fnmatch(name, WATCH_FILES) for name in names):
        yield None
        return
    from unified_prof.cluster.rank_map import partials_of_ranks
    from unified_prof.cluster.rank_partial import PartialSource, UnreadableRecording
    from unified_prof.cluster.summary import summarize_run
    from unified_prof.sqlite.watch_file import file_name, read_folder

    damaged: dict[int, str] = {}
    with temporary_folder() as copies:
        for name in names if stored.is_remote else ():
            (copies / name).write_bytes(stored.read(name))
        ranks = read_folder(copies if stored.is_remote else local_path(location), damaged=damaged)
    found, unread = partials_of_ranks(ranks)
    where = {rank: stored.at(file_name(rank)) for rank in (*ranks, *damaged)}
    summary = summarize_run(
        found,
        {rank: PartialSource(file) for rank, file in where.items()},
        [UnreadableRecording(where[rank], why, rank) for rank, why in (unread | damaged).items()],
    )
    with _opened(summary, location) as overview:
        yield overview


@contextmanager
def open_run_at(location: str, *, with_partials: bool = False) -> Iterator[Overview]:
    """Open a multi-rank run; the summary of a URL is copied to a temporary file while it is open.

    `location` is its directory, its summary file, a directory of watch files, or a URL of these. If
    `with_partials`, the partials of a URL are copied too. Raises StoreError if the run is missing
    or damaged.
    """
    from unified_prof.cluster.rank_partial import SUMMARY_FILE_NAME
    from unified_prof.cluster.stored_run import open_run
    from unified_prof.pipeline.remote import fetch, fetch_part

    with open_watched(location) as watched:
        if watched is not None:
            yield watched
            return
    copy = fetch(location) if with_partials else fetch_part(location, SUMMARY_FILE_NAME)
    with copy as path, open_run(path, location) as run:
        yield _overview(run)


def rank_report(overview: Overview | None, path: Path, rank: int) -> Path:
    """Return the report of one rank.

    Raises StoreError if the report is missing, and UsageError if there is no such rank, or no run.
    """
    if overview is None:
        raise not_a_run_error(path, "omit --rank")
    return recording_of(overview, overview.rank(rank).rank)


@contextmanager
def fetch_recording(overview: Overview, rank: RankRecord) -> Iterator[Path]:
    """Yield the local path of a rank's recording, or of a copy if it is at a URL.

    Raises StoreError if the recording is missing.
    """
    from unified_prof.pipeline import remote

    if rank.file is not None and remote.is_remote(rank.file):
        with remote.fetch(rank.file) as path:
            yield path
    else:
        yield recording_of(overview, rank)


def recording_of(overview: Overview, rank: RankRecord) -> Path:
    """Return the path of a rank's recording: as recorded, or next to the run.

    Raises StoreError if the recording is missing.
    """
    run = overview.run
    if rank.file is None:
        raise StoreError(
            f"rank {rank.rank} of {run.path} has no recording",
            hint=rank.why or "",
            slug="rank-without-recording",
        )
    named = Path(rank.file)
    for candidate in (named, run.file.parent / named, run.file.parent.parent / named):
        if candidate.exists():
            return candidate
    raise StoreError(
        f"the recording of rank {rank.rank} is missing: {rank.file}",
        hint=f"restore it, or build {run.path} again",
        slug="rank-without-recording",
    )


def not_a_run_error(path: Path, otherwise: str) -> UsageError:
    """Return the error for a path that is not a run, with a hint or `otherwise`."""
    from unified_prof.cluster.rank_partial import completion_hint

    hint = completion_hint(path) if path.is_dir() else None
    if hint is None and len(_inputs(path)) > 1 and not _databases(path):
        hint = f"build a run from its recordings: `uprof cluster build {path} -o RUN`"
    return UsageError(
        f"{path} is not a multi-rank run", hint=hint or otherwise, slug="not-several-ranks"
    )


def _overview(run: Any) -> Overview:
    from unified_prof.cluster.overview import Overview

    return Overview(run)


def is_summary(path: Path) -> bool:
    """Return True for a run of `uprof cluster build`, or its summary."""
    from unified_prof.sqlite.fingerprint import is_database
    from unified_prof.sqlite.opening import detect

    if path.is_dir():
        # Importing it takes a tenth of the time of a report of a small database.
        from unified_prof.cluster.rank_partial import is_run_directory

        return is_run_directory(path)
    if not is_database(path):
        return False
    try:
        return detect(path).family == CLUSTER
    except StoreError:
        return False


def _databases(path: Path) -> list[str]:
    """Return the databases below a directory that may belong to ranks, by file name only."""
    from unified_prof.sqlite.fingerprint import is_database

    return [location for location in _inputs(path) if is_database(Path(location))]


def _is_of_one_process(path: Path) -> bool:
    """Return True if the file names show that one process wrote the directory (the usual case)."""
    others = 0
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):  # a link to itself
                if entry.is_dir() and not entry.name.startswith("."):
                    return False
            others += not entry.name.startswith(("run_time.", "memory.", ".")) and (
                entry.name != "run.json"
            )
    return others < 2


def _inputs(path: Path) -> list[str]:
    """Return the databases and recordings below a directory."""
    if not path.is_dir() or _is_of_one_process(path):
        return []
    from unified_prof.pipeline.cluster_inputs import inputs_of

    return [one.location for one in inputs_of([str(path)])[0]]


# The rank at the end of the name of a Flight Recorder dump, before the suffixes.
_RANK_OF_DUMP = re.compile(r"(\d{1,7})(?:\.(?:json|pickle|pkl|pt))?(?:\.(?:gz|xz|bz2|zst|zip))?\Z")
_DUMP_FORMATS = ("text", "markdown", "json")  # Output formats of Flight Recorder dumps.
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


class ReportInput(Struct, frozen=True):
    """Reports to read instead of the path that the user gave."""

    path: Path  # A report or a directory of reports.
    # Recordings that could not be converted, and directories that could not be searched.
    missing: tuple[Missing, ...] = ()


class Side(Struct, frozen=True):
    """One side of a comparison."""

    given: tuple[Path, ...]  # Paths as the user gave them.
    reports: tuple[Path, ...]  # Reports to read instead.

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


class Messages(Protocol):
    """Shows what reading does."""

    def progress(self) -> AbstractContextManager[Callable[[str], None]]:
        """Show progress within a block."""

    def note(self, text: str) -> None:
        """Show what was read."""

    def hint(self, text: str) -> None:
        """Show what to do."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How the paths that the user gave are read."""

    messages: Messages
    convert: bool  # If True, recordings are converted; otherwise paths are read as they are.
    # File that will be written; never one of the recordings, not even with --force.
    output: Path | None = None

    with_hint = staticmethod(with_report_hint)

    def reports(self, path: Path, *, several: bool = True) -> ReportInput:
        """Return the reports to read for `path`, and report what was converted.

        Raises:
            OutputError: The output is one of the recordings.
            UprofError: Same as `cache.reports_of`.
        """
        if not self.convert:
            return ReportInput(path)
        from unified_prof.pipeline import cache  # 80 ms that reading a report does not need

        with self.messages.progress() as progress:
            ready = cache.reports_of(
                path, several=several, progress=progress, note=self.messages.note
            )
        output = self.output if self.output is not None and self.output.is_file() else None
        for recording in (path, *(found.path for found, _ in ready.converted)):
            if output is not None and recording.is_file() and output.samefile(recording):
                raise OutputError(
                    f"{output} is the recording itself and is never overwritten",
                    hint="choose another file",
                    slug="not-replaced",
                )
        for found, report in ready.converted:
            self.messages.note(f"{found.path} is {found.source.title}; its report is {report}")
        return ReportInput(ready.path, ready.missing)

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
            with self.messages.progress() as progress:
                ranks = open_ranks(path, progress=progress, note=self.messages.hint, needed=needed)
                overview = stack.enter_context(ranks)
            yield overview

    def side(self, paths: Sequence[Path]) -> Side:
        """Return one side of a comparison, labeled with the paths that the user gave.

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


class RenderedReport(Struct, frozen=True):
    """A run rendered in one format."""

    content: str | bytes
    missing: str  # Description of what could not be read; empty if everything was read.
    hints: tuple[str, ...] = ()  # Other views of the run, and results of killed runs.


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
    hints: tuple[str, ...] = ()
    if rank is None and path.is_dir():
        from unified_prof.sqlite.run_spool import recovery_hint

        hints = tuple(filter(None, [recovery_hint(path)]))
    if dumps := dump_files(path):
        if request.by is not None or rank is not None or shape.name not in _DUMP_FORMATS:
            raise UsageError(
                f"{path} has Flight Recorder dumps, shown as {', '.join(_DUMP_FORMATS)}",
                hint="omit --by and --rank, and choose one of these formats",
                slug="no-breakdown",
            )
        from unified_prof.pipeline import flight_recorder
        from unified_prof.report.document import dump_json
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
    from unified_prof.report.document import dump_json
    from unified_prof.report.figures import figures_document

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


def dump_files(path: Path) -> dict[int, Path]:
    """Return {rank: file} of a directory of Flight Recorder dumps, or of one; else empty."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError:
        return {}
    # The first file of a rank counts.
    result = {int(m[1]): file for file in reversed(files) if (m := _RANK_OF_DUMP.search(file.name))}
    if not result:
        return {}
    from unified_prof.pipeline.sources import FLIGHT_RECORDER, unsupported_format

    samples = list(result.values())[:3]  # A directory may have thousands of other files.
    return result if any(unsupported_format(one) is FLIGHT_RECORDER for one in samples) else {}


def parse_workloads(texts: Sequence[str]) -> WorkloadPairs:
    """Return the reports by workload.

    Raises UsageError if a text is not NAME=BASE:NEW, or is ambiguous.
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
