"""Finds the inputs of a cluster run: one per recording or database.

Only names and first bytes of files are read during the search, because there may be ten thousand
ranks. Databases are checked later, when they are opened. A recording is skipped if its database is
in the same directory.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from unified_prof.decoders.compression import head_of
from unified_prof.errors import RawFormatError, UprofError, UsageError, system_errors
from unified_prof.pipeline import discovery, remote, sources
from unified_prof.pipeline.remote import Remote
from unified_prof.pipeline.sources import Source
from unified_prof.recording.run_directory import rank_near
from unified_prof.sqlite.fingerprint import MAGIC, is_database

_DATABASES = (".db", ".sqlite", ".sqlite3")
# Names of databases that do not contain a rank.
_OTHERS = re.compile(
    r"(?:analysis|cluster_analysis|communication_analyzer)\.db\Z"
    r"|(?:run_time|memory)[^/]*\.sqlite\Z|cluster\.sqlite\Z"
)
_FACTS = re.compile(r"(?:profiler_info|profiler_metadata|truth|run)[^/]*\.json\Z")
# Names of files and directories that begin with the host.
_NAMED_HOST = re.compile(r"(?P<host>[\w.-]+)_\d+(?:\.\d{10,}\.pt\.trace\b|_\d{14,}_ascend_pt$)")
_HOST_DIRECTORY = re.compile(r"(?:host|node|server|machine)[-_.]?[\w.-]*\d", re.IGNORECASE)
# Number of path components, from the end, that are searched for a host name.
_NEAR_HOST = 4
_OF_KERNEL = ("/proc", "/sys", "/dev")
_SHARED = "/dev/shm"  # Memory with files of users.
_GIVEN_RANK = re.compile(r"(?P<rank>\d{1,7})=(?P<location>.+)", re.DOTALL)
# Subdirectories of a recording that may contain its database.
_DATABASE_DIRECTORIES = ("ASCEND_PROFILER_OUTPUT", "")


class Input(Struct, frozen=True):
    """One recording or database with one or more ranks."""

    location: str  # Absolute path, or URL.
    stamp: str  # String that changes with the content.
    rank: int | None = None  # Rank given by the user, None if not given.
    remote: Remote | None = None

    @property
    def content(self) -> str:
        """Identifier of the content, part of the partials' file names."""
        text = f"{self.location}\0{self.stamp}\0{self.rank}"
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=10).hexdigest()

    @property
    def likely_rank(self) -> int | None:
        """Rank given by the user or in the file name; the recorded rank may differ."""
        return self.rank if self.rank is not None else rank_in(self.location)


class Local(Struct, frozen=True):
    """A local database, or a local recording with the source that converts it."""

    path: Path
    source: Source | None = None


def inputs_of(
    given: Sequence[str], progress: Callable[[str], None] = lambda _: None
) -> tuple[list[Input], list[tuple[str, UprofError]]]:
    """Return all inputs, and the errors of arguments without an input.

    `given` are paths, patterns, URLs and `RANK=PATH`.
    """
    inputs: dict[str, Input] = {}
    errors: list[tuple[str, UprofError]] = []
    for text in given:
        match = None if os.path.lexists(text) else _GIVEN_RANK.fullmatch(text)
        rank, location = (None, text) if match is None else (int(match["rank"]), match["location"])
        try:
            every = list(
                _elsewhere(location)
                if remote.is_remote(location)
                else _here(remote.local_path(location), progress)
            )
            if rank is not None and len(every) > 1:
                raise UsageError(
                    f"{location} has {len(every)} recordings, expected one for rank {rank}",
                    hint="RANK=FILE expects one recording; omit RANK= for a directory of ranks",
                    slug="several-recordings",
                )
            for found in every:
                inputs.setdefault(
                    found.location, Input(found.location, found.stamp, rank, found.remote)
                )
        except UprofError as err:
            errors.append((text, err))
    return list(inputs.values()), errors


def rank_in(location: str) -> int | None:
    """Return the rank in a file name of torch_npu, torch.profiler or uprof, else None."""
    if (rank := rank_near(location)) is not None:
        return rank
    facts = [path.name for path in _facts_beside(Path(location))]
    ranks = [rank for name in facts for rank in re.findall(r"profiler_info_(\d+)\.json\Z", name)]
    return int(ranks[0]) if len(ranks) == 1 else None


def host_in(location: str) -> str | None:
    """Return the host name in a path, for recordings that do not contain it.

    `tensorboard_trace_handler` names files HOST_PID.TIME.pt.trace.json, torch_npu directories
    HOST_PID_TIME_ascend_pt. Otherwise the name of a directory is used if it looks like a host name.
    """
    parts = re.split(r"[/\\]", location)[-_NEAR_HOST:]
    for part in reversed(parts):
        if (match := _NAMED_HOST.match(part)) and not match["host"].startswith("rank"):
            return match["host"]
    return next((part for part in reversed(parts[:-1]) if _HOST_DIRECTORY.fullmatch(part)), None)


