"""Decodes launches (task_track) and other host records than calls, and finds the enclosing calls.

Other records are MSTX_EVENTS, MEMCPY_INFO, NPU_OP_MEM and AI CPU streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Frame, Ints, Pool, Runs, order_of_keys
from unified_prof.base.columns import (
    COPY_OTHER,
    FIRST_MARK_CONNECTION,
    HOST_ONLY_CONNECTION,
    NO_CATEGORY,
    NO_CONNECTION,
    NO_CONTEXT,
    NO_MODEL,
    Sink,
)
from unified_prof.decoders.prof.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.host_records import (
    RUNTIME,
    CallTree,
    Contexts,
    Keys,
    Timeline,
    host_records,
    with_keys,
)
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.task_log import Flips, IdCounter, Rounds, pack_keys
from unified_prof.decoders.spool import Rows, Spool, row_type, stacked

_FLIP, _MAINTENANCE = 98, 6
_EXTENDED_BYTES = 40  # data_len of records with an extension (grid, blocks).
_UNNAMED_BYTES = 16  # data_len of records of CANN 8.0 and older, which have no kernel name.

# A task_track record of a task; `HostTasks` explains the fields.
LAUNCH = row_type(
    "key u8, kernel_name u8, task_id u4, device_id u2, stream_id u2, type_index u2, ext 6u2,"
    " extended ?"
)


@dataclass(slots=True)
class HostTasks(Frame):
    """Launched tasks, sorted by thread and time; columns of equal length."""

    key: Keys
    device_id: NDArray[np.uint16]
    stream_id: NDArray[np.uint16]
    task_id: NDArray[np.uint32]
    batch_id: NDArray[np.uint32]
    type_index: NDArray[np.uint16]
    kernel_name: NDArray[np.uint64]  # Hash.
    extended: Bools  # True if `ext` is filled.
    # Six words: grid and block dimensions of SIMT kernels; for others the number of blocks in the
    # first word and the mix ratio in the low bits of the third.
    ext: NDArray[np.uint16]
    node: NDArray[np.int32]  # Row of the NODE call around the launch, or -1.
    communication: NDArray[np.int32]  # Row of the communication call around the launch, or -1.
    # Connection id of the NODE call, or of the innermost call if there is none; -1 without a call.
    connection_id: Ints
    model_id: NDArray[np.uint32]  # Model of the MODEL call around the launch, or NO_MODEL.

    @classmethod
    def from_rows(cls, rows: Rows, batch_id: NDArray[np.uint32]) -> HostTasks:
        """Create launches without calls; `locate_calls` sets them."""
        names = "key device_id stream_id task_id type_index kernel_name extended ext".split()
        count = len(rows)
        return cls(
            **{name: rows[name].copy() for name in names},
            batch_id=batch_id,
            node=np.full(count, NOWHERE, np.int32),
            communication=np.full(count, NOWHERE, np.int32),
            connection_id=np.full(count, NO_CONNECTION, np.int64),
            model_id=np.full(count, NO_MODEL, np.uint32),
        )


class TaskTypes(Struct, frozen=True):
    """Names of task types, by type index."""

    names: tuple[str, ...]

    def is_one_of(self, *names: str) -> Bools:
        """Return a mask of the type indexes whose name is in `names`."""
        return np.array([name in names for name in self.names], bool)

    def kernels(self) -> Bools:
        """Return a mask of the type indexes that are kernel launches."""
        return np.array([name.startswith("KERNEL") for name in self.names], bool)


def read_host_tasks(
    host: HostDirectory, timeline: Timeline, spool: Spool, sink: Sink
) -> tuple[TaskTypes, Rounds, Keys]:
    """Append all launches to `spool`; return their types and the `Rounds` of their ids.

    The last result are the keys of launches on other processors than NPUs.
    """
    wide = host.has_wide_task_ids
    types = Pool()
    flips: list[Rows] = []
    elsewhere = [np.zeros(0, np.uint64)]
    for records in host_records(host, "compact", "task_track", sink):
        rows, key = with_keys(records, "task_track", timeline, sink)
        # The upper four bits of the device are its class: 0 for NPUs.
        on_npu = rows["device_id"] >> 12 == 0
        kind = np.where(on_npu, rows["task_type"], np.uint64(_MAINTENANCE))
        elsewhere.append(key[~on_npu])
        if (flip := kind == _FLIP).any():
            flips.append(rows[flip])
        task = ~flip & (kind != _MAINTENANCE)
        if not task.all():
            rows, key, kind = rows[task], key[task], kind[task]
        launches = np.empty(len(rows), LAUNCH)
        launches["key"] = key
        launches["device_id"] = rows["device_id"] & np.uint16(0x0FFF)
        launches["stream_id"] = rows["stream_id"]
        launches["task_id"] = rows["task_id"] if wide else rows["task_id"] & np.uint32(0xFFFF)
        launches["type_index"] = types.index_of(kind)
        is_named = rows["data_len"] != _UNNAMED_BYTES
        launches["kernel_name"] = np.where(is_named, rows["kernel_name"], 0)
        launches["extended"] = rows["data_len"] == _EXTENDED_BYTES
        launches["ext"][:, :3] = rows["grid_dim"]
        launches["ext"][:, 3:] = rows["block_dim"]
        spool.append(launches)
    names = tuple(host.dictionaries.type_name(RUNTIME, int(kind)) for kind in types.values.tolist())
    if wide or not flips:
        return TaskTypes(names), Rounds(Flips.none(), at_flip=False), np.concatenate(elsewhere)
    flipped = stacked(flips)
    device = (flipped["device_id"] & 0x0FFF).astype(np.uint32)
    found = Flips(
        device << 16 | flipped["stream_id"],
        flipped["task_id"] & 0xFFFF,
        flipped["timestamp"].copy(),
    )
    return TaskTypes(names), Rounds(found, at_flip=False), np.concatenate(elsewhere)


def streams(rows: Rows) -> NDArray[np.uint32]:
    """Return device << 16 | stream of launches."""
    device: NDArray[np.uint32] = rows["device_id"].astype(np.uint32)
    return np.asarray(device << np.uint32(16) | rows["stream_id"], np.uint32)


def locate_calls(tasks: HostTasks, tree: CallTree, items: NDArray[np.uint64]) -> None:
    """Set `node`, `communication`, `connection_id` and `model_id` of launches.

    `tree` has the calls of the same window, `items` the item hashes by index, as in
    `CallNames.items`; for MODEL calls the model id.
    """
    tasks.node = tree.node.find(tasks.key).astype(np.int32)
    tasks.communication = tree.communication.find(tasks.key).astype(np.int32)
    for level, rows in (
        (tree.acl, tree.acl.find(tasks.key)),
        (tree.model, tree.model.find(tasks.key)),
        (tree.communication, tasks.communication),
        (tree.node, tasks.node),
    ):
        inside = rows != NOWHERE
        tasks.connection_id[inside] = level.connection_id[rows[inside]]
        if level is tree.model and inside.any():
            models = items[level.item[rows[inside]]]
            tasks.model_id[inside] = np.minimum(models, np.uint64(NO_MODEL))


def without_repeats(tasks: HostTasks, sink: Sink) -> HostTasks:
    """Drop launches that were recorded twice with the same time and identity."""
    same_time = np.flatnonzero(tasks.key[1:] == tasks.key[:-1])
    if not len(same_time):
        return tasks
    identity = (tasks.type_index, tasks.task_id, tasks.stream_id, tasks.device_id, tasks.key)
    order = np.lexsort(identity)
    repeats = np.ones(len(order) - 1, bool)
    for column in (*identity, tasks.kernel_name):
        repeats &= column[order][1:] == column[order][:-1]
    if not repeats.any():
        return tasks
    sink.anomaly("repeated_launch", int(repeats.sum()), "task_track records that occur twice")
    keep = np.ones(len(order), bool)
    keep[order[1:][repeats]] = False
    return tasks.take(np.flatnonzero(keep))


def without_lost_calls(tasks: HostTasks, tree: CallTree, sink: Sink) -> HostTasks:
    """Drop launches in communication calls that are not enclosed by a NODE call.

    The record of the NODE call is lost, so the operator of these tasks is unknown; like the
    exporter, uprof does not join them with the device's log.
    """
    in_node = tree.node.find(tree.communication.end) != NOWHERE
    lost = (tasks.communication != NOWHERE) & ~np.r_[in_node, True][tasks.communication]
    if not lost.any():
        return tasks
    sink.anomaly(
        "launch_in_lost_call", int(lost.sum()), "launches of collectives without their NODE call"
    )
    return tasks.take(np.flatnonzero(~lost))


class Launches(Struct, frozen=True):
    """Launches of one device with their contexts, sorted by identity."""

    tasks: HostTasks  # The launches, one row each.
    # Identity with context, ascending; the following columns have the same length.
    key: NDArray[np.uint64]
    task: Ints  # Row in `tasks`.
    context_id: NDArray[np.uint32]
    placeholder: Bools  # True for tasks with contexts; each context is a separate row.


def launches_of(
    tasks: HostTasks,
    device_id: int,
    types: TaskTypes,
    node_contexts: Contexts,
    communication_contexts: Contexts,
    *,
    wide_task_ids: bool,
) -> Launches:
    """Return the launches of one device, with a row for each context of tasks with contexts.

    With 32-bit task ids, the device does not log contexts of operators.
    """
    on_device = tasks.device_id == device_id
    if not on_device.all():
        tasks = tasks.take(np.flatnonzero(on_device))
    expandable = (types.kernels() | types.is_one_of("FFTS_PLUS", "STARS_COMMON"))[tasks.type_index]
    in_node = expandable & (tasks.node != NOWHERE) & (tasks.communication == NOWHERE)
    in_node &= not wide_task_ids
    in_communication = expandable & (tasks.communication != NOWHERE)
    expanded: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for mask, owner, contexts in (
        (in_node, tasks.node, node_contexts),
        (in_communication, tasks.communication, communication_contexts),
    ):
        rows = np.flatnonzero(mask)
        position, context = contexts.expand(owner[rows])
        expanded.append((rows[position], context))
    count = len(tasks)
    has_contexts = np.zeros(count, bool)
    for rows, _ in expanded:
        has_contexts[rows] = True
    task = np.concatenate([np.arange(count), *(rows for rows, _ in expanded)])
    context_id = np.concatenate(
        [np.full(count, NO_CONTEXT, np.uint32), *(context for _, context in expanded)]
    )
    placeholder = np.concatenate([has_contexts, np.zeros(len(task) - count, bool)])
    key = pack_keys(
        tasks.stream_id[task],
        tasks.task_id[task],
        tasks.batch_id[task],
        context_id,
        wide_task_ids=wide_task_ids,
    )
    order = order_of_keys(key)
    if order is None:
        return Launches(tasks, key, task, context_id, placeholder)
    return Launches(tasks, key[order], task[order], context_id[order], placeholder[order])


_EXTENDED = 1
_STREAM_MASK = 0x7FF
# Message types of marks are below this.
_MESSAGE_TYPES = 16
_DEFAULT_DOMAIN = "default"


def write_marks(host: HostDirectory, sink: Sink) -> None:
    """Write MSTX_EVENTS: marks and ranges; segments of an extended mark form one message."""
    pieces = list(host_records(host, "additional", "msproftx", sink))
    if not pieces:
        return
    records, has_domains = _current_marks(stacked(pieces), host)
    extended = records["info_type"] == _EXTENDED
    parts = np.flatnonzero(extended)
    parts = parts[np.lexsort((records["segment"][parts], records["mark_id"][parts]))]
    messages_of = Runs(records["mark_id"][parts])
    rows = np.concatenate([parts[messages_of.starts], np.flatnonzero(~extended)])
    count = len(messages_of)
    messages = _messages(records["message"][parts], messages_of.sizes)
    messages += _messages(records["message"][rows[count:]], np.ones(len(rows) - count, np.int64))
    order = np.argsort(records["start"][rows], kind="stable")
    rows = rows[order]
    marks = records[rows]
    is_extended = marks["info_type"] == _EXTENDED
    end_ns = host.clocks.host.to_ns(marks["end"])
    thread = host.process_id << 32 | marks["tx_thread_id"].astype(np.int64)
    known = host.dictionaries
    messages_ids = sink.strings.intern_all(messages)[order]
    if has_domains:
        hashes, row = np.unique(marks["domain"], return_inverse=True)
        texts = (known.text(one) if known.knows(one) else "invalid" for one in hashes.tolist())
        domains = sink.strings.intern_all(texts)[row]
    else:
        domains = np.full(len(marks), sink.strings.intern(_DEFAULT_DOMAIN))
    columns: dict[str, Any] = {
        "startNs": host.clocks.host.to_ns(marks["start"]),
        "endNs": end_ns,
        "eventType": marks["event_type"].astype(np.int64),
        "rangeId": np.full(len(marks), NO_CATEGORY),
        "category": np.where(is_extended, NO_CATEGORY, marks["category"]).astype(np.int64),
        "message": messages_ids,
        "globalTid": thread,
        "endGlobalTid": thread,
        "domainId": np.where(is_extended, domains, sink.strings.intern("")),
        "connectionId": np.where(
            is_extended,
            marks["mark_id"].astype(np.int64) + FIRST_MARK_CONNECTION,
            HOST_ONLY_CONNECTION,
        ),
    }
    keep = end_ns >= host.session.start_ns
    sink.write("MSTX_EVENTS", {name: values[keep] for name, values in columns.items()})


def device_marks(
    device: DeviceDirectory, marks: Rows, process_id: int, ids: IdCounter, sink: Sink
) -> None:
    """Write TASK rows for marks on the device, from the first to the last record of each mark."""
    order = np.lexsort((marks["timestamp"], marks["index_id"]))
    marks = marks[order]
    of_mark = Runs(marks["index_id"])
    if not len(of_mark) or device.clocks.device is None:
        return
    start_ns = device.clocks.device.to_ns(marks["timestamp"][of_mark.starts])
    end_ns = device.clocks.device.to_ns(marks["timestamp"][of_mark.last])
    rows = marks[of_mark.starts]
    count = len(rows)
    columns: dict[str, Any] = {
        "startNs": start_ns,
        "endNs": end_ns,
        "deviceId": np.full(count, device.device_id),
        "connectionId": rows["index_id"].astype(np.int64) + FIRST_MARK_CONNECTION,
        "globalTaskId": ids.take(count),
        "globalPid": np.full(count, process_id),
        "taskType": np.full(count, sink.strings.intern("MsTx")),
        "contextId": np.full(count, NO_CONTEXT),
        "streamId": (rows["stream_id"] & _STREAM_MASK).astype(np.int64),
        "taskId": rows["task_id"].astype(np.int64),
        "modelId": np.full(count, NO_MODEL),
    }
    keep = end_ns >= device.session.start_ns
    if keep.any():
        sink.write("TASK", {name: values[keep] for name, values in columns.items()})


def _current_marks(records: Rows, host: HostDirectory) -> tuple[Rows, bool]:
    """Return msproftx records in the current layout, and whether they have domains.

    If they have none, the type of the message, a small number, is where the lower half of the
    domain's hash would be, and the message begins in the upper half.
    """
    old = records.view(record_type("msproftx_v1"))
    looks_old = (old["message_type"] < _MESSAGE_TYPES) & (records["domain"] >> np.uint64(32) != 0)
    domains = np.unique(records["domain"]).tolist()
    if not looks_old.any() or any(map(host.dictionaries.knows, domains)):
        return records, True
    current = records.copy()
    current["message"] = old["message"]
    return current, False


def _messages(parts: NDArray[np.bytes_], segments: Ints) -> list[str]:
    """Join and decode the segments of every message; a segment ends at its first NUL."""
    texts = [part.partition(b"\0")[0] for part in parts.tolist()]
    messages, at = [], 0
    for count in segments.tolist():
        messages.append(b"".join(texts[at : at + count]).decode("utf-8", "backslashreplace"))
        at += count
    return messages


_LAST_DIRECTION = 7

# A memcpy_info record with its key.
SIZES = row_type("key u8, record memcpy_info", memcpy_info=record_type("memcpy_info"))

# A copy: key and id of its task, and its row of MEMCPY_INFO.
COPY = row_type("key u8, task_id u4, size i8, operation u2")


def copies_of(
    tasks: HostTasks, device_id: int, types: TaskTypes, sizes: Rows, *, wide_task_ids: bool
) -> Rows:
    """Return the asynchronous copies of one device (`COPY` rows).

    A size record applies to the copies that its thread launched at its time, ordered by batch and
    task id; each copy transfers at most `max_size` bytes. Copies without a record have size 0 and
    operation `other`. `sizes` are `SIZES` rows of the same window, sorted by key.
    """
    is_copy = types.is_one_of("MEMCPY_ASYNC")[tasks.type_index] & (tasks.device_id == device_id)
    task = np.flatnonzero(is_copy)
    task = task[
        np.lexsort(
            (tasks.stream_id[task], tasks.task_id[task], tasks.batch_id[task], tasks.key[task])
        )
    ]
    copies = np.zeros(len(task), COPY)
    key = tasks.key[task]
    copies["key"] = pack_keys(
        tasks.stream_id[task],
        tasks.task_id[task],
        tasks.batch_id[task],
        np.full(len(task), NO_CONTEXT, np.uint32),
        wide_task_ids=wide_task_ids,
    )
    copies["task_id"] = tasks.task_id[task]
    row = np.searchsorted(sizes["key"], key, side="right") - 1
    has_size = row >= 0
    has_size[has_size] = sizes["key"][row[has_size]] == key[has_size]
    found = sizes["record"][row[has_size]]
    nth = Runs(key).rank()[has_size].astype(np.uint64)  # chunk of the record
    limit, total = found["max_size"], found["data_size"]
    divisor = np.maximum(limit, np.uint64(1))
    chunks = total // divisor + (total % divisor > 0)
    size = np.minimum(np.where(nth < chunks, total - nth * limit, np.uint64(0)), limit)
    direction = np.where(found["direction"] > _LAST_DIRECTION, COPY_OTHER, found["direction"])
    copies["size"][has_size] = size.astype(np.int64)
    copies["operation"] = COPY_OTHER
    copies["operation"][has_size] = np.where(size > 0, direction, COPY_OTHER)
    return copies


def write_copies(copies: Rows, global_task_id: Ints, sink: Sink) -> None:
    """Write MEMCPY_INFO rows."""
    if len(copies):
        sink.write(
            "MEMCPY_INFO",
            {
                "globalTaskId": global_task_id,
                "size": copies["size"].copy(),
                "memcpyOperation": copies["operation"].astype(np.int64),
            },
        )


def decode_operator_memory(host: HostDirectory, sink: Sink) -> None:
    """Write NPU_OP_MEM (task_memory_info); a negative size is a release."""
    process = host.process_id << 32
    types = sink.strings.intern_all(("allocate", "release"))
    for records in host_records(host, "additional", "task_memory_info", sink):
        time_ns = host.clocks.host.to_ns(records["timestamp"])
        keep = time_ns >= host.session.start_ns
        rows, time_ns = records[keep], time_ns[keep]
        if not len(rows):
            continue
        size = rows["size_bytes"].astype(np.int64)
        sink.write(
            "NPU_OP_MEM",
            {
                "operatorName": host.dictionaries.string_ids(sink.strings, rows["node_id"]),
                "addr": rows["addr"].astype(np.int64),
                "type": types[(size < 0).astype(np.int64)],
                "size": np.abs(size),
                "timestampNs": time_ns,
                "globalTid": process | rows["thread_id"].astype(np.int64),
                "totalAllocate": rows["total_allocate"].astype(np.int64),
                "totalReserve": rows["total_reserve"].astype(np.int64),
                "component": sink.strings.intern("GE"),
                "deviceId": rows["device_id"].astype(np.int64),
            },
        )


class CollectiveStreams(Struct, frozen=True):
    """Streams of collectives on AI CPUs, by communication group (hash of its name)."""

    # Stream -> group whose AI CPU kernels run on it.
    of_kernels: dict[int, int] = field(default_factory=dict)
    # Stream -> groups whose kernels launch tasks on it.
    of_tasks: dict[int, tuple[int, ...]] = field(default_factory=dict)


def read_collective_streams(host: HostDirectory, sink: Sink) -> CollectiveStreams:
    """Read mc2_comm_info, on platforms whose AI CPUs run collectives."""
    streams = CollectiveStreams()
    if not host.runs_collectives_on_cpus:
        return streams
    of_tasks: dict[int, dict[int, None]] = {}
    for records in host_records(host, "additional", "mc2_comm_info", sink):
        for record in records:
            group = int(record["group_name"])
            streams.of_kernels[int(record["stream_id"])] = group
            for stream in record["comm_stream_ids"][: int(record["stream_num"])].tolist():
                of_tasks.setdefault(stream, {})[group] = None
    streams.of_tasks.update((stream, tuple(groups)) for stream, groups in of_tasks.items())
    return streams
