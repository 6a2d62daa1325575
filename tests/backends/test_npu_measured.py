"""Operations measured on the NPU are reported even if the workload never ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.test_npu import CPU_FOR_NPU, msprof, spec_of, world
from tests.records import tracked_run
from unified_prof.backends import npu_launcher
from unified_prof.backends.npu import NpuBackend
from unified_prof.backends.npu_launcher import MeasurementRelay, Result
from unified_prof.backends.registry import MEMORY, RUN_TIME, TIMELINE, Capture, RunSpec
from unified_prof.base.run_spec import Frame, TrackedRun

__all__ = ["msprof", "world"]

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
    deadline = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
"""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    spec = spec_of(tmp_path, "", reports=(RUN_TIME, MEMORY), scope="project")
    return replace(spec, warmup=1, iterations=2)


def descendants_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for one in children for child in one.read_text().split()]
    return found + [below for child in found for below in descendants_of(child)]


def leave(folder: Path, name: str, run: TrackedRun) -> None:
    npu_launcher._write_atomic(folder / name, {"tracked": run, "unmarked": "no marks"})


def test_what_the_launcher_leaves_is_handed_on_once(tmp_path: Path, spec: RunSpec) -> None:
    partial, whole = tracked_run(complete=False), tracked_run()
    told: list[object] = []
    spec = replace(spec, on_measured=told.append, on_partial=told.append)
    progress = MeasurementRelay(tmp_path, spec)
    progress.look()
    assert told == []
    leave(tmp_path, npu_launcher.PARTIAL_FILE, partial)
    progress.look()
    progress.look()
    assert told == [partial]
    leave(tmp_path, npu_launcher.MEASURED_FILE, whole)
    progress.look()
    progress.look()
    assert told == [partial, Capture(0, whole, failure="no marks")]
    assert progress.completed(Result()).tracked == whole
    assert progress.completed(Result(exit_code=0, tracked=partial)).tracked is partial


def test_what_a_killed_workload_had_measured_is_brought_back(tmp_path: Path, spec: RunSpec) -> None:
    progress = MeasurementRelay(tmp_path, spec)
    assert progress.completed(Result()) == Result()
    leave(tmp_path, npu_launcher.PARTIAL_FILE, tracked_run(complete=False))
    found = progress.completed(Result())
    assert found.tracked == tracked_run(complete=False)
    assert found.failure == "the workload ended before the measurement was complete"
    assert progress.completed(Result(exit_code=1)).tracked is None  # it reported no result


def test_a_listener_that_fails_does_not_end_the_run(tmp_path: Path, spec: RunSpec) -> None:
    def fail(_: Capture) -> None:
        raise RuntimeError("no report")

    progress = MeasurementRelay(tmp_path, replace(spec, on_measured=fail))
    leave(tmp_path, npu_launcher.MEASURED_FILE, tracked_run())
    progress.look()
    assert str(progress.error) == "no report"


def test_names_that_are_no_utf8_reach_the_parent_as_escapes(tmp_path: Path, spec: RunSpec) -> None:
    operation = tracked_run().operations[0]
    odd = replace(operation, frames=(Frame("caf\udce9.py", 3),))
    leave(tmp_path, npu_launcher.MEASURED_FILE, tracked_run(operations=(odd,)))
    found = MeasurementRelay(tmp_path, spec).completed(Result()).tracked
    assert found is not None
    assert found.operations[0].frames == (Frame("caf\\xe9.py", 3),)


@pytest.mark.slow
def test_reports_are_written_while_the_program_runs_on(
    tmp_path: Path, spec: RunSpec, world: Path
) -> None:
    (world / "sitecustomize.py").write_text(CPU_FOR_NPU)
    told: list[Capture] = []

    def written(capture: Capture) -> None:
        told.append(capture)
        (tmp_path / "written").touch()

    end = f"train(30)\nwait_for({str(tmp_path / 'written')!r})\nos.kill(os.getpid(), 9)\n"
    Path(spec.target).write_text(TRAINING + end)
    capture = NpuBackend().run(replace(spec, on_measured=written))
    assert capture.exit_code == 137
    assert (tmp_path / "written").exists()
    (early,) = told
    assert early.tracked is not None
    assert early.tracked.complete
    assert capture.tracked == early.tracked
    assert len(capture.recordings) == 1


@pytest.mark.slow
def test_a_workload_killed_before_that_leaves_its_complete_iterations(
    tmp_path: Path, spec: RunSpec, world: Path
) -> None:
    (world / "sitecustomize.py").write_text(CPU_FOR_NPU)
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
def test_where_everything_is_killed_recover_makes_the_reports(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world / "sitecustomize.py").write_text(CPU_FOR_NPU)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING + "train(100000, 0.05)\n")
    options = ["--backend", "npu", "--report", "run-time", "--scope", "project", "-o", "out"]
    command = [sys.executable, "-m", "unified_prof"]
    process = subprocess.Popen(
        [*command, "run", *options, "--iterations", "5000", "--warmup", "0", "train.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 40
    while not [*tmp_path.glob("out/.uprof*.spool")] and time.monotonic() < deadline:
        time.sleep(0.05)
    # All that uprof started dies with it, as where a machine or a container goes down.
    doomed = [process.pid, *descendants_of(process.pid)]
    assert len(doomed) >= 3  # msprof and the workload
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    done = subprocess.run([*command, "recover", "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "run_time.sqlite").exists()


@pytest.mark.slow
def test_timeline_and_operations_come_together(tmp_path: Path, spec: RunSpec, world: Path) -> None:
    (world / "sitecustomize.py").write_text(CPU_FOR_NPU)
    Path(spec.target).write_text(TRAINING + "train(30)\n")
    capture = NpuBackend().run(replace(spec, reports=(RUN_TIME, TIMELINE)))
    assert capture.exit_code == 0
    assert capture.tracked is not None
    assert len(capture.recordings) == 1


@pytest.mark.slow
def test_the_reports_lie_there_before_the_program_ends_and_know_its_end_afterwards(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world / "sitecustomize.py").write_text(CPU_FOR_NPU)
    monkeypatch.chdir(tmp_path)
    end = "train(40)\nwait_for('out/run_time.sqlite')\nwait_for('out/memory.sqlite')\n"
    end += "print('there' if Path('out/memory.sqlite').exists() else 'not there')\n"
    (tmp_path / "train.py").write_text(TRAINING + end + "raise SystemExit(3)\n")
    options = ["--backend", "npu", "--report", "run-time,memory,timeline", "--scope", "project"]
    command = [sys.executable, "-m", "unified_prof", "run", *options, "-o", "out"]
    done = subprocess.run(
        [*command, "--warmup", "1", "--iterations", "2", "train.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[0] == "there"
    assert "measurement complete, reports in out (the script is still running)" in done.stderr
    with closing(sqlite3.connect("out/run_time.sqlite")) as db:
        facts = dict(db.execute("SELECT name, value FROM UPROF_RUN"))
    assert facts["exit_code"] == "3"
    assert facts["finished"]
    assert facts["msprof"].startswith("/")
    assert len([*tmp_path.glob("out/PROF_*/msprof_*.db")]) == 1
    assert not [*tmp_path.glob("out/.uprof*")]
