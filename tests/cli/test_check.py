"""`uprof check`: which tables of another exporter's database agree with the recording."""

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.analysis.builders import run_time_report
from tests.prof_generator import Recipe, generate
from unified_prof.cli.app import app
from unified_prof.errors import RawFormatError, UsageError
from unified_prof.pipeline.convert import convert


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(operators=4, collectives=2, copies=2, pmu="Memory")
    return generate(tmp_path_factory.mktemp("recording"), recipe).path


@pytest.fixture
def database(recording: Path, tmp_path: Path) -> Path:
    return convert(recording, tmp_path / "other.db", schema="latest").database


def change(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as db:
        changed = [db.execute(statement).rowcount for statement in statements]
        db.commit()
    assert all(changed), changed


def check(*arguments: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["check", *map(str, arguments), "--json"])
    assert isinstance(result.exception, SystemExit | None), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, document


def differing(document: dict[str, Any]) -> dict[str, str | None]:
    return {one["table"]: one["supports"] for one in document["tables"] if not one["agrees"]}


def test_complete_recording_passes(recording: Path) -> None:
    code, document = check(recording)
    assert (code, document["passes"], document["tables"]) == (0, True, [])
    assert sum(part["total"] for part in document["coverage"])


def test_skipped_data_fails(recording: Path, tmp_path: Path) -> None:
    damaged = tmp_path / recording.name
    shutil.copytree(recording, damaged)
    with (damaged / "device_0/data/stars_soc.data.0.slice_0").open("ab") as file:
        file.write(b"\xff" * 64)
    code, document = check(damaged)
    assert (code, document["passes"]) == (1, False)
    assert [part["kind"] for part in document["coverage"] if part["skipped"]] == [
        "device 0: stars_soc"
    ]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("schema", ["latest", "documented", "1.1.0_20241216"])
def test_equal_databases_of_any_revision_pass(recording: Path, tmp_path: Path, schema: str) -> None:
    other = convert(recording, tmp_path / "other.db", schema=schema).database
    code, document = check(recording, "--against", other)
    assert (code, differing(document)) == (0, {})
    rows = {one["table"]: one["rows"] for one in document["tables"]}
    assert rows["TASK"]["recording"] == rows["TASK"]["database"] > 4


def test_numbering_of_ids_is_free(recording: Path, database: Path) -> None:
    change(
        database,
        *(
            f"UPDATE {table} SET {column} = {column} + 1000"
            f" WHERE {column} IN (SELECT id FROM STRING_IDS)"
            for table, columns in {
                "CANN_API": "name",
                "TASK": "taskType",
                "COMPUTE_TASK_INFO": "name taskType opType inputFormats inputDataTypes inputShapes"
                " outputFormats outputDataTypes outputShapes attrInfo opState hf32Eligible"
                " gridDim blockDim",
                "COMMUNICATION_OP": "opName groupName algType opType",
                "COMMUNICATION_TASK_INFO": "name taskType groupName",
                "TASK_PMU_INFO": "name",
            }.items()
            for column in columns.split()
        ),
        "UPDATE STRING_IDS SET id = id + 1000",
        "UPDATE TASK SET globalTaskId = globalTaskId + 77",
        *(
            f"UPDATE {table} SET globalTaskId = globalTaskId + 77"
            for table in ("COMPUTE_TASK_INFO", "COMMUNICATION_TASK_INFO", "TASK_PMU_INFO")
        ),
    )
    code, document = check(recording, "--against", database)
    assert "MEMCPY_INFO" in differing(document)  # its ids were not changed
    assert differing(document).keys() <= {"MEMCPY_INFO"}
    assert code == 1


PLANTED: dict[str, tuple[Sequence[str], dict[str, str | None], str]] = {
    "lost tasks": (
        ["DELETE FROM TASK WHERE rowid = (SELECT min(rowid) FROM TASK)"],
        {"TASK": "recording"},
        "1 records without a row in the database",
    ),
    "unknown launch": (
        ["UPDATE TASK SET connectionId = -1 WHERE rowid = (SELECT min(rowid) FROM TASK)"],
        {"TASK": "recording"},
        "",
    ),
    "invented row": (
        [
            "INSERT INTO CANN_API (startNs, endNs, type, globalTid, connectionId, name)"
            " SELECT startNs + 1, endNs + 1, type, globalTid, 999999, name FROM CANN_API LIMIT 1"
        ],
        {"CANN_API": "recording"},
        "1 rows of the database without a record",
    ),
    "split collective": (
        [  # As exporters do that number collectives task by task.
            "INSERT INTO COMMUNICATION_OP SELECT opName, startNs + 1, endNs, connectionId,"
            " groupName, 99999, relay, retry, dataType, algType, count, opType, deviceId, rankSize"
            " FROM COMMUNICATION_OP LIMIT 1",
            "UPDATE COMMUNICATION_TASK_INFO SET opId = 99999 WHERE globalTaskId ="
            " (SELECT max(globalTaskId) FROM COMMUNICATION_TASK_INFO WHERE opId ="
            " (SELECT opId FROM COMMUNICATION_OP LIMIT 1))",
        ],
        {"COMMUNICATION_OP": "recording", "COMMUNICATION_TASK_INFO": "recording"},
        "tasks of one launch call in several collectives of a group: 1 times in the database",
    ),
    "exposed communication during computation": (
        [
            "INSERT INTO OVERLAP_ANALYSIS (id, deviceId, startNs, endNs, type) SELECT 99999,"
            " deviceId, startNs, endNs, 2 FROM OVERLAP_ANALYSIS WHERE type = 0 LIMIT 1"
        ],
        {"OVERLAP_ANALYSIS": "recording"},
        "exposed communication during computation",
    ),
    "changed value": (
        ["UPDATE TASK_PMU_INFO SET value = value * 2 + 1 WHERE rowid = 1"],
        {"TASK_PMU_INFO": None},
        "",
    ),
}


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_differences_are_all_found(recording: Path, database: Path, name: str) -> None:
    statements, expected, reason = PLANTED[name]
    change(database, *statements)
    code, document = check(recording, "--against", database)
    found = differing(document)
    assert code == 1
    assert expected.items() <= found.items(), document["tables"]
    reasons = [text for one in document["tables"] for text in one["reasons"]]
    assert any(reason in text for text in reasons) or not reason


def test_damaged_recording_is_supporting(recording: Path, database: Path, tmp_path: Path) -> None:
    damaged = tmp_path / recording.name
    shutil.copytree(recording, damaged)
    for file in (damaged / "host/data").glob("*api_event*"):
        file.unlink()
    code, document = check(damaged, "--against", database)
    assert code == 1
    assert differing(document)["TASK"] == "database"


def test_directory_of_recordings_is_refused(recording: Path, tmp_path: Path) -> None:
    run_time_report(tmp_path / "x.sqlite")
    for name in ("a", "b"):
        shutil.copytree(recording, tmp_path / "several" / name / recording.name)
    for arguments, text in (
        ([tmp_path / "several"], "2 recordings, expected one"),
        ([recording, "--against", tmp_path / "x.sqlite"], "expected msprof"),
    ):
        result = CliRunner().invoke(app, ["check", *map(str, arguments)])
        assert isinstance(result.exception, UsageError)
        assert text in str(result.exception)


def test_directory_of_one_recording_is_checked(recording: Path, tmp_path: Path) -> None:
    shutil.copytree(recording, tmp_path / "one" / recording.name)
    (code, document), (_, alone) = check(tmp_path / "one"), check(recording)
    assert (code, document["coverage"]) == (0, alone["coverage"])
    (tmp_path / "one/trace.json").touch()
    result = CliRunner().invoke(app, ["check", str(tmp_path / "one")])
    assert "2 recordings, expected one" in str(result.exception)  # one of them is empty
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["check", str(tmp_path / "empty")])
    assert isinstance(result.exception, RawFormatError)
    assert "is not a recording and contains none" in str(result.exception)


def test_database_that_is_no_report_is_refused(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    result = CliRunner().invoke(app, ["check", str(recording), "--against", str(tmp_path / "x.db")])
    assert result.exception is not None
    assert "x.db" in str(result.exception)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("case", ["prof/16_everything", "prof/15_chip15", "prof/39_kfc"])
def test_goldens_equal_a_second_conversion(case: str, shared: Path, tmp_path: Path) -> None:
    """Times of the whole path: labels, joins and rules on tables of every kind."""
    archives = sorted((shared / "goldens").glob(f"{case}*/PROF_*.tar.xz"))
    if not archives:
        pytest.skip("no such golden")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    path = next(tmp_path.glob("PROF_*"))
    other = convert(path, tmp_path / "other.db", schema="latest").database
    _, document = check(path, "--against", other)
    assert differing(document) == {}
    assert len(document["tables"]) > 8
