"""Python calls: frames and modules, from the events of Python's tracer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs
from unified_prof.columns import Sink
from unified_prof.decoders.ascend_pt.operators import Clock
from unified_prof.decoders.ascend_pt.records import DAMAGED, Layout, read_flat, read_records
from unified_prof.decoders.ascend_pt.texts import decoded

Ints = NDArray[np.int64]

_EVENT = np.dtype([("time", "<u8"), ("tid", "<u8"), ("pid", "<u8"), ("key", "<u8"), ("tag", "u1")])
_TAGS = 4
_HASH = (Layout(np.dtype([("key", "<u8")])),)
_HASH_KIND = 4
_TEXT = 1
_UID_AFTER = "######"
"""Stands between the class of a module and the number of the instance."""


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Calls of Python functions and modules."""

    start_ns: Ints
    end_ns: Ints
    tid: Ints
    pid: Ints
    name: Ints
    """Place in `names`."""
    names: list[str]

    @staticmethod
    def none() -> Frames:
        """Return no calls at all."""
        nothing = np.zeros(0, np.int64)
        return Frames(nothing, nothing, nothing, nothing, nothing, [])


def read_frames(calls: Path | None, names: Path | None, clock: Clock, sink: Sink) -> Frames:
    """Read the calls; both files have to be there, as for torch_npu.

    Raises:
        RawFormatError: a file cannot be read.
    """
    if calls is None or names is None:
        if calls is not None:
            told = f"{calls} has no names beside it: its calls are left out"
            sink.anomaly("undecoded_data", 1, told)
        return Frames.none()
    events = read_flat(calls, _EVENT, sink)
    bad = events["tag"] >= _TAGS
    if bad.any():
        sink.anomaly(DAMAGED, int(bad.sum()), f"{calls}: an event of tag {events['tag'][bad][0]}")
        events = events[~bad]
    if not len(events):
        return Frames.none()
    time, tid = clock(events["time"]), events["tid"].astype(np.int64)
    order = np.lexsort((time, tid))
    time, tid, events = time[order], tid[order], events[order]
    call, end = _paired(tid, events["tag"] % 2 == 0)
    threads = Runs(tid)
    last = threads.spread(time[threads.last])
    texts = _texts(names, sink)
    name, all_names = _named(events["key"][call], tid[call], texts)
    return Frames(
        time[call],
        np.where(end >= 0, time[end], last[call]),
        tid[call],
        events["pid"][call].astype(np.int64),
        name,
        all_names,
    )


def _paired(tid: Ints, is_call: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the place of every call, in order, and that of its return, -1 where it has none.

    A return ends the innermost call that is open on its thread, whatever it is of; one on an empty
    stack ends nothing.
    """
    threads = Runs(tid)
    steps = np.where(is_call, 1, -1)
    height = np.cumsum(steps)
    height -= threads.spread((height - steps)[threads.starts])
    # Returns on an empty stack lower the ground: each new low is one.
    ground = _running_lowest(np.minimum(height, 0), threads)
    before = np.append(0, ground[:-1])
    before[threads.starts] = 0
    ignored = ~is_call & (ground < before)
    depth = height - ground + ~is_call  # of the call that is opened or closed
    used = np.flatnonzero(~ignored)
    # Of one thread and depth, calls and returns take turns.
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


def _running_lowest(values: Ints, threads: Runs) -> Ints:
    result = values.copy()
    for start, size in zip(threads.starts.tolist(), threads.sizes.tolist(), strict=True):
        part = result[start : start + size]
        np.minimum.accumulate(part, out=part)
    return result


def _texts(path: Path, sink: Sink) -> dict[int, str]:
    texts: dict[int, str] = {}
    for batch in read_records(path, _HASH_KIND, _HASH, (_TEXT,), sink):
        starts, lengths = batch.fields[_TEXT]
        for key, start, length in zip(
            batch.fixed["key"].tolist(), starts.tolist(), lengths.tolist(), strict=True
        ):
            texts[key] = decoded(batch.data[start : start + length]) if start >= 0 else ""
    return texts


def _named(keys: NDArray[np.uint64], tid: Ints, texts: dict[int, str]) -> tuple[Ints, list[str]]:
    """Return the name of every call as a place among all names.

    A module is `nn.Module: Class_k`: k counts the instances of the class on the thread, in the
    order of their first calls. An instance keeps its k under whatever class it is called.
    """
    distinct, key = np.unique(keys, return_inverse=True)
    known = [texts.get(one, str(one)) for one in distinct.tolist()]
    names: dict[str, int] = {}
    place = np.array([names.setdefault(text, len(names)) for text in known], np.int64)
    result = place[key]
    is_module = np.array([_UID_AFTER in text for text in known], bool)[key]
    rows = np.flatnonzero(is_module)
    # Threads times modules are few, calls are many.
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
