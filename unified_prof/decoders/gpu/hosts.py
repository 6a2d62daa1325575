"""Writes the host side of a GPU recording in time windows, and joins calls with operations.

Nesting on a thread determines the operation, the call chain and the collective of each runtime call
and allocation.
"""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.nesting import NONE, call_order, containing, inherit
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.call_chains import Forwards
from unified_prof.decoders.gpu.host_tables import HostTables
from unified_prof.decoders.gpu.memory import MISSING, Allocations, Int64s
from unified_prof.decoders.gpu.rows import Parts
from unified_prof.decoders.spool import Rows, Spool, selected, stacked, windows

# Rows of all kinds that are joined at a time.
WINDOW_ROWS = 1 << 16

# Anything with a beginning and an end on a thread, and its attributes. Of two equal intervals the
# one with the smaller `rank` is outside; `frame` is NONE if it is not a Python function.
INTERVAL = r.record_type(
    "start i8, end i8, thread i4, rank i8, frame i4, chain i4, operation i8, operation_name i4,"
    "signature i4, collective i4"
)

_HOST_RANK, _CALL_RANK, _POINT_RANK = 1 << 60, 2 << 60, 3 << 60


def write_host(parts: Parts, tables: HostTables, allocations: Allocations) -> Spool:
    """Write the host tables; return the calls with operations, sorted by correlation id."""
    calls = parts.new_spool(r.CALL, "correlation")
    joiner = _HostJoiner(parts, tables, allocations, calls)
    spools = (parts.host, parts.frames, parts.calls, parts.allocations)
    for host, frames, window_calls, allocated in windows(*spools, window_rows=WINDOW_ROWS):
        joiner.add(host, frames, window_calls, allocated)
    joiner.finish()
    return calls


