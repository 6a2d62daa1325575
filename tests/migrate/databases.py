"""Small databases of every revision, and their comparable content."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from unified_prof.schema import catalogue

REVISIONS = catalogue.REVISIONS["msprof"]
LATEST = catalogue.resolve("msprof", "latest")
Rows = Mapping[str, Iterable[tuple[Any, ...]]]


def make(path: Path, revision: str, rows: Rows | None = None, *statements: str) -> Path:
    """Create a database like an exporter: with the mandatory tables and those that have rows."""
    rows = rows or {}
    schema = catalogue.load("msprof", revision)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN;\n{catalogue.frozen_text('msprof', revision)}COMMIT;")
        for table in schema.tables:
            always = table in catalogue.ALWAYS_PRESENT or table in schema.rows
            if not always and table not in rows:
                db.execute(f"DROP TABLE {table}")
        for table, values in rows.items():
            for row in values:
                names = ", ".join(schema.tables[table].column_names[: len(row)])
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
        for statement in statements:
            db.execute(statement)
        db.commit()
        db.execute("VACUUM")
    return path


def make_msmonitor(path: Path) -> Path:
    """Create a database like msMonitor: 14 tables, no keys, its own version parts."""
    kept = (
        "SESSION_TIME_INFO ENUM_API_TYPE ENUM_HCCL_DATA_TYPE ENUM_MSTX_EVENT_TYPE META_DATA"
        " HOST_INFO NPU_INFO RANK_DEVICE_MAP"
    ).split()
    drops = (t for t in catalogue.load("msprof", "1.2.0_20260128").tables if t not in kept)
    unknown = 4294967295
    return make(
        path,
        "1.2.0_20260128",
        {
            "SESSION_TIME_INFO": [(1000, 9000)],
            "NPU_INFO": [(0, "UNKNOWN")],
            "ENUM_API_TYPE": [(50001, "op"), (50002, "queue"), (50003, "trace"), (50004, "mstx")],
        },
        *(f"DROP TABLE IF EXISTS {table}" for table in drops),
        "CREATE TABLE STRING_IDS (id INTEGER, value TEXT)",
        "INSERT INTO STRING_IDS VALUES (0, 'N/A'), (1, 'MatMul'), (2, 'hcom_allReduce__123_0_1')",
        "CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,"
        " connectionId INTEGER, name INTEGER)",
        "INSERT INTO CANN_API VALUES (1000, 1100, 5000, 42, 7, 1)",
        "CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,"
        " globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER,"
        " streamId INTEGER, taskId INTEGER, modelId INTEGER)",
        f"INSERT INTO TASK VALUES (1200, 1300, 0, 7, 0, 42, 0, {unknown}, 1, {unknown}, {unknown})",
        "CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER, blockNum INTEGER,"
        " mixBlockNum INTEGER, taskType INTEGER, opType INTEGER, inputFormats INTEGER,"
        " inputDataTypes INTEGER, inputShapes INTEGER, outputFormats INTEGER,"
        " outputDataTypes INTEGER, outputShapes INTEGER, attrInfo INTEGER, opState INTEGER,"
        " hf32Eligible INTEGER)",
        f"INSERT INTO COMPUTE_TASK_INFO VALUES (1, 0, {unknown}, {unknown}, 0, 0, 0, 0, 0, 0, 0,"
        " 0, 0, 0, 0)",
        "CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER,"
        " connectionId INTEGER, groupName INTEGER, opId INTEGER, relay INTEGER, retry INTEGER,"
        " dataType INTEGER, algType INTEGER, count NUMERIC, opType INTEGER, deviceId INTEGER)",
        "INSERT INTO COMMUNICATION_OP VALUES (2, 1400, 1500, 7, 0, 0, 0, 0, 4, 0, 16, 0, 0)",
        "CREATE TABLE MSTX_EVENTS (startNs INTEGER, endNs INTEGER, eventType INTEGER,"
        " rangeId INTEGER, category INTEGER, message INTEGER, globalTid INTEGER,"
        " endGlobalTid INTEGER, domainId INTEGER, connectionId INTEGER)",
        "UPDATE META_DATA SET value = '0' WHERE name = 'SCHEMA_VERSION_MAJOR'",
        "UPDATE META_DATA SET value = '2' WHERE name = 'SCHEMA_VERSION_MINOR'",
        "UPDATE META_DATA SET value = '1' WHERE name = 'SCHEMA_VERSION_MICRO'",
    )


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        yield db


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    with opened(path) as db:
        return db.execute(query).fetchall()


def tables_of(path: Path) -> dict[str, list[str]]:
    """Return every table and its columns."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite^_%'"
    with opened(path) as db:
        names = [name for (name,) in db.execute(f"{query} ESCAPE '^'").fetchall()]
        return {n: [c[1] for c in db.execute(f'PRAGMA table_info("{n}")')] for n in names}
