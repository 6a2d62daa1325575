"""Conversions of existing rows, and counts of rows that cannot be converted."""

from pathlib import Path

import pytest

from tests.migrate.databases import LATEST, make, opened, rows_of, tables_of
from tests.sql import execute
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.sqlite.opening import detect

NO_NOTIFY = 9223372036854775807
UNKNOWN_32 = 4294967295
MEANING_OLD = {"group_name_meaning", "enum_row_kept"}


def task(number: int, *, connection: int = 1, device: int = 0, start: int = 100) -> tuple[int, ...]:
    return (start, start + 50, device, connection, number, 42, 0, UNKNOWN_32, 1, number, UNKNOWN_32)


def step(
    number: int, op: int, *, notify: int = 7, kinds: tuple[int, ...] = (0, 0, 4, 1)
) -> tuple[int, ...]:
    rdma, transport, data, link = kinds
    return (0, number, 0, 0, 0, notify, rdma, 0, 1, transport, 64, data, link, op)


def collective(op: int, *, start: int = 100, data: int = 4, columns: int = 12) -> tuple[int, ...]:
    return (0, start, start + 50, 1, 0, op, 0, 0, data, 0, 16, 0)[:columns]


def test_marks_for_unknown_become_minus_one(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.0.0_20241112",
        {
            "TASK": [task(0, connection=UNKNOWN_32), task(1, connection=5)],
            "COMMUNICATION_TASK_INFO": [step(0, 0, notify=NO_NOTIFY), step(1, 0, notify=9)],
            "COMMUNICATION_OP": [collective(0)],
        },
        f"UPDATE COMMUNICATION_OP SET connectionId = {UNKNOWN_32}",
    )
    upgrade(path)
    assert rows_of(path, "SELECT connectionId FROM TASK") == [(-1,), (5,)]
    assert rows_of(path, "SELECT notifyId FROM COMMUNICATION_TASK_INFO") == [(-1,), (9,)]
    assert rows_of(path, "SELECT connectionId FROM COMMUNICATION_OP") == [(UNKNOWN_32,)]


def test_collective_types_become_enum_ids(tmp_path: Path) -> None:
    texts = ["RDMA_SEND_NOTIFY", "SDMA", "FP32", "HCCS", "N/A", "17", "FP4", "INVALID_TYPE"]
    path = make(
        tmp_path / "a.db",
        "1.0.0_20240516",
        {
            "STRING_IDS": enumerate(texts, start=100),
            "COMMUNICATION_TASK_INFO": [
                step(0, 0, kinds=(100, 101, 102, 103)),
                step(1, 0, kinds=(104, 104, 105, 107)),
                step(2, 0, kinds=(107, 101, 106, 999)),
            ],
            "COMMUNICATION_OP": [collective(0, data=102)],
        },
    )
    result = upgrade(path, "1.0.0_20240521")
    query = "SELECT rdmaType, transportType, dataType, linkType FROM COMMUNICATION_TASK_INFO"
    assert rows_of(path, query) == [
        (0, 0, 4, 1),
        (65534, 65534, 17, 65535),
        (65535, 0, 65535, 65535),
    ]
    assert rows_of(path, "SELECT dataType FROM COMMUNICATION_OP") == [(4,)]
    assert rows_of(path, "SELECT name FROM ENUM_HCCL_RDMA_TYPE WHERE id = 65534") == [("N/A",)]
    (unknown,) = result.anomalies
    assert (unknown.name, unknown.count) == ("hccl_type_unknown", 2)
    assert "'FP4' is not in ENUM_HCCL_DATA_TYPE" in str(unknown.detail)


def test_collective_types_stay_if_the_file_has_no_strings(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.0.0_20240516",
        {"COMMUNICATION_OP": [collective(0, data=102)]},
        "DROP TABLE STRING_IDS",
    )
    result = upgrade(path, "1.0.0_20240521")
    assert rows_of(path, "SELECT dataType FROM COMMUNICATION_OP") == [(102,)]
    assert [a.name for a in result.anomalies] == ["hccl_type_unresolved"]


def test_host_uid_becomes_text_with_all_digits(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.0.0_20240711",
        {"HOST_INFO": [(6458368880732993735, "ubuntu")]},
        "ALTER TABLE HOST_INFO ADD COLUMN note TEXT",
    )
    upgrade(path)
    query = "SELECT hostUid, typeof(hostUid), hostName FROM HOST_INFO"
    assert rows_of(path, query) == [("6458368880732993735", "text", "ubuntu")]
    assert tables_of(path)["HOST_INFO"] == ["hostUid", "hostName", "note"]


