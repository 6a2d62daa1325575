"""Validate `uprof watch` with real trainings: planted faults, healthy runs, and SIGKILL.

    python scripts/validate_watch.py faults            # each fault: event, delay, capture
    python scripts/validate_watch.py healthy [RUNS]    # events of healthy runs of all shapes
    python scripts/validate_watch.py kills [KILLS]     # what is lost, also in captures and rotation

The exit code is 1 if an expectation is not met.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from watch_training import SHAPES, STEP_LOG, STEP_RECORD, train

import unified_prof
from unified_prof.__main__ import main as run_uprof
from unified_prof.migrate.check import check
from unified_prof.sqlite.watch_file import WatchEvent, WatchFile, read_folder

ROOT = Path(__file__).resolve().parent.parent
# Step of a watch file with which faults begin; its step 0 is the second one of the program.
BEGIN = 1_200


class Fault(NamedTuple):
    """Expected event and capture of a fault."""

    steps: int
    kind: str
    within: int
    """Largest number of steps from the begin to the event."""
    part: str
    """Text of the event."""
    capture: str | None = None
    """Text of `advice.txt` or `diff.txt` of a capture after the begin."""


FAULTS = {
    "loader_5": Fault(1_500, "slow_step", 5, "data loading took"),
    "loader": Fault(1_700, "slow_step", 5, "data loading took", "input wait"),
    "drift": Fault(2_600, "drift", 800, "other code takes"),
    "leak": Fault(2_800, "memory_growth", 1_500, "memory grows steadily by"),
    "gc": Fault(1_500, "slow_step", 5, "garbage collection took"),
}


def start(folder: Path, *workload: object, parts_bytes: int = 64 << 20) -> subprocess.Popen[bytes]:
    """Start a watched training in `folder`."""
    code = (
        "from unified_prof.sqlite.watch_file import WatchFile; from unified_prof.__main__ import "
        f"main; WatchFile.__init__.__defaults__ = ({parts_bytes},); main()"
    )
    command = [sys.executable, "-c", code, "watch", "--backend", "cpu", "-o", "out"]
    command += ["--share", "10", str(ROOT / "scripts" / "watch_training.py"), *map(str, workload)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)


def texts(folder: Path, events: list[WatchEvent]) -> str:
    """Return what was written about the captures of events."""
    names = ("advice.txt", "diff.txt")
    files = [folder / "out" / str(event.capture) / name for event in events for name in names]
    return "\n".join(file.read_text() for file in files if file.is_file())


def fault(folder: Path, name: str) -> bool:
    """Run a training with a fault; print and judge what was found."""
    wanted = FAULTS[name]
    # Steps of 60 ms, because 12 % of 8 ms is below the noise of a busy machine.
    shape = "long" if name == "drift" else "plain"
    start(folder, shape, name, wanted.steps, BEGIN + 1).wait()
    later = [event for event in read_folder(folder / "out")[0].events if event.step >= BEGIN]
    found = [event for event in later if event.kind == wanted.kind and wanted.part in event.text]
    delay = found[0].step - BEGIN if found else None
    said = texts(folder, [event for event in later if event.capture])
    is_shown = wanted.capture is None or wanted.capture in said
    print(f"| {name} | {delay} | {found[0].text if found else later} | {is_shown} |", flush=True)
    return delay is not None and delay <= wanted.within and is_shown


def healthy(folder: Path, number: int) -> bool:
    """Run a healthy training; print and judge the events per 10,000 steps."""
    shape = SHAPES[number % len(SHAPES)]
    steps = 20_000 if shape == "tiny" else 1_000
    code = start(folder, shape, "none", steps, 0, number).wait()
    one = read_folder(folder / "out")[0]
    kinds = Counter(event.kind for event in one.events if event.kind != "healthy")
    print(f"| {shape} | {len(one):,} | {dict(kinds)} |", flush=True)
    return code == 0 and kinds.total() <= 10


def forked(folder: Path, action: Callable[[], object]) -> int:
    """Start an action in a child process, which has imported torch already; return its number."""
    if pid := os.fork():
        return pid
    code: object = 1
    try:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        action()
    except SystemExit as end:
        code = end.code or 0
    finally:
        os._exit(code if isinstance(code, int) else 1)


def command(folder: Path, *arguments: str) -> int:
    """Run uprof; return its exit code."""
    sys.argv = ["uprof", *arguments]
    return os.waitstatus_to_exitcode(os.waitpid(forked(folder, run_uprof), 0)[1])


def watched(shape: str, parts_bytes: int) -> None:
    """Train until the process is killed."""
    WatchFile.__init__.__defaults__ = (parts_bytes,)
    torch.set_num_threads(1)
    with unified_prof.watch("out", device="cpu"):
        train(shape, "none", 1 << 40, 1 << 40)


def kill(folder: Path, number: int) -> bool:
    """Kill a training at a random moment; print and judge what was kept."""
    shape, parts_bytes = ("tiny", 32 << 10) if number % 2 else ("plain", 64 << 20)
    pid = forked(folder, lambda: watched(shape, parts_bytes))
    while not (folder / STEP_LOG).exists() or not (folder / STEP_LOG).stat().st_size:
        time.sleep(0.05)
    time.sleep(random.uniform(0, 8))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    files = sorted((folder / "out").glob("watch_rank0*.db"))
    journal = any((folder / "out").glob("*-journal"))
    one = read_folder(folder / "out")[0]
    ends_ns = dict(STEP_RECORD.iter_unpack((folder / STEP_LOG).read_bytes()))
    kept = len(one)  # rows begin with the end of step 0
    last = max(ends_ns)
    lost_s = (ends_ns[last] - ends_ns[min(kept, last)]) / 1e9
    codes = [command(folder, "report", "out"), command(folder, "db", "check", *map(str, files))]
    has_gap = one.columns["step"].tolist() != list(range(len(one)))
    state = [event.status for event in one.events if event.capture]
    print(
        f"| {number} | {len(one):,} of {last:,} | {len(files)} | {lost_s:.2f} s | {state} "
        f"| {journal} | {codes} |",
        flush=True,
    )
    findings = [found for file in files for found in check(file).findings]
    return lost_s <= 1.0 and codes == [0, 0] and not has_gap and not findings


def main() -> int:
    """Run the parts given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["faults", "healthy", "kills"])
    parser.add_argument("count", nargs="?", type=int, help="number of runs or kills")
    given = parser.parse_args()
    random.seed(0)
    failed = []
    names = [*FAULTS] if given.part == "faults" else range(given.count or 50)
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if isinstance(name, str):
                is_good = fault(folder, name)
            else:
                is_good = (healthy if given.part == "healthy" else kill)(folder, name)
        if not is_good:
            failed.append(name)
    print(f"failed: {failed}" if failed else "all as expected")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
