"""Opening of databases for reading, without changing them, and identification of report files.

SQLite may change a file even when it only reads: it rolls back the journal of a crashed writer,
merges a write-ahead log, and creates `-wal` and `-shm` files. Files with a journal or log are
therefore read through a temporary copy, and files in WAL mode without a log are opened as
immutable.

Family, revision, producer and completeness are cheap to detect for files of any size: only the
schema and a few rows of small tables are read, with the standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from unified_prof.base.columns import API_OPERATION
from unified_prof.errors import OutputError, SchemaVersionError, StoreError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import REVISION_ROW
from unified_prof.sqlite import fingerprint
from unified_prof.sqlite.atomic import SQLITE_SIDE_FILES, raise_kept, temporary_folder, watch
from unified_prof.sqlite.fingerprint import MAGIC, Facts
from unified_prof.sqlite.pages.format import FileConnection
from unified_prof.sqlite.statements import READ_ERRORS, is_locked, read_error, reading

_OTHER_FORMATS = (
    (b"\x1f\x8b", "a gzip-compressed file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard-compressed file"),
    (b"\xfd7zXZ", "an xz-compressed file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "a Parquet file"),
)
_HEADER_BYTES = 100
_WAL_MODE = 2  # header byte 19: file format version needed for reading
_BUSY_TIMEOUT_S = 5.0
_COPY_ATTEMPTS = 3
_COPY_BYTES = 1 << 20
_BLOCK_BYTES = 512  # the unit of `st_blocks` on all file systems
# A generated column may create values up to SQLite's limit of a gigabyte in every row.
_MAX_VALUE_BYTES = 1 << 27
_DETECTION_STEPS = 50_000_000  # one second; a report needs some thousand


def open_read_only(path: Path, resources: ExitStack) -> sqlite3.Connection:
    r"""Return a connection to `path` that changes neither the file nor its directory.

    In text that is not UTF-8, invalid bytes are read as `\xNN`. `path` may be any file, also not a
    database. `resources` closes the connection and removes a temporary copy, if one was needed.

    Raises:
        StoreError: the file cannot be read, or is not a complete SQLite database.
        OutputError: a temporary copy was needed and could not be made.
    """
    header = _header(path)
    sides = side_files(path)
    in_wal_mode = header[19] == _WAL_MODE
    if in_wal_mode and "-wal" in sides:
        return _open_copy(path, sides["-wal"], resources)
    if "-journal" not in sides:
        _refuse_truncated(path, header)
    try:
        # A file in WAL mode without a log is not being changed; opening it as mutable would create
        # a log.
        return _connect(path, "immutable=1" if in_wal_mode else "mode=ro", resources)
    except READ_ERRORS as err:
        raise_kept()
        if "-journal" in sides and not is_locked(err):
            return _open_copy(path, sides["-journal"], resources)
        raise read_error(path, err) from err


def side_files(path: Path) -> dict[str, Path]:
    """Return the log and journal of a database that are not empty, by suffix.

    Raises:
        StoreError: one of them is not a regular file, so that SQLite might wait forever.
    """
    found = {}
    real = Path(os.path.realpath(path))  # as SQLite does
    for ending in SQLITE_SIDE_FILES:
        side = real.with_name(real.name + ending)
        try:
            state = side.stat()
        except OSError:
            continue
        if not stat.S_ISREG(state.st_mode):
            raise StoreError(
                f"{path} cannot be read: {side.name} in its directory is not a regular file",
                hint="move it away",
                slug="not-a-regular-file",
            )
        if state.st_size:
            found[ending] = side
    return found


def _header(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise StoreError(f"{path} is a directory, expected a report file", slug="not-a-report")
        if not stat.S_ISREG(mode):
            message = f"{path} is not a regular file, expected a report file"
            raise StoreError(message, slug="not-a-regular-file")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist", slug="no-such-file") from None
    except OSError as err:
        raise StoreError(f"cannot read {path}: {err.strerror}", slug="cannot-read") from err
    except ValueError as err:  # no file can have such a name
        raise StoreError(f"cannot read {str(path)!r}: {err}", slug="cannot-read") from err
    if not header:
        raise StoreError(f"{path} is empty, expected an SQLite database", slug="empty-file")
    if not header.startswith(MAGIC):
        message = f"{path} is not a report (an SQLite database) but {_content_kind(header)}"
        raise StoreError(message, slug="not-a-report")
    if len(header) < _HEADER_BYTES:
        raise _truncated(path, len(header), _HEADER_BYTES)
    return header


def _content_kind(header: bytes) -> str:
    """Return a description of a file that starts with these bytes."""
    for magic, words in _OTHER_FORMATS:
        if header.startswith(magic):
            return words
    if not header.strip(b"\0"):
        return "a file of zeros"
    text = header.decode("utf-8", "ignore")
    if header.lstrip()[:1] in (b"{", b"["):
        return "JSON"
    return "text" if text.isprintable() or text.replace("\n", "").isprintable() else "binary data"


def _refuse_truncated(path: Path, header: bytes) -> None:
    """Raise StoreError if the file is smaller than its header states."""
    size_is_valid = header[24:28] == header[92:96]
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    expected = int.from_bytes(header[28:32], "big") * page_bytes
    found = path.stat().st_size
    if size_is_valid and found < expected:
        raise _truncated(path, found, expected)


def _truncated(path: Path, found: int, expected: int) -> StoreError:
    message = f"{path} is cut off: {found:,} bytes, expected {expected:,}"
    return StoreError(message, slug="damaged-file")


def _connect(
    path: Path, options: str, resources: ExitStack, *, is_complete: bool = True
) -> sqlite3.Connection:
    """Return a connection to a file, with options of SQLite's URI.

    `is_complete` is True if the file contains all data, that is, has no log.
    """
    uri = f"{path.absolute().as_uri()}?{options}"  # a URI can have any file name
    before = None
    with suppress(OSError):
        before = path.stat() if is_complete else None
    db = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S, factory=FileConnection
    )
    try:
        db.execute("PRAGMA trusted_schema = OFF")  # the file is not trusted
        # Otherwise SQLite reads memory outside a page if the pointer to a row is damaged.
        db.execute("PRAGMA cell_size_check = ON")
        if hasattr(db, "setlimit"):  # since Python 3.11
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        watch(db, steps=_DETECTION_STEPS)
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if before is not None:
            db.hold(path, before)
    except BaseException:
        db.close()
        raise
    db.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
    resources.enter_context(closing(db))
    return db


def _open_copy(path: Path, side_file: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open a copy of a database with the log or journal that its writer left behind."""
    try:
        folder = resources.enter_context(temporary_folder())
        _refuse_too_much(folder, path, side_file)
        for _ in range(_COPY_ATTEMPTS):
            before = _states(path, side_file)
            _copy_sparse(path, folder / "copy")
            suffix = next(end for end in SQLITE_SIDE_FILES if side_file.name.endswith(end))
            _copy_sparse(side_file, folder / f"copy{suffix}")
            if _states(path, side_file) == before:
                break
        else:
            raise StoreError(
                f"{path} is being written by another process",
                hint="try again when that process has finished",
                slug="in-use",
            )
    except OSError as err:
        raise OutputError(
            f"cannot copy {path}, whose writer left {side_file.name} behind, "
            f"to {tempfile.gettempdir()}: {err.strerror}",
            hint="set TMPDIR to a directory with enough space",
            slug="no-temporary-space",
        ) from err
    with reading(path):
        return _connect(folder / "copy", "mode=rw", resources, is_complete=False)


