"""The baseline store: named, versioned runs in SQLite or, by URL, in PostgreSQL.

Every method is one transaction. Saving only ever inserts: concurrent writers cannot lose each
other's entries. They number them one after the other, under a lock where the database has one, and
the table refuses a number that was given before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session, defer

from unified_prof.baselines.model import Baseline
from unified_prof.errors import OutputError, StoreError, UsageError
from unified_prof.redaction import redact
from unified_prof.version import VERSION

MAX_NAME = 200
WRITE = "uprof_write"
"""Execution option of a connection whose transactions write."""

_BUSY_SECONDS = 30
_ATTEMPTS = 20
"""Of saving, where other writers are faster and the database has no lock that is known here."""
_LOCK_SPACE = 0x7570726F
"""First of two numbers of PostgreSQL's locks: nobody else's, it is to be hoped."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of one baseline, without its samples."""

    name: str
    version: int
    """From 1, counted per name."""
    saved_at: datetime
    """UTC."""
    label: str
    uprof_version: str
    device: str | None
    commit: str | None
    samples: int


@dataclass(frozen=True, slots=True)
class NewBaseline:
    """What to save."""

    name: str
    label: str
    document: bytes
    device: str | None
    commit: str | None
    samples: int


class BaselineStore:
    """An open store whose schema is up to date; `unified_prof.baselines.migrate` opens it."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self.place = place
        """The file, or the URL without its password."""

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def save(self, new: NewBaseline) -> Entry:
        """Add a version of a baseline and return it.

        Raises:
            UsageError: the name is empty, too long or has control characters.
            StoreError: the store cannot be reached or written.
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

        Raises:
            IntegrityError: another writer was faster, in a database that takes no lock of ours.
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
        """Return every version of every baseline (of one, if named), oldest first."""
        query = select(Baseline).order_by(Baseline.id)
        if name is not None:
            query = query.where(Baseline.name == name)
        with self._session() as session:
            return [_entry(row) for row in session.scalars(query.options(defer(Baseline.document)))]

    def document(self, name: str, version: int | None = None) -> tuple[Entry, bytes]:
        """Return the newest version of a baseline, or the one asked for.

        Raises:
            UsageError: there is none of that name or version; the hint lists what there is.
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
            f"{self.place} has no baseline {name!r}", hint=f"there are: {names}", slug="no-baseline"
        )

    @contextmanager
    def _session(
        self, *, write: bool = False, tell: type[SQLAlchemyError] | None = None
    ) -> Iterator[Session]:
        """Yield a session of one transaction; errors of kind `tell` leave it as they are."""
        engine = self._engine.execution_options(**{WRITE: write})
        with translated(self.place, tell=tell), Session(engine) as session, session.begin():
            yield session


def engine_for(store: str) -> tuple[Engine, str]:
    """Return an engine for a store and what to call it in messages.

    Args:
        store: the path of an SQLite file, or a SQLAlchemy URL such as
            `postgresql+psycopg://user@host/database`.

    Raises:
        UsageError: the URL cannot be understood.
        StoreError: the driver that it names is not installed.
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
            hint="pip install 'unified-prof[postgres]'",
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
            f"the store's URL cannot be understood: {redact(str(err))}",
            hint="such as postgresql+psycopg://user@host/database",
            slug="store-unusable",
        ) from None


def _make_sqlite_transactional(engine: Engine) -> None:
    """Take the write lock at the start of each transaction that writes, and wait for others.

    Without that, two writers that both began by reading deadlock, and one is refused at once.
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
    """Turn what a database says into errors that name the store, but for those of kind `tell`.

    Raises:
        StoreError: it cannot be reached, read or written.
        OutputError: its disk is full or its place read-only.
    """
    try:
        yield
    except SQLAlchemyError as err:
        if tell is not None and isinstance(err, tell):
            raise
        reason = redact(str(getattr(err, "orig", None) or err).strip().splitlines()[0])
        if "readonly" in reason or "full" in reason:
            raise OutputError(
                f"the store {place} cannot be written: {reason}", slug="store-unusable"
            ) from err
        raise StoreError(
            f"the store {place} cannot be used: {reason}", slug="store-unusable"
        ) from err


def _entry(row: Baseline) -> Entry:
    saved_at = row.saved_at
    if saved_at.tzinfo is None:  # SQLite keeps no time zone; what is stored is UTC
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
