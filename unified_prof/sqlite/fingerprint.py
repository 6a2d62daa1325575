"""Tables and columns declared in a database, and the msprof revision derived from them.

META_DATA has version 1.2.0 for five different schemas and no version for the oldest, so the
revision is derived from tables, columns and enum rows: first those in every file (enums,
HOST_INFO), then those that exist only if they have rows. The signs of each revision are computed
from the frozen schemas.

The files of all ranks of a run have the same schema, and querying the columns of every table takes
longer than reading a small table, so declarations are cached by the schema text.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from msgspec import Struct

from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import watch
from unified_prof.sqlite.statements import (
    MAX_TABLES,
    READ_ERRORS,
    TABLES,
    Declared,
    declared,
    quoted,
)

MAGIC = b"SQLite format 3\0"  # First bytes of every SQLite database.


def is_database(path: Path) -> bool:
    """Return True if a file starts with the SQLite header."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False  # a pipe and some files of /proc block
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def table_names(path: Path) -> frozenset[str]:
    """Return the names of the tables of a database; empty if it cannot be read.

    Does not wait for locks, does not change the file, and does not read a write-ahead log.
    """
    if not is_database(path):
        return frozenset()
    try:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            watch(db, steps=10_000_000)
            rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {MAX_TABLES}").fetchall()
        finally:
            db.close()
    except (*READ_ERRORS, OSError):
        return frozenset()
    return frozenset(str(name) for (name,) in rows)


_MAX_CACHED_SHAPES = 16
# Maximum length of a cached schema; those of reports have some ten thousand characters.
_MAX_CACHED_LENGTH = 1 << 18

