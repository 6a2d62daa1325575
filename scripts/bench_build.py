"""Measure CPU time, wall time and peak memory of `uprof convert`: medians of several runs.

    python scripts/bench_build.py PROF_DIR... [--runs 5]
    python scripts/bench_build.py --generator make_prof.py [--runs 5] [--before REV]

The second form generates the inputs: 1,000 and 100,000 operators with PMU counters, 500,000
without. The generator is called as `GENERATOR OUT --seed N --ops N ...` and prints the PROF_* path.

With --before, both revisions build each input in turn; the last columns are the median and minimum
CPU time of each revision, and the median ratio of the pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from checkouts import ROOT, environment, runnable_checkout

INPUTS = {
    "1,000 operators with PMU": "--seed 5 --ops 1000 --threads 4 --with pmu,freq,hccl,memcpy,ext",
    "100,000 operators with PMU": (
        "--seed 1 --ops 100000 --threads 4 --count 200 --with pmu,freq,hccl,memcpy,ext"
    ),
    "500,000 operators": (
        "--seed 2 --ops 500000 --threads 8 --count 500 --with freq,hccl,memcpy,ext"
    ),
}


# CPU seconds, wall seconds, peak MB and rows of one build.
_Run = tuple[float, float, float, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", nargs="*", type=Path)
    parser.add_argument("--generator", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--before", metavar="REV", help="revision to compare with")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        before = stack.enter_context(runnable_checkout(options.before)) if options.before else None
        inputs = {path.name: path for path in options.recordings}
        if options.generator:
            inputs |= {
                name: made(options.generator, arguments, Path(folder) / str(number))
                for number, (name, arguments) in enumerate(INPUTS.items())
            }
        heads = ["input", "raw MB", "rows", "CPU s", "wall s", "peak MB"]
        if before:
            heads += [f"CPU s (minimum), {options.before}", "now", "now / before"]
        print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        for name, recording in inputs.items():
            output = Path(folder) / "out.db"
            print(row(name, recording, output, options.runs, before), flush=True)
        print(f"{options.runs} runs each, load {os.getloadavg()[0]:.1f}")


def made(generator: Path, arguments: str, target: Path) -> Path:
    command = [sys.executable, str(generator), str(target), *arguments.split()]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(result.stdout.split()[-1])


def row(name: str, recording: Path, output: Path, runs: int, before: Path | None) -> str:
    size = sum(path.stat().st_size for path in recording.rglob("*") if path.is_file())
    measured: list[_Run] = []
    earlier: list[_Run] = []
    for number in range(runs):
        sides = [(ROOT, measured)] + ([(before, earlier)] if before else [])
        for code, found in sides if number % 2 else sides[::-1]:
            found.append(run(recording, output, code))
    cpu, wall, peak = (
        statistics.median(column) for column in list(zip(*measured, strict=True))[:3]
    )
    cells = [name, f"{size / 1e6:.0f}", f"{measured[0][3]:,}"]
    cells += [f"{cpu:.2f}", f"{wall:.2f}", f"{peak:.0f}"]
    if before:
        for found in (earlier, measured):
            times = [one[0] for one in found]
            cells.append(f"{statistics.median(times):.2f} ({min(times):.2f})")
        ratios = [now[0] / then[0] for now, then in zip(measured, earlier, strict=True)]
        cells.append(f"{statistics.median(ratios):.2f}")
    return f"| {' | '.join(cells)} |"


def run(recording: Path, output: Path, code: Path) -> _Run:
    """Build once in a new process; return CPU s, wall s, peak MB and rows."""
    # Not in this directory, whose package would be imported first.
    words = ["build", str(recording.resolve()), "-o", str(output)]
    command = [sys.executable, "-m", "unified_prof", *words]
    command += ["--schema", "latest", "--force", "-q", "--json"]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, env=environment(code), cwd=output.parent)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        out.seek(0)
        rows = sum(json.load(out)[0]["rows"].values())
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, rows


if __name__ == "__main__":
    main()
