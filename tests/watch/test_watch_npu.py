"""`uprof watch` on an NPU: the test device as NPU, and a stand-in for msprof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.backends import stand_in_msprof
from tests.device import bench, build
from unified_prof import open_report
from unified_prof.sqlite.watch_file import RankSteps, WatchEvent, read_folder

pytestmark = pytest.mark.slow
KERNEL_NS = 100_000
PROGRAM = """
import os, sys, time, torch
from pathlib import Path

assert os.environ["UPROF_DEVICE"] == "npu"
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.ones(4, 8, device="npu")
end_s = time.monotonic() + 90
done = Path("out/captures")
os.chdir("/")
while time.monotonic() < end_s and not list(done.parent.glob(sys.argv[1])):
    model(data).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, behavior: str = "", has_msprof: bool = True
) -> RankSteps:
    """Watch the program until its capture of usual steps has been explained."""
    if reason := build.why_not():
        pytest.skip(reason)
    build.library()
    if has_msprof:
        installed = stand_in_msprof.install(folder / "bin").parent
        monkeypatch.setenv("PATH", str(installed), prepend=":")
    monkeypatch.setenv("STAND_IN_MSPROF", behavior)
    (folder / "train.py").write_text(PROGRAM.replace("out/captures", str(folder / "out/captures")))
    command = [sys.executable, "-m", "unified_prof", "watch", "--backend", "npu", "-o", "out"]
    done = subprocess.run(
        [*command, "train.py", "captures/*_healthy/advice.txt"],
        cwd=folder,
        env={**os.environ, **bench.environment("npu", UPROF_BENCH_KERNEL_NS=str(KERNEL_NS))},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "steps of a watched run" in done.stderr, "the program changed its directory"
    return read_folder(folder / "out")[0]


def capture_of(one: RankSteps) -> WatchEvent:
    (event,) = [event for event in one.events if event.kind == "healthy"]
    assert event.status == "ready", event
    return event


def test_steps_and_captures_have_the_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched(tmp_path, monkeypatch)
    parts = [
        one.values(f"{part}_ns", healthy=True) for part in ("forward", "backward", "optimizer")
    ]
    for values in parts:
        assert np.nanmedian(values) >= 2 * KERNEL_NS
    assert np.nanmedian(np.sum(parts, axis=0) / one.values("length_ns", healthy=True)) > 0.5
    allocated, reserved = one.values("allocated_bytes"), one.values("reserved_bytes")
    assert (reserved >= allocated)[np.isfinite(allocated)].all()
    assert np.nanmax(allocated) > 0
    event = capture_of(one)
    assert "host only" not in event.text
    place = tmp_path / "out" / str(event.capture)
    with open_report(place / "timeline.db") as report:
        assert report.rows("SELECT count(*) FROM TASK")[0][0] > 0
        facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    assert "PROF_" in facts["recording"], facts
    assert (place / "timeline.json.gz").exists()


@pytest.mark.parametrize(
    ("behavior", "has_msprof", "reason"),
    [
        ("attach_refused", True, "cannot connect to server"),
        ("records_no_device", True, "msprof recorded no device"),
        ("", False, "msprof was not found"),
    ],
)
def test_capture_contains_the_host_only_and_says_why(
    behavior: str, reason: str, *, has_msprof: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    one = watched(tmp_path, monkeypatch, behavior=behavior, has_msprof=has_msprof)
    event = capture_of(one)
    assert "; the capture contains the host only (" in event.text
    assert reason in event.text
    assert len(one) > 60


def test_damaged_recording_has_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = capture_of(watched(tmp_path, monkeypatch, behavior="truncates"))
    assert str(event.finding).startswith("the host only, because ")
    assert (tmp_path / "out" / str(event.capture) / "timeline.db").exists()
