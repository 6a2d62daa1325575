"""Upgrades of report files to a newer schema revision, through a copy.

The file is copied; the copy is migrated, verified and flushed to disk, and then replaces the
original in one rename. Until then the original is unchanged. If the upgrade fails, the partial copy
is removed, unless the process is killed. `create` writes an empty report of any revision.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from unified_prof.errors import OutputError, SchemaVersionError, StoreError, system_errors
from unified_prof.migrate import steps as ordering
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import REVISION_ROW
from unified_prof.sqlite import fingerprint
from unified_prof.sqlite.atomic import AtomicFile, replacing
from unified_prof.sqlite.fingerprint import Facts
from unified_prof.sqlite.opening import (
    MIGRATED_FROM,
    Detection,
    detect,
    open_read_only,
    recognize,
    side_files,
)
from unified_prof.sqlite.skyline_writer import recorded_anomalies
from unified_prof.sqlite.statements import (
    declared,
    open_unfinished,
    quoted,
    recovery_command,
    upgrade_error,
    writing,
)


def create(path: Path | str, family: str, revision: str, *, overwrite: bool = False) -> str:
    """Create an empty report with every table, and return the full name of its revision.

    Raises:
        UsageError: The family or revision does not exist.
        OutputError: The file exists, or cannot be written.
    """
    schema = catalogue.load(family, revision)
    with replacing(path, overwrite=overwrite) as partial, closing(open_unfinished(partial)) as db:
        db.executescript(f"BEGIN;\n{catalogue.frozen_text(family, revision)}")
        if schema.schema_version is not None:
            db.execute(
                "INSERT INTO META_DATA (name, value) VALUES (?, ?)", (REVISION_ROW, schema.revision)
            )
        db.execute("COMMIT")
    return schema.revision


# Time to wait for other writers, in seconds.
_LOCK_TIMEOUT_S = 30.0
_COPY_BYTES = 1 << 26


def locked(path: Path, resources: ExitStack) -> sqlite3.Connection:
    """Open `path` with a write lock; other processes can still read it.

    The journal of a crashed writer is rolled back, as for any connection that may write.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    while True:
        before = _identity(path)
        with ExitStack() as own, writing(path):
            db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT_S)
            own.enter_context(closing(db))
            db.execute("BEGIN IMMEDIATE")
            # The file may have been replaced during the wait for the lock.
            if _identity(path) == before:
                resources.enter_context(own.pop_all())
                return db


def _identity(path: Path) -> tuple[int, int]:
    with system_errors(StoreError, f"cannot read {path}", slug="cannot-read"):
        found = path.stat()
    return found.st_dev, found.st_ino


def copy_database(source: sqlite3.Connection, path: Path, copy: Path, resources: ExitStack) -> None:
    """Copy the database as `source` sees it, including the log or journal of `path`."""
    if side_files(path):
        with ExitStack() as own:
            if source.in_transaction:
                # A connection that may write cannot be the source of a backup.
                uri = f"{path.absolute().as_uri()}?mode=ro"
                source = own.enter_context(closing(sqlite3.connect(uri, uri=True)))
            source.backup(own.enter_context(closing(sqlite3.connect(copy))))
        return
    if not source.in_transaction:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # Closing any descriptor of a file releases all locks that the process has on it, also
    # SQLite's. This one therefore stays open as long as the connection.
    file = resources.enter_context(path.open("rb"))
    with copy.open("wb") as destination_file, ThreadPoolExecutor(1) as pool:
        copying = pool.submit(_copy_bytes, file, destination_file)
        import_module(
            "unified_prof.migrate.runner"
        )  # takes as long as copying 1 GB, so it overlaps
        copying.result()


def _copy_bytes(source: BinaryIO, destination: BinaryIO) -> None:
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # not every pair of file systems can
            while os.copy_file_range(source.fileno(), destination.fileno(), _COPY_BYTES):
                pass
            return
        source.seek(0)
        destination.seek(0)
        destination.truncate()
    shutil.copyfileobj(source, destination, _COPY_BYTES >> 6)


@contextmanager
def flushing(copy: Path) -> Iterator[None]:
    """Flush the copy to disk while the migration runs, which saves a third of the time."""
    with copy.open("rb") as file, ThreadPoolExecutor(1) as pool:
        pool.submit(os.fsync, file.fileno())
        yield


def inherit(path: Path, copy: Path) -> None:
    """Set the permissions of the copy and, if allowed, its owner to those of the original."""
    shutil.copymode(path, copy)
    if hasattr(os, "chown"):
        found = path.stat()
        with suppress(OSError):
            os.chown(copy, found.st_uid, found.st_gid)


