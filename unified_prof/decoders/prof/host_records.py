"""Reads host records in windows, with keys that sort by thread and time, and decodes host calls.

Calls of one level are intervals (begin, end]. NODE calls on a thread may nest. Calls of other
levels do not nest, so a call that begins before the previous one has ended is dropped.

Records are sorted by thread and time and belong to the calls that enclose them. A window ends where
a call begins and no NODE or communication call is open, so each window can be decoded separately.
Open calls of outer levels are carried over into the next window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import (
    NOWHERE,
    Bools,
    Frame,
    Ints,
    Pool,
    Runs,
    find,
    order_of_keys,
    positions,
)
from unified_prof.base.columns import Sink, count_marked, kept
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.slices import RawFile
from unified_prof.decoders.spool import Rows, Spool, copied, row_type, selected, stacked, windows
from unified_prof.errors import RawFormatError

Keys = NDArray[np.uint64]
_TIME_BITS = 48
_TIME_MASK = np.uint64((1 << _TIME_BITS) - 1)
_BEFORE_START = 1 << 46
_MAX_THREADS = 1 << (64 - _TIME_BITS)


class Timeline:
    """Packs (thread, host counter) into sortable keys: thread in the high bits, time below.

    With a counter of 100 MHz, times may be up to about 8 days before and 24 days after the start of
    the recording; with a counter in ns, a tenth of that.
    """

    def __init__(self, origin_ticks: int) -> None:
        self.base = max(0, origin_ticks - _BEFORE_START)
        self.threads = Pool()
        # Differences of unsigned times wrap: times before the base are above this.
        self._max_relative = np.uint64(min(int(_TIME_MASK), (1 << 64) - 1 - self.base))

    def fits(self, ticks: NDArray[np.uint64]) -> Bools:
        """Return a mask of the times that can be packed."""
        return np.asarray(ticks - np.uint64(self.base) <= self._max_relative)

    def pack(self, thread_id: NDArray[Any], ticks: NDArray[np.uint64]) -> Keys:
        """Return the keys of times; times that do not fit are clipped.

        Raises RawFormatError if there are more threads than supported.
        """
        rank = self.threads.index_of(thread_id).astype(np.uint64)
        if len(self.threads) > _MAX_THREADS:
            message = f"records of more than {_MAX_THREADS} threads"
            raise RawFormatError(message, slug="damaged-recording")
        return rank << np.uint64(_TIME_BITS) | self._relative(ticks)

    def move(self, keys: Keys, ticks: NDArray[np.uint64]) -> Keys:
        """Return keys with the threads of `keys` and other times."""
        return (keys & ~_TIME_MASK) | self._relative(ticks)

    def ticks(self, keys: Keys) -> NDArray[np.uint64]:
        """Return the times of keys."""
        return (keys & _TIME_MASK) + np.uint64(self.base)

    def thread_ids(self, keys: Keys) -> Ints:
        """Return the thread ids of keys."""
        ranks = keys >> np.uint64(_TIME_BITS)
        return np.asarray(self.threads.values[ranks], np.int64)

    def _relative(self, ticks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base = np.uint64(self.base)
        relative = ticks - base
        if len(relative) and relative.max() > self._max_relative:
            relative = np.minimum(np.maximum(ticks, base) - base, _TIME_MASK)
        return np.asarray(relative, np.uint64)


def host_records(
    host: HostDirectory, envelope: str, kind: str, sink: Sink, *, prefix: str | None = None
) -> Iterator[Rows]:
    """Return the valid records of one kind in chunks; those with a wrong magic number are counted.

    `envelope` is `compact` or `additional`, `kind` the name of the file and the layout. `prefix` is
    `unaging` (static) or `aging` to read only these files; by default both, in this order.
    """
    name = f"{envelope}.{kind}"
    file = host.data.host_file(name) if prefix is None else host.data.get(f"{prefix}.{name}")
    return valid_records(file, kind, sink)


def valid_records(file: RawFile, kind: str, sink: Sink) -> Iterator[Rows]:
    """Yield the records of a host file with the correct magic number; other records are counted.

    Slices of host files contain complete records. A slice that does not is truncated and is read
    separately.
    """
    record_bytes = record_type(kind).itemsize
    cut = [part for part in file.by_slice() if part.size_bytes % record_bytes]
    if cut:
        sink.anomaly("cut_slice", len(cut), f"{cut[0].paths[0]} ends inside a record")
    for part in file.by_slice() if cut else (file,):
        for piece in part.pieces(kind, magic=HOST_MAGIC):
            good = piece["magic"] == HOST_MAGIC
            yield kept(piece, good, sink, f"bad_magic_{kind}", f"{file.name} records")


def with_keys(records: Rows, kind: str, timeline: Timeline, sink: Sink) -> tuple[Rows, Keys]:
    """Return the records with a valid time, and their keys."""
    good = timeline.fits(records["timestamp"])
    records = kept(records, good, sink, f"impossible_time_{kind}", f"{kind} records were skipped")
    return records, timeline.pack(records["thread_id"], records["timestamp"])


def spool_records(
    host: HostDirectory,
    envelope: str,
    kind: str,
    timeline: Timeline,
    spool: Spool,
    sink: Sink,
    current: Callable[[Rows], Rows] = lambda records: records,
) -> None:
    """Append the records of a kind, converted to the `current` layout, and their keys."""
    for records in map(current, host_records(host, envelope, kind, sink)):
        records, key = with_keys(records, kind, timeline, sink)
        rows = np.empty(len(records), spool.dtype)
        rows["key"], rows["record"] = key, records
        spool.append(rows)


@dataclass(frozen=True, slots=True)
class Intervals(Frame):
    """Calls of one level, sorted by thread and begin; columns of equal length."""

    begin: Keys
    end: Keys
    connection_id: Ints
    item: NDArray[np.uint32]  # Index into `CallNames.items`.
    type_index: NDArray[np.uint16]  # Index into `CallNames.types`.

    def find(self, keys: Keys) -> Ints:
        """Return the innermost call (started last) that encloses each key, or NOWHERE."""
        row = np.searchsorted(self.begin, keys, side="left").astype(np.int64) - 1
        if not len(self):
            return row
        outside = np.flatnonzero((row >= 0) & (self.end[row] < keys))
        if len(outside):
            row[outside] = _last_reaching(self.end, row[outside], keys[outside])
        return row


def in_calls(
    calls: Intervals, rows: Rows, kind: str, sink: Sink, outside: str = "calls"
) -> tuple[Ints, Rows]:
    """Return the enclosing calls of records, and the records that have one; others are counted."""
    call = calls.find(rows["key"])
    inside = call != NOWHERE
    if inside.all():
        return call, rows
    count_marked(sink, f"unplaced_{kind}", ~inside, f"{kind} records outside {outside}")
    return call[inside], selected(rows, inside)


def sorted_by_call(call: Ints, rows: Rows) -> tuple[Ints, Rows]:
    """Return both arrays, sorted by call."""
    order = order_of_keys(call)
    return (call, rows) if order is None else (call[order], selected(rows, order))


def last_in_calls(
    calls: Intervals, rows: Rows, kind: str, sink: Sink, outside: str = "calls"
) -> tuple[Ints, Rows]:
    """Return the calls with records, and the last record of each call."""
    call, rows = sorted_by_call(*in_calls(calls, rows, kind, sink, outside))
    last = Runs(call).last
    return (call, rows) if len(last) == len(call) else (call[last], selected(rows, last))


class CallTree(Struct, frozen=True):
    """Calls that may launch tasks, by level."""

    acl: Intervals
    model: Intervals
    node: Intervals
    communication: Intervals


def without_overlaps(calls: Intervals) -> Intervals:
    """Drop calls that begin before the previous kept call has ended."""
    if not (calls.begin[1:] < calls.end[:-1]).any():
        return calls
    # Each call determines the next one kept; all calls reached from the first are kept. Ends of a
    # thread are below the begins of the next, so threads need not be separated.
    count = len(calls)
    following = np.r_[np.searchsorted(calls.begin, calls.end, side="left"), count]
    following = np.maximum(following, np.r_[np.arange(1, count + 1), count])
    kept = np.zeros(count + 1, bool)
    kept[0] = True
    while True:
        kept[following[np.flatnonzero(kept)]] = True
        if following[0] == count:
            break
        following = following[following]
    return calls.take(kept[:count])


def _last_reaching(end: Keys, start: Ints, keys: Keys) -> Ints:
    """Return for each query the last row up to `start` whose end is not before the key.

    The search uses a tree of block maxima and takes about 2 log2(n) steps for all queries together.
    """
    result = np.full(len(start), NOWHERE, np.int64)
    reach = np.maximum.accumulate(end)
    query = np.flatnonzero(reach[start] >= keys)  # no call reaches the others
    if not len(query):
        return result
    pyramid = [end]
    while len(pyramid[-1]) > 1:
        below = pyramid[-1]
        paired = below[: len(below) // 2 * 2].reshape(-1, 2).max(axis=1)
        pyramid.append(np.concatenate([paired, below[len(below) // 2 * 2 :]]))
    offsets = np.r_[0, np.cumsum([len(level) for level in pyramid])]
    blocks = np.concatenate(pyramid)
    level = np.zeros(len(query), np.int64)
    block = start[query].copy()
    key = keys[query]
    descending = np.zeros(len(query), bool)
    while True:
        descending |= blocks[offsets[level] + block] >= key
        down, up = descending & (level > 0), ~descending
        if not (down | up).any():
            break
        # Descend to the right half if it reaches the key, else to the left one.
        lower = np.maximum(level - 1, 0)
        right = np.minimum(2 * block + 1, offsets[lower + 1] - offsets[lower] - 1)
        right = np.where(down, right, 0)
        child = np.where(blocks[offsets[lower] + right] >= key, right, 2 * block)
        # Climb to the left neighbor; for a left half, to that of its parent.
        left_half = block % 2 == 0
        neighbor = np.where(left_half, block // 2 - 1, block - 1)
        block = np.where(down, child, np.where(up, neighbor, block))
        level = np.where(down, lower, np.where(up & left_half, level + 1, level))
    result[query] = block
    return result


ACL, MODEL, NODE, COMMUNICATION, RUNTIME = 20000, 15000, 10000, 5500, 5000

# End of an api_event record that is one of two events.
_EVENT = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_TYPES = 1 << 16

# A call: keys of begin and end, connection id, and indexes into `CallNames`.
CALL = row_type("key u8, end u8, connection_id u8, item u4, type_index u2")


class CallNames(Struct, frozen=True):
    """Types (level << 32 | type) and item hashes (operator, model) of calls by index."""

    types: NDArray[np.uint64]
    items: NDArray[np.uint64]

    def level(self) -> Ints:
        """Return the level for each type index."""
        return (self.types >> np.uint64(32)).astype(np.int64)

    def type_pairs(self) -> list[tuple[int, int]]:
        """Return (level, type) for each type index."""
        return [(value >> 32, value & 0xFFFFFFFF) for value in self.types.tolist()]

    def intervals(self, calls: Rows, level: int) -> Intervals:
        """Return the calls of one level whose duration is not 0."""
        of_level = self.level() == level
        calls = selected(calls, of_level[calls["type_index"]] & (calls["key"] != calls["end"]))
        begin = calls["key"]
        if level == NODE and (begin[1:] == begin[:-1]).any():
            # If two begin together, the longer one is the outer one.
            calls = selected(calls, np.lexsort((~calls["end"], begin)))
        return Intervals(
            calls["key"].copy(),
            calls["end"].copy(),
            calls["connection_id"].astype(np.int64),
            calls["item"].copy(),
            calls["type_index"].copy(),
        )


def read_calls(host: HostDirectory, timeline: Timeline, spool: Spool, sink: Sink) -> CallNames:
    """Append all calls to `spool`; calls recorded as two events are paired."""
    types, items = Pool(), Pool()
    items.index_of(np.zeros(1, np.uint64))  # index 0: no item
    events: list[Rows] = []

    def add(rows: Rows) -> None:
        # Calls with times far from the recording, or that end before they begin, are dropped.
        good = timeline.fits(rows["begin"]) & timeline.fits(rows["end"])
        good &= rows["begin"] <= rows["end"]
        name, detail = "impossible_time_api_event", "api_event records were skipped"
        rows = kept(rows, good, sink, name, detail)
        calls = np.zeros(len(rows), CALL)
        calls["key"] = timeline.pack(rows["thread_id"], rows["begin"])
        calls["end"] = timeline.move(calls["key"], rows["end"])
        kind = rows["level"].astype(np.uint64) << np.uint64(32) | rows["type"]
        calls["type_index"] = types.index_of(kind)
        if len(types) > _MAX_TYPES:
            message = f"{host.data.path}: more than {_MAX_TYPES} kinds of calls"
            raise RawFormatError(message, slug="damaged-recording")
        named = np.flatnonzero(np.isin(rows["level"], (NODE, COMMUNICATION, MODEL)))
        calls["item"][named] = items.index_of(rows["item_id"][named])
        spool.append(calls)

    for piece in valid_records(host.data.host_file("api_event"), "api_event", sink):
        is_event = piece["end"] == _EVENT
        if is_event.any():
            events.append(piece[is_event])
            add(piece[~is_event])
        else:
            add(piece)
    if events:
        add(_pair_events(stacked(events), sink))
    return CallNames(types.values, items.values)


class CallWriter:
    """Writes calls that end after the start of the session to CANN_API."""

    def __init__(
        self, names: CallNames, host: HostDirectory, timeline: Timeline, sink: Sink
    ) -> None:
        self._names, self._host, self._timeline, self._sink = names, host, timeline, sink
        self._levels = names.level()
        self._type_ids = sink.strings.intern_all(
            host.dictionaries.type_name(level, kind) for level, kind in names.type_pairs()
        )
        self._item_ids = np.full(len(names.items), -1, np.int64)
        self._process = host.process_id << 32

    def write(self, calls: Rows) -> None:
        """Write `CALL` rows."""
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
            names[named] = self._item_name_ids(calls["item"][named])
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

    def _item_name_ids(self, items: NDArray[np.uint32]) -> Ints:
        new = np.unique(items[self._item_ids[items] < 0])
        if len(new):
            self._item_ids[new] = self._host.dictionaries.string_ids(
                self._sink.strings, self._names.items[new]
            )
        return self._item_ids[items]


def _pair_events(events: Rows, sink: Sink) -> Rows:
    """Combine pairs of equal events into intervals, in file order."""
    fields = ("item_id", "request_id", "thread_id", "type", "level")
    order = np.lexsort([events[field] for field in fields])
    events = events[order]
    equal = Runs(*(events[field] for field in fields))
    rank = equal.rank()
    first = np.flatnonzero((rank % 2 == 0) & (rank + 1 < equal.spread(equal.sizes)))
    paired = events[first]
    paired["end"] = events["begin"][first + 1]
    sink.anomaly("unpaired_event", len(events) - 2 * len(first), "events without a second one")
    return paired


class HostWindow(Struct, frozen=True):
    """Host records of one window; each kind is sorted by key."""

    calls: Rows
    tree: CallTree
    others: tuple[Rows, ...]  # Rows of the other spools, in the order of the arguments.


def host_windows(
    calls: Spool, others: Sequence[Spool], names: CallNames, window_rows: int
) -> Iterator[HostWindow]:
    """Yield the rows of the spools in windows."""
    levels = names.level()
    inner = (levels == NODE) | (levels == COMMUNICATION)
    trees = _CallTrees(names)
    held: list[Rows] = [np.zeros(0, spool.dtype) for spool in (calls, *others)]
    first_id = 1
    enough = 0
    for read in windows(calls, *others, window_rows=window_rows):
        more_calls = copied(read[0])
        next_id = first_id + len(more_calls)
        more_calls["connection_id"] = np.arange(first_id, next_id, dtype=np.uint64)
        first_id = next_id
        held = [
            stacked((before, more)) if len(before) else more
            for before, more in zip(held, (more_calls, *read[1:]), strict=True)
        ]
        if len(held[0]) < enough:
            continue
        if not len(held[0]):
            yield HostWindow(held[0], trees.tree(held[0], None), tuple(held[1:]))
            held = [rows[:0] for rows in held]
            continue
        # The last call that begins when no inner call is open.
        begin, kind = held[0]["key"], held[0]["type_index"]
        reach = np.maximum.accumulate(np.where(inner[kind], held[0]["end"], np.uint64(0)))
        free = np.flatnonzero((begin[1:] >= reach[:-1]) & (begin[1:] > begin[:-1]))
        place = int(free[-1]) + 1 if len(free) else 0
        if place == 0:  # no gap: a call is open all the time; retry with twice the rows
            enough = 2 * len(held[0])
            continue
        enough = 0
        until = held[0]["key"][place]
        # A record at the start of a call is outside it, but may be in the call before.
        cuts = [place, *(np.searchsorted(rows["key"], until, side="right") for rows in held[1:])]
        parts = [rows[:cut] for rows, cut in zip(held, cuts, strict=True)]
        held = [rows[cut:] for rows, cut in zip(held, cuts, strict=True)]
        yield HostWindow(parts[0], trees.tree(parts[0], until), tuple(parts[1:]))
    if any(len(rows) for rows in held):
        yield HostWindow(held[0], trees.tree(held[0], None), tuple(held[1:]))


class _CallTrees:
    """Builds the call trees of consecutive windows."""

    def __init__(self, names: CallNames) -> None:
        self._names = names
        self._open: dict[int, Intervals] = {}

    def tree(self, calls: Rows, until: np.uint64 | None) -> CallTree:
        """Return the calls of a window and the calls still open from earlier windows, by level."""
        return CallTree(
            self._outer(calls, ACL, until),
            self._outer(calls, MODEL, until),
            self._names.intervals(calls, NODE),
            without_overlaps(self._names.intervals(calls, COMMUNICATION)),
        )

    def _outer(self, calls: Rows, level: int, until: np.uint64 | None) -> Intervals:
        intervals = self._names.intervals(calls, level)
        if level in self._open:
            intervals = Intervals.concatenate([self._open.pop(level), intervals])
        intervals = without_overlaps(intervals)
        if until is not None:
            still_open = np.flatnonzero(intervals.end > until)
            if len(still_open):
                self._open[level] = intervals.take(still_open)
        return intervals


class Contexts(Struct, frozen=True):
    """FFTS+ contexts of calls: sorted call rows, and a range in `ids` for each call."""

    row: Ints
    start: Ints
    stop: Ints
    ids: NDArray[np.uint32]

    def expand(self, rows: NDArray[Any]) -> tuple[Ints, NDArray[np.uint32]]:
        """Return all pairs (position in `rows`, context id) for the contexts of the given rows."""
        place = find(self.row, rows)
        have = np.flatnonzero(place != NOWHERE)
        start = self.start[place[have]]
        count = self.stop[place[have]] - start
        return np.repeat(have, count), self.ids[np.repeat(start, count) + positions(count)]
