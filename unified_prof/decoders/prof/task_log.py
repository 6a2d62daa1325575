"""Reads the task logs of a device (start, end and type of tasks), and its flips and marks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Runs
from unified_prof.base.columns import NO_CONTEXT, Sink
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.host_records import concatenate
from unified_prof.decoders.prof.layouts import STARS_MAGIC, V6_PLATFORMS, record_type
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.prof.task_identity import Flips, decode_words
from unified_prof.decoders.spool import Rows, Spool, copied, row_type, selected, stacked, windows

_910A, _310P = 1, 4

# Type code of tasks of the control core (`type_name`).
C_CORE = 20

# Name that the exporter gives to types without a name.
OTHER = "Other"

_START, _END, _CONTEXT_START, _CONTEXT_END = 0, 1, 34, 35
_CONTEXT_TYPE_BASE = 64

# Type codes of tasks on AI cores: AI_CORE, AIV_SQE.
_ON_CORES = (0, 2)

_SQE_TYPES = (
    "AI_CORE AI_CPU AIV_SQE PLACE_HOLDER_SQE EVENT_RECORD_SQE EVENT_WAIT_SQE"
    " NOTIFY_RECORD_SQE NOTIFY_WAIT_SQE WRITE_VALUE_SQE VQ6_SQE TOF_SQE SDMA_SQE VPC_SQE"
    " JPEGE_SQE JPEGD_SQE DSA_SQE ROCCE_SQE PCIE_DMA_SQE HOST_CPU_SQE CDQM_SQE C_CORE_SQE"
).split()
# The 310P, whose log has another format. The exporter has no names for types of the 910A.
_SQE_TYPES_HWTS = (*_SQE_TYPES[:9], "SDMA_SQE", "MAX_SQE")
_SQE_TYPES_V6 = (
    "AI_CORE AIV_SQE FUSION PLACE_HOLDER_SQE AICPU_H AICPU_D NOTIFY_RECORD_SQE"
    " NOTIFY_WAIT_SQE WRITE_VALUE_SQE UBDMA ASYNCDMA SDMA_SQE VPC_SQE JPEGE_SQE"
    " JPEGD_SQE CMO_SQE CCU_SQE - - - CONDITION_SQE END_SQE"
).split()
_CONTEXT_TYPES = (
    "AIC AIV NOP NOTIFY_WAIT NOTIFY_RECORD WRITE_VALUE MIX_AIC MIX_AIV SDMA DATA"
    " INVALIDATE_DATA WRITEBACK_DATA AI_CPU LOAD - DSA"
).split()


# An executed task or context of an FFTS+ task: start and end in ticks of the device, its place in
# the order of starts, True (`early`) if it ended before the session. `key` is the identity in the
# log at first, later that of `task_identity.pack_keys`.
EXECUTED_TASK = row_type(
    "key u8, start u8, end u8, place i8, stream_id u4, task_id u4, batch_id u4, context_id u4,"
    " type_code u1, early ?"
)
_MARK = row_type("ticks u8, identity u8, is_end ?, type_code u1")


def type_name(code: int, platform: int) -> str | None:
    """Return the device's name for a task type, None if unknown."""
    if platform in (_910A, _310P):
        names = _SQE_TYPES_HWTS if platform == _310P else ()
        return names[code] if code < len(names) else OTHER
    if code >= _CONTEXT_TYPE_BASE:
        names, number = tuple(_CONTEXT_TYPES), code - _CONTEXT_TYPE_BASE
    else:
        names = tuple(_SQE_TYPES_V6 if platform in V6_PLATFORMS else _SQE_TYPES)
        number = code
    return names[number] if number < len(names) and names[number] != "-" else None


def read_task_log(
    device: DeviceDirectory, ran: Spool, workspace: Workspace, sink: Sink, *, expanded: bool
) -> None:
    """Append the executed tasks of the log to `ran` (`EXECUTED_TASK` rows).

    On platforms with 32-bit task ids the stream is 0, because device logs do not contain it.
    """
    with workspace.spool(_MARK, "ticks") as tasks, workspace.spool(_MARK, "ticks") as contexts:
        if device.has_wide_task_ids:
            _read_stars_v6(device, tasks, sink)
        elif device.has_hwts_log:
            for marks in _hwts_marks(device):
                tasks.append(marks)
        else:
            _read_stars(device, tasks, contexts, sink, expanded=expanded)
        for rows in _paired(tasks, "device_task", workspace.window_rows, sink):
            identity = rows["key"]
            if device.has_wide_task_ids:
                rows["task_id"] = identity
            else:
                rows["stream_id"] = identity >> np.uint64(16)
                rows["task_id"] = identity & np.uint64(0xFFFF)
            rows["context_id"] = NO_CONTEXT
            ran.append(rows)
        for rows in _paired(contexts, "device_context", workspace.window_rows, sink):
            identity = rows["key"]
            rows["stream_id"] = identity >> np.uint64(48)
            rows["task_id"] = identity >> np.uint64(32) & np.uint64(0xFFFF)
            rows["context_id"] = identity >> np.uint64(16) & np.uint64(0xFFFF)
            ran.append(rows)