# Excludes views and virtual tables, which may have endless rows.
_MASTER = (
    "SELECT name, sql, type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%',"
    " type IN ('table', 'view') FROM main.sqlite_master ORDER BY rowid"
)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The schema of a file; schemas with equal texts are one cached object."""

    tables: dict[str, tuple[Declared, ...]]  # Tables -> columns, both in the file's order.
    types: dict[str, dict[str, str]]  # Table -> column -> declared type in upper case.
    keys: frozenset[str]  # Tables with a declared primary key.
    statements: dict[str, str]  # Table -> its CREATE statement.
    not_tables: tuple[str, ...]  # Views and virtual tables.
    # Contents of small tables -> facts derived from them and the schema.
    contents: dict[tuple[object, ...], object] = field(default_factory=dict)
    # Family -> SQL of the views that give tables the newest shape, by table.
    views: dict[str, dict[str, str]] = field(default_factory=dict)


_shapes: OrderedDict[tuple[object, ...], Shape] = OrderedDict()
_lock = threading.Lock()


def shape(db: sqlite3.Connection) -> Shape:
    """Return the schema of the main database of a connection."""
    rows = tuple(db.execute(_MASTER).fetchall())
    with _lock:
        if (found := _shapes.get(rows)) is not None:
            _shapes.move_to_end(rows)
            return found
    found = _read(db, rows)
    if sum(len(str(sql)) for _, sql, _, _ in rows) <= _MAX_CACHED_LENGTH:
        with _lock:
            _shapes[rows] = found
            while len(_shapes) > _MAX_CACHED_SHAPES:
                _shapes.popitem(last=False)
    return found


def _read(db: sqlite3.Connection, rows: tuple[tuple[object, ...], ...]) -> Shape:
    statements = {
        str(name): str(sql)
        for name, sql, is_table, _ in rows
        if is_table and not str(name).startswith("sqlite_")
    }
    others = (str(name) for name, _, _, is_called_one in rows if is_called_one)
    tables = {name: tuple(declared(db, name)) for name in statements}
    return Shape(
        tables=tables,
        types={
            name: {column.name: column.type.upper() for column in columns}
            for name, columns in tables.items()
        },
        keys=frozenset(
            name
            for name, columns in tables.items()
            if any(column.primary_key for column in columns)
        ),
        statements=statements,
        not_tables=tuple(
            name for name in others if name not in statements and name[:7] != "sqlite_"
        ),
    )


# Tables of exporters before the first revision.
PREHISTORY_TABLES = frozenset(
    {"API", "TARGET_INFO_NPU", "TARGET_INFO_SESSION_TIME", "ENUM_API_LEVEL", "ENUM_NPU_MODULE"}
)

_ENUMS_AT_ONCE = 50
_MAX_CACHED_CONTENTS = 8
_MAX_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """Schema of a database, and the few rows that identify its revision."""

    # Table -> column -> declared type in upper case, both in the file's order.
    tables: Mapping[str, Mapping[str, str]]
    # Views and virtual tables, which are not read because they may have endless rows.
    not_tables: tuple[str, ...]
    keys: frozenset[str]  # Tables with a declared primary key.
    enums: dict[str, dict[int, str]]  # The contents of the ENUM_ tables.
    meta: tuple[tuple[str, str], ...]  # The rows of META_DATA on the schema, in the file's order.
    run: dict[str, str]  # The rows of UPROF_RUN: provenance that uprof recorded.
    user_version: int

    # Results of `match` for files with the same tables and enums.
    matches: dict[tuple[object, ...], Match] = field(default_factory=dict, compare=False)

    def has(self, table: str, *columns: str) -> bool:
        """Return True if the table exists and has all these columns."""
        return table in self.tables and all(c in self.tables[table] for c in columns)

    def enum_has(self, table: str, number: int, name: str | None = None) -> bool:
        """Return True if an enum table has this number (and this name, if given)."""
        found = self.enums.get(table, {}).get(number)
        return found is not None and name in (None, found)


def read_facts(db: sqlite3.Connection) -> Facts:
    """Read the facts; the cost does not depend on the number of recorded rows."""
    schema = shape(db)
    tables = schema.types
    known = _schema_facts(db, schema)
    return Facts(
        tables=tables,
        not_tables=schema.not_tables,
        keys=schema.keys,
        enums=known.enums,
        meta=_meta(db) if {"name", "value"} <= set(tables.get("META_DATA", ())) else (),
        run=_run(db) if {"name", "value"} <= set(tables.get("UPROF_RUN", ())) else {},
        user_version=int(db.execute("PRAGMA user_version").fetchone()[0]),
        matches=known.matches,
    )


@dataclass(frozen=True, slots=True)
class _SchemaFacts:
    """Facts shared by all files with the same schema and enums."""

    enums: dict[str, dict[int, str]]
    matches: dict[tuple[object, ...], Match] = field(default_factory=dict)


def _schema_facts(db: sqlite3.Connection, schema: Shape) -> _SchemaFacts:
    names = [
        table
        for table, columns in schema.types.items()
        if table.startswith("ENUM_") and {"id", "name"} <= set(columns)
    ]
    rows: list[tuple[object, ...]] = []
    for begin in range(0, len(names), _ENUMS_AT_ONCE):
        # Enums have at most a hundred rows; the limit is for malformed files.
        parts = (
            f"SELECT {begin + at}, id, name FROM (SELECT id, name FROM {quoted(table)} LIMIT 1000)"
            for at, table in enumerate(names[begin : begin + _ENUMS_AT_ONCE])
        )
        found_rows = db.execute(" UNION ALL ".join(parts)).fetchall()
        rows += [row for row in found_rows if isinstance(row[1], int)]  # 1.0 equals 1
    key = tuple(rows)
    found = schema.contents.get(key)
    if not isinstance(found, _SchemaFacts):
        enums: dict[str, dict[int, str]] = {name: {} for name in names}
        for at, number, name in rows:
            if isinstance(number, int) and isinstance(at, int):
                enums[names[at]][number] = str(name)
        found = _SchemaFacts(enums)
        if len(schema.contents) < _MAX_CACHED_CONTENTS and len(rows) < _MAX_ROWS:
            schema.contents[key] = found
    return found


def _meta(db: sqlite3.Connection) -> tuple[tuple[str, str], ...]:
    rows = db.execute(
        "SELECT name, value FROM META_DATA WHERE name LIKE 'SCHEMA^_VERSION%' ESCAPE '^'"
        " OR name = 'UPROF_SCHEMA_REVISION' LIMIT 100"
    )
    return tuple((str(name), str(value)) for name, value in rows)


def _run(db: sqlite3.Connection) -> dict[str, str]:
    rows = db.execute("SELECT name, value FROM UPROF_RUN LIMIT 1000")
    return {str(name): str(value) for name, value in rows}


class _Sign(Struct, frozen=True):
    """A table, column or enum row that does not occur in files before a revision."""

    words: str
    found: Callable[[Facts], bool]
    from_meta: bool = False


# Other programs add these to older files, so they are not signs.
_ADDED_BY_OTHERS = frozenset(
    {
        *("RANK_DEVICE_MAP", "HOST_INFO", "META_DATA", "ENUM_API_TYPE"),  # torch_npu
        *("OVERLAP_ANALYSIS", "COMMUNICATION_OP.opType"),  # MindStudio Insight
        *("COMPUTE_TASK_INFO.gridDim", "COMPUTE_TASK_INFO.blockDim"),
    }
)


def _text_uid(facts: Facts) -> bool:
    # torch_npu creates HOST_INFO (with TEXT) if an old msprof did not.
    is_text = facts.tables.get("HOST_INFO", {}).get("hostUid") == "TEXT"
    return is_text and facts.has("ENUM_MSTX_EVENT_TYPE")


# Signs that cannot be computed from the frozen schemas.
_FURTHER_SIGNS = {"1.0.0_20241008": (_Sign("HOST_INFO.hostUid is TEXT", _text_uid),)}


@cache
def _signs(revision: str) -> tuple[_Sign, ...]:
    """Return the signs of a revision: version, tables, columns and enum rows that it added."""
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    number = revisions.index(revision)
    if number == 0:
        return ()
    before, now = (catalogue.outline(revisions[n]) for n in (number - 1, number))
    signs: list[_Sign] = []
    version = catalogue.version_of(revision)
    if version is not None and version != catalogue.version_of(revisions[number - 1]):
        row = ("SCHEMA_VERSION", version)
        words = f"META_DATA has version {version}"
        signs.append(_Sign(words, lambda facts: row in facts.meta, from_meta=True))
    for name, columns in now.columns.items():
        if name in _ADDED_BY_OTHERS:
            continue
        old = before.columns.get(name, ())
        added = tuple(
            column
            for column in columns
            if column not in old and f"{name}.{column}" not in _ADDED_BY_OTHERS
        )
        if added:
            signs.append(_column_sign(name, added, is_new=not old))
        elif rows := now.constants.get(name, {}).items() - before.constants.get(name, {}).items():
            signs.append(_enum_sign(name, dict(sorted(rows))))
    return (*signs, *_FURTHER_SIGNS.get(revision, ()))


def _column_sign(table: str, columns: tuple[str, ...], *, is_new: bool) -> _Sign:
    words = f"{table} exists" if is_new else f"{table}.{columns[0]} exists"
    return _Sign(words, lambda facts: facts.has(table, *columns))


def _enum_sign(table: str, rows: dict[int, str]) -> _Sign:
    number, name = next(iter(rows.items()))
    return _Sign(
        f"{table} has {number} {name}",
        lambda facts: all(facts.enum_has(table, *row) for row in rows.items()),
    )


class Match(Struct, frozen=True):
    """Revision of a file as determined from its contents."""

    # The newest revision that has a sign in the file and all of its columns, or None.
    revision: str | None
    evidence: tuple[str, ...]  # The signs that determined the revision.
    # Newer revisions that differ only in tables that the file does not have.
    equivalent: tuple[str, ...] = ()
    # Signs of a newer revision whose other parts are missing in the file.
    newer_parts: tuple[str, ...] = ()
    # `TABLE.column` that the revision has and the file lacks; only when revision is None.
    missing: tuple[str, ...] = ()


def match(facts: Facts, *, trust_version: bool = True) -> Match:
    """Find the revision of a file from its contents alone.

    A file written by a build between two revisions counts as the older one, and `newer_parts` lists
    the parts of the newer one; migration can complete it. The same applies to a file whose
    META_DATA has a newer version than its tables. `trust_version` is True if the version in
    META_DATA counts as a sign.
    """
    key = (trust_version, facts.meta)
    found = facts.matches.get(key)
    if found is None:
        found = _matched(facts, trust_version=trust_version)
        if len(facts.matches) < _MAX_CACHED_CONTENTS:
            facts.matches[key] = found
    return found


def _matched(facts: Facts, *, trust_version: bool) -> Match:
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    newer: list[tuple[str, ...]] = []
    newest = ""
    # Newest first: most files have a recent revision.
    for revision in reversed(revisions):
        signs = _signs(revision)
        words = tuple(
            s.words for s in signs if (trust_version or not s.from_meta) and s.found(facts)
        )
        if not words and revision != revisions[0]:
            continue
        if not lacking(facts, revision):
            return Match(
                revision,
                words or ("no sign of any newer revision",),
                () if newer else _equivalent(facts, revision),
                tuple(word for part in reversed(newer) for word in part),
            )
        newer.append(words)
        newest = newest or revision
    return Match(None, newer[0], missing=lacking(facts, newest))


def lacking(facts: Facts, revision: str) -> tuple[str, ...]:
    """Return the columns of `revision`, as `TABLE.column`, that the file's tables lack."""
    spec = catalogue.load(catalogue.MSPROF, revision)
    return tuple(
        f"{name}.{column}"
        for name, table in spec.tables.items()
        if name in facts.tables
        for column in table.column_names
        if column not in facts.tables[name]
    )


