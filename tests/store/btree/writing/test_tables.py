"""Rows written as pages read back as if SQLite had inserted them, type by type."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql import execute
from unified_prof.sqlite import batches
from unified_prof.sqlite.pages.row_encoder import affinity_of, field_of
from unified_prof.sqlite.pages.tree_writer import PageFile, TableTree

Block = tuple[Sequence[Any], Any]
"""Columns, and row ids or None for consecutive ones."""
PAGE_SIZES = (512, 1024, 4096, 16384, 65536)


def create_table(path: Path, types: Sequence[str], page_bytes: int) -> int:
    """Create a table `t` and return its root page."""
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute(f"CREATE TABLE t ({columns})")
        return int(db.execute("SELECT rootpage FROM sqlite_master").fetchone()[0])


def number_rows(types: Sequence[str], blocks: Sequence[Block]) -> list[tuple[Any, int, Any]]:
    """Return sources, number of rows and row ids of each block."""
    found = []
    done = 0
    for columns, rowids in blocks:
        named = {f"c{j}": column for j, column in enumerate(columns)}
        sources, rows = batches.read(named, table="t")
        assert len(sources) == len(types)
        ids = np.arange(done + 1, done + 1 + rows) if rowids is None else np.asarray(rowids)
        found.append((list(sources.values()), rows, ids))
        done += rows
    return found


def write_pages(path: Path, types: Sequence[str], blocks: Sequence[Block], page_bytes: int) -> None:
    root = create_table(path, types, page_bytes)
    file = PageFile(path)
    file.begin()
    assert file.suitable
    tree = TableTree(root, file.header.page_bytes, file.header.usable)
    for sources, _, rowids in number_rows(types, blocks):
        fields = [
            field_of(source, affinity_of(kind)) for source, kind in zip(sources, types, strict=True)
        ]
        tree.append(file, fields, rowids)
    tree.finish(file)
    file.end()
    file.close()


def write_statements(
    path: Path, types: Sequence[str], blocks: Sequence[Block], page_bytes: int
) -> None:
    create_table(path, types, page_bytes)
    names = ", ".join(["rowid", *(f"c{number}" for number in range(len(types)))])
    marks = ", ".join("?" * (len(types) + 1))
    with closing(sqlite3.connect(path)) as db, db:
        for sources, rows, rowids in number_rows(types, blocks):
            columns = [source.part(0, rows) for source in sources]
            values = zip(rowids.tolist(), *columns, strict=True)
            db.executemany(f"INSERT INTO t ({names}) VALUES ({marks})", values)


def read_typed(path: Path, types: Sequence[str]) -> list[tuple[Any, ...]]:
    columns = [f"c{number}, typeof(c{number})" for number in range(len(types))]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    return execute(path, f"SELECT rowid, {', '.join(columns)} FROM t")


def check_blocks(types: Sequence[str], blocks: Sequence[Block], page_bytes: int = 4096) -> Path:
    """Write the blocks as pages and as statements, and compare both files."""
    with TemporaryDirectory() as folder:
        path, expected_path, copy = (Path(folder) / f"{n}.db" for n in ("pages", "sql", "copy"))
        write_pages(path, types, blocks, page_bytes)
        write_statements(expected_path, types, blocks, page_bytes)
        expected = read_typed(expected_path, types)
        # As text, because 0.0 == -0.0.
        assert list(map(repr, read_typed(path, types))) == list(map(repr, expected))
        assert path.stat().st_size % page_bytes == 0
        with closing(sqlite3.connect(path)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
            # SQLite finds single rows as well as all of them.
            for row in expected[:: max(1, len(expected) // 20)]:
                found = db.execute("SELECT c0 FROM t WHERE rowid = ?", row[:1]).fetchall()
                assert repr(found) == repr([row[1:2]])
            db.execute("DELETE FROM t WHERE rowid % 2")
            db.execute("INSERT INTO t (c0) VALUES (5)")
            db.commit()
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert list(map(repr, read_typed(copy, types))) == list(map(repr, expected))
        return path


def test_numbers_take_as_many_bytes_as_in_files_of_sqlite(tmp_path: Path) -> None:
    rows = np.arange(6_000)
    values = np.where(rows % 4 < 2, 0.0, np.where(rows % 4 == 2, rows % 7 * 100.0, rows / 7))
    limits = np.array([0, 1, -1, 127, 128, -129, 2**31, -(2**31) - 1, 2**47, 2**53 + 1, -(2**63)])
    blocks = [([rows // 28, limits[rows % len(limits)], values], None)]
    sizes = []
    for write in (write_pages, write_statements):
        write(path := tmp_path / write.__name__, ("INTEGER", "INTEGER", "NUMERIC"), blocks, 4096)
        sizes.append(path.stat().st_size)
    assert sizes[0] <= 1.01 * sizes[1]


EXTREMES = (-(2**63), 2**63 - 1)
INTEGERS = st.integers(*EXTREMES) | st.sampled_from(
    [*EXTREMES, *(s * 2**b - d for b in (7, 15, 23, 31, 47) for s in (1, -1) for d in (0, 1))]
)
FLOATS = st.floats(allow_nan=True) | st.sampled_from(
    [0.0, -0.0, 1.0, 2.0**53, 2.0**63, -(2.0**63), 9223372036854774784.0, 1e300, 0.1, 2.0**47]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=70) | st.sampled_from(
    ["", "\0", "a\0b", "12", "é" * 57, "x" * 57, "x" * 58, "y" * 500, "z" * 9000]
)
NUMERIC_TYPES = ("INTEGER", "NUMERIC", "REAL", "DOUBLE")
TYPES = (*NUMERIC_TYPES, "TEXT", "VARCHAR", "", "BLOB")


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[Block]]:
    """Draw types of columns, and blocks of columns in all forms that writers pass."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=5))
    blocks: list[Block] = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 30))
        blocks.append(([draw(columns(kind, rows)) for kind in types[:-1]], None))
        blocks[-1][0].append(draw(columns(types[-1], rows, scalars=False)))  # type: ignore[attr-defined]
    return types, blocks


