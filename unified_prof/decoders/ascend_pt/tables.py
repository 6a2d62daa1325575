"""Writes PYTORCH_API and the tables it refers to, STEP_TIME and GC_RECORD."""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.grouping import Bools, Ints, Runs
from unified_prof.base.columns import API_NAMES, API_OPERATION, API_PYTHON, API_QUEUE, Column, Sink
from unified_prof.decoders.ascend_pt import queue as links
from unified_prof.decoders.ascend_pt.operators import (
    NO_TEXT,
    NONE,
    STEP,
    Frames,
    Operators,
    Texts,
    string_ids,
)
from unified_prof.decoders.ascend_pt.queue import Intervals, Queue

_ROWS = 200_000


def write_types(sink: Sink) -> None:
    """Write the rows that torch_npu adds to ENUM_API_TYPE."""
    sink.write("ENUM_API_TYPE", {"id": list(API_NAMES), "name": list(API_NAMES.values())})


def write_operators(
    operators: Operators, names: Ints, connections: tuple[Ints, Ints], pid: int, sink: Sink
) -> int:
    """Write operators, their connections and call stacks; return the number of connection ids.

    `names` are the string ids of the operators, `connections` pairs of operator and connection
    number, `pid` is the process of all rows.
    """
    rows, numbers = connections
    connected, place = np.unique(rows, return_inverse=True)
    _write_connections(place.reshape(-1), numbers, sink)
    connection = np.full(len(operators), NONE, np.int64)
    connection[connected] = np.arange(len(connected))
    types = _optional(operators.types, operators.type, sink)
    shapes = _optional(operators.shapes, operators.shape, sink)
    for first in range(0, len(operators), _ROWS):
        part = slice(first, first + _ROWS)
        sink.write(
            "PYTORCH_API",
            {
                "startNs": operators.start_ns[part],
                "endNs": operators.end_ns[part],
                "globalTid": _threads(pid, operators.tid[part]),
                "connectionId": _null_where(connection[part] == NONE, connection[part]),
                "name": names[part],
                "sequenceNumber": operators.sequence[part],
                "fwdThreadId": operators.forward_tid[part],
                "inputDtypes": types[part],
                "inputShapes": shapes[part],
                "callchainId": _null_where(operators.stack[part] == NO_TEXT, operators.stack[part]),
                "type": API_OPERATION,
            },
        )
    _write_stacks(operators.stacks, sink)
    return len(connected)


def write_queue(queue: Queue, pid: int, first_id: int, sink: Sink) -> None:
    """Write the enqueues and dequeues of the task queue."""
    plain = sink.strings.intern("Enqueue")
    kernels = queue.names.all
    dequeue_names, enqueue_names = (
        np.append(
            sink.strings.intern_all(f"{side}@{name}" for name in kernels),
            sink.strings.intern(f"{side}@"),
        )
        for side in ("Dequeue", "Enqueue")
    )
    partner = _partners(queue)
    names = np.full(len(queue.enqueues), plain, np.int64)
    has = partner != NONE
    names[has] = enqueue_names[queue.dequeues.name[partner[has]]]
    write_queue_side(queue.enqueues, names, pid, first_id, sink)
    names = dequeue_names[queue.dequeues.name]
    write_queue_side(queue.dequeues, names, pid, first_id + len(queue.enqueues), sink)


def write_frames(frames: Frames, sink: Sink) -> None:
    """Write calls of Python functions and modules."""
    names = sink.strings.intern_all(frames.names)
    for first in range(0, len(frames.start_ns), _ROWS):
        part = slice(first, first + _ROWS)
        sink.write(
            "PYTORCH_API",
            {
                "startNs": frames.start_ns[part],
                "endNs": frames.end_ns[part],
                "globalTid": _threads(frames.pid[part], frames.tid[part]),
                "name": names[frames.name[part]],
                "type": API_PYTHON,
            },
        )


def write_collections(start_ns: Ints, end_ns: Ints, pid: Ints, sink: Sink) -> None:
    """Write GC_RECORD: the runs of Python's garbage collector."""
    if len(start_ns):
        columns = {"startNs": start_ns, "endNs": end_ns, "globalTid": _threads(pid, pid)}
        sink.write("GC_RECORD", columns)


