"""Decodes operators of kernel launches; stores the launches of a device until they are joined.

The tables are COMPUTE_TASK_INFO and COMMUNICATION_SCHEDULE_TASK_INFO.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, distinct
from unified_prof.base.columns import NOT_AVAILABLE, Sink
from unified_prof.decoders.prof.host_events import (
    COPY,
    CollectiveStreams,
    HostTasks,
    Launches,
    TaskTypes,
)
from unified_prof.decoders.prof.host_records import CallTree
from unified_prof.decoders.prof.operators import Descriptions, HashTexts, ListTexts, find_captured
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.decoders.prof.task_log import TaskStreams
from unified_prof.decoders.spool import Rows, row_type, selected, stacked

# Names of the task types of descriptions, by number.
_TASK_TYPES = (
    "AI_CORE AI_CPU AI_VECTOR_CORE WRITE_BACK MIX_AIC MIX_AIV FFTS_PLUS DSA DVPP"
    " COMMUNICATION FUSION"
).split()
_COMMUNICATION = 9
_KERNEL_TASK_TYPES = {
    "KERNEL_AICORE": "AI_CORE",
    "KERNEL_AIVEC": "AI_VECTOR_CORE",
    "KERNEL_AICPU": "AI_CPU",
    "KERNEL_MIX_AIC": "MIX_AIC",
    "KERNEL_MIX_AIV": "MIX_AIV",
}
_RATIO_BITS = 0x7
_TENSOR_COLUMNS = (
    "inputFormats inputDataTypes inputShapes outputFormats outputDataTypes outputShapes"
).split()


class HostData(Struct, frozen=True):
    """Host records of one window from which operators are built."""

    calls_items: NDArray[np.uint64]  # Item hashes of calls by index.
    tree: CallTree
    types: TaskTypes
    descriptions: Descriptions
    names: HashTexts
    lists: ListTexts
    captured_lists: ListTexts
    collective_streams: CollectiveStreams
    captured: Rows  # `operators.CAPTURED` rows.
    level0: bool  # True at the lowest trace level, at which operators have only a name and blocks.

    def captured_rows(self, tasks: HostTasks) -> Ints:
        """Return the row of the captured operator for each launch, or -1."""
        return find_captured(self.captured, tasks.device_id, tasks.stream_id, tasks.task_id)


_TEXTS = "name taskType opType attrInfo opState hf32Eligible gridDim blockDim".split()
_NUMBERS = ("blockNum", "mixBlockNum")

# Columns of COMPUTE_TASK_INFO without the id. `scheduler`: it schedules communication, so its row
# is in the other table. `counts_as_compute`: neither that nor communication.
OPERATOR = np.dtype(
    [
        ("scheduler", "?"),
        ("counts_as_compute", "?"),
        *((name, "i4") for name in (*_TEXTS, *_TENSOR_COLUMNS)),
        *((name, "u4") for name in _NUMBERS),
    ]
)


def operators_of(
    launches: Launches, host: HostData, sink: Sink
) -> tuple[Ints, Rows, NDArray[np.uint64]]:
    """Return the launches that run operators, their `OPERATOR` rows, and the hashes of their names.

    `host` contains the records of the same window.
    """
    tasks = launches.tasks
    kernel = host.types.kernels()[tasks.type_index]
    other = host.types.is_one_of("STARS_COMMON")[tasks.type_index]
    graph = host.types.is_one_of("FFTS_PLUS")[tasks.type_index] & (tasks.communication == NOWHERE)
    in_node = tasks.node != NOWHERE
    described = np.zeros(len(tasks), bool)
    described[in_node] = host.descriptions.described[tasks.node[in_node]]
    named = (tasks.kernel_name != 0) | (host.captured_rows(tasks) >= 0)
    operator = np.where(
        in_node, (kernel | other | graph) & (described | host.level0), kernel & named
    )
    launch = np.flatnonzero(operator[launches.task] & ~launches.placeholder)
    operators = np.zeros(len(launch), OPERATOR)
    if not len(launch):
        return launch, operators, np.zeros(0, np.uint64)
    builder = _OperatorColumns(launches, launch, host)
    builder.fill(operators, sink)
    return launch, operators, builder.name_hashes()


def write_operators(operators: Rows, global_task_id: Ints, sink: Sink) -> None:
    """Write the operators to both tables."""
    schedule = operators["scheduler"]
    for table, mask, names in (
        ("COMMUNICATION_SCHEDULE_TASK_INFO", schedule, ("name", "taskType", "opType")),
        ("COMPUTE_TASK_INFO", ~schedule, (operators.dtype.names or ())[2:]),
    ):
        if mask.any():
            chosen, ids = operators, global_task_id
            if not mask.all():
                chosen, ids = selected(operators, mask), global_task_id[mask]
            sink.write(table, {"globalTaskId": ids, **{name: chosen[name] for name in names}})


class _OperatorColumns:
    def __init__(self, launches: Launches, launch: Ints, host: HostData) -> None:
        self.host = host
        self.tasks = launches.tasks.take(launches.task[launch])
        self.in_node = self.tasks.node != NOWHERE
        self.in_communication = self.in_node & (self.tasks.communication != NOWHERE)
        self.node = np.where(self.in_node, self.tasks.node, 0)
        self.described = self.in_node & ~np.bool_(host.level0)

        self.captured = host.captured_rows(self.tasks)
        self.captured[self.in_node] = -1
        # True for tasks of captured graphs that have a description.
        self.is_captured = (self.captured >= 0) & ~np.bool_(host.level0)
        self.captured_rows = selected(host.captured, self.captured[self.is_captured])

    def fill(self, rows: Rows, sink: Sink) -> None:
        """Set the fields of `OPERATOR` rows."""
        described, about, names = self.described, self.host.descriptions, self.host.names
        is_captured, captured = self.is_captured, self.captured_rows
        none = sink.strings.intern(NOT_AVAILABLE)
        for field in (*_TEXTS, *_TENSOR_COLUMNS):
            rows[field] = none
        name, schedule, communication = names.names(self.name_hashes())
        schedule |= np.isin(self.tasks.stream_id, list(self.host.collective_streams.of_kernels))
        rows["scheduler"], rows["counts_as_compute"] = schedule, ~schedule & ~communication
        node = self.node[described]
        rows["name"] = name
        rows["opType"][described] = names.ids(about.hashes[about.op_type[node]])
        bare = ~self.in_node & ~np.bool_(self.host.level0)
        rows["opType"][bare] = name[bare]
        rows["opType"][is_captured] = names.ids(captured["op_type"])
        rows["blockNum"], rows["mixBlockNum"] = self._blocks()
        self._set_task_types(rows["taskType"], bare, sink)
        for tensors, lists, chosen in (
            (about.tensors[node], self.host.lists, described),
            (captured["tensors"], self.host.captured_lists, is_captured),
        ):
            tensor_ids = lists.ids(tensors)
            for place, field in enumerate(_TENSOR_COLUMNS):
                rows[field][chosen] = tensor_ids[:, place]
        self._set_dimensions(rows, sink)
        attribute = np.zeros(len(rows), np.uint64)
        attribute[described] = about.hashes[about.attribute[node]]
        attribute[is_captured] = captured["attribute"]
        with_attribute = np.flatnonzero(attribute)
        if len(with_attribute):
            hashes = attribute[with_attribute]
            # Unlike names, attributes without a text are not shown as numbers.
            known = names.has_text(hashes)
            rows["attrInfo"][with_attribute[known]] = names.ids(hashes[known])
        for field, flag, captured_flag, texts in (
            ("opState", about.static, captured["static"], ("dynamic", "static")),
            ("hf32Eligible", about.hf32, captured["hf32"], ("NO", "YES")),
        ):
            if len(node) or len(captured):
                ids = sink.strings.intern_all(texts)
                rows[field][described] = ids[flag[node].astype(np.int64)]
                rows[field][is_captured] = ids[captured_flag.astype(np.int64)]

    def name_hashes(self) -> NDArray[np.uint64]:
        """Return the name hash from the communication item, operator, call item or kernel."""
        about, tree, items = self.host.descriptions, self.host.tree, self.host.calls_items
        result = self.tasks.kernel_name.copy()
        captured = self.captured >= 0
        result[captured] = self.host.captured["name"][self.captured[captured]]
        result[self.described] = about.hashes[about.name[self.node[self.described]]]
        unnamed = self.in_node & ~self.described
        result[unnamed] = items[tree.node.item[self.node[unnamed]]]
        inside = self.in_communication
        row = self.tasks.communication[inside]
        result[inside] = items[tree.communication.item[row]]
        return result

    def _blocks(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return blocks and mix blocks, from the launch or (if missing) from the description."""
        tasks = self.tasks
        packed = np.zeros(len(tasks), np.uint32)
        packed[self.described] = self.host.descriptions.block_dim[self.node[self.described]]
        packed[self.is_captured] = self.captured_rows["block_dim"]
        blocks: NDArray[np.uint32] = packed & np.uint32(0xFFFF)
        factor = packed >> np.uint32(16)
        dimensions = self.host.types.is_one_of("KERNEL_SIMT")[tasks.type_index]
        in_launch = tasks.extended & ~dimensions
        blocks[in_launch] = tasks.ext[in_launch, 0]
        factor[in_launch] = tasks.ext[in_launch, 2] & _RATIO_BITS
        return blocks, np.asarray(blocks * factor, np.uint32)

    def _set_task_types(self, result: NDArray[Any], bare: Bools, sink: Sink) -> None:
        described, kernel_names = self.described, self.host.types.names
        kind = self.host.descriptions.task_type[self.node[described]].astype(np.int64)
        on_cpu = self.host.types.is_one_of("KERNEL_AICPU")[self.tasks.type_index[described]]
        kind[on_cpu & (kind == _COMMUNICATION) & self.in_communication[described]] = 256
        result[described] = _interned(kind, _described_task_type, sink)
        result[bare] = _interned(
            self.tasks.type_index[bare].astype(np.int64),
            lambda index: _KERNEL_TASK_TYPES.get(kernel_names[index], kernel_names[index]),
            sink,
        )
        kinds = self.captured_rows["task_type"]
        result[self.is_captured] = _interned(kinds, _described_task_type, sink)

    def _set_dimensions(self, result: Rows, sink: Sink) -> None:
        simt = self.host.types.is_one_of("KERNEL_SIMT")[self.tasks.type_index] & self.tasks.extended
        rows = np.flatnonzero(simt & ~np.bool_(self.host.level0))
        for name, words in (("gridDim", slice(0, 3)), ("blockDim", slice(3, 6))):
            distinct, inverse = np.unique(self.tasks.ext[rows, words], axis=0, return_inverse=True)
            ids = sink.strings.intern_all(",".join(map(str, dims)) for dims in distinct.tolist())
            if len(rows):
                result[name][rows] = ids[inverse.ravel()]


