"""Baseline store: named, versioned runs in SQLite or PostgreSQL.

Saving under an existing name adds a version; nothing is overwritten. Every method is one
transaction that only inserts, so concurrent writers cannot lose entries. Versions are numbered
under a lock if the database has one, and a unique constraint rejects a number in use. Opening a
store upgrades its schema.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec import Struct
from sqlalchemy import (
    URL,
    Connection,
    DateTime,
    Engine,
    LargeBinary,
    NullPool,
    String,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, defer, mapped_column

from unified_prof.base.redaction import redact
from unified_prof.errors import (
    OutputError,
    SchemaVersionError,
    StoreError,
    UsageError,
    system_errors,
)
from unified_prof.migrate.runner import config_of
from unified_prof.version import VERSION


class BaselineBase(DeclarativeBase):
    """Registry of the baseline store's tables."""


class Baseline(BaselineBase):
    """One version of one baseline."""

    __tablename__ = "uprof_baselines"
    id: Mapped[int] = mapped_column(
        primary_key=True,
        autoincrement=True,
        doc="increases with every save, in the order in which saves started",
    )
    name: Mapped[str] = mapped_column(String(200), doc="name given by the user")
    version: Mapped[int] = mapped_column(doc="counted from 1 per name; never reused")
    saved_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), doc="time of saving, UTC")
    label: Mapped[str] = mapped_column(Text, doc="report files of the run")
    uprof_version: Mapped[str] = mapped_column(String(50), doc="version of uprof that saved it")
    device: Mapped[str | None] = mapped_column(Text, doc="device of the run, if known")
    commit: Mapped[str | None] = mapped_column(
        "git_commit", String(64), doc="commit of the profiled project, if known"
    )
    samples: Mapped[int] = mapped_column(doc="number of measured iterations or files")
    document: Mapped[bytes] = mapped_column(
        LargeBinary, doc="the run, encoded by unified_prof.baselines.api"
    )

    __table_args__ = (UniqueConstraint("name", "version", name="uprof_baselines_name_version"),)


MAX_NAME = 200
# Execution option of connections with writing transactions.
WRITE = "uprof_write"
_BUSY_SECONDS = 30
_ATTEMPTS = 20  # Maximum attempts to save if other writers take the version number first.
# First of the two numbers of a PostgreSQL advisory lock; arbitrary, to avoid collisions.
_LOCK_SPACE = 0x7570726F


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of one baseline, without its samples."""

    name: str
    version: int  # Counted from 1 per name.
    # UTC.
    saved_at: datetime
    label: str
    uprof_version: str
    device: str | None
    commit: str | None
    samples: int


class NewBaseline(Struct, frozen=True):
    """Version of a baseline to save."""

    name: str
    label: str
    document: bytes
    device: str | None
    commit: str | None
    samples: int


class BaselineStore:
    """Open store with the current schema; see `open_store`."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        # Path of the file, or URL without the password.
        self.place = place

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def save(self, new: NewBaseline) -> Entry:
        """Add a version of a baseline and return it.

        Raises UsageError if the name is empty, too long or has control characters, and StoreError
        if the store cannot be reached or written.
        """
        if not new.name.strip() or len(new.name) > MAX_NAME or not new.name.isprintable():
            raise UsageError(
                f"{new.name[:50]!r} is not a valid name for a baseline",
                hint=f"a name has 1 to {MAX_NAME} printable characters",
                slug="wrong-baseline-name",
            )
        for _ in range(_ATTEMPTS - 1):
            with suppress(IntegrityError):
                return self._insert(new)
        with translated(self.place):
            return self._insert(new)

    def _insert(self, new: NewBaseline) -> Entry:
        """Add the next version.

        Raises IntegrityError if another writer took the number, in a database without a lock.
        """
        with self._session(write=True, tell=IntegrityError) as session:
            if session.get_bind().dialect.name == "postgresql":
                lock = select(func.pg_advisory_xact_lock(_LOCK_SPACE, func.hashtext(new.name)))
                session.execute(lock)
            newest = select(func.max(Baseline.version)).where(Baseline.name == new.name)
            row = Baseline(
                name=new.name,
                version=(session.execute(newest).scalar_one() or 0) + 1,
                saved_at=datetime.now(timezone.utc),
                label=new.label,
                uprof_version=VERSION,
                device=new.device,
                commit=new.commit,
                samples=new.samples,
                document=new.document,
            )
            session.add(row)
            session.flush()
            return _entry(row)

    def entries(self, name: str | None = None) -> list[Entry]:
        """Return all versions of all baselines, or of one, oldest first."""
        query = select(Baseline).order_by(Baseline.id)
        if name is not None:
            query = query.where(Baseline.name == name)
        with self._session() as session:
            return [_entry(row) for row in session.scalars(query.options(defer(Baseline.document)))]

    def document(self, name: str, version: int | None = None) -> tuple[Entry, bytes]:
        """Return a version of a baseline; by default the newest.

        Raises:
            UsageError: There is no such baseline or version; the hint lists those available.
        """
        with self._session() as session:
            query = select(Baseline).where(Baseline.name == name)
            if version is not None:
                query = query.where(Baseline.version == version)
            newest_first = query.order_by(Baseline.version.desc()).limit(1)
            row = session.scalars(newest_first).one_or_none()
            if row is None:
                raise self._unknown(session, name, version)
            return _entry(row), row.document

    def _unknown(self, session: Session, name: str, version: int | None) -> UsageError:
        newest = func.max(Baseline.version)
        query = select(Baseline.name, newest).group_by(Baseline.name).order_by(Baseline.name)
        known = {str(row[0]): int(row[1]) for row in session.execute(query)}
        if name in known:
            return UsageError(
                f"baseline {name!r} in {self.place} has no version {version}",
                hint=f"its newest version is {known[name]}; "
                f"`uprof baseline show {name}` lists them all",
                slug="no-baseline",
            )
        names = ", ".join(list(known)[:20]) or "none; save one with `uprof baseline save`"
        return UsageError(
            f"{self.place} has no baseline {name!r}", hint=f"baselines: {names}", slug="no-baseline"
        )

    @contextmanager
    def _session(
        self, *, write: bool = False, tell: type[SQLAlchemyError] | None = None
    ) -> Iterator[Session]:
        """Yield a session of one transaction; errors of type `tell` are not translated."""
        engine = self._engine.execution_options(**{WRITE: write})
        with translated(self.place, tell=tell), Session(engine) as session, session.begin():
            yield session