def columns(kind: str, rows: int, *, scalars: bool = True) -> st.SearchStrategy[Any]:
    def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(values, min_size=rows, max_size=rows)

    integers = lists(INTEGERS).map(lambda values: np.array(values, np.int64))
    booleans = lists(st.integers(0, 1)).map(lambda values: np.array(values, np.int64))
    floats = lists(FLOATS).map(np.array)
    whole = lists(st.integers(-5, 5).map(float)).map(np.array)
    masked = st.builds(
        lambda data, mask: np.ma.MaskedArray(np.array(data, np.int64), mask),
        lists(INTEGERS),
        lists(st.booleans()),
    )
    values: Any = st.none() | INTEGERS | FLOATS
    forms = [integers, booleans, floats, whole, masked]
    forms += [lists(values), lists(st.none() | INTEGERS)]
    if kind not in NUMERIC_TYPES:
        values |= TEXTS
        forms += [lists(TEXTS), lists(st.none() | TEXTS), lists(values)]
    return st.one_of(*forms, *([values] if scalars else []))


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(PAGE_SIZES))
def test_any_columns_read_back(table: tuple[list[str], list[Block]], page_bytes: int) -> None:
    check_blocks(*table, page_bytes)


@settings(max_examples=40, deadline=None)
@given(st.sets(INTEGERS, min_size=1, max_size=300), st.sampled_from(PAGE_SIZES))
def test_any_ascending_row_ids_read_back(keys: set[int], page_bytes: int) -> None:
    rowids = np.array(sorted(keys), np.int64)
    check_blocks(["INTEGER"], [([rowids[::-1].copy()], rowids)], page_bytes)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
@pytest.mark.parametrize(
    "rows", [1, 2, 49, 50, 51, 4999, pytest.param(20_000, marks=pytest.mark.slow)]
)
def test_trees_of_any_height_read_back(rows: int, page_bytes: int) -> None:
    number = np.arange(rows) * 1_000_003
    check_blocks(
        ["INTEGER", "NUMERIC", "TEXT"], [([number, number % 7 / 2, None], None)], page_bytes
    )


@pytest.mark.parametrize("sizes", [[1] * 400, [7, 300, 2] * 20, [5000, 1, 5000]])
def test_blocks_of_any_size_read_back(sizes: list[int]) -> None:
    blocks = [
        ([np.arange(size) * 10 ** (turn % 15), "x" * (turn % 20) if turn % 2 else None], None)
        for turn, size in enumerate(sizes)
    ]
    check_blocks(["INTEGER", "TEXT"], blocks, 512)


@pytest.mark.quick(cases=51)
@pytest.mark.parametrize(
    "value", [*EXTREMES, None, 0, 1, -1, 0.5, float("nan"), -0.0, 3.0, 2.0**63]
)
@pytest.mark.parametrize("kind", TYPES)
def test_constant_columns_of_any_type_read_back(value: float | None, kind: str) -> None:
    blocks: list[Block] = [([value, [value] * 9], None), ([np.array([value] * 9), value], None)]
    blocks.append(([np.ma.array([value or 0] * 9, mask=np.arange(9) % 3 == 1), value], None))
    check_blocks([kind, kind], blocks)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("page_bytes", PAGE_SIZES)