def test_collectives_get_the_device_of_their_steps(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.1.1_20250820",
        {
            # 0: found by its start. 1: its first step has no task. 2: it has no task.
            # 3: its steps ran on two devices.
            "TASK": [
                task(0, device=3, start=1000),
                task(11, device=5, start=2050),
                task(30, device=1, start=4001),
                task(31, device=2, start=4002),
            ],
            "COMMUNICATION_TASK_INFO": [
                (*step(0, 0), 1, 0),
                (*step(10, 1), 1, 0),
                (*step(11, 1), 1, 0),
                (*step(20, 2), 1, 0),
                (*step(30, 3), 1, 0),
                (*step(31, 3), 1, 0),
            ],
            "COMMUNICATION_OP": [
                collective(op, start=1000 * (op + 1)) for op in range(4)
            ],
        },
    )  # fmt: skip
    result = upgrade(path, "1.2.0_20250922")
    query = "SELECT opId, deviceId FROM COMMUNICATION_OP ORDER BY opId"
    assert rows_of(path, query) == [(0, 3), (1, 5), (2, -1), (3, -1)]
    counts = {a.name: a.count for a in result.anomalies}
    assert counts == {"communication_op_device_unknown": 2}


def test_devices_are_found_without_the_standard_indexes(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.1.1_20250820",
        {
            "TASK": [task(0, device=3)],
            "COMMUNICATION_TASK_INFO": [(*step(0, 0), 1, 0)],
            "COMMUNICATION_OP": [collective(0)],
        },
        "DROP INDEX TaskIndex",
    )
    upgrade(path, "1.2.0_20250922")
    assert rows_of(path, "SELECT deviceId FROM COMMUNICATION_OP") == [(3,)]


def test_devices_get_rank_minus_one_without_an_existing_map(tmp_path: Path) -> None:
    devices = {"NPU_INFO": [(0, "Ascend910B"), (1, "Ascend910B")]}
    plain = make(tmp_path / "a.db", "1.1.1_20250820", devices)
    mapped = make(
        tmp_path / "b.db",
        "1.1.1_20250820",
        devices,
        "CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER)",
        "INSERT INTO RANK_DEVICE_MAP VALUES (6, 1)",
    )
    for path in (plain, mapped):
        upgrade(path)
    assert rows_of(plain, "SELECT * FROM RANK_DEVICE_MAP") == [(-1, 0), (-1, 1)]
    assert rows_of(mapped, "SELECT * FROM RANK_DEVICE_MAP") == [(6, 1)]


def test_constants_keep_their_recorded_names(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "1.0.0_20241008", {"NPU_INFO": [(0, "Ascend910B")]})
    before = {
        table: rows_of(path, f"SELECT * FROM {table}")
        for table in tables_of(path)
        if table.startswith("ENUM_")
    }
    result = upgrade(path, "1.2.0_20260716")
    for table, rows in before.items():
        assert set(rows) <= set(rows_of(path, f"SELECT * FROM {table}")), table
    modules = dict(rows_of(path, "SELECT id, name FROM ENUM_MODULE WHERE id >= 74"))
    assert modules == {74: "MBUFF", 75: "CUSTOM", 76: "MBUFF", 77: "CUSTOM"}
    links = dict(rows_of(path, "SELECT id, name FROM ENUM_HCCL_LINK_TYPE"))
    assert (links[7], links[8], links[255]) == ("RESERVED", "UBoE", "RESERVED")
    (kept,) = result.anomalies
    assert kept.name == "enum_row_kept"
    assert kept.count == 7  # hccl; RESERVED; MBUFF, CUSTOM; IDEDH, HIAIENGINE, MDCFUSION
    assert "74 keeps its name 'MBUFF'" in str(kept.detail)


