"""Watch files: append steps and events of a rank while its program runs, and read them.

Each file is complete after each `append`, also if the process is killed. It uses a rollback
journal, because a write-ahead log requires shared memory, which network file systems do not
provide. A file that exceeds its size limit gets a number, and the next part of the run begins.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import StoreError
from unified_prof.schema import catalogue
from unified_prof.sqlite.atomic import replacing
from unified_prof.sqlite.opening import open_read_only
from unified_prof.sqlite.skyline_writer import fill_run
from unified_prof.sqlite.statements import open_unfinished, reading, writing

# Value of a column without a value.
UNKNOWN = -(1 << 63)
ROTATE_BYTES = 64 << 20
_NAME = re.compile(r"watch_rank(\d+)(?:\.(\d+))?\.db")


class StepRow(NamedTuple):
    """A row of STEP; `schemas/watch` documents the columns."""

    step: int
    start_ns: int
    length_ns: int
    data_ns: int
    forward_ns: int | None
    backward_ns: int | None
    optimizer_ns: int | None
    wait_ns: int
    gc_ns: int
    device_ns: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    samples: int | None
    event: int | None


STEP_COLUMNS = StepRow._fields
# One statement for all rows: the interpreter is not locked for each row again.
_INSERT = "INSERT INTO STEP SELECT {} FROM json_each(?)".format(
    ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(STEP_COLUMNS)))
)


@dataclass(slots=True)
class WatchEvent:
    """A row of EVENT; `schemas/watch` documents the columns."""

    id: int
    time_ns: int
    step: int
    kind: str
    text: str
    capture: str | None = None
    status: str | None = None
    finding: str | None = None


def file_name(rank: int, part: int | None = None) -> str:
    """Return the name of a rank's file; `part` is the number of a finished part, from 1."""
    return f"watch_rank{rank}.db" if part is None else f"watch_rank{rank}.{part:04d}.db"


def rank_and_part(name: str) -> tuple[int, int | None] | None:
    """Return the rank and part in the name of a watch file; None for other names."""
    found = _NAME.fullmatch(name)
    return found and (int(found[1]), None if found[2] is None else int(found[2]))