def write_steps(operators: Operators, sink: Sink) -> None:
    """Write STEP_TIME: step operators outside any other operator, as torch_npu does."""
    rows = np.flatnonzero(operators.match(lambda name: STEP in name))
    is_outermost = operators.parent[rows] == NONE if len(rows) else np.zeros(0, bool)
    if inside := int((~is_outermost).sum()):
        name = operators.names.all[operators.name[rows[~is_outermost][0]]]
        detail = f"{name} started inside another operator and is not a step for torch_npu"
        sink.anomaly("step_inside_operator", inside, detail)
    rows = rows[is_outermost]
    rows = rows[np.argsort(operators.start_ns[rows], kind="stable")]
    texts = operators.names.all
    numbers = [texts[name].rpartition("#")[2] for name in operators.name[rows].tolist()]
    usable = np.array([text.isascii() and text.isdigit() and len(text) < 19 for text in numbers])
    usable = usable.astype(bool)
    if odd := len(rows) - int(usable.sum()):
        sink.anomaly("step_without_number", odd, texts[operators.name[rows[~usable][0]]])
    rows = rows[usable]
    if len(rows):
        sink.write(
            "STEP_TIME",
            {
                "id": [int(text) for text, good in zip(numbers, usable, strict=True) if good],
                "startNs": operators.start_ns[rows],
                "endNs": operators.end_ns[rows],
            },
        )


def _partners(queue: Queue) -> Ints:
    """Return for each enqueue the last dequeue with the same correlation id, or NONE."""
    distinct, last = np.unique(queue.dequeues.correlation[::-1], return_index=True)
    rows = len(queue.dequeues) - 1 - last
    if not len(distinct):
        return np.full(len(queue.enqueues), NONE, np.int64)
    place = np.minimum(np.searchsorted(distinct, queue.enqueues.correlation), len(distinct) - 1)
    return np.where(distinct[place] == queue.enqueues.correlation, rows[place], NONE)


def write_queue_side(side: Intervals, names: Ints, pid: int, first_id: int, sink: Sink) -> None:
    """Write enqueues or dequeues with connection ids from `first_id` on."""
    if not len(side):
        return
    ids = first_id + np.arange(len(side))
    sink.write(
        "PYTORCH_API",
        {
            "startNs": side.start_ns,
            "endNs": side.end_ns,
            "globalTid": _threads(pid, side.tid),
            "connectionId": ids,
            "name": names,
            "type": API_QUEUE,
        },
    )
    _write_connections(ids, links.queue_connections(side), sink)


def _write_connections(ids: Ints, numbers: Ints, sink: Sink) -> None:
    if len(ids):
        order = np.argsort(ids, kind="stable")
        sink.write("CONNECTION_IDS", {"id": ids[order], "connectionId": numbers[order]})


def _write_stacks(stacks: Texts, sink: Sink) -> None:
    """Write each distinct call stack, innermost frame first."""
    frames = [text.split(";\r\n") for text in stacks.all]
    sizes = np.array([len(stack) for stack in frames], np.int64)
    if not len(sizes):
        return
    chain = np.repeat(np.arange(len(sizes)), sizes)
    sink.write(
        "PYTORCH_CALLCHAINS",
        {
            "id": chain,
            "stack": sink.strings.intern_all(text for stack in frames for text in stack),
            "stackDepth": Runs(chain).rank(),
        },
    )


def _optional(
    texts: Texts, numbers: Ints, sink: Sink
) -> np.ma.MaskedArray[tuple[int], np.dtype[np.int64]]:
    return np.ma.MaskedArray(string_ids(sink.strings, texts, numbers), numbers == NO_TEXT)


def _null_where(absent: Bools, values: Ints) -> Column:
    return np.ma.MaskedArray(values, absent)


def _threads(pid: int | Ints, tid: Ints) -> Ints:
    """Return globalTid (process << 32 | thread); numbers beyond 64 bits wrap."""
    if isinstance(pid, int):
        pid = np.array(pid & 0x7FFF_FFFF_FFFF_FFFF, np.int64)
    return (pid << 32) | tid