def engine_for(store: str) -> tuple[Engine, str]:
    """Return an engine for a store, and its name for messages.

    A store is the path of an SQLite file, or a SQLAlchemy URL such as
    `postgresql+psycopg://user@host/database`. Raises UsageError if the URL is not valid, and
    StoreError if the driver is not installed.
    """
    url = _url(store)
    place = url.database or store
    if url.get_backend_name() != "sqlite":
        place = redact(url.render_as_string(hide_password=True))
    try:
        engine = create_engine(url, poolclass=NullPool)
    except ModuleNotFoundError as err:
        raise StoreError(
            f"the store {place} needs the Python package {err.name}",
            hint="run `pip install 'unified-prof[postgres]'`",
            slug="missing-package",
        ) from err
    except (NoSuchModuleError, ArgumentError) as err:
        raise UsageError(
            f"the store {place} cannot be used: {redact(str(err))}", slug="store-unusable"
        ) from err
    if url.get_backend_name() == "sqlite":
        _make_sqlite_transactional(engine)
    return engine, place


def _url(store: str) -> URL:
    if "://" not in store:
        return URL.create("sqlite", database=str(Path(store)))
    try:
        return make_url(store)
    except (ArgumentError, ValueError) as err:
        raise UsageError(
            f"the URL of the store is not valid: {redact(str(err))}",
            hint="for example postgresql+psycopg://user@host/database",
            slug="store-unusable",
        ) from None


def _make_sqlite_transactional(engine: Engine) -> None:
    """Make writing transactions take the write lock at their start and wait for others.

    Otherwise two writers that start by reading deadlock, and one fails at once.
    """

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(WRITE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def translated(place: str, *, tell: type[SQLAlchemyError] | None = None) -> Iterator[None]:
    """Turn database errors, except those of type `tell`, into errors that name the store.

    Raises StoreError if the store cannot be reached, read or written, and OutputError if the disk
    is full or the store is read-only.
    """
    try:
        yield
    except SQLAlchemyError as err:
        if tell is not None and isinstance(err, tell):
            raise
        reason = redact(str(getattr(err, "orig", None) or err).strip().splitlines()[0])
        kind = getattr(getattr(err, "orig", None), "sqlite_errorname", "")  # since Python 3.11
        if "readonly" in reason or "full" in reason or kind == "SQLITE_IOERR_WRITE":
            raise OutputError(
                f"the store {place} cannot be written: {reason}", slug="store-unusable"
            ) from err
        raise StoreError(
            f"the store {place} cannot be used: {reason}", slug="store-unusable"
        ) from err


def _entry(row: Baseline) -> Entry:
    saved_at = row.saved_at
    if saved_at.tzinfo is None:  # SQLite stores no time zone; values are UTC
        saved_at = saved_at.replace(tzinfo=timezone.utc)
    return Entry(
        name=row.name,
        version=row.version,
        saved_at=saved_at,
        label=row.label,
        uprof_version=row.uprof_version,
        device=row.device,
        commit=row.commit,
        samples=row.samples,
    )


FAMILY = "baseline"
_VERSION_TABLE = "uprof_baselines_version"
# Number of the PostgreSQL advisory lock of migrations; arbitrary, to avoid collisions.
_ADVISORY_LOCK = 0x7570726F66


def open_store(store: str, *, create: bool) -> BaselineStore:
    """Open a store, given as a file or a URL, and upgrade its schema.

    If `create`, the file and the tables are created if they are missing. Raises UsageError if the
    URL is not valid, StoreError if the store cannot be reached, is not a baseline store, or is
    missing, SchemaVersionError if it was written by a newer uprof, and OutputError if it cannot be
    created.
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
            f"the store {path} is a directory, expected an SQLite file", slug="not-a-store"
        )
    if path.exists():
        return
    if not create:
        raise StoreError(
            f"there is no baseline store {path}",
            hint="`uprof baseline save` creates it",
            slug="no-store",
        )
    with system_errors(OutputError, f"the store {path} cannot be created", slug="store-unusable"):
        path.parent.mkdir(parents=True, exist_ok=True)


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
            # Another process may have upgraded it while this one waited for the lock.
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
    """Raise an error if this is another database, not a store, or written by a newer uprof."""
    if current is None:
        if inspect(connection).get_table_names() and connection.dialect.name == "sqlite":
            raise StoreError(
                f"{place} is another database, not a baseline store", slug="not-a-store"
            )
        if not create:
            raise StoreError(
                f"{place} is not a baseline store",
                hint="`uprof baseline save` creates it",
                slug="no-store",
            )
        return
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current not in known:
        raise SchemaVersionError(
            f"the store {place} is at version {current}, this version reads {', '.join(known)}",
            hint="upgrade uprof",
            slug="other-version",
        )
