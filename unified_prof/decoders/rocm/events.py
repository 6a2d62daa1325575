"""The events of a session, which regions and tasks refer to."""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.lookup import NOWHERE, find
from unified_prof.decoders.gpu.numbers import MISSING, Int64s
from unified_prof.decoders.rocm.tables import SessionTables

_MOST_ID = 2**40


class Events:
    """What ties calls and tasks together, and which kind of call a region is.

    Args:
        tables: Of the session.
        session: Its number; keys of different sessions are different.
    """

    def __init__(self, tables: SessionTables, session: int) -> None:
        self._first_key = session * _MOST_ID
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
        self._keys = np.where((keys > 0) & (keys < _MOST_ID), keys, MISSING)
        self._categories = categories

    def categories(self, events: Int64s) -> Int64s:
        """Return string ids of what kind of call each is, MISSING where that is not known."""
        return self._of(events, self._categories)

    def correlations(self, events: Int64s) -> Int64s:
        """Return what a call and the tasks it launched have in common, MISSING where nothing is."""
        keys = self._of(events, self._keys)
        return np.where(keys == MISSING, MISSING, self._first_key + keys)

    def key(self, events: Int64s) -> Int64s:
        """Return numbers of events that are different in all sessions, MISSING of what is none."""
        known = (events > 0) & (events < _MOST_ID)
        return np.where(known, self._first_key + events, MISSING)

    def _of(self, events: Int64s, values: Int64s) -> Int64s:
        place = find(self._ids, events)
        found = np.full(len(events), MISSING)
        there = place != NOWHERE
        found[there] = values[place[there]]
        return found