def _refuse_too_much(folder: Path, *files: Path) -> None:
    """Raise OSError if copies of the files would fill the disk."""
    states = [file.stat() for file in files]
    # Size of a sparse file on disk; not available on Windows.
    needed = sum(
        min(state.st_size, getattr(state, "st_blocks", state.st_size) * _BLOCK_BYTES)
        for state in states
    )
    if needed > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy_sparse(source: Path, copy: Path) -> None:
    """Copy a file; the copy is as sparse as the file."""
    with source.open("rb") as read, copy.open("wb") as write:
        size = os.fstat(read.fileno()).st_size
        position = 0
        while position < size and (part := _next_data(read, position, size)) is not None:
            position, end = part
            read.seek(position)
            write.seek(position)
            while position < end and (data := read.read(min(_COPY_BYTES, end - position))):
                write.write(data)
                position += len(data)
            if position < end:
                return  # truncated while it was read
        write.truncate(size)


def _next_data(file: BinaryIO, position: int, size: int) -> tuple[int, int] | None:
    """Return start and end of the next data in a sparse file, None if there is no more."""
    if sys.platform == "win32" or not hasattr(os, "SEEK_DATA"):
        return position, size
    try:
        begin = os.lseek(file.fileno(), position, os.SEEK_DATA)
        return begin, os.lseek(file.fileno(), begin, os.SEEK_HOLE)
    except OSError as err:
        if err.errno == errno.ENXIO:
            return None
        return position, size  # a file system without sparse files