def in_order_of_start(ran: Spool, window_rows: int) -> Iterator[Rows]:
    """Yield executed tasks sorted by start; equal starts are sorted tasks first, then by key."""
    place = 0
    for (rows,) in windows(ran, window_rows=window_rows):
        start = rows["start"]
        if (start[1:] == start[:-1]).any():
            rows = selected(
                rows, np.lexsort((rows["key"], rows["context_id"] != NO_CONTEXT, start))
            )
        else:
            rows = copied(rows)
        rows["place"] = np.arange(place, place + len(rows))
        place += len(rows)
        yield rows


def _marks(
    identity: NDArray[np.uint64],
    ticks: NDArray[np.uint64],
    is_end: Bools,
    type_code: NDArray[np.uint8],
) -> Rows:
    rows = np.empty(len(identity), _MARK)
    rows["identity"], rows["ticks"] = identity, ticks
    rows["is_end"], rows["type_code"] = is_end, type_code
    return rows


def _paired(marks: Spool, kind: str, window_rows: int, sink: Sink) -> Iterator[Rows]:
    """Match starts and ends in order, and yield an `EXECUTED_TASK` row for each pair."""
    still_open = np.zeros(0, _MARK)
    lost = marks.rows
    for (read,) in windows(marks, window_rows=window_rows):
        rows = stacked((still_open, read))
        order = mark_order(rows["identity"], rows["ticks"])
        identity, is_end = rows["identity"][order], rows["is_end"][order]
        start, end = first_to_first(identity, is_end)
        lost -= 2 * len(start)
        pairs = np.zeros(len(start), EXECUTED_TASK)
        first = order[start]
        pairs["key"] = identity[start]
        pairs["start"], pairs["end"] = rows["ticks"][first], rows["ticks"][order[end]]
        pairs["type_code"] = rows["type_code"][first]
        yield pairs
        is_open = ~rows["is_end"]
        is_open[first] = False
        still_open = selected(rows, is_open)
    if lost:
        sink.anomaly(f"unpaired_{kind}", lost, "start without end or end without start")


def mark_order(identity: NDArray[np.uint64], ticks: NDArray[np.uint64]) -> Ints:
    """Return indexes that sort by identity, time and position in the log."""
    if (ticks[1:] >= ticks[:-1]).all():  # usual case: the file is sorted by time
        count = len(identity)
        if count < 1 << 24 and int(identity.max(initial=0)) < 1 << 40:
            # Sorting the packed values is several times faster than sorting their indexes.
            packed = identity << np.uint64(24) | np.arange(count, dtype=np.uint64)
            packed.sort()
            return (packed & np.uint64((1 << 24) - 1)).astype(np.int64)
        return np.argsort(identity, kind="stable")
    return np.lexsort((ticks, identity))


def first_to_first(identity: NDArray[np.uint64], is_end: Bools) -> tuple[Ints, Ints]:
    """Match each end with the first open start; marks are sorted by identity and time."""
    count = len(identity)
    rows = np.arange(count)
    same = np.r_[identity[1:] == identity[:-1], False]
    if count % 2 == 0 and not is_end[::2].any() and is_end[1::2].all() and same[::2].all():
        return rows[::2], rows[1::2]
    tasks = Runs(identity)
    group, step = tasks.number(), np.where(is_end, -1, 1)
    balance = np.cumsum(step)
    balance -= tasks.spread((balance - step)[tasks.starts])
    # An end that takes the balance of its identity to a new minimum below 0 has no start. Each
    # identity is shifted below all before it, so one running minimum is enough.
    depth = group * (2 * count + 2)
    lowered = balance - depth
    lowest = np.minimum.accumulate(np.r_[2 * count + 2, lowered])[:-1]
    good_end = is_end & (lowered >= np.minimum(lowest, -depth))
    starts, ends = np.flatnonzero(~is_end), np.flatnonzero(good_end)
    key_start = group[starts] * (count + 1) + Runs(group[starts]).rank()
    key_end = group[ends] * (count + 1) + Runs(group[ends]).rank()
    _, of_start, of_end = np.intersect1d(
        key_start, key_end, assume_unique=True, return_indices=True
    )
    return starts[of_start], ends[of_end]


