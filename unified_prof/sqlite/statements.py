"""SQLite utilities: quoting, declared columns, connections to new files, errors, output blocks."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from msgspec import Struct

from unified_prof.errors import OutputError, StoreError
from unified_prof.sqlite.atomic import output_error, raise_kept, watch

# The driver raises UnicodeDecodeError if SQLite's message quotes bytes of a damaged file, and until
# Python 3.12 a Warning for two statements in one.
READ_ERRORS = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)

_UNFINISHED = (
    "PRAGMA journal_mode = DELETE",  # leave WAL mode, which a copied file keeps
    # No other process uses the file, and it is discarded if anything fails: no journal, and no
    # flush to disk, which `atomic` does once, at the end.
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA secure_delete = OFF",
)
_CACHED_STATEMENTS = 100  # a statement of many rows takes some 200 kB


def quoted(name: str) -> str:
    """Return the name of a table or column quoted for a statement."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class Declared(Struct, frozen=True):
    """Declaration of a column in a file."""

    name: str
    type: str  # Declared type; empty if there is none.
    not_null: bool
    default: str | None  # SQL of its default value.
    primary_key: int  # Position in the primary key from 1, or 0.


def declared(db: sqlite3.Connection, table: str) -> list[Declared]:
    """Return the columns of a table in order; empty if the table does not exist."""
    rows = db.execute(f"PRAGMA main.table_info({quoted(table)})").fetchall()
    return [
        Declared(str(name), str(kind), bool(not_null), default, int(key))
        for _, name, kind, not_null, default, key in rows
    ]


_ROW_ID_NAMES = ("rowid", "oid", "_rowid_")


def row_id_name(columns: Collection[str]) -> str | None:
    """Return a name for the row ids of a table that is not also the name of a column.

    Return None if all three possible names are columns.
    """
    known = {name.lower() for name in columns}
    return next((name for name in _ROW_ID_NAMES if name not in known), None)


# Views and virtual tables may compute endless rows.
# Subquery for the ordinary tables of a file.
TABLES = (
    "(SELECT name, sql, rowid FROM main.sqlite_master"
    " WHERE type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%')"
)
MAX_TABLES = 100_000  # Maximum number of tables read of a file of another program.


def open_unfinished(path: Path, *, alone: bool = True) -> sqlite3.Connection:
    """Return a connection to a new file that no other process uses, without crash safety.

    Transactions are explicit, so that they include DDL. `alone` is True if only this connection
    writes to the file.
    """
    db = sqlite3.connect(path, isolation_level=None, cached_statements=_CACHED_STATEMENTS)
    try:
        for setting in _UNFINISHED:
            db.execute(setting)
        if alone:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
    except BaseException:
        db.close()
        raise
    watch(db)
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one transaction of a new file; if it raises, the file is unusable."""
    db.execute("BEGIN")
    yield
    db.execute("COMMIT")


def parameter_limit(db: sqlite3.Connection) -> int:
    """Return the maximum number of values per statement."""
    if not hasattr(db, "getlimit"):  # Python 3.10: SQLite's defaults
        return 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
    return db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert SQLite's errors in the block to StoreError with `path`."""
    try:
        yield
    except READ_ERRORS as err:
        raise_kept()
        raise read_error(path, err) from err


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the system in the block to uprof's errors with `path`.

    Raises OutputError if the file cannot be written, for example because the disk is full or
    read-only, and StoreError if another process is writing the file, or SQLite rejects a row
    (duplicate key).
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError) as err:
        raise_kept()
        if is_locked(err):
            raise read_error(path, err) from err
        raise output_error(path, err) from err
    except sqlite3.Error as err:
        raise StoreError(f"{path} cannot be written: {err}", slug="cannot-write") from err


def upgrade_error(
    path: Path, output: Path, steps: str, err: Exception
) -> StoreError | OutputError | None:
    """Return the error for a `path` that cannot be upgraded to `output`, None if `err` is a bug.

    `steps` is the attempted upgrade, such as `from 1.1.0 to 1.2.0`. The exception may be from
    SQLAlchemy, which is not imported here.
    """
    raise_kept()
    cause = getattr(err, "orig", None) or err
    if isinstance(cause, OSError):
        return output_error(output, cause)
    if not isinstance(cause, READ_ERRORS):
        return None
    text = str(cause)
    if isinstance(cause, sqlite3.Error) and any(
        words in text for words in ("is full", "readonly", "disk I/O")
    ):
        return output_error(output, cause)
    if _is_damage(text):
        return read_error(path, cause)
    return StoreError(
        f"{path} could not be upgraded {steps}: {text}",
        hint="the file is unchanged; check it with: uprof db check",
        slug="not-upgradable",
    )


def read_error(path: Path, err: Exception) -> StoreError:
    """Return the error for a `path` that cannot be read."""
    if is_locked(err):
        return StoreError(
            f"{path} is being written by another process",
            hint="try again when that process has finished",
            slug="in-use",
        )
    text = str(err)
    if isinstance(err, UnicodeDecodeError):
        text = err.object.decode("utf-8", "backslashreplace")
    text = text or "malformed (SQLite's error message is not valid text)"  # Python 3.10
    if _is_damage(text) or "disk I/O" in text:
        return StoreError(
            f"{path} is damaged: {text}",
            hint=recovery_command(path),
            slug="damaged-file",
        )
    if "interrupted" in text:
        return StoreError(
            f"{path} is suspicious: reading its smallest tables takes too long",
            hint=f"inspect it: `sqlite3 {quote(str(path))} .schema`",
            slug="too-slow-to-read",
        )
    return StoreError(f"cannot read {path}: {text}", slug="cannot-read")


def recovery_command(path: Path) -> str:
    """Return a hint with the command that copies what is readable of a damaged database.

    Many builds of the shell lack `.recover`, and `.dump` ends with ROLLBACK after an error.
    """
    recovered = path.with_name(f"{path.stem}.recovered.db")
    keep = "sed 's/^ROLLBACK.*/COMMIT;/'"
    command = f"sqlite3 {quote(str(path))} .dump | {keep} | sqlite3 {quote(str(recovered))}"
    return f"try to recover it: `{command}`"


def is_locked(err: Exception) -> bool:
    """Return True if another process holds the lock of the file."""
    return isinstance(err, sqlite3.Error) and "locked" in str(err)


def _is_damage(text: str) -> bool:
    return "not a database" in text or "malformed" in text


class Block(ABC):
    """Base class of context managers that write a file; if the block raises, no file is written."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._close()

    @abstractmethod
    def _finish(self) -> None:
        """Give the written file its final name."""

    @abstractmethod
    def _close(self) -> None:
        """Close everything, and remove the file if it does not have its final name."""
