"""Measures `store.writer` against its peers, interleaved, one process a measurement.

    python scripts/bench_store.py [--rows 2000000] [--rounds 5] [--json]

Every contender writes the same TASK, COMPUTE_TASK_INFO and STRING_IDS to a new file, the index of
TASK included: `writer` from columns, `executemany` from tuples made beforehand, `c` with a C
program that binds and steps row by row (compiled here; left out without a compiler). `writer`
also verifies and syncs its file, which the others do not. Times are CPU seconds of the process
without making the input; memory is the highest resident size above that with the input made.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from unified_prof.models import catalogue
from unified_prof.store import layouts

STRINGS = 20_000
TABLES = ("TASK", "COMPUTE_TASK_INFO")
Columns = dict[str, NDArray[np.int64]]

C_SOURCE = """
typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
int sqlite3_open(const char *, sqlite3 **);
int sqlite3_close(sqlite3 *);
int sqlite3_exec(sqlite3 *, const char *, void *, void *, char **);
int sqlite3_prepare_v2(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
int sqlite3_bind_int64(sqlite3_stmt *, int, long long);
int sqlite3_bind_text(sqlite3_stmt *, int, const char *, int, void (*)(void *));
int sqlite3_step(sqlite3_stmt *);
int sqlite3_reset(sqlite3_stmt *);
int sqlite3_finalize(sqlite3_stmt *);

int open_db(const char *path, sqlite3 **db) { return sqlite3_open(path, db); }
int run(sqlite3 *db, const char *sql) { return sqlite3_exec(db, sql, 0, 0, 0); }
int close_db(sqlite3 *db) { return sqlite3_close(db); }

int insert_integers(sqlite3 *db, const char *sql, long long **columns, int width, long long rows) {
  sqlite3_stmt *statement;
  if (sqlite3_prepare_v2(db, sql, -1, &statement, 0)) return 1;
  for (long long row = 0; row < rows; row++) {
    for (int column = 0; column < width; column++)
      sqlite3_bind_int64(statement, column + 1, columns[column][row]);
    if (sqlite3_step(statement) != 101) return 2;
    sqlite3_reset(statement);
  }
  return sqlite3_finalize(statement);
}

int insert_strings(sqlite3 *db, const char *sql, const char **texts, long long rows) {
  sqlite3_stmt *statement;
  if (sqlite3_prepare_v2(db, sql, -1, &statement, 0)) return 1;
  for (long long row = 0; row < rows; row++) {
    sqlite3_bind_int64(statement, 1, row);
    sqlite3_bind_text(statement, 2, texts[row], -1, 0);
    if (sqlite3_step(statement) != 101) return 2;
    sqlite3_reset(statement);
  }
  return sqlite3_finalize(statement);
}
"""


def make_input(rows: int, *, varied: bool) -> tuple[list[str], dict[str, Columns]]:
    """Return the strings and the columns of both tables, in the file's order.

    Args:
        rows: Number of rows of each table.
        varied: Whether columns that are the same in every row of a real recording vary as well.
    """
    rng = np.random.default_rng(2026)

    def some(high: int) -> NDArray[np.int64]:
        return rng.integers(0, high, rows)

    def same(value: int) -> NDArray[np.int64]:
        return some(2**31) if varied else np.full(rows, value)

    start_ns = 1_700_000_000_000_000_000 + np.cumsum(rng.integers(500, 20_000, rows))
    task = {
        "startNs": start_ns,
        "endNs": start_ns + some(500),
        "deviceId": same(0),
        "connectionId": some(2**31),
        "globalTaskId": np.arange(rows),
        "globalPid": same(4242),
        "taskType": some(12),
        "contextId": same(2**32 - 1),
        "streamId": some(64),
        "taskId": some(2**16),
        "modelId": same(2**32 - 1),
    }
    compute = {
        "name": some(STRINGS),
        "globalTaskId": np.arange(rows),
        "blockNum": some(48),
        "mixBlockNum": same(0),
        "taskType": some(4),
        "opType": some(300),
        "inputFormats": some(30),
        "inputDataTypes": some(30),
        "inputShapes": some(STRINGS),
        "outputFormats": some(30),
        "outputDataTypes": some(30),
        "outputShapes": some(STRINGS),
        "attrInfo": same(7),
        "opState": some(3),
        "hf32Eligible": same(7),
    }
    strings = [f"aclnnOperation_{number}_{number * 7919 % 1009}x64" for number in range(STRINGS)]
    return strings, {"TASK": task, "COMPUTE_TASK_INFO": compute}


def write_by_writer(
    path: Path, strings: list[str], tables: dict[str, Columns]
) -> Callable[[], None]:
    """Return what writes the input through `store.writer`."""
    from unified_prof.store.writer import ReportWriter

    def work() -> None:
        with ReportWriter(path) as report:
            report.strings.intern_all(strings)
            for table, columns in tables.items():
                report.write(table, columns)

    return work


def write_by_executemany(
    path: Path, strings: list[str], tables: dict[str, Columns]
) -> Callable[[], None]:
    """Return what writes the input by `sqlite3.executemany` of tuples that are ready."""
    ready = {
        table: list(zip(*(column.tolist() for column in columns.values()), strict=True))
        for table, columns in tables.items()
    }
    ready["STRING_IDS"] = list(enumerate(strings))

    def work() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("BEGIN")
            for table, rows in ready.items():
                db.execute(_spec(table).create_sql)
                db.executemany(_insert(table), rows)
                for _, create_index in _spec(table).indexes:
                    db.execute(create_index)
            db.execute("COMMIT")

    return work


def write_by_c(path: Path, strings: list[str], tables: dict[str, Columns]) -> Callable[[], None]:
    """Return what writes the input by a C program that binds and steps row by row."""
    library = ctypes.CDLL(os.environ["BENCH_STORE_LIBRARY"])
    database = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(strings))(*(text.encode() for text in strings))
    pointers = {
        table: (ctypes.c_void_p * len(columns))(*(c.ctypes.data for c in columns.values()))
        for table, columns in tables.items()
    }

    def must(code: int) -> None:
        if code:
            raise SystemExit(f"the C program failed with {code}")

    def run(sql: str) -> None:
        must(library.run(database, sql.encode()))

    def work() -> None:
        must(library.open_db(bytes(path), ctypes.byref(database)))
        run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")
        for table, columns in tables.items():
            run(_spec(table).create_sql)
            rows = ctypes.c_longlong(len(columns["globalTaskId"]))
            insert = _insert(table).encode()
            must(library.insert_integers(database, insert, pointers[table], len(columns), rows))
            for _, create_index in _spec(table).indexes:
                run(create_index)
        run(_spec("STRING_IDS").create_sql)
        insert = _insert("STRING_IDS").encode()
        must(library.insert_strings(database, insert, texts, ctypes.c_longlong(len(strings))))
        run("COMMIT")
        must(library.close_db(database))

    return work


CONTENDERS = {"writer": write_by_writer, "executemany": write_by_executemany, "c": write_by_c}


def _spec(table: str) -> catalogue.TableSpec:
    found = layouts.layout(catalogue.resolve(catalogue.MSPROF, "documented"), table)
    assert found is not None
    return found.spec


def _insert(table: str) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(_spec(table).columns))})"


def measure(name: str, folder: Path, rows: int, *, varied: bool) -> dict[str, float]:
    """Let one contender write the input once, in this process."""
    path = folder / f"{name}.db"
    work = CONTENDERS[name](path, *make_input(rows, varied=varied))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = _resident_kb("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    result = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "memory_mb": (_resident_kb("VmHWM") - before) / 1024,
    }
    with closing(sqlite3.connect(path)) as db:
        for table, number in (("TASK", rows), ("COMPUTE_TASK_INFO", rows), ("STRING_IDS", STRINGS)):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == number
    path.unlink()
    return result


def _resident_kb(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def _build_library(folder: Path) -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, library = folder / "bind.c", folder / "bind.so"
    source.write_text(C_SOURCE)
    # The SQLite that Python itself uses, so that only the way of calling it differs.
    import _sqlite3

    linked = subprocess.run(["ldd", _sqlite3.__file__], capture_output=True, text=True).stdout
    sqlite = [word for word in linked.split() if "libsqlite3" in word and word.startswith("/")]
    command = [
        compiler,
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        library,
        source,
        *(sqlite or ["-lsqlite3"]),
    ]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        return None
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--varied", action="store_true", help="no column is constant")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true", help="figures as JSON on stdout")
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(
            json.dumps(measure(options.only, options.folder, options.rows, varied=options.varied))
        )
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        figures = compare(Path(name), options.rows, options.rounds, varied=options.varied)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    own = figures["writer"]["cpu_s"]
    for contender, figure in figures.items():
        print(
            f"{contender:12} {figure['cpu_s']:6.2f} s CPU {figure['wall_s']:6.2f} s wall "
            f"{figure['memory_mb']:6.0f} MB   writer is {figure['cpu_s'] / own:.2f} times as fast"
        )


def compare(folder: Path, rows: int, rounds: int, *, varied: bool) -> dict[str, Any]:
    """Return every contender's medians over interleaved rounds."""
    environment = dict(os.environ)
    contenders = list(CONTENDERS)
    if library := _build_library(folder):
        environment["BENCH_STORE_LIBRARY"] = str(library)
    else:
        print("no C compiler, or no SQLite to link with: left out", file=sys.stderr)
        contenders.remove("c")
    results: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in contenders:
            command = [sys.executable, __file__, "--only", name, "--rows", str(rows)]
            command += ["--folder", str(folder), *(["--varied"] if varied else [])]
            run = subprocess.run(
                command, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            results[name].append(json.loads(run.stdout))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }


if __name__ == "__main__":
    main()
