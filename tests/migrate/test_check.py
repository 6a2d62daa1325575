import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.migrate.databases import REVISIONS, Rows, make
from tests.sql import execute
from unified_prof.errors import StoreError
from unified_prof.migrate.check import Check, check
from unified_prof.migrate.upgrade import create

REVISION = "1.2.0_20251226"
TASK = (100, 150, 0, 1, 0, 42, 7, 4294967295, 1, 1, 4294967295)
ROWS: Rows = {
    "STRING_IDS": [(number, f"text {number}") for number in range(20)],
    "NPU_INFO": [(0, "Ascend910B")],
    "TASK": [TASK, (200, 260, 0, -1, 1, 42, 7, 4294967295, 1, 2, 4294967295)],
    "COMPUTE_TASK_INFO": [(1, 0, 24, 0, *range(11))],
    "COMMUNICATION_OP": [(1, 100, 150, 1, 2, 0, 0, 0, 4, 3, 16, 5, 0)],
    "CANN_API": [(90, 95, 5000, 42, 1, 15)],
    "NPU_MODULE_MEM": [(7, 100, 4096, 0)],
}


BLOCKS = (None, 0, 24, *[None] * 10)


def problems_of(found: Check) -> list[tuple[str, int]]:
    return [(f.kind, f.count) for f in found.findings if f.is_problem]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("revision", REVISIONS)
def test_empty_database_of_every_revision_is_sound(tmp_path: Path, revision: str) -> None:
    create(tmp_path / "a.db", "msprof", revision)
    found = check(tmp_path / "a.db")
    assert found.sound
    assert not found.findings


def test_sound_file_has_no_findings(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", REVISION, ROWS)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert check(path).findings == ()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("statement", "kind", "count", "words"),
    [
        ("UPDATE COMPUTE_TASK_INFO SET opType = 999", "dangling", 1, "COMPUTE_TASK_INFO.opType"),
        ("UPDATE TASK SET taskType = 999", "dangling", 2, "such as 999"),
        ("DELETE FROM STRING_IDS WHERE id = 15", "dangling", 1, "CANN_API.name"),
        ("UPDATE CANN_API SET type = 5001", "enum", 1, "not in ENUM_API_TYPE: 5001"),
        ("UPDATE COMMUNICATION_OP SET dataType = 14", "enum", 1, "COMMUNICATION_OP.dataType"),
        ("UPDATE NPU_MODULE_MEM SET moduleId = 99", "enum", 1, "ENUM_MODULE: 99"),
        ("UPDATE TASK SET endNs = 1", "interval", 2, "TASK: rows that end before they start"),
        ("UPDATE COMMUNICATION_OP SET endNs = 1", "interval", 1, "COMMUNICATION_OP"),
        ("UPDATE TASK SET globalTaskId = 5", "duplicate", 1, "globalTaskId"),
        ("DROP TABLE STRING_IDS", "incomplete", 1, "STRING_IDS is missing"),
        ("UPDATE ENUM_MODULE SET name = 'X' WHERE id = 0", "schema", 1, "0 is 'X', not 'SLOG'"),
        ("DELETE FROM ENUM_MODULE WHERE id = 3", "schema", 1, r"lacks \[3\]"),
        (
            "UPDATE META_DATA SET value = '1.1.0' WHERE name = 'SCHEMA_VERSION'",
            "schema",
            1,
            "META_DATA has version 1.1.0, but the tables have 1.2.0",
        ),
        ("ALTER TABLE TASK DROP COLUMN modelId", "schema", 1, "lack TASK.modelId"),
    ],
)
def test_problems_are_found(
    tmp_path: Path, statement: str, kind: str, count: int, words: str
) -> None:
    found = check(make(tmp_path / "a.db", REVISION, ROWS, statement))
    assert not found.sound
    assert problems_of(found) == [(kind, count)]
    (message,) = [f.message for f in found.findings if f.is_problem]
    assert re.search(words, message), message