def _states(*files: Path) -> list[tuple[int, int]]:
    return [(state.st_size, state.st_mtime_ns) for state in map(os.stat, files)]


# UPROF_RUN fact: the revision a migrated file had before its first migration.
MIGRATED_FROM = "migrated_from"

VERSION_ROWS = (
    "SCHEMA_VERSION SCHEMA_VERSION_MAJOR SCHEMA_VERSION_MINOR SCHEMA_VERSION_MICRO"
).split()

# Families with their revision in user_version: the column that identifies a file, and its
# description.
_NUMBERED = {
    catalogue.SKYLINE_RUN_TIME: ("run_time_entries", "id", "a Skyline run time report", "Skyline"),
    catalogue.SKYLINE_MEMORY: ("weight_entries", "id", "a Skyline memory report", "Skyline"),
    catalogue.CLUSTER: ("FINDING", "cost_ms_per_step", "a cluster summary", "uprof"),
    catalogue.WATCH: ("STEP", "optimizer_ns", "a watch file", "uprof"),
}
# Any of these tables identifies an msprof database; a table TASK could be from any program.
_MSPROF_MARKS = {
    "ENUM_API_TYPE": ("id", "name"),
    "ENUM_MODULE": ("id", "name"),
    "ENUM_HCCL_DATA_TYPE": ("id", "name"),
    "SESSION_TIME_INFO": ("startTimeNs", "endTimeNs"),
    "TARGET_INFO_SESSION_TIME": ("startTimeNs", "endTimeNs"),
    "TASK": ("globalTaskId", "connectionId", "taskType"),
    "COMPUTE_TASK_INFO": ("globalTaskId", "opType"),
    "CANN_API": ("globalTid", "name"),
}
_PYTORCH_TABLES = (
    "PYTORCH_API CONNECTION_IDS PYTORCH_CALLCHAINS STEP_TIME MEMORY_RECORD OP_MEMORY GC_RECORD"
).split()
# Databases of other programs that are often in the same directory as reports.
_STRANGERS = {
    "CommAnalyzerTime": "a communication analysis (analysis.db) made by torch_npu",
    "StepTraceTime": "a communication analysis (analysis.db) made by torch_npu",
    "ClusterStepTraceTime": "a cluster analysis made by msprof-analyze",
    "CUPTI_ACTIVITY_KIND_KERNEL": "an Nsight Systems export",
    "META_DATA_EXPORT": "an Nsight Systems export",  # one without kernels
    "uprof_baselines_version": "uprof's store of baselines",
    "alembic_version": "a database with Alembic's version table",
}


