"""`uprof run` that is terminated, killed, or run with broken streams keeps its measurements."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_report import uprof
from tests.conftest import ROOT
from tests.sql import run_facts

pytestmark = pytest.mark.usefixtures("place")

TRAINING = """\
import os, sys, time, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
STEPS = 16
"""Enough steps for warm-up, two samples of two iterations and memory."""


def command(*options: str) -> list[str]:
    settings = ["--backend", "cpu", "-o", "out", "--iterations", "2", "--scope", "project"]
    return [sys.executable, "-m", "unified_prof", "run", *settings, *options, "train.py"]


def start(source: str, *options: str) -> subprocess.Popen[str]:
    Path("train.py").write_text(TRAINING + source)
    return subprocess.Popen(
        command(*options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def wait_for(path: str, process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if Path(path).exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail(f"no {path} after five minutes")


REPORTS = ["memory.sqlite", "run_time.sqlite"]


@pytest.mark.slow
def test_program_that_calls_os_exit_leaves_complete_reports() -> None:
    process = start(f"train({STEPS})\nos._exit(0)\n")
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert sorted(path.name for path in Path("out").iterdir()) == REPORTS
    found = run_facts("out/run_time.sqlite")
    assert found["complete"] == "true"
    assert (found["exit_code"], found["finished"]) == (None, None), "unknown at that time"
    assert "measurement complete, reports in out" in err


@pytest.mark.slow
def test_program_killed_after_the_measurement_leaves_complete_reports() -> None:
    process = start(f"train({STEPS})\nopen('up', 'w').close()\ntime.sleep(600)\n")
    wait_for("up", process)
    process.kill()
    process.communicate(timeout=400)
    assert sorted(path.name for path in Path("out").iterdir()) == REPORTS
    assert run_facts("out/memory.sqlite")["complete"] == "true"
    assert uprof("recover", "out").returncode == 1, "nothing is left to recover"


@pytest.mark.slow
def test_exit_of_the_program_is_added_to_reports_already_written() -> None:
    process = start(
        f"train({STEPS})\n"
        "before = os.stat('out/run_time.sqlite').st_ino\n"
        "os.chdir('/')\n"
        "print(before)\n"
        "sys.exit(3)\n"
    )
    out, err = process.communicate(timeout=400)
    assert process.returncode == 3, err
    assert Path("out/run_time.sqlite").stat().st_ino == int(out), "written once"
    found = run_facts("out/run_time.sqlite")
    assert (found["exit_code"], found["complete"]) == ("3", "true")
    assert str(found["started"]) < str(found["finished"])


@pytest.mark.slow
def test_run_of_a_closed_terminal_keeps_its_complete_iterations() -> None:
    process = start("train(6)\nopen('up', 'w').close()\ntime.sleep(600)\n", "--iterations", "99")
    wait_for("up", process)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=400)
    assert process.returncode == -signal.SIGHUP, err  # as without uprof
    assert sorted(path.name for path in Path("out").iterdir()) == REPORTS
    assert run_facts("out/run_time.sqlite")["complete"] == "false"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_path_that_is_not_utf_8_loses_no_data() -> None:
    folder = os.fsdecode(b"caf\xe9")
    Path(folder).mkdir()
    Path(folder, "train.py").write_text(TRAINING + f"train({STEPS + 2})\n")
    reports = ("--report", "run-time,memory,timeline", "--timeline-detail", "shapes,stacks")
    line = [*command(*reports)[:-1], f"{folder}/train.py"]
    line[line.index("out")] = f"{folder}/out"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "caf\\xe9/train.py:6" in done.stderr
    names = sorted(path.name for path in Path(folder, "out").iterdir())
    assert names == ["memory.sqlite", "run_time.sqlite", "timeline.db", "timeline.json.gz"]
    assert "the timeline has no stacks" in done.stderr
    assert run_facts(f"{folder}/out/run_time.sqlite")["target"] == "caf\\xe9/train.py"
