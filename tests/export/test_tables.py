"""Tables exported as Parquet and Arrow: typed, with texts instead of ids, complete."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, run_time_report, training_step
from tests.cli.test_report import refused, uprof
from tests.sql import execute
from unified_prof.export import tables

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return training_step(tmp_path / "step.db")


def read(folder: Path, table: str) -> Any:
    if (file := folder / f"{table}.parquet").exists():
        return parquet.read_table(file)
    with pyarrow.ipc.open_file(folder / f"{table}.arrow") as opened:
        return opened.read_all()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_each_table_is_a_file_of_texts_without_ids(step: Path, tmp_path: Path, kind: str) -> None:
    done = uprof("export", step, "-o", tmp_path / "out", "--layout", kind, "--json", "-q")
    record = json.loads(done.stdout)
    written = {one["name"]: one["entries"] for one in record["files"]}
    assert written[f"TASK.{kind}"] == 7
    assert f"STRING_IDS.{kind}" not in written
    # The enum of the file's revision lacks the types that torch_npu records.
    assert [one["column"] for one in record["left_out"]] == ["type"]
    tasks = read(tmp_path / "out", "TASK")
    types = {field.name: str(field.type) for field in tasks.schema}
    assert (types["startNs"], types["taskType"]) == ("int64", "string")
    assert tasks["taskType"].to_pylist().count("KERNEL_AICORE") == 5
    assert tasks["startNs"][0].as_py() == Device.T0 + 1000
    assert tasks["globalPid"].null_count == 7, "NULL remains null"
    calls = read(tmp_path / "out", "PYTORCH_API")
    assert str(calls.schema.field("startNs").type) == "int64", "text in the database"
    assert "aten::linear" in calls["name"].to_pylist()


@pytest.mark.parametrize("uid", [1, 18_446_744_073_709_551_615, "0x12ab"])
def test_host_id_of_any_revision_is_text(tmp_path: Path, uid: int | str) -> None:
    with Device(tmp_path / "x.db") as device:
        device.writer.write("HOST_INFO", {"hostUid": [str(uid)], "hostName": "h"})
    done = uprof("export", tmp_path / "x.db", "-o", tmp_path / "out", "--layout", "parquet", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert read(tmp_path / "out", "HOST_INFO")["hostUid"].to_pylist() == [str(uid)]


def test_ids_are_kept_on_request(step: Path, tmp_path: Path) -> None:
    assert uprof("export", step, "-o", tmp_path, "--layout", "parquet", "--ids").returncode == 0
    texts = read(tmp_path, "STRING_IDS").to_pylist()
    names = {row["id"]: row["value"] for row in texts}
    kinds = [names[one] for one in read(tmp_path, "TASK")["taskType"].to_pylist()]
    assert kinds.count("EVENT_WAIT") == 1


def test_tables_are_selected_by_name(tmp_path: Path) -> None:
    report = run_time_report(tmp_path / "r.sqlite")
    out = tmp_path / "out"
    command = ("export", report, "-o", out, "--layout", "parquet", "--table", "run_time_entries")
    assert uprof(*command).returncode == 0
    assert [one.name for one in out.iterdir()] == ["run_time_entries.parquet"]
    rows = read(out, "run_time_entries")
    assert rows["forward_ms"].to_pylist() == [1.5, 0.25, 0.5]
    assert rows["backward_ms"].to_pylist() == [3.0, None, 1.0]
    refused(uprof(*command), 9, "already exists")
    assert uprof(*command, "--force").returncode == 0


def test_values_outside_the_column_type_are_null_and_reported(step: Path, tmp_path: Path) -> None:
    execute(step, "UPDATE TASK SET streamId = 'odd' WHERE globalTaskId = 1")
    execute(step, "UPDATE TASK SET taskType = 999999 WHERE globalTaskId IN (2, 3)")
    execute(step, "UPDATE PYTORCH_API SET startNs = 'never' WHERE connectionId = 1")
    done = uprof("export", step, "-o", tmp_path / "out", "--layout", "parquet", "--json")
    lost = {(one["table"], one["column"]): one for one in json.loads(done.stdout)["left_out"]}
    assert lost["TASK", "streamId"]["count"] == 1
    assert lost["TASK", "taskType"]["count"] == 2
    assert lost["PYTORCH_API", "startNs"]["count"] == 1
    assert "null in TASK.taskType: 2, ids without a row in STRING_IDS" in done.stderr
    tasks = read(tmp_path / "out", "TASK")
    assert tasks["streamId"].null_count == 1
    assert tasks["taskType"].null_count == 2


def test_large_tables_have_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 100)
    with Device(tmp_path / "many.db") as device:
        for number in range(350):
            device.task(number * 10, number * 10 + 5, kernel=(f"k{number}", "K"))
    assert (
        uprof("export", tmp_path / "many.db", "-o", tmp_path, "--layout", "parquet").returncode == 0
    )
    for table in ("TASK", "COMPUTE_TASK_INFO"):
        file = parquet.ParquetFile(tmp_path / f"{table}.parquet")
        assert file.metadata.num_rows == 350
        assert file.metadata.num_row_groups > 1
    assert read(tmp_path, "COMPUTE_TASK_INFO")["name"].to_pylist()[349] == "k349"


def test_invalid_arguments_are_refused(
    step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ("export", step, "-o", out, "--layout", "parquet")
    refused(uprof(*command, "--table", "NOPE"), 2, "has no table NOPE", "TASK")
    refused(uprof("export", tmp_path, *command[2:]), 2, "is a directory")
    refused(uprof("export", step, "-o", out, "--ids"), 2, "--table and --ids apply to tables")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(uprof(*command), 2, "require pyarrow", "unified-prof[parquet]")
    assert not out.exists()
