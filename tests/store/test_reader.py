"""Reading of reports at any revision."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from unified_prof import open_report
from unified_prof.errors import SchemaVersionError, StoreError, UsageError
from unified_prof.schema import catalogue
from unified_prof.schema.catalogue import MSPROF, REVISIONS
from unified_prof.schema.msprof import MODELS, CommunicationOp, ComputeTask, HcclDataType, Task
from unified_prof.sqlite import reader
from unified_prof.sqlite.writer import ReportWriter

SAMPLES = (
    ("910A_2024-09_level1.db", "1.0.0_20240711"),
    (
        "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db",
        "1.0.0_20241112",
    ),
    (
        "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db",
        "1.0.0_20241112",
    ),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "msprof.db"


def execute(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)
    return path


def test_report_states_family_revision_and_tables(path: Path) -> None:
    with ReportWriter(path, revision="latest") as writer:
        writer.write("TASK", {"startNs": [1]})
        writer.fact("tool", "test")
    with open_report(path) as report:
        found = (report.path, report.family, report.revision)
        assert found == (path, MSPROF, REVISIONS[MSPROF][-1])
        assert {"TASK", "UPROF_RUN", "STRING_IDS"} < set(report.tables)
        assert not {"HBM", "UPROF_ANOMALIES", "TaskIndex"} & set(report.tables)


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("revision", REVISIONS[MSPROF])
def test_every_revision_is_read_with_the_newest_names(path: Path, revision: str) -> None:
    """A distinct number in every column is read back under the newest name."""
    known = catalogue.load(MSPROF, "latest").tables
    with ReportWriter(path, revision=revision) as writer:
        for table, spec in known.items():
            if table not in {"STRING_IDS", "META_DATA"} and not table.startswith("ENUM_"):
                numbers = range(2, 2 + len(spec.columns))
                writer.write(table, dict(zip(spec.column_names, numbers, strict=True)))
    with open_report(path) as report:
        for table, spec in known.items():
            if table in {"STRING_IDS", "META_DATA"} or table.startswith("ENUM_"):
                continue
            layout = reader.layout(revision, table)
            columns = ", ".join(spec.column_names)
            found = report.rows(f"SELECT {columns} FROM {table}")
            if layout is None:
                assert found == []
                continue
            expected = [
                None if column.name in layout.dropped else number
                for number, column in enumerate(spec.columns, start=2)
            ]
            assert [int(v) if v is not None else None for v in found[0]] == expected, table


@pytest.mark.parametrize("revision", ["pre_20240328", "documented", "latest"])
def test_all_models_read_files_with_any_tables(path: Path, revision: str) -> None:
    with ReportWriter(path, revision=revision) as writer:
        writer.write("TASK", {"startNs": [1, 2], "endNs": 5})
    with open_report(path) as report, report.session() as session:
        for model in MODELS.values():
            session.scalars(select(model)).all()
        assert [task.duration_ns for task in session.scalars(select(Task))] == [4, 3]


def test_rows_of_a_view_have_distinct_row_ids(path: Path) -> None:
    with ReportWriter(path, revision="1.1.1_20250820") as writer:
        writer.write("QOS", {"deviceId": [0, 0], "bandwidth": [7, 7]})
    with open_report(path) as report:
        assert report.rows("SELECT rowid, bandwidth FROM QOS") == [(1, 7), (2, 7)]


def test_columns_added_by_viewers_are_readable(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20241112") as writer:
        writer.write("COMPUTE_TASK_INFO", {"globalTaskId": [1], "blockNum": [24]})
    execute(
        path,
        "ALTER TABLE COMPUTE_TASK_INFO ADD waitNs INTEGER; "
        "UPDATE COMPUTE_TASK_INFO SET waitNs = 9; CREATE TABLE status_info (a)",
    )
    with open_report(path) as report:
        assert report.rows("SELECT blockNum, blockDim, waitNs FROM COMPUTE_TASK_INFO") == [
            (24, None, 9)
        ]
        assert report.rows("SELECT blockDim FROM main.COMPUTE_TASK_INFO") == [(24,)]
        assert "status_info" in report.tables


@pytest.mark.parametrize("columns", ["blockDim, gridDim", "gridDim, blockDim"])
def test_helper_column_of_a_viewer_is_not_the_renamed_column(path: Path, columns: str) -> None:
    """MindStudio Insight adds an empty blockDim to files that have blockNum."""
    with ReportWriter(path, revision="1.2.0_20260128") as writer:
        writer.write("COMPUTE_TASK_INFO", {"globalTaskId": [1], "blockNum": [24]})
    for column in columns.split(", "):
        execute(path, f"ALTER TABLE COMPUTE_TASK_INFO ADD {column} INTEGER")
    with open_report(path) as report:
        found = report.rows("SELECT blockNum, blockDim FROM COMPUTE_TASK_INFO")
    assert found == [(24, None)]


def test_indexes_are_used_through_views(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20241112") as writer:
        writer.write("COMMUNICATION_TASK_INFO", {"globalTaskId": [1]})
        writer.write("COMPUTE_TASK_INFO", {"globalTaskId": [1]})
    with open_report(path) as report:
        query = "EXPLAIN QUERY PLAN SELECT bandwidth FROM {} WHERE globalTaskId = 1"
        plan = str(report.rows(query.format("COMMUNICATION_TASK_INFO")))
        assert "CommunicationTaskIndex (globalTaskId=?)" in plan
        plan = str(report.rows(query.format("COMPUTE_TASK_INFO").replace("bandwidth", "blockNum")))
        assert "USING INTEGER PRIMARY KEY" in plan


def test_texts_of_old_hccl_types_are_read_as_enum_ids(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20240516") as writer:
        writer.write("COMMUNICATION_OP", {"opId": [1, 2, 3], "dataType": [4, None, 65534]})
        writer.write("COMMUNICATION_TASK_INFO", {"linkType": [1]})
    with open_report(path) as report, report.session() as session:
        assert report.rows("SELECT dataType FROM COMMUNICATION_OP") == [(4,), (None,), (65534,)]
        assert report.rows("SELECT linkType FROM COMMUNICATION_TASK_INFO") == [(1,)]
        ops = session.scalars(select(CommunicationOp).order_by(CommunicationOp.op_id)).all()
        assert [op.data_type for op in ops] == ["FP32", None, "N/A"]
        assert session.get(HcclDataType, 4) is not None


def test_unknown_old_hccl_types_are_invalid(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20240516") as writer:
        odd = writer.strings.intern("no such type")
        writer.write("COMMUNICATION_OP", {"opId": [1, 2]})
    execute(path, f"UPDATE COMMUNICATION_OP SET dataType = iif(opId = 1, {odd}, 999)")
    with open_report(path) as report:
        assert report.rows("SELECT dataType FROM COMMUNICATION_OP") == [(65535,), (None,)]


def test_numeric_host_id_is_read_as_text(path: Path) -> None:
    with ReportWriter(path, revision="1.0.0_20240711") as writer:
        writer.write("HOST_INFO", {"hostUid": "6458368880732993735"})
    with open_report(path) as report:
        assert report.rows("SELECT hostUid FROM HOST_INFO") == [("6458368880732993735",)]


def test_table_and_column_names_are_case_insensitive(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.write("MSTX_EVENTS", {"globalTid": [5]})
    execute(
        path,
        "ALTER TABLE MSTX_EVENTS RENAME COLUMN globalTid TO globalTID; "
        "ALTER TABLE MSTX_EVENTS RENAME TO x; ALTER TABLE x RENAME TO Mstx_Events",
    )
    with open_report(path) as report:
        assert report.rows("SELECT globalTid FROM MSTX_EVENTS") == [(5,)]


def test_tables_without_rowid_are_read_and_views_are_not(path: Path) -> None:
    with ReportWriter(path):
        pass
    execute(
        path,
        """
        CREATE TABLE hidden (deviceId INTEGER, bandwidth NUMERIC);
        INSERT INTO hidden VALUES (1, 2), (1, 2);
        CREATE VIEW QOS AS SELECT * FROM hidden;
        CREATE TABLE DDR (deviceId INTEGER PRIMARY KEY, read NUMERIC) WITHOUT ROWID;
        INSERT INTO DDR VALUES (4, 5), (6, 7);
    """,
    )
    with open_report(path, any_revision=True) as report:
        assert report.rows("SELECT rowid, bandwidth, dieId FROM QOS") == []
        assert report.detection.not_tables == ("QOS",)
        assert report.rows("SELECT rowid, read, write FROM DDR") == [(1, 5, None), (2, 7, None)]


def test_names_from_the_file_are_quoted(path: Path) -> None:
    with ReportWriter(path, revision="1.1.1_20250820"):
        pass
    execute(path, 'CREATE TABLE QOS (deviceId INTEGER, "x"" FROM QOS; --" INTEGER)')
    with open_report(path) as report:
        assert report.rows("SELECT * FROM QOS") == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE META_DATA SET value = '9.9.9' WHERE name = 'SCHEMA_VERSION'",
        "UPDATE META_DATA SET value = '2.0.0_20300101' WHERE name = 'UPROF_SCHEMA_REVISION'",
    ],
)
def test_unknown_revision_is_refused_unless_any_is_accepted(path: Path, damage: str) -> None:
    with ReportWriter(path) as writer:
        writer.write("TASK", {"startNs": [1]})
    execute(path, damage)
    with pytest.raises(SchemaVersionError, match=r"msprof\.db has an unknown schema revision"):
        open_report(path)
    with open_report(path, any_revision=True) as report:
        assert (report.revision, report.rows("SELECT startNs FROM TASK")) == (None, [(1,)])


@pytest.mark.parametrize("any_revision", [False, True])
def test_database_of_another_program_is_refused(path: Path, any_revision: bool) -> None:
    execute(path, "CREATE TABLE moz_places (id INTEGER)")
    with pytest.raises(StoreError, match=r"msprof\.db is not a report .*moz_places"):
        open_report(path, any_revision=any_revision)


def test_skyline_reports_are_read(tmp_path: Path) -> None:
    for family, table in (
        ("skyline-run-time", "run_time_entries"),
        ("skyline-memory", "misc_sizes"),
    ):
        path = execute(tmp_path / f"{family}.sqlite", catalogue.frozen_text(family, "1"))
        with open_report(path) as report:
            assert (report.family, report.revision) == (family, "1")
            assert table in report.tables
            assert report.rows("SELECT * FROM UPROF_RUN") == []


def test_reports_are_read_only(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.write("TASK", {"startNs": [1]})
    before = path.read_bytes()
    with open_report(path) as report:
        for sql in ("DELETE FROM main.TASK", "CREATE TABLE x (a)", "PRAGMA user_version = 5"):
            with pytest.raises(StoreError, match=r"cannot read .*msprof\.db"):
                report.rows(sql)
        with report.session() as session:
            session.add(ComputeTask(global_task_id=1))
            with pytest.raises(StoreError):
                session.flush()
    assert path.read_bytes() == before


def test_invalid_query_is_an_error_with_the_file_name(path: Path) -> None:
    with ReportWriter(path):
        pass
    with open_report(path) as report:
        for query in (
            "SELECT nonsense FROM TASK",
            "SELEC",
            "SELECT * FROM NO_SUCH",
            "SELECT 1; SELECT 2",
        ):
            with pytest.raises(StoreError, match=r"cannot read .*msprof\.db: "):
                report.rows(query)
            with pytest.raises(StoreError, match=r"cannot read .*msprof\.db: "):
                report.columns(query)


def test_parameters_are_bound(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.write("TASK", {"startNs": np.arange(5)})
    with open_report(path) as report:
        assert report.rows("SELECT startNs FROM TASK WHERE startNs > ?", (3,)) == [(4,)]
        assert report.rows("SELECT startNs FROM TASK WHERE startNs > :t", {"t": 3}) == [(4,)]
        assert report.columns("SELECT startNs FROM TASK WHERE startNs > ?", [3])["startNs"] == [4]
        for three in (np.int64(3), np.uint8(3), np.float32(3)):
            assert report.rows("SELECT startNs FROM TASK WHERE startNs = ?", [three]) == [(3,)]
            assert report.rows("SELECT startNs FROM TASK WHERE startNs = :t", {"t": three}) == [
                (3,)
            ]


def test_closed_report_is_an_error(path: Path) -> None:
    with ReportWriter(path):
        pass
    report = open_report(path)
    report.close()
    report.close()
    with pytest.raises(StoreError, match=r"msprof\.db: .*closed"):
        report.rows("SELECT 1")


def test_invalid_utf8_is_escaped(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.strings.intern("x")
    execute(path, "UPDATE STRING_IDS SET value = CAST(x'61ff62' AS TEXT)")
    with open_report(path) as report:
        assert report.rows("SELECT value FROM STRING_IDS") == [("a\\xffb",)]


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_missing_library_is_named(
    path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReportWriter(path):
        pass
    monkeypatch.setitem(sys.modules, library, None)
    with open_report(path) as report:
        convert = report.to_pandas if library == "pandas" else report.to_arrow
        with pytest.raises(UsageError, match=f"requires {library}"):
            convert("TASK")


def test_tables_become_data_frames_and_arrow_tables_exactly(path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    with ReportWriter(path, revision="1.1.1_20250820") as writer:
        writer.write("QOS", {"deviceId": [2**60 + 1, None], "bandwidth": [0.5, None]})
    with open_report(path) as report:
        frame, table = report.to_pandas("QOS"), report.to_arrow("QOS")
        assert len(report.to_pandas("CCU")) == 0
        with pytest.raises(UsageError, match="no table NO_SUCH"):
            report.to_pandas("NO_SUCH")
    names = list(catalogue.newest_tables()["QOS"].column_names)
    assert list(frame.columns) == table.column_names == names
    assert frame["deviceId"][0] == 2**60 + 1
    assert frame["deviceId"][1] is pandas.NA
    assert table.column("deviceId").to_pylist() == [2**60 + 1, None]
    assert table.column("bandwidth").to_pylist() == [0.5, None]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "revision"), SAMPLES)
def test_real_databases_are_read_by_all_models(shared: Path, name: str, revision: str) -> None:
    path = shared / "samples" / "ascend" / name
    before = path.read_bytes()
    with open_report(path) as report, report.session() as session:
        assert report.revision == revision
        for model in MODELS.values():
            table = str(model.__tablename__)
            count = len(session.scalars(select(model)).all())
            assert count == (
                report.rows(f"SELECT count(*) FROM main.{table}")[0][0]
                if table in report.tables
                else 0
            )
        task = session.scalars(select(ComputeTask)).first()
        assert task is not None
        assert task.name
        assert task.block_num == report.rows("SELECT blockDim FROM main.COMPUTE_TASK_INFO")[0][0]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["msprof_0_edited_by_viewer.db", "report_0_prehistory.db"])
def test_databases_without_a_known_revision_are_read_on_request(shared: Path, name: str) -> None:
    path = shared / "samples" / "ascend" / name
    with pytest.raises(SchemaVersionError, match=name):
        open_report(path)
    with open_report(path, any_revision=True) as report:
        assert report.rows("SELECT count(*) FROM TASK") == [(24,)]


@pytest.mark.slow
def test_opening_time_does_not_depend_on_the_file_size(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.write("TASK", {"startNs": np.arange(300_000)})
    steps = 0

    def count_steps() -> int:
        nonlocal steps
        steps += 1
        return 0

    real = sqlite3.connect

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = real(*args, **kwargs)
        db.set_progress_handler(count_steps, 1000)
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        with open_report(path):
            assert steps < 100
