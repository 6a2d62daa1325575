"""`uprof watch` as a user runs it: rows, captures, requests and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_report import refused, uprof
from unified_prof.sqlite.watch_file import RankSteps, read_folder

pytest.importorskip("torch")

SCRIPT = """
import os, sys, time, torch
assert os.environ["UPROF_DEVICE"] == "cpu"
stop = os.path.abspath("stop")
os.chdir("/")  # the summary must still be found
steps, slow = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return steps * 4
    def __getitem__(self, index):
        if slow <= index // 4 < slow + 5:
            time.sleep(0.05)
        return torch.randn(16)

net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4):
    time.sleep(0.002)
    if os.path.exists(stop):
        break
    optimizer.zero_grad()
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()
print("trained")
"""


def start(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a watched script."""
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "unified_prof",
            "watch",
            "--backend",
            "cpu",
            "-o",
            "out",
            *options,
            "train.py",
            *arguments,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def steps_of(folder: Path) -> RankSteps:
    """Return what rank 0 has written."""
    return read_folder(folder / "out")[0]


def wait_for_steps(folder: Path, count: int) -> None:
    """Wait until rank 0 has written a number of steps."""
    path = folder / "out" / "watch_rank0.db"
    wait_until(lambda: path.exists() and len(steps_of(folder)) >= count)


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def captures_of(folder: Path) -> list[str]:
    """Return the causes of the captures that are complete."""
    return [event.kind for event in steps_of(folder).events if event.capture]


def assert_requests_are_refused(folder: Path) -> None:
    """Check that no capture can be requested of a run that has ended."""
    before = sorted(folder.glob("out/requests/*"))
    refused(uprof("capture", folder / "out"), 2, "no selected rank of", "is running")
    assert sorted(folder.glob("out/requests/*")) == before


@pytest.mark.slow
def test_slow_data_loading_is_captured_and_named(tmp_path: Path) -> None:
    child = start(tmp_path, "1500", "1300")
    stdout, stderr = child.communicate(timeout=120)
    assert (child.returncode, stdout) == (0, "trained\n"), stderr
    one = steps_of(tmp_path)
    assert one.columns["step"].tolist() == list(range(1499))
    assert one.facts["exit_code"] == "0"
    parts = sum(one.values(f"{part}_ns") for part in ("data", "forward", "backward", "optimizer"))
    assert (parts + one.values("wait_ns") <= one.values("length_ns")).all()
    assert set(one.columns["samples"].tolist()) == {4}
    slow = [event for event in one.events if event.kind == "slow_step" and event.step >= 1298]
    assert slow, one.events
    assert slow[0].step <= 1301
    assert "data loading took" in slow[0].text
    healthy = next(event for event in one.events if event.kind == "healthy")
    assert healthy.status == "ready"
    place = tmp_path / "out" / str(healthy.capture)
    assert {path.name for path in place.iterdir()} >= {"timeline.db", "advice.txt"}
    assert "data loading" in stderr
    assert "steps of a watched run" in uprof("report", tmp_path / "out").stdout
    refused(uprof("advise", tmp_path / "out"), 2, "not a report of operations")
    assert_requests_are_refused(tmp_path)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("requests", [["out"], ["process", "signal"]])
def test_a_requested_capture_is_made_by_the_program(tmp_path: Path, requests: list[str]) -> None:
    child = start(tmp_path, "100000", "-9", options=("--share", "0"))
    try:
        wait_for_steps(tmp_path, 30)
        for request in requests:
            if request == "signal":
                child.send_signal(signal.SIGUSR2)
            else:
                target = tmp_path / "out" if request == "out" else str(child.pid)
                made = uprof("capture", target, "--steps", "3")
                assert made.returncode == 0, made.stderr
                assert "captures/rank0_step" in made.stdout
        wait_until(lambda: len(captures_of(tmp_path)) == len(requests))
    finally:
        (tmp_path / "stop").touch()
        stdout, stderr = child.communicate(timeout=120)
    expected = ["signal" if request == "signal" else "request" for request in requests]
    assert captures_of(tmp_path) == expected
    assert (child.returncode, stdout) == (0, "trained\n")
    assert stderr.startswith("uprof: watching, steps in out\n")
    assert "steps of a watched run" in stderr
    assert_requests_are_refused(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay_s", "number"), [(0.1, signal.SIGKILL), (0.4, signal.SIGKILL), (0.9, signal.SIGTERM)]
)
def test_a_kill_keeps_most_steps(tmp_path: Path, delay_s: float, number: signal.Signals) -> None:
    child = start(tmp_path, "100000", "-9", options=("--share", "0"))
    wait_for_steps(tmp_path, 30)
    time.sleep(delay_s)
    killed_ns = time.time_ns()
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == -number
    one = steps_of(tmp_path)
    last = int(one.columns["start_ns"][-1] + one.columns["length_ns"][-1])
    assert killed_ns - last < 1.5e9
    assert not one.is_running
    assert_requests_are_refused(tmp_path)


