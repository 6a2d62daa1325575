"""Host side of a recording: runtime calls, framework ranges, task queue, synchronization.

Runtime calls (CANN_API) and framework ranges (PYTORCH_API, MSTX_EVENTS) are stored as packed
columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, NOWHERE, Bools, Frame, Ints, Lookup, Runs
from unified_prof.arrays.packed import BLOCK, Column, Packed, PackedLookup, Packing, codes, recoded
from unified_prof.base.columns import (
    API_OPERATION,
    API_QUEUE,
    HOST_ONLY_CONNECTION,
    NO_CONNECTION,
    NO_NUMBER,
    OLD_NO_CONNECTION,
)
from unified_prof.recording.source import Findings, Source, Strings, possible

# Connection ids that mean "none" in old and new files.
UNCONNECTED = (NO_CONNECTION, OLD_NO_CONNECTION, HOST_ONLY_CONNECTION)

_COLUMNS = {
    "connection": "connectionId",
    "start": "startNs",
    "end": "endNs",
    "thread": "globalTid",
    "name": "name",
    "type": "type",
}


class HostCalls:
    """The rows of CANN_API as packed columns, in the file's order; MISSING replaces non-numbers."""

    def __init__(self, source: Source) -> None:
        found = {name: Packing(hole=MISSING) for name in _COLUMNS}
        for batch in source.batches("CANN_API", _COLUMNS):
            for name, values in batch.items():
                found[name].add(values)
        columns = {name: packing.done() for name, packing in found.items()}
        self.connection, self.thread = columns["connection"], columns["thread"]
        self.start_ns, self.end_ns = columns["start"], columns["end"]
        self.name, self.type = columns["name"], columns["type"]

    def __len__(self) -> int:
        return len(self.connection)

    @cached_property
    def is_valid(self) -> Bools:
        """Mask of the calls with valid times."""
        result = np.zeros(len(self), bool)
        for low in range(0, len(self), BLOCK):
            rows = slice(low, low + BLOCK)
            start = self.start_ns[rows]
            with np.errstate(over="ignore"):
                result[rows] = possible(start, self.end_ns[rows] - start)
        return result

    def launching(self, connection: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the row of the call that launched each device task, or NOWHERE."""
        row = self.row_of_connection(connection)
        # There are only a few such ids, and most recordings have none.
        for unconnected in UNCONNECTED:
            row[connection == unconnected] = NOWHERE
        return row

    def row_of_connection(self, connection: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the row of the call with each connection id, or NOWHERE."""
        return self._by_connection.rows(connection)

    @cached_property
    def names(self) -> tuple[list[int], Packed]:
        """The distinct string ids of names, and the index of each call's name."""
        ids = self.name.distinct().tolist()
        return ids, recoded(self.name, ids)

    def matching(self, strings: Strings, wanted: Callable[[str | None], bool]) -> Bools:
        """Return a mask of the calls whose name satisfies a predicate."""
        ids, number = self.names
        mask: Bools = np.array([*map(wanted, strings.texts(ids)), False])[number.to_array()]
        return mask

    @cached_property
    def _by_connection(self) -> PackedLookup:
        return PackedLookup(self.connection)


# Type of ranges in the mstx domain `Module`; does not occur in databases.
MODULE_RANGE: Final = -50
ANNOTATION: Final = -51  # Type of other mstx ranges; does not occur in databases.

_COLUMNS_HOST_RANGES = {
    # The times are text.
    "start": "CAST(startNs AS INTEGER)",
    "end": "CAST(endNs AS INTEGER)",
    "thread": "coalesce(globalTid, -1)",
    "connection": f"coalesce(connectionId, {MISSING + 1} - 1)",
    "name": "coalesce(name, -1)",
    "sequence": "coalesce(sequenceNumber, -1)",
    "forward_thread": "coalesce(fwdThreadId, 0)",
    "chain": "coalesce(callchainId, -1)",
    "type": f"coalesce(type, {API_OPERATION})",
}
_OF_MARKS = {
    "start": "startNs",
    "end": "endNs",
    "thread": "globalTid",
    "name": "message",
    "domain": "coalesce(domainId, -1)",
}
_ABSENT = {"connection": MISSING, "sequence": -1, "forward_thread": 0, "chain": -1, "row": -1}
_WINDOW = 2 * BLOCK


def read(source: Source, strings: Strings, findings: Findings) -> dict[str, Packed]:
    """Read PYTORCH_API without queue entries, and mstx ranges (annotations and modules).

    The columns are `start`, `duration`, `row` (in PYTORCH_API; -1 for mstx ranges) and those of
    PYTORCH_API. The ranges are in `intervals.call_order`.
    """
    taken = _ValidRanges()
    row = 0
    unreadable: Ints | None = None
    for batch in source.batches("PYTORCH_API", _COLUMNS_HOST_RANGES):
        count = len(batch["start"])
        batch["row"] = np.arange(row, row + count)
        row += count
        if not batch["start"].all():
            if unreadable is None:
                unreadable = _unreadable_starts(source)
            batch["start"] = np.where(np.isin(batch["row"], unreadable), MISSING, batch["start"])
        taken.take(batch)
    domains: set[int] = set()
    for marks in source.batches("MSTX_EVENTS", _OF_MARKS):
        domain = marks.pop("domain")
        domains |= {one for one in np.unique(domain).tolist() if strings.get(one) == "Module"}
        marks["type"] = np.where(np.isin(domain, list(domains)), MODULE_RANGE, ANNOTATION)
        is_range = marks["end"] > marks["start"]
        marks = {name: values[is_range] for name, values in marks.items()}
        for name, value in _ABSENT.items():
            marks[name] = np.full(len(marks["start"]), value, np.int64)
        taken.take(marks)
    if taken.bad:
        what = f"{taken.bad} rows of PYTORCH_API are left out"
        findings.add("impossible_host_time", what, taken.bad)
    return _nested({name: packing.done() for name, packing in taken.columns.items()})


def _unreadable_starts(source: Source) -> Ints:
    """Return the rows whose start is not a number, which a cast turns into 0."""
    result, row = [np.zeros(0, np.int64)], 0
    number = "iif(startNs GLOB '[0-9]*', 1, NULL)"
    for batch in source.batches("PYTORCH_API", {"number": number}):
        result.append(np.flatnonzero(batch["number"] == MISSING) + row)
        row += len(batch["number"])
    return np.concatenate(result)


class _ValidRanges:
    """The ranges with valid times, in the order of the file."""

    def __init__(self) -> None:
        narrow = np.int32
        self.columns = {
            "start": Packing(),
            "duration": Packing(),
            "thread": Packing(),
            "connection": Packing(hole=MISSING),
            "name": Packing(narrow, hole=-1),
            "sequence": Packing(narrow, hole=-1),
            "forward_thread": Packing(),
            "chain": Packing(narrow, hole=-1),
            "type": Packing(narrow),
            "row": Packing(narrow, hole=-1),
        }
        self.bad = 0

    def take(self, batch: dict[str, Ints]) -> None:
        with np.errstate(over="ignore"):
            batch["duration"] = batch.pop("end") - batch["start"]
        usable = possible(batch["start"], batch["duration"])
        self.bad += int(len(usable) - usable.sum())
        usable &= batch["type"] != API_QUEUE
        whole = bool(usable.all())
        for name, packing in self.columns.items():
            packing.add(batch[name] if whole else batch[name][usable])


def _nested(columns: dict[str, Packed]) -> dict[str, Packed]:
    """Return the columns in call order: parents before their children."""
    order = _call_order(columns["thread"], columns["start"], columns["duration"])
    if order is None:
        return columns
    for name in list(columns):
        column = columns.pop(name)
        packing = column.empty_builder()
        for low in range(0, len(order), _WINDOW):
            packing.add(column.at(order[low : low + _WINDOW]))
        columns[name] = packing.done()
    return columns


def _call_order(thread: Packed, start_ns: Packed, duration_ns: Packed) -> NDArray[np.int32] | None:
    """Return the order of `intervals.call_order`, None if the ranges are already in that order."""
    rows = len(start_ns)
    threads = thread.distinct()
    order = np.arange(rows, dtype=np.int32)
    if len(threads) > 1:
        # Position at which each thread's next range goes.
        counts = np.zeros(len(threads), np.int64)
        for block in thread.blocks():
            counts += np.bincount(np.searchsorted(threads, block), minlength=len(threads))
        place = np.cumsum(counts) - counts
        low = 0
        for block in thread.blocks():
            number = np.searchsorted(threads, block)
            own = np.argsort(number, kind="stable")
            counts = np.bincount(number, minlength=len(threads))
            first = np.cumsum(counts) - counts
            at = np.arange(len(own)) + np.repeat(place - first, counts)
            order[at] = low + own
            place += counts
            low += len(block)
    changed = len(threads) > 1
    edges = [0]
    if len(threads) > 1:
        edges = [0, *place[:-1].tolist()]
    return _in_time(order, [*edges, rows], start_ns, duration_ns, changed=changed)


def _in_time(
    order: NDArray[np.int32],
    edges: list[int],
    start_ns: Packed,
    duration_ns: Packed,
    *,
    changed: bool,
) -> NDArray[np.int32] | None:
    """Sort the ranges of each thread by start; of equal starts, the longer range comes first."""
    for first, behind in pairwise(edges):
        # A thread with one range is in order: reading it would unpack a whole block.
        low = first if behind - first > 1 else behind
        while low < behind:
            high = min(low + _WINDOW, behind)
            rows = order[low:high]
            start = start_ns.at(rows)
            if (start[1:] < start[:-1]).any():
                break
            if high < behind:
                # Ranges with equal starts are sorted together.
                following = start_ns.at(order[high : high + 1])[0]
                whole = int(np.searchsorted(start, following, side="left"))
                if whole == 0 or following < start[-1]:
                    break
                high, rows, start = low + whole, rows[:whole], start[:whole]
            keys = np.lexsort((-duration_ns.at(rows), start))
            if (keys[1:] < keys[:-1]).any():
                order[low:high] = rows[keys]
                changed = True
            low = high
        if low < behind:
            rows = order[first:behind]
            keys = np.lexsort((-duration_ns.at(rows), start_ns.at(rows)))
            # Equal ranges keep their order.
            order[first:behind] = rows[keys]
            changed = True
    return order if changed else None


class Ends(Column):
    """Ends of ranges, computed from starts and durations."""

    def __init__(self, start_ns: Packed, duration_ns: Packed) -> None:
        self._start_ns, self._duration_ns = start_ns, duration_ns

    def __len__(self) -> int:
        return len(self._start_ns)

    def at(self, rows: NDArray[np.integer]) -> Ints:
        """Return the ends of ranges by index."""
        result: Ints = self._start_ns.at(rows) + self._duration_ns.at(rows)
        return result

    def _between(self, low: int, high: int) -> Ints:
        result: Ints = self._start_ns[low:high] + self._duration_ns[low:high]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class TaskQueue(Frame):
    """Entries of torch_npu's task queue: one thread enqueues an operator, another launches it.

    Entries are in order of the dequeues on each thread; those without an enqueue or a dequeue are
    left out.
    """

    enqueue_thread: Ints
    enqueue_ns: Ints  # Start of each enqueue.
    dequeue_thread: Ints
    dequeue_ns: Ints  # Start of each dequeue.
    end_ns: Ints  # End of each dequeue.

    def enqueued_ns(self, thread: Ints, launched_ns: Ints) -> Ints:
        """Return when the program enqueued each launch; without an entry around it, the launch.

        The thread that launches may be thousands of entries behind the program.
        """
        result = launched_ns.astype(np.int64)
        runs = Runs(self.dequeue_thread)
        for low, last in zip(runs.starts.tolist(), runs.last.tolist(), strict=True):
            own = np.flatnonzero(thread == self.dequeue_thread[low])
            begun = self.dequeue_ns[low : last + 1]
            at = low - 1 + np.searchsorted(begun, result[own], side="right")
            inside = (at >= low) & (result[own] <= self.end_ns[at])
            result[own[inside]] = self.enqueue_ns[at[inside]]
        return result


_NOTHING = np.zeros(0, np.int64)


def load_task_queue(source: Source, strings: Strings) -> TaskQueue:
    """Read the entries of the task queue; enqueue and dequeue share a connection id."""
    entries = source.integers("PYTORCH_API", {"type": "coalesce(type, -1)"})["type"] == API_QUEUE
    if not entries.any():
        return TaskQueue(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    result = source.integers(
        "PYTORCH_API",
        {
            "start": "CAST(startNs AS INTEGER)",
            "end": "CAST(endNs AS INTEGER)",
            "thread": "coalesce(globalTid, -1)",
            "id": f"coalesce(connectionId, {MISSING + 1} - 1)",
            "name": "coalesce(name, -1)",
        },
    )
    with np.errstate(over="ignore"):
        entries &= possible(result["start"], result["end"] - result["start"])
    result = {name: values[entries] for name, values in result.items()}
    ids, number = codes(result["name"])
    is_enqueue = np.array([(text or "").startswith("Enqueue") for text in strings.texts(ids)])
    pairs = source.integers("CONNECTION_IDS", {"id": "id", "connection": "connectionId"})
    # An entry that launched several tasks has several connection ids; enqueue and dequeue share the
    # first one.
    row = Lookup(pairs["id"]).rows(result["id"])
    enqueues = np.flatnonzero(is_enqueue[number] & (row >= 0))
    dequeues = np.flatnonzero(~is_enqueue[number] & (row >= 0))
    partner = Lookup(pairs["connection"][row[enqueues]]).rows(pairs["connection"][row[dequeues]])
    dequeues, enqueues = dequeues[partner >= 0], enqueues[partner[partner >= 0]]
    in_order = result["start"][enqueues] <= result["start"][dequeues]
    dequeues, enqueues = dequeues[in_order], enqueues[in_order]
    order = np.lexsort((result["start"][dequeues], result["thread"][dequeues]))
    dequeues, enqueues = dequeues[order], enqueues[order]
    return TaskQueue(
        enqueue_thread=result["thread"][enqueues],
        enqueue_ns=result["start"][enqueues],
        dequeue_thread=result["thread"][dequeues],
        dequeue_ns=result["start"][dequeues],
        end_ns=result["end"][dequeues],
    )


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits(Frame):
    """Waits of streams for events of other streams; a stream is `device << 32 | stream`."""

    at_ns: Ints  # Start of the host call: tasks launched on `stream` after this wait for the event.
    stream: Ints
    awaited_stream: Ints
    # Start of the call that recorded the event: tasks launched before this are waited for.
    recorded_ns: Ints


class CallWaits(Struct, frozen=True, eq=False):
    """Waits of synchronizing calls for an event or for a whole stream."""

    call: Ints  # Calls that waited for an event, as indexes into the given calls.
    awaited_stream: Ints
    recorded_ns: Ints
    on_stream_call: Ints  # Calls that waited for a whole stream, as indexes into the given calls.
    on_stream: Ints

    def __len__(self) -> int:
        return len(self.call)


def stream_waits(source: Source, strings: Strings, calls: HostCalls) -> StreamWaits:
    """Return the waits of streams; empty if none were recorded."""
    result = _read_syncs(source)
    if result is None:
        return StreamWaits(_NOTHING, _NOTHING, _NOTHING, _NOTHING)
    kinds = [
        number
        for number in np.unique(result["kind"]).tolist()
        if (strings.get(number) or "").lower().startswith("stream wait")
    ]
    chosen = np.isin(result["kind"], kinds) & (result["stream"] >= 0) & (result["awaited"] >= 0)
    result = {name: values[chosen] for name, values in result.items()}
    recorded = _start_of_correlation(calls)(result["record"])
    return StreamWaits(
        at_ns=result["start"],
        stream=_stream_id(result["device"], result["stream"]),
        awaited_stream=_stream_id(result["device"], result["awaited"]),
        recorded_ns=np.where(recorded >= 0, recorded, result["start"]),
    )


def call_waits(source: Source, calls: HostCalls, chosen: Ints) -> CallWaits:
    """Return the events and streams that the chosen calls waited for, as far as recorded."""
    result = _read_syncs(source)
    if result is None or not len(chosen):
        return CallWaits(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
    row = Lookup(result["correlation"]).rows(calls.connection[chosen]).astype(np.int64)
    row[calls.connection[chosen] < 0] = -1
    events = np.flatnonzero((row >= 0) & (np.append(result["awaited"], MISSING)[row] >= 0))
    at = row[events]
    recorded = _start_of_correlation(calls)(result["record"][at])
    events, at, recorded = (values[recorded >= 0] for values in (events, at, recorded))
    streams = np.flatnonzero((row >= 0) & (np.append(result["stream"], MISSING)[row] >= 0))
    streams = np.setdiff1d(streams, events)
    return CallWaits(
        call=events,
        awaited_stream=_stream_id(result["device"][at], result["awaited"][at]),
        recorded_ns=recorded,
        on_stream_call=streams,
        on_stream=_stream_id(result["device"][row[streams]], result["stream"][row[streams]]),
    )


def _start_of_correlation(calls: HostCalls) -> Callable[[Ints], Ints]:
    """Return a function that returns the start of the call of each correlation id, or -1."""

    def start_of(correlation: Ints) -> Ints:
        row = calls.row_of_connection(correlation)
        known = (row >= 0) & (correlation >= 0)
        return np.where(known, np.append(calls.start_ns, -1)[row], -1)

    return start_of


def _stream_id(device: Ints, stream: Ints) -> Ints:
    return device << 32 | (stream & 0xFFFFFFFF)


def _read_syncs(source: Source) -> dict[str, Ints] | None:
    if "UPROF_GPU_SYNCS" not in source.tables:
        return None
    result = source.integers(
        "UPROF_GPU_SYNCS",
        {
            "start": "startNs",
            "device": "deviceId",
            "stream": "streamId",
            "kind": "kind",
            "correlation": "correlationId",
            "awaited": "waitStream",
            "record": "waitRecord",
        },
    )
    for name in ("stream", "awaited", "record"):
        # CUPTI's value for "no stream", used in waits for a whole device.
        result[name] = np.where(result[name] == NO_NUMBER, MISSING, result[name])
    return result
