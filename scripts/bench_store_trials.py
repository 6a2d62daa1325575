"""Rejected ways to write a report, for `bench_store.py --trials`.

`apsw` runs the writer's statement on another driver. In `table`, SQLite reads the columns itself
through a virtual table in C, which is the upper limit for any way of inserting.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROWS_PER_STATEMENT = 400

C_TABLE = r"""
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { sqlite3_vtab base; sqlite3_int64 **columns; int width; sqlite3_int64 rows; } Table;
typedef struct { sqlite3_vtab_cursor base; sqlite3_int64 row; } Cursor;

static int connect_(sqlite3 *db, void *aux, int argc, const char *const *argv, sqlite3_vtab **out,
                    char **error) {
  Table *table = calloc(1, sizeof *table);
  table->columns = (sqlite3_int64 **)strtoull(argv[3], 0, 10);
  table->width = atoi(argv[4]);
  table->rows = atoll(argv[5]);
  char sql[4096] = "CREATE TABLE x (c0";
  for (int column = 1; column < table->width; column++)
    snprintf(sql + strlen(sql), 16, ", c%d", column);
  strcat(sql, ")");
  *out = &table->base;
  return sqlite3_declare_vtab(db, sql);
}
static int disconnect(sqlite3_vtab *table) { free(table); return SQLITE_OK; }
static int best_index(sqlite3_vtab *table, sqlite3_index_info *info) { return SQLITE_OK; }
static int open_(sqlite3_vtab *table, sqlite3_vtab_cursor **out) {
  *out = calloc(1, sizeof(Cursor));
  return SQLITE_OK;
}
static int close_(sqlite3_vtab_cursor *cursor) { free(cursor); return SQLITE_OK; }
static int filter(sqlite3_vtab_cursor *cursor, int number, const char *name, int argc,
                  sqlite3_value **argv) {
  ((Cursor *)cursor)->row = 0;
  return SQLITE_OK;
}
static int next(sqlite3_vtab_cursor *cursor) { ((Cursor *)cursor)->row++; return SQLITE_OK; }
static int eof(sqlite3_vtab_cursor *cursor) {
  return ((Cursor *)cursor)->row >= ((Table *)cursor->pVtab)->rows;
}
static int column(sqlite3_vtab_cursor *cursor, sqlite3_context *context, int number) {
  sqlite3_result_int64(context,
                       ((Table *)cursor->pVtab)->columns[number][((Cursor *)cursor)->row]);
  return SQLITE_OK;
}
static int row_id(sqlite3_vtab_cursor *cursor, sqlite3_int64 *out) {
  *out = ((Cursor *)cursor)->row;
  return SQLITE_OK;
}
static sqlite3_module module = {0, connect_, connect_, best_index, disconnect, disconnect, open_,
                                close_, filter, next, eof, column, row_id};

int add_module(sqlite3 *db) { return sqlite3_create_module(db, "columns_of", &module, 0); }
"""


def write_by_apsw(path: Path, strings: list[str], tables: Any) -> Callable[[], None]:
    """Return a function that writes the input with apsw, many rows per statement."""
    import apsw
    import bench_store

    def work() -> None:
        db = apsw.Connection(str(path))
        for setting in ("journal_mode = OFF", "synchronous = OFF", "page_size = 16384"):
            db.execute(f"PRAGMA {setting}").fetchall()
        db.execute("BEGIN")
        for table, columns in tables.items():
            spec = bench_store.spec_of(table)
            db.execute(spec.create_sql)
            for _, create_index in spec.indexes:
                db.execute(create_index)
            block = np.stack(list(columns.values()), axis=1)
            marks = ",".join([f"({','.join('?' * len(columns))})"] * ROWS_PER_STATEMENT)
            insert, size = f"INSERT INTO {table} VALUES {marks}", ROWS_PER_STATEMENT
            for start in range(0, len(block) - size + 1, size):
                db.execute(insert, block[start : start + size].ravel().tolist())
            rest = block[len(block) - len(block) % size :]
            db.executemany(bench_store.insert_of(table), rest.tolist())
        db.execute(bench_store.spec_of("STRING_IDS").create_sql)
        db.executemany(bench_store.insert_of("STRING_IDS"), enumerate(strings))
        db.execute("COMMIT")
        db.close()

    return work


def write_by_table(path: Path, strings: list[str], tables: Any) -> Callable[[], None]:
    """Return a function that writes the input by INSERT ... SELECT from a virtual table."""
    import bench_store

    library = ctypes.CDLL(os.environ["BENCH_STORE_TABLE_LIBRARY"])
    program = bench_store.CProgram(path)
    pointers = {table: bench_store.pointers(columns) for table, columns in tables.items()}

    def work() -> None:
        program.open()
        bench_store.must(library.add_module(program.database))
        for table, columns in tables.items():
            program.create(table)
            for _, create_index in bench_store.spec_of(table).indexes:
                program.run(create_index)
            address = ctypes.addressof(pointers[table])
            rows = len(columns["globalTaskId"])
            arguments = f"{address}, {len(columns)}, {rows}"
            program.run(f"CREATE VIRTUAL TABLE temp.source USING columns_of({arguments})")
            program.run(f"INSERT INTO {table} SELECT * FROM temp.source; DROP TABLE temp.source")
        program.insert_strings(strings)
        program.close()

    return work


def contenders() -> dict[str, Any]:
    """Return the trials that can run here."""
    found: dict[str, Any] = {}
    if find_spec("apsw"):
        found["apsw"] = write_by_apsw
    if "BENCH_STORE_TABLE_LIBRARY" in os.environ:
        found["table"] = write_by_table
    return found
