"""Write schemas/msprof/<revision>.sql: the schemas that the migrations create.

    python scripts/freeze_schemas.py            write the files that are missing
    python scripts/freeze_schemas.py --check    exit 1 if a file differs from the migrations

Existing files are never rewritten, because released revisions do not change.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from unified_prof.migrate import runner
from unified_prof.migrate.steps import FileState
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import REVISION_ROW

SCHEMAS = Path(__file__).resolve().parent.parent / "schemas" / "msprof"
HEADER = "-- msprof database, schema revision {}. Frozen: never edited after release.\n"


def frozen(revision: str) -> str:
    """Return the SQL text of one revision: tables, indexes, constant rows."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        runner.migrate(db, catalogue.MSPROF, None, revision, FileState(True, False))
        revisions = catalogue.REVISIONS[catalogue.MSPROF]
        newest = [name for name in revisions if (SCHEMAS / f"{name}.sql").exists()][-1]
        order = list(catalogue.outline(newest).columns)  # A new table comes last.
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = [name for (name,) in db.execute(query)]
        tables.sort(key=lambda name: order.index(name) if name in order else len(order))
        lines = [HEADER.format(revision)]
        lines += [_table(db, table) for table in tables]
        lines += [line for table in tables for line in _indexes(db, table)]
        lines += [line for table in tables for line in _rows(db, table)]
        return "".join(lines)


def _table(db: sqlite3.Connection, table: str) -> str:
    columns = ",\n".join(
        f"  {name} {kind}{' PRIMARY KEY' if key else ''}"
        for _, name, kind, _, _, key in db.execute(f"PRAGMA table_info({table})")
    )
    return f"CREATE TABLE {table} (\n{columns}\n);\n"


def _indexes(db: sqlite3.Connection, table: str) -> Iterator[str]:
    for _, index, *_ in reversed(db.execute(f"PRAGMA index_list({table})").fetchall()):
        columns = ", ".join(name for _, _, name in db.execute(f"PRAGMA index_info({index})"))
        yield f"CREATE INDEX {index} ON {table} ({columns});\n"


def _rows(db: sqlite3.Connection, table: str) -> Iterator[str]:
    if table == "META_DATA":
        query = f"SELECT name, value FROM META_DATA WHERE name <> '{REVISION_ROW}' ORDER BY rowid"
        for name, value in db.execute(query):
            yield f"INSERT INTO META_DATA (name, value) VALUES ('{name}', '{value}');\n"
    else:
        for row in db.execute(f"SELECT * FROM {table} ORDER BY 1"):
            yield f"INSERT INTO {table} (id, name) VALUES ({row[0]}, '{row[1]}');\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for revision in catalogue.REVISIONS[catalogue.MSPROF]:
        path = SCHEMAS / f"{revision}.sql"
        if path.exists():
            if path.read_text(encoding="utf-8") != frozen(revision):
                stale.append(path.name)
        elif check:
            stale.append(path.name)
        else:
            path.write_text(frozen(revision), encoding="utf-8")
            print(f"wrote {path}")
    for name in stale:
        print(f"{name} differs from the migrations", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
