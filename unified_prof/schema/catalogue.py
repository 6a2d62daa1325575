"""Frozen schema text of every family and revision, and the tables and columns it declares.

A family is one kind of report file; a revision is one version of its schema. New files are created
from the text in `schemas/<family>/<revision>.sql`; models and migrations are tested against it.
Declarations are read by running the text in an in-memory SQLite database.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from msgspec import Struct

from unified_prof.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]

MSPROF = "msprof"
SKYLINE_RUN_TIME = "skyline-run-time"
SKYLINE_MEMORY = "skyline-memory"
CLUSTER = "cluster"
WATCH = "watch"
WATCH_FILES = "watch_rank*.db"  # Pattern of the names of watch files in the directory of a run.

# Oldest first. The msprof names are <SCHEMA_VERSION>_<date of the exporter's change>.
#
# To add a revision (CONTRIBUTING.md has an example), also
# - write migrations/<family>/<revision>.py: the changes, and the values of old rows;
# - add the new tables and columns to schema/msprof/, each with a `doc`;
# - run scripts/freeze_schemas.py, which writes schemas/msprof/<revision>.sql (others: by hand);
# - edit sqlite/reader.py if a column changes its name or meaning;
# - edit sqlite/fingerprint.py if the frozen texts do not distinguish it from the previous revision.
# Never change the migration of a released revision.
REVISIONS: dict[str, tuple[str, ...]] = {
    MSPROF: (
        "pre_20240328",
        "1.0.0_20240516",
        "1.0.0_20240521",
        "1.0.0_20240711",
        "1.0.0_20241008",
        "1.0.0_20241112",
        "1.1.0_20241216",
        "1.1.0_20241218",
        "1.1.1_20250123",
        "1.1.1_20250327",
        "1.1.1_20250620",
        "1.1.1_20250820",
        "1.2.0_20250922",
        "1.2.0_20251226",
        "1.2.0_20260128",
        "1.2.0_20260330",
        "1.2.0_20260716",
    ),
    SKYLINE_RUN_TIME: ("1",),
    SKYLINE_MEMORY: ("1",),
    CLUSTER: ("1",),
    WATCH: ("1",),
}
FAMILIES = tuple(REVISIONS)

_TABLE = re.compile(r"^CREATE TABLE (\w+) \(\n(.*?)\n\);$", re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(
    r"^INSERT INTO (ENUM_\w+) \(id, name\) VALUES \((\d+), '([^']*)'\);$", re.MULTILINE
)

# `documented` is the revision described by the published msprof database document.
_ALIASES = {(MSPROF, "documented"): "1.2.0_20251226"}

# Tables that msprof always writes; every other table exists only if it has rows.
ALWAYS_PRESENT = frozenset(
    {"META_DATA", "STRING_IDS", "SESSION_TIME_INFO", "NPU_INFO", "RANK_DEVICE_MAP", "HOST_INFO"}
)

REVISION_ROW = "UPROF_SCHEMA_REVISION"
"""META_DATA row with the revision of a file written or migrated by uprof."""


def resource_directory(name: str) -> Path:
    """Return a data directory of the installed package, or of the top directory of a checkout.

    Raises FileNotFoundError if the installation is incomplete.
    """
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"unified_prof is installed without its directory {name!r}")


class ColumnSpec(Struct, frozen=True):
    """Declaration of one column in SQLite."""

    name: str
    type: str
    not_null: bool
    primary_key: int
    """Position in the primary key from 1, or 0."""


class TableSpec(Struct, frozen=True):
    """Declaration of one table: columns in order, CREATE statement, indexes."""

    name: str
    columns: tuple[ColumnSpec, ...]
    create_sql: str
    indexes: tuple[tuple[str, str], ...]
    """(name, CREATE INDEX statement), in declaration order."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in the file's order."""
        return tuple(column.name for column in self.columns)


class SchemaSpec(Struct, frozen=True):
    """Declarations of one revision, with tables in the order of the frozen text."""

    family: str
    revision: str
    tables: dict[str, TableSpec]
    rows: dict[str, tuple[tuple[object, ...], ...]]
    """Constant rows: enum contents, and META_DATA's version rows."""

    user_version: int

    @property
    def enum_tables(self) -> tuple[str, ...]:
        """The tables whose complete contents are part of the schema."""
        return tuple(t for t in self.rows if t != "META_DATA")

    @property
    def schema_version(self) -> str | None:
        """The META_DATA.SCHEMA_VERSION of an msprof revision, None before it existed."""
        meta = {str(row[0]): str(row[1]) for row in self.rows.get("META_DATA", ())}
        return meta.get("SCHEMA_VERSION")


