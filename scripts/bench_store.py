"""Compare `store.writer` with other ways to write a database.

    python scripts/bench_store.py [--rows 2000000] [--rounds 5] [--varied] [--trials] [--json]

Every contender writes the same TASK (with its index), COMPUTE_TASK_INFO and STRING_IDS to a new
file: `writer` from columns, `executemany` from prepared tuples, `c` with a C program that binds and
steps row by row (compiled here; skipped without a compiler). Only `writer` also verifies and syncs
its file. Contenders alternate, and each measurement is a separate process. Times are CPU seconds
without creating the input; memory is the maximum resident size above that of the input.
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

from unified_prof.schema import catalogue
from unified_prof.sqlite import reader

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
        varied: If True, columns that are constant in real recordings vary as well.
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
    """Return a function that writes the input with `store.writer`."""
    from unified_prof.sqlite.writer import ReportWriter

    def work() -> None:
        with ReportWriter(path) as report:
            report.strings.intern_all(strings)
            for table, columns in tables.items():
                report.write(table, columns)

    return work


def write_by_executemany(
    path: Path, strings: list[str], tables: dict[str, Columns]
) -> Callable[[], None]:
    """Return a function that writes the input with `sqlite3.executemany`."""
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
                db.execute(spec_of(table).create_sql)
                db.executemany(insert_of(table), rows)
                for _, create_index in spec_of(table).indexes:
                    db.execute(create_index)
            db.execute("COMMIT")

    return work


class CProgram:
    """The compiled C functions and their database."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(os.environ["BENCH_STORE_LIBRARY"])
        self._path = path
        self.database = ctypes.c_void_p()

    def open(self) -> None:
        """Create the database and begin a transaction."""
        must(self._library.open_db(bytes(self._path), ctypes.byref(self.database)))
        self.run("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN")

    def run(self, sql: str) -> None:
        """Run SQL without a result."""
        must(self._library.run(self.database, sql.encode()))

    def create(self, table: str) -> None:
        """Create one table."""
        self.run(spec_of(table).create_sql)

    def insert(self, table: str, columns: Any, rows: int) -> None:
        """Insert rows of integers, bound one by one."""
        insert = insert_of(table).encode()
        width, count = len(columns), ctypes.c_longlong(rows)
        must(self._library.insert_integers(self.database, insert, columns, width, count))

    def insert_strings(self, strings: list[str]) -> None:
        """Create and fill STRING_IDS."""
        self.create("STRING_IDS")
        texts = (ctypes.c_char_p * len(strings))(*(text.encode() for text in strings))
        insert, count = insert_of("STRING_IDS").encode(), ctypes.c_longlong(len(strings))
        must(self._library.insert_strings(self.database, insert, texts, count))

    def close(self) -> None:
        """Commit and close."""
        self.run("COMMIT")
        must(self._library.close_db(self.database))


def must(code: int) -> None:
    if code:
        raise SystemExit(f"the C program failed with {code}")


def pointers(columns: Columns) -> Any:
    """Return the C array of pointers to the columns."""
    return (ctypes.c_void_p * len(columns))(*(array.ctypes.data for array in columns.values()))


def write_by_c(path: Path, strings: list[str], tables: dict[str, Columns]) -> Callable[[], None]:
    """Return a function that writes the input with the C program."""
    program = CProgram(path)
    columns_of = {table: pointers(columns) for table, columns in tables.items()}

    def work() -> None:
        program.open()
        for table, columns in tables.items():
            program.create(table)
            program.insert(table, columns_of[table], len(columns["globalTaskId"]))
            for _, create_index in spec_of(table).indexes:
                program.run(create_index)
        program.insert_strings(strings)
        program.close()

    return work


CONTENDERS = {"writer": write_by_writer, "executemany": write_by_executemany, "c": write_by_c}


def contenders() -> dict[str, Any]:
    """Return the contenders that can run here, trials last."""
    import bench_store_trials

    return CONTENDERS | bench_store_trials.contenders()


def spec_of(table: str) -> catalogue.TableSpec:
    found = reader.layout(catalogue.resolve(catalogue.MSPROF, "documented"), table)
    assert found is not None
    return found.spec


def insert_of(table: str) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * len(spec_of(table).columns))})"


def measure(name: str, folder: Path, rows: int, *, varied: bool) -> dict[str, float]:
    """Let one contender write the input once, in this process."""
    path = folder / f"{name}.db"
    work = contenders()[name](path, *make_input(rows, varied=varied))
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
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


def _build_library(folder: Path, name: str, source: str) -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    # Python's SQLite library, so that only the calls differ.
    import _sqlite3

    linked = subprocess.run(["ldd", _sqlite3.__file__], capture_output=True, text=True).stdout
    sqlite = [word for word in linked.split() if "libsqlite3" in word and word.startswith("/")]
    code, library = folder / f"{name}.c", folder / f"{name}.so"
    code.write_text(source)
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", library, code, *(sqlite or ["-lsqlite3"])]
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        return None
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--varied", action="store_true", help="let all columns vary")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--trials", action="store_true", help="also rejected implementations")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(
            json.dumps(measure(options.only, options.folder, options.rows, varied=options.varied))
        )
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        figures = compare(Path(name), options)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    own = figures["writer"]["cpu_s"]
    for contender, figure in figures.items():
        print(
            f"{contender:12} {figure['cpu_s']:6.2f} s CPU {figure['wall_s']:6.2f} s wall "
            f"{figure['memory_mb']:6.0f} MB   writer is {figure['cpu_s'] / own:.2f} times as fast"
        )


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return every contender's medians over interleaved rounds."""
    import bench_store_trials

    names = list(CONTENDERS)
    if library := _build_library(folder, "bind", C_SOURCE):
        os.environ["BENCH_STORE_LIBRARY"] = str(library)
        table = _build_library(folder, "table", bench_store_trials.C_TABLE)
        if table and options.trials:
            os.environ["BENCH_STORE_TABLE_LIBRARY"] = str(table)
    else:
        print("skipped: no C compiler or SQLite library", file=sys.stderr)
        names.remove("c")
    if options.trials:
        names += bench_store_trials.contenders()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            command = [sys.executable, __file__, "--only", name, "--rows", str(options.rows)]
            command += ["--folder", str(folder), *(["--varied"] if options.varied else [])]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[name].append(json.loads(run.stdout))
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in results.items()
    }


if __name__ == "__main__":
    main()
