"""Measure `uprof report`, `diff` and `gate` on millions of tasks, next to hand-written SQL.

    python scripts/bench_report.py [--tasks 5000000] [--rounds 5] [--keep FILE] [--json]
        [--host] [--names N] [--only PART]

The database has TASK (eight streams, 20 % of the tasks are not kernels) and COMPUTE_TASK_INFO. With
`--host` it is a training with twice as many framework ranges and as many launches as kernels
(`made_training`), with N kernel names. The SQL queries the twenty operator types with the most time
in the sqlite3 shell: grouped by name (`by name`), and grouped by id with names joined last (`by
id`). `diff` and `gate` compare the database with itself, so they read it twice. Contenders
alternate, and each measurement is a separate process. Times are in seconds, memory is the maximum
resident size. A database takes 107 bytes per task.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import made_training

from unified_prof.sqlite.writer import ReportWriter

ROOT = Path(__file__).resolve().parent.parent

BY_NAME = """
    SELECT s.value, count(*), sum(t.endNs - t.startNs) AS total
    FROM TASK t
    JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId
    JOIN STRING_IDS s ON s.id = c.opType
    GROUP BY s.value ORDER BY total DESC LIMIT 20
"""
BY_ID = """
    SELECT s.value, g.count, g.total FROM (
        SELECT c.opType AS op, count(*) AS count, sum(t.endNs - t.startNs) AS total
        FROM TASK t JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = t.globalTaskId
        GROUP BY c.opType ORDER BY total DESC LIMIT 20
    ) g JOIN STRING_IDS s ON s.id = g.op ORDER BY g.total DESC
"""
BATCH = 500_000
# Exit code of a gate with one sample per side.
INCONCLUSIVE = 3


def make(path: Path, tasks: int) -> None:
    """Write the database; its content depends on the number of tasks only."""
    rng = np.random.default_rng(0)
    with ReportWriter(path, overwrite=True) as report:
        types = report.strings.intern_all(f"OperatorType{n}" for n in range(400))
        kernels = report.strings.intern_all(f"aclnn_some_kernel_number_{n}" for n in range(2000))
        kernel_type, other_type = report.strings.intern_all(["KERNEL_AICORE", "EVENT_RECORD"])
        start_ns = 1_736_410_576_000_000_000
        for first in range(0, tasks, BATCH):
            count = min(BATCH, tasks - first)
            start = start_ns + np.cumsum(rng.integers(1_000, 19_000, count))
            start_ns = int(start[-1])
            identity = np.arange(first, first + count)
            is_kernel = rng.random(count) < 0.8
            report.write(
                "TASK",
                {
                    "startNs": start,
                    "endNs": start + rng.integers(500, 20_000, count),
                    "deviceId": 0,
                    "connectionId": identity // 2,
                    "globalTaskId": identity,
                    "globalPid": 77,
                    "taskType": np.where(is_kernel, kernel_type, other_type),
                    "contextId": 4294967295,
                    "streamId": rng.integers(0, 8, count),
                    "taskId": identity % 65536,
                    "modelId": 4294967295,
                },
            )
            which = rng.integers(0, 2000, int(is_kernel.sum()))
            report.write(
                "COMPUTE_TASK_INFO",
                {
                    "name": kernels[which],
                    "globalTaskId": identity[is_kernel],
                    "blockNum": 8,
                    "mixBlockNum": 0,
                    "taskType": kernel_type,
                    "opType": types[which % 400],
                },
            )


def measure(command: list[str], text: str | None = None) -> dict[str, float]:
    """Run a command and return its wall and CPU seconds and its memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    process.stdin.write(text or "")
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, INCONCLUSIVE):
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return {
        "wall": time.perf_counter() - start,
        "cpu": usage.ru_utime + usage.ru_stime,
        "mb": usage.ru_maxrss / 1024,
    }


def main() -> None:
    """Print the medians as a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="reuse this database, or create it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--host", action="store_true", help="with host ranges and launches")
    parser.add_argument("--names", type=int, default=400, help="kernel names, with --host")
    parser.add_argument("--only", default="", help="only contenders whose name contains this")
    options = parser.parse_args()
    shell = shutil.which("sqlite3")
    with tempfile.TemporaryDirectory(prefix="uprof-bench-") as folder:
        path = options.keep or Path(folder) / "msprof_20260101000000.db"
        if not path.exists() and options.host:
            made_training.make(path, options.tasks, kernels=options.names)
        elif not path.exists():
            make(path, options.tasks)
        uprof = [sys.executable, "-m", "unified_prof"]
        page = str(Path(folder) / "page.html")
        contenders: dict[str, tuple[list[str], str | None]] = {
            "uprof report --top 20": ([*uprof, "report", str(path), "--top", "20"], None),
            "uprof report --by kernel": ([*uprof, "report", str(path), "--by", "kernel"], None),
            "uprof report --format json": ([*uprof, "report", str(path), "--format", "json"], None),
            "uprof report -o page.html": (
                [*uprof, "report", str(path), "-o", page, "--force", "-q"],
                None,
            ),
            "uprof diff": ([*uprof, "diff", str(path), str(path)], None),
            "uprof gate": ([*uprof, "gate", str(path), str(path)], None),
        }
        if options.host:
            contenders["uprof advise"] = ([*uprof, "advise", str(path)], None)
        elif shell:
            contenders["sqlite3 shell, by name"] = ([shell, str(path)], BY_NAME)
            contenders["sqlite3 shell, by id"] = ([shell, str(path)], BY_ID)
        contenders = {name: how for name, how in contenders.items() if options.only in name}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, (command, text) in contenders.items():
                runs[name].append(measure(command, text))
    medians = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    print(f"{'':28}{'wall s':>8}{'CPU s':>8}{'MB':>8}")
    for name, figures in medians.items():
        print(f"{name:28}{figures['wall']:8.2f}{figures['cpu']:8.2f}{figures['mb']:8.0f}")


if __name__ == "__main__":
    main()
