"""Runs Alembic migrations on an open database; the version is stored in META_DATA.

Alembic's own table is in an attached database in memory. Each step writes its version to META_DATA
within the transaction that changes the tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import StaticPool

from unified_prof.migrate.steps import FileState
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import REVISION_ROW, resource_directory
from unified_prof.sqlite.fingerprint import Facts
from unified_prof.sqlite.opening import VERSION_ROWS
from unified_prof.sqlite.statements import quoted

_SCRATCH = "uprof_scratch"


def file_state(db: sqlite3.Connection, facts: Facts, family: str, revision: str) -> FileState:
    """Return the state of a file at a revision of its family, as input for migration steps."""
    schema = catalogue.load(family, revision)
    recorded = (t for t in facts.tables if t != "META_DATA" and not t.startswith("ENUM_"))
    return FileState(
        holds_all_tables=schema.tables.keys() <= facts.tables.keys(),
        holds_records=any(
            db.execute(f"SELECT 1 FROM {quoted(table)} LIMIT 1").fetchone() for table in recorded
        ),
        columns={table: frozenset(columns) for table, columns in facts.tables.items()},
    )


def migrate(
    db: sqlite3.Connection, family: str, start: str | None, target: str, state: FileState
) -> None:
    """Migrate a database from one revision to a newer one, step by step.

    The connection has `isolation_level=None` and is outside a transaction; `start` is None for an
    empty database, and `state` is that of the file at `start`.
    """
    with _connection(db) as connection, _version_table(connection, start):
        config = config_of(family)
        config.attributes["connection"] = connection
        config.attributes["configure"] = {
            "version_table_schema": _SCRATCH,
            "transactional_ddl": True,
            "on_version_apply": _record if family == catalogue.MSPROF else None,
            "file_state": state,
        }
        command.upgrade(config, target)


def history(family: str) -> list[tuple[str, str]]:
    """Return the revisions of a family with their descriptions, oldest first."""
    scripts = ScriptDirectory.from_config(config_of(family)).walk_revisions()
    return [(script.revision, script.module.__doc__ or "") for script in scripts][::-1]


def config_of(family: str) -> Config:
    """Return Alembic's configuration for a directory of `migrations/`.

    `env.py` in that directory lists the attributes it needs. Families that are not report files set
    their own attributes.
    """
    folder = resource_directory("migrations")
    config = Config()
    config.set_main_option("script_location", _literal(folder))
    config.set_main_option("version_locations", _literal(folder / family.replace("-", "_")))
    config.set_main_option("path_separator", "newline")
    return config


def _literal(value: object) -> str:
    return str(value).replace("%", "%%")


@contextmanager
def _connection(db: sqlite3.Connection) -> Iterator[Connection]:
    engine = create_engine("sqlite://", creator=lambda: db, poolclass=StaticPool)

    # The driver does not begin a transaction before DDL; this one covers a whole step.
    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.connect() as connection:
        yield connection


@contextmanager
def _version_table(connection: Connection, start: str | None) -> Iterator[None]:
    db = connection.connection.driver_connection
    assert isinstance(db, sqlite3.Connection)
    db.execute(f"ATTACH ':memory:' AS {_SCRATCH}")
    db.execute(f"CREATE TABLE {_SCRATCH}.alembic_version (version_num TEXT NOT NULL)")
    if start is not None:
        db.execute(f"INSERT INTO {_SCRATCH}.alembic_version VALUES (?)", (start,))
    try:
        yield
    finally:
        # After an error SQLAlchemy may have closed the database, which is discarded.
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.rollback()
            db.execute(f"DETACH {_SCRATCH}")


def _record(ctx: MigrationContext, step: MigrationInfo, **_: Any) -> None:
    """Write the version that a step has reached, within its transaction."""
    (revision,) = step.up_revision_ids
    version = catalogue.version_of(revision)
    if version is None:
        return
    values = dict(zip(VERSION_ROWS, (version, *version.split(".")), strict=True))
    assert ctx.connection is not None
    for name, value in {**values, REVISION_ROW: revision}.items():
        _set(ctx.connection, name, value)


def _set(connection: Connection, name: str, value: str) -> None:
    run = connection.exec_driver_sql
    duplicates = "rowid > (SELECT min(rowid) FROM META_DATA WHERE name = ?)"
    run(f"DELETE FROM META_DATA WHERE name = ? AND {duplicates}", (name, name))
    if not run("UPDATE META_DATA SET value = ? WHERE name = ?", (value, name)).rowcount:
        run("INSERT INTO META_DATA (name, value) VALUES (?, ?)", (name, value))
