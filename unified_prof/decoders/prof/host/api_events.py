"""api_event: the calls of the host, to CANN_API and to the intervals that tasks are launched in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.pool import Pool
from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.call_tree import Intervals, without_overlaps
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import checked, join
from unified_prof.decoders.prof.raw.layouts import record_type
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.decoders.prof.raw.timeline import Keys, Timeline
from unified_prof.errors import RawFormatError

ACL, MODEL, NODE, COMMUNICATION, RUNTIME = 20000, 15000, 10000, 5500, 5000

_EVENT = np.uint64(0xFFFFFFFFFFFFFFFF)
_WRITE_ROWS = 1 << 17
_NO_ITEM = 0
_MAX_TYPES = 1 << 16


@dataclass(slots=True)
class Calls:
    """All calls, sorted by thread and begin; the connection id of a call is its row plus one."""

    begin: Keys
    end: Keys
    type_index: NDArray[np.uint16]
    item: NDArray[np.uint32]
    types: NDArray[np.uint64]
    """(level << 32 | type) by type index."""
    items: NDArray[np.uint64]
    """Item hashes (operator, model) by item index."""

    def level(self) -> NDArray[np.int64]:
        """Return the level of every type index."""
        return (self.types >> np.uint64(32)).astype(np.int64)

    def type_pairs(self) -> list[tuple[int, int]]:
        """Return (level, type) of every type index."""
        return [(value >> 32, value & 0xFFFFFFFF) for value in self.types.tolist()]

    def intervals(self, level: int) -> Intervals:
        """Return the calls of one level that tasks can lie in: the not empty, not overlapping."""
        of_level = self.level() == level
        rows = np.flatnonzero(of_level[self.type_index] & (self.begin != self.end))
        begin, end = self.begin[rows], self.end[rows]
        if level == NODE and (begin[1:] == begin[:-1]).any():
            order = np.lexsort((~end, begin))  # the longer of two that begin together is outside
            rows, begin, end = rows[order], begin[order], end[order]
        found = Intervals(begin, end, rows + 1, self.item[rows], self.type_index[rows])
        return found if level == NODE else without_overlaps(found)


def read_calls(host: HostDirectory, timeline: Timeline, sink: Sink) -> Calls:
    """Read every call, pairing those recorded as two events."""
    file = host.data.host_file("api_event")
    record = record_type("api_event")
    count = 0 if file is None else file.count(record)
    types, items = Pool(), Pool()
    items.index_of(np.zeros(1, np.uint64))  # index 0: no item
    begin, end = np.empty(count, np.uint64), np.empty(count, np.uint64)
    type_index, item = np.empty(count, np.uint16), np.empty(count, np.uint32)
    events: list[Records] = []
    filled = 0

    def add(rows: Records) -> None:
        nonlocal filled
        rows = _usable(rows, timeline, sink)
        here = slice(filled, filled + len(rows))
        filled += len(rows)
        begin[here] = timeline.pack(rows["thread_id"], rows["begin"])
        end[here] = timeline.move(begin[here], rows["end"])
        kind = rows["level"].astype(np.uint64) << np.uint64(32) | rows["type"]
        type_index[here] = types.index_of(kind)
        if len(types) > _MAX_TYPES:
            raise RawFormatError(
                f"{file.name if file else ''}: more than {_MAX_TYPES} kinds of calls"
            )
        item[here] = _NO_ITEM
        named = np.isin(rows["level"], (NODE, COMMUNICATION, MODEL))
        item[here][named] = items.index_of(rows["item_id"][named])

    if file is not None:
        for piece in checked(file, "api_event", sink):
            is_event = piece["end"] == _EVENT
            if is_event.any():
                events.append(piece[is_event])
                add(piece[~is_event])
            else:
                add(piece)
        if events:
            add(_pair_events(join(events), sink))
    order = np.argsort(begin[:filled], kind="stable")
    return Calls(
        begin[order], end[order], type_index[order], item[order], types.values, items.values
    )


def write_calls(calls: Calls, host: HostDirectory, timeline: Timeline, sink: Sink) -> None:
    """Write CANN_API: calls that end in the session or after it."""
    dictionaries = host.dictionaries
    levels = calls.level()
    type_names = sink.strings.intern_all(
        dictionaries.type_name(level, kind) for level, kind in calls.type_pairs()
    )
    communication = levels == COMMUNICATION
    used = np.unique(calls.item[communication[calls.type_index]])
    item_names = np.zeros(len(calls.items), np.int64)
    item_names[used] = dictionaries.string_ids(sink.strings, calls.items[used])
    process = (host.info.integer("pid") or 0) << 32
    start_ns = host.session.start_ns
    for low in range(0, len(calls.begin), _WRITE_ROWS):
        rows = slice(low, low + _WRITE_ROWS)
        begin, kind = calls.begin[rows], calls.type_index[rows]
        end_ns = host.clocks.host.to_ns(timeline.ticks(calls.end[rows]))
        keep = end_ns >= start_ns
        names = np.where(communication[kind], item_names[calls.item[rows]], type_names[kind])
        columns: dict[str, NDArray[Any]] = {
            "startNs": host.clocks.host.to_ns(timeline.ticks(begin)),
            "endNs": end_ns,
            "type": levels[kind],
            "globalTid": process | timeline.thread_ids(begin),
            "connectionId": np.arange(low + 1, low + 1 + len(begin)),
            "name": names,
        }
        if not keep.all():
            columns = {name: values[keep] for name, values in columns.items()}
        if len(columns["name"]):
            sink.write("CANN_API", columns)


def _usable(rows: Records, timeline: Timeline, sink: Sink) -> Records:
    """Leave out calls whose times cannot be: far from the recording, or ending before begin."""
    good = timeline.fits(rows["begin"]) & timeline.fits(rows["end"])
    good &= rows["begin"] <= rows["end"]
    if good.all():
        return rows
    sink.anomaly("impossible_time_api_event", int((~good).sum()), "api_event records left out")
    return rows[good]


def _pair_events(events: Records, sink: Sink) -> Records:
    """Make one interval of every two equal events, in file order."""
    fields = ("item_id", "request_id", "thread_id", "type", "level")
    order = np.lexsort([events[field] for field in fields])
    events = events[order]
    equal = Runs(*(events[field] for field in fields))
    rank = equal.rank()
    first = np.flatnonzero((rank % 2 == 0) & (rank + 1 < equal.spread(equal.sizes)))
    paired = events[first]
    paired["end"] = events["begin"][first + 1]
    if lost := len(events) - 2 * len(first):
        sink.anomaly("unpaired_event", lost, "an event without its second half is no call")
    return paired
