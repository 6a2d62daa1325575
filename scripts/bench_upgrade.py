"""Compare the time of `uprof db upgrade` on a large file with that of copying the file.

    python scripts/bench_upgrade.py [--gigabytes 1] [--revision 1.0.0_20241112] [--rounds 5]

Copies (with fsync, as in the upgrade) and upgrades alternate, each in a separate process. Prints
medians, and minimum wall times, which depend least on other load. The file has the proportions of a
recording of a training step on a 910A: tables, rows per task, and the share of rows with old marks
that the upgrade converts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue

TASKS_A_GIGABYTE = 2_900_000
START_NS = 1_700_000_000_000_000_000
UNKNOWN = 4294967295
TIMES = {"startNs": f"{START_NS} + i * 1000", "endNs": f"{START_NS} + i * 1000 + 900"}
# Table -> (rows per task, column -> value for row number i; other columns are 1)
TABLES: dict[str, tuple[float, dict[str, str]]] = {
    "TASK": (
        1,
        {
            **TIMES,
            "deviceId": "0",
            "connectionId": f"CASE WHEN i % 5 < 3 THEN {UNKNOWN} ELSE i / 4 END",
            "globalTaskId": "i",
            "contextId": str(UNKNOWN),
            "taskId": "i % 65536",
            "modelId": str(UNKNOWN),
        },
    ),
    "COMPUTE_TASK_INFO": (0.2, {"globalTaskId": "i * 5", "name": "i % 1000"}),
    "COMMUNICATION_TASK_INFO": (
        0.21,
        {
            "globalTaskId": "i * 4 + 1",
            "notifyId": "CASE WHEN i % 4 THEN i ELSE 9223372036854775807 END",
            "opId": "i / 75",
        },
    ),
    "COMMUNICATION_OP": (
        0.0023,
        {"opId": "i", "startNs": f"{START_NS} + (i * 300 + 1) * 1000", "connectionId": "i"},
    ),
    "CANN_API": (2.28, {**TIMES, "connectionId": "i", "type": "10000"}),
    "NPU_MODULE_MEM": (1.28, {"timestampNs": TIMES["startNs"], "totalReserved": "i * 512"}),
    "HBM": (0.12, {"timestampNs": TIMES["startNs"]}),
    "PYTORCH_API": (
        1.66,
        {name: f"CAST({value} AS TEXT)" for name, value in TIMES.items()}
        | {"globalTid": "49181670517947", "name": "268435456 + i % 300"},
    ),
    "CONNECTION_IDS": (0.5, {"id": "i", "connectionId": "i"}),
    "MEMORY_RECORD": (
        0.5,
        {"timestamp": TIMES["startNs"], "totalAllocated": "978977280", "streamPtr": "94200921182"},
    ),
    "OP_MEMORY": (0.09, {"allocationTime": TIMES["startNs"], "size": "i * 512"}),
    "STRING_IDS": (0.005, {"id": "i", "value": "'the text of number ' || i"}),
}


def make(path: Path, revision: str, tasks: int) -> None:
    """Write a file with `tasks` rows in TASK."""
    specs = catalogue.load(catalogue.MSPROF, revision).tables | catalogue.extension_tables()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN;\n{catalogue.frozen_text(catalogue.MSPROF, revision)}COMMIT;")
        db.execute("BEGIN")
        present = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        for table, (share, values) in TABLES.items():
            if table not in present:
                db.execute(specs[table].create_sql)
            columns = ", ".join(values.get(c, "1") for c in specs[table].column_names)
            numbers = "n (i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
            insert = f"INSERT INTO {table} WITH RECURSIVE {numbers} SELECT {columns} FROM n"
            db.execute(insert, (int(tasks * share),))
        db.execute("COMMIT")


def durable_copy(source: Path, copy: Path) -> None:
    """Copy a file and sync it to disk."""
    shutil.copyfile(source, copy)
    with copy.open("rb+") as file:
        os.fsync(file.fileno())


def measure(work: Callable[[], object]) -> tuple[float, float, float]:
    """Run `work` in a new process; return wall seconds, CPU seconds and peak MB."""
    begin = time.perf_counter()
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begin
    if status:
        raise SystemExit(f"the measured process failed: {status}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--revision", default="1.0.0_20241112")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="directory for the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        old, copy, new = (Path(folder) / name for name in ("old.db", "copy.db", "new.db"))
        make(old, options.revision, int(TASKS_A_GIGABYTE * options.gigabytes))
        copies, upgrades = [], []
        for _ in range(options.rounds):
            copies.append(measure(lambda: durable_copy(old, copy)))
            upgrades.append(measure(lambda: upgrade(old, output=new, overwrite=True)))
        print(f"{old.stat().st_size / 1e9:.2f} GB, {options.revision} -> latest")
    for name, rounds in (("copy", copies), ("upgrade", upgrades)):
        wall, cpu, memory = (statistics.median(values) for values in zip(*rounds, strict=True))
        least = min(wall for wall, _, _ in rounds)
        print(
            f"{name:8} wall {wall:6.2f} s (minimum {least:.2f})   CPU {cpu:6.2f} s"
            f"   peak {memory:6.0f} MB"
        )
    ratio = statistics.median(u[0] / c[0] for c, u in zip(copies, upgrades, strict=True))
    least_ratio = min(u[0] for u in upgrades) / min(c[0] for c in copies)
    print(f"upgrade / copy: wall {ratio:.2f} (minimum {least_ratio:.2f})")


if __name__ == "__main__":
    main()
