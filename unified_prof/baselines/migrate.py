"""Opens the baseline store and brings its schema up to date."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from unified_prof.baselines.store import WRITE, BaselineStore, engine_for, translated
from unified_prof.errors import OutputError, SchemaVersionError, StoreError
from unified_prof.migrate.runner import config_of

FAMILY = "baseline"
_VERSION_TABLE = "uprof_baselines_version"
# Any number that nobody else locks with; only one process at a time migrates a PostgreSQL store.
_ADVISORY_LOCK = 0x7570726F66


def open_store(store: str, *, create: bool) -> BaselineStore:
    """Open a store, given as a file or a URL; `create` makes the file and the tables.

    Raises:
        UsageError: the URL cannot be understood.
        StoreError: it cannot be reached, is something else, or is not there and not to be made.
        SchemaVersionError: it was made by a newer build.
        OutputError: it cannot be made.
    """
    engine, place = engine_for(store)
    try:
        if engine.dialect.name == "sqlite":
            _prepare_file(Path(place), create=create)
        _bring_up_to_date(engine, place, create=create)
    except BaseException:
        engine.dispose()
        raise
    return BaselineStore(engine, place)


def _prepare_file(path: Path, *, create: bool) -> None:
    if path.is_dir():
        raise StoreError(
            f"the store {path} is a folder, expected an SQLite file", slug="not-a-store"
        )
    if path.exists():
        return
    if not create:
        raise StoreError(
            f"there is no baseline store {path}",
            hint="`uprof baseline save` creates it",
            slug="no-store",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise OutputError(
            f"the store {path} cannot be made: {err.strerror}", slug="store-unusable"
        ) from err


def _bring_up_to_date(engine: Engine, place: str, *, create: bool) -> None:
    config = config_of(FAMILY)
    head = ScriptDirectory.from_config(config).get_current_head()
    with translated(place), engine.connect() as connection:
        with connection.begin():
            if _current(connection) == head:
                return
        connection = connection.execution_options(**{WRITE: True})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            # Another process may have done it while this one waited for the lock.
            current = _current(connection)
            if current == head:
                return
            _refuse(connection, place, current, config, create=create)
            config.attributes["connection"] = connection
            config.attributes["configure"] = {"version_table": _VERSION_TABLE}
            command.upgrade(config, "head")


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
    current = context.get_current_revision()
    return None if current is None else str(current)


def _refuse(
    connection: Connection, place: str, current: str | None, config: Config, *, create: bool
) -> None:
    """Refuse what must not be migrated: somebody else's database, or a newer build's store."""
    if current is None:
        if inspect(connection).get_table_names() and connection.dialect.name == "sqlite":
            raise StoreError(
                f"{place} is a database of something else, not a baseline store", slug="not-a-store"
            )
        if not create:
            raise StoreError(
                f"{place} holds no baseline store",
                hint="`uprof baseline save` creates it",
                slug="no-store",
            )
        return
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current not in known:
        raise SchemaVersionError(
            f"the store {place} is at version {current}, this build knows {', '.join(known)}",
            hint="upgrade uprof",
            slug="other-version",
        )
