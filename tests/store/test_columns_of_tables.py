"""`Report.integers`: columns from pages, printed text and cursors are equal."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device
from tests.sql import execute
from unified_prof import open_report
from unified_prof.arrays.grouping import MISSING
from unified_prof.errors import StoreError
from unified_prof.sqlite import column_reader, integer_columns
from unified_prof.sqlite.pages import record_reader

INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1)
VALUES = st.one_of(
    INTEGERS, INTEGERS, st.none(), st.sampled_from(["", "x", "1,2", "-", "1-2", 1.5, 1e300, b"x"])
)


def database(path: Path, rows: list[tuple[int, Any]]) -> Path:
    """Write a report whose TASK has these rows as (rowid, startNs)."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE TASK (startNs BLOB, endNs INTEGER, deviceId INTEGER,"
            " connectionId INTEGER, globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER,"
            " contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER)"
        )
        db.executemany("INSERT INTO TASK (rowid, startNs, endNs) VALUES (?, ?, 5)", rows)
    return path


def integers_or_missing(rows: list[tuple[int, Any]]) -> list[int]:
    values = [value for _, value in sorted(rows, key=lambda row: row[0])]
    return [value if isinstance(value, int) else MISSING for value in values]


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), VALUES), unique_by=lambda row: row[0]))
@settings(max_examples=25, deadline=None)
def test_any_values_are_returned_as_integers_or_missing(rows: list[tuple[int, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = database(Path(folder) / "report.db", rows)
        with open_report(path, any_revision=True) as report:
            found = report.integers("TASK", {"start": "startNs", "end": "endNs"})
    assert found["start"].tolist() == integers_or_missing(rows)
    assert found["end"].tolist() == [5] * len(rows)


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), VALUES), unique_by=lambda row: row[0]))
@settings(max_examples=25, deadline=None)
def test_small_and_large_files_give_equal_columns(rows: list[tuple[int, Any]]) -> None:
    wanted = {"start": "startNs", "length": "endNs - startNs", "end": "coalesce(endNs, 7)"}
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = database(Path(folder) / "report.db", rows)
        for small_bytes in (-1, 1 << 30):
            patch.setattr(integer_columns, "_SMALL_BYTES", small_bytes)
            with open_report(path, any_revision=True) as report:
                found.append(report.integers("TASK", wanted, narrow=("end",)))
    big, small = found
    for name in wanted:
        assert small[name].tolist() == big[name].tolist()
        assert not rows or small[name].dtype == big[name].dtype


def test_damaged_small_file_is_an_error(tmp_path: Path) -> None:
    path = database(tmp_path / "report.db", [(row, row) for row in range(1, 3000)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(range(256)) * 16
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_columns, "_SMALL_BYTES", 1 << 30)
        with open_report(path, any_revision=True) as report, pytest.raises(StoreError, match="dam"):
            report.integers("TASK", {"start": "startNs"})


@pytest.mark.parametrize("narrow", [(), ("start",)])
@pytest.mark.parametrize("expression", ["startNs", "startNs + 0"], ids=["pages", "printed"])
def test_parts_keep_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, narrow: tuple[str, ...], expression: str
) -> None:
    monkeypatch.setattr(column_reader, "_CHUNK_ROWS", 10)
    monkeypatch.setattr(record_reader, "_BYTES_AT_A_TIME", 1)
    monkeypatch.setattr(integer_columns, "_BLOCK_ROWS", 15)
    rows = [(number, None if number == 44 else number**5) for number in range(1, 100)]
    path = database(tmp_path / "report.db", rows)
    with open_report(path, any_revision=True) as report:
        found = report.integers("TASK", {"start": expression}, narrow=narrow)
    assert found["start"].tolist() == integers_or_missing(rows)


def test_narrow_columns_have_32_bits(tmp_path: Path) -> None:
    path = database(tmp_path / "report.db", [(1, 2**31 - 1), (2, -5)])
    with open_report(path, any_revision=True) as report:
        wide = report.integers("TASK", {"start": "startNs"})
        narrow = report.integers("TASK", {"start": "startNs"}, narrow=("start",))
    assert [str(column["start"].dtype) for column in (wide, narrow)] == ["int64", "int32"]