def test_threads_of_a_context_may_share_a_task(tmp_path: Path) -> None:
    threads = [(start, start + 9, 0, -1, 3, 42, 7, 2, 1, 5, 4294967295) for start in (300, 320)]
    found = check(make(tmp_path / "a.db", REVISION, {**ROWS, "TASK": [*ROWS["TASK"], *threads]}))
    assert found.sound


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE COMPUTE_TASK_INFO SET opState = NULL", None),
        ("UPDATE COMPUTE_TASK_INFO SET opState = -1", None),
        ("UPDATE COMPUTE_TASK_INFO SET opState = 4294967295", None),
        ("UPDATE NPU_MODULE_MEM SET moduleId = 59", "ENUM_MODULE has in other revisions only: 59"),
        ("ALTER TABLE TASK ADD COLUMN depth integer", "columns of other tools: depth"),
        ("CREATE TABLE connectionCats (connectionId INT, cat)", None),
        ("DROP INDEX TaskIndex", "index TaskIndex is missing"),
        ("INSERT INTO ENUM_API_TYPE VALUES (50001, 'op')", None),
        ("INSERT INTO SESSION_TIME_INFO VALUES (1727599958675815000, -616)", "has no end"),
        ("DELETE FROM META_DATA WHERE name LIKE '%MICRO'", "no row SCHEMA_VERSION_MICRO"),
    ],
)
def test_unusual_content_is_sound(tmp_path: Path, statement: str, words: str | None) -> None:
    found = check(make(tmp_path / "a.db", REVISION, ROWS, statement))
    assert found.sound
    assert len(found.findings) == (words is not None)
    assert words is None or words in found.findings[0].message


def test_wrong_types_order_and_keys_are_problems(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        REVISION,
        {},
        "CREATE TABLE CPU_USAGE (timestampNs TEXT, usage NUMERIC, cpuId NUMERIC)",
        "CREATE TABLE HOST_MEM_USAGE (timestampNs INTEGER PRIMARY KEY, usage NUMERIC)",
    )
    messages = {f.message for f in check(path).findings}
    assert messages == {
        "CPU_USAGE: columns are in a different order: timestampNs, usage, cpuId",
        "CPU_USAGE.timestampNs is TEXT, expected NUMERIC",
        "HOST_MEM_USAGE.timestampNs is INTEGER, expected NUMERIC",
        "HOST_MEM_USAGE has a primary key, expected none",
    }


def test_ids_are_checked_by_the_rules_of_the_revision(tmp_path: Path) -> None:
    # Before 1.0.0_20240521 types of collectives are texts; blockDim becomes a text in 2026.
    early = make(
        tmp_path / "a.db",
        "1.0.0_20240516",
        {
            "STRING_IDS": [(9, "FP32")],
            "COMMUNICATION_OP": [(9, 100, 150, 1, 9, 0, 0, 0, 9, 9, 16, 9)],
        },
    )
    assert check(early).sound
    blocks = make(tmp_path / "b.db", "1.0.0_20241112", {"COMPUTE_TASK_INFO": [BLOCKS]})
    assert check(blocks).sound
    with closing(sqlite3.connect(early)) as db:
        db.execute("UPDATE COMMUNICATION_OP SET dataType = 4")
        db.commit()
    assert problems_of(check(early)) == [("dangling", 1)]


def test_damaged_page_is_found(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", REVISION, ROWS)
    query = "SELECT rootpage FROM sqlite_master WHERE name = 'TASK'"
    (page,) = execute(path, query)[0]
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    found = check(path)
    assert not found.sound
    assert "damage" in {kind for kind, _ in problems_of(found)}


def test_skyline_reports_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    create(path, "skyline-run-time", "1")
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO run_time_entries VALUES (1, 'conv2d', 1.5, NULL)")
        db.execute("INSERT INTO stack_frames VALUES (0, 'model.py', 3, 1)")
        db.commit()
        assert check(path).findings == ()
        db.execute("INSERT INTO stack_frames VALUES (0, 'model.py', 3, 2)")
        db.execute("UPDATE run_time_entries SET forward_ms = -1")
        db.commit()
    assert sorted(problems_of(check(path))) == [("dangling", 1), ("interval", 1)]


def test_database_that_is_not_a_report_is_refused(tmp_path: Path) -> None:
    execute(tmp_path / "a.db", "CREATE TABLE films (title TEXT)")
    with pytest.raises(StoreError, match=r"a\.db is not a report"):
        check(tmp_path / "a.db")


def test_recordings_of_real_devices_are_sound(shared: Path) -> None:
    folder = shared / "samples" / "ascend"
    for path in sorted(folder.rglob("*.db")):
        if path.name == "analysis.db":
            continue
        found = check(path)
        expected = path.name not in ("msprof_0_edited_by_viewer.db", "report_0_prehistory.db")
        assert found.sound == expected, (path, problems_of(found))