def test_long_texts_continue_in_overflow_pages(page_bytes: int) -> None:
    around = [page_bytes * k + more for k in (1, 2, 3) for more in range(-50, 20, 3)]
    texts = ["é" * (length // 2) + "x" * (length % 2) for length in around]
    short = [None if n % 3 else "short" for n in range(len(texts))]
    check_blocks(
        ["TEXT", "INTEGER", "TEXT"], [([texts, np.arange(len(texts)), short], None)] * 2, page_bytes
    )


def test_long_text_in_every_row_reads_back(tmp_path: Path) -> None:
    check_blocks(["TEXT", "INTEGER"], [(["long" * 1000, np.arange(50)], None)], 512)


@pytest.mark.parametrize("columns", [100, 126, 127, 128, 300])
def test_records_of_many_columns_have_longer_headers(columns: int) -> None:
    block = [np.arange(20) + j for j in range(columns - 1)]
    check_blocks(
        ["INTEGER"] * columns,
        [([*block, np.ma.array(np.arange(20), mask=np.arange(20) % 2 > 0)], None)],
    )


@pytest.mark.slow
def test_rows_of_a_high_tree_read_back() -> None:
    number = np.arange(60_000)
    blocks = [([number * 977, number / 3], None)] * 5
    check_blocks(["INTEGER", "NUMERIC"], blocks, 512)


def test_lock_page_of_sqlite_is_skipped(tmp_path: Path) -> None:
    """A sparse gigabyte precedes the pages."""
    path = tmp_path / "x.db"
    root = create_table(path, ["INTEGER", "TEXT"], 65536)
    pages = 2**30 // 65536 - 3
    with path.open("r+b") as file:
        file.truncate(pages * 65536)
        file.seek(28)
        file.write(pages.to_bytes(4, "big"))
    written = PageFile(path)
    written.begin()
    assert written.header.lock_page == pages + 4
    tree = TableTree(root, written.header.page_bytes, written.header.usable)
    number = np.arange(30_000) * 10**9
    texts, rows = batches.read({"x": ["y" * 200_000] * 3}, table="t")
    tree.append(written, [field_of(batches.Numbers(number), affinity_of("INTEGER"))] * 2, number)
    fields = [field_of(batches.Constant(5), affinity_of("")), field_of(texts["x"], affinity_of(""))]
    tree.append(written, fields, number[-1] + 1 + np.arange(rows))
    tree.finish(written)
    written.end()
    written.close()
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT count(*), sum(c0), sum(length(c1)) FROM t").fetchone()
        length = int(sum(map(len, map(str, number))) + 600_000)
        assert found == (30_003, int(number.sum()) + 15, length)
        complaints = [line for (line,) in db.execute("PRAGMA integrity_check(10)")]
        assert all("never used" in line for line in complaints), complaints
    with path.open("rb") as file:
        file.seek(2**30)
        assert file.read(65536) == bytes(65536)


def test_pages_and_sqlite_statements_alternate(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    root = create_table(path, ["INTEGER"], 1024)
    file = PageFile(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("CREATE TABLE other (x)")
        tree = TableTree(root, 1024, 1024)
        field = field_of(batches.Numbers(np.arange(1000)), affinity_of("INTEGER"))
        for turn in range(5):
            file.begin()
            tree.append(file, [field], turn * 1000 + np.arange(1000))
            file.end()
            db.execute("BEGIN")
            db.executemany("INSERT INTO other VALUES (?)", [("x" * 100,)] * 200)
            db.execute("COMMIT")
        file.begin()
        tree.finish(file)
        file.end()
        assert db.execute("SELECT count(*) FROM other").fetchone() == (1000,)
        assert db.execute("SELECT count(*), sum(c0) FROM t").fetchone() == (5000, 5 * 499_500)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()


def test_sqlite_rereads_a_changed_root_page(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    root = create_table(path, ["INTEGER"], 1024)
    file = PageFile(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
        file.begin()
        tree = TableTree(root, 1024, 1024)
        tree.append(file, [field_of(batches.Constant(7), affinity_of("INTEGER"))], np.arange(3))
        tree.finish(file)
        file.end()
        assert db.execute("SELECT count(*) FROM t").fetchone() == (3,)
    file.close()


@pytest.mark.parametrize("setting", ["encoding = 'UTF-16le'", "auto_vacuum = FULL"])
def test_files_of_other_encoding_are_not_suitable(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA {setting}")
        db.execute("CREATE TABLE t (x)")
    with closing(sqlite3.connect(path)):
        file = PageFile(path)
        file.begin()
        assert not file.suitable
        file.close()
