"""Directories of ranks as one multi-rank run, and the recording of each rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.errors import StoreError, UprofError, UsageError
from unified_prof.schema.catalogue import CLUSTER, WATCH_FILES

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.cluster.stored_run import RankRecord
    from unified_prof.cluster.summary import RunSummary


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
    from unified_prof.cluster.rank_partial import is_run_directory
    from unified_prof.sqlite.fingerprint import is_database
    from unified_prof.sqlite.opening import detect

    if is_run_directory(path):
        return True
    if path.is_dir() or not is_database(path):
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
