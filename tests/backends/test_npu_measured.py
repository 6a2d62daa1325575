"""Operations measured on the NPU are reported even if the workload never ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest

from tests import processes
from tests.backends.test_npu import CPU_FOR_NPU, modules, msprof, spec_of
from tests.records import tracked_run
from tests.sql import run_facts
from unified_prof.backends import cann, npu_launcher
from unified_prof.backends.npu import NpuBackend
from unified_prof.backends.npu_launcher import MeasurementRelay, Result
from unified_prof.base.run_spec import (
    MEMORY,
    RUN_TIME,
    TIMELINE,
    Capture,
    Frame,
    RunSpec,
    TrackedRun,
)
from unified_prof.tracking import workload
from unified_prof.tracking.driver import Instrument

__all__ = ["modules", "msprof"]

TRAINING = """\
import os, signal, time
from pathlib import Path

import torch
from tests.backends import stand_in_acl

stand_in_acl.init()
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(steps, pause=0.0):
    for _ in range(steps):
        net(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)


def wait_for(path):
    deadline = time.monotonic() + 400
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
"""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    spec = spec_of(tmp_path, "", reports=(RUN_TIME, MEMORY), scope="project")
    return replace(spec, warmup=1, iterations=2)


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for path in children for child in path.read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def write_result(folder: Path, name: str, run: TrackedRun) -> None:
    npu_launcher._write_atomic(folder / name, {"tracked": run, "unmarked": "no marks"})


def test_launcher_results_are_passed_on_once(tmp_path: Path, spec: RunSpec) -> None:
    partial, complete = tracked_run(complete=False), tracked_run()
    captures: list[object] = []
    spec = replace(spec, on_measured=captures.append, on_partial=captures.append)
    progress = MeasurementRelay(tmp_path, spec)
    progress.look()
    assert captures == []
    write_result(tmp_path, npu_launcher.PARTIAL_FILE, partial)
    progress.look()
    progress.look()
    assert captures == [partial]
    write_result(tmp_path, npu_launcher.MEASURED_FILE, complete)
    progress.look()
    progress.look()
    assert captures == [partial, Capture(0, complete, failure="no marks")]
    assert progress.completed(Result()).tracked == complete
    assert progress.completed(Result(exit_code=0, tracked=partial)).tracked is partial


@pytest.mark.parametrize("is_fork", [False, True])
def test_launcher_saves_measurements_of_its_process(
    is_fork: bool, tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def range_start(text: str) -> int:
        calls.append(text)
        return len(calls)

    mstx = SimpleNamespace(range_start=range_start, range_end=calls.append)
    torch_npu: Any = SimpleNamespace(npu=SimpleNamespace(mstx=mstx))
    monkeypatch.setitem(sys.modules, "mstx", None)
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)

    def run(backend: str, spec: RunSpec, instruments: list[Instrument]) -> Capture:
        (marks,) = instruments
        marks.start()
        for index in range(2):
            marks.begin_iteration(index)
            marks.end_iteration(index)
        marks.begin_iteration(2)
        marks.stop(complete=False)
        marks.stop(complete=False)
        with pytest.MonkeyPatch.context() as patch:
            if is_fork:
                patch.setattr(os, "getpid", lambda: 1)
            if spec.on_partial is not None:
                spec.on_partial(tracked_run(complete=False))
            spec.on_measured(Capture(0, None))
            assert not (tmp_path / npu_launcher.MEASURED_FILE).exists()
            spec.on_measured(Capture(0, tracked_run()))
        return Capture(4, tracked_run(), failure=backend)

    monkeypatch.setattr(workload, "run_workload", run)
    result = npu_launcher._run_tracked(spec, tmp_path)
    assert result == {
        "exit_code": 4, "tracked": tracked_run(), "failure": "npu", "unmarked": None
    }  # fmt: skip
    marks = [(f"uprof iteration {index}", 2 * index + 1) for index in range(3)]
    assert calls == [one for pair in marks for one in pair]
    found = [] if is_fork else [npu_launcher.MEASURED_FILE, npu_launcher.PARTIAL_FILE]
    assert sorted(path.name for path in tmp_path.glob("*.msgpack")) == sorted(found)
    for path in tmp_path.glob("*.msgpack"):
        path.unlink()
    result = npu_launcher._run_tracked(replace(spec, reports=(TIMELINE,)), tmp_path)
    assert (result["tracked"], list(tmp_path.glob("*.msgpack"))) == (None, [])


@pytest.mark.parametrize(
    ("polite", "others", "numbers", "expected"),
    [
        (True, [7, 8], [SIGINT], []),
        (True, [7, 8], [SIGINT, SIGTERM], [("kill", 7, SIGTERM), ("kill", 8, SIGTERM)]),
        (False, [7], [SIGTERM], [("kill", 7, SIGTERM)]),
        (False, [], [SIGTERM], [("killpg", 5, SIGTERM)]),
        (True, [], [SIGINT, SIGTERM, SIGINT], [("killpg", 5, SIGTERM), ("killpg", 5, SIGKILL)]),
    ],
)
def test_signals_reach_the_workload_before_msprof(
    polite: bool,
    others: list[int],
    numbers: list[int],
    expected: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[object] = []

    def send(name: str, *to: int) -> None:
        sent.append((name, *to))
        raise ProcessLookupError  # it has ended meanwhile

    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, partial(send, name))
    monkeypatch.setattr(cann, "_others_of", lambda group: others if group == 5 else [])
    signals = cann._Signals(polite=polite, workload_runs=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        signals._forward(SIGINT, None)
    signals = cann._Signals(polite=polite, workload_runs=lambda: bool(others))
    signals.process = SimpleNamespace(pid=5)  # type: ignore[assignment]
    for number in numbers:
        signals._forward(number, None)
    assert (signals.received, signals.asked_to_end.is_set()) == (numbers, True)
    assert sent == expected


def test_partial_results_of_a_killed_workload_are_returned(tmp_path: Path, spec: RunSpec) -> None:
    progress = MeasurementRelay(tmp_path, spec)
    assert progress.completed(Result()) == Result()
    write_result(tmp_path, npu_launcher.PARTIAL_FILE, tracked_run(complete=False))
    found = progress.completed(Result())
    assert found.tracked == tracked_run(complete=False)
    assert found.failure == "the workload ended before the measurement was complete"
    assert progress.completed(Result(exit_code=1)).tracked is None, "the workload has a result"


def test_failing_callback_does_not_end_the_run(tmp_path: Path, spec: RunSpec) -> None:
    def fail(_: Capture) -> None:
        raise RuntimeError("no report")

    progress = MeasurementRelay(tmp_path, replace(spec, on_measured=fail))
    write_result(tmp_path, npu_launcher.MEASURED_FILE, tracked_run())
    progress.look()
    assert str(progress.error) == "no report"


def test_non_utf8_names_are_escaped(tmp_path: Path, spec: RunSpec) -> None:
    operation = tracked_run().operations[0]
    unusual = replace(operation, frames=(Frame("caf\udce9.py", 3),))
    write_result(tmp_path, npu_launcher.MEASURED_FILE, tracked_run(operations=(unusual,)))
    found = MeasurementRelay(tmp_path, spec).completed(Result()).tracked
    assert found is not None
    assert found.operations[0].frames == (Frame("caf\\xe9.py", 3),)


@pytest.mark.slow
def test_reports_are_written_during_the_run(tmp_path: Path, spec: RunSpec, modules: Path) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    captures: list[Capture] = []

    def on_measured(capture: Capture) -> None:
        captures.append(capture)
        (tmp_path / "written").touch()

    end = f"train(30)\nwait_for({str(tmp_path / 'written')!r})\nos.kill(os.getpid(), 9)\n"
    Path(spec.target).write_text(TRAINING + end)
    capture = NpuBackend().run(replace(spec, on_measured=on_measured))
    assert capture.exit_code == 137
    assert (tmp_path / "written").exists()
    (early,) = captures
    assert early.tracked is not None
    assert early.tracked.complete
    assert capture.tracked == early.tracked
    assert len(capture.recordings) == 1


@pytest.mark.slow
def test_killed_workload_keeps_iterations(tmp_path: Path, spec: RunSpec, modules: Path) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    spec = replace(
        spec, iterations=5000, on_partial=lambda _: (tmp_path / "saved").touch(), warmup=0
    )
    end = f"train(3, 0.2)\nwait_for({str(tmp_path / 'saved')!r})\nos.kill(os.getpid(), 9)\n"
    Path(spec.target).write_text(TRAINING + end)
    capture = NpuBackend().run(spec)
    assert capture.exit_code == 137
    assert (tmp_path / "saved").exists()
    assert capture.tracked is not None
    assert not capture.tracked.complete
    assert capture.tracked.iterations
    assert "ended before the measurement was complete" in str(capture.failure)


@pytest.mark.slow
def test_recover_writes_reports_after_everything_was_killed(place: Path, modules: Path) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    (place / "train.py").write_text(TRAINING + "train(100000, 0.05)\n")
    options = ["--backend", "npu", "--report", "run-time", "--scope", "project", "-o", "out"]
    command = [sys.executable, "-m", "unified_prof"]
    process = subprocess.Popen(
        [*command, "run", *options, "--iterations", "5000", "--warmup", "0", "train.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 400
    while not [*place.glob("out/.uprof*.spool")] and time.monotonic() < deadline:
        time.sleep(0.05)
    # Everything that uprof started dies with it, as when a machine or a container fails.
    pids = [process.pid, *descendants(process.pid)]
    assert len(pids) >= 3, "msprof and the workload"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    result = processes.run(*command, "recover", "out")
    assert result.returncode == 0, result.stderr
    assert (place / "out" / "run_time.sqlite").exists()


@pytest.mark.slow
def test_reports_exist_before_the_end_and_get_the_exit_code(place: Path, modules: Path) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    end = "train(40)\nwait_for('out/run_time.sqlite')\nwait_for('out/memory.sqlite')\n"
    end += "print('there' if Path('out/memory.sqlite').exists() else 'not there')\n"
    (place / "train.py").write_text(TRAINING + end + "raise SystemExit(3)\n")
    options = ["--backend", "npu", "--report", "run-time,memory,timeline", "--scope", "project"]
    command = [sys.executable, "-m", "unified_prof", "run", *options, "-o", "out"]
    result = processes.run(*command, "--warmup", "1", "--iterations", "2", "train.py")
    assert result.returncode == 3, result.stderr
    assert result.stdout.splitlines()[0] == "there"
    assert "measurement complete, reports in out (the script is still running)" in result.stderr
    facts = run_facts("out/run_time.sqlite")
    assert facts["exit_code"] == "3"
    assert facts["finished"]
    assert facts["msprof"].startswith("/")
    assert len([*place.glob("out/PROF_*/msprof_*.db")]) == 1
    assert not [*place.glob("out/.uprof*")]
