"""Reads operators and Python calls from FRAMEWORK/; finds the operators that enclose a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Ints, Runs, last_not_after
from unified_prof.base.columns import NO_TEXT as NO_TEXT_ID
from unified_prof.base.columns import NOT_AVAILABLE, Sink, Strings
from unified_prof.decoders.ascend_pt.folder import DAMAGED, Layout, read_flat, read_records

NO_TEXT = -1  # Number of a missing or empty field.
# String id of an empty name; torch_npu writes no row of STRING_IDS for it.
NO_NAME = NO_TEXT_ID
NOT_UTF8 = NOT_AVAILABLE


class Texts:
    """Assigns indexes to distinct strings, in the order of first use."""

    def __init__(self, change: Callable[[str], str] = lambda text: text) -> None:
        self._numbers: defaultdict[bytes, int] = defaultdict(count().__next__)
        self._change = change
        self._numbers[b""] = NO_TEXT

    def numbers(self, data: bytes, start: Ints, length: Ints) -> Ints:
        """Return the string indexes of fields; missing fields have a negative `start`."""
        raws = [
            data[a : a + n] if a >= 0 else b""
            for a, n in zip(start.tolist(), length.tolist(), strict=True)
        ]
        return np.fromiter(map(self._numbers.__getitem__, raws), np.int64, len(raws))

    def numbers_of(self, texts: Iterable[str]) -> Ints:
        """Return the indexes of strings; `NO_TEXT` for empty strings."""
        raws = (text.encode("utf-8", "backslashreplace") for text in texts)
        return np.fromiter(map(self._numbers.__getitem__, raws), np.int64)

    @property
    def all(self) -> list[str]:
        """Strings by index; `N/A` for bytes that are not UTF-8."""
        return [self._change(decoded(raw)) for raw in self._numbers if raw]

    def matching(self, test: Callable[[str], bool]) -> Bools:
        """Return a mask of strings for which `test` is true; the last element is for `NO_TEXT`."""
        return np.array([*map(test, self.all), test("")], bool)


def decoded(raw: bytes) -> str:
    """Decode the bytes of a field."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


def string_ids(strings: Strings, texts: Texts, numbers: Ints) -> Ints:
    """Return the string ids of the texts at some indexes; `NO_NAME` for `NO_TEXT`."""
    ids = np.append(strings.intern_all(texts.all), NO_NAME)
    return np.asarray(ids[numbers])


Clock = Callable[[Ints], Ints]
NONE = intervals.NONE
STEP = "ProfilerStep#"
MARK = "mstx_"

_COMMON = [
    *((name, "<i8") for name in ("start", "end", "sequence")),
    *((name, "<u8") for name in ("pid", "tid", "end_tid", "forward_tid")),
]
# Files since September 2024 have a scope. Unused bytes are not listed.
LAYOUTS = (
    Layout(np.dtype([*_COMMON, ("scope", "u1"), ("is_async", "u1")])),
    Layout(np.dtype([*_COMMON, ("is_async", "u1")])),
)
_KIND = 1
_NAME, _TYPES, _SHAPES, _STACK = 2, 3, 4, 8
_MOST_LEVELS = 10_000