def _read_stars(
    device: DeviceDirectory, tasks: Spool, contexts: Spool, sink: Sink, *, expanded: bool
) -> None:
    """Read tasks and contexts of FFTS+ tasks from stars_soc."""
    for piece in _stars_pieces(device, "stars_acsq", sink):
        function = piece["w0"] & 0x3F
        rows = piece[function <= _END]
        sqe = (rows["w0"] >> 10).astype(np.uint8)
        stream, task = decode_words(
            rows["stream_id"], rows["task_id"], expanded=expanded, sqe_type=sqe
        )
        identity = stream.astype(np.uint64) << np.uint64(16) | task
        tasks.append(_marks(identity, rows["timestamp"], rows["w0"] & 1 == 1, sqe))
        is_context = (function == _CONTEXT_START) | (function == _CONTEXT_END)
        if is_context.any() and device.has_one_core_kind:
            # The exporter has no tasks of contexts on these chips.
            sink.anomaly(
                "context_not_evaluated",
                int(is_context.sum()),
                f"{device.data.path}: contexts of tasks on platform {device.platform}",
            )
        elif is_context.any():
            rows = piece.view(record_type("stars_ffts_log"))[is_context]
            stream, task = decode_words(rows["stream_id"], rows["task_id"], expanded=expanded)
            identity = (
                stream.astype(np.uint64) << np.uint64(48)
                | task.astype(np.uint64) << np.uint64(32)
                | rows["subtask_id"].astype(np.uint64) << np.uint64(16)
                | rows["thread_id"]
            )
            contexts.append(
                _marks(
                    identity,
                    rows["timestamp"],
                    rows["w0"] & 0x3F == _CONTEXT_END,
                    np.minimum(rows["subtask_type"], 191) + np.uint8(_CONTEXT_TYPE_BASE),
                )
            )


def _read_stars_v6(device: DeviceDirectory, tasks: Spool, sink: Sink) -> None:
    """Read the 32-byte stars_soc records of platforms 15 and 16: 32-bit task ids, no stream."""
    for piece in _stars_pieces(device, "stars_acsq_v6", sink):
        rows = piece[piece["w0"] & 0x3F <= _END]
        task = rows["task_id_high"].astype(np.uint64) << np.uint64(16) | rows["task_id_low"]
        kind = (rows["w0"] >> 10).astype(np.uint8)
        tasks.append(_marks(task, rows["timestamp"], rows["w0"] & 1 == 1, kind))


def _hwts_marks(device: DeviceDirectory) -> Iterator[Rows]:
    """Yield the marks of the hwts log of platforms 1 and 4."""
    file = device.data.get("hwts")
    for piece in file.pieces("hwts_log") if file is not None else ():
        rows = piece[piece["w0"] & 0x7 <= _END]
        identity = (rows["stream_word"] % 2048).astype(np.uint64) << np.uint64(16) | rows["task_id"]
        yield _marks(identity, rows["timestamp"], rows["w0"] & 1 == 1, rows["task_type"])


def kernel_runs(device: DeviceDirectory, flips: Flips) -> tuple[Rows, NDArray[np.uint32]]:
    """Return the starts of kernels on AI cores in an hwts log by time, and their batches.

    `identity` of a start is `stream << 16 | task`.
    """
    parts = [marks[~marks["is_end"]] for marks in _hwts_marks(device)]
    starts = concatenate([np.zeros(0, _MARK), *parts])
    starts = starts[np.argsort(starts["ticks"], kind="stable")]
    task, stream = starts["identity"] & np.uint64(0xFFFF), starts["identity"] >> np.uint64(16)
    batch = flips.batch_of(stream, task, starts["ticks"], at_flip=True)
    kernels = np.isin(starts["type_code"], _ON_CORES)
    return starts[kernels], batch[kernels]


def _stars_pieces(device: DeviceDirectory, layout: str, sink: Sink) -> Iterator[Rows]:
    file = device.data.get("stars_soc")
    for piece in file.pieces(layout, magic=STARS_MAGIC) if file is not None else ():
        good = piece["magic"] == STARS_MAGIC
        if not good.all():
            sink.anomaly("bad_magic_stars_soc", int((~good).sum()), "stars_soc records")
            piece = piece[good]
        yield piece


_STEP, _FLIP = 0x0A, 0x0E
_MARK_TAG = 11
_STREAM_MASK = 0x7FF


@dataclass(frozen=True, slots=True)
class Track:
    """Flips and marks of a ts_track file, in file order."""

    flips: Flips
    marks: Rows
    """Step records of mstx marks; `index_id` identifies the mark."""


def read_track(device: DeviceDirectory, *, expanded: bool) -> Track:
    """Read the ts_track file of a device; a missing file gives an empty track."""
    file = device.data.get("ts_track")
    steps: list[Rows] = [np.zeros(0, record_type("ts_step_trace"))]
    flips: list[Rows] = [np.zeros(0, record_type("ts_task_flip"))]
    if file is not None:
        for piece in file.pieces("ts_step_trace"):
            function = piece["func_type"]
            steps.append(piece[(function == _STEP) & (piece["tag_id"] == _MARK_TAG)])
            flips.append(piece.view(record_type("ts_task_flip"))[function == _FLIP])
    flip = concatenate(flips)
    mask = np.uint32(0x7FFF if expanded else _STREAM_MASK)
    return Track(
        Flips(
            flip["stream_id"].astype(np.uint32) & mask,
            flip["task_id"].astype(np.uint32),
            flip["timestamp"].copy(),
        ),
        concatenate(steps),
    )
