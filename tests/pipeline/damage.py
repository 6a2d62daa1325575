"""Damage recordings of every kind and check their conversions.

As a program this prints the result as JSON, so that it can run in a separate process:
`python -m tests.pipeline.damage FORM FOLDER ROUNDS`.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.decoders.nsys.test_parquet import as_parquet
from tests.decoders.rocm.builders import as_json, write_json
from tests.pipeline.test_sources import MAKERS
from unified_prof.errors import UprofError
from unified_prof.pipeline import sources
from unified_prof.pipeline.convert import Conversion, convert

Maker = Callable[[Path], Path]


def _parquet(folder: Path) -> Path:
    return as_parquet(MAKERS["nsys"](folder), folder / "run_pqtdir")


def _rocm_json(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return write_json(folder / "results.json", as_json())


def _packed_trace(folder: Path) -> Path:
    trace = MAKERS["kineto"](folder)
    packed = folder / "run.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    return packed


FORMS: dict[str, tuple[str, Maker]] = {
    **{kind: (kind, maker) for kind, maker in MAKERS.items()},
    "nsys-parquet": ("nsys", _parquet),
    "rocm-json": ("rocm", _rocm_json),
    "kineto-gzip": ("kineto", _packed_trace),
}
"""Form of a recording -> kind of its source, and a function that makes a tiny one."""

_SQLITE = b"SQLite format 3\0"
_WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", -1, 2**63 - 1, -(2**63), 10**30, 1e308, -0.5),
    *([], [[]], {}, {"a": [1]}, "9" * 400, "\ud800"),
)
_CELLS: tuple[Any, ...] = (None, "x", b"\xff\0", -1, 2**63 - 1, -(2**63), 1e300, "9" * 400)
_WORD = re.compile(rb"-?\d+")


def cut(data: bytes, chance: random.Random) -> bytes:
    """Drop the end."""
    return data[: chance.randrange(len(data))]


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    """Change a few bits anywhere."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 4, 32))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def blank_block(data: bytes, chance: random.Random) -> bytes:
    """Zero a block, as a sparse copy does."""
    first = chance.randrange(len(data))
    size = min(len(data) - first, chance.choice((16, 512, 4096)))
    return data[:first] + bytes(size) + data[first + size :]


def change_types(data: bytes, chance: random.Random) -> bytes:
    """Replace values by other types and sizes, in a form that can be parsed."""
    if data.startswith(_SQLITE):
        raise ValueError("see `cells_typed_wrong`")
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
        for _ in range(chance.choice((1, 3, 10))):
            _replace(document, chance)
        return json.dumps(document).encode()
    # Text tables and binary records: replace numbers.
    count = len(_WORD.findall(data)) or 1
    wanted = chance.randrange(count)
    seen = iter(range(count + 1))
    value = chance.choice((b"x", b"", b"-1", b"9" * 30, b"1e999", b"nan"))
    return _WORD.sub(lambda found: value if next(seen) == wanted else found[0], data)


def _replace(document: Any, chance: random.Random) -> None:
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return
        key = chance.choice(list(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.9:
            place = inner
            continue
        place[key] = chance.choice(_WRONG)
        return


def change_cell_types(path: Path, chance: random.Random) -> None:
    """Put other types into cells of a database."""
    with closing(sqlite3.connect(path)) as db, db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for _ in range(chance.choice((1, 3, 10))):
            table = chance.choice(tables)
            names = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            column, value = chance.choice(names), chance.choice(_CELLS)
            with suppress(sqlite3.Error):
                db.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": cut,
    "flipped": flip_bits,
    "blanked": blank_block,
    "typed wrong": change_types,
}


def files_of(recording: Path) -> list[Path]:
    """Return the files of a recording that are not empty."""
    if recording.is_file():
        return [recording]
    return sorted(path for path in recording.rglob("*") if path.is_file() and path.stat().st_size)


def ends_between_records(path: Path) -> bool:
    """Return True if a cut file is indistinguishable from a complete one."""
    data = path.read_bytes()
    return not data or data.endswith(b"\n")


def damage_file(recording: Path, damage: str, chance: random.Random) -> Path:
    """Damage one file of a recording and return its path."""
    path = chance.choice(files_of(recording))
    data = path.read_bytes()
    if damage == "typed wrong" and data.startswith(_SQLITE):
        change_cell_types(path, chance)
    else:
        path.write_bytes(DAMAGES[damage](data, chance))
    return path


def damaged_copies(
    form: str, folder: Path, rounds: int
) -> Iterator[tuple[str, Path, Conversion, bool]]:
    """Yield (label, damaged copy, conversion of the intact recording, True if losses must show)."""
    kind, maker = FORMS[form]
    intact = maker(folder / "whole")
    expected = convert(intact, folder / "whole.db", source=sources.by_kind(kind))
    for number in range(rounds):
        for damage in DAMAGES:
            chance = random.Random(f"{form} {damage} {number}")
            copy = folder / "copy" / intact.name
            shutil.rmtree(folder / "copy", ignore_errors=True)
            if intact.is_dir():
                shutil.copytree(intact, copy)
            else:
                copy.parent.mkdir()
                shutil.copy(intact, copy)
            path = damage_file(copy, damage, chance)
            shows = damage == "cut" and not ends_between_records(path)
            yield f"{form}, {path.name} {damage}, round {number}", copy, expected, shows


def main(form: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Convert many damaged recordings; return the errors and numbers of outcomes."""
    source = sources.by_kind(FORMS[form][0])
    errors: list[str] = []
    converted = refused = 0
    for label, copy, expected, shows in damaged_copies(form, folder, rounds):
        try:
            found = convert(copy, folder / "r.db", source=source, force=True)
        except UprofError:
            refused += 1
            continue
        except Exception:
            errors.append(f"{label}: {traceback.format_exc()}")
            continue
        converted += 1
        lost = {
            table: count - found.rows.get(table, 0)
            for table, count in expected.rows.items()
            if found.rows.get(table, 0) < count
        }
        if shows and lost and found.anomalies == expected.anomalies:
            errors.append(f"{label}: rows are lost without an anomaly: {lost}")
    return {"wrong": errors, "converted": converted, "refused": refused, "peak_mb": _peak_mb()}


def _peak_mb() -> int:
    """Return the peak memory of this process; `ru_maxrss` includes its parent's."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