def resolved(path: Path) -> list[Local]:
    """Return the inputs of `path`: the file itself, its database, or the recordings below it."""
    return list(_found(path, discovery.MAX_DEPTH, lambda _: None, set(), asked=True))


def _facts_beside(path: Path) -> list[Path]:
    """Return the files in which torch_npu stores the rank of a recording."""
    for folder in (path, path.parent.parent):
        if folder.name.endswith("_ascend_pt"):
            try:
                return list(folder.glob("profiler_info_*.json"))
            except OSError:
                return []
    return []


def _elsewhere(url: str) -> Iterator[Input]:
    for found in remote.find(url):
        if not _OTHERS.search(found.name) and not _FACTS.search(found.name):
            yield Input(found.url, found.stamp, None, found)


def _here(given: Path, progress: Callable[[str], None]) -> Iterator[Input]:
    count = 0
    visited: set[tuple[int, int]] = set()
    for path in discovery.paths_of_pattern(given):
        if not path.exists():
            raise discovery.refusal(path)
        for local in _found(path, discovery.MAX_DEPTH, progress, visited, asked=True):
            count += 1
            yield Input(os.path.abspath(local.path), _stamp(local))  # noqa: PTH100 (links stay)
    if not count:
        raise RawFormatError(
            f"{given} contains no database or recording of a rank",
            hint="expected msprof databases, PROF_* and *_ascend_pt directories, traces",
            slug="not-a-recording",
        )


def _stamp(local: Local) -> str:
    """Return a string that changes with the content; missing files are ignored."""
    try:
        if local.source is not None and local.path.is_dir():
            return f"{local.source.modified_ns(local.path)}"
        status = local.path.stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    except (OSError, UprofError) as err:
        return type(err).__name__


def _found(
    path: Path,
    depth: int,
    progress: Callable[[str], None],
    visited: set[tuple[int, int]],
    *,
    asked: bool = False,
) -> Iterator[Local]:
    """Yield the recordings below a path; links to directories are followed, each directory once."""
    if not path.is_dir():
        yield from _of_file(path, asked=asked)
        return
    status = path.stat()
    if (status.st_dev, status.st_ino) in visited:
        return
    visited.add((status.st_dev, status.st_ino))
    # Skip the detection for directories of torch_npu, of which there may be thousands.
    named = path.name.endswith("_ascend_pt")
    source = None
    if not named or (made := _made_in(path)) is None:
        source = sources.certain_source(path)
        made = _made_in(path) if source is not None and not named else None
    if made is not None:
        yield Local(made)
        return
    if source is not None:
        yield Local(path, source)
        return
    if not depth:
        return
    if asked:
        progress(f"searching {path}")
    with (
        system_errors(RawFormatError, f"cannot list {path}", slug="cannot-read"),
        os.scandir(path) as entries,
    ):
        children = sorted(entries, key=lambda entry: entry.name)
    names = {child.name for child in children}
    for child in children:
        if child.name.startswith(".") or child.name.endswith(".cluster"):
            continue
        below = Path(child.path)
        try:
            is_directory, is_file = child.is_dir(), child.is_file()
        except OSError:  # a link to itself, or to a place that may not be read
            if below.suffix:
                yield Local(below)  # a file of a rank that cannot be read
            continue
        if is_directory:
            if child.is_symlink() and _leads_away(below):
                continue
            yield from _found(below, depth - 1, progress, visited)
        elif is_file:
            for local in _of_file(below):
                if local.source is None or f"{local.source.stem(below)}.db" not in names:
                    yield local


def _leads_away(link: Path) -> bool:
    """Return True for a link to a directory above it, or to the kernel: `/proc/1/root` is `/`."""
    target = link.resolve()
    of_kernel = any(map(target.is_relative_to, _OF_KERNEL)) and not target.is_relative_to(_SHARED)
    return of_kernel or target in link.absolute().parents


def _of_file(path: Path, *, asked: bool = False) -> Iterator[Local]:
    """Yield the file if it may belong to a rank, or if the user named it."""
    name = path.name
    if not asked and (_OTHERS.search(name) or _FACTS.search(name)):
        return
    if name.lower().endswith(_DATABASES) and not name.lower().endswith(".sqlite"):
        yield Local(path)  # not opened here: truncated and empty databases count as ranks, too
        return
    source = sources.find_source(path) if asked else sources.certain_source(path)
    if source is not None:
        yield Local(path, source)
    elif asked or ((head_of(path) or b"").startswith(MAGIC) and is_database(path)):
        yield Local(path)


def _made_in(folder: Path) -> Path | None:
    """Return the newest database inside the directory of a recording."""
    databases: list[tuple[int, Path]] = []
    for name in _DATABASE_DIRECTORIES:
        try:
            with os.scandir(folder / name) as entries:
                databases += [
                    (entry.stat().st_mtime_ns, Path(entry.path))
                    for entry in entries
                    if entry.name.endswith(".db") and not _OTHERS.search(entry.name)
                ]
        except OSError:
            continue
    return max(databases)[1] if databases else None
