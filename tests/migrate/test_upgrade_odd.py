"""Upgrades of unusual and damaged files, and interrupted upgrades."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine.default import DefaultDialect

from tests.migrate.databases import REVISIONS, make, rows_of
from unified_prof.errors import StoreError
from unified_prof.migrate.upgrade import _copy_bytes, upgrade
from unified_prof.schema import catalogue

OLDEST, MIDDLE, NEWEST = REVISIONS[0], "1.2.0_20250922", REVISIONS[-1]
ODD_COLUMNS = (
    '"my col"',  # no type
    '"a%s:b" WEIRD(1, 2)',
    '"q""x" DEFAULT (1 + 1)',
    "y NOT NULL DEFAULT 'it''s'",
    "z GENERATED ALWAYS AS (1) VIRTUAL",
    '"%(a)s" INTEGER',
)
ODD_VALUES = ("x'00ff'", "'text'", "-1", "1e300", "NULL", "9223372036854775807", "''", "0.5")


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("column", ODD_COLUMNS)
@pytest.mark.parametrize("revision", [OLDEST, "1.0.0_20240711", MIDDLE])
def test_columns_and_values_of_tools_are_kept(tmp_path: Path, revision: str, column: str) -> None:
    schema = catalogue.load("msprof", revision)
    dice = random.Random(column)
    tables = [table for table in schema.tables.values() if table.name not in schema.rows]
    statements = [f"ALTER TABLE {table.name} ADD COLUMN {column}" for table in tables]
    for table in tables:
        for number in range(3):
            values = (
                str(number) if c.primary_key else dice.choice(ODD_VALUES) for c in table.columns
            )
            names = ", ".join(table.column_names)
            statements.append(f"INSERT INTO {table.name} ({names}) VALUES ({', '.join(values)})")
    path = make(tmp_path / "report.db", revision, {table.name: [] for table in tables}, *statements)
    done = upgrade(path)
    assert done.after == NEWEST
    name = column[: column.rindex('"') + 1] if '"' in column else column[0]
    assert done.backup is not None
    for table in tables:
        query = f"SELECT {name} FROM {table.name} ORDER BY rowid"
        before = rows_of(done.backup, query)
        # N/A may have been appended to STRING_IDS.
        assert rows_of(path, query)[: len(before)] == before, table.name


@pytest.mark.parametrize("text", ["9" * 30, "9" * 6000, "\N{ARABIC-INDIC DIGIT ONE}"])
def test_unknown_numeric_type_is_counted(tmp_path: Path, text: str) -> None:
    row: list[object] = [None] * 14
    row[11] = 1
    path = make(
        tmp_path / "report.db",
        "1.0.0_20240516",
        {"STRING_IDS": [(1, text)], "COMMUNICATION_TASK_INFO": [tuple(row)]},
    )
    upgrade(path)
    assert rows_of(path, "SELECT count(*) FROM COMMUNICATION_TASK_INFO") == [(1,)]


def make_damaged(path: Path, table: str) -> Path:
    """Create a report with an overwritten page in a table that no step changes."""
    make(path, MIDDLE, {"STRING_IDS": [(n, f"text {n}" * 20) for n in range(2000)]})
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE MINE AS SELECT * FROM STRING_IDS")
        db.commit()
        (root,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    page = content[(root - 1) * size : root * size]
    assert page[0] == 5, "an interior page"
    first_cell = int.from_bytes(page[12:14], "big")
    leaf = int.from_bytes(page[first_cell : first_cell + 4], "big")
    # Half of the cell offsets in the leaf are invalid.
    start = (leaf - 1) * size + 8
    content[start + 4 : start + 12] = b"\xff" * 8
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("table", "revision", "in_place"),
    [
        *((t, r, False) for t in ("MINE", "STRING_IDS") for r in (NEWEST, MIDDLE)),
        ("MINE", "latest", True),
    ],
)
def test_damaged_database_is_not_upgraded(
    tmp_path: Path, table: str, revision: str, in_place: bool
) -> None:
    path = make_damaged(tmp_path / "report.db", table)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"report\.db is damaged: "):
        upgrade(path, revision, output=None if in_place else tmp_path / "new.db")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.db"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupted_upgrade_is_not_reported_as_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path = make(tmp_path / "report.db", MIDDLE)

    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    # SQLAlchemy then closes its connection, and every later call fails.
    monkeypatch.setattr(DefaultDialect, "do_execute", interrupted)
    monkeypatch.setattr(DefaultDialect, "do_execute_no_params", interrupted)
    with pytest.raises(error):
        upgrade(path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.db"]


SLOW_UPGRADE = """
import sys
from pathlib import Path
from unified_prof.migrate import runner
from unified_prof.migrate.upgrade import upgrade
from unified_prof.base.signals import ended_by_signals

record = runner._record

def slow(ctx, *args, **kwargs):
    record(ctx, *args, **kwargs)
    print("step", flush=True)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    ctx.connection.exec_driver_sql(endless).all()

runner._record = slow
with ended_by_signals():
    upgrade(Path(sys.argv[1]))
"""


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
    ],
)
def test_signal_interrupts_a_statement(tmp_path: Path, number: signal.Signals, code: int) -> None:
    path = make(tmp_path / "report.db", MIDDLE)
    before = path.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_UPGRADE, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "step\n"
    time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == code, errors
    assert "StoreError" not in errors
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.db"]


def test_copy_begins_again_if_the_file_system_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter((5, 3))

    def fails(source: int, destination: int, _: int) -> int:
        size = next(sizes, None)
        if size is None:
            raise OSError("the next part cannot be copied")
        return os.write(destination, os.read(source, size))

    monkeypatch.setattr(os, "copy_file_range", fails, raising=False)
    (tmp_path / "a").write_bytes(b"0123456789")
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb") as destination:
        _copy_bytes(source, destination)
    assert (tmp_path / "b").read_bytes() == b"0123456789"