def version_of(revision: str) -> str | None:
    """Return the SCHEMA_VERSION in the name of an msprof revision, None before it existed."""
    version = revision.partition("_")[0]
    return None if version == "pre" else version


def resolve(family: str, revision: str) -> str:
    """Return the full name of `revision`, which may be an alias (`latest`, `documented`).

    Raises UsageError if the family or revision does not exist.
    """
    if family not in REVISIONS:
        raise UsageError(
            f"no schema family {family!r}",
            hint=f"known: {', '.join(FAMILIES)}",
            slug="unknown-revision",
        )
    known = REVISIONS[family]
    if revision == "latest":
        return known[-1]
    if revision == "documented":
        return _ALIASES.get((family, revision), known[-1])
    if revision not in known:
        raise UsageError(
            f"no revision {revision!r} of schema family {family}",
            hint=f"known: documented, latest, {', '.join(known)}",
            slug="unknown-revision",
        )
    return revision


def frozen_text(family: str, revision: str) -> str:
    """Return the frozen SQL text of a revision or alias."""
    revision = resolve(family, revision)
    path = resource_directory("schemas") / family.replace("-", "_") / f"{revision}.sql"
    return path.read_text(encoding="utf-8")


@cache
def extension_tables() -> dict[str, TableSpec]:
    """Return the tables that torch_npu and uprof may add to a report of any revision.

    Each table exists only if it has rows. To add a new UPROF_ table, declare it in
    `schemas/extensions/uprof.sql`, with a comment for each column.
    """
    tables: dict[str, TableSpec] = {}
    for path in sorted((resource_directory("schemas") / "extensions").glob("*.sql")):
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(path.read_text(encoding="utf-8"))
            tables |= {name: _table(db, name, sql) for name, sql in _objects(db, "table")}
    return tables


def newest_tables() -> dict[str, TableSpec]:
    """Return every table that can be written to an msprof database, in its newest shape."""
    return load(MSPROF, "latest").tables | extension_tables()


class Outline(Struct, frozen=True):
    """Table, column and enum names in one revision of the msprof schema."""

    columns: dict[str, tuple[str, ...]]
    """Table -> its columns."""
    constants: dict[str, dict[int, str]]
    """ENUM_ table -> its rows."""


@cache
def outline(revision: str) -> Outline:
    """Return the names in the frozen text of an msprof revision, ten times as fast as `load`.

    The text must have the format written by `scripts/freeze_schemas.py`.
    """
    text = frozen_text(MSPROF, revision)
    constants: dict[str, dict[int, str]] = {}
    for table, number, name in _CONSTANT.findall(text):
        constants.setdefault(table, {})[int(number)] = name
    return Outline(
        columns={
            table: tuple(line.split()[0] for line in body.splitlines())
            for table, body in _TABLE.findall(text)
        },
        constants=constants,
    )


@cache
def load(family: str, revision: str) -> SchemaSpec:
    """Return the declarations of a revision or alias; cached after the first call."""
    revision = resolve(family, revision)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(frozen_text(family, revision))
        return SchemaSpec(
            family=family,
            revision=revision,
            tables={name: _table(db, name, sql) for name, sql in _objects(db, "table")},
            rows={
                name: tuple(rows)
                for name, _ in _objects(db, "table")
                if (rows := db.execute(f'SELECT * FROM "{name}"').fetchall())
            },
            user_version=int(db.execute("PRAGMA user_version").fetchone()[0]),
        )


def _objects(db: sqlite3.Connection, kind: str) -> list[tuple[str, str]]:
    query = "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL ORDER BY rowid"
    return db.execute(query, (kind,)).fetchall()


def _table(db: sqlite3.Connection, name: str, create_sql: str) -> TableSpec:
    columns = tuple(
        ColumnSpec(column, declared, bool(not_null), key)
        for _, column, declared, not_null, _, key in db.execute(f'PRAGMA table_info("{name}")')
    )
    indexes = db.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ?"
        " AND sql IS NOT NULL ORDER BY rowid",
        (name,),
    ).fetchall()
    return TableSpec(name, columns, create_sql, tuple(indexes))