class WatchFile:
    """Writes the file of one rank; a file of an earlier run becomes a finished part.

    `facts` are rows of UPROF_RUN; from `rotate_bytes` on, a new part begins.

    Raises:
        OutputError: The file cannot be written; also raised by the methods.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        facts: Mapping[str, str | None],
        rotate_bytes: int = ROTATE_BYTES,
    ) -> None:
        self.path = folder / file_name(rank)
        self._rank = rank
        self._facts = dict(facts)
        self._rotate_bytes = rotate_bytes
        if self.path.exists():
            self._keep()
        self._db = self._create()

    def append(self, rows: Sequence[StepRow], events: Iterable[WatchEvent] = ()) -> None:
        """Commit rows and events; an event with a known number replaces the former one."""
        with writing(self.path):
            if self.path.stat().st_size > self._rotate_bytes:
                self._db.close()
                self._keep()
                self._db = self._create()
            with self._db:
                self._db.execute("BEGIN")
                if rows:
                    self._db.execute(_INSERT, (json.dumps(rows),))
                self._db.executemany(
                    "INSERT OR REPLACE INTO EVENT VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [tuple(asdict(event).values()) for event in events],
                )

    def close(self, facts: Mapping[str, str]) -> None:
        """Add facts, such as the exit code, and close the file."""
        with writing(self.path), self._db:
            self._db.executemany("INSERT OR REPLACE INTO UPROF_RUN VALUES (?, ?)", facts.items())
        self._db.close()

    def _create(self) -> sqlite3.Connection:
        with writing(self.path):
            with replacing(self.path) as partial, closing(open_unfinished(partial)) as new:
                new.executescript(catalogue.frozen_text(catalogue.WATCH, "latest"))
                fill_run(new, self._facts, {})
            db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA synchronous = NORMAL")
        return db

    def _keep(self) -> None:
        """Rename the file to the next part."""
        parts = [rank_and_part(path.name) for path in self.path.parent.glob(catalogue.WATCH_FILES)]
        numbers = [part for rank, part in filter(None, parts) if rank == self._rank and part]
        with writing(self.path):
            with closing(sqlite3.connect(self.path)) as db:  # applies the journal of a killed run
                db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self.path.rename(
                self.path.with_name(file_name(self._rank, max(numbers, default=0) + 1))
            )


class RankSteps:
    """Steps and events of one rank in its latest run, in order.

    Attributes:
        facts: Rows of UPROF_RUN of the last part.
        columns: Column of STEP -> int64 values, UNKNOWN for NULL.
        events: Rows of EVENT.
        files: The parts that were read.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.facts: dict[str, str] = {}
        self.columns: dict[str, NDArray[np.int64]] = dict.fromkeys(
            STEP_COLUMNS, np.empty(0, np.int64)
        )
        self.events: list[WatchEvent] = []
        self.files: list[Path] = []

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def is_running(self) -> bool:
        """True if the run has not ended, as far as the file and processes of this host say."""
        if "ended_ns" in self.facts:
            return False
        if self.facts.get("host") == platform.node():
            try:
                os.kill(int(self.facts["pid"]), 0)
            except (ProcessLookupError, KeyError, ValueError, OverflowError):
                return False
            except OSError:  # of another user
                return True
        return True

    def values(self, column: str, *, healthy: bool = False) -> NDArray[np.float64]:
        """Return a column as floats, NaN for NULL; `healthy` leaves out steps of captures."""
        numbers = self.columns[column]
        found = np.where(numbers == UNKNOWN, np.nan, numbers.astype(np.float64))
        return found[self.columns["event"] == UNKNOWN] if healthy else found

    def rows(self, places: NDArray[np.int64] | slice = slice(None)) -> list[StepRow]:
        """Return the rows at the given places, by default all."""
        columns = [self.columns[name][places].tolist() for name in STEP_COLUMNS]
        return [
            StepRow._make(None if value == UNKNOWN else value for value in row)
            for row in zip(*columns, strict=True)
        ]

    def refresh(self, path: Path) -> None:
        """Read the rows of `path` that are not known yet, and all of its events.

        Raises StoreError if it is damaged, or not a watch file.
        """
        with ExitStack() as resources, reading(path):
            db = open_read_only(path, resources)
            facts = _facts(db, path)
            if facts.get("began_ns") != self.facts.get("began_ns"):  # of another run
                self.__init__(self.rank)  # type: ignore[misc]
            self.facts = facts
            last = int(self.columns["step"][-1]) if len(self) else -1
            names = ", ".join(STEP_COLUMNS)
            query = f"SELECT {names} FROM STEP WHERE step > ? ORDER BY step"
            rows = db.execute(query, (last,)).fetchall()
            events = [WatchEvent(*row) for row in db.execute("SELECT * FROM EVENT ORDER BY id")]
        if rows:
            new = np.array(
                [[UNKNOWN if value is None else value for value in row] for row in rows], np.int64
            )
            for place, name in enumerate(STEP_COLUMNS):
                self.columns[name] = np.concatenate((self.columns[name], new[:, place]))
        known = {event.id: event for event in self.events} | {event.id: event for event in events}
        self.events = [known[number] for number in sorted(known)]
        if path not in self.files:
            self.files.append(path)


def read_folder(
    folder: Path,
    known: Mapping[int, RankSteps] | None = None,
    damaged: dict[int, str] | None = None,
) -> dict[int, RankSteps]:
    """Return the ranks of the latest run in a directory, by rank.

    `known` is the result of an earlier call, so that only new rows are read; `damaged` receives why
    ranks cannot be read, which by default is an error. Raises StoreError if a file cannot be read,
    or there is none.
    """
    ranks = dict(known or {})
    found = sorted(_parts(folder))
    if not found:
        raise StoreError(
            f"{folder} has no watch files (watch_rank*.db)",
            hint="uprof watch -o DIR SCRIPT writes them",
            slug="no-such-file",
        )
    latest: dict[int, list[Path]] = {}
    for rank, _, path in found:
        latest.setdefault(rank, []).append(path)
    for rank, paths in latest.items():
        one = ranks.setdefault(rank, RankSteps(rank))
        done = set(one.files[:-1])
        for path in paths:
            if path not in done:
                try:
                    one.refresh(path)
                except StoreError as error:
                    if damaged is None:
                        raise
                    if path == paths[-1]:  # otherwise the steps of a part are missing
                        damaged[rank] = str(error).replace(f"{path.parent}/", "")
                        del ranks[rank]
    return ranks


def _parts(folder: Path) -> Iterator[tuple[int, int, Path]]:
    for path in folder.glob(catalogue.WATCH_FILES):
        if (found := rank_and_part(path.name)) is not None:
            yield found[0], found[1] or 1 << 62, path


def _facts(db: sqlite3.Connection, path: Path) -> dict[str, Any]:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if not {"STEP", "EVENT", "UPROF_RUN"} <= tables:
        raise StoreError(f"{path} is not a watch file", slug="not-a-report")
    return dict(db.execute("SELECT name, value FROM UPROF_RUN"))
