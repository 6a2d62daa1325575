"""Commands under test: arguments, inputs, outputs, and documented exit codes."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.backends import stand_in_msprof
from tests.cluster import ranks
from tests.migrate import databases
from tests.prof_generator import Recipe, generate

TRAINING = """\
import torch
try:
    import torch._dynamo
except (OSError, MemoryError):
    raise SystemExit(9)  # it needs a directory for temporary files
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(16):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ON_NPU = """\
import os
from tests.backends import stand_in_acl
try:
    stand_in_acl.init(index=os.getpid())  # the name of a recording is unique
except OSError:
    raise SystemExit(9)  # the disk is full
"""
OLD = "1.2.0_20250922"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line; `{in}` is the directory of inputs, the current directory that of outputs."""

    name: str
    line: str
    # Exit codes that its help documents, besides 0.
    codes: tuple[int, ...]
    # Exit codes if a run that the command starts meets the fault.
    run_codes: tuple[int, ...] = ()
    # Input -> its copy, which the command changes.
    changes: tuple[tuple[str, str], ...] = ()
    # Exit codes of the command without faults.
    success: tuple[int, ...] = (0,)
    # The option that replaces existing outputs.
    replace: str = "--force"
    # True if the output is one file, which may exist before.
    is_file: bool = False
    # True if the sizes of outputs do not depend on the run.
    is_constant: bool = True
    # Weight among trials: commands that take seconds run less often.
    weight: int = 4

    @property
    def output(self) -> str:
        """Name of the file or directory that the command writes."""
        return next(word for word in self.line.split() if word.startswith("out"))

    def words(self, inputs: Path) -> list[str]:
        """Return the arguments."""
        return self.line.replace("{in}", str(inputs)).split()

    def replacing(self, words: list[str]) -> list[str]:
        """Return the arguments with the option that replaces existing outputs."""
        at = words.index("-o") if "-o" in words else len(words)
        return [*words[:at], self.replace, *words[at:]] if self.replace else words


_REPORT = (2, 6, 7, 9)
COMMANDS = (
    Command(
        "run (cpu)",
        "run --backend cpu -o out {in}/train.py",
        (2, 4, 5, 9, 130),
        run_codes=(-6,),  # torch aborts if memory runs out
        is_constant=False,
        weight=1,
    ),
    Command(
        "run (npu)",
        "run --backend npu -o out {in}/npu.py",
        (2, 4, 5, 9, 130),
        is_constant=False,
        weight=2,
    ),
    Command("convert", "convert {in}/traces/rank0.json -o out.db", (1, 2, 6, 9), is_file=True),
    Command("convert PROF_*", "convert {in}/prof -o out", (1, 2, 6, 9)),
    Command("convert --jobs", "convert {in}/traces -o out --jobs 2", (1, 2, 6, 9), weight=2),
    Command("report", "report {in}/msprof_1.db --json", _REPORT, replace=""),
    Command("report -o", "report {in}/msprof_1.db -o out.html", _REPORT, is_file=True),
    Command("advise -o", "advise {in}/msprof_1.db -o out.json", _REPORT, is_file=True),
    Command("export (timeline)", "export {in}/msprof_1.db -o out.json", _REPORT, is_file=True),
    Command("export (tables)", "export {in}/msprof_1.db -o out --layout parquet", _REPORT),
    Command("export (mindstudio)", "export {in}/msprof_1.db -o out", _REPORT),
    Command(
        "trace (cluster)", "trace {in}/run.cluster --ranks 0,1 -o out.json", _REPORT, is_file=True
    ),
    Command("diff", "diff {in}/run_time.sqlite {in}/slow.sqlite", (2, 6, 7), replace=""),
    Command(
        "gate -o",
        "gate {in}/run_time.sqlite {in}/slow.sqlite -o out.xml",
        (1, 2, 3, 6, 7, 9),
        success=(3,),
        is_file=True,
    ),
    Command(
        "gate --until-sure",
        "gate {in}/base {in}/new --until-sure train.py --rounds 3 -o out.xml",
        (1, 2, 3, 5, 6, 7, 9),
        run_codes=(5,),
        success=(0, 1, 3),
        is_file=True,
        is_constant=False,
        weight=1,
    ),
    Command(
        "baseline save",
        "baseline save main {in}/run_time.sqlite --store store.sqlite",
        (2, 6, 7, 9),
        is_constant=False,  # each run adds a row
        changes=(("store.sqlite", "store.sqlite"),),
        replace="",
    ),
    Command("cluster build", "cluster build {in}/ranks -o out --jobs 2", (2, 6, 7, 8, 9, 10)),
    Command(
        "cluster build (Dask)",
        "cluster build {in}/ranks -o out --dask local:2",
        (2, 6, 7, 8, 9, 10),
        weight=1,
    ),
    Command(
        "cluster report -o", "cluster report {in}/run.cluster -o out.html", _REPORT, is_file=True
    ),
    Command(
        "db upgrade", "db upgrade old.db", (7, 8, 9), changes=(("old.db", "old.db"),), replace=""
    ),
    Command("db create", "db create out.db", (2, 9), is_file=True, weight=1),
)


def make_inputs(folder: Path, uprof: Callable[[list[str], Path], None]) -> None:
    """Write the inputs of all commands.

    Args:
        folder: New directory.
        uprof: Runs a command in a directory.
    """
    folder.mkdir()
    training_step(folder / "msprof_1.db")
    run_time_report(folder / "run_time.sqlite")
    run_time_report(folder / "slow.sqlite", (("linear", 2.5, 3.0, [("model.py", 12)]),))
    memory_report(folder / "memory.sqlite")
    ranks.databases(folder / "ranks", 4)
    (folder / "ranks-traces").rename(folder / "traces")
    generate(folder / "prof", Recipe(operators=50, collectives=2))
    databases.make(
        folder / "old.db",
        OLD,
        {
            "STRING_IDS": [(number, f"text {number}") for number in range(1000)],
            "COMPUTE_TASK_INFO": [(1, number, 24, *range(12)) for number in range(300)],
        },
    )
    uprof(["cluster", "build", "ranks", "-o", "run.cluster", "-q"], folder)
    uprof(["baseline", "save", "main", "slow.sqlite", "--store", "store.sqlite", "-q"], folder)
    for place in (folder, folder / "base", folder / "new"):
        place.mkdir(exist_ok=True)
        (place / "train.py").write_text(TRAINING)
    (folder / "npu.py").write_text(ON_NPU)
    stand_in_msprof.install(folder / "bin")


def damage(path: Path, sizes: Set[object] | None = None) -> str:
    """Return why a finished file is incomplete, or an empty string.

    Args:
        path: Output of a command.
        sizes: Sizes of such files without faults.
    """
    try:
        size = size_of(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if sizes is None or size in sizes else f"has {size}, expected one of {sizes}"


def size_of(path: Path) -> object:
    """Return the number of rows, lines or elements of a complete file, whatever its values.

    Raises:
        Exception: the file is incomplete.
    """
    if path.suffix not in _PARSERS or any(part in ("host", "device_0") for part in path.parts):
        return None  # raw data of another program
    return _PARSERS[path.suffix](path)


def _database(path: Path) -> frozenset[tuple[str, int]]:
    # SQLite undoes an interrupted transaction of an existing database when it opens it.
    mode = "rw" if path.with_name(f"{path.name}-journal").exists() else "ro"
    with closing(sqlite3.connect(f"file:{path}?mode={mode}", uri=True)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert tables, "no table"
        return frozenset(
            (name, db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for (name,) in tables
        )


def _json(path: Path) -> int:
    return len(json.loads(path.read_bytes()))


def _markup(path: Path) -> int:
    lines = path.read_text().rstrip().splitlines()
    assert lines[-1].endswith(("</html>", "</testsuites>")), "the last element is not closed"
    return len(lines)


def _parquet(path: Path) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.read_table(path).num_rows)


def _lines(path: Path) -> int:
    data = path.read_bytes()
    assert data.endswith(b"\n"), "the last line is incomplete"
    return data.count(b"\n")


_PARSERS: dict[str, Callable[[Path], object]] = {
    ".db": _database,
    ".bak": _database,
    ".sqlite": _database,
    ".json": _json,
    ".html": _markup,
    ".xml": _markup,
    ".parquet": _parquet,
    ".csv": _lines,
}


def copy_changed(command: Command, inputs: Path, folder: Path) -> None:
    """Copy the files that the command changes into its directory."""
    for name, copy in command.changes:
        shutil.copy2(inputs / name, folder / copy)
