"""Damages recordings of every kind and checks the conversions.

As a program it prints the result as JSON, so that it can run in a separate process:
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
"""Form of a recording -> kind of source, and a function that makes a tiny one."""

_SQLITE = b"SQLite format 3\0"
_WRONG: tuple[Any, ...] = (
    *(None, True, "x", "", -1, 2**63 - 1, -(2**63), 10**30, 1e308, -0.5),
    *([], [[]], {}, {"a": [1]}, "9" * 400, "\ud800"),
)
_CELLS: tuple[Any, ...] = (None, "x", b"\xff\0", -1, 2**63 - 1, -(2**63), 1e300, "9" * 400)
_WORD = re.compile(rb"-?\d+")


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


def typed_wrong(data: bytes, chance: random.Random) -> bytes:
    """Put other types and sizes in the place of values, in a form that can be parsed."""
    if data.startswith(_SQLITE):
        raise ValueError("see `cells_typed_wrong`")
    with suppress(ValueError, RecursionError):
        document = json.loads(data)
        for _ in range(chance.choice((1, 3, 10))):
            _replace(document, chance)
        return json.dumps(document).encode()
    # Text tables and binary records: numbers, as far as there are some.
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


def cells_typed_wrong(path: Path, chance: random.Random) -> None:
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


WAYS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": cut,
    "flipped": flipped,
    "blanked": blanked,
    "typed wrong": typed_wrong,
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


def damaged(recording: Path, way: str, chance: random.Random) -> Path:
    """Damage one file of a recording; return which."""
    path = chance.choice(files_of(recording))
    data = path.read_bytes()
    if way == "typed wrong" and data.startswith(_SQLITE):
        cells_typed_wrong(path, chance)
    else:
        path.write_bytes(WAYS[way](data, chance))
    return path


def cases(form: str, folder: Path, rounds: int) -> Iterator[tuple[str, Path, Conversion, bool]]:
    """Yield (what is done, a damaged copy, what becomes of it undamaged, whether losses show)."""
    kind, maker = FORMS[form]
    made = maker(folder / "whole")
    whole = convert(made, folder / "whole.db", source=sources.by_kind(kind))
    for number in range(rounds):
        for way in WAYS:
            chance = random.Random(f"{form} {way} {number}")
            copy = folder / "copy" / made.name
            shutil.rmtree(folder / "copy", ignore_errors=True)
            if made.is_dir():
                shutil.copytree(made, copy)
            else:
                copy.parent.mkdir()
                shutil.copy(made, copy)
            what = damaged(copy, way, chance)
            shows = way == "cut" and not ends_between_records(what)
            yield f"{form}, {what.name} {way}, round {number}", copy, whole, shows


def main(form: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Convert many damaged recordings; return what is wrong with what became of them."""
    source = sources.by_kind(FORMS[form][0])
    wrong: list[str] = []
    converted = refused = 0
    for what, copy, whole, shows in cases(form, folder, rounds):
        try:
            found = convert(copy, folder / "r.db", source=source, force=True)
        except UprofError:
            refused += 1
            continue
        except Exception:
            wrong.append(f"{what}: {traceback.format_exc()}")
            continue
        converted += 1
        lost = {
            table: count - found.rows.get(table, 0)
            for table, count in whole.rows.items()
            if found.rows.get(table, 0) < count
        }
        if shows and lost and found.anomalies == whole.anomalies:
            wrong.append(f"{what}: rows are lost without a word: {lost}")
    return {"wrong": wrong, "converted": converted, "refused": refused, "peak_mb": _peak_mb()}


def _peak_mb() -> int:
    """Return the most memory that this process had; `ru_maxrss` counts its parent's as well."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
