"""Times `uprof db upgrade` on a big file against copying that file.

    python scripts/bench_upgrade.py [--gigabytes 1] [--revision 1.0.0_20241112] [--rounds 5]

Copies and upgrades alternate, each in a process of its own; medians of wall and CPU seconds and
the greatest memory are printed. The file is made of tasks, operators, steps of collectives, host
calls and counters, a third to a half of their rows with marks that the upgrade converts.
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
from unified_prof.models import catalogue

ROWS_A_GIGABYTE = 4_600_000  # of TASK; the other tables follow
START_NS = 1_700_000_000_000_000_000
UNKNOWN = 4294967295
# Table -> (rows for each task, value of each column by its number i, columns not named are 1)
TABLES: dict[str, tuple[float, dict[str, str]]] = {
    "TASK": (
        1,
        {
            "startNs": f"{START_NS} + i * 1000",
            "endNs": f"{START_NS} + i * 1000 + 900",
            "deviceId": "0",
            "connectionId": f"CASE WHEN i % 2 THEN {UNKNOWN} ELSE i / 4 END",
            "globalTaskId": "i",
            "contextId": str(UNKNOWN),
            "taskId": "i % 65536",
            "modelId": str(UNKNOWN),
        },
    ),
    "COMPUTE_TASK_INFO": (1 / 3, {"globalTaskId": "i * 3", "name": "i % 1000"}),
    "COMMUNICATION_TASK_INFO": (
        1 / 4,
        {
            "globalTaskId": "i * 4 + 1",
            "notifyId": "CASE WHEN i % 3 THEN 9223372036854775807 ELSE i END",
            "opId": "i / 75",
        },
    ),
    "COMMUNICATION_OP": (
        1 / 300,
        {"opId": "i", "startNs": f"{START_NS} + (i * 300 + 1) * 1000", "connectionId": "i"},
    ),
    "CANN_API": (
        1,
        {
            "connectionId": "i",
            "startNs": f"{START_NS} + i * 900",
            "endNs": f"{START_NS} + i * 900 + 700",
            "type": "10000",
        },
    ),
    "TASK_PMU_INFO": (3, {"globalTaskId": "i / 10 * 3", "value": "i * 0.37"}),
    "STRING_IDS": (1 / 200, {"id": "i", "value": "'the text of number ' || i"}),
}


def make(path: Path, revision: str, tasks: int) -> None:
    """Write a file with `tasks` rows in TASK."""
    schema = catalogue.load(catalogue.MSPROF, revision)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN;\n{catalogue.frozen_text(catalogue.MSPROF, revision)}COMMIT;")
        db.execute("BEGIN")
        for table, (share, values) in TABLES.items():
            columns = ", ".join(values.get(c, "1") for c in schema.tables[table].column_names)
            numbers = "n (i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
            insert = f"INSERT INTO {table} WITH RECURSIVE {numbers} SELECT {columns} FROM n"
            db.execute(insert, (int(tasks * share),))
        db.execute("COMMIT")


def measure(work: Callable[[], object]) -> tuple[float, float, float]:
    """Run `work` in a process of its own: (wall seconds, CPU seconds, peak megabytes)."""
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
    parser.add_argument("--folder", type=Path, help="where to put the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        old, copy, new = (Path(folder) / name for name in ("old.db", "copy.db", "new.db"))
        make(old, options.revision, int(ROWS_A_GIGABYTE * options.gigabytes))
        copies, upgrades = [], []
        for _ in range(options.rounds):
            copies.append(measure(lambda: shutil.copyfile(old, copy)))
            upgrades.append(measure(lambda: upgrade(old, output=new, overwrite=True)))
        print(f"{old.stat().st_size / 1e9:.2f} GB, {options.revision} -> latest")
    for name, rounds in (("copy", copies), ("upgrade", upgrades)):
        wall, cpu, memory = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{name:8} wall {wall:6.2f} s   CPU {cpu:6.2f} s   peak {memory:6.0f} MB")
    ratios = [u[0] / c[0] for c, u in zip(copies, upgrades, strict=True)]
    cpus = [u[1] / c[1] for c, u in zip(copies, upgrades, strict=True)]
    print(
        f"upgrade / copy: wall {statistics.median(ratios):.2f}, CPU {statistics.median(cpus):.2f}"
    )


if __name__ == "__main__":
    main()