class Operators:
    """Operators sorted by thread and start; longer ones first (`intervals.call_order`)."""

    def __init__(
        self, columns: dict[str, Ints], names: Texts, types: Texts, shapes: Texts, stacks: Texts
    ) -> None:
        """Sort operators.

        `columns` are start and end (Unix time in ns), sequence, pid, tid, forward_tid; `number`,
        the position in the order of recording (by end); indexes into the other arguments: name,
        types and shapes of inputs, call stack.
        """
        self.names, self.types, self.shapes, self.stacks = names, types, shapes, stacks
        start, end, number = columns["start"], columns["end"], columns["number"]
        order = intervals.call_order(columns["tid"], start, end, -number)
        # Position in the order of recording, which is the order of the ends.
        self.number = number[order]
        self.start_ns, self.end_ns = start[order], end[order]
        self.sequence = columns["sequence"][order]
        self.tid, self.forward_tid = columns["tid"][order], columns["forward_tid"][order]
        self.name, self.type = columns["name"][order], columns["type"][order]
        self.shape, self.stack = columns["shape"][order], columns["stack"][order]
        # Process of the first recorded operator, which torch_npu uses for all.
        self.pid = int(columns["pid"][np.argmin(number)]) if len(number) else None

    @classmethod
    def read(cls, path: Path | None, clock: Clock, sink: Sink) -> Operators:
        """Read the operators from a file; return no operators if the file is missing."""
        names, changed = Texts(), [Texts(lambda text: text.replace(";", ";\r\n")) for _ in range(3)]
        texts = (names, *changed)
        batches = [] if path is None else _batches(path, texts, sink)
        columns = {
            name: np.concatenate([_NO_ROWS, *(batch[name] for batch in batches)])
            for name in COLUMNS
        }
        columns["start"], columns["end"] = clock(columns["start"]), clock(columns["end"])
        return cls(columns, *texts)

    def __len__(self) -> int:
        return len(self.start_ns)

    def match(self, test: Callable[[str], bool]) -> Bools:
        """Return a mask of the operators for whose names `test` is true."""
        return self.names.matching(test)[self.name]

    def around(self, tid: Ints, start_ns: Ints, end_ns: Ints, chosen: Bools | None = None) -> Ints:
        """Return the innermost (`chosen`) operator around each interval on a thread, or NONE."""
        counts = np.ones(len(self), np.bool_) if chosen is None else chosen
        innermost = self.begun(tid, start_ns - 1)
        return self._climb(
            innermost, self._longer, lambda at, rows: counts[at] & (self.end_ns[at] > end_ns[rows])
        )

    def begun(self, tid: Ints, at_ns: Ints, chosen: Bools | None = None) -> Ints:
        """Return the last (`chosen`) operator that started on a thread by each time, or NONE."""
        rows = np.arange(len(self)) if chosen is None else np.flatnonzero(chosen)
        last = last_not_after(self.tid[rows], self.start_ns[rows], tid, at_ns)
        return np.append(rows, NONE)[last]

    def not_ended(self, operator: Ints, at_ns: Ints) -> Ints:
        """Return each operator, or its nearest ancestor, that ends at or after a time."""
        return self._climb(operator, self.parent, lambda at, rows: self.end_ns[at] >= at_ns[rows])

    def nearest(self, operator: Ints, marked: Bools) -> Ints:
        """Return each operator or its nearest ancestor in the mask `marked`, or NONE."""
        return self._climb(operator, self.parent, lambda at, _: marked[at])

    @cached_property
    def parent(self) -> Ints:
        """Parent of each operator: the innermost open operator of any thread at its start, or NONE.

        As in torch_npu, all threads share one tree; an operator is open up to and including its
        end.
        """
        order = np.lexsort((self.number, -self.end_ns, self.start_ns))
        start, end = self.start_ns[order], self.end_ns[order]
        parent = intervals.parents(np.zeros(len(order), np.int64), start - 1, end)
        result = np.full(len(order), NONE, np.int64)
        result[order] = np.where(parent == NONE, NONE, order[parent])
        return result

    @cached_property
    def _longer(self) -> Ints:
        """Index of the nearest preceding operator on the thread that does not end earlier."""
        return intervals.containing(self.tid, self.end_ns)

    def _climb(self, start: Ints, above: Ints, is_it: Callable[[Ints, Ints], Bools]) -> Ints:
        found = start.copy()
        rows = np.flatnonzero(found != NONE)
        for _ in range(_MOST_LEVELS):
            rows = rows[~is_it(found[rows], rows)]
            if not len(rows):
                return found
            found[rows] = above[found[rows]]
            rows = rows[found[rows] != NONE]
        found[rows] = NONE
        return found


def _batches(path: Path, texts: tuple[Texts, ...], sink: Sink) -> list[dict[str, Ints]]:
    result = []
    wanted = {"name": _NAME, "type": _TYPES, "shape": _SHAPES, "stack": _STACK}
    for batch in read_records(path, _KIND, LAYOUTS, tuple(wanted.values()), sink):
        columns = {
            name: batch.fixed[name].astype(np.int64)
            for name in ("start", "end", "sequence", "pid", "tid", "forward_tid")
        }
        columns["number"] = batch.number
        for (name, kind), pool in zip(wanted.items(), texts, strict=True):
            columns[name] = pool.numbers(batch.data, *batch.fields[kind])
        result.append(columns)
    return result


COLUMNS = "start end sequence pid tid forward_tid number name type shape stack".split()
_NO_ROWS = np.zeros(0, np.int64)
_EVENT = np.dtype([("time", "<u8"), ("tid", "<u8"), ("pid", "<u8"), ("key", "<u8"), ("tag", "u1")])
_TAGS = 4
HASH_LAYOUTS = (Layout(np.dtype([("key", "<u8")])),)
_HASH_KIND = 4
_TEXT = 1
# Separates the class of a module from the number of the instance.
_UID_AFTER = "######"