@pytest.mark.slow
def test_the_program_keeps_its_batches_and_may_change_its_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    program = """
import os, pathlib, torch, unified_prof
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = torch.utils.data.DataLoader(range(240), batch_size=4, collate_fn=iter)
seen = []
for run in range(2):
    settings = unified_prof.pipeline.watch.WatchSettings(steps=1)
    with unified_prof.watch("out", device="cpu", settings=settings):
        os.chdir("elsewhere")
        for batch in loader:
            values = [*batch]
            seen += values
            net(torch.tensor([[float(sum(values))]])).sum().backward()
            optimizer.step()
        import time
        time.sleep(1.2)
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        for _ in range(3):
            optimizer.step()
    os.chdir("..")
assert seen == [*range(240)] * 2
with unified_prof.watch("samples/out", device="cpu"):
    for step in range(20):
        net(torch.ones(2, 1)).sum().backward()
        optimizer.step()
        unified_prof.step(samples=7)
"""
    program = program.replace("import os,", "import unified_prof.pipeline.watch, os,")
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", program]
    subprocess.run(command, cwd=tmp_path, check=True)
    captures = sorted(path.name for path in (tmp_path / "out" / "captures").iterdir())
    assert [name for name in captures if name.endswith("healthy")], captures
    assert [name for name in captures if name.endswith("healthy_2")], captures
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert {event.status for event in steps_of(tmp_path).events if event.capture} == {"ready"}
    one = steps_of(tmp_path / "samples")
    assert len(one) >= 18
    assert set(one.columns["samples"].tolist()) == {7}


@pytest.mark.slow
def test_captures_within_optimizer_steps_do_not_corrupt_memory(tmp_path: Path) -> None:
    """The range of an optimizer step begins in one recording of torch and ends in the next."""
    program = """
import torch
from pathlib import Path
from unified_prof.tracking.watch import StepCapture
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
captures, running = 0, None

def stepped(*_):
    global captures, running
    if running is not None and not running.advance():
        return
    captures += 1
    running = StepCapture(Path(f"{captures}.json"), "cpu", 5, ("shapes",))
    running.advance()

optimizer.register_step_post_hook(stepped)
while captures < 80:
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
running.stop()
"""
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.slow
def test_captures_show_what_slows_the_steps(tmp_path: Path) -> None:
    program = """
import gc, sys, time, torch
from pathlib import Path
from unified_prof.pipeline.watch_explain import explain_capture
from unified_prof.tracking.watch import StepCapture
torch.set_num_threads(1)

class Samples(torch.utils.data.Dataset):
    wait_s = 0.0
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.ones(16)

net = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=4))
for fault in ("healthy", "loader", "item", "gc"):
    folder = Path(fault)
    folder.mkdir()
    capture = StepCapture(folder / "timeline.json.gz", "cpu", 5, ("shapes",))
    Samples.wait_s = 0.005 if fault == "loader" else 0.0
    kept = [[] for _ in range(300_000 if fault == "gc" else 0)]  # makes each collection long
    while not capture.advance():
        loss = net(next(batches)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.001)
        for _ in range(1000 if fault == "item" else 1):
            loss.item()
        if fault == "gc":
            gc.collect()
    assert not [one for one in gc.callbacks if "StepCapture" in one.__qualname__]
    explain_capture(folder, None if fault == "healthy" else Path("healthy"))
"""
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")
    advice = {path.parent.name: path.read_text() for path in tmp_path.glob("*/advice.txt")}
    assert "1. input wait [input_wait]" in advice["loader"]
    assert "1. garbage collection [garbage_collection]" in advice["gc"]
    assert "\n   4 times" in advice["gc"]
    assert "the program waits meanwhile" in advice["gc"]
    assert "1. garbage collection [garbage_collection]" not in advice["healthy"]
    assert "new  aten::item" in (tmp_path / "item" / "diff.txt").read_text()