def test_older_table_is_read_through_its_view(tmp_path: Path) -> None:
    path = tmp_path / "msprof_1.db"
    with Device(path, "1.1.1_20250820") as device:
        device.collective(0, 10, "a", "b", device=3)
    with open_report(path) as report:
        columns = {"start": "startNs", "device": "deviceId"}
        found = report.integers("COMMUNICATION_OP", columns)
        absent = report.integers("NPU_MEM", {"hbm": "hbm"})
    assert found["start"].tolist() == [Device.T0]
    assert found["device"].tolist() == [MISSING], "the revision has no such column"
    assert absent["hbm"].tolist() == []


def test_view_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reader, "_ROWS_AT_A_TIME", 2)
    path = tmp_path / "msprof_1.db"
    with Device(path, "1.1.1_20250820") as device:
        for number in range(5):
            device.collective(number, 10, "a", "b")
    wanted = {"start": "startNs", "end": "endNs", "device": "deviceId", "size": "rankSize - 2"}
    with open_report(path) as report:
        found = report.integers("COMMUNICATION_OP", wanted, narrow=("device", "size"))
    assert found["start"].tolist() == [Device.T0 + number for number in range(5)]
    assert found["device"].tolist() == [MISSING] * 5
    assert str(found["end"].dtype) == "int64"


@pytest.mark.parametrize("small_bytes", [-1, 1 << 30], ids=["large file", "small file"])
@pytest.mark.parametrize("value", [None, 3, "x"])
@pytest.mark.parametrize("names", [("rowid",), ("ROWID", "oid"), ("rowid", "Oid", "_rowid_")])
def test_columns_named_like_row_ids_hide_no_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    value: Any,
    small_bytes: int,
) -> None:
    monkeypatch.setattr(integer_columns, "_SMALL_BYTES", small_bytes)
    path = database(tmp_path / "report.db", [(row, row) for row in range(1, 100)])
    with closing(sqlite3.connect(path)) as db, db:
        for name in names:
            db.execute(f"ALTER TABLE TASK ADD COLUMN {name}")
            db.execute(f"UPDATE TASK SET {name} = ?", (value,))
    with open_report(path, any_revision=True) as report:
        for expression in ("startNs", "startNs + 0"):
            found = report.integers("TASK", {"start": expression})["start"].tolist()
            assert found == list(range(1, 100))
        parts = [part["start"] for part, _ in report.windows("TASK", {"start": "startNs"})]
    assert sum(map(len, parts)) == 99


def leaf_pages(path: Path, table: str) -> tuple[bytearray, list[int]]:
    """Return the bytes of a file, and the offsets of the leaf pages of a table."""
    (size,) = execute(path, "PRAGMA page_size")[0]
    query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    root = (execute(path, query, table)[0][0] - 1) * size
    data = bytearray(path.read_bytes())
    assert data[root] == 5, "the root has pages below it"
    count = int.from_bytes(data[root + 3 : root + 5], "big")
    cells = [
        root + int.from_bytes(data[root + 12 + 2 * at : root + 14 + 2 * at], "big")
        for at in range(count)
    ]
    return data, [(int.from_bytes(data[cell : cell + 4], "big") - 1) * size for cell in cells]


@pytest.mark.parametrize("small_bytes", [-1, 1 << 30], ids=["large file", "small file"])
@pytest.mark.parametrize("damage", ["copied", "exchanged"])
@pytest.mark.parametrize("expression", ["startNs", "startNs + 0"], ids=["pages", "SQLite"])
def test_unordered_row_ids_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str, expression: str, small_bytes: int
) -> None:
    monkeypatch.setattr(integer_columns, "_SMALL_BYTES", small_bytes)
    monkeypatch.setattr(column_reader, "_CHUNK_ROWS", 100)
    path = database(tmp_path / "report.db", [(row, row) for row in range(1, 3000)])
    data, leaves = leaf_pages(path, "TASK")
    first, second = (slice(at, at + 4096) for at in (leaves[1], leaves[-2]))
    kept = data[first]
    data[first] = data[second]
    if damage == "exchanged":
        data[second] = kept
    path.write_bytes(data)
    with open_report(path, any_revision=True) as report:
        with pytest.raises(StoreError, match=r"damaged: table TASK"):
            report.integers("TASK", {"start": expression})
        with pytest.raises(StoreError, match=r"damaged: table TASK"):
            list(report.batches("TASK", {"start": expression}))