class Frames(Struct, frozen=True, eq=False):
    """Calls of Python functions and modules."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    pid: Ints
    name: Ints  # Index into `names`.
    names: list[str]

    @staticmethod
    def none() -> Frames:
        """Return no calls."""
        nothing = np.zeros(0, np.int64)
        return Frames(nothing, nothing, nothing, nothing, nothing, [])


def read_frames(calls: Path | None, names: Path | None, clock: Clock, sink: Sink) -> Frames:
    """Read the calls; as in torch_npu, both files are required."""
    if calls is None or names is None:
        if calls is not None:
            detail = f"{calls}: the file of names is missing, so the calls are dropped"
            sink.anomaly("undecoded_data", 1, detail)
        return Frames.none()
    events = read_flat(calls, _EVENT, sink)
    bad = events["tag"] >= _TAGS
    if bad.any():
        detail = f"{calls}: an event with the unknown tag {events['tag'][bad][0]}"
        sink.anomaly(DAMAGED, int(bad.sum()), detail)
        events = events[~bad]
    if not len(events):
        return Frames.none()
    time, tid = clock(events["time"]), events["tid"].astype(np.int64)
    order = np.lexsort((time, tid))
    time, tid, events = time[order], tid[order], events[order]
    call, end = _pair_returns(tid, events["tag"] % 2 == 0)
    threads = Runs(tid)
    last = threads.spread(time[threads.last])
    texts = _texts(names, sink)
    name, all_names = _call_names(events["key"][call], tid[call], texts)
    return Frames(
        time[call],
        np.where(end >= 0, time[end], last[call]),
        tid[call],
        events["pid"][call].astype(np.int64),
        name,
        all_names,
    )


def _pair_returns(tid: Ints, is_call: Bools) -> tuple[Ints, Ints]:
    """Return the rows of calls and of their returns; -1 for calls without a return.

    A return ends the innermost open call on its thread, even if the function names differ. A return
    without an open call is ignored.
    """
    threads = Runs(tid)
    steps = np.where(is_call, 1, -1)
    height = np.cumsum(steps)
    height -= threads.spread((height - steps)[threads.starts])
    # A return on an empty stack is a new minimum of the height.
    lowest = np.minimum(height, 0)
    for start, size in zip(threads.starts.tolist(), threads.sizes.tolist(), strict=True):
        part = lowest[start : start + size]
        np.minimum.accumulate(part, out=part)
    before = np.append(0, lowest[:-1])
    before[threads.starts] = 0
    ignored = ~is_call & (lowest < before)
    depth = height - lowest + ~is_call  # of the call that is opened or closed
    used = np.flatnonzero(~ignored)
    # Calls and returns of one thread and depth alternate.
    order = used[np.lexsort((used, depth[used], tid[used]))]
    ends = np.full(len(tid), -1, np.int64)
    follows = (
        is_call[order[:-1]]
        & ~is_call[order[1:]]
        & (tid[order[:-1]] == tid[order[1:]])
        & (depth[order[:-1]] == depth[order[1:]])
    )
    ends[order[:-1][follows]] = order[1:][follows]
    call = np.flatnonzero(is_call)
    return call, ends[call]


def _texts(path: Path, sink: Sink) -> dict[int, str]:
    texts: dict[int, str] = {}
    for batch in read_records(path, _HASH_KIND, HASH_LAYOUTS, (_TEXT,), sink):
        starts, lengths = batch.fields[_TEXT]
        keys = batch.fixed["key"].tolist()
        for key, start, length in zip(keys, starts.tolist(), lengths.tolist(), strict=True):
            texts[key] = decoded(batch.data[start : start + length]) if start >= 0 else ""
    return texts


def _call_names(
    keys: NDArray[np.uint64], tid: Ints, texts: dict[int, str]
) -> tuple[Ints, list[str]]:
    """Return the index of each call's name, and the list of names.

    Modules are named `nn.Module: Class_k`, where k numbers the instances of the class on the thread
    in the order of their first calls. An instance keeps its k even if later calls name another
    class.
    """
    distinct, key = np.unique(keys, return_inverse=True)
    known = [texts.get(value, str(value)) for value in distinct.tolist()]
    names: dict[str, int] = {}
    place = np.array([names.setdefault(text, len(names)) for text in known], np.int64)
    result = place[key]
    is_module = np.array([_UID_AFTER in text for text in known], bool)[key]
    rows = np.flatnonzero(is_module)
    # There are few pairs of thread and module, but many calls.
    pair = np.stack([tid[rows], key[rows]])
    pairs, first, inverse = np.unique(pair, axis=1, return_index=True, return_inverse=True)
    chosen = np.zeros(len(first), np.int64)
    instances: dict[tuple[int, str], int] = {}
    counts: Counter[tuple[int, str]] = Counter()
    for number in np.argsort(first).tolist():
        thread, text = int(pairs[0, number]), known[int(pairs[1, number])]
        kind, _, uid = text.partition(_UID_AFTER)
        if (thread, uid) not in instances:
            instances[thread, uid] = counts[thread, kind]
            counts[thread, kind] += 1
        title = f"nn.Module: {kind}_{instances[thread, uid]}"
        chosen[number] = names.setdefault(title, len(names))
    result[rows] = chosen[inverse.reshape(-1)]
    return result, list(names)