def _equivalent(facts: Facts, revision: str) -> tuple[str, ...]:
    """Return the later revisions that differ from `revision` only in tables missing in the file."""
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    # If a file has all tables that msprof always writes, it would also have new tables of this
    # kind. Other producers leave tables out, so the absence of a table proves nothing.
    is_complete = _always(revision) <= facts.tables.keys()
    found = []
    columns = _shape(facts, revision, is_complete=is_complete)
    for other in revisions[revisions.index(revision) + 1 :]:
        if _shape(facts, other, is_complete=is_complete) != columns:
            break
        found.append(other)
    return tuple(found)


def _always(revision: str) -> set[str]:
    spec = catalogue.load(catalogue.MSPROF, revision)
    return {*(catalogue.ALWAYS_PRESENT & spec.tables.keys()), *spec.enum_tables}


def _shape(facts: Facts, revision: str, *, is_complete: bool) -> tuple[object, ...]:
    """Return the columns that a revision has in the tables of the file."""
    spec = catalogue.load(catalogue.MSPROF, revision)
    counted = facts.tables.keys() | (_always(revision) if is_complete else set())
    tables = {name: t.columns for name, t in spec.tables.items() if name in counted}
    rows = {name: spec.rows[name] for name in spec.enum_tables if name in counted}
    return spec.schema_version if "META_DATA" in counted else None, tables, rows