@pytest.mark.parametrize(
    ("revision", "rows", "statements", "anomaly", "count"),
    [
        ("1.0.0_20240711", {"PCIE": [(0,) * 23] * 3}, (), "pcie_latency_unit_unknown", 3),
        (
            "1.0.0_20241008",
            {"MSTX_EVENTS": [(1, 2, 0, 0, 0, 0, 0, 0, 0, c) for c in (UNKNOWN_32, 5)]},
            (),
            "mstx_connection_default",
            1,
        ),
        ("1.0.0_20241112", {"COMMUNICATION_OP": [collective(0)]}, (), "group_name_meaning", 1),
        (
            "1.1.1_20250123",
            {"MSTX_EVENTS": [(1, 2, 0, 0, 0, 0, 0, 0, 65535, 4000000000)]},
            (),
            "mstx_domain_unknown",
            1,
        ),
        (
            "1.2.0_20260330",
            {"COMMUNICATION_TASK_INFO": [(*step(0, 0), 1, b) for b in (0, 1073741824)]},
            (),
            "communication_bandwidth_factor",
            1,
        ),
        (
            "1.2.0_20260330",
            {"SESSION_TIME_INFO": [(1727599958675815000, -616)]},
            (),
            "session_end_unknown",
            1,
        ),
    ],
)
def test_unconvertible_changes_of_meaning_are_counted(
    tmp_path: Path,
    revision: str,
    rows: dict[str, list[tuple[int, ...]]],
    statements: tuple[str, ...],
    anomaly: str,
    count: int,
) -> None:
    path = make(tmp_path / "a.db", revision, rows, *statements)
    before = {table: rows_of(path, f"SELECT * FROM {table}") for table in rows}
    found = {a.name: a.count for a in upgrade(path).anomalies}
    assert found.pop(anomaly) == count
    assert found.keys() <= MEANING_OLD | {"communication_op_device_unknown"}
    stored = dict(rows_of(path, "SELECT name, count FROM UPROF_ANOMALIES"))
    assert stored[anomaly] == count
    for table, old in before.items():
        width = len(old[0])
        assert [row[:width] for row in rows_of(path, f"SELECT * FROM {table}")] == old


