"""The header of a database, and the local part of long records."""

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from unified_prof.sqlite.pages import format as layout


@pytest.mark.parametrize("page_bytes", [512, 4096, 16384, 65536])
def test_header_of_a_database_is_read(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES (zeroblob(200000))")
        db.execute("CREATE TABLE u (x)")
        db.execute("DROP TABLE t")
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
    header = layout.read_header(path.read_bytes()[: layout.HEADER_BYTES])
    assert header is not None
    assert (header.page_bytes, header.usable) == (page_bytes, page_bytes)
    assert (header.pages, header.free_pages) == (pages, free)
    assert bool(header.first_free) == bool(free)
    assert header.change_counter == header.version_valid_for > 0
    assert (header.wal, header.largest_root, header.encoding) == (False, 0, layout.UTF8)
    assert (header.lock_page - 1) * page_bytes == 2**30


def test_encoding_auto_vacuum_and_wal_are_recognized(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for setting in ("encoding = 'UTF-16le'", "auto_vacuum = FULL", "journal_mode = WAL"):
            db.execute(f"PRAGMA {setting}")
        db.execute("CREATE TABLE t (x)")
    header = layout.read_header(path.read_bytes()[: layout.HEADER_BYTES])
    assert header is not None
    assert header.wal
    assert header.largest_root > 0
    assert header.encoding != layout.UTF8


@pytest.mark.parametrize(
    "damage", [slice(0, 1), slice(16, 18), slice(18, 19), slice(21, 22), slice(20, 21)]
)
def test_invalid_header_is_rejected(tmp_path: Path, damage: slice) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 512")
        db.execute("CREATE TABLE t (x)")
    start = bytearray(path.read_bytes()[: layout.HEADER_BYTES])
    start[damage] = b"\xff" * len(start[damage])
    assert layout.read_header(bytes(start)) is None
    assert layout.read_header(b"") is None


@pytest.mark.parametrize(
    ("record_bytes", "local_bytes"),
    [
        *((4061, 4061), (4062, 489)),  # 489 bytes is the minimum.
        *((489 + 4092, 489), (1000 + 4092, 1000)),
    ],
)
def test_local_part_of_long_records(record_bytes: int, local_bytes: int) -> None:
    assert layout.local_payload(4096, np.array([record_bytes])) == [local_bytes]
