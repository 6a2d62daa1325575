import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.builders import run_time_report
from tests.cli.test_report import refused, uprof
from tests.export.builders import DatabaseBuilder, table
from unified_prof.cli.app import app
from unified_prof.errors import OutputError, RawFormatError, StoreError, UsageError
from unified_prof.export.files import OutputFiles
from unified_prof.pipeline.export import export
from unified_prof.sqlite.atomic import AtomicFile


@pytest.fixture
def small(database: DatabaseBuilder) -> Path:
    with database:
        database.op(0, 10)
    return database.path


def test_export_command_reports_written_files_and_omissions(small: Path, tmp_path: Path) -> None:
    done = uprof("export", small, "-o", tmp_path / "new" / "files", "--json")
    assert done.returncode == 0
    record = json.loads(done.stdout)
    assert record["layout"] == "mindstudio"
    written = {path.name for path in (tmp_path / "new" / "files").iterdir()}
    assert {file["name"] for file in record["files"]} == written
    assert {"deliverable", "what", "why"} == set(record["left_out"][0])
    assert "left out of task_time: kernel_name of the launch" in done.stderr
    assert uprof("export", small, "-o", tmp_path / "quiet", "-q").stderr == ""
    refused(uprof("export", small, "-o", small), 9, "not a directory")


def test_unknown_extension_is_refused_and_not_the_name_of_a_directory(
    small: Path, tmp_path: Path
) -> None:
    refused(uprof("export", small, "-o", tmp_path / "a.jsn"), 2, "unknown extension .jsn")
    assert not (tmp_path / "a.jsn").exists()
    for name, *layout in (("a.jsn", "--layout", "mindstudio"), ("run.2",)):
        assert uprof("export", small, "-o", tmp_path / name, *layout, "-q").returncode == 0
        assert (tmp_path / name).is_dir()


@pytest.mark.parametrize(
    ("chip", "devices", "name"),
    [
        ("Ascend910B", ["host"], "N/A"),
        *((chip, ["0", "1"], "Notify_Wait") for chip in ("Ascend910A", "Ascend310P", "Ascend310B")),
    ],
)
def test_chips_with_the_python_export_of_msprof_have_its_layout(
    tmp_path: Path, chip: str, devices: list[str], name: str
) -> None:
    with DatabaseBuilder(tmp_path / "a.db", chip) as database:
        database.row("NPU_INFO", {"id": 1, "name": chip}, texts=())
        database.call(0, 5, "launch")
        database.op(10, 20)
        task = database.task(30, 40, "NOTIFY_WAIT_SQE")
        values = {"globalTaskId": task, "opId": database.collective(30, 40)}
        texts = {"name": "hcom_allReduce__1_1", "taskType": "Notify_Wait", "groupName": "group"}
        database.row("COMMUNICATION_TASK_INFO", values | texts, texts=tuple(texts))
    export(tmp_path / "a.db", tmp_path / "files")
    calls = table(tmp_path / "files", "api_statistic")
    assert [(row["Device_id"], row["API Name"]) for row in calls] == [
        (device, "launch") for device in devices
    ]
    names = [row["kernel_name"] for row in table(tmp_path / "files", "task_time")]
    assert names == ["add_1", name]


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ('=HYPERLINK("http://e","x")', '\'=HYPERLINK("http://e","x")'),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb", r"a\u202eb"),
        ("MatMul_1", "MatMul_1"),
    ],
)
def test_names_cannot_become_formulas_or_control_sequences(
    name: str, cell: str, database: DatabaseBuilder, tmp_path: Path
) -> None:
    with database:
        database.op(0, 10, name=name)
    export(database.path, tmp_path / "files")
    (table,) = (tmp_path / "files").glob("op_summary_*.csv")
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["Op Name"] == cell
    done = CliRunner().invoke(
        app, ["export", str(database.path), "-o", str(tmp_path / "raw"), "--raw"]
    )
    assert done.exit_code == 0, done.stderr
    (table,) = (tmp_path / "raw").glob("op_summary_*.csv")
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["Op Name"] == name


@pytest.mark.parametrize(
    ("matrix", "vector", "transfer", "cell"),
    [
        (0.25, 0.5, 0.125, "0.250000"),
        (0.0, 0.5, 0.125, "0.250000"),
        (0.25, 0.0, 0.125, "0.500000"),
        (0.25, 0.5, 0.0, "0.000000"),
        (0.0, 0.0, 0.125, "N/A"),
        (None, 0.5, 0.125, "N/A"),
    ],
)
def test_memory_bound_is_a_ratio_to_the_busier_unit(
    matrix: float | None,
    vector: float,
    transfer: float,
    cell: str,
    database: DatabaseBuilder,
    tmp_path: Path,
) -> None:
    metrics = {"mac_ratio": matrix, "vec_ratio": vector, "mte2_ratio": transfer}
    with database:
        for name in ("mac_ratio", "vec_ratio", "mte2_ratio"):  # all columns, of another task
            database.metric(database.op(20, 30), name, 0.5)
        task = database.op(0, 10)
        for name, value in metrics.items():
            if value is not None:
                database.metric(task, name, value)
    export(database.path, tmp_path / "files")
    (table,) = (tmp_path / "files").glob("op_summary_*.csv")
    with table.open(newline="") as file:
        row = next(csv.DictReader(file))
    assert row["memory_bound"] == cell


