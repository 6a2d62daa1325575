"""Mutations of recordings: damaged bytes, wrong types, hostile names and documents without limits.

A mutator changes one file in place, with a random generator, and returns False if it does not apply
to the file. `MUTATORS` lists those of files, `FOLDER_MUTATORS` those of directories.
"""

import json
import os
import pickle
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from unified_prof.decoders import compression

Mutator = Callable[[Path, random.Random], bool]

SQLITE = b"SQLite format 3\0"
# Texts that may run as formulas, scripts or terminal commands, or lead to other paths.
HOSTILE_NAMES = (
    '=HYPERLINK("http://e","x")',
    "+1+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(A1)",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><svg onload=alert(1)>",
    "[x](javascript:alert(1))",
    "| a | b |\n|---|---|",
    "@everyone #1",
    "\x1b]0;title\x07",
    "\x1b[31mred",
    "\u202egnp.exe",
    "../../../../tmp/uprof-hostile",
    "/etc/passwd",
    "a/b\\c:d*e?f",
    "'; DROP TABLE TASK; --",
    "name\r\nX-Header: 1",
    "nul\0byte",
    "{{7*7}}${7*7}%s%n{0}",
    "x" * 100_000,
)
WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", -1, 0, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 1e308, -0.5),
    *([], [[]], {}, {"a": [1]}, "9" * 400, "\ud800", "1e999", float("inf"), float("nan")),
)
_CELLS: tuple[Any, ...] = (
    *(None, "x", b"\xff\0", -1, 2**31, 2**63 - 1, -(2**63), 1e300, "9" * 400, float("inf")),
    *("x" * 100_000, "{" * 5_000, "[[[[", "12", 2**62, 1.5, '{"Gpus": {"Id": []}}'),
    *("ProfilerStep#999999999999999999999", "aten::x, seq = 9, sizes = [[[],[["),
)
_NUMBER = re.compile(rb"-?\d+")
_NUMBERS = (b"x", b"", b"-1", b"9" * 30, b"1e999", b"nan", b"0", b"9" * 100_000, b"0x1F")
_MAX_DOCUMENT = 1 << 22


# ---- bytes


def cut(data: bytes, chance: random.Random) -> bytes:
    """Lose the end."""
    return data[: chance.randrange(len(data))]


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Change a few bits anywhere."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 4, 32))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def blanked(data: bytes, chance: random.Random) -> bytes:
    """Lose a block, as a sparse copy does."""
    first = chance.randrange(len(data))
    size = min(len(data) - first, chance.choice((16, 512, 4096)))
    return data[:first] + bytes(size) + data[first + size :]


def moved(data: bytes, chance: random.Random) -> bytes:
    """Copy a block to another place: over the bytes there, or between them."""
    size = min(len(data), chance.choice((1, 8, 100, 512, 4096)))
    source, target = (chance.randrange(len(data) - size + 1) for _ in range(2))
    block = data[source : source + size] * chance.choice((1, 1, 1, 50))
    replaced = chance.choice((0, size))
    return data[:target] + block + data[target + replaced :]


def other_numbers(data: bytes, chance: random.Random) -> bytes:
    """Replace a number of a text."""
    count = len(_NUMBER.findall(data)) or 1
    wanted = chance.randrange(count)
    seen = iter(range(count + 1))
    value = chance.choice(_NUMBERS)
    return _NUMBER.sub(lambda found: value if next(seen) == wanted else found[0], data)


def hostile_text(data: bytes, chance: random.Random) -> bytes:
    """Replace a word of a text by a hostile name."""
    words = list(re.finditer(rb"[A-Za-z_]{3,}", data))
    if not words:
        return data
    found = chance.choice(words)
    name = chance.choice(HOSTILE_NAMES).encode("utf-8", "surrogatepass")
    return data[: found.start()] + name + data[found.end() :]


def _of_bytes(change: Callable[[bytes, random.Random], bytes]) -> Mutator:
    def mutate(path: Path, chance: random.Random) -> bool:
        path.write_bytes(change(path.read_bytes(), chance))
        return True

    return mutate


# ---- documents: JSON and pickles, also compressed


def _read_document(path: Path) -> tuple[Any, Callable[[Any], bytes]] | None:
    """Return the document in a file, and a function that encodes one; None if it is neither."""
    data = path.read_bytes()
    if data.startswith(b"\x80") and path.suffix == ".pickle":
        with suppress(Exception):
            return pickle.loads(data), pickle.dumps  # our own file
        return None
    if compression.format_of(data) is not None or len(data) > _MAX_DOCUMENT:
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(data), lambda document: json.dumps(document).encode()
    return None


