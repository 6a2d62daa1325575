"""Rows read from pages equal those of SQLite, for any contents of the file."""

import random
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql import execute
from unified_prof.arrays.grouping import MISSING
from unified_prof.base.columns import Tables
from unified_prof.errors import UprofError
from unified_prof.sqlite import column_reader, external_tables, integer_columns
from unified_prof.sqlite.external_tables import foreign_tables
from unified_prof.sqlite.integer_columns import of_table
from unified_prof.sqlite.opening import open_read_only
from unified_prof.sqlite.pages import record_reader as scanning
from unified_prof.sqlite.pages.format import FileConnection
from unified_prof.sqlite.pages.record_reader import Unusual, scan

INTEGERS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.integers(-3, 3),
    st.builds(lambda bits, off: (1 << bits) + off, st.integers(6, 61), st.integers(-2, 2)),
    st.builds(lambda bits, off: -(1 << bits) + off, st.integers(6, 61), st.integers(-2, 2)),
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.builds(lambda text, times: text * times, st.sampled_from("aé\0"), st.integers(50, 5000)),
)
ANY = st.one_of(INTEGERS, INTEGERS, st.none(), st.floats(), TEXTS, st.binary(max_size=90))
ROW_IDS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 400))


@contextmanager
def opened(path: Path) -> Iterator[FileConnection]:
    with ExitStack() as resources:
        db = open_read_only(path, resources)
        assert isinstance(db, FileConnection)
        yield db


