"""Brings a report file up to a newer revision of its schema, never in place.

The file is copied, the copy is migrated, verified and made durable, and only then takes the
original's name in one rename. Whatever happens before that, the original is as it was; the
partial copy is removed, unless the process is killed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from unified_prof.errors import OutputError, SchemaVersionError, StoreError
from unified_prof.migrate import ordering
from unified_prof.migrate.files import copy_database, flushing, inherit, keep, locked, settle
from unified_prof.models import catalogue
from unified_prof.store import fingerprint
from unified_prof.store.atomic import AtomicFile
from unified_prof.store.detect import MIGRATED_FROM, Detection, detect, recognise
from unified_prof.store.fingerprint import Facts
from unified_prof.store.opening import open_read_only
from unified_prof.store.sql import declared, open_unfinished, quoted, upgrade_error
from unified_prof.store.uprof_tables import recorded_anomalies

_RENAMED = frozenset({"ENUM_OVERLAY_ANALYSIS_TYPE"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that could not be converted, as UPROF_ANOMALIES counts it."""

    name: str
    count: int
    detail: str | None


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What became of one file."""

    path: Path
    """The file as it was named."""

    output: Path
    """The upgraded file: `path`, unless another output was asked for."""

    before: str
    after: str
    """The revisions it had and has; equal: there was nothing to do."""

    backup: Path | None = None
    """The original, where `path` was replaced and a backup kept."""

    anomalies: tuple[Anomaly, ...] = ()
    """What the steps could not convert."""


def upgrade(
    path: Path | str,
    to: str = "latest",
    *,
    output: Path | str | None = None,
    backup: bool = True,
    overwrite: bool = False,
) -> Upgrade:
    """Bring the report `path` to the revision `to`, in its place or as another file.

    In its place, the original is kept beside it as `<name>.bak` (or `.bak2`, ...: an existing
    backup is never touched) and no other process may write it meanwhile.

    Args:
        path: a report of any family.
        to: a revision of its family, `documented` or `latest`.
        output: where to write the upgraded file instead; `path` then stays as it is.
        backup: keep the original.
        overwrite: whether an existing `output` may be replaced.

    Raises:
        UsageError: no such revision.
        StoreError: `path` cannot be read, is damaged, or is no report.
        SchemaVersionError: its revision is unknown, or newer than `to`.
        OutputError: the upgraded file cannot be written.
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
            f"{found.path} cannot be upgraded: {', '.join(found.not_tables)} in it is a view or a"
            " virtual table, expected a table",
            hint="see what is odd about it with: uprof db check",
            slug="not-upgradable",
        )
    target = catalogue.resolve(family, to)
    order = catalogue.REVISIONS[family].index
    if target in found.equivalent:
        # It is as much of that revision as of the one it was recognised by.
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
        raise OutputError(
            f"{output} is the file to be upgraded", hint="leave out -o", slug="not-replaced"
        )
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
        plan = _plan(recognise(original, path), to)
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
        if plan.family == catalogue.MSPROF:
            state = runner.file_state(db, facts, plan.start)
            runner.migrate(db, plan.family, plan.start, plan.target, state)
            ordering.order_columns(db, catalogue.load(plan.family, plan.target))
            if state.holds_records:
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
    """Drop the file's triggers, which no step may set off, and return what creates them."""
    triggers = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    ).fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {quoted(name)}")
    return [str(statement) for _, statement in triggers]


def _refuse_damage(db: sqlite3.Connection, path: Path) -> None:
    """Have SQLite walk every page of the copy: what no step touched may be damaged as well."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        words = " ".join(str(found).split())
        raise StoreError(
            f"{path} is damaged: {words}",
            hint="recover it with the sqlite3 shell; it is as it was",
            slug="damaged-file",
        )


def _note_origin(db: sqlite3.Connection, revision: str) -> None:
    """Write down the revision the file came from, unless an earlier upgrade did."""
    if not declared(db, "UPROF_RUN"):
        db.execute(catalogue.extension_tables()["UPROF_RUN"].create_sql)
    insert = "INSERT OR IGNORE INTO UPROF_RUN (name, value) VALUES (?, ?)"
    db.execute(insert, (MIGRATED_FROM, revision))


def _verify(db: sqlite3.Connection, path: Path, plan: _Plan, before: Facts) -> None:
    """Refuse a migrated copy that is not at its revision, lost a table, or cannot be read."""
    found = recognise(db, path)
    after = fingerprint.read_facts(db).tables
    for table in after:
        db.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()
    gone = {
        table
        for table in before.tables.keys() - after.keys() - _RENAMED
        if f"UPROF_FOUND_{table}" not in after
    }
    if plan.target not in (found.revision, *found.equivalent) or gone:
        lost = f"; tables gone: {sorted(gone)}" if gone else ""
        raise StoreError(
            f"{path} did not become {plan.target}: {found.description}{lost}",
            hint="this is a fault of uprof; the file is as it was",
            slug="not-upgradable",
        )


@contextmanager
def _translated(path: Path, output: Path, plan: _Plan) -> Iterator[None]:
    """Turn what SQLite and the system say during an upgrade into errors of ours."""
    try:
        yield
    except Exception as err:
        steps = f"from {plan.start} to {plan.target}"
        if (ours := upgrade_error(path, output, steps, err)) is None:
            raise
        raise ours from err
