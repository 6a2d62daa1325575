"""Resolves the ids of one session: strings, processes, threads, agents (CPUs, GPUs) and events.

Ids of processes, threads, agents, queues and streams are row numbers within the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, distinct_rows, find
from unified_prof.base.columns import NOT_AVAILABLE, Cells
from unified_prof.decoders.gpu.memory import MISSING, Int64s
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.rocm.json_tables import SessionTables
from unified_prof.decoders.spool import Rows

_INT32 = range(-(2**31), 2**31)


class Agents:
    """Agents (CPUs and GPUs) of a session by row number."""

    def __init__(self, tables: SessionTables) -> None:
        self.devices: dict[int, dict[str, Any]] = {}
        """Device number -> properties of the GPU."""
        self._agents: dict[int, tuple[str, int]] = {}
        """Row number -> (CPU or GPU, index among agents of this type)."""
        self._read(tables)

    def _read(self, tables: SessionTables) -> None:
        wanted = {"id": MISSING, "type_index": MISSING, "logical_index": MISSING}
        names = ["type", "product_name", "name", "model_name", "vendor_name"]
        for cells in tables.slices("info_agent", wanted, names):
            for at, row in enumerate(cells["id"].tolist()):
                kind = (cells["type"][at] or "").upper()
                index = int(cells["type_index"][at])
                if index not in _INT32 or index < 0:
                    index = MISSING
                self._agents[row] = (kind, index)
                if kind == "GPU" and index != MISSING:
                    known = {name: cells[name][at] for name in names[1:] if cells[name][at]}
                    known["name"] = known.get("product_name") or known.get("name") or NOT_AVAILABLE
                    self.devices.setdefault(index, known)

    def numbers_of_devices(self, agents: Int64s) -> Int64s:
        """Return the device number of each agent, MISSING if it is not a GPU."""
        distinct, inverse = np.unique(agents, return_inverse=True)
        found = []
        for agent in distinct.tolist():
            kind, index = self._agents.get(agent, ("", MISSING))
            found.append(index if kind == "GPU" else MISSING)
        return np.array(found, np.int64)[inverse]

    def direction(self, source: int, target: int) -> tuple[str, int]:
        """Return the name of a copy between two agents, and the device that it belongs to."""
        unknown = ("", MISSING)
        kinds = (self._agents.get(source, unknown), self._agents.get(target, unknown))
        device = next((index for kind, index in reversed(kinds) if kind == "GPU"), MISSING)
        letters = [{"CPU": "H", "GPU": "D"}.get(kind) for kind, _ in kinds]
        if None in letters:
            return "Memcpy Unknown", device
        if letters == ["D", "D"] and source != target:
            return "Memcpy PtoP", device
        return f"Memcpy {letters[0]}to{letters[1]}", device


# Ids of a session must be below this, so that ids of several sessions are distinct.
_MAX_ID = 2**40


class Events:
    """Events of a session, which join calls with tasks and contain the category of regions.

    Args:
        tables: Tables of the session.
        session: Number of the session, which makes keys unique across sessions.
    """

    def __init__(self, tables: SessionTables, session: int) -> None:
        self._first_key = session * _MAX_ID
        wanted = {"id": MISSING, "stack_id": 0, "correlation_id": 0, "category_id": MISSING}
        parts: list[tuple[Int64s, ...]] = [
            tuple(cells[name] for name in wanted) for cells in tables.slices("event", wanted)
        ]
        columns = (
            [np.concatenate(column) for column in zip(*parts, strict=True)]
            if parts
            else [np.empty(0, np.int64)] * len(wanted)
        )
        order = np.argsort(columns[0], kind="stable")
        self._ids, stacks, correlations, categories = (column[order] for column in columns)
        keys = np.where(stacks > 0, stacks, correlations)
        self._keys = np.where((keys > 0) & (keys < _MAX_ID), keys, MISSING)
        self._categories = categories

    def categories(self, events: Int64s) -> Int64s:
        """Return the string ids of categories, MISSING if unknown."""
        return self._lookup(events, self._categories)

    def correlations(self, events: Int64s) -> Int64s:
        """Return the key that a call shares with its tasks, MISSING if unknown."""
        keys = self._lookup(events, self._keys)
        return np.where(keys == MISSING, MISSING, self._first_key + keys)

    def key(self, events: Int64s) -> Int64s:
        """Return event numbers that are unique across sessions, MISSING for invalid ids."""
        known = (events > 0) & (events < _MAX_ID)
        return np.where(known, self._first_key + events, MISSING)

    def _lookup(self, events: Int64s, values: Int64s) -> Int64s:
        place = find(self._ids, events)
        result = np.full(len(events), MISSING)
        known = place != NOWHERE
        result[known] = values[place[known]]
        return result


class Session:
    """One session of a recording.

    Args:
        parts: Receives the rows.
        tables: Tables of the session.
        number: Index of the session.
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
        self._read_thread_names()

    def _read_schema(self) -> str | None:
        schema = None
        for cells in self.tables.slices("metadata", {}, ["tag", "value"]):
            for tag, value in zip(cells["tag"], cells["value"], strict=True):
                if tag == "schema_version":
                    schema = value
        return schema

    def _read_thread_names(self) -> None:
        threads = self.parts.threads
        for cells in self.tables.slices("info_thread", {"id": MISSING, "pid": MISSING}, ["name"]):
            for row, pid, name in zip(
                cells["id"].tolist(), cells["pid"].tolist(), cells["name"], strict=True
            ):
                if name and row in self.tids and pid in self.pids:
                    threads.thread_names[self.pids[pid], self.tids[row]] = name

    def thread_numbers(self, cells: Cells) -> Int64s:
        """Return the thread number of each row, and count the events of the threads."""
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
        """Return new rows with start and end, and a mask of the valid ones."""
        return self.parts.new_rows(cells["start"], cells["end"], dtype, what)

    def names(self, ids: Int64s, texts: Mapping[int, str]) -> Int64s:
        """Convert ids of `texts` to ids of the string pool."""
        names = self.parts.names
        distinct, inverse = np.unique(ids, return_inverse=True)
        found = [names[texts.get(number, NOT_AVAILABLE)] for number in distinct.tolist()]
        return np.array(found, np.int64)[inverse]