def test_invalid_inputs_are_reported_by_path(tmp_path: Path, small: Path) -> None:
    out = tmp_path / "files"
    with pytest.raises(UsageError, match="skyline-run-time"):
        export(run_time_report(tmp_path / "r.sqlite"), out)
    empty, text, folder = (tmp_path / name for name in ("empty.db", "text.db", "folder"))
    empty.write_bytes(b"")
    text.write_text('{"traceEvents": []}')
    folder.mkdir()
    for path in (empty, text, folder, tmp_path / "nowhere.db"):
        with pytest.raises(StoreError) as caught:
            export(path, out)
        assert str(path) in str(caught.value)
    damaged = tmp_path / "PROF_000001_20260101"
    (damaged / "device_0").mkdir(parents=True)
    with pytest.raises(RawFormatError):
        export(damaged, out)
    assert not out.exists()


def test_database_of_a_directory_is_exported(small: Path, tmp_path: Path) -> None:
    export(small.parent, tmp_path / "files")
    assert list((tmp_path / "files").glob("op_summary_*.csv"))
    small.with_name("msprof_2.db").write_bytes(small.read_bytes())
    with pytest.raises(StoreError, match="2 databases"):
        export(small.parent, tmp_path / "files")


def test_database_in_an_ascend_pt_directory_is_named(tmp_path: Path) -> None:
    database = tmp_path / "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db"
    database.parent.mkdir(parents=True)
    database.touch()
    with pytest.raises(StoreError) as caught:
        export(database.parents[1], tmp_path / "files")
    assert caught.value.hint == f"use {database}"


def _write(folder: Path, *, force: bool = False) -> None:
    with OutputFiles(folder, force=force) as output:
        for name in ("a.csv", "b.csv", "c.csv"):
            output.tables([name], "head", [["1"]], rows_each=10)


def test_existing_files_are_not_replaced_without_force(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("original")

    with pytest.raises(OutputError, match="already exists"):
        _write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b.csv"]
    assert (tmp_path / "b.csv").read_text() == "original"
    _write(tmp_path, force=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("a.csv", "b.csv", "c.csv"), "head\n1\n"
    )


def test_output_files_appear_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a name is taken at the last moment, files that already exist are removed again."""
    commit = AtomicFile.commit

    def commit_late(self: AtomicFile) -> None:
        if self.target.name == "b.csv":
            self.target.write_text("other")
        commit(self)

    monkeypatch.setattr(AtomicFile, "commit", commit_late)
    with pytest.raises(OutputError, match="already exists"):
        _write(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b.csv": "other"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_failed_export_leaves_no_files(tmp_path: Path, error: type[BaseException]) -> None:
    def lines() -> Callable[[], None]:
        raise error

    with pytest.raises((error, OutputError)), OutputFiles(tmp_path, force=False) as output:
        output.tables(["a.csv"], "head", (lines() for _ in range(1)), rows_each=10)  # type: ignore[misc]
    assert not list(tmp_path.iterdir())


def test_memory_of_operators_is_exported(database: DatabaseBuilder, tmp_path: Path) -> None:
    with database:
        database.op(0, 10)
        database.memory(3_000, "allocate", 1024, name="a", total=5120)
        database.memory(1_000, "allocate", 4096, name="a", address=2, total=4096)
        database.memory(7_500, "release", -4096, name="a", address=2, total=1024)
        database.memory(9_000, "release", -1, name="b", total=1024)
    export(database.path, tmp_path / "files")
    totals = [row["Total Allocated(KB)"] for row in table(tmp_path / "files", "memory_record")]
    assert list(map(float, totals)) == [4, 5, 1, 1]
    rows = table(tmp_path / "files", "operator_memory")
    columns = ("Size(KB)", "Duration(us)", "Allocation Total Allocated(KB)")
    more = ("Release Total Allocated(KB)", "Release Total Reserved(KB)")
    # What was released, then what was not.
    assert [tuple(float(row[name]) for name in (*columns, *more)) for row in rows] == [
        (4, 6.5, 4, 1, 2),
        (1, 0, 5, 0, 0),
    ]
