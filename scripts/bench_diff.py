"""Measure `uprof diff` on two run time reports with many operations and iterations.

    python scripts/bench_diff.py [--operations 10000] [--iterations 20] [--rounds 5]

Prints medians of the CPU time of the whole process, including the start of Python.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from unified_prof.base.run_spec import Frame, IterationRecord, OperationRecord, TrackedRun
from unified_prof.sqlite.skyline_writer import write_run_time

# Operations per module, each on a separate line.
LAYER = 20


def make_report(
    path: Path, operations: int, iterations: int, *, seed: int, changed: bool = False
) -> None:
    """Write a report; a changed one has slower, inserted and removed operations in many places."""
    generator = np.random.default_rng(seed)
    records = []
    for number in range(operations):
        layer, place = divmod(number, LAYER)
        if changed and number % 97 == 0:
            continue
        slow = 1.3 if changed and number % 89 == 0 else 1.0
        copies = 2 if changed and number % 101 == 0 else 1
        for _ in range(copies):
            forward = slow * generator.uniform(0.1, 0.11, iterations)
            records.append(
                OperationRecord(
                    name=f"operation{place % 7}",
                    frames=(Frame("model.py", 10 + place), Frame("train.py", 5)),
                    module_path=f"layers.{layer}",
                    module_class="Layer",
                    forward_ms=tuple(forward.tolist()),
                    backward_ms=tuple((2 * forward).tolist()),
                )
            )
    totals = generator.uniform(1, 1.02, iterations) * operations * 0.3
    write_run_time(
        path,
        TrackedRun(
            device="cpu",
            operations=tuple(records),
            weights=(),
            activations=(),
            iterations=tuple(IterationRecord(float(one), None, None, None, True) for one in totals),
            peak_usage_bytes=None,
            complete=True,
        ),
        {"device": "cpu"},
    )


def measure(*arguments: str) -> tuple[float, float]:
    """Return CPU and wall seconds of one `uprof` command."""
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "unified_prof", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    cpu_s = after.children_user - before.children_user
    return cpu_s + after.children_system - before.children_system, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base, new = Path(folder) / "base.sqlite", Path(folder) / "new.sqlite"
        shape = (arguments.operations, arguments.iterations)
        make_report(base, *shape, seed=1)
        make_report(new, *shape, seed=2, changed=True)
        commands = {
            "uprof diff": ("diff", str(base), str(new)),
            "uprof diff --by line --json": ("diff", str(base), str(new), "--by", "line", "--json"),
            "uprof gate": ("gate", str(base), str(new), "--max-regress", "90%"),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                times[name].append(measure(*command))
        print(f"{shape[0]:,} operations, {shape[1]} iterations")
        for name, found in times.items():
            cpu_s, wall_s = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"{name:30} {cpu_s:.2f} s CPU ({wall_s:.2f} s wall)")


if __name__ == "__main__":
    main()
