"""`uprof time` and `uprof memory` write one file each, as Skyline's commands do."""

import sqlite3
from pathlib import Path

import pytest

from tests import processes
from tests.cli.test_import import uprof
from tests.cli.test_run_cpu import providers
from tests.conftest import ROOT

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "table"), [("time", "run_time_entries"), ("memory", "activation_entries")]
)
def test_report_is_written_without_temporary_files_left_over(
    command: str, table: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tmp_path_factory.mktemp("model") / "model.py"
    model.write_text(providers(), encoding="utf-8")
    options = "-o out.sqlite --backend cpu --debug --log-file log.txt".split()
    done = processes.uprof(command, model, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert "out.sqlite" in shown
    assert ".out.sqlite." not in shown, "the directory of the measurement is temporary"
    (count,) = sqlite3.connect(tmp_path / "out.sqlite").execute(f"SELECT count(*) FROM {table}")
    assert count[0] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.sqlite"]


@pytest.mark.slow
def test_failing_script_leaves_no_file_and_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(7)", encoding="utf-8")
    done = processes.uprof("time", "bad.py", "-o", "out.sqlite", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.py"]