def _place(document: Any, chance: random.Random) -> tuple[Any, Any] | None:
    """Return a random container in a document, and one of its keys."""
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return None
        key = chance.choice(list(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.9:
            place = inner
            continue
        return place, key


def _of_document(
    change: Callable[[Any, Any, random.Random], None], times: tuple[int, ...]
) -> Mutator:
    def mutate(path: Path, chance: random.Random) -> bool:
        found = _read_document(path)
        if found is None or not isinstance(found[0], dict | list):
            return False
        document, encode = found
        for _ in range(chance.choice(times)):
            place = _place(document, chance)
            if place is not None:
                change(*place, chance)
        path.write_bytes(encode(document))
        return True

    return mutate


def _other_type(place: Any, key: Any, chance: random.Random) -> None:
    place[key] = deepcopy(chance.choice(WRONG))  # later mutations change it


def _hostile_value(place: Any, key: Any, chance: random.Random) -> None:
    name = chance.choice(HOSTILE_NAMES)
    if isinstance(place, dict) and chance.random() < 0.2:
        place[name] = place.pop(key)
    else:
        place[key] = name


def _without(place: Any, key: Any, chance: random.Random) -> None:
    del place[key]


def _repeated(place: Any, key: Any, chance: random.Random) -> None:
    if isinstance(place, list):
        place[key:key] = [place[key]] * chance.choice((1, 10, 1000))
    else:
        place |= {f"{key}{number}": place[key] for number in range(chance.choice((1, 100)))}


def _nested(place: Any, key: Any, chance: random.Random) -> None:
    value = place[key]
    for _ in range(chance.choice((1, 10, 400))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    place[key] = value


def duplicate_keys(path: Path, chance: random.Random) -> bool:
    """Give a JSON object the same key twice, with another value."""
    data = path.read_bytes()
    found = list(re.finditer(rb'"(\w+)": ?("[^"\\]*"|-?\d[\d.]*)', data))
    if not found or _read_document(path) is None:
        return False
    one = chance.choice(found)
    value = chance.choice((b'"x"', b"-1", b"null", b"[]", b"{}", b"1e400"))
    again = one[0] + b', "' + one[1] + b'": ' + value
    path.write_bytes(data[: one.start()] + again + data[one.end() :])
    return True


# ---- databases


def _tables(db: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return [name for (name,) in db.execute(query)]


def _of_database(change: Callable[[sqlite3.Connection, str, str, random.Random], None]) -> Mutator:
    def mutate(path: Path, chance: random.Random) -> bool:
        with path.open("rb") as file:
            if file.read(16) != SQLITE:
                return False
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db, db:
            for _ in range(chance.choice((1, 1, 3, 10))):
                tables = _tables(db)
                if not tables:
                    break
                table = chance.choice(tables)
                names = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
                with suppress(sqlite3.Error):
                    change(db, table, chance.choice(names), chance)
        return True

    return mutate


def _cell(db: sqlite3.Connection, table: str, column: str, chance: random.Random) -> None:
    value = chance.choice((*_CELLS, *HOSTILE_NAMES))
    where = chance.choice(("", " WHERE abs(random()) % 2", " WHERE rowid = 1"))
    db.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', (value,))


def _schema(db: sqlite3.Connection, table: str, column: str, chance: random.Random) -> None:
    new = chance.choice(("rowid", "OID", "_rowid_", "x y", "é", "select"))
    statements = (
        f'DROP TABLE "{table}"',
        f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{new}"',
        f'ALTER TABLE "{table}" ADD COLUMN "{new}"',
        f'ALTER TABLE "{table}" RENAME TO "{new}"',
        f'DELETE FROM "{table}"',
        f'INSERT INTO "{table}" SELECT * FROM "{table}"',
        f'CREATE INDEX "{new}" ON "{table}" ("{column}")',
        f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END',
        f'ALTER TABLE "{table}" RENAME TO kept',
    )
    statement = chance.choice(statements)
    db.execute(statement)
    if statement.endswith("kept"):
        select = chance.choice(("SELECT * FROM kept", "SELECT * FROM kept, kept AS other"))
        db.execute(f'CREATE VIEW "{table}" AS {select}')


def _row_ids(db: sqlite3.Connection, table: str, column: str, chance: random.Random) -> None:
    db.execute(f'UPDATE "{table}" SET rowid = rowid * {chance.choice((-1, 1000, 2**40))}')


def pages(path: Path, chance: random.Random) -> bool:
    """Exchange or copy pages of a database, or change their headers and cell pointers."""
    data = bytearray(path.read_bytes())
    if not data.startswith(SQLITE):
        return False
    size = int.from_bytes(data[16:18], "big") or 4096
    size = 65536 if size == 1 else size
    count = len(data) // size
    if count < 2:
        return False
    one, other = (size * chance.randrange(1, count) for _ in range(2))
    kind = chance.randrange(4)
    if kind == 0:
        data[one : one + size] = data[other : other + size]
    elif kind == 1:
        kept = data[one : one + size]
        data[one : one + size] = data[other : other + size]
        data[other : other + size] = kept
    elif kind == 2:
        data[one + chance.randrange(12)] = chance.choice((0, 1, 2, 5, 10, 13, 127, 128, 255))
    else:
        data[one + 8 + chance.randrange(40)] = chance.randrange(256)
    path.write_bytes(data)
    return True


# ---- Parquet and Arrow


def columns(path: Path, chance: random.Random) -> bool:
    """Give a column of a Parquet file another type, other values or another name, or drop it."""
    if path.suffix != ".parquet":
        return False
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError):
        return False
    if not table.num_columns:
        return False
    at = chance.randrange(table.num_columns)
    name, rows = table.column_names[at], table.num_rows
    values: list[Any] = [
        pyarrow.array([chance.choice(HOSTILE_NAMES)] * rows, pyarrow.string()),
        pyarrow.nulls(rows),
        pyarrow.array([chance.choice((2**63 - 1, -(2**63), -1, None))] * rows, pyarrow.int64()),
        pyarrow.array([2**64 - 1] * rows, pyarrow.uint64()),
        pyarrow.array([chance.choice((float("nan"), float("inf"), 1e300, 1.5))] * rows),
        pyarrow.array([[1, 2]] * rows, pyarrow.list_(pyarrow.int64())),
        pyarrow.array([{"a": 1}] * rows, pyarrow.struct([("a", pyarrow.int64())])),
        pyarrow.array([b"\xff\0"] * rows, pyarrow.binary()),
        pyarrow.array([True] * rows, pyarrow.bool_()),
        pyarrow.array(["x"] * rows).dictionary_encode(),
        pyarrow.array([7] * rows, pyarrow.timestamp("ns")),
    ]
    kind = chance.randrange(len(values) + 3)
    if kind < len(values):
        table = table.set_column(at, name, values[kind])
    elif kind == len(values):
        table = table.remove_column(at)
    elif kind == len(values) + 1:
        table = table.rename_columns([*table.column_names[:at], "x", *table.column_names[at + 1 :]])
    else:
        table = table.append_column(name, table.column(at))  # the same name twice
    parquet.write_table(table, path)
    return True


MUTATORS: dict[str, Mutator] = {
    "cut": _of_bytes(cut),
    "flipped": _of_bytes(flipped),
    "blanked": _of_bytes(blanked),
    "moved": _of_bytes(moved),
    "other numbers": _of_bytes(other_numbers),
    "hostile text": _of_bytes(hostile_text),
    "other types": _of_document(_other_type, (1, 3, 10)),
    "hostile values": _of_document(_hostile_value, (1, 3, 10)),
    "removed": _of_document(_without, (1, 3)),
    "repeated": _of_document(_repeated, (1, 2)),
    "nested": _of_document(_nested, (1, 2)),
    "duplicate keys": duplicate_keys,
    "cells": _of_database(_cell),
    "schema": _of_database(_schema),
    "row ids": _of_database(_row_ids),
    "pages": pages,
    "columns": columns,
}


# ---- directories


def _removed(path: Path, folder: Path, chance: random.Random) -> None:
    path.unlink()


def _emptied(path: Path, folder: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _to_folder(path: Path, folder: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _to_pipe(path: Path, folder: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _to_cycle(path: Path, folder: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(chance.choice((path, path.parent, folder, Path("/dev/zero"), Path("/proc"))))


def _to_hole(path: Path, folder: Path, chance: random.Random) -> None:
    os.truncate(path, 1 << 40)


def _exchanged(path: Path, folder: Path, chance: random.Random) -> None:
    other = chance.choice(files_of(folder))
    kept = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def _with_cycle(path: Path, folder: Path, chance: random.Random) -> None:
    (path.parent / "cycle").symlink_to(folder)
    os.mkfifo(path.parent / "pipe.json")


def _renamed(path: Path, folder: Path, chance: random.Random) -> None:
    name = chance.choice(("-rf", "a\nb", "\x1b[31m", "x" * 200, " ", "=1+1", "$(touch x)"))
    path.rename(path.with_name(name + chance.choice(("", path.suffix))))


FOLDER_MUTATORS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "file removed": _removed,
    "file emptied": _emptied,
    "file is a directory": _to_folder,
    "file is a pipe": _to_pipe,
    "file is a link": _to_cycle,
    "file of a terabyte": _to_hole,
    "files exchanged": _exchanged,
    "cycle beside the file": _with_cycle,
    "file renamed": _renamed,
}


def files_of(recording: Path) -> list[Path]:
    """Return the files of a recording that are not empty."""
    if recording.is_file():
        return [recording]
    return sorted(path for path in recording.rglob("*") if path.is_file() and path.stat().st_size)


def mutate(recording: Path, chance: random.Random) -> tuple[str, Path]:
    """Change one file of a recording; return the name of the mutation and the file."""
    path = chance.choice(files_of(recording))
    if recording.is_dir() and chance.random() < 0.2:
        name = chance.choice(list(FOLDER_MUTATORS))
        FOLDER_MUTATORS[name](path, recording, chance)
        return name, path
    names = list(_shuffled(list(MUTATORS), chance))
    for name in names:
        if MUTATORS[name](path, chance):
            return name, path
    raise AssertionError("byte mutators apply to any file")


def _shuffled(names: list[str], chance: random.Random) -> Iterator[str]:
    chance.shuffle(names)
    yield from names
