"""Reads the task logs of a device (start, end, type, flips, marks), and identifies tasks.

Task ids of a stream have 16 bits and wrap around. At each wrap-around, the host and the device both
record a flip. The batch of a task is the number of earlier flips of its stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Runs, find
from unified_prof.base.columns import NO_CONTEXT, Sink, kept
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import STARS_MAGIC, V6_PLATFORMS, record_type
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.spool import Rows, Spool, copied, row_type, selected, stacked, windows

# Task types with plain words in the expanded notation: place holder, event record.
_EXPANDED_PLAIN_SQE = (3, 4)


def decode_words(
    stream_word: NDArray[Any],
    task_word: NDArray[Any],
    *,
    expanded: bool,
    sqe_type: NDArray[Any] | int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Decode stream and task ids from the 16-bit words of device records.

    `expanded` is True if the recording has an expand_stream_spec with status 1 (15-bit streams),
    `sqe_type` is the task type of the records.
    """
    stream = np.asarray(stream_word).astype(np.uint32)
    task = np.asarray(task_word).astype(np.uint32)
    if expanded:
        swapped = (stream & 0x8000 != 0) & ~np.isin(sqe_type, _EXPANDED_PLAIN_SQE)
        return (
            np.where(swapped, task, stream) & 0x7FFF,
            np.where(swapped, task & 0x8000 | stream & 0x7FFF, task),
        )
    high_in_stream = stream & 0x1000 != 0
    swapped = ~high_in_stream & (stream & 0x2000 != 0)
    return (
        np.where(swapped, task & 0x0FFF, stream) % np.uint32(2048),
        np.where(
            high_in_stream,
            task & 0x1FFF | stream & 0xE000,
            np.where(swapped, stream & 0x0FFF | task & 0xF000, task),
        ),
    )


_NARROW_NO_CONTEXT = 0xFFFF


class IdCounter:
    """Assigns ids that are unique in one database."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, number: int) -> Ints:
        """Return the next `number` ids."""
        ids = np.arange(self.next, self.next + number, dtype=np.int64)
        self.next += number
        return ids


def pack_keys(
    stream_id: NDArray[Any],
    task_id: NDArray[Any],
    batch_id: NDArray[Any],
    context_id: NDArray[Any],
    *,
    wide_task_ids: bool,
) -> NDArray[Any]:
    """Pack the identities of tasks of one device into 64-bit keys that sort by stream first.

    Task ids have 16 bits, wrap around and are combined with a 16-bit batch, or they have 32 bits
    and do not wrap (`wide_task_ids`, platforms 15 and 16).
    """
    context = np.asarray(context_id).astype(np.uint64)
    context = np.where(context < _NARROW_NO_CONTEXT, context + np.uint64(1), np.uint64(0))
    stream = np.asarray(stream_id).astype(np.uint64) << np.uint64(48)
    task = np.asarray(task_id).astype(np.uint64)
    if wide_task_ids:
        return np.asarray(stream | context << np.uint64(32) | task & np.uint64(0xFFFFFFFF))
    batch = (np.asarray(batch_id).astype(np.uint64) & np.uint64(0xFFFF)) << np.uint64(32)
    return np.asarray(stream | batch | context << np.uint64(16) | task & np.uint64(0xFFFF))


class TaskStreams(Struct, frozen=True):
    """Streams of tasks with 32-bit ids, whose device records have no stream."""

    task_id: NDArray[np.uint32]  # Ascending.
    stream_id: NDArray[np.uint32]

    @classmethod
    def none(cls) -> TaskStreams:
        """Return no tasks."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32))

    def find(self, task_id: NDArray[Any]) -> Ints:
        """Return the stream of each task id, -1 for ids that were not launched."""
        row = find(self.task_id, task_id)
        return np.where(row < 0, -1, np.r_[self.stream_id, 0][row].astype(np.int64))


_PLAIN_FLIP = (0, 65535)


