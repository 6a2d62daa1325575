"""`uprof convert` of torch.profiler traces."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import call, complete, kernel, operation, write
from tests.sql import execute
from unified_prof import open_report
from unified_prof.cli.app import main

EVENTS = [
    operation("aten::mm", 10, 20),
    call(15, 5, 77),
    kernel(40, 2, 77),
    complete("user_annotation", "ProfilerStep#3", 0, 100),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.pt.trace.json", EVENTS)


def uprof(*arguments: object) -> int:
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def tables(report: Path) -> set[str]:
    return {name for (name,) in execute(report, "SELECT name FROM sqlite_master")}


def test_report_is_named_after_the_trace_and_written_to_the_working_directory(
    trace: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uprof("import", trace) == 0
    assert {"TASK", "STRING_IDS", "PYTORCH_API"} <= tables(place / "rank0.db")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "rank0.db" in printed.err
    assert "1 device task, 1 matched to their launch" in printed.err


def test_provenance_names_the_device_as_a_gpu(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.db"
    assert uprof("import", trace, "-o", report, "-q") == 0
    with open_report(report) as opened:
        facts = dict(opened.rows("SELECT name, value FROM UPROF_RUN"))
    assert facts["decoder"] == "kineto"
    assert facts["device_kind"] == "gpu"
    assert facts["trace"] == trace.name
    assert json.loads(facts["events"])["kernel"] == 1


def test_quiet_prints_only_json_on_stdout(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uprof("import", trace, "-o", tmp_path / "r.db", "-q", "--json") == 0
    printed = capsys.readouterr()
    (record,) = json.loads(printed.out)
    assert printed.err == ""
    assert record["report"].endswith("r.db")
    assert record["events"] == 4
    assert record["rows"]["TASK"] == 1
    assert record["anomalies"] == {}


def test_report_is_replaced_only_with_force(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.db"
    report.write_text("other")
    assert uprof("import", trace, "-o", report) == 9
    assert report.read_text() == "other"
    assert uprof("import", trace, "-o", report, "--force") == 0
    assert "TASK" in tables(report)


def test_bad_trace_does_not_stop_the_others_and_leaves_no_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(trace.read_text()[:40])
    out = tmp_path / "out"
    assert uprof("import", bad, trace, "-o", out, "--json") == 6
    assert [path.name for path in out.iterdir()] == ["rank0.db"]
    printed = capsys.readouterr()
    failed, converted = json.loads(printed.out)
    assert failed["exit_code"] == 6
    assert "cut off" in failed["error"]
    assert "report" in converted
    assert "uprof: error: " + str(bad) in printed.err
    assert "uprof: hint: " in printed.err


def test_complete_part_of_a_truncated_trace_is_imported_with_an_anomaly(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(trace.read_text()[:-40])
    assert uprof("import", cut, "-o", tmp_path / "r.db") == 0
    assert "anomaly cut_off: 1" in capsys.readouterr().err
    assert "TASK" in tables(tmp_path / "r.db")


def test_directory_created_for_a_failed_import_is_removed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for layout in ("plain", "ascend-pt"):
        assert uprof("import", bad, "-o", tmp_path / "new" / "deep", "--layout", layout) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--schema", "9.9"], 2),
        (["--layout", "flat"], 2),
        (["-o", "x.db", "--layout", "ascend-pt"], 2),
        (["missing.json"], 6),
        (["-o", "x.db", "."], 2),
        (["empty"], 6),
    ],
)
def test_usage_errors_have_their_exit_code_and_write_nothing(
    trace: Path, arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    (trace.parent / "empty").mkdir()
    assert uprof("import", trace, "-q", *arguments) == code
    assert not Path("x.db").exists()


def test_several_traces_into_one_file_are_refused(trace: Path, tmp_path: Path) -> None:
    assert uprof("import", trace, trace, "-o", tmp_path / "one.db") == 2


def test_traces_with_the_same_name_get_separate_reports(tmp_path: Path) -> None:
    traces = []
    for rank in ("rank0", "rank1"):
        (tmp_path / rank).mkdir()
        traces.append(write(tmp_path / rank / "trace.json", EVENTS))
    assert uprof("import", *traces, "-o", tmp_path / "out") == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["rank0_trace.db", "rank1_trace.db"]


@pytest.mark.parametrize("revision", ["pre_20240328", "1.0.0_20241112", "1.1.1_20250820", "latest"])
def test_every_schema_revision_can_be_written(trace: Path, tmp_path: Path, revision: str) -> None:
    report = tmp_path / "r.db"
    assert uprof("import", trace, "-o", report, "--schema", revision, "-q") == 0
    with open_report(report) as opened:
        assert opened.rows("SELECT count(*) FROM COMPUTE_TASK_INFO") == [(1,)]


def test_equal_input_gives_equal_bytes(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "rank0.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    for name in ("a.db", "b.db"):
        assert uprof("import", trace, "-o", tmp_path / name, "-q") == 0
    assert (tmp_path / "a.db").read_bytes() == (tmp_path / "b.db").read_bytes()
    assert uprof("import", packed, "-o", tmp_path / "c.db", "-q") == 0
    assert tables(tmp_path / "c.db") == tables(tmp_path / "a.db")


def test_layout_of_torch_npu_is_imported(tmp_path: Path) -> None:
    trace = write(tmp_path / "run.json", EVENTS, distributedInfo={"rank": 4})
    out = tmp_path / "out"
    assert uprof("import", trace, "-o", out, "--layout", "ascend-pt", "-q") == 0
    folder = out / "run_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["analysis.db", "ascend_pytorch_profiler_4.db"]
    steps = execute(
        folder / "analysis.db", "SELECT step, computing, free, stage FROM StepTraceTime"
    )
    assert steps == [("3", 2, 0, 2)]
    assert "COMMUNICATION_OP" in tables(folder / names[1]), "readers require it"
    assert uprof("import", trace, "-o", out, "--layout", "ascend-pt", "-q") == 9
    assert uprof("import", trace, "-o", out, "--layout", "ascend-pt", "-q", "--force") == 0
    assert sorted(path.name for path in folder.iterdir()) == names


def test_unwritable_output_path_exits_with_code_9(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert uprof("import", trace, "-o", tmp_path / "file" / "r.db") == 9


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes there")
def test_file_names_with_arbitrary_bytes_are_imported(
    trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name in (b"a\xe9\x1b]0;x\x07.trace.json", b"b\xe9\nuprof: done.trace.json"):
        shutil.copy(trace, tmp_path / "in" / os.fsdecode(name))
    for printed in ("matched to their launch", ": already converted"):
        assert uprof("import", tmp_path / "in", "-o", tmp_path / "out") == 0
        err = capfd.readouterr().err
        assert err.count(printed) == 2
        assert r"a\xe9\x1b]0;x\x07.trace.json ->" in err
        assert r"b\xe9\x0auprof: done.trace.json ->" in err
        assert "\x1b" not in err
    assert len(list((tmp_path / "out").iterdir())) == 2