def test_additions_of_other_tools_are_kept_after_the_standard_columns(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.0.0_20241112",
        {
            "TASK": [task(0), task(1)],
            "COMPUTE_TASK_INFO": [(1, number, 24, *range(10)) for number in (0, 1)],
            "COMMUNICATION_TASK_INFO": [step(0, 0)],
        },
        "ALTER TABLE TASK ADD COLUMN depth integer",
        "UPDATE TASK SET depth = globalTaskId + 7",
        "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN waitNs INTEGER DEFAULT 5",
        "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN gridDim INTEGER",
        "ALTER TABLE COMMUNICATION_TASK_INFO ADD COLUMN mine TEXT NOT NULL DEFAULT 'x'",
        "CREATE TABLE status_info (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value TEXT)",
        "INSERT INTO status_info (key, value) VALUES ('OVERLAP_ANALYSIS_STATUS', 'FINISH')",
        "CREATE TABLE OVERLAP_ANALYSIS (id INTEGER PRIMARY KEY AUTOINCREMENT, deviceId integer,"
        " startNs integer, endNs integer, type integer)",
        "INSERT INTO OVERLAP_ANALYSIS VALUES (4, 0, 100, 150, 1)",
        "CREATE INDEX mineIndex ON COMPUTE_TASK_INFO (waitNs)",
        "PRAGMA user_version = 2026051916",
    )
    upgrade(path)
    tables = tables_of(path)
    assert tables["TASK"][-1] == "depth"
    assert tables["COMPUTE_TASK_INFO"][-5:] == [
        "opState", "hf32Eligible", "gridDim", "blockDim", "waitNs",
    ]  # fmt: skip
    assert tables["COMMUNICATION_TASK_INFO"][-3:] == ["isMaster", "bandwidth", "mine"]
    assert rows_of(path, "SELECT depth FROM TASK") == [(7,), (8,)]
    query = "SELECT globalTaskId, blockNum, attrInfo, opState, waitNs FROM COMPUTE_TASK_INFO"
    assert rows_of(path, query) == [(0, 24, 9, 0, 5), (1, 24, 9, 0, 5)]
    assert rows_of(path, "SELECT mine, size FROM COMMUNICATION_TASK_INFO") == [("x", 64)]
    assert rows_of(path, "SELECT * FROM OVERLAP_ANALYSIS") == [(4, 0, 100, 150, 1)]
    assert rows_of(path, "SELECT key FROM status_info") == [("OVERLAP_ANALYSIS_STATUS",)]
    query = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1"
    indexes = rows_of(path, query)
    assert [name for (name,) in indexes] == ["CommunicationTaskIndex", "TaskIndex", "mineIndex"]
    with opened(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2026051916,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_conflicting_column_is_renamed(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.0.0_20240516",
        {"COMPUTE_TASK_INFO": [(1, 0, 24, *range(10))]},
        "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN blockDim INTEGER",
        "UPDATE COMPUTE_TASK_INFO SET blockDim = 77",
    )
    result = upgrade(path, "1.0.0_20240521")
    query = "SELECT blockDim, blockDim_found FROM COMPUTE_TASK_INFO"
    assert rows_of(path, query) == [(24, 77)]
    assert [a.name for a in result.anomalies] == ["column_set_aside"]


def test_table_of_another_shape_is_set_aside(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.1.0_20241216",
        {"NPU_INFO": [(0, "Ascend910B")]},
        "CREATE TABLE MEMCPY_INFO (connectionId INTEGER, dataSize INTEGER, maxSize INTEGER)",
        "INSERT INTO MEMCPY_INFO VALUES (1, 64, 128)",
    )
    result = upgrade(path)
    assert "MEMCPY_INFO" not in tables_of(path)
    assert rows_of(path, "SELECT * FROM UPROF_FOUND_MEMCPY_INFO") == [(1, 64, 128)]
    assert "table_set_aside" in {a.name for a in result.anomalies}


def test_build_between_two_revisions_is_completed(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        "1.2.0_20260330",
        {"QOS": [(0, 1, 2, 3)], "AICORE_FREQ": [(0, 1, 800)]},
        "ALTER TABLE AICORE_FREQ ADD COLUMN dieId NUMERIC",
        "UPDATE AICORE_FREQ SET dieId = 1",
        "INSERT INTO ENUM_HCCL_TRANSPORT_TYPE VALUES (4, 'ROCE')",
        "CREATE TABLE ENUM_OVERLAY_ANALYSIS_TYPE (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO ENUM_OVERLAY_ANALYSIS_TYPE VALUES (0, 'COMPUTE')",
    )
    assert detect(path).revision == "1.2.0_20260330"
    upgrade(path)
    assert rows_of(path, "SELECT * FROM AICORE_FREQ") == [(0, 1, 800, 1)]
    assert rows_of(path, "SELECT * FROM QOS") == [(0, 1, 2, 3, -1)]
    assert "ENUM_OVERLAY_ANALYSIS_TYPE" not in tables_of(path)
    assert len(rows_of(path, "SELECT * FROM ENUM_OVERLAP_ANALYSIS_TYPE")) == 5


def test_only_mandatory_tables_are_created(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "pre_20240328", {"NPU_INFO": [(0, "Ascend910B")]})
    old = set(tables_of(path))
    upgrade(path)
    assert set(tables_of(path)) - old == {
        "META_DATA", "HOST_INFO", "RANK_DEVICE_MAP", "ENUM_HCCL_DATA_TYPE", "ENUM_HCCL_LINK_TYPE",
        "ENUM_HCCL_TRANSPORT_TYPE", "ENUM_HCCL_RDMA_TYPE", "ENUM_MSTX_EVENT_TYPE",
        "ENUM_MEMCPY_OPERATION", "ENUM_OVERLAP_ANALYSIS_TYPE", "UPROF_RUN", "UPROF_ANOMALIES",
    }  # fmt: skip
    assert rows_of(path, "SELECT * FROM UPROF_RUN") == [("migrated_from", "pre_20240328")]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM META_DATA",
        "DELETE FROM META_DATA WHERE name = 'SCHEMA_VERSION'",
        "INSERT INTO META_DATA SELECT * FROM META_DATA",
        "INSERT INTO META_DATA VALUES ('SCHEMA_VERSION', '1.2.0')",
        "UPDATE META_DATA SET value = '0' WHERE name = 'SCHEMA_VERSION_MAJOR'",
    ],
)
def test_version_rows_are_corrected_and_other_rows_kept(tmp_path: Path, statement: str) -> None:
    path = make(
        tmp_path / "a.db",
        "1.1.1_20250327",
        {"NPU_INFO": [(0, "Ascend910B")]},
        statement,
        "INSERT INTO META_DATA VALUES ('ENV_VARIABLES', '{}')",
    )
    upgrade(path)
    version = catalogue.version_of(LATEST)
    assert version is not None
    major, minor, micro = version.split(".")
    assert sorted(rows_of(path, "SELECT * FROM META_DATA")) == [
        ("ENV_VARIABLES", "{}"),
        ("SCHEMA_VERSION", version),
        ("SCHEMA_VERSION_MAJOR", major),
        ("SCHEMA_VERSION_MICRO", micro),
        ("SCHEMA_VERSION_MINOR", minor),
        ("UPROF_SCHEMA_REVISION", LATEST),
    ]


def test_upgraded_file_has_no_alembic_tables(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "1.1.1_20250327", {"NPU_INFO": [(0, "Ascend910B")]})
    upgrade(path)
    names = [name for (name,) in execute(path, "SELECT name FROM sqlite_master")]
    assert not [name for name in names if "alembic" in name.lower() or "scratch" in name]