def settle(original: sqlite3.Connection, path: Path) -> None:
    """Checkpoint the original's write-ahead log, which would otherwise be applied to the copy.

    Raises:
        StoreError: Another process has written the file since it was copied.
    """
    if original.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        return
    version = original.execute("PRAGMA data_version").fetchone()
    original.execute("ROLLBACK")
    busy, *_ = original.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    original.execute("BEGIN IMMEDIATE")
    if busy or original.execute("PRAGMA data_version").fetchone() != version:
        raise StoreError(
            f"{path} is in use by another process",
            hint="try again when that process has finished",
            slug="in-use",
        )


def keep(path: Path) -> Path:
    """Keep the original under an unused backup name, and return that name."""
    path = Path(os.path.realpath(path))
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        try:
            os.link(path, backup)
        except FileExistsError:
            number += 1
            continue
        except OSError:  # a file system without hard links
            if backup.exists():
                number += 1
                continue
            shutil.copy2(path, backup)
        return backup


_RENAMED = frozenset({"ENUM_OVERLAY_ANALYSIS_TYPE"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Data that could not be converted, as counted in UPROF_ANOMALIES."""

    name: str
    count: int
    detail: str | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Result of an upgrade."""

    path: Path  # The file to upgrade.
    output: Path  # The upgraded file: `path`, unless another output was given.
    before: str
    after: str  # The revisions before and after; equal if the file was up to date.
    # The backup of the original, if `path` was replaced and a backup was kept.
    backup: Path | None = None
    anomalies: tuple[Anomaly, ...] = ()  # Data that could not be converted.

    def fields(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "output": str(self.output),
            "before": self.before,
            "after": self.after,
            "changed": self.before != self.after,
            "backup": None if self.backup is None else str(self.backup),
            "anomalies": [asdict(one) for one in self.anomalies],
        }

    def lines(self) -> Iterator[str]:
        """Yield the result as a line of text."""
        if self.before == self.after:
            yield f"{self.output}: already at revision {self.after}"
        else:
            saved = f", original kept as {self.backup.name}" if self.backup else ""
            yield f"{self.output}: {self.before} -> {self.after}{saved}"


def upgrade(
    path: Path | str,
    to: str = "latest",
    *,
    output: Path | str | None = None,
    backup: bool = True,
    overwrite: bool = False,
) -> Upgrade:
    """Upgrade a report to a revision, replacing it or writing another file.

    If the report is replaced, the original is kept in the same directory as `<name>.bak` (or
    `.bak2`, ...; existing backups are never changed). Other processes cannot write the report
    during the upgrade.

    Args:
        path: A report of any family.
        to: A revision of its family, `documented` or `latest`.
        output: Where to write the upgraded file; `path` then stays unchanged.
        backup: True to keep the original.
        overwrite: True to replace an existing `output`.

    Raises:
        UsageError: The revision does not exist.
        StoreError: `path` is unreadable, damaged, or not a report.
        SchemaVersionError: Its revision is unknown, or newer than `to`.
        OutputError: The upgraded file cannot be written.
    """
    path = Path(path)
    found = detect(path)
    plan = _plan(found, to)
    if output is not None:
        return _to_output(found, plan, Path(output), overwrite=overwrite)
    if plan.start == plan.target:
        return Upgrade(path, path, plan.start, plan.target)
    return _in_place(path, to, backup=backup)


@dataclass(frozen=True, slots=True)
class _Plan:
    family: str
    start: str
    target: str


def _plan(found: Detection, to: str) -> _Plan:
    family, start = found.require()
    if found.not_tables:
        raise StoreError(
            f"{found.path} cannot be upgraded: {', '.join(found.not_tables)} is a view or a"
            " virtual table, expected a table",
            hint="run `uprof db check`",
            slug="not-upgradable",
        )
    target = catalogue.resolve(family, to)
    order = catalogue.REVISIONS[family].index
    if target in found.equivalent:
        # The file fits both revisions.
        return _Plan(family, start, target)
    if order(start) > order(target):
        raise SchemaVersionError(
            f"{found.path} is at {start}, which is newer than {target}",
            hint="files are only migrated forward",
            slug="only-forward",
        )
    return _Plan(family, start, target)


def _to_output(found: Detection, plan: _Plan, output: Path, *, overwrite: bool) -> Upgrade:
    path = found.path
    if output.exists() and output.samefile(path):
        raise OutputError(f"{output} is the file to upgrade", hint="omit -o", slug="not-replaced")
    target = AtomicFile(output, overwrite=overwrite)
    try:
        with ExitStack() as resources, _translated(path, output, plan):
            source = open_read_only(path, resources)
            copy_database(source, path, target.partial, resources)
            with flushing(target.partial):
                anomalies = _migrate(target.partial, path, plan)
        target.commit()
    finally:
        target.discard()
    return Upgrade(path, output, plan.start, plan.target, None, anomalies)


def _in_place(path: Path, to: str, *, backup: bool) -> Upgrade:
    with ExitStack() as resources:
        original = locked(path, resources)
        plan = _plan(recognize(original, path), to)
        if plan.start == plan.target:  # another process was faster
            return Upgrade(path, path, plan.start, plan.target)
        output = AtomicFile(path, overwrite=True)
        saved = None
        try:
            with _translated(path, path, plan):
                copy_database(original, path, output.partial, resources)
                with flushing(output.partial):
                    anomalies = _migrate(output.partial, path, plan)
                inherit(path, output.partial)
                settle(original, path)
                saved = keep(path) if backup else None
            output.commit()
        except BaseException:
            if saved is not None:
                saved.unlink(missing_ok=True)
            raise
        finally:
            output.discard()
    return Upgrade(path, path, plan.start, plan.target, saved, anomalies)


def _migrate(copy: Path, path: Path, plan: _Plan) -> tuple[Anomaly, ...]:
    """Migrate the database `copy` of `path` and verify it; return the new anomalies."""
    from unified_prof.migrate import runner

    with closing(open_unfinished(copy)) as db:
        if plan.start == plan.target:
            _refuse_damage(db, path)
            return ()
        facts = fingerprint.read_facts(db)
        triggers = _without_triggers(db)
        known = recorded_anomalies(db)
        state = runner.file_state(db, facts, plan.family, plan.start)
        runner.migrate(db, plan.family, plan.start, plan.target, state)
        ordering.order_columns(db, catalogue.load(plan.family, plan.target))
        if plan.family == catalogue.MSPROF and state.holds_records:
            _note_origin(db, plan.start)
        for statement in triggers:
            db.execute(statement)
        _verify(db, path, plan, facts)
        _refuse_damage(db, path)
        found = recorded_anomalies(db)
        added = {name: found[name].cases - known.get(name, (0, ""))[0] for name in found}
        return tuple(
            Anomaly(name, cases, found[name].detail or None)
            for name, cases in added.items()
            if cases > 0
        )


def _without_triggers(db: sqlite3.Connection) -> list[str]:
    """Drop all triggers, which must not fire, and return the statements that create them."""
    triggers = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    ).fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {quoted(name)}")
    return [str(statement) for _, statement in triggers]


def _refuse_damage(db: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if the copy is damaged, even in pages that no step has read."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        words = " ".join(str(found).split())
        raise StoreError(
            f"{path} is damaged: {words}",
            hint=f"the file is unchanged; {recovery_command(path)}",
            slug="damaged-file",
        )


def _note_origin(db: sqlite3.Connection, revision: str) -> None:
    if not declared(db, "UPROF_RUN"):
        db.execute(catalogue.extension_tables()["UPROF_RUN"].create_sql)
    insert = "INSERT OR IGNORE INTO UPROF_RUN (name, value) VALUES (?, ?)"
    db.execute(insert, (MIGRATED_FROM, revision))


def _verify(db: sqlite3.Connection, path: Path, plan: _Plan, before: Facts) -> None:
    """Raise StoreError if the copy is not at its revision, lost a table, or cannot be read."""
    found = recognize(db, path)
    after = fingerprint.read_facts(db).tables
    for table in after:
        db.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()
    gone = {
        table
        for table in before.tables.keys() - after.keys() - _RENAMED
        if f"UPROF_FOUND_{table}" not in after
    }
    if plan.target not in (found.revision, *found.equivalent) or gone:
        lost = f"; missing tables: {sorted(gone)}" if gone else ""
        raise StoreError(
            f"{path} is not at {plan.target} after the upgrade: {found.description}{lost}",
            hint="this is a bug in uprof; the file is unchanged",
            slug="not-upgradable",
        )


@contextmanager
def _translated(path: Path, output: Path, plan: _Plan) -> Iterator[None]:
    """Translate errors of SQLite and the system during an upgrade."""
    try:
        yield
    except Exception as err:
        steps = f"from {plan.start} to {plan.target}"
        if (ours := upgrade_error(path, output, steps, err)) is None:
            raise
        raise ours from err
