"""Rows written as pages and as statements give the same file."""

import errno
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sql import execute
from unified_prof.errors import OutputError, StoreError
from unified_prof.schema import catalogue
from unified_prof.sqlite import reader
from unified_prof.sqlite.external_tables import foreign_tables
from unified_prof.sqlite.inserts import Inserts
from unified_prof.sqlite.pages.tree_writer import PageFile
from unified_prof.sqlite.writer import ReportWriter, can_be_pages

MANY = 9000


@pytest.fixture
def inserted_rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the number of rows inserted by statements, by table."""
    counts: dict[str, int] = {}
    append = Inserts.append

    def count(self: Inserts, ordered: Sequence[Any], rows: int) -> None:
        counts[self.table] = counts.get(self.table, 0) + rows
        append(self, ordered, rows)

    monkeypatch.setattr(Inserts, "append", count)
    return counts


def write_and_query(
    path: Path, table: str, batches: Sequence[Mapping[str, Any]], query: str
) -> Any:
    with ReportWriter(path, overwrite=True) as report:
        for batch in batches:
            report.write(table, batch)
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    return execute(path, query)


def test_few_rows_are_inserted_many_paged(tmp_path: Path, inserted_rows: dict[str, int]) -> None:
    with ReportWriter(tmp_path / "msprof.db") as report:
        report.write("TASK", {"startNs": np.arange(MANY)})
        for number in range(MANY):
            report.write("HBM", {"timestampNs": number})
        report.write("LLC", {"timestampNs": [1, 2, 3]})
        report.strings.intern_all(map(str, range(MANY)))
    assert {"TASK", "HBM", "STRING_IDS"}.isdisjoint(inserted_rows)
    assert inserted_rows["LLC"] == 3
    with closing(sqlite3.connect(tmp_path / "msprof.db")) as db:
        for query in (
            "SELECT count(*), sum(startNs) FROM TASK",
            "SELECT count(*), sum(timestampNs) FROM HBM",
            "SELECT count(*), sum(value) FROM STRING_IDS WHERE id = CAST(value AS INT)",
        ):
            assert db.execute(query).fetchone() == (MANY, MANY * (MANY - 1) // 2)


def test_rows_keep_their_order(tmp_path: Path) -> None:
    sizes = [1, 3, 5000, 2, 7, 40_000, 1]
    ends = np.cumsum(sizes)
    batches = [
        {"timestampNs": np.arange(end - size, end)} for size, end in zip(sizes, ends, strict=True)
    ]
    found = write_and_query(tmp_path / "x.db", "HBM", batches, "SELECT timestampNs FROM HBM")
    assert found == [(number,) for number in range(int(ends[-1]))]


KEYS: dict[str, list[NDArray[np.int64]]] = {
    "ascending": [np.arange(MANY), np.arange(MANY, 2 * MANY)],
    "descending": [np.arange(MANY)[::-1]],
    "each batch shuffled": [
        np.random.default_rng(1).permutation(MANY) + MANY * turn for turn in range(3)
    ],
    "later ones first": [np.arange(n * MANY, (n + 1) * MANY) for n in (1, 0, 3)],
    "interleaved": [np.arange(MANY) * 2, np.arange(MANY) * 2 + 1],
    "negative": [np.arange(-MANY, MANY) * 10**14],
    "small batches": list(np.random.default_rng(2).permutation(MANY).reshape(900, 10)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", KEYS)
def test_keys_in_any_order_are_stored(tmp_path: Path, case: str) -> None:
    batches = [{"globalTaskId": keys, "opType": keys // 7} for keys in KEYS[case]]
    query = "SELECT globalTaskId, opType FROM COMPUTE_TASK_INFO"
    expected = sorted((int(key), int(key) // 7) for keys in KEYS[case] for key in keys)
    assert write_and_query(tmp_path / "x.db", "COMPUTE_TASK_INFO", batches, query) == expected


@pytest.mark.parametrize(
    "batches",
    [
        [np.append(np.arange(MANY), 5)],
        [np.arange(MANY), np.arange(MANY - 1, 2 * MANY)],
        [np.arange(MANY), [3]],
        [[3], [3]],
        [np.zeros(MANY, int)],
    ],
)
def test_duplicate_keys_are_refused(tmp_path: Path, batches: list[Any]) -> None:
    with pytest.raises(StoreError, match=r"UNIQUE constraint failed: COMPUTE_TASK_INFO\.glob"):
        write_and_query(
            tmp_path / "x.db", "COMPUTE_TASK_INFO", [{"globalTaskId": b} for b in batches], ""
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("few", [0, 10])
def test_null_in_required_columns_is_refused(tmp_path: Path, few: int) -> None:
    whole = {"startNs": np.arange(MANY), "globalTid": 1, "name": 2, "inputStrides": 3}
    whole |= {"concreteInputs": 4, "moduleHierarchy": 5}
    gap = whole | {"startNs": np.ma.MaskedArray(np.arange(MANY), np.arange(MANY) == MANY - 1)}
    part = {name: value for name, value in gap.items() if name != "startNs"}
    batch = part | {"startNs": [None, *range(few)]} if few else gap
    with pytest.raises(StoreError, match=r"NOT NULL constraint failed: UPROF_OPERATION_INPUTS\.s"):
        write_and_query(tmp_path / "x.db", "UPROF_OPERATION_INPUTS", [whole, batch], "")


def test_deferred_rows_are_copied(tmp_path: Path) -> None:
    reused = np.arange(10)
    listed: list[Any] = [None, 1]
    with ReportWriter(tmp_path / "x.db") as report:
        for _ in range(3):
            report.write("HBM", {"timestampNs": reused})
            report.write("LLC", {"timestampNs": listed})
            reused += 10
            listed[1] += 1
    assert execute(tmp_path / "x.db", "SELECT timestampNs FROM HBM") == [(n,) for n in range(30)]
    found = execute(tmp_path / "x.db", "SELECT timestampNs FROM LLC WHERE timestampNs > 0")
    assert found == [(1,), (2,), (3,)]


def test_batches_of_different_types_keep_their_types(tmp_path: Path) -> None:
    batches: list[dict[str, Any]] = [
        {"timestampNs": 1, "bandwidth": 0.5},
        {"timestampNs": [2, 3], "bandwidth": [1, None]},
        {"timestampNs": np.arange(4, 8000), "bandwidth": np.linspace(0, 1, 7996)},
        {"timestampNs": np.ma.array([8000, 8001], mask=[False, True]), "bandwidth": None},
        {"timestampNs": None, "bandwidth": 7.0},
    ]
    query = "SELECT timestampNs, bandwidth, typeof(bandwidth) FROM HBM"
    found = write_and_query(tmp_path / "x.db", "HBM", batches, query)
    assert found[:3] == [(1, 0.5, "real"), (2, 1, "integer"), (3, None, "null")]
    assert found[3] == (4, 0, "integer")
    assert found[-4:] == [
        (7999, 1, "integer"), (8000, None, "null"), (None, None, "null"), (None, 7, "integer")
    ]  # fmt: skip
    assert len(found) == 8002


def test_texts_longer_than_pages_and_buffers_are_stored(tmp_path: Path) -> None:
    texts = ["x" * 3_000_000, "", *(f"{number:x}" * (number % 900) for number in range(MANY))]
    batch = {"startNs": 1, "category": 2, "name": 3, "process": "p", "thread": texts}
    query = "SELECT thread FROM UPROF_TRACE_EVENTS"
    found = write_and_query(tmp_path / "x.db", "UPROF_TRACE_EVENTS", [batch], query)
    assert [text for (text,) in found] == texts


def test_rows_written_as_pages_are_read_from_pages(tmp_path: Path) -> None:
    number = np.arange(MANY)
    masked = np.ma.MaskedArray(number * 10**9, number % 3 == 0)
    columns = {"startNs": number * 7, "endNs": None, "deviceId": 1, "connectionId": masked}
    with ReportWriter(tmp_path / "x.db") as report:
        report.write("TASK", columns)
    with foreign_tables(tmp_path / "x.db") as tables:
        slices = list(tables.slices("TASK", {"startNs": -1, "connectionId": -1, "deviceId": -1}))
    assert np.concatenate([cells["startNs"] for cells in slices]).tolist() == list(number * 7)
    found = np.concatenate([cells["connectionId"] for cells in slices])
    assert found.tolist() == masked.filled(-1).tolist()
    assert {int(device) for cells in slices for device in cells["deviceId"]} == {1}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_full_disk_or_interrupt_leaves_no_file(
    error: BaseException,
    expected: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(PageFile, "append", fail)
    with pytest.raises(expected, match="no space left" if expected is OutputError else None):
        write_and_query(tmp_path / "x.db", "TASK", [{"startNs": np.arange(MANY)}] * 9, "")
    assert list(tmp_path.iterdir()) == []


def test_tables_with_other_keys_are_left_to_sqlite() -> None:
    """Their key is not the row id."""
    left = {
        spec.name
        for revision in catalogue.REVISIONS[catalogue.MSPROF]
        for table in catalogue.newest_tables()
        if (layout := reader.layout(revision, table)) and not can_be_pages(spec := layout.spec)
    }
    names = (
        "ANOMALIES COVERAGE GAP_SAMPLES GPU_DEVICES ITERATION_PARTS MODULES RECOMPUTATION"
        " REGION_COUNTS REGION_ENTRIES RUN RUN_TIME_SAMPLES"
    )
    assert left == {f"UPROF_{name}" for name in names.split()}


@pytest.mark.slow
@pytest.mark.parametrize("rate", [[np.nan] * 3, [0.5, np.nan, 0.0], [0.0, 1.0, np.nan]])
@pytest.mark.parametrize("flags", [[0, 0, None], [1, None, None], [0, 1, 1], [0, 1, 200]])
def test_values_without_bytes_beside_integers_of_many_sizes(
    flags: list[int | None], rate: list[float], tmp_path: Path
) -> None:
    # 0, 1 and NULL are only types in a record; the other column makes rows of different sizes.
    # Cells are packed where all row ids have the same size: there are ids of 1, 2 and 3 bytes.
    times = 6_000
    values = np.array([flag or 0 for flag in flags * times])
    time = np.arange(3 * times) ** 3
    columns = {
        "timestampNs": time,
        "llcId": np.ma.masked_array(values, [flag is None for flag in flags * times]),
        "hitRate": np.array(rate * times),
    }
    query = "SELECT timestampNs, llcId, hitRate FROM LLC ORDER BY rowid"
    rates = [None if np.isnan(one) else one for one in rate] * times
    expected = list(zip(time.tolist(), flags * times, rates, strict=True))
    assert write_and_query(tmp_path / "a.db", "LLC", [columns], query) == expected
