"""Which tables a file has that may be a database: a look, for those who ask of every file.

What a database declares: its tables and their columns.

Ranks of one run are files of one schema, and asking SQLite for the columns of every table takes
longer than reading a small one of them. So what the same statements declare is kept.

Tells which revision of the msprof schema a file has from what is in it.

META_DATA says 1.2.0 for five different schemas and nothing at all for the oldest, so the
revision is read off tables, columns and enum rows: first those that every file has (enums,
HOST_INFO), then those that exist only where something was recorded. What tells a revision from the
one before is derived from their frozen texts.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import watch
from unified_prof.sqlite.statements import (
    MOST_TABLES,
    READ_ERRORS,
    TABLES,
    Declared,
    declared,
    quoted,
)

MAGIC = b"SQLite format 3\0"
"""How every database begins."""


def is_database(path: Path) -> bool:
    """Whether a file begins as SQLite databases do; no other file can be one."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def table_names(path: Path) -> frozenset[str]:
    """Return the tables of a database; none where it has none or cannot be read.

    A look that leaves no trace and waits for nobody: a log beside the file is not looked into.
    """
    if not is_database(path):
        return frozenset()
    try:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            watch(db, steps=10_000_000)
            rows = db.execute(f"SELECT name FROM {TABLES} LIMIT {MOST_TABLES}").fetchall()
        finally:
            db.close()
    except (*READ_ERRORS, OSError):
        return frozenset()
    return frozenset(str(name) for (name,) in rows)


_KEPT = 16
_LONGEST = 1 << 18
"""Characters of a schema that is kept; those of reports have some tens of thousands."""

_MASTER = (
    "SELECT name, sql, type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE%',"
    " type IN ('table', 'view') FROM main.sqlite_master ORDER BY rowid"
)
"""Rows of what is called a table and is none (a view, a virtual table) may be without end."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The schema of a file; whoever asks for one of the same text gets the same object."""

    tables: dict[str, tuple[Declared, ...]]
    """Tables that are made of rows -> their columns, both in the file's order."""

    types: dict[str, dict[str, str]]
    """The same tables -> column -> declared type in upper case."""

    keys: frozenset[str]
    """Those with a declared primary key."""

    statements: dict[str, str]
    """The same tables -> what they were created with."""

    not_tables: tuple[str, ...]
    """Views and virtual tables."""

    contents: dict[tuple[object, ...], object] = field(default_factory=dict)
    """Contents of small tables -> what was derived of them and the schema (`fingerprint`)."""

    views: dict[tuple[str, frozenset[str] | None], list[str]] = field(default_factory=dict)
    """Family and the tables that were asked for -> SQL of what gives them their newest shape."""


_shapes: OrderedDict[tuple[object, ...], Shape] = OrderedDict()
_alone = threading.Lock()


def shape(db: sqlite3.Connection) -> Shape:
    """Return what the main database of a connection declares."""
    rows = tuple(db.execute(_MASTER).fetchall())
    with _alone:
        if (found := _shapes.get(rows)) is not None:
            _shapes.move_to_end(rows)
            return found
    found = _read(db, rows)
    if sum(len(str(sql)) for _, sql, _, _ in rows) <= _LONGEST:
        with _alone:
            _shapes[rows] = found
            while len(_shapes) > _KEPT:
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


PREHISTORY_TABLES = frozenset(
    {"API", "TARGET_INFO_NPU", "TARGET_INFO_SESSION_TIME", "ENUM_API_LEVEL", "ENUM_NPU_MODULE"}
)
"""Tables that only exporters before the first revision wrote."""


