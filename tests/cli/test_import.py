"""`uprof convert` of torch.profiler traces."""

import gzip
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


def test_directory_created_for_a_failed_import_is_removed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for layout in ("plain", "ascend-pt"):
        assert uprof("import", bad, "-o", tmp_path / "new" / "deep", "--layout", layout) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


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
