"""Imports, garbage collection and BLAS threads at start-up."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.builders import memory_report, run_time_report
from tests.pipeline.test_sources import kineto, prof
from tests.processes import python
from unified_prof.base import process_tuning
from unified_prof.cli import app

pytestmark = pytest.mark.fresh_interpreter

HEAVY = ("pyarrow", "sqlalchemy", "torch")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("report", "run"), pytest.param(("gate", "run", "run"), marks=pytest.mark.slow)]
)
def test_operation_reports_import_no_timeline(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run_time_report(tmp_path / "run" / "run_time.sqlite", [("linear", 1.5, 3.0, [("m.py", 1)])])
    memory_report(tmp_path / "run" / "memory.sqlite")
    assert imported(command, HEAVY, tmp_path) == []


@pytest.mark.slow
def test_importing_a_small_trace_loads_no_heavy_module(tmp_path: Path) -> None:
    command = ("import", str(kineto(tmp_path)), "-o", "r.db")
    assert imported(command, HEAVY, tmp_path) == []
    assert (tmp_path / "r.db").is_file()


@pytest.mark.slow
def test_building_a_small_recording_loads_no_heavy_module(tmp_path: Path) -> None:
    command = ("build", str(prof(tmp_path)), "-o", "r.db")
    assert imported(command, HEAVY, tmp_path) == []
    assert (tmp_path / "r.db").is_file()


@pytest.mark.slow
def test_valid_command_lines_import_no_validators(tmp_path: Path) -> None:
    run_time_report(tmp_path / "a.sqlite", [("linear", 1.5, 3.0, [("m.py", 1)])])
    plain = ("report", "a.sqlite", "--by", "operation", "--top", "3", "-o", "a.txt")
    assert imported(plain, ["pydantic"], tmp_path) == []
    assert imported(("diff", "a.sqlite", "a.sqlite"), ["pydantic"], tmp_path) == []


@pytest.mark.slow
def test_garbage_collection_rarely_runs_during_a_command(tmp_path: Path) -> None:
    """The first few dozen collections happen during imports, before the command starts."""
    trace = kineto(tmp_path)
    before = "import gc\nruns = []\ngc.callbacks.append(lambda when, _: runs.append(when))\n"
    after = "print(runs.count('start'), file=sys.stderr)\n"
    runs = last_line(("import", str(trace), "-o", "r.db"), tmp_path, before, after)
    assert int(runs) < 60  # 116 without


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("command", ["report run.sqlite", "diff run.sqlite run.sqlite"])
def test_commands_start_no_blas_thread(command: str, tmp_path: Path) -> None:
    run_time_report(tmp_path / "run.sqlite")
    after = "import os\nprint(len(os.listdir('/proc/self/task')), file=sys.stderr)\n"
    assert last_line(tuple(command.split()), tmp_path, "", after) == "1"


@pytest.mark.slow
def test_profiled_program_sees_default_gc_and_blas_settings(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(
        "import gc, os\n"
        "print(gc.get_threshold(), gc.get_freeze_count(), os.environ.get('OPENBLAS_NUM_THREADS'))\n"
    )
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = ["-m", "unified_prof", "run", "--backend", "cpu", "seen.py"]
    plain, profiled = (
        subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=kept, capture_output=True, text=True
        ).stdout.splitlines()[0]
        for words in (["seen.py"], command)
    )
    assert profiled == plain


def test_raised_gc_thresholds_apply_only_within_the_block() -> None:
    with thresholds((700, 10, 10)):
        with process_tuning.reduced_garbage_collection():
            assert gc.get_threshold()[0] > 100_000
            process_tuning.restore_garbage_collection()
            assert gc.get_threshold()[0] == 700
            gc.set_threshold(5)  # set by the program
        assert gc.get_threshold()[0] == 5


def test_disabled_garbage_collection_stays_disabled() -> None:
    with thresholds((0, 10, 10)):
        with process_tuning.reduced_garbage_collection():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0


@pytest.mark.parametrize("wish", [None, "4"])
def test_blas_uses_one_thread_by_default(wish: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.delenv(name, raising=False)
    if wish is not None:
        monkeypatch.setenv(name, wish)
    with process_tuning.limit_blas_threads():
        assert os.environ[name] == (wish or "1")
    assert os.environ.get(name) == wish


def test_objects_are_frozen_at_exit_only_if_no_program_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    with thresholds((700, 10, 10)):
        with process_tuning.reduced_garbage_collection():
            process_tuning.restore_garbage_collection()
        process_tuning.skip_exit_collection()
        assert frozen == []
        with process_tuning.reduced_garbage_collection():
            pass
        process_tuning.skip_exit_collection()
        assert frozen == [True]


@contextmanager
def thresholds(wanted: tuple[int, int, int]) -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*wanted)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def imported(command: tuple[str, ...], names: Iterable[str], folder: Path) -> list[str]:
    """Return the given modules that a command imports."""
    after = f"print(*[name for name in {names!r} if name in sys.modules], file=sys.stderr)"
    return last_line(command, folder, "", after).split()


def last_line(command: tuple[str, ...], folder: Path, before: str, after: str) -> str:
    """Run uprof in a new process, with code before and after; return the last line of stderr."""
    code = (
        "import sys\n"
        f"{before}"
        "from unified_prof.__main__ import main\n"
        "try:\n"
        f"    sys.argv = ['uprof', *{command!r}]\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        f"{after}"
    )
    done = python("-c", code, cwd=folder, check=True)
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("command", "runs_a_program"), [("run", True), ("report", False)])
def test_a_program_has_its_own_garbage_collection(
    command: str, runs_a_program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[bool] = []
    monkeypatch.setattr(app, "restore_garbage_collection", lambda: restored.append(True))
    assert CliRunner().invoke(app.app, [command, "--help"]).exit_code == 0
    assert restored == [True] * runs_a_program