_ENUMS_AT_ONCE = 50
_KEPT_FINGERPRINT = 8
_MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """What a database declares, and the few rows that tell revisions apart."""

    tables: Mapping[str, Mapping[str, str]]
    """Table -> column -> declared type in upper case, both in the file's order."""

    not_tables: tuple[str, ...]
    """Views and virtual tables: they may compute without end, so nothing is read from them."""

    keys: frozenset[str]
    """Tables with a declared primary key."""

    enums: dict[str, dict[int, str]]
    """The contents of the ENUM_ tables."""

    meta: tuple[tuple[str, str], ...]
    """The rows of META_DATA whose names speak of the schema, in the file's order."""

    run: dict[str, str]
    """The rows of UPROF_RUN: what uprof wrote about how the file came to be."""

    user_version: int

    matches: dict[tuple[object, ...], Match] = field(default_factory=dict, compare=False)
    """What `match` said of files with the same tables and enums."""

    def has(self, table: str, *columns: str) -> bool:
        """Say whether the table is there with all these columns."""
        return table in self.tables and all(c in self.tables[table] for c in columns)

    def enum_has(self, table: str, number: int, name: str | None = None) -> bool:
        """Say whether an enum table has this number, under this name if one is given."""
        found = self.enums.get(table, {}).get(number)
        return found is not None and name in (None, found)


def read_facts(db: sqlite3.Connection) -> Facts:
    """Collect the facts; the cost does not grow with the number of recorded rows."""
    schema = shape(db)
    tables = schema.types
    known = _known(db, schema)
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


