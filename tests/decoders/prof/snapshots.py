"""Small frozen recordings and the expected text of their databases.

`tests/data/prof/<name>.tar.xz` are recordings that the generator wrote once; later changes of the
generator do not affect them. The text of its database is stored beside each. After an intended
change of output, `python -m tests.decoders.prof.snapshots` rewrites the texts; with
`--recordings` the recordings as well.
"""

import io
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.schema import catalogue
from unified_prof.schema.msprof import references
from unified_prof.sqlite.writer import ReportWriter

FOLDER = Path(__file__).resolve().parents[2] / "data" / "prof"

RECIPES = {
    "stars": Recipe(
        seed=11, operators=6, mix_share=0.4, copies=2, collectives=1, marks=2, allocations=2,
        pmu="PipeUtilization", frequency_changes=2, tasks_before_wrap=2, device_slice_bytes=2000,
    ),
    "counters_v1": Recipe(seed=12, operators=1, threads=1, samples=3, counters=COUNTERS),
    "counters_v2_310b": Recipe(
        seed=13, platform=7, layout_version="2.0", operators=2, pmu="Memory", samples=3,
        counters=COUNTERS, counter_offset=1235, device_mhz=48,
    ),
    "hwts_910a": Recipe(seed=14, platform=1, operators=3, copies=1, sample_pmu="Memory", samples=2),
    "wide_ids_950": Recipe(seed=15, platform=15, operators=3, pmu="PipeUtilization", ended=False),
    "host_only": Recipe(
        seed=16, operators=2, host_only=True, described=False, samples=4, host_usage=HOST_USAGE,
        host_mhz=0,
    ),
}  # fmt: skip

# Tables that are equal in every database, and columns of ids without a meaning in themselves.
_NOT_SHOWN = ("ENUM_", "STRING_IDS")
_BARE_IDS = {("OVERLAP_ANALYSIS", "id"), ("CANN_API", "connectionId")}

_TEXTS_OF_UPROF = {
    *("name", "operation", "category", "kind", "gridDim", "blockDim", "dataType"),
    *("groupDescription", "groupRanks", "inSplit", "outSplit"),
}
_OTHER_IDS = "PYTORCH_API"  # Its connection ids are not those of CANN_API.

# Snapshots show a description instead of an id: the first column is the id.
_MEANINGS = {
    "globalTaskId": "SELECT globalTaskId, deviceId || '.' || streamId || '.' || taskId || '.' ||"
    " contextId || '@' || min(startNs) FROM TASK GROUP BY globalTaskId",
    "connectionId": "SELECT connectionId, 'call of ' || globalTid || '@' || startNs FROM CANN_API",
    "opId": "SELECT opId, 'collective@' || startNs FROM COMMUNICATION_OP",
}


def unpack(name: str, folder: Path) -> Path:
    """Unpack a recording into `folder` and return its directory."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("PROF_*"))


def database_text(recording: Path) -> str:
    """Build a database of a recording and return its rows as text, tables and rows sorted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.db"
        with ReportWriter(path, revision="latest") as report:
            decode_recording(ProfDirectory(recording), report)
        with closing(sqlite3.connect(path)) as database:
            return rows_text(database).replace(str(recording), "PROF")


def rows_text(database: sqlite3.Connection) -> str:
    tables = {
        name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    names = [name for name in tables - {"UPROF_RUN"} if not name.startswith(_NOT_SHOWN)]
    has_texts = "STRING_IDS" in tables
    texts = dict(database.execute("SELECT id, value FROM STRING_IDS")) if has_texts else {}
    known = references(catalogue.resolve(catalogue.MSPROF, "latest"))
    of_texts = {(one.table, one.column) for one in known if one.target_table == "STRING_IDS"}
    meanings = {
        column: dict(database.execute(query))
        if query.rpartition("FROM ")[2].split()[0] in names
        else {}
        for column, query in _MEANINGS.items()
    }
    out = io.StringIO()
    for name in sorted(names):
        cursor = database.execute(f'SELECT * FROM "{name}"')
        columns = [column for column, *_ in cursor.description]
        shown = [place for place, column in enumerate(columns) if (name, column) not in _BARE_IDS]
        lookups = [
            texts
            if (name, columns[place]) in of_texts
            or (name.startswith("UPROF_") and columns[place] in _TEXTS_OF_UPROF)
            else meanings.get(columns[place] if name != _OTHER_IDS else "", {})
            for place in shown
        ]
        rows = sorted(
            " | ".join(_cell(row[place], ids) for place, ids in zip(shown, lookups, strict=True))
            for row in cursor
            if not str(row[0]).startswith("SCHEMA_VERSION")
        )
        if rows:
            out.write(f"{name}: {' | '.join(columns[place] for place in shown)}\n")
            out.writelines(f"  {row}\n" for row in rows)
    return out.getvalue()


def _cell(value: object, texts: dict[int, str]) -> str:
    if isinstance(value, int) and value in texts:
        return texts[value].replace("\r", "\\r").replace("\n", "\\n")
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _write_recordings() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = generate(Path(folder), recipe).path
            with tarfile.open(FOLDER / f"{name}.tar.xz", "w:xz") as archive:
                for file in sorted(path.rglob("*")):
                    archive.add(file, file.relative_to(folder), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def main() -> None:
    """Rewrite the texts."""
    if "--recordings" in sys.argv:
        _write_recordings()
    for name in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            text = database_text(unpack(name, Path(folder)))
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
