"""Measure whether memory and file descriptors grow over long use.

    python scripts/bench_endurance.py [--iterations 200000] [--reports 10000] [--ranks 500]
        [--only PART]

PART is one of:

- `run`: `uprof run` of a small training, whose script samples its own process. At most about
  10,000 samples of such iterations are kept.
- `watch`: `uprof watch` of the same training, with a new part of the file each 4 MiB; also the
  bytes per step, and `uprof report` of the result.
- `reports`: reports of a tracked run and of a device recording through the Python API, read in turn
  in one process.
- `ranks`: `uprof cluster build` and `cluster report` of 50 ranks and of --ranks ranks. Memory is
  the largest resident size of a single process.

The slope is that of a least-squares line through the samples after the first fifth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import unified_prof
from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.cluster import ranks
from unified_prof.sqlite.watch_file import read_folder

ROOT = Path(__file__).resolve().parent.parent
# Number of samples of a part.
SAMPLES = 200
FEW_RANKS = 50

TRAINING = """\
import os, sys, torch
from pathlib import Path
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples, every, number = Path(sys.argv[1]).open("w"), int(sys.argv[2]), 0
page = os.sysconf("SC_PAGESIZE")
end = int(sys.argv[3])
while number < end:  # `uprof run` ends the script earlier
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    number += 1
    if number % every == 0:
        size = int(Path("/proc/self/statm").read_text().split()[1]) * page
        print(number, size, len(os.listdir("/proc/self/fd")), file=samples, flush=True)
"""


def sample(process: int | str = "self") -> tuple[int, int]:
    """Return the resident bytes and the open descriptors of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    count = len([*Path(f"/proc/{process}/fd").iterdir()])
    return pages * os.sysconf("SC_PAGESIZE"), count


def show(name: str, rows: list[tuple[int, int, int]]) -> None:
    """Print a row of the table of samples: number, bytes, descriptors."""
    number, size, descriptors = np.array(rows[len(rows) // 5 :]).T
    slope = np.polyfit(number, size, 1)[0]
    print(
        f"| {name} | {rows[-1][0]:,} | {np.median(size) / 1e6:.1f} | {size.max() / 1e6:.1f} |"
        f" {slope:+.1f} | {np.median(descriptors):.0f} | {descriptors.max()} |"
        f" {1000 * np.polyfit(number, descriptors, 1)[0]:+.3f} |",
        flush=True,
    )


def run(folder: Path, iterations: int) -> None:
    """Track a training."""
    script, samples = folder / "small.py", folder / "samples"
    script.write_text(TRAINING)
    every = max(1, iterations // SAMPLES)
    options = ["--iterations", str(iterations), "--stop-after", "--quiet"]
    workload = [str(script), str(samples), str(every), str(1 << 60)]
    uprof(folder, "run", "--backend", "cpu", *options, "-o", "out", *workload)
    rows = [tuple(map(int, line.split())) for line in samples.read_text().splitlines()]
    facts = dict(unified_prof.figures(folder / "out")[0].summary.facts)
    assert facts["complete"] == "true"
    assert facts["iterations"] == str(iterations)
    share = iterations / rows[-1][0]  # of the script's iterations, which are measured in two ways
    show("`run`, iterations", [(round(number * share), *more) for number, *more in rows])


# Runs the command line with parts of 4 MiB.
SMALL_PARTS = """\
from unified_prof.sqlite.watch_file import WatchFile
WatchFile.__init__.__defaults__ = (4 << 20,)
from unified_prof.__main__ import main
main()
"""


def watch(folder: Path, iterations: int) -> None:
    """Watch a training."""
    script, samples = folder / "small.py", folder / "samples"
    script.write_text(TRAINING)
    workload = [str(script), str(samples), str(max(1, iterations // SAMPLES)), str(iterations)]
    command = [sys.executable, "-c", SMALL_PARTS, "watch", "--backend", "cpu", "-o", "out", "-q"]
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, *workload], cwd=folder, env=place, check=True)
    rows = [tuple(map(int, line.split())) for line in samples.read_text().splitlines()]
    show("`watch`, steps", rows)
    parts = sorted((folder / "out").glob("watch_rank0*.db"))
    steps = read_folder(folder / "out")[0]
    assert steps.columns["step"].tolist() == list(range(iterations - 1)), len(steps)
    size = sum(part.stat().st_size for part in parts) / len(steps)
    start = time.perf_counter()
    peak, _ = uprof(folder, "report", "out", "-o", "report.txt", "-q")
    print(
        f"{len(parts)} parts, {size:.0f} bytes per step, report {time.perf_counter() - start:.1f} s"
        f" and {peak / 1e6:.0f} MB; events: {[event.text for event in steps.events]}"
    )


def reports(folder: Path, count: int) -> None:
    """Read reports in this process."""
    inputs = [run_time_report(folder / "run_time.sqlite"), training_step(folder / "msprof_1.db")]
    inputs.append(memory_report(folder / "memory.sqlite"))
    rows = []
    every = max(1, count // SAMPLES)
    for number in range(1, count + 1):
        unified_prof.figures(inputs[number % len(inputs)])
        if number % every == 0:
            rows.append((number, *sample()))
    show("`figures()`, reports", rows)


def uprof(folder: Path, *arguments: str) -> tuple[float, int]:
    """Run a command; return its peak resident bytes and the most descriptors of its processes."""
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "unified_prof", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=place, start_new_session=True)
    size = descriptors = 0
    while process.poll() is None:
        for one in _session(process.pid):
            try:
                found = sample(one)
            except OSError:
                continue
            size, descriptors = max(size, found[0]), max(descriptors, found[1])
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return size, descriptors


def _session(leader: int) -> Iterator[int]:
    """Yield the processes of a session."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            yield int(folder.name)


def cluster(folder: Path, many: int) -> None:
    """Build and report clusters of few and of many ranks."""
    for count in (FEW_RANKS, many):
        inputs = ranks.databases(folder / f"ranks{count}", count)
        shutil.rmtree(folder / f"ranks{count}-traces")
        out = folder / f"run{count}.cluster"
        figures = [
            uprof(folder, "cluster", "build", str(inputs), "-o", str(out), "--jobs", "2", "-q"),
            uprof(folder, "cluster", "report", str(out), "-o", str(folder / f"{count}.html"), "-q"),
        ]
        for name, (size, descriptors) in zip(("build", "report"), figures, strict=True):
            print(
                f"| `cluster {name}`, ranks | {count} | | {size / 1e6:.1f} | | | {descriptors} | |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--iterations", type=int, default=200_000)
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=500)
    parser.add_argument("--only", choices=["run", "watch", "reports", "ranks"])
    given = parser.parse_args()
    print(
        "| what | number | MB, median | max | bytes each | descriptors, median | max | per 1,000 |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    parts = {"run": run, "watch": watch, "reports": reports, "ranks": cluster}
    steps = given.iterations
    counts = {"run": steps, "watch": steps, "reports": given.reports, "ranks": given.ranks}
    for name, part in parts.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder), counts[name])


if __name__ == "__main__":
    main()