def _is_enum(table: str, columns: Mapping[str, str]) -> bool:
    return table.startswith("ENUM_") and {"id", "name"} <= set(columns)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is the same in all files of a schema with the same enums."""

    enums: dict[str, dict[int, str]]
    matches: dict[tuple[object, ...], Match] = field(default_factory=dict)


def _known(db: sqlite3.Connection, schema: Shape) -> _Known:
    names = [table for table, columns in schema.types.items() if _is_enum(table, columns)]
    rows: list[tuple[object, ...]] = []
    for begin in range(0, len(names), _ENUMS_AT_ONCE):
        # A real enum has at most a hundred rows; the limit keeps a freak file from costing time.
        parts = (
            f"SELECT {begin + at}, id, name FROM (SELECT id, name FROM {quoted(table)} LIMIT 1000)"
            for at, table in enumerate(names[begin : begin + _ENUMS_AT_ONCE])
        )
        found_rows = db.execute(" UNION ALL ".join(parts)).fetchall()
        rows += [row for row in found_rows if isinstance(row[1], int)]  # 1.0 equals 1
    key = tuple(rows)
    found = schema.contents.get(key)
    if not isinstance(found, _Known):
        enums: dict[str, dict[int, str]] = {name: {} for name in names}
        for at, number, name in rows:
            if isinstance(number, int) and isinstance(at, int):
                enums[names[at]][number] = str(name)
        found = _Known(enums)
        if len(schema.contents) < _KEPT_FINGERPRINT and len(rows) < _MOST_ROWS:
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


@dataclass(frozen=True, slots=True)
class _Sign:
    """Something no file older than a revision has."""

    words: str
    found: Callable[[Facts], bool]
    from_meta: bool = False


# What others put into older files, and so is a sign of nothing.
_ADDED_BY_OTHERS = frozenset(
    {
        *("RANK_DEVICE_MAP", "HOST_INFO", "META_DATA", "ENUM_API_TYPE"),  # torch_npu
        *("OVERLAP_ANALYSIS", "COMMUNICATION_OP.opType"),  # MindStudio Insight
        *("COMPUTE_TASK_INFO.gridDim", "COMPUTE_TASK_INFO.blockDim"),
    }
)


def _text_uid(facts: Facts) -> bool:
    # torch_npu makes HOST_INFO itself, with TEXT, where an old msprof made none.
    is_text = facts.tables.get("HOST_INFO", {}).get("hostUid") == "TEXT"
    return is_text and facts.has("ENUM_MSTX_EVENT_TYPE")


# What the frozen texts cannot say by themselves.
_FURTHER_SIGNS = {"1.0.0_20241008": (_Sign("HOST_INFO.hostUid is TEXT", _text_uid),)}


@cache
def _signs(revision: str) -> tuple[_Sign, ...]:
    """Return what tells a revision from the one before: version, tables, columns, enum rows."""
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    number = revisions.index(revision)
    if number == 0:
        return ()
    before, now = (catalogue.outline(revisions[n]) for n in (number - 1, number))
    signs: list[_Sign] = []
    version = catalogue.version_of(revision)
    if version is not None and version != catalogue.version_of(revisions[number - 1]):
        signs.append(_version_sign(version))
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


def _version_sign(version: str) -> _Sign:
    def found(facts: Facts) -> bool:
        return ("SCHEMA_VERSION", version) in facts.meta

    return _Sign(f"META_DATA says {version}", found, from_meta=True)


def _column_sign(table: str, columns: tuple[str, ...], *, is_new: bool) -> _Sign:
    words = f"{table} is there" if is_new else f"{table}.{columns[0]} is there"
    return _Sign(words, lambda facts: facts.has(table, *columns))


def _enum_sign(table: str, rows: dict[int, str]) -> _Sign:
    number, name = next(iter(rows.items()))
    return _Sign(
        f"{table} has {number} {name}",
        lambda facts: all(facts.enum_has(table, *row) for row in rows.items()),
    )


@dataclass(frozen=True, slots=True)
class Match:
    """What the fingerprint says."""

    revision: str | None
    """The newest revision that the file shows a sign of and has every column of, or None."""

    evidence: tuple[str, ...]
    """The signs that decided."""

    equivalent: tuple[str, ...] = ()
    """Newer revisions that this file cannot be told from, because what differs is absent."""

    newer_parts: tuple[str, ...] = ()
    """Signs of a newer revision that the file reached only in part."""

    missing: tuple[str, ...] = ()
    """`TABLE.column` that the revision has and the file lacks; only when revision is None."""


def match(facts: Facts, *, trust_version: bool = True) -> Match:
    """Find the revision of a file from its contents alone.

    A file of a build between two revisions counts as the older one, and what it has of the
    newer one is listed: what the older one lacks can then be completed by migrating. The same
    goes for a file whose META_DATA claims more than its tables keep.

    Args:
        facts: what the file holds.
        trust_version: whether META_DATA's version counts as a sign.
    """
    key = (trust_version, facts.meta)
    found = facts.matches.get(key)
    if found is None:
        found = _matched(facts, trust_version=trust_version)
        if len(facts.matches) < _KEPT_FINGERPRINT:
            facts.matches[key] = found
    return found


def _matched(facts: Facts, *, trust_version: bool) -> Match:
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    newer: list[tuple[str, ...]] = []
    newest = ""
    # From the newest on: most files are of one that is not old.
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
    """Return the `TABLE.column` that tables of the file should have at `revision` and do not."""
    spec = catalogue.load(catalogue.MSPROF, revision)
    return tuple(
        f"{name}.{column}"
        for name, table in spec.tables.items()
        if name in facts.tables
        for column in table.column_names
        if column not in facts.tables[name]
    )


def _equivalent(facts: Facts, revision: str) -> tuple[str, ...]:
    """Return the revisions after `revision` that differ only in tables the file does not have."""
    revisions = catalogue.REVISIONS[catalogue.MSPROF]
    # A file that has all that every file has would also have what a newer revision adds to that.
    # Other producers leave tables out, then nothing follows from their absence.
    whole = _always(revision) <= facts.tables.keys()
    found = []
    here = _shape(facts, revision, whole=whole)
    for other in revisions[revisions.index(revision) + 1 :]:
        if _shape(facts, other, whole=whole) != here:
            break
        found.append(other)
    return tuple(found)


def _always(revision: str) -> set[str]:
    spec = catalogue.load(catalogue.MSPROF, revision)
    return {*(catalogue.ALWAYS_PRESENT & spec.tables.keys()), *spec.enum_tables}


def _shape(facts: Facts, revision: str, *, whole: bool) -> tuple[object, ...]:
    """Return what a revision says about the tables that the file has."""
    spec = catalogue.load(catalogue.MSPROF, revision)
    counted = facts.tables.keys() | (_always(revision) if whole else set())
    tables = {name: t.columns for name, t in spec.tables.items() if name in counted}
    rows = {name: spec.rows[name] for name in spec.enum_tables if name in counted}
    return spec.schema_version if "META_DATA" in counted else None, tables, rows
