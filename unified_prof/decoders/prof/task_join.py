"""Joins the tasks of a device log with their launches, and writes TASK.

Other decoders look up the globalTaskId of tasks in `DeviceTasks` by stream, task, batch and
context.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Ints, Runs, find, order_of_keys
from unified_prof.base.columns import NO_CONNECTION, NO_MODEL, NO_STREAM, Sink, Stage
from unified_prof.decoders.overlap import OverlapWriter
from unified_prof.decoders.prof.clocks import LinearClock
from unified_prof.decoders.prof.compute_info import Launched, write_operators
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_events import TaskTypes, write_copies
from unified_prof.decoders.prof.operators import Captures
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.prof.task_log import (
    EXECUTED_TASK,
    OTHER,
    Flips,
    IdCounter,
    Rounds,
    TaskStreams,
    in_order_of_start,
    pack_keys,
    type_name,
)
from unified_prof.decoders.spool import Rows, Spool, row_type, selected, windows


class OutputContext(Struct, frozen=True):
    """Sink, id source and memory limits shared by all devices of one database."""

    sink: Sink
    stage: Stage
    workspace: Workspace
    process_id: int
    ids: IdCounter
    overlap: OverlapWriter


class DeviceTasks(Struct, frozen=True):
    """Logged tasks of one device by key, for decoders of other records of these tasks."""

    ids: IdCounter
    # Flips recorded by the device: `flips.batch_of(stream, task, end_ticks, at_flip=True)`.
    flips: Flips
    # True on platforms 15 and 16: task ids have 32 bits and are unique; records have no stream.
    wide_task_ids: bool
    # True if stream and task words of device records are in expanded format (`decode_words`).
    expanded_streams: bool
    # Keys (`pack_keys`) of all tasks of the device's log, ascending, including those that ended
    # before the session.
    key: NDArray[np.uint64]
    # globalTaskId of each key; -1 if not assigned yet (tasks that ended before the session).
    global_task_id: Ints
    # Number of blocks of the compute operator; 0 without an operator.
    block_num: NDArray[np.uint32]
    mix_block_num: NDArray[np.uint32]
    host: HostDirectory | None  # Directory of the host; None if it is missing.
    streams: TaskStreams  # Empty unless `wide_task_ids`.

    def pack(
        self,
        stream_id: NDArray[Any],
        task_id: NDArray[Any],
        batch_id: NDArray[Any],
        context_id: NDArray[Any],
    ) -> NDArray[np.uint64]:
        """Return the keys of tasks."""
        return pack_keys(stream_id, task_id, batch_id, context_id, wide_task_ids=self.wide_task_ids)

    def find(self, key: NDArray[np.uint64]) -> Ints:
        """Return the row of each key, -1 if there is none."""
        return find(self.key, key)

    def ids_of(self, row: Ints) -> Ints:
        """Return the globalTaskId of each row; missing ids are assigned."""
        without = np.unique(row[self.global_task_id[row] < 0])
        if len(without):
            self.global_task_id[without] = self.ids.take(len(without))
        return self.global_task_id[row]


_LARGEST_NARROW_ID = 0xFFFF

_COMMON = (EXECUTED_TASK.names or ())[:-1]  # The fields of `EXECUTED_TASK` except `early`.
# A task of `EXECUTED_TASK` with its id and fields of its launch (`LAUNCHED`). If the launch is
# unknown, `type_index`, `step` and `kernel` are -1.
JOINED_TASK = np.dtype(
    [
        *((name, EXECUTED_TASK[name]) for name in _COMMON),
        *row_type(
            "global_task_id i8, connection_id i8, launched u8, model_id u4, type_index i4, step i4,"
            " kernel i4, is_compute ?"
        ).descr,
    ]
)

_COMMON_BYTES = EXECUTED_TASK.itemsize - EXECUTED_TASK["early"].itemsize


class TaskIdentities(Struct):
    """Distinct tasks of a device log, sorted by identity; columns of equal length."""

    key: NDArray[np.uint64]
    global_task_id: Ints  # -1 for tasks that ended before the session.
    # Number of blocks of the compute operator; 0 without an operator.
    block_num: NDArray[np.uint32]
    mix_block_num: NDArray[np.uint32]
    count: int = 0

    @classmethod
    def allocate(cls, rows: int) -> TaskIdentities:
        """Return empty columns for up to `rows` tasks."""
        return cls(
            np.empty(rows, np.uint64),
            np.empty(rows, np.int64),
            np.zeros(rows, np.uint32),
            np.zeros(rows, np.uint32),
        )

    def add(self, key: NDArray[np.uint64], global_task_id: Ints, operators: Rows) -> None:
        """Add tasks with ascending keys, which must be larger than all earlier keys.

        `operators` are the `LAUNCHED` rows with blocks.
        """
        here = slice(self.count, self.count + len(key))
        self.count += len(key)
        self.key[here], self.global_task_id[here] = key, global_task_id
        row = find(key, operators["key"])
        ran = row != NOWHERE
        blocks = operators["operator"][ran]
        self.block_num[here][row[ran]] = blocks["blockNum"]
        self.mix_block_num[here][row[ran]] = blocks["mixBlockNum"]

    def filled(self) -> TaskIdentities:
        """Return the rows that were added."""
        key, ids = self.key[: self.count], self.global_task_id[: self.count]
        blocks, mix_blocks = self.block_num[: self.count], self.mix_block_num[: self.count]
        return TaskIdentities(key, ids, blocks, mix_blocks)


def identify(
    by_start: Spool,
    by_key: Spool,
    rounds: Rounds,
    clock: LinearClock,
    start_ns: int,
    file: OutputContext,
    *,
    streams: TaskStreams | None,
) -> None:
    """Set key, batch and place (position by start) of executed tasks.

    `by_start` contains `EXECUTED_TASK` rows sorted by start, `by_key` receives them. Tasks that
    ended before the session, which began at `start_ns`, are marked as early and counted. `streams`
    is None if the log has streams.
    """
    if rounds.looks_back:
        for rows in in_order_of_start(by_start, file.workspace.window_rows):
            rounds.observe(rows["stream_id"], rows["task_id"], rows["start"], rows["place"])
    early = 0
    for rows in in_order_of_start(by_start, file.workspace.window_rows):
        if streams is not None:
            stream_id = streams.find(rows["task_id"])
            rows["stream_id"] = np.where(stream_id < 0, NO_STREAM, stream_id)
        rows["batch_id"] = rounds.batch_of(
            rows["stream_id"], rows["task_id"], rows["start"], rows["place"]
        )
        rows["key"] = pack_keys(
            rows["stream_id"],
            rows["task_id"],
            rows["batch_id"],
            rows["context_id"],
            wide_task_ids=streams is not None,
        )
        rows["early"] = clock.to_ns(rows["end"]) < start_ns
        early += int(rows["early"].sum())
        by_key.append(rows)
    file.sink.anomaly("task_before_session", early, "tasks that ended before the start")


def join(
    launched: Launched,
    ran: Spool,
    joined: Spool,
    identified: TaskIdentities | None,
    file: OutputContext,
    *,
    wide_task_ids: bool,
) -> None:
    """Assign globalTaskIds, join tasks with their launches, and write operators and copies.

    `ran` contains the executed tasks by key, `joined` receives `JOINED_TASK` rows, and `identified`
    all tasks of the log, if it is not None.
    """
    ids, sink, ambiguous = file.ids, file.sink, 0
    for rows, launches, copies in windows(
        ran, launched.rows, launched.copies, window_rows=file.workspace.window_rows
    ):
        alive = selected(rows, ~rows["early"]) if rows["early"].any() else rows
        distinct, (launch_at, alive_at, copy_at) = _rank_keys(
            launches["key"], alive["key"], copies["key"]
        )
        numbers = ids.take(len(distinct))
        # The tables contain only one row per task id: the last operator of each key.
        chosen = np.flatnonzero(launches["is_operator"])
        last = chosen[Runs(launches["key"][chosen]).last]
        ambiguous += len(chosen) - len(last)
        operators = selected(launches, last)
        write_operators(operators["operator"], numbers[launch_at[last]], sink)
        copied = numbers[copy_at]
        if wide_task_ids:
            # The exporter takes the upper half of the task id for a batch here, so it does not join
            # copies with large ids with their tasks.
            large = np.flatnonzero(copies["task_id"] > _LARGEST_NARROW_ID)
            copied[large] = ids.take(len(large))
        write_copies(copies, copied, sink)
        task_ids = numbers[alive_at]
        first_launch = np.full(len(distinct), NOWHERE, np.int64)
        first_launch[launch_at[::-1]] = np.arange(len(launches) - 1, -1, -1)
        launch = _match_in_order(first_launch[alive_at], launches["key"], alive["key"])
        joined.append(_with_launches(alive, launches, launch, last, task_ids))
        if identified is not None and len(rows):
            logged = rows["key"][Runs(rows["key"]).starts]
            known = np.r_[numbers, NOWHERE][find(distinct, logged)]  # NOWHERE is the last
            has_blocks = launches["operator"]["blockNum"] > 0
            tasks = np.flatnonzero(has_blocks & ~launches["is_operator"])
            identified.add(logged, known, selected(launches, np.r_[tasks, last]))
    sink.anomaly(
        "ambiguous_task",
        ambiguous,
        "operators with the same device, stream, task id, batch and context: the last is kept",
    )


def _rank_keys(*keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], list[Ints]]:
    """Return the sorted distinct values of all columns, and the index into them for each column."""
    values = np.concatenate(keys)
    order = order_of_keys(values)
    if order is not None:
        values = values[order]
    new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    place = np.cumsum(new) - 1
    if order is not None:
        rank, place = place, np.empty(len(values), np.int64)
        place[order] = rank
    ends = np.cumsum([len(column) for column in keys])
    return values[new], np.split(place, ends[:-1])


def _with_launches(
    rows: Rows, launches: Rows, launch: Ints, operators: Ints, global_task_id: Ints
) -> Rows:
    """Return `JOINED_TASK` rows for executed tasks and their launches.

    `launch` is the launch of each task or NOWHERE, `operators` the launches that are operators.
    """
    result = np.zeros(len(rows), JOINED_TASK)
    _beginning(result)[:] = _beginning(rows)
    result["global_task_id"] = global_task_id
    result["connection_id"], result["model_id"] = NO_CONNECTION, NO_MODEL
    for name in ("type_index", "step", "kernel"):
        result[name] = NOWHERE
    known = np.flatnonzero(launch != NOWHERE)
    found = selected(launches, launch[known])
    is_operator = np.zeros(len(launches), bool)
    is_operator[operators] = True
    runs = is_operator[launch[known]]
    result["kernel"][known[runs]] = found["kernel"][runs]
    result["is_compute"][known[runs]] = found["operator"]["counts_as_compute"][runs]
    places = known if len(known) < len(rows) else slice(None)
    for name in ("connection_id", "model_id", "launched", "type_index", "step"):
        result[name][places] = found[name]
    return result


def _beginning(rows: Rows) -> NDArray[np.void]:
    """Return a view of the fields that `EXECUTED_TASK` and `JOINED_TASK` have in common."""
    return np.ndarray((len(rows),), f"V{_COMMON_BYTES}", rows, 0, rows.strides)


def _match_in_order(row: Ints, launched: NDArray[np.uint64], ran: NDArray[np.uint64]) -> Ints:
    """Return the launch of each task, or NOWHERE.

    `row` is the first launch with the key of each task or NOWHERE; `launched` and `ran` are the
    ascending keys of launches and tasks. Launches and tasks with the same key are matched in order.
    """
    if (launched[1:] == launched[:-1]).any():
        known = np.flatnonzero(row != NOWHERE)
        last = np.searchsorted(launched, ran[known], side="right") - 1
        row[known] = np.minimum(row[known] + Runs(ran[known]).rank(), last)
    return row


_TYPED_BY_DEVICE = ("FFTS_PLUS", "UNKNOWN")


class TaskWriter:
    """Writes the TASK rows of one device.

    taskType comes from the host, or from the device for graphs and lost launches. `captures` is
    None without a host.
    """

    def __init__(
        self,
        device: DeviceDirectory,
        clock: LinearClock,
        types: TaskTypes,
        captures: Captures | None,
        file: OutputContext,
    ) -> None:
        self._device, self._clock, self._captures = device, clock, captures
        self._process_id, self._sink = file.process_id, file.sink
        self._types = types
        self._by_code = np.full(256, -1, np.int64)
        self._by_type = np.full(len(types.names), -1, np.int64)
        self._by_device = types.is_one_of(*_TYPED_BY_DEVICE)
        self._unnamed: Counter[int] = Counter()

    def write(self, rows: Rows) -> tuple[Ints, Ints]:
        """Write `JOINED_TASK` rows; return their starts and ends in ns."""
        start_ns, end_ns = self._clock.to_ns(rows["start"]), self._clock.to_ns(rows["end"])
        model = rows["model_id"].copy()
        if self._captures is not None:
            free = np.flatnonzero((rows["type_index"] != NOWHERE) & (model == NO_MODEL))
            model[free] = self._captures.models(
                self._device.device_id,
                rows["stream_id"][free],
                rows["batch_id"][free],
                rows["launched"][free],
            )
        self._sink.write(
            "TASK",
            {
                "startNs": start_ns,
                "endNs": end_ns,
                "deviceId": self._device.device_id,
                "connectionId": rows["connection_id"].copy(),
                "globalTaskId": rows["global_task_id"].copy(),
                "globalPid": self._process_id,
                "taskType": self._type_ids(rows),
                "contextId": rows["context_id"],
                "streamId": rows["stream_id"],
                "taskId": rows["task_id"],
                "modelId": model,
            },
        )
        return start_ns, end_ns

    def finish(self) -> None:
        """Count the tasks whose device type has no name as an anomaly."""
        if self._unnamed:
            detail = f"first: type code {min(self._unnamed)}"
            self._sink.anomaly("unknown_device_task_type", self._unnamed.total(), detail)

    def _type_ids(self, rows: Rows) -> Ints:
        self._intern_names(rows)
        code, kind = rows["type_code"], rows["type_index"]
        result: Ints = self._by_code[code]
        named = np.flatnonzero(kind != NOWHERE)
        named = named[~self._by_device[kind[named]]]
        result[named] = self._by_type[kind[named]]
        return result

    def _intern_names(self, rows: Rows) -> None:
        """Intern the names of the types of rows; count types without a name."""
        intern = self._sink.strings.intern
        counts = np.bincount(rows["type_code"], minlength=len(self._by_code))
        for code in np.flatnonzero(counts).tolist():
            name = type_name(code, self._device.platform)
            if name is None:
                self._unnamed[code] += int(counts[code])
            self._by_code[code] = intern(name or OTHER)
        known = np.bincount(rows["type_index"] - NOWHERE)[-NOWHERE:]
        for kind in np.flatnonzero(known).tolist():
            if not self._by_device[kind]:
                self._by_type[kind] = intern(self._types.names[kind])
