"""api_event: the calls of the host, to CANN_API and to the intervals that tasks are launched in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.pool import Pool
from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.call_tree import Intervals
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import checked, join
from unified_prof.decoders.prof.raw.slices import Records
from unified_prof.decoders.prof.raw.timeline import Timeline
from unified_prof.decoders.rows import Rows, selected
from unified_prof.decoders.spool import Spool
from unified_prof.errors import RawFormatError

ACL, MODEL, NODE, COMMUNICATION, RUNTIME = 20000, 15000, 10000, 5500, 5000

_EVENT = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_TYPES = 1 << 16


CALL = np.dtype(
    [("key", "u8"), ("end", "u8"), ("connection_id", "u8"), ("item", "u4"), ("type_index", "u2")]
)
"""A call: where it begins and ends on the timeline, its number, and indexes into `CallNames`."""


@dataclass(frozen=True, slots=True)
class CallNames:
    """What calls are: (level << 32 | type) and item hashes (operator, model), by index."""

    types: NDArray[np.uint64]
    items: NDArray[np.uint64]

    def level(self) -> NDArray[np.int64]:
        """Return the level of every type index."""
        return (self.types >> np.uint64(32)).astype(np.int64)

    def type_pairs(self) -> list[tuple[int, int]]:
        """Return (level, type) of every type index."""
        return [(value >> 32, value & 0xFFFFFFFF) for value in self.types.tolist()]

    def intervals(self, calls: Rows, level: int) -> Intervals:
        """Return the calls of one level that tasks can lie in: those that are not empty."""
        of_level = self.level() == level
        calls = selected(calls, of_level[calls["type_index"]] & (calls["key"] != calls["end"]))
        begin = calls["key"]
        if level == NODE and (begin[1:] == begin[:-1]).any():
            # The longer of two that begin together is outside.
            calls = selected(calls, np.lexsort((~calls["end"], begin)))
        return Intervals(
            calls["key"].copy(),
            calls["end"].copy(),
            calls["connection_id"].astype(np.int64),
            calls["item"].copy(),
            calls["type_index"].copy(),
        )


def read_calls(host: HostDirectory, timeline: Timeline, spool: Spool, sink: Sink) -> CallNames:
    """Put away every call, pairing those recorded as two events."""
    types, items = Pool(), Pool()
    items.index_of(np.zeros(1, np.uint64))  # index 0: no item
    events: list[Records] = []

    def add(rows: Records) -> None:
        rows = _usable(rows, timeline, sink)
        calls = np.zeros(len(rows), CALL)
        calls["key"] = timeline.pack(rows["thread_id"], rows["begin"])
        calls["end"] = timeline.move(calls["key"], rows["end"])
        kind = rows["level"].astype(np.uint64) << np.uint64(32) | rows["type"]
        calls["type_index"] = types.index_of(kind)
        if len(types) > _MAX_TYPES:
            raise RawFormatError(
                f"{host.data.path}: more than {_MAX_TYPES} kinds of calls", slug="damaged-recording"
            )
        named = np.flatnonzero(np.isin(rows["level"], (NODE, COMMUNICATION, MODEL)))
        calls["item"][named] = items.index_of(rows["item_id"][named])
        spool.append(calls)

    file = host.data.host_file("api_event")
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
    return CallNames(types.values, items.values)


class CallWriter:
    """Writes CANN_API: calls that end in the session or after it."""

    def __init__(
        self, names: CallNames, host: HostDirectory, timeline: Timeline, sink: Sink
    ) -> None:
        self._names, self._host, self._timeline, self._sink = names, host, timeline, sink
        self._levels = names.level()
        self._type_ids = sink.strings.intern_all(
            host.dictionaries.type_name(level, kind) for level, kind in names.type_pairs()
        )
        self._item_ids = np.full(len(names.items), -1, np.int64)
        self._process = (host.info.integer("pid") or 0) << 32

    def write(self, calls: Rows) -> None:
        """Write some calls."""
        clock, timeline = self._host.clocks.host, self._timeline
        end_ns = clock.to_ns(timeline.ticks(calls["end"]))
        keep = end_ns >= self._host.session.start_ns
        if not keep.all():
            calls, end_ns = selected(calls, keep), end_ns[keep]
        if not len(calls):
            return
        kind = calls["type_index"]
        names = self._type_ids[kind]
        named = np.flatnonzero(self._levels[kind] == COMMUNICATION)
        if len(named):
            names[named] = self._named(calls["item"][named])
        self._sink.write(
            "CANN_API",
            {
                "startNs": clock.to_ns(timeline.ticks(calls["key"])),
                "endNs": end_ns,
                "type": self._levels[kind],
                "globalTid": self._process | timeline.thread_ids(calls["key"]),
                "connectionId": calls["connection_id"].astype(np.int64),
                "name": names,
            },
        )

    def _named(self, items: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the string ids of items."""
        new = np.unique(items[self._item_ids[items] < 0])
        if len(new):
            dictionaries = self._host.dictionaries
            self._item_ids[new] = dictionaries.string_ids(
                self._sink.strings, self._names.items[new]
            )
        return self._item_ids[items]


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
