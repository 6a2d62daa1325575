"""Real runs that step in turn: `uprof gate --until-sure` from start to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from unified_prof.errors import CaptureError

pytestmark = [
    pytest.mark.forks_of_commands,
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="needs pipes"),
]

SCRIPT = """
import subprocess, sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    loss = model(torch.ones({batch}, 64)).square().mean()
    loss.backward()
    {extra}
    optimizer.step()
"""


def checkout(
    folder: Path, *, steps: int = 100_000, batch: int | str = 32, extra: str = "pass"
) -> Path:
    folder.mkdir()
    text = SCRIPT.format(steps=steps, batch=batch, extra=extra)
    (folder / "train.py").write_text(text, encoding="utf-8")
    return folder


def start(tmp_path: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a gate of the checkouts `base` and `new`."""
    command = [sys.executable, "-m", "unified_prof", "gate", "base", "new"]
    script = "--backend cpu train.py"
    return subprocess.Popen(
        [*command, "--until-sure", script, "--json", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def gate(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    with start(tmp_path, *options) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out or b"{}"), err.decode()


def checks(verdict: dict[str, Any]) -> dict[str, str]:
    return {one["metric"]: one["outcome"] for one in verdict["checks"]}


def processes(folder: Path) -> list[int]:
    """Return the processes whose current directory is in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
    return found


@pytest.fixture
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    deadline = time.monotonic() + 400
    while (left := processes(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for one in left:
        os.kill(one, signal.SIGKILL)
    assert not left, "processes are left over"


def test_unchanged_checkouts_step_in_turn_and_pass(tmp_path: Path) -> None:
    for side in ("base", "new"):
        checkout(tmp_path / side, extra="print('loss', step) if step < 3 else None")
    options = ("--keep", "kept", "--max-regress", "20%", "--metric", "total", "--metric", "flops")
    code, verdict, err = gate(tmp_path, *options)
    assert code == 0, err
    assert checks(verdict) == {"total": "pass", "flops": "pass"}
    assert verdict["waiting"]["clock"] == "cpu"
    assert verdict["effort"]["rounds"] >= 3
    total = next(one for one in verdict["checks"] if one["metric"] == "total")
    assert total["shift"]["rounds"] == verdict["effort"]["rounds"]
    assert err.count("loss 0") == 2, "the output of both sides goes through once"
    assert "loss 0" in (tmp_path / "kept" / "output-new-3.txt").read_text()


def test_synchronization_and_flops_are_found_in_the_first_round(tmp_path: Path) -> None:
    checkout(tmp_path / "base", steps=60)
    checkout(tmp_path / "new", steps=60, batch=40, extra="loss.item()")
    code, verdict, err = gate(tmp_path)
    assert code == 1, err
    assert verdict["effort"]["rounds"] == 1
    found = checks(verdict)
    assert found["synchronizations"] == found["flops"] == found["aten-calls"] == "regression"
    assert found["copies"] == "pass"
    code, verdict, err = gate(tmp_path, "--rounds", "3", "--metric", "flops=30%")
    assert code == 0, err


def test_sleeping_candidate_is_judged_by_wall_time(tmp_path: Path) -> None:
    checkout(tmp_path / "base", steps=60)
    checkout(tmp_path / "new", steps=60, extra="time.sleep(0.05)")
    code, verdict, err = gate(tmp_path, "--metric", "total")
    assert code == 1, err
    assert verdict["waiting"]["clock"] == "wall"


def test_random_shapes_are_not_judged_by_their_counts(tmp_path: Path) -> None:
    for side, batch in (("base", "8 + step % 2"), ("new", "12 + step % 2")):
        checkout(tmp_path / side, steps=60, batch=batch)
    _, verdict, err = gate(tmp_path, "--rounds", "3")
    assert "total" in checks(verdict), err
    assert not {"flops", "bytes", "activation-bytes", "peak-memory"} & checks(verdict).keys()


def test_operations_are_timed_in_turn(tmp_path: Path) -> None:
    for side in ("base", "new"):
        checkout(tmp_path / side)
    options = ("--metric", "operation:linear", "--max-regress", "30%")
    code, verdict, err = gate(tmp_path, *options)
    assert code == 0, err
    assert verdict["checks"][0]["shift"]["rounds"] >= 3


def test_short_script_is_inconclusive_and_not_an_error(tmp_path: Path) -> None:
    for side in ("base", "new"):
        checkout(tmp_path / side, steps=14)
    code, _, err = gate(tmp_path, "--rounds", "3", "--metric", "total", "--max-regress", "1%")
    assert code in (0, 1, 3), err
    assert "Traceback" not in err


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize(
    ("extra", "options", "message"),
    [
        ("print('bad input'); sys.exit(7 if step == 9 else 0) if step == 9 else 0", (), "code 7"),
        ("1 / step", ("--timeout", "60"), "ZeroDivisionError"),
        ("time.sleep(999 * (step == 12))", ("--timeout", "10"), "no progress for 10 s"),
        ("torch.os.kill(torch.os.getpid(), 9 * (step == 9))", (), "killed by signal 9"),
    ],
    ids=["exit", "exception before the first turn", "hang", "killed"],
)
def test_failing_candidate_is_an_error_of_its_own(
    extra: str, options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    checkout(tmp_path / "base")
    checkout(tmp_path / "new", extra=extra)
    with start(tmp_path, *options) as process:
        out, err = process.communicate(timeout=400)
    assert process.returncode == CaptureError.exit_code, (out, err)
    assert message in err.decode()
    assert f"in {Path('new')}" in err.decode()


@pytest.mark.usefixtures("no_process_is_left")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_over_if_the_gate_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    child = "subprocess.Popen(['sleep', '300']) if step == 1 else None"
    for side in ("base", "new"):
        checkout(tmp_path / side, extra=child)
    with start(tmp_path) as process:
        deadline = time.monotonic() + 400
        # The gate, two runs and a process that each of them started.
        while len(processes(tmp_path)) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(processes(tmp_path)) >= 5
        process.send_signal(number)
        process.communicate(timeout=400)
    assert process.returncode != 0