class Detection(Struct, frozen=True):
    """Family, revision and origin of one file."""

    path: Path
    family: str | None  # One of `catalogue.FAMILIES`; None: not a known kind of report.
    revision: str | None  # The exact schema revision; None: unknown.
    description: str  # Description of the file, or the reason why no revision matches.
    recognised_by: tuple[str, ...]  # Evidence for the revision.
    # Producer of the file: uprof, msprof, msprof + torch_npu, msMonitor, ...
    producer: str | None = None
    complete: bool = True  # False: the producer was stopped before it finished (no STRING_IDS).
    # Other possible revisions; they do not differ in the tables of this file.
    equivalent: tuple[str, ...] = ()
    schema_version: str | None = None  # META_DATA.SCHEMA_VERSION.
    migrated_from: str | None = None  # Revision of the file before uprof migrated it.
    viewer: str | None = None  # Viewer that added tables or columns to the file.
    notes: tuple[str, ...] = ()  # Inconsistencies that did not prevent detection.
    # Views and virtual tables with names of the format's tables; they are not read.
    not_tables: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the detection as plain data, without the path."""
        names = (
            *("family", "revision", "equivalent", "schema_version", "recognised_by", "producer"),
            *("complete", "migrated_from", "viewer", "description", "notes", "not_tables"),
        )
        return {name: getattr(self, name) for name in names}

    def lines(self) -> Iterator[str]:
        """Yield the detection as lines of text."""
        revision = self.revision or "unknown revision"
        also = f" (same as {', '.join(self.equivalent)} for this file)" if self.equivalent else ""
        yield f"{self.path}: {self.family} {revision}{also}"
        rows = {
            "identified by": "; ".join(self.recognised_by) if self.revision else self.description,
            "producer": self.producer,
            "complete": "yes" if self.complete else "no: STRING_IDS is missing",
            "migrated from": self.migrated_from,
            "opened by": self.viewer,
        }
        for name, value in rows.items():
            if value:
                yield f"  {name + ':':15}{value}"
        not_tables = [f"{name} is not a table and is ignored" for name in self.not_tables]
        for note in (*self.notes, *not_tables):
            yield f"  {'note:':15}{note}"

    def require(self) -> tuple[str, str]:
        """Return (family, revision).

        Raises:
            StoreError: the file is not a known kind of report.
            SchemaVersionError: it is a report, but its revision is unknown.
        """
        if self.family is None:
            raise StoreError(
                f"{self.path} is not a report but {self.description}",
                hint=f"expected one of: {', '.join(catalogue.FAMILIES)}",
                slug="not-a-report",
            )
        if self.revision is None:
            raise SchemaVersionError(
                f"{self.path} has an unknown schema revision: {self.description}",
                hint=f"known: {', '.join(catalogue.REVISIONS[self.family])}",
                slug="unknown-schema",
            )
        return self.family, self.revision


def detect(path: Path | str) -> Detection:
    """Detect the kind of the file `path`, without changing it.

    For a database of another program, `Detection.family` is None and `description` names it.

    Raises:
        StoreError: the file is missing, unreadable, or not an intact SQLite database.
    """
    path = Path(path)
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        with reading(path):
            return recognize(db, path)


def recognize(db: sqlite3.Connection, path: Path) -> Detection:
    """Detect the main database of an open connection; `path` is its name in messages."""
    facts = fingerprint.read_facts(db)
    found = _recognize(path, facts)
    if found.family is None or not facts.not_tables:
        return found
    names = {name.lower() for name in catalogue.load(found.family, "latest").tables}
    names |= {name.lower() for name in catalogue.extension_tables()}
    not_tables = tuple(name for name in facts.not_tables if name.lower() in names)
    return replace(found, not_tables=not_tables)


def _recognize(path: Path, facts: Facts) -> Detection:
    for family, (table, column, *_) in _NUMBERED.items():
        if facts.has(table, column):
            return _numbered(path, facts, family)
    if any(facts.has(table, *columns) for table, columns in _MSPROF_MARKS.items()):
        return _msprof(path, facts)
    if facts.has("META_DATA", "name", "value") and _values(facts, "SCHEMA_VERSION"):
        return _msprof(path, facts)
    return Detection(path, None, None, _stranger(facts), ())


def _stranger(facts: Facts) -> str:
    for table, what in _STRANGERS.items():
        if table in facts.tables:
            return what
    if not facts.tables:
        return "an SQLite database without tables"
    some = ", ".join(list(facts.tables)[:5])
    return f"an SQLite database of another program (tables: {some})"


def _numbered(path: Path, facts: Facts, family: str) -> Detection:
    revisions = [catalogue.load(family, name) for name in catalogue.REVISIONS[family]]
    versions = {spec.user_version: spec for spec in revisions}
    spec = versions.get(facts.user_version, revisions[-1])
    missing = [
        f"{name}.{column}"
        for name, table in spec.tables.items()
        for column in table.column_names
        if column not in facts.tables.get(name, ())
    ]
    table, _, words, maker = _NUMBERED[family]
    known = Detection(
        path,
        family,
        spec.revision,
        words,
        (f"user_version is {facts.user_version}", f"has table {table}"),
        producer="uprof" if "UPROF_RUN" in facts.tables else maker,
    )
    if missing:
        return replace(known, revision=None, description=f"it does not have {', '.join(missing)}")
    if facts.user_version not in versions:
        expected = " or ".join(map(str, versions))
        found = f"its user_version is {facts.user_version}, expected {expected}"
        return replace(known, revision=None, description=found)
    return known


def _msprof(path: Path, facts: Facts) -> Detection:
    versions = _values(facts, "SCHEMA_VERSION")
    known = Detection(
        path,
        catalogue.MSPROF,
        None,
        "",
        (),
        producer=_producer(path, facts),
        complete="STRING_IDS" in facts.tables,
        schema_version=versions[0] if versions else None,
        migrated_from=facts.run.get(MIGRATED_FROM),
        viewer="MindStudio Insight" if _seen_by_insight(facts) else None,
        notes=tuple(_meta_notes(facts)),
    )
    if (old := fingerprint.PREHISTORY_TABLES & set(facts.tables)) and not versions:
        words = f"it is older than {catalogue.REVISIONS[catalogue.MSPROF][0]}, the first one"
        signs = tuple(f"has table {name}" for name in sorted(old))
        return replace(known, description=words, recognised_by=signs)
    known_versions = {r.partition("_")[0] for r in catalogue.REVISIONS[catalogue.MSPROF]} - {"pre"}
    if unknown := [version for version in versions if version not in known_versions]:
        words = f"META_DATA has SCHEMA_VERSION {unknown[0]!r}, which is unknown"
        return replace(known, description=words)
    if (stated := _values(facts, REVISION_ROW)) and (found := _stated(known, facts, stated)):
        return found
    return _by_contents(known, facts, trust_version=len(set(versions)) == 1)


def _stated(known: Detection, facts: Facts, stated: list[str]) -> Detection | None:
    """Return the revision that uprof recorded, unless the tables contradict it."""
    revision = stated[0]
    if revision not in catalogue.REVISIONS[catalogue.MSPROF]:
        words = f"META_DATA has {REVISION_ROW} {revision!r}, written by a newer uprof"
        return replace(known, description=words)
    if len(set(stated)) > 1 or fingerprint.lacking(facts, revision):
        return None
    return replace(
        known,
        revision=revision,
        description=f"an msprof database at {revision}",
        recognised_by=(f"META_DATA has {REVISION_ROW} {revision}",),
    )


def _by_contents(known: Detection, facts: Facts, *, trust_version: bool) -> Detection:
    found = fingerprint.match(facts, trust_version=trust_version)
    if found.revision is None:
        some = ", ".join(found.missing[:8]) + (", ..." if len(found.missing) > 8 else "")
        words = f"its tables match no revision: they lack {some}"
        if known.viewer:
            words += f" (opened and changed by {known.viewer})"
        return replace(known, description=words, recognised_by=found.evidence)
    notes = list(known.notes)
    if stated := _values(facts, REVISION_ROW):
        listed = ", ".join(stated)
        notes.append(f"META_DATA has {REVISION_ROW} {listed}, which does not match its tables")
    version = catalogue.load(catalogue.MSPROF, found.revision).schema_version
    if trust_version and known.schema_version != version:
        notes.append(
            f"META_DATA has SCHEMA_VERSION {known.schema_version}, but its tables are of {version}"
        )
    if found.newer_parts:
        notes.append(f"has parts of a newer revision: {', '.join(found.newer_parts)}")
    return replace(
        known,
        revision=found.revision,
        description=f"an msprof database at {found.revision}",
        recognised_by=found.evidence,
        equivalent=found.equivalent,
        notes=tuple(notes),
    )


def _values(facts: Facts, name: str) -> list[str]:
    return [value for row, value in facts.meta if row == name]


def _meta_notes(facts: Facts) -> list[str]:
    """Return notes on inconsistent version rows of META_DATA; SCHEMA_VERSION takes precedence."""
    if "META_DATA" not in facts.tables:
        return []
    notes = []
    versions = _values(facts, "SCHEMA_VERSION")
    if not versions and not _values(facts, REVISION_ROW):
        notes.append("META_DATA has no row SCHEMA_VERSION")
    if len(versions) > 1:
        notes.append(f"META_DATA has {len(versions)} rows SCHEMA_VERSION: {', '.join(versions)}")
    parts = [_values(facts, row) for row in VERSION_ROWS[1:]]
    if versions and not all(parts):
        absent = [row for row, values in zip(VERSION_ROWS[1:], parts, strict=True) if not values]
        notes.append(f"META_DATA has no row {', '.join(absent)}")
    elif versions and (stated := ".".join(values[0] for values in parts)) != versions[0]:
        notes.append(f"META_DATA's version parts are {stated}, but SCHEMA_VERSION is {versions[0]}")
    return notes


def _producer(path: Path, facts: Facts) -> str:
    if set(facts.run) - {MIGRATED_FROM} or (
        _values(facts, REVISION_ROW) and MIGRATED_FROM not in facts.run
    ):
        return "uprof"
    keyless = "STRING_IDS" in facts.tables and "STRING_IDS" not in facts.keys
    torch = any(table in facts.tables for table in _PYTORCH_TABLES)
    if re.fullmatch(r"msmonitor_.*\.db", path.name) or (
        keyless and "COMMUNICATION_TASK_INFO" not in facts.tables and not torch
    ):
        return "msMonitor"
    if torch or facts.enum_has("ENUM_API_TYPE", API_OPERATION) or "ascend_pytorch" in path.name:
        return "msprof + torch_npu"
    if "ascend_mindspore" in path.name:
        return "msprof + MindSpore"
    return "msprof"


def _seen_by_insight(facts: Facts) -> bool:
    return (
        facts.has("status_info", "key", "value")
        or "connectionCats" in facts.tables
        or any(facts.has(table, "depth") for table in ("TASK", "CANN_API", "PYTORCH_API"))
    )