class _HostJoiner:
    def __init__(
        self, parts: Parts, tables: HostTables, allocations: Allocations, calls: Spool
    ) -> None:
        self._parts = parts
        self._tables = tables
        self._allocations = allocations
        self._calls = calls
        self._forwards = Forwards()
        self._open = np.empty(0, dtype=INTERVAL)
        self._operations = 0

    def add(self, host: Rows, frames: Rows, calls: Rows, allocated: Rows) -> None:
        """Join the rows of one time window, given one array per kind."""
        bound = max(int(p["start"][-1]) for p in (host, frames, calls, allocated) if len(p))
        new_frames = self._frame_intervals(frames)
        new_host, numbers = self._host_intervals(host)
        if not len(self._open) + len(new_frames) + len(new_host):
            # Nothing can be nested, as in recordings of kernels only.
            self._add_calls(calls, _points(calls, _CALL_RANK))
            around = _points(allocated, _POINT_RANK)
            self._allocations.add(allocated, around["operation_name"])
            called = np.full(len(calls), MISSING, np.int64)
            self._tables.add(host, numbers, new_host["chain"], called, bound)
            return
        every = stacked(
            (
                self._open,
                new_frames,
                new_host,
                _points(calls, _CALL_RANK),
                _points(allocated, _POINT_RANK),
            )
        )
        order = call_order(every["thread"], every["start"], every["end"], every["rank"])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        every = selected(every, order)
        parent = containing(every["thread"], every["end"])
        if len(self._parts.chains):
            self._inherit_chains(every, parent, host, place[self._host_slice(new_frames, host)])
        source = np.where(every["operation"] != NONE, np.arange(len(every)), NONE)
        source = inherit(source, parent)
        for field in ("operation", "operation_name", "signature"):
            every[field] = np.where(source != NONE, every[field][source], NONE)
        every["collective"] = inherit(every["collective"], parent)

        every_call = place[len(every) - len(calls) - len(allocated) :]
        self._add_calls(calls, selected(every, every_call[: len(calls)]))
        self._allocations.add(allocated, every[every_call[len(calls) :]]["operation_name"])
        host_intervals = selected(every, place[self._host_slice(new_frames, host)])
        called = every["operation"][every_call[: len(calls)]]
        self._tables.add(host, numbers, host_intervals["chain"], called, bound)
        intervals = every[(place < 0) | (every["rank"] < _CALL_RANK)]
        self._open = intervals[intervals["end"] > bound]

    def finish(self) -> None:
        """Write the remaining rows."""
        self._tables.finish()
        self._allocations.finish()

    def _host_slice(self, new_frames: Rows, host: Rows) -> slice:
        first = len(self._open) + len(new_frames)
        return slice(first, first + len(host))

    def _frame_intervals(self, frames: Rows) -> Rows:
        """Return intervals of Python functions with their call chains."""
        if not len(frames):
            return np.empty(0, dtype=INTERVAL)
        new = _intervals(frames, np.arange(len(frames)))
        new["frame"] = frames["frame"]
        around = self._open[self._open["frame"] != NONE]
        both = np.concatenate((around, new))
        order = call_order(both["thread"], both["start"], both["end"], both["rank"])
        ordered = both[order]
        chains = self._parts.chains.extend_all(
            containing(ordered["thread"], ordered["end"]).tolist(),
            ordered["chain"].tolist(),
            ordered["frame"].tolist(),
        )
        both["chain"][order] = chains
        return both[len(around) :]

    def _host_intervals(self, host: Rows) -> tuple[Rows, Int64s]:
        """Return the intervals of operations and annotations, and the operation numbers."""
        external = np.clip(host["external"], 0, _HOST_RANK - 1)
        new = _intervals(host, _HOST_RANK + external)
        is_operation = host["is_operation"] != 0
        numbers = self._operations + np.cumsum(is_operation) - 1
        numbers = np.where(is_operation, numbers, NONE)
        self._operations += int(np.count_nonzero(is_operation))
        new["operation"] = numbers
        new["operation_name"] = host["name"]
        new["signature"] = host["signature"]
        new["collective"] = host["collective"]
        new["chain"] = host["stack"]
        return new, numbers

    def _inherit_chains(self, every: Rows, parent: Int64s, host: Rows, at: Int64s) -> None:
        """Set the call chain of each interval to that of the Python function that encloses it.

        A backward operation and all events inside it get the call chain of the forward operation,
        because the enclosing Python functions only call `backward()`.
        """
        recorded = every["chain"].astype(np.int64)
        chain = inherit(recorded, parent)
        numbered = (host["sequence"] >= 0) & (host["is_operation"] != 0)
        forward = numbered & (host["forward_thread"] <= 0)
        self._forwards.add(
            host["sequence"][forward], chain[at[forward]], host["thread"][forward].astype(np.int64)
        )
        backward = numbered & (host["forward_thread"] > 0)
        if backward.any():
            found, ambiguous = self._forwards.find(host["sequence"][backward])
            missing = int(np.count_nonzero(found == NONE)) - ambiguous
            if ambiguous:
                self._parts.sink.anomaly("ambiguous_forward_operation", ambiguous)
            if missing:
                self._parts.sink.anomaly("backward_without_forward", missing)
            where = at[backward]
            recorded[where] = np.where(found != NONE, found, recorded[where])
            chain = inherit(recorded, parent)
        every["chain"] = chain

    def _add_calls(self, calls: Rows, around: Rows) -> None:
        if len(calls):
            calls = calls.copy()
            for field in ("operation", "operation_name", "signature"):
                calls[field] = around[field]
            recorded = calls["collective"]
            calls["collective"] = np.where(recorded != MISSING, recorded, around["collective"])
            self._calls.append(calls)


def _intervals(rows: Rows, rank: Int64s) -> Rows:
    new = np.empty(len(rows), dtype=INTERVAL)
    for field in ("start", "end", "thread"):
        new[field] = rows[field]
    new["rank"] = rank
    for field in ("frame", "chain", "operation", "operation_name", "signature", "collective"):
        new[field] = MISSING
    return new


def _points(rows: Rows, rank: int) -> Rows:
    """Return intervals for rows that do not enclose other events."""
    new = np.full(len(rows), MISSING, dtype=INTERVAL)
    new["start"] = rows["start"]
    new["end"] = rows["end"] if "end" in (rows.dtype.names or ()) else rows["start"]
    new["thread"] = rows["thread"]
    new["rank"] = rank + np.arange(len(rows))
    return new
