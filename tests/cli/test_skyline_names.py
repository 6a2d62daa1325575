"""`uprof time` and `uprof memory` write one file each, as Skyline's commands do."""

from pathlib import Path

import pytest

from tests.cli.test_import import uprof
from tests.conftest import ROOT
from tests.pipeline.test_run import FakeBackend
from tests.records import tracked_run
from tests.sql import run_facts
from unified_prof.base.run_spec import MEMORY, RUN_TIME, Capture, RunSpec
from unified_prof.cli import run

MODEL = ROOT / "examples" / "mlp.py"


@pytest.mark.parametrize("command", ["time", "memory"])
def test_existing_file_is_never_replaced_without_force(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.sqlite").write_bytes(b"other")
    assert uprof(command, MODEL, "-o", tmp_path / "out.sqlite") == 9
    assert (tmp_path / "out.sqlite").read_bytes() == b"other"
    assert [path.name for path in tmp_path.iterdir()] == ["out.sqlite"]


def test_missing_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("time", MODEL, "-o", tmp_path / "none" / "out.sqlite") == 9
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "report"), [("time", RUN_TIME), ("memory", MEMORY)])
@pytest.mark.parametrize("meanwhile", ["", "fails", "writes"])
def test_report_of_a_run_moves_to_its_name(
    command: str,
    report: str,
    meanwhile: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def workload(spec: RunSpec) -> None:
        assert (spec.reports, spec.target) == ((report,), str(MODEL))
        assert spec.output_dir.parent == place
        spec.relay("[INFO] tool")
        spec.relay("[WARN] tool")
        if meanwhile == "writes":
            Path("out.sqlite").write_bytes(b"other")

    capture = Capture(7, None) if meanwhile == "fails" else Capture(0, tracked_run())
    monkeypatch.setattr(run, "make_backend", lambda *_: FakeBackend(capture, workload))
    code = uprof(command, MODEL, *"-o out.sqlite --backend cpu --debug --log-file log -q".split())
    shown = capsys.readouterr().err
    assert ("[INFO]" in shown, "[WARN]" in shown) == (False, True)
    assert code == {"": 0, "fails": 7, "writes": 9}[meanwhile]
    assert [path.name for path in place.iterdir()] == (
        [] if meanwhile == "fails" else ["out.sqlite"]
    )
    if meanwhile == "writes":
        assert Path("out.sqlite").read_bytes() == b"other"
        assert uprof(command, MODEL, "-o", "out.sqlite", "--force") == 0
        assert ".out.sqlite." not in capsys.readouterr().err
    if meanwhile != "fails":
        assert run_facts("out.sqlite")["target"] == str(MODEL)


@pytest.mark.parametrize(("rank", "is_line", "has_figures"), [("", 0, 1), ("0", 1, 1), ("1", 1, 0)])
def test_each_rank_prints_its_files_and_the_first_its_figures(
    rank: str,
    is_line: bool,
    has_figures: bool,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": "2"}.items() if rank else ():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        run, "make_backend", lambda *_, **__: FakeBackend(Capture(0, tracked_run()))
    )
    assert uprof("run", "-o", "out", "--backend", "cpu", MODEL) == 0
    shown = capsys.readouterr().err
    assert (f"uprof: rank {rank} of 2 on " in shown) == is_line
    assert ("next  uprof report --by line out" in shown) == has_figures
