"""The declarations of a schema are queried once for all files with it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unified_prof import open_report
from unified_prof.migrate.upgrade import create
from unified_prof.schema.catalogue import MSPROF, REVISIONS
from unified_prof.sqlite import fingerprint as shapes
from unified_prof.sqlite.fingerprint import read_facts, shape
from unified_prof.sqlite.statements import Declared, declared

OLDEST, NEWEST = REVISIONS[MSPROF][1], REVISIONS[MSPROF][-1]


def create_report(path: Path, *statements: str, revision: str = NEWEST) -> Path:
    create(path, MSPROF, revision)
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


@pytest.fixture
def queried_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the tables whose columns are queried."""
    names: list[str] = []

    def record(db: sqlite3.Connection, table: str) -> list[Declared]:
        names.append(table)
        return declared(db, table)

    monkeypatch.setattr(shapes, "declared", record)
    monkeypatch.setattr(shapes, "_shapes", type(shapes._shapes)())
    return names


def test_files_of_one_schema_are_queried_once(tmp_path: Path, queried_tables: list[str]) -> None:
    files = [create_report(tmp_path / f"{number}.db") for number in range(3)]
    found = []
    for number, path in enumerate(files):
        with closing(sqlite3.connect(path)) as db:
            db.execute("INSERT INTO STRING_IDS (id, value) VALUES (?, 'it')", (number,))
            db.commit()
        with open_report(path) as report:
            found.append((report.revision, report.tables))
            assert report.rows("SELECT id FROM STRING_IDS") == [(number,)]
        if number == 0:
            assert "TASK" in queried_tables
            queried_tables.clear()
    assert queried_tables == []
    assert len(set(found)) == 1


def test_different_column_is_another_schema(tmp_path: Path, queried_tables: list[str]) -> None:
    first = create_report(tmp_path / "1.db")
    wider = create_report(tmp_path / "2.db", "ALTER TABLE TASK ADD COLUMN depth INTEGER")
    more = create_report(tmp_path / "3.db", "CREATE TABLE extra (id INTEGER)")
    hidden = create_report(
        tmp_path / "4.db", "DROP TABLE MEMCPY_INFO", "CREATE VIEW MEMCPY_INFO AS SELECT 1"
    )
    for path in (first, wider, more, hidden, first):
        queried_tables.clear()
        with open_report(path) as report, closing(sqlite3.connect(path)) as db:
            names = {row[1] for row in db.execute("PRAGMA table_info(TASK)")}
            columns = set(report.columns("SELECT * FROM TASK"))
            assert columns - {"rowid"} == names
            assert ("extra" in report.tables) == (path == more)
            assert (report.detection.not_tables == ("MEMCPY_INFO",)) == (path == hidden)
            assert report.rows("SELECT * FROM MEMCPY_INFO") == []


def test_views_of_one_revision_are_not_used_for_another(tmp_path: Path) -> None:
    old, new = (
        create_report(tmp_path / "old.db", revision=OLDEST),
        create_report(tmp_path / "new.db"),
    )
    for path in (old, new, old, new):
        with open_report(path) as report:
            assert report.revision == (OLDEST if path == old else NEWEST)
            assert report.rows("SELECT blockNum FROM COMPUTE_TASK_INFO") == []
            created = report.rows("SELECT name FROM sqlite_temp_master")
            assert created == ([("COMPUTE_TASK_INFO",)] if path == old else [])


def test_cached_schemas_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_shapes", type(shapes._shapes)())
    for number in range(40):
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute(f"CREATE TABLE t{number} (id INTEGER)")
            assert list(shape(db).tables) == [f"t{number}"]
    assert len(shapes._shapes) == 16
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE long (id INTEGER /* {'x' * (1 << 18)} */)")
        assert shape(db) is not shape(db)


def test_enum_rows_that_distinguish_revisions_are_read_from_every_file(tmp_path: Path) -> None:
    """Equal statements with other rows in an enum table are another revision."""
    newest = create_report(tmp_path / "newest.db")
    with open_report(newest) as report:
        assert report.revision == NEWEST
        wanted = report.detection
    unusual = create_report(
        tmp_path / "odd.db", "DELETE FROM META_DATA", "DELETE FROM ENUM_API_TYPE"
    )
    for path in (unusual, newest, unusual):
        with open_report(path) as report:
            assert (report.detection.recognised_by == wanted.recognised_by) == (path == newest)
            assert report.revision in REVISIONS[MSPROF]
    many = create_report(
        tmp_path / "many.db", *(f"CREATE TABLE ENUM_{n} (id, name)" for n in range(120))
    )
    with closing(sqlite3.connect(many)) as db:
        db.execute("INSERT INTO ENUM_119 VALUES (7, 'it'), ('no number', 'x'), (NULL, 'y')")
        facts = read_facts(db)
    assert (facts.enums["ENUM_119"], facts.enums["ENUM_0"]) == ({7: "it"}, {})
