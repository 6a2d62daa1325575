"""Breakdowns as Parquet and Arrow files have the figures of JSON and constant column types."""

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import unified_prof
from tests.analysis.builders import run_time_report, training_step
from tests.cli.test_report import refused, uprof
from unified_prof.cli.app import main
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import KINDS

pyarrow = pytest.importorskip("pyarrow")

pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    return path


def read(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    with pyarrow.ipc.open_file(path) as file:
        return file.read_all()


def rows_of(report: Path, by: str) -> list[dict[str, Any]]:
    """Return the rows of the JSON report."""
    (document,) = json.loads(uprof("report", report, "--by", by, "--json").stdout)["reports"]
    found: list[dict[str, Any]] = document["breakdowns"][by]["rows"]
    return found


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize("by", KINDS)
def test_every_breakdown_has_the_figures_of_json(timeline: Path, tmp_path: Path, by: str) -> None:
    with open_analyses(timeline) as (analysis,):
        try:
            analysis.breakdown(by)
        except UsageError:
            pytest.skip("the recording does not have it")
    expected = rows_of(timeline, by)
    output = tmp_path / "rows.parquet"
    assert uprof("report", timeline, "--by", by, "-o", output).returncode == 0
    table = read(output)
    found = table.to_pylist()
    assert [row.pop("report") for row in found] == [str(timeline)] * len(expected)
    assert [row.pop("by") for row in found] == [by] * len(expected)
    keys = dict.fromkeys(key for row in expected for key in row)
    assert found == [{key: row.get(key) for key in keys} for row in expected]
    for field in table.schema:
        if field.name in ("report", "by", "name", "kind", "detail"):
            assert field.type == pyarrow.string()
        elif field.name in ("percent", "average_ns"):
            assert field.type == pyarrow.float64()
        elif field.name.endswith(("_ns", "_bytes")) or field.name == "count":
            assert field.type == pyarrow.int64()


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_parquet_and_arrow_have_equal_columns(timeline: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"rows.{ending}"
    done = uprof("report", timeline, "--by", "kernel", "--top", "2", "--stats", "-o", output)
    assert done.returncode == 0, done.stderr
    table = read(output)
    assert table.num_rows == 2
    assert table.schema.field("stddev_ns").type == pyarrow.float64()
    assert table.schema.field("p99_ns").type == pyarrow.int64()
    (answer,) = unified_prof.figures(timeline, by="kernel")
    arrow = answer.to_arrow("kernel")
    assert arrow.schema.field("total_ns") == table.schema.field("total_ns")
    assert arrow.column("total_ns").to_pylist()[:2] == table.column("total_ns").to_pylist()
    with pytest.raises(UsageError, match="breakdown 'step' was not requested"):
        answer.to_arrow("step")


def test_missing_rank_is_a_row_beside_the_other_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        run_time_report(tmp_path / f"run_time_rank{rank}.sqlite")
    (tmp_path / "run_time_rank1.sqlite").write_bytes(b"")
    output = tmp_path / "out.parquet"
    done = uprof("report", tmp_path, "-o", output)
    assert done.returncode == 7
    table = read(output)
    first, *others = table.to_pylist()
    assert (first["kind"], first["total_ns"]) == ("missing", None)
    assert "is empty" in first["detail"]
    assert len({row["report"] for row in others}) == 2
    assert {row["by"] for row in others} == {"operation"}


def test_column_types_do_not_depend_on_the_report(tmp_path: Path, timeline: Path) -> None:
    report = run_time_report(tmp_path / "run_time.sqlite")
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    assert uprof("report", report, "-o", one).returncode == 0
    assert uprof("report", timeline, "-o", other).returncode == 0
    schemas = [read(path).schema for path in (one, other)]
    for name in {*schemas[0].names} & {*schemas[1].names}:
        assert schemas[0].field(name).type == schemas[1].field(name).type, name
    assert read(one).column("weight_bytes").null_count == read(one).num_rows


def test_missing_pyarrow_is_a_usage_error_and_leaves_no_file(
    timeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    output = tmp_path / "rows.parquet"
    done = uprof("report", timeline, "--by", "kernel", "-o", output)
    refused(done, 2, "require pyarrow", "unified-prof[parquet]")
    assert not output.exists()
    (answer,) = unified_prof.figures(timeline, by="kernel")
    with pytest.raises(UsageError, match="require pyarrow"):
        answer.to_arrow("kernel")


def test_table_is_written_to_stdout(timeline: Path, tmp_path: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main(["report", str(timeline), "--by", "kernel", "--format", "arrow"])
    assert not ended.value.code
    buffer = out.buffer
    assert isinstance(buffer, io.BytesIO)
    with pyarrow.ipc.open_file(pyarrow.py_buffer(buffer.getvalue())) as file:
        printed = file.read_all()
    output = tmp_path / "rows.arrow"
    assert uprof("report", timeline, "--by", "kernel", "-o", output).returncode == 0
    assert printed == read(output)


def test_existing_file_is_replaced_only_with_force(timeline: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    output.write_text("other")
    refused(uprof("report", timeline, "-o", output), 9, "exists")
    assert output.read_text() == "other"
    assert uprof("report", timeline, "-o", output, "--force").returncode == 0
    assert read(output).num_rows