class Flips(Struct, frozen=True):
    """Flips of one device, recorded by the host or by the device; columns of equal length."""

    stream_id: NDArray[Any]
    # First id after the flip. Unless it is 0 or 65535, tasks directly before the flip with a
    # smaller id belong to the new batch, because another thread launched them concurrently.
    task_id: NDArray[Any]
    ticks: NDArray[np.uint64]

    @classmethod
    def none(cls) -> Flips:
        """Return an empty set of flips."""
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.uint64))

    def batch_of(
        self, stream_id: NDArray[Any], task_id: NDArray[Any], ticks: NDArray[Any], *, at_flip: bool
    ) -> NDArray[np.uint32]:
        """Return the batch of each task, from its 16-bit id and its time in the flips' counter.

        A task at the tick of a flip belongs to the new batch if `at_flip` is true (device logs),
        else to the old batch (host records).
        """
        place = np.arange(len(stream_id))
        rounds = Rounds(self, at_flip=at_flip)
        if rounds.looks_back:
            rounds.observe(stream_id, task_id, ticks, place)
        return rounds.batch_of(stream_id, task_id, ticks, place)


class Rounds:
    """Determines the batches of one device's tasks, which are passed in parts and in any order.

    `place`, the position among all tasks, orders tasks with the same time and must be the same in
    both calls. If `looks_back` is true, all tasks must be passed to `observe` before `batch_of` is
    called. `at_flip` is explained in `Flips.batch_of`.
    """

    def __init__(self, flips: Flips, *, at_flip: bool) -> None:
        order = np.lexsort((flips.ticks, flips.stream_id))
        self._stream = np.asarray(flips.stream_id[order], np.uint32)
        self._ticks = np.asarray(flips.ticks[order], np.uint64)
        first = np.asarray(flips.task_id[order], np.int64)
        self._limit = np.where(np.isin(first, _PLAIN_FLIP), 0, first)
        self._at_flip = at_flip
        # The last task before each flip that does not belong to the next round. All tasks after it
        # have small ids, up to the flip.
        self._other_ticks = np.zeros(len(order), np.uint64)
        self._other_place = np.full(len(order), -1, np.int64)

    @property
    def looks_back(self) -> bool:
        """True if tasks before a flip may belong to the batch after it."""
        return bool(self._limit.any())

    def observe(
        self, stream_id: NDArray[Any], task_id: NDArray[Any], ticks: NDArray[Any], place: Ints
    ) -> None:
        """Record the tasks that show that earlier tasks belong to the batch before a flip."""
        rows, flip, _ = self._next_flip(stream_id, ticks)
        other = (flip >= 0) & (np.asarray(task_id, np.int64)[rows] >= self._limit[flip])
        rows, flip = rows[other], flip[other]
        order = np.lexsort((place[rows], ticks[rows], flip))
        rows, flip = rows[order], flip[order]
        if not len(rows):
            return
        last = Runs(flip).last
        rows, flip = rows[last], flip[last]
        later = (ticks[rows] > self._other_ticks[flip]) | (
            (ticks[rows] == self._other_ticks[flip]) & (place[rows] > self._other_place[flip])
        )
        self._other_ticks[flip[later]] = ticks[rows[later]]
        self._other_place[flip[later]] = place[rows[later]]

    def batch_of(
        self, stream_id: NDArray[Any], task_id: NDArray[Any], ticks: NDArray[Any], place: Ints
    ) -> NDArray[np.uint32]:
        """Return the batch of each task."""
        batches = np.zeros(len(stream_id), np.uint32)
        rows, flip, passed = self._next_flip(stream_id, ticks)
        if not len(rows):
            return batches
        batches[rows] = passed
        if self.looks_back:
            small = (flip >= 0) & (np.asarray(task_id, np.int64)[rows] < self._limit[flip])
            rows, flip = rows[small], flip[small]
            early = ticks[rows] < self._other_ticks[flip]
            early |= (ticks[rows] == self._other_ticks[flip]) & (
                place[rows] < self._other_place[flip]
            )
            batches[rows[~early]] += np.uint32(1)
        return batches

    def _next_flip(self, stream_id: NDArray[Any], ticks: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
        """Return tasks on streams with flips, their next flip or -1, and the flips before."""
        none = np.zeros(0, np.int64)
        if not len(self._stream):
            return none, none, none
        rows = np.flatnonzero(np.isin(stream_id, self._stream))
        if not len(rows):
            return none, none, none
        flips = len(self._stream)
        stream = np.concatenate([self._stream, np.asarray(stream_id)[rows]]).astype(np.uint32)
        time = np.concatenate([self._ticks, np.asarray(ticks)[rows]]).astype(np.uint64)
        is_flip = np.arange(len(stream)) < flips
        order = np.lexsort((~is_flip if self._at_flip else is_flip, time, stream))
        before = np.cumsum(is_flip[order])  # flips before each row, of all streams
        following = np.empty(len(order), np.int64)
        following[order] = before
        following = following[flips:]
        # The next flip may be one of another stream.
        same = following < flips
        same[same] = self._stream[following[same]] == stream[flips:][same]
        first = np.searchsorted(self._stream, stream[flips:])
        return rows, np.where(same, following, -1), following - first


_910A, _310P = 1, 4

C_CORE = 20  # Type code of tasks of the control core (`type_name`).

# Name that the exporter gives to types without a name.
OTHER = "Other"
_START, _END, _CONTEXT_START, _CONTEXT_END = 0, 1, 34, 35
_CONTEXT_TYPE_BASE = 64

_ON_CORES = (0, 2)  # Type codes of tasks on AI cores: AI_CORE, AIV_SQE.

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
# log at first, later that of `pack_keys`.
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
    depth = group * (count + 1)
    lowered = balance - depth
    lowest = np.minimum.accumulate(np.r_[count, lowered])[:-1]
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
    for piece in device.data.get("hwts").pieces("hwts_log"):
        rows = piece[piece["w0"] & 0x7 <= _END]
        identity = (rows["stream_word"] % 2048).astype(np.uint64) << np.uint64(16) | rows["task_id"]
        yield _marks(identity, rows["timestamp"], rows["w0"] & 1 == 1, rows["task_type"])


def kernel_runs(device: DeviceDirectory, flips: Flips) -> tuple[Rows, NDArray[np.uint32]]:
    """Return the starts of kernels on AI cores in an hwts log by time, and their batches.

    `identity` of a start is `stream << 16 | task`.
    """
    parts = [marks[~marks["is_end"]] for marks in _hwts_marks(device)]
    starts = stacked([np.zeros(0, _MARK), *parts])
    starts = starts[np.argsort(starts["ticks"], kind="stable")]
    task, stream = starts["identity"] & np.uint64(0xFFFF), starts["identity"] >> np.uint64(16)
    batch = flips.batch_of(stream, task, starts["ticks"], at_flip=True)
    kernels = np.isin(starts["type_code"], _ON_CORES)
    return starts[kernels], batch[kernels]


def _stars_pieces(device: DeviceDirectory, layout: str, sink: Sink) -> Iterator[Rows]:
    for piece in device.data.get("stars_soc").pieces(layout, magic=STARS_MAGIC):
        good = piece["magic"] == STARS_MAGIC
        yield kept(piece, good, sink, "bad_magic_stars_soc", "stars_soc records")


_STEP, _FLIP = 0x0A, 0x0E
_MARK_TAG = 11
_STREAM_MASK = 0x7FF


class Track(Struct, frozen=True):
    """Flips and marks of a ts_track file, in file order."""

    flips: Flips
    marks: Rows  # Step records of mstx marks; `index_id` identifies the mark.


def read_track(device: DeviceDirectory, *, expanded: bool) -> Track:
    """Read the ts_track file of a device; a missing file gives an empty track."""
    steps: list[Rows] = [np.zeros(0, record_type("ts_step_trace"))]
    flips: list[Rows] = [np.zeros(0, record_type("ts_task_flip"))]
    for piece in device.data.get("ts_track").pieces("ts_step_trace"):
        function = piece["func_type"]
        steps.append(piece[(function == _STEP) & (piece["tag_id"] == _MARK_TAG)])
        flips.append(piece.view(record_type("ts_task_flip"))[function == _FLIP])
    flip = stacked(flips)
    mask = np.uint32(0x7FFF if expanded else _STREAM_MASK)
    return Track(
        Flips(
            flip["stream_id"].astype(np.uint32) & mask,
            flip["task_id"].astype(np.uint32),
            flip["timestamp"].copy(),
        ),
        stacked(steps),
    )