def _described_task_type(kind: int) -> str:
    if kind == 256:
        return "HCCL_AI_CPU"
    return _TASK_TYPES[kind] if kind < len(_TASK_TYPES) else str(kind)


def _interned(numbers: Ints, text: Any, sink: Sink) -> Ints:
    found, place = distinct(numbers)
    return sink.strings.intern_all(text(number) for number in found.tolist())[place]


# A launch or one context of it: key of the task (`pack_keys`), key of the launch (`launched`), and
# columns of TASK and COMPUTE_TASK_INFO. `step` and `kernel` are rows of `Launched.steps` and
# `Launched.kernels`, or -1.
LAUNCHED = row_type(
    "key u8, launched u8, connection_id i8, model_id u4, type_index u2, is_operator ?,"
    " operator OPERATOR, step i4, kernel i4",
    OPERATOR=OPERATOR,
)

# A kernel that schedules communication: hash of its name, hash of the host's collective around its
# launch (if `in_collective`), string id of its operator type.
KERNEL = row_type("name u8, outer u8, in_collective ?, op_type i4")


class Launched:
    """The launches for one device. Use as a context manager, like `Spool`."""

    def __init__(self, types: TaskTypes, step: np.dtype[Any], workspace: Workspace) -> None:
        self.types = types
        self._stack = ExitStack()
        # `LAUNCHED` rows, sorted by key.
        self.rows = self._stack.enter_context(workspace.spool(LAUNCHED))
        # `host_events.COPY` rows, sorted by key.
        self.copies = self._stack.enter_context(workspace.spool(COPY))
        self._steps: list[Rows] = [np.zeros(0, step)]
        self._kernels: list[Rows] = [np.zeros(0, KERNEL)]
        self._streams = [TaskStreams.none()]

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def add_steps(self, rows: Rows) -> Ints:
        """Add steps of collectives; return their row numbers."""
        return _append(self._steps, rows)

    def add_kernels(self, rows: Rows) -> Ints:
        """Add kernels that schedule communication; return their row numbers."""
        return _append(self._kernels, rows)

    def add_streams(self, task_id: NDArray[np.uint32], stream_id: NDArray[np.uint16]) -> None:
        """Add the streams of tasks with 32-bit ids."""
        self._streams.append(TaskStreams(task_id, stream_id.astype(np.uint32)))

    def steps(self) -> Rows:
        """Remove and return all steps of collectives (`host_side.STEP`)."""
        return _take_all(self._steps)

    def kernels(self) -> Rows:
        """Remove and return all kernels that schedule communication (`KERNEL`)."""
        return _take_all(self._kernels)

    def task_streams(self) -> TaskStreams:
        """Return the streams of tasks in launch order, not sorted by id."""
        return TaskStreams(
            np.concatenate([part.task_id for part in self._streams]),
            np.concatenate([part.stream_id for part in self._streams]),
        )


def _append(parts: list[Rows], rows: Rows) -> Ints:
    first = sum(map(len, parts))
    parts.append(rows)
    return np.arange(first, first + len(rows))


def _take_all(parts: list[Rows]) -> Rows:
    rows = stacked(parts)
    parts.clear()
    return rows
