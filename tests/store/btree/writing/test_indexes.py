"""SQLite accepts index pages that uprof writes."""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.sqlite.pages.tree_writer import IndexTree, PageFile

Rows = list[tuple[int, int]]


def write_index(path: Path, blocks: list[Rows], page_bytes: int) -> list[bool]:
    """Create a table with SQLite and its index with IndexTree; return which blocks it accepted."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("CREATE TABLE t (a INTEGER, b INTEGER)")
        db.execute("CREATE INDEX i ON t (a, b)")
        ((root,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'i'")
        # Insert rows while the index is hidden from SQLite.
        ((text,),) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'i'")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_master WHERE name = 'i'")
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("INSERT INTO t VALUES (?, ?)", [row for block in blocks for row in block])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_master VALUES ('index', 'i', 't', ?, ?)", (root, text))
    file = PageFile(path)
    file.begin()
    tree = IndexTree(root, file.header.page_bytes, file.header.usable)
    done, accepted = 0, []
    for block in blocks:
        a, b = np.array(block, np.int64).reshape(-1, 2).T
        accepted.append(tree.append(file, [a, b], np.arange(done + 1, done + 1 + len(block))))
        done += len(block)
    tree.finish(file)
    file.end()
    file.close()
    return accepted


def check_index(path: Path, rows: Rows) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = db.execute("SELECT a, b FROM t INDEXED BY i ORDER BY a, b").fetchall()
        assert found == sorted(rows)
        for a, b in rows[:: max(1, len(rows) // 20)]:
            query = "SELECT count(*) FROM t INDEXED BY i WHERE a = ? AND b = ?"
            assert db.execute(query, (a, b)).fetchone() == (rows.count((a, b)),)
        db.execute("DELETE FROM t WHERE rowid % 2")
        db.execute("INSERT INTO t VALUES (3, 4)")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


NUMBERS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1 << 33)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=120), st.integers(1, 50))
def test_index_of_any_integers_is_valid(rows: Rows, size: int) -> None:
    rows = sorted(rows)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        blocks = [rows[at : at + size] for at in range(0, len(rows), size)]
        assert all(write_index(path, blocks, 512))
        check_index(path, rows)


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("count", [1, 2, 30, 31, 32, 33, 5_000, 20_000])
def test_index_of_any_number_of_pages_is_valid(tmp_path: Path, page_bytes: int, count: int) -> None:
    rows = [(number // 3 * 1000, -number) for number in range(count)]
    blocks = [rows[: count // 3], rows[count // 3 : count // 3 + 1], rows[count // 3 + 1 :]]
    blocks = [sorted(block) for block in blocks if block]
    path = tmp_path / "t.db"
    if all(write_index(path, blocks, page_bytes)):
        check_index(path, rows)
    else:
        assert count > 1


@pytest.mark.quick(cases=43)
@pytest.mark.parametrize("count", range(1, 120))
def test_index_with_any_fill_of_its_last_page_is_valid(tmp_path: Path, count: int) -> None:
    path = tmp_path / "t.db"
    rows = [(number, number) for number in range(300, 300 + count)]
    assert write_index(path, [rows], 512) == [True]
    check_index(path, rows)


def test_block_below_the_last_entry_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    blocks = [[(1, 1), (5, 5)], [(4, 9)], [(5, 4)], [(5, 5)]]
    assert write_index(path, blocks, 4096) == [True, False, False, True]
