"""Every revision is the same whether created, migrated to or read from the frozen text."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.databases import REVISIONS
from unified_prof.migrate import runner
from unified_prof.migrate.steps import FileState
from unified_prof.schema import catalogue
from unified_prof.sqlite import fingerprint

EMPTY = FileState(holds_all_tables=True, holds_records=False)


def declared(db: sqlite3.Connection) -> dict[str, Any]:
    """Return the declarations and rows of a database in comparable form."""
    names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: {
            "columns": db.execute(f'PRAGMA table_info("{name}")').fetchall(),
            "indexes": sorted(
                (index, unique, tuple(db.execute(f'PRAGMA index_info("{index}")').fetchall()))
                for _, index, unique, *_ in db.execute(f'PRAGMA index_list("{name}")')
            ),
            "rows": sorted(
                row
                for row in db.execute(f'SELECT * FROM "{name}"')
                if row[0] != "UPROF_SCHEMA_REVISION"
            ),
        }
        for name in names
    }


def created(family: str, revision: str) -> dict[str, Any]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(catalogue.frozen_text(family, revision))
        return declared(db)


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize("target", REVISIONS)
def test_migration_from_every_earlier_revision_equals_creation(target: str) -> None:
    expected = created("msprof", target)
    for start in REVISIONS[: REVISIONS.index(target)]:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            db.executescript(catalogue.frozen_text("msprof", start))
            state = runner.file_state(db, fingerprint.read_facts(db), "msprof", start)
            assert state.holds_all_tables
            assert not state.holds_records
            runner.migrate(db, "msprof", start, target, state)
            assert declared(db) == expected, f"from {start}"


@pytest.mark.parametrize("family", ["skyline-run-time", "skyline-memory", "cluster", "watch"])
def test_revisions_of_other_families_are_numbered(family: str) -> None:
    revisions = catalogue.REVISIONS[family]
    assert tuple(revision for revision, _ in runner.history(family)) == revisions
    for number, revision in enumerate(revisions, 1):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            runner.migrate(db, family, None, revision, EMPTY)
            assert declared(db) == created(family, revision)
            assert db.execute("PRAGMA user_version").fetchone() == (number,)


def test_every_revision_has_one_documented_migration() -> None:
    history = runner.history("msprof")
    assert tuple(revision for revision, _ in history) == REVISIONS
    for revision, text in history:
        assert text.partition("\n")[0].endswith("."), revision
        assert "\nReleased in: " in text, revision
        assert "\nOld rows: " in text, revision


def test_each_step_and_its_version_are_one_transaction() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.executescript(catalogue.frozen_text("msprof", "1.0.0_20241112"))
        # The second of the steps below fails.
        db.execute("CREATE VIEW HOST_MEM_USAGE AS SELECT 1")
        with pytest.raises(Exception, match="HOST_MEM_USAGE"):
            runner.migrate(db, "msprof", "1.0.0_20241112", "1.1.1_20250820", EMPTY)
        version = "SELECT value FROM META_DATA WHERE name = 'UPROF_SCHEMA_REVISION'"
        assert db.execute(version).fetchall() == [("1.1.1_20250327",)]
        columns = [row[1] for row in db.execute("PRAGMA table_info(COMPUTE_TASK_INFO)")]
        assert "opState" not in columns
        attached = [row[1] for row in db.execute("PRAGMA database_list")]
        assert attached == ["main"]


@pytest.mark.slow
def test_frozen_text_equals_the_exporters_sources(shared: Path) -> None:
    folder = shared / "reference" / "msprof-schema"
    for number, revision in enumerate(REVISIONS):
        source = folder / f"{number:02}_{revision}.sql"
        if not source.exists():  # newer than the reference
            continue
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(source.read_text())
            assert declared(db) == created("msprof", revision), revision


# Errors of the published document that no exporter of its time has.
MISPRINTS = {
    "AICORE_FREQ: deviceld instead of deviceId",
    "COMMUNICATION_OP: deviceld instead of deviceId",
    "MSTX_EVENTS: globalTID instead of globalTid",
    "ENUM_MSTX_EVENT_TYPE.name: INTEGER instead of TEXT",
    "LLC.hitRate: NUMERIC instead of REAL",
    "LLC.throughput: NUMERIC instead of INTEGER",
    "OSRT_API.name: INTEGER instead of NUMERIC",
    "OSRT_API.startNs: INTEGER instead of NUMERIC",
    "OSRT_API.endNs: INTEGER instead of NUMERIC",
    "ENUM_API_TYPE: also 50001 op",
    "ENUM_API_TYPE: also 50002 queue",
    "ENUM_API_TYPE: also 50003 trace",
    "ENUM_API_TYPE: also 50004 mstx",
    "ENUM_MODULE: also 59 MDCMAP",
}


def test_documented_revision_is_the_published_document_except_for_its_errors(shared: Path) -> None:
    source = shared / "reference" / "msprof-schema" / "seed-document.json"
    document = json.loads(source.read_text())
    schema = catalogue.load("msprof", "documented")
    assert set(document["order"]) == set(schema.tables)
    found = set()
    for table, columns in document["tables"].items():
        spec = schema.tables[table].columns
        assert len(columns) == len(spec), table
        for (name, kind, _), column in zip(columns, spec, strict=True):
            if name != column.name:
                found.add(f"{table}: {name} instead of {column.name}")
            if kind != column.type:
                found.add(f"{table}.{column.name}: {kind} instead of {column.type}")
    for enum, rows in document["enums"].items():
        printed = {(number, name) for name, number in rows.items()}
        assert set(schema.rows[enum]) <= printed
        found |= {f"{enum}: also {n} {name}" for n, name in printed - set(schema.rows[enum])}
    assert found == MISPRINTS
