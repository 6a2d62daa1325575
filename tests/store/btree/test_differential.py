"""Tables read from pages, against SQLite: for any schema, file layout, query and damage."""

import random
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.btree.test_scan import all_cells, create_table, integer, opened
from unified_prof.arrays.grouping import MISSING
from unified_prof.errors import StoreError, UprofError
from unified_prof.sqlite import column_reader, integer_columns
from unified_prof.sqlite.external_tables import foreign_tables
from unified_prof.sqlite.pages import record_reader
from unified_prof.sqlite.statements import reading, row_id_name

_ROW_ID_NAMES = ("rowid", "OID", "_RowId_")
_TYPES = ("", "INTEGER", "INT", "BIGINT", "TEXT", "VARCHAR(9)", "REAL", "NUMERIC", "BLOB")
_STRICT_TYPES = ("INTEGER", "INT", "TEXT", "REAL", "BLOB", "ANY")
_VALUES: tuple[Any, ...] = (
    *(None, 0, 1, -5, 127, 2**20, -(2**40), 2**62, -(2**63), 2.5, float("inf"), "12", "9" * 19),
    *("-7", "y", "é漢", "a\0b", "", "long " * 900, b"", b"\xff\0", b"7" * 3000),
)

_DIGITS = "iif(x GLOB '[0-9]*', CAST(x AS INTEGER), NULL)"


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "_BYTES_AT_A_TIME", 4096)
    monkeypatch.setattr(column_reader, "_CHUNK_ROWS", 50)


def reserve(path: Path, chance: random.Random) -> None:
    """Reserve bytes at the end of each page of an empty database, as encryption does."""
    data = bytearray(path.read_bytes())
    page_bytes = {1: 65536}.get(size := int.from_bytes(data[16:18], "big"), size)
    data[20] = chance.randint(1, min(255, page_bytes - 480))
    # Where the cells of the first page, which has none, would end.
    data[105:107] = (page_bytes - data[20]).to_bytes(2, "big")
    path.write_bytes(data)


def build(path: Path, chance: random.Random, *, reserves: bool = False) -> list[str]:
    """Write a database with table t of any layout and return the names of its columns."""
    names = ["a", "b", "c d", *chance.sample(_ROW_ID_NAMES, chance.choice((0, 0, 1, 2, 3)))]
    chance.shuffle(names)
    strict = chance.random() < 0.15
    kinds = [chance.choice(_STRICT_TYPES if strict else _TYPES) for _ in names]
    keyless = chance.random() < 0.15
    if keyless or chance.random() < 0.4:
        key = chance.choice(("INTEGER PRIMARY KEY", "INT PRIMARY KEY"))
        kinds[0] = f"{key} DESC" if not strict and chance.random() < 0.2 else key
    columns = [f'"{name}" {kind}' for name, kind in zip(names, kinds, strict=True)]
    if chance.random() < 0.2:
        columns.append(f"g INTEGER AS (1) {chance.choice(('STORED', 'VIRTUAL'))}")
    options = [*(["WITHOUT ROWID"] if keyless else []), *(["STRICT"] if strict else [])]
    with ExitStack() as stack:
        db = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        for name, values in {
            "page_size": (512, 1024, 4096, 8192, 65536),
            "auto_vacuum": (0, 0, 1, 2),
            "encoding": ("'UTF-8'", "'UTF-8'", "'UTF-16le'", "'UTF-16be'"),
            "journal_mode": ("DELETE", "DELETE", "DELETE", "WAL"),
        }.items():
            db.execute(f"PRAGMA {name} = {chance.choice(values)}")
        if reserves:
            db.execute("VACUUM")
            db.close()
            reserve(path, chance)
            db = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        db.create_function("random", 0, lambda: chance.randrange(1 << 62))  # of the seed
        db.execute(f"CREATE TABLE t ({', '.join(columns)}) {', '.join(options)}")
        row_id = row_id_name(names) if not keyless and "PRIMARY" not in kinds[0] else None
        db.execute("BEGIN")
        for number in range(chance.choice((0, 1, 30, 300))):
            row = [chance.choice(_VALUES) for _ in names]
            if "PRIMARY" in kinds[0]:
                row[0] = number * chance.choice((1, -1, 7)) * 10 + number % 3
            into = [f'"{name}"' for name in names]
            if row_id is not None:
                into.append(row_id)
                row.append(chance.choice((1, -1, 2**40)) * number)
            marks = ", ".join("?" * len(row))
            try:
                db.execute(f"INSERT INTO t ({', '.join(into)}) VALUES ({marks})", row)
            except sqlite3.IntegrityError:
                continue  # the key exists, or STRICT refuses the type
        db.execute("COMMIT")
        if chance.random() < 0.3:
            db.execute("DELETE FROM t WHERE abs(random()) % 3 = 0")
        if chance.random() < 0.3:
            db.execute(f'CREATE INDEX i ON t ("{names[0]}", "{names[-1]}")')
        if chance.random() < 0.2:
            db.execute("ALTER TABLE t ADD COLUMN later INTEGER")
            names.append("later")
        if chance.random() < 0.2:
            db.execute("VACUUM")
    return names


