"""Databases of other tools are read as tables of values, whatever else they contain."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from unified_prof.errors import StoreError
from unified_prof.sqlite import external_tables
from unified_prof.sqlite.external_tables import foreign_tables
from unified_prof.sqlite.fingerprint import table_names


def create_database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


def test_columns_are_typed_and_missing_ones_have_defaults(tmp_path: Path) -> None:
    path = create_database(
        tmp_path / "a.db",
        "CREATE TABLE t (a INTEGER, b REAL, c TEXT)",
        "INSERT INTO t VALUES (1, 1.5, 'x'), (NULL, NULL, NULL), (3, 2, 'z')",
    )
    with foreign_tables(path) as tables:
        assert tables.names == ("t",)
        assert tuple(tables.columns("t")) == ("a", "b", "c")
        (cells,) = tables.slices("t", {"a": -7, "absent": 5}, reals=["b", "no"], texts=["c", "q"])
        assert cells["a"].tolist() == [1, -7, 3]
        assert cells["absent"].tolist() == [5, 5, 5]
        np.testing.assert_array_equal(cells["b"], [1.5, np.nan, 2.0])
        assert np.isnan(cells["no"]).all()
        assert cells["c"] == ["x", None, "z"]
        assert cells["q"] == [None] * 3
        assert list(tables.slices("absent", {"a": 0})) == []
        assert list(tables.slices("t", {"a": 0}, only=("absent", [1]))) == []
        assert tables.unreadable == {}


def test_rows_are_selected_by_value_or_by_not_null(tmp_path: Path) -> None:
    path = create_database(
        tmp_path / "a.db", "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 5), (2, NULL), (3, 7)"
    )
    with foreign_tables(path) as tables:
        (chosen,) = tables.slices("t", {"a": 0}, only=("a", [3, 1]))
        assert chosen["a"].tolist() == [1, 3]
        (known,) = tables.slices("t", {"a": 0}, only=("b", None))
        assert known["a"].tolist() == [1, 3]
        assert list(tables.slices("t", {"a": 0}, only=("a", [9]))) == []
        (nothing,) = tables.slices("t", {})
        assert nothing == {}


def test_values_of_other_types_are_converted_or_counted(tmp_path: Path) -> None:
    path = create_database(
        tmp_path / "a.db",
        "CREATE TABLE t (a, b, c)",
        "INSERT INTO t VALUES (5.0, 'x', x'ff41'), ('12', 1, 3), ('word', 2.5, NULL)",
        "INSERT INTO t VALUES (1.5, x'00', 'ok'), (x'00', NULL, 1e400), (9e99, 4, 'end')",
    )
    with foreign_tables(path) as tables:
        (cells,) = tables.slices("t", {"a": -1}, reals=["b"], texts=["c"])
        assert cells["a"].tolist() == [5, 12, -1, -1, -1, -1]
        np.testing.assert_array_equal(cells["b"], [np.nan, 1, 2.5, np.nan, np.nan, 4])
        assert cells["c"] == ["\\xffA", "3", None, "ok", "Inf", "end"]
        assert tables.unreadable == {"t.a": 4, "t.b": 2}


def test_views_generated_columns_and_virtual_tables_are_not_read(tmp_path: Path) -> None:
    """A view or a generated column may run forever, or request all memory."""
    path = create_database(
        tmp_path / "a.db",
        "CREATE TABLE t (a, g GENERATED ALWAYS AS (zeroblob(1000000000)))",
        "INSERT INTO t (a) VALUES (1)",
        "CREATE VIEW v AS WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT a FROM r) SELECT a"
        " FROM r",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
    )
    with foreign_tables(path) as tables:
        assert not {"v", "f"} & set(tables.names)
        assert list(tables.slices("v", {"a": 0})) == []
        (cells,) = tables.slices("t", {"a": 0}, texts=["g"])
        assert cells["g"] == [None]


def test_long_texts_are_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_tables, "MAX_TEXT", 4)
    path = create_database(
        tmp_path / "a.db", "CREATE TABLE t (a)", "INSERT INTO t VALUES ('abcdefgh')"
    )
    with foreign_tables(path) as tables:
        (cells,) = tables.slices("t", {}, texts=["a"])
        assert cells["a"] == ["abcd"]


def test_pages_in_a_cycle_are_an_error(tmp_path: Path) -> None:
    """Every child of the root is the same leaf: more rows than bytes in the file."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA page_size = 512")
        db.execute("CREATE TABLE t (a)")
        db.executemany("INSERT INTO t VALUES (?)", [(number % 100,) for number in range(60_000)])
        ((root,),) = db.execute("SELECT rootpage FROM sqlite_master").fetchall()
    data = bytearray(path.read_bytes())

    def page(number: int) -> slice:
        return slice((number - 1) * 512, number * 512)

    def children(number: int) -> list[int]:
        content = data[page(number)]
        count = int.from_bytes(content[3:5], "big")
        return [int.from_bytes(content[12 + 2 * i : 14 + 2 * i], "big") for i in range(count)]

    def redirect(number: int, to: int) -> None:
        base = (number - 1) * 512
        for at in children(number):
            data[base + at : base + at + 4] = to.to_bytes(4, "big")
        data[base + 8 : base + 12] = to.to_bytes(4, "big")

    base = (root - 1) * 512
    assert data[base] == 5, "the root must be an interior page"
    first = int.from_bytes(data[base + children(root)[0] :][:4], "big")
    below = int.from_bytes(data[(first - 1) * 512 + children(first)[0] :][:4], "big")
    redirect(root, first)
    redirect(first, below)
    path.write_bytes(data)
    with foreign_tables(path) as tables:
        object.__setattr__(tables, "_most_rows", 5_000)
        with pytest.raises(StoreError, match="more rows than"):
            for _ in tables.slices("t", {"a": 0}):
                pass


def test_table_names_are_read_without_side_files_and_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a)")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("INSERT INTO t VALUES (1)")
        before = sorted(tmp_path.iterdir())
        assert table_names(path) == {"t"}
        assert sorted(tmp_path.iterdir()) == before
    assert table_names(tmp_path / "absent") == frozenset()
    assert table_names(tmp_path) == frozenset()
    (tmp_path / "b.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 8)
    assert table_names(tmp_path / "b.db") == frozenset()


def test_database_with_an_open_writer_is_read_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (a)")
        db.execute("INSERT INTO t VALUES (1), (2)")
        with foreign_tables(path) as tables:
            (cells,) = tables.slices("t", {"a": 0})
            assert cells["a"].tolist() == [1, 2]


def test_row_that_extends_beyond_its_page_is_an_error(tmp_path: Path) -> None:
    """SQLite may return a row with NULL from the memory after the page."""
    insert = "INSERT INTO t WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    path = create_database(tmp_path / "a.db", "CREATE TABLE t (a)", f"{insert} SELECT i FROM n")
    content = bytearray(path.read_bytes())
    last_page = len(content) - 4096
    content[last_page + 8 : last_page + 10] = (4095).to_bytes(2, "big")
    content[-1] = 0  # a record without bytes, and no row id
    path.write_bytes(content)
    with foreign_tables(path) as tables, pytest.raises(StoreError, match="beyond its page"):
        list(tables.slices("t", {"a": 0}))