def create_table(
    path: Path,
    rows: Sequence[tuple[Any, ...]],
    *,
    columns: str = "a, b INTEGER, c REAL, d TEXT",
    page_bytes: int = 4096,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Path:
    """Write table t; each row starts with its row id."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        for statement in before:
            db.execute(statement)
        db.execute(f"CREATE TABLE t ({columns})")
        if rows:
            count = len(rows[0])
            names = ", ".join(part.split()[0] for part in columns.split(",")[: count - 1])
            db.execute("BEGIN")
            db.executemany(
                f"INSERT INTO t (rowid, {names}) VALUES ({', '.join('?' * count)})", rows
            )
            db.execute("COMMIT")
        for statement in after:
            db.execute(statement)
    return path


def selected(db: sqlite3.Connection, *columns: str) -> list[tuple[Any, ...]]:
    return db.execute(f"SELECT {', '.join(columns)} FROM main.t NOT INDEXED").fetchall()


def integer(value: Any) -> int:
    return value if isinstance(value, int) else MISSING


def check_integers(path: Path, *columns: str, only_pages: bool = False) -> None:
    """Compare `of_table` with SELECT."""
    with opened(path) as db, pytest.MonkeyPatch.context() as patch:
        if only_pages:
            patch.setattr(column_reader, "read", None)
        found = of_table(db, path, "t", {name: name for name in columns})
        rows = selected(db, *columns)
    for at, name in enumerate(columns):
        assert found[name].tolist() == [integer(row[at]) for row in rows], name


def all_cells(tables: Tables, **request: Any) -> tuple[dict[str, list[Any]], dict[str, int]]:
    cells: dict[str, list[Any]] = {}
    for part in tables.slices("t", **request):
        for name, values in part.items():
            listed = values if isinstance(values, list) else values.tolist()
            cells.setdefault(name, []).extend(listed)
    return cells, dict(tables.unreadable)


def check_foreign(path: Path, *, only_pages: bool = False, **request: Any) -> None:
    """Compare `Tables.slices` from pages with the same through SQLite."""
    with foreign_tables(path) as tables, pytest.MonkeyPatch.context() as patch:
        if only_pages:
            patch.setattr(type(tables), "_of_rows", None)
        found = all_cells(tables, **request)
    with pytest.MonkeyPatch.context() as patch, foreign_tables(path) as tables:
        patch.setattr("unified_prof.sqlite.external_tables.scan", lambda db, table: None)
        expected = all_cells(tables, **request)
    assert repr(found) == repr(expected)  # NaN is not equal to itself


REQUEST: dict[str, Any] = {"numbers": {"b": -7, "x": 5}, "reals": ["c"], "texts": ["d"]}


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_BYTES_AT_A_TIME", 4096)


@given(
    st.lists(
        st.tuples(ROW_IDS, ANY, ANY, st.one_of(st.none(), st.floats(), INTEGERS), TEXTS),
        unique_by=lambda row: row[0],
        max_size=100,
    ),
    st.sampled_from([512, 1024, 4096, 65536]),
    st.sets(st.integers(0, 10)),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_rows_in_any_pages_equal_those_of_sqlite(
    rows: list[tuple[Any, ...]], page_bytes: int, deleted: set[int], vacuum: bool
) -> None:
    after = [f"DELETE FROM t WHERE abs(rowid % 11) = {remainder}" for remainder in deleted]
    after += ["VACUUM"] if vacuum else []
    with tempfile.TemporaryDirectory() as folder:
        path = create_table(Path(folder) / "a.db", rows, page_bytes=page_bytes, after=after)
        digits = "iif(rowid GLOB '[0-9]*', CAST(rowid AS INTEGER), NULL)"
        check_integers(path, "a", "b", "rowid", digits)
        check_foreign(path, **REQUEST)
        check_foreign(path, numbers={"b": 0}, only=("b", None))
        check_foreign(path, numbers={"rowid": 0, "b": 1}, only=("a", (1, 2, -3)))


@given(st.lists(st.tuples(INTEGERS, INTEGERS), min_size=1, max_size=200))
@settings(max_examples=30, deadline=None)
def test_differences_equal_those_of_sqlite(pairs: list[tuple[int, int]]) -> None:
    rows = [(at, *pair) for at, pair in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        path = create_table(Path(folder) / "a.db", rows, columns="a INTEGER, b INTEGER")
        with opened(path) as db:
            found = of_table(db, path, "t", {"a": "b - a", "b": "[a] - rowid"})
            expected = selected(db, "b - a", "a - rowid")
    assert found["a"].tolist() == [integer(row[0]) for row in expected]
    assert found["b"].tolist() == [integer(row[1]) for row in expected]


@pytest.mark.parametrize("value", [None, "7", 1.5, b"7"])
def test_differences_of_other_values_equal_those_of_sqlite(tmp_path: Path, value: Any) -> None:
    rows = [(1, 10, 3), (2, value, 3), (3, 3, value), (4, -(2**63), 1), (5, 2**63 - 1, 1)]
    path = create_table(tmp_path / "a.db", rows, columns="a, b")
    check_integers(path, "a - b", "b")


@pytest.mark.parametrize("default", ["-1", "0", str(2**40), f"{MISSING + 1} - 1"])
def test_defaults_for_null_equal_those_of_sqlite(tmp_path: Path, default: str) -> None:
    rows = [(1, 10, None), (2, None, 3), (3, "7", 1.5), (4, -(2**63), b"x"), (5, None, None)]
    path = create_table(tmp_path / "a.db", rows, columns="a, b INTEGER")
    check_integers(path, f"coalesce(a, {default})", f"coalesce([b], {default})", "b")
    check_integers(path, f"coalesce(rowid, {default})")
    with opened(path) as db:
        wanted = column_reader.Wanted(path, "t", (f"coalesce(a, {default})",), (False,), "rowid")
        assert integer_columns._paged(db, wanted) is not None


def test_serial_types_are_read_alone_and_mixed(tmp_path: Path) -> None:
    """Columns of one type and of two types are read by separate code, both without SQLite."""
    samples = [None, 0, 1, 100, -100, 300, 70_000, -70_000, 2**30, 2**40, -(2**40), 2**60, 1.5]
    columns = ", ".join(f"c{at}" for at in range(len(samples) + 1))
    rows = [(at, *samples, "text") for at in range(300)]
    path = create_table(tmp_path / "alone.db", rows, columns=columns)
    check_integers(path, *columns.split(", "), only_pages=True)
    numbers = {f"c{at}": -5 for at in range(12)}
    check_foreign(path, only_pages=True, numbers=numbers, reals=["c12"], texts=["c13"])
    texts = [None, "", "a", "\u00e9" * 70]
    rows = [
        (at, *(samples[(at + shift) % len(samples)] for shift in range(4)), texts[at % 4])
        for at in range(99)
    ]
    path = create_table(tmp_path / "mixed.db", rows, columns="c0, c1, c2, c3, c4")
    check_integers(path, "c0", "c1", "c2", "c3", only_pages=True)
    check_foreign(path, numbers={"c0": 4}, reals=["c1", "c2"], texts=["c4"])
    rows = [(at, samples[at % 12], samples[12 * (at % 2)], texts[at % 4]) for at in range(99)]
    path = create_table(tmp_path / "typed.db", rows, columns="c0, c1, c2")
    check_foreign(path, only_pages=True, numbers={"c0": 4}, reals=["c1"], texts=["c2"])


def three_columns(count: int = 3000) -> list[tuple[int, int, int]]:
    return [(at * 3, at * at, -at) for at in range(count)]


def rows_from_pages(path: Path, columns: Sequence[str]) -> int:
    """Return the number of rows of t that come from pages without SQLite."""
    with opened(path) as db:
        pages = scan(db, "t")
        if pages is None:
            return 0
        count = 0
        for part in pages.slices():
            try:
                part.columns(columns)
            except Unusual:
                continue
            count += len(part)
        return count


def test_plain_tables_are_read_from_pages(tmp_path: Path) -> None:
    """Otherwise, the tests above would compare SQLite with itself."""
    path = create_table(tmp_path / "a.db", three_columns(), columns="a INTEGER, b INTEGER")
    assert rows_from_pages(path, ["a", "b"]) == 3000
    path = create_table(
        tmp_path / "b.db", three_columns(), columns="a INTEGER, b", page_bytes=65536
    )
    assert rows_from_pages(path, ["A", "B"]) == 3000


def test_values_after_overflowing_texts_equal_those_of_sqlite(tmp_path: Path) -> None:
    rows = [(at, at, "long" * 3000 if at % 50 == 3 else "x", -at) for at in range(400)]
    path = create_table(tmp_path / "a.db", rows, columns="a, d, b")
    check_integers(path, "a", "b")
    check_foreign(path, numbers={"a": 0, "b": 0}, texts=["d"])
    assert rows_from_pages(path, ["a"]) == 400
    assert 0 < rows_from_pages(path, ["b"]) < 400


def test_added_columns_equal_those_of_sqlite(tmp_path: Path) -> None:
    after = [
        "ALTER TABLE t ADD COLUMN e INTEGER",
        "ALTER TABLE t ADD COLUMN f INTEGER DEFAULT NULL",
        "ALTER TABLE t ADD COLUMN g INTEGER DEFAULT 12",
        "INSERT INTO t VALUES (1, 2, 3, 4, 5)",
    ]
    path = create_table(tmp_path / "a.db", three_columns(50), columns="a, b", after=after)
    check_integers(path, "a", "b", "e", "f")
    check_integers(path, "b", "g")
    check_foreign(path, numbers={"a": 0, "e": -1, "g": -2}, texts=["f"])
    assert rows_from_pages(path, ["e", "f"]) == 51
    assert rows_from_pages(path, ["g"]) == 0


@pytest.mark.parametrize(
    "columns",
    [
        "a INTEGER PRIMARY KEY, b",
        "a INTEGER PRIMARY KEY DESC, b",
        "a INT PRIMARY KEY, b",
        "b, a INTEGER, PRIMARY KEY (a)",
        "a INTEGER, b INTEGER, PRIMARY KEY (a, b)",
    ],
)
def test_tables_with_keys_equal_those_of_sqlite(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE t ({columns})")
        db.executemany(
            "INSERT INTO t (a, b) VALUES (?, ?)", [(at * 7 % 101, at) for at in range(101)]
        )
    check_integers(path, "a", "b", "rowid")
    check_foreign(path, numbers={"a": 1, "b": 2})
    check_foreign(path, numbers={"b": 2}, texts=["a"])
    check_foreign(path, numbers={"b": 2}, reals=["a"], only=("a", (3, 5, 90)))


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("a INTEGER PRIMARY KEY, b", "WITHOUT ROWID"),
        ("a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1)", ""),
        ("a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1) STORED", ""),
    ],
)
def test_generated_columns_go_through_sqlite(tmp_path: Path, columns: str, options: str) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE t ({columns}) {options}")
        db.executemany("INSERT INTO t (a) VALUES (?)", [(at,) for at in range(50)])
    assert rows_from_pages(path, ["a"]) == 0
    check_foreign(path, numbers={"a": 1, "b": 2})


@pytest.mark.parametrize("names", [("rowid",), ("RowId", "oid"), ("rowid", "oid", "_rowid_")])
def test_columns_named_like_row_ids_are_equal(tmp_path: Path, names: tuple[str, ...]) -> None:
    columns = ", ".join(f"{name} INTEGER" for name in ("a", *names))
    path = create_table(tmp_path / "a.db", [], columns=columns)
    with closing(sqlite3.connect(path)) as db, db:
        values = ", ".join("?" * (1 + len(names)))
        rows = [(at, *[5] * len(names)) for at in range(50)]
        db.executemany(f"INSERT INTO t VALUES ({values})", rows)
    assert rows_from_pages(path, ["a"]) == (0 if len(names) == 3 else 50)
    check_foreign(path, numbers={"a": 1, names[0]: 2})


def test_index_does_not_change_the_order_of_rows(tmp_path: Path) -> None:
    rows = [(at, -at % 7, at, None, None) for at in range(200)]
    path = create_table(tmp_path / "a.db", rows, after=["CREATE INDEX i ON t (a, b)"])
    with foreign_tables(path) as tables:
        cells, _ = all_cells(tables, numbers={"a": 0, "b": 0}, only=("a", (1, 2, 3)))
    assert cells["b"] == [at for at in range(200) if -at % 7 in (1, 2, 3)]
    check_foreign(path, numbers={"a": 0, "b": 0}, only=("a", (1, 2, 3)))
    check_foreign(path, numbers={"a": 0}, only=("b", (3, 7, 5)))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_texts_of_every_encoding_equal_those_of_sqlite(tmp_path: Path, encoding: str) -> None:
    rows = [(at, at, "aé漢" * at) for at in range(40)]
    before = [f"PRAGMA encoding = '{encoding}'"]
    path = create_table(tmp_path / "a.db", rows, columns="a, d", before=before)
    check_integers(path, "a")
    check_foreign(path, numbers={"a": 0}, texts=["d"])


def test_texts_up_to_the_limit_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_tables, "MAX_TEXT", 5)
    for text in ("12345", "123456"):
        rows = [(at, text[:at]) for at in range(len(text) + 1)]
        path = create_table(tmp_path / f"{text}.db", rows, columns="d TEXT")
        check_foreign(path, numbers={}, texts=["d"], only_pages=len(text) == 5)


def test_unusual_texts_equal_those_of_sqlite(tmp_path: Path) -> None:
    unusual = ["", "a\0b", b"\xff\xfe", 5, 2.5, None, "é" * 40_000, "x" * 70_000, "\ufeffx"]
    rows = [(at, value) for at, value in enumerate(unusual)] + [(at, "y") for at in range(10, 300)]
    after = ["INSERT INTO t VALUES (CAST(x'61ff62' AS TEXT))"]
    path = create_table(tmp_path / "a.db", rows, columns="d", page_bytes=65536, after=after)
    check_foreign(path, numbers={}, texts=["d"])


def test_integers_in_real_columns_equal_those_of_sqlite(tmp_path: Path) -> None:
    rows = [(at, at, at) for at in range(100)]
    path = create_table(tmp_path / "a.db", rows, columns="c REAL, b")
    check_integers(path, "c", "b")
    check_foreign(path, numbers={"c": 0}, reals=["b"])
    check_foreign(path, numbers={"b": 0}, reals=["c"], only=("c", (5, 6)))


def test_reserved_bytes_at_the_end_of_pages_are_skipped(tmp_path: Path) -> None:
    """Checksums or encryption keys reserve them at the end of every page."""
    path = tmp_path / "a.db"
    header = bytearray(create_table(tmp_path / "b.db", []).read_bytes())
    header[20] = 40
    empty = tmp_path / "c.db"
    empty.write_bytes(header)
    execute(empty, f"VACUUM INTO '{path}'")
    path = empty
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("VACUUM")
        db.execute("BEGIN")
        db.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?)", [(at, at, at / 3, "x" * at) for at in range(900)]
        )
        db.execute("COMMIT")
    assert path.read_bytes()[20] == 40
    check_integers(path, "a", "b")
    check_foreign(path, **REQUEST)
    assert rows_from_pages(path, ["a", "b"]) == 900


def test_write_ahead_log_is_included(tmp_path: Path) -> None:
    path = create_table(tmp_path / "a.db", three_columns(100), columns="a, b")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE t SET a = 5")
        check_integers(path, "a")
        with opened(path) as reader:
            assert scan(reader, "t") is None
    check_integers(path, "a")


def test_writer_waits_until_the_rows_are_read(tmp_path: Path) -> None:
    path = create_table(tmp_path / "a.db", three_columns(), columns="a, b")
    with opened(path) as db, closing(sqlite3.connect(path, timeout=0)) as writer:
        parts = integer_columns.windows(db, path, "t", {"a": "a"})
        found = next(parts)[0]["a"].tolist()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.execute("UPDATE t SET a = 0").connection.commit()
        writer.rollback()
        for part, _ in parts:
            found += part["a"].tolist()
        assert found == [at * at for at in range(3000)]
        writer.execute("UPDATE t SET a = 0").connection.commit()
        assert set(of_table(db, path, "t", {"a": "a"})["a"].tolist()) == {0}


def test_replaced_file_does_not_affect_an_open_one(tmp_path: Path) -> None:
    path = create_table(tmp_path / "a.db", three_columns(), columns="a, b")
    other = create_table(tmp_path / "b.db", [(1, 7, 7)], columns="a, b")
    with opened(path) as db:
        other.replace(path)
        assert len(of_table(db, path, "t", {"a": "a"})["a"]) == 3000


def read_everything(path: Path) -> list[Any]:
    """Return everything that can be read of t, or "error"."""
    results: list[Any] = []
    try:
        with foreign_tables(path) as tables:
            results.append(all_cells(tables, **REQUEST))
    except UprofError:
        results.append("error")
    try:
        with opened(path) as db:
            found = of_table(db, path, "t", {"a": "a", "d": "b"})
            results.append({name: values.tolist() for name, values in found.items()})
    except UprofError:
        results.append("error")
    return results


def damage(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        # Half of the changes are in page headers and cell pointers.
        at = rng.randrange(100, len(found))
        if rng.random() < 0.5:
            at = at // 512 * 512 + rng.randrange(40)
        found[at] = rng.choice([0, 1, 5, 13, 127, 128, 255, found[at] ^ 1 << rng.randrange(8)])
    return bytes(found)


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("seed", range(4))
def test_damage_gives_the_rows_of_sqlite_or_an_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        (at * 2, at * at, at - 50, at / 7, f"text {at}" * (1 if at % 40 else 90))
        for at in range(600)
    ]
    data = create_table(tmp_path / "a.db", rows, page_bytes=512).read_bytes()
    path = tmp_path / "damaged.db"
    differing = 0
    for _ in range(40):
        path.write_bytes(damage(data, rng))
        found = read_everything(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("unified_prof.sqlite.external_tables.scan", lambda db, table: None)
            patch.setattr("unified_prof.sqlite.integer_columns.scan", lambda db, table: None)
            expected = read_everything(path)
        for ours, theirs in zip(found, expected, strict=True):
            if "error" not in (ours, theirs):
                assert repr(ours) == repr(theirs)
            # Only the page reader checks that row ids ascend.
            differing += ours != "error" and theirs == "error"
    # SQLite follows offsets beyond the end of a page into memory, with varying results.
    assert differing <= 2


def test_pages_in_a_cycle_end_the_scan(tmp_path: Path) -> None:
    data = create_table(
        tmp_path / "a.db", three_columns(), columns="a, b", page_bytes=512
    ).read_bytes()
    pages = [bytearray(data[at : at + 512]) for at in range(0, len(data), 512)]
    interior = [number for number, page in enumerate(pages, 1) if page[0] == 5]
    path = tmp_path / "b.db"
    for number in interior:
        for target in {number, *interior} - {int.from_bytes(pages[number - 1][8:12], "big")}:
            changed = [bytes(page) for page in pages]
            page = bytearray(pages[number - 1])
            page[8:12] = target.to_bytes(4, "big")
            changed[number - 1] = bytes(page)
            path.write_bytes(b"".join(changed))
            with opened(path) as db:
                table = scan(db, "t")
                assert table is not None
                assert sum(len(part) for part in table.slices()) < 3000
                assert not table.is_done


def test_files_are_closed_with_their_connections(tmp_path: Path) -> None:
    path = create_table(tmp_path / "a.db", three_columns(10), columns="a, b")
    with opened(path) as db:
        file = db.file
        assert file is not None
        assert not file.closed
    assert file.closed


def test_extreme_integers_equal_those_of_sqlite(tmp_path: Path) -> None:
    rows = [(at, value) for at, value in enumerate([2**63 - 1, -(2**63), 2**47, -(2**47), 2**55])]
    path = create_table(tmp_path / "a.db", rows, columns="a")
    check_integers(path, "a")
    check_foreign(path, numbers={"a": 3})
    with opened(path) as db:
        assert of_table(db, path, "t", {"a": "a"})["a"].dtype == np.int64


OF_DIGITS = "iif(d GLOB '[0-9]*', CAST(d AS INTEGER), NULL)"
NUMBERS_AS_TEXT = st.one_of(
    st.integers(0, 2**64).map(str),
    st.integers(0, 10**6).map(str),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "0", "00012", "9" * 19]),
)
ODD_TEXT = st.one_of(
    TEXTS, st.sampled_from([" 12", "-5", "+7", "1.5e3", "12a", "1:", "/1", "", "\x001"])
)


@given(
    st.lists(NUMBERS_AS_TEXT, min_size=1, max_size=200),
    st.lists(st.one_of(NUMBERS_AS_TEXT, st.none(), INTEGERS, st.floats(), ODD_TEXT), max_size=8),
    st.sampled_from(["d TEXT", "d INTEGER", "d", "d REAL"]),
)
@settings(max_examples=60, deadline=None)
def test_decimal_texts_equal_sqlites(texts: list[str], others: list[Any], column: str) -> None:
    rows = list(enumerate([*texts, *others, *texts]))
    with tempfile.TemporaryDirectory() as folder:
        path = create_table(Path(folder) / "a.db", rows, columns=column)
        check_integers(path, "CAST(d AS INTEGER)", OF_DIGITS)


def test_times_stored_as_text_are_read_from_pages(tmp_path: Path) -> None:
    times = [str(1_736_410_576_000_000_000 + 1001 * number) for number in range(500)]
    path = create_table(tmp_path / "a.db", list(enumerate([*times, "7", 12])), columns="d TEXT")
    check_integers(path, "CAST(d AS INTEGER)", OF_DIGITS, only_pages=True)
    for number in (2**63 - 1, 2**63, 10**19 - 1):
        rows = [(at, str(number)) for at in range(3)]
        path = create_table(tmp_path / f"{number}.db", rows, columns="d TEXT")
        check_integers(path, "CAST(d AS INTEGER)", OF_DIGITS)


NAMES = ["a", "A b", "rowid", "oid", "_rowid_", "select", "é", "key"]
DECLARED = ["", "INTEGER", "INT", "BIGINT", "TEXT", "VARCHAR(9)", "REAL", "NUMERIC", "BLOB"]
DEFAULTS = ["", " DEFAULT 7", " DEFAULT NULL", " DEFAULT -1.5", " DEFAULT 'x'"]


@st.composite
def schemas(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Return column names, and statements that create table t with rows."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    kinds = [draw(st.sampled_from(DECLARED)) for _ in names]
    if draw(st.booleans()):
        kinds[draw(st.integers(0, len(names) - 1))] = draw(
            st.sampled_from(["INTEGER PRIMARY KEY", "INT PRIMARY KEY", "INTEGER PRIMARY KEY DESC"])
        )
    first = draw(st.integers(1, len(names)))
    columns = [f'"{name}" {kind}' for name, kind in zip(names, kinds, strict=True)]
    if any("PRIMARY" in kind for kind in kinds[first:]):
        first = len(names)
    statements = [f"CREATE TABLE t ({', '.join(columns[:first])})"]
    texts = ["NULL", "1", "-5", "2.5", "'12'", "'y'", "x'00'", str(2**40)]
    for table_columns in (first, len(names)):
        for row in range(draw(st.integers(0, 6))):
            values = [
                str(len(statements) * 10 + row)
                if "PRIMARY" in kind
                else draw(st.sampled_from(texts))
                for kind in kinds[:table_columns]
            ]
            statements.append(f"INSERT INTO t VALUES ({', '.join(values)})")
        if table_columns < len(names):
            statements += [
                f"ALTER TABLE t ADD COLUMN {column}{draw(st.sampled_from(DEFAULTS))}"
                for column in columns[first:]
            ]
    if draw(st.booleans()):
        statements.append(f'CREATE INDEX i ON t ("{names[0]}")')
    return names, statements


@given(schemas())
@settings(max_examples=80, deadline=None)
def test_any_schema_gives_the_values_of_sqlite(schema: tuple[list[str], list[str]]) -> None:
    names, statements = schema
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_columns, "_SMALL_BYTES", -1)
        path = Path(folder) / "a.db"
        with closing(sqlite3.connect(path)) as db, db:
            for statement in statements:
                db.execute(statement)
        quoted = [f'"{name}"' for name in names]
        check_integers(path, *quoted, f"coalesce({quoted[0]}, 3)", f"{quoted[0]} - {quoted[-1]}")
        check_foreign(path, numbers={names[0]: -7}, reals=names[1:2], texts=names[2:])
