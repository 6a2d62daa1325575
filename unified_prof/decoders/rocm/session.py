"""What the rows of one session of a recording refer to: texts, processes, threads, agents, events.

Ids of processes, threads, agents, queues and streams are row numbers, a session's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unified_prof.arrays.distinct import distinct_rows
from unified_prof.columns import Cells
from unified_prof.decoders.gpu.numbers import MISSING, Bools, Int64s
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.rocm.agents import Agents
from unified_prof.decoders.rocm.events import Events
from unified_prof.decoders.rocm.tables import SessionTables
from unified_prof.decoders.rows import Rows
from unified_prof.vocabulary import NOT_AVAILABLE

NO_TIME = -(2**63)
_SANE_NS = 2**62

INTERVAL = np.dtype([("start", "i8"), ("end", "i8")])


class Session:
    """One session of a file, as all who read its rows need it.

    Args:
        parts: Where rows go.
        tables: Its tables.
        number: Its place among the sessions of the file.
    """

    def __init__(self, parts: Parts, tables: SessionTables, number: int) -> None:
        self.parts = parts
        self.tables = tables
        self.number = number
        self.strings = tables.texts("string", "string")
        self.pids = tables.numbers("info_process", "pid")
        self.tids = tables.numbers("info_thread", "tid")
        self.schema = self._read_schema()
        self.agents = Agents(tables)
        self.events = Events(tables, number)
        self._threads: dict[tuple[int, int], int] = {}
        self._read_names_of_threads()

    def _read_schema(self) -> str | None:
        schema = None
        for cells in self.tables.slices("metadata", {}, ["tag", "value"]):
            for tag, value in zip(cells["tag"], cells["value"], strict=True):
                if tag == "schema_version":
                    schema = value
        return schema

    def _read_names_of_threads(self) -> None:
        threads = self.parts.threads
        for cells in self.tables.slices("info_thread", {"id": MISSING, "pid": MISSING}, ["name"]):
            for row, pid, name in zip(
                cells["id"].tolist(), cells["pid"].tolist(), cells["name"], strict=True
            ):
                if name and row in self.tids and pid in self.pids:
                    threads.thread_names[self.pids[pid], self.tids[row]] = name

    def thread_numbers(self, cells: Cells) -> Int64s:
        """Return the thread of each row, which counts as having done something."""
        first, inverse = distinct_rows(cells["pid"], cells["tid"])
        numbers = []
        for at in first.tolist():
            key = (int(cells["pid"][at]), int(cells["tid"][at]))
            if key not in self._threads:
                pid, tid = self.pids.get(key[0], key[0]), self.tids.get(key[1], key[1])
                self._threads[key] = self.parts.threads[pid, tid]
            numbers.append(self._threads[key])
        found = np.array(numbers, np.int64)[inverse]
        self.parts.activity.update(dict(enumerate(np.bincount(found).tolist())))
        return found

    def timed(self, cells: Cells, dtype: np.dtype[Any], what: str) -> tuple[Rows, Bools]:
        """Return rows that have their times, and which of them are sound; `what` counts them."""
        start, end = cells["start"], cells["end"]
        rows = np.empty(len(start), dtype)
        rows["start"], rows["end"] = start, end
        sane = (np.abs(start) < _SANE_NS) & (np.abs(end) < _SANE_NS)
        sane &= (start != NO_TIME) & (end != NO_TIME)
        negative = sane & (end < start)
        for name, odd in (("event_without_time", ~sane), ("negative_duration", negative)):
            if odd.any():
                self.parts.sink.anomaly(name, int(np.count_nonzero(odd)), f"{what}, left out")
        valid = sane & ~negative
        if valid.any():
            self.parts.see(int(start[valid].min()), int(end[valid].max()))
        self.parts.counts[what] += len(rows)
        return rows, valid

    def names(self, ids: Int64s, texts: Mapping[int, str]) -> Int64s:
        """Return string ids of the texts that `ids` mean."""
        names = self.parts.names
        distinct, inverse = np.unique(ids, return_inverse=True)
        found = [names[texts.get(number, NOT_AVAILABLE)] for number in distinct.tolist()]
        return np.array(found, np.int64)[inverse]