def expressions(names: Sequence[str]) -> list[str]:
    """Return every kind of expression that readers select from a table."""
    first, last = f'"{names[0]}"', f'"{names[-1]}"'
    return [
        *(f'"{name}"' for name in names),
        f"coalesce({first}, -1)",
        f"coalesce({last}, {MISSING + 1} - 1)",
        f"CAST({first} AS INTEGER)",
        f"iif({last} GLOB '[0-9]*', CAST({last} AS INTEGER), NULL)",
        f"{first} - {last}",
        f"{first} + 0",
    ]


def requests(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield every kind of request that decoders make for a table of another profiler."""
    yield {"numbers": {names[0]: -7}, "reals": names[1:2], "texts": names[2:]}
    yield {"numbers": dict.fromkeys(names, 3)}
    yield {"numbers": {names[-1]: 0}, "only": (names[0], (0, 1, -5, 10))}
    yield {"numbers": {}, "texts": [names[0]], "only": (names[-1], None)}


def by_pages(path: Path, expression: str, how: str) -> list[int]:
    with opened(path) as db:
        columns = {"x": expression}
        if how == "whole":
            found = integer_columns.of_table(db, path, "t", columns)["x"].tolist()
        elif how == "pieces":
            parts = integer_columns.batches(db, path, "t", columns)
            found = [value for part in parts for value in part["x"].tolist()]
        else:
            windows = list(integer_columns.windows(db, path, "t", columns))
            found = [value for part, _ in windows for value in part["x"].tolist()]
            selected = [
                row[0]
                for _, window in windows
                for row in db.execute(f"SELECT {expression} FROM {window.sql}", window.values)
            ]
            assert list(map(integer, selected)) == found
    return list(found)


def by_sqlite(path: Path, expression: str) -> list[int]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.text_factory = bytes
        try:
            rows = db.execute(f"SELECT {expression} FROM t NOT INDEXED").fetchall()
        except UnicodeDecodeError as error:  # the message quotes a damaged name
            raise sqlite3.DatabaseError(str(error)) from error
    return [integer(row[0]) for row in rows]


def cells(path: Path, **asked: Any) -> str:
    with foreign_tables(path) as tables:
        found, unreadable = all_cells(tables, **asked)
    return repr((found, sorted(unreadable.items())))  # NaN is not equal to itself


def cells_by_sqlite(path: Path, **asked: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unified_prof.sqlite.external_tables.scan", lambda db, table: None)
        return cells(path, **asked)


@pytest.mark.slow
@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_any_database_gives_the_rows_of_sqlite(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_columns, "_SMALL_BYTES", chance.choice((-1, 1 << 30)))
        path = Path(folder) / "a.db"
        names = build(path, chance, reserves=chance.random() < 0.25)
        for expression in (*expressions(names), _DIGITS.replace("x", f'"{names[0]}"')):
            how = chance.choice(("whole", "pieces", "windows"))
            assert by_pages(path, expression, how) == by_sqlite(path, expression), expression
        for asked in requests(names):
            assert cells(path, **asked) == cells_by_sqlite(path, **asked), asked


def test_negative_row_ids_are_no_digits(tmp_path: Path) -> None:
    path = create_table(tmp_path / "a.db", [(at, at) for at in range(-9, 9)], columns="a")
    expression = _DIGITS.replace("x", "rowid")
    for how in ("whole", "pieces", "windows"):
        assert by_pages(path, expression, how) == [MISSING] * 9 + [*range(9)]


@pytest.mark.parametrize("small", [True, False])
def test_index_does_not_change_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """SQLite reads a covering index instead of the table if a query lets it."""
    monkeypatch.setattr(integer_columns, "_SMALL_BYTES", (1 << 30) * small - 1)
    rows = [(at, 500 - at, "x" * 99) for at in range(500)]
    indexed = ["CREATE INDEX i ON t (a)"]
    path = create_table(tmp_path / "a.db", rows, columns="a, d TEXT", after=indexed)
    expected = [value for _, value, _ in rows]
    for how in ("whole", "pieces", "windows"):
        assert by_pages(path, "a", how) == expected
    assert cells_by_sqlite(path, numbers={"a": 0}) == cells(path, numbers={"a": 0})
    with opened(path) as db, reading(path):
        what = integer_columns._wanted_columns(db, path, "t", {"a": "a"})
        column_reader.check_order(db, what)
        query = f"SELECT a FROM {column_reader.all_rows(db, what)}"
        assert [value for (value,) in db.execute(query)] == expected


@pytest.mark.slow
def test_a_live_writer_is_never_seen_halfway(tmp_path: Path) -> None:
    """Each transaction gives all rows one value, with a write-ahead log and without."""
    for mode in ("WAL", "DELETE"):
        path = tmp_path / f"{mode}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(f"PRAGMA journal_mode = {mode}")
            db.execute("CREATE TABLE t (a INTEGER, d TEXT)")
            db.executemany("INSERT INTO t VALUES (0, ?)", [("x" * 50,)] * 1500)
        stop = threading.Event()

        def write(path: Path = path, stop: threading.Event = stop) -> None:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as writer:
                value = 0
                while not stop.is_set():
                    value += 1
                    writer.execute("UPDATE t SET a = ?", (value,))
                    stop.wait(0.002)

        thread = threading.Thread(target=write)
        thread.start()
        seen: Counter[str] = Counter()
        try:
            for how in ("whole", "pieces") * 8:
                try:
                    found = by_pages(path, '"a"', how)
                except UprofError as err:
                    assert "is being written" in str(err), err  # noqa: PT017
                    seen["refused"] += 1
                    continue
                assert len(found) == 1500
                assert len(set(found)) == 1
                seen["read"] += 1
        finally:
            stop.set()
            thread.join()
        assert seen["read"] + seen["refused"] == 16


# ---- damage


def damaged(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    size = int.from_bytes(found[16:18], "big")
    size = 65536 if size == 1 else size
    kind = chance.random()
    if kind < 0.1:
        return bytes(found[: chance.randrange(100, len(found))])
    if kind < 0.3 and len(found) >= 3 * size:
        one, other = (size * chance.randrange(1, len(found) // size) for _ in range(2))
        kept = found[one : one + size]
        found[one : one + size] = found[other : other + size]
        if chance.random() < 0.5:
            found[other : other + size] = kept
        return bytes(found)
    for _ in range(chance.choice((1, 1, 2, 8))):
        # Half of them where pages have their headers and cell pointers.
        at = chance.randrange(100, len(found))
        if chance.random() < 0.5:
            at = min(at // size * size + chance.randrange(40), len(found) - 1)
        found[at] = chance.choice(
            (0, 1, 5, 13, 127, 128, 255, found[at] ^ 1 << chance.randrange(8))
        )
    return bytes(found)


def outcome(read: Any, *arguments: Any, **named: Any) -> tuple[str, Any]:
    try:
        return "rows", read(*arguments, **named)
    except StoreError as err:
        return "refused", str(err)
    except (sqlite3.Error, sqlite3.Warning) as err:
        return "error", str(err)


def compare_damaged(folder: Path, seeds: Sequence[int]) -> Counter[str]:
    """Read damaged databases by pages and by SQLite; return counts, with losses as failures."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        path = folder / "damaged.db"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        names = build(path, chance)
        intact = folder / "intact.db"
        shutil.copyfile(path, intact)
        path.write_bytes(damaged(path.read_bytes(), chance))
        expression = chance.choice(expressions(names))
        how = chance.choice(("whole", "pieces", "windows"))
        asked = chance.choice(list(requests(names)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(integer_columns, "_SMALL_BYTES", chance.choice((-1, 1 << 30)))
            pairs: list[tuple[Any, Any, Any]] = [
                (
                    outcome(by_pages, path, expression, how),
                    outcome(by_sqlite, path, expression),
                    partial(by_sqlite, intact, expression),
                ),
                (
                    outcome(cells, path, **asked),
                    outcome(cells_by_sqlite, path, **asked),
                    partial(cells_by_sqlite, intact, **asked),
                ),
            ]
        for number, (ours, theirs, undamaged) in enumerate(pairs):
            kinds = (ours[0], theirs[0])
            if kinds == ("rows", "rows"):
                # SQLite may read rows out of order in two ways, one of them as without damage.
                equal = ours[1] == theirs[1] or ours[1] == undamaged()
                counts["equal" if equal else f"different rows: seed {seed}, {number}"] += 1
            elif ours[0] == "rows" and ours[1] == undamaged():
                counts["equal"] += 1  # the damage is in values that need not be read
            elif ours[0] == "rows":
                counts[f"loss: seed {seed}, {number}: {theirs[1]}"] += 1
            else:
                counts["refused" if theirs[0] != "rows" else "refused by uprof only"] += 1
    return counts


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("first", range(0, 2_000, 50))
def test_damage_gives_the_rows_of_sqlite_or_an_error(tmp_path: Path, first: int) -> None:
    counts = compare_damaged(tmp_path / "files", range(first, first + 50))
    expected = {"equal", "refused", "refused by uprof only"}
    assert {name for name in counts if name not in expected} == set()
    assert counts["equal"] > 20
