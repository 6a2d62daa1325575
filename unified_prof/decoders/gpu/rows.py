"""The rows that travel from collecting events to joining them: one dtype per kind.

Times are ns as in the trace, before its base time is added. `MISSING` (-1) stands for an id that
an event does not have; names and other texts are ids of the string pool.

What was found in one recording of GPUs: what every decoder of them tells besides its rows.

Hardware counters of tasks: held until the tasks have their numbers.

The parts of one recording of GPUs, read but not yet joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.types import Bools, Floats
from unified_prof.base.columns import Sink
from unified_prof.decoders.gpu.call_chains import CallChains
from unified_prof.decoders.gpu.collectives import Collectives, is_communication
from unified_prof.decoders.gpu.memory import DEVICE_COMPONENT, MISSING, Int64s
from unified_prof.decoders.gpu.pools import Geometries, Names, Signatures, Threads
from unified_prof.decoders.spool import Rows, Scratch, Spool


def missing(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return rows of which nothing is known: ids are MISSING, measurements NaN."""
    row = np.zeros(1, dtype)
    for name in dtype.names or ():
        row[name] = np.nan if dtype[name].kind == "f" else MISSING
    # As bytes: NumPy fills structured rows field by field.
    as_bytes = f"V{dtype.itemsize}"
    rows = np.empty(count, as_bytes)
    rows[:] = row.view(as_bytes)
    return rows.view(dtype)


HOST = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("thread", "i4"),
        ("is_operation", "i1"),  # 0: a user annotation
        ("finished", "i1"),  # 0: it was under way when the recording ended
        ("name", "i4"),
        ("external", "i8"),
        ("sequence", "i8"),
        ("forward_thread", "i8"),
        ("signature", "i4"),  # of Signatures
        ("inputs", "i4"),  # concrete inputs, a string id
        ("module", "i4"),  # module hierarchy, a string id
        ("collective", "i4"),  # of Collectives
        ("stack", "i4"),  # of CallChains, where the event carries its own call stack
    ]
)
"""Framework operations and user annotations."""

FRAME = np.dtype([("start", "i8"), ("end", "i8"), ("thread", "i4"), ("frame", "i4")])
"""Python functions; `frame` is an id of CallChains."""

CALL = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("thread", "i4"),
        ("name", "i4"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("size", "i8"),  # bytes, where HIP says it
        ("geometry", "i4"),  # of Geometries, where HIP says it
        ("shared_memory", "i8"),
        # GpuRecording by nesting: the operation that made the call.
        ("operation", "i8"),  # number of the PYTORCH_API row
        ("operation_name", "i4"),
        ("signature", "i4"),
        ("collective", "i4"),
    ]
)
"""CUDA and HIP runtime and driver calls."""

KERNEL, COPY, SET, COMMUNICATION, GRAPH = range(5)
"""Values of GPU_TASK `kind`; a graph of which only the whole was recorded is one task."""

GPU_TASK = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "i1"),
        ("name", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("context", "i8"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("geometry", "i4"),
        ("queued", "i8"),
        ("registers", "i8"),
        ("shared_memory", "i8"),
        ("blocks_per_sm", "f8"),
        ("warps_per_sm", "f8"),
        ("occupancy", "f8"),
        ("size", "i8"),
        ("bandwidth", "f8"),
        ("graph", "i8"),
        ("graph_node", "i8"),
        ("process", "i4"),  # id, where the device's record says it
        ("counted", "i8"),  # of Counters, MISSING: no counter is of it
        # GpuRecording by correlation, and through the call by nesting.
        ("connection", "i8"),
        ("thread", "i4"),  # that launched it
        ("operation_name", "i4"),
        ("signature", "i4"),
        ("collective", "i4"),
    ]
)
"""Kernels, copies and memory sets on a device."""

ALLOCATION = np.dtype(
    [
        ("start", "i8"),
        ("thread", "i4"),
        ("device", "i4"),
        ("address", "i8"),
        ("owner", "i4"),  # a process whose addresses are its own, MISSING: the only one
        ("size", "i8"),  # bytes; negative: freed
        ("total_allocated", "i8"),
        ("total_reserved", "i8"),
    ]
)
"""Allocator events."""

GPU_ANNOTATION = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("name", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("external", "i8"),
    ]
)
"""User annotations as the device saw them."""

SYNC = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("context", "i8"),
        ("correlation", "i8"),
        ("wait_stream", "i8"),
        ("wait_event", "i8"),
        ("wait_record", "i8"),
    ]
)
"""Synchronisations as the device saw them."""

COLLECTION = np.dtype([("start", "i8"), ("end", "i8"), ("thread", "i4")])
"""Runs of Python's garbage collector."""

OTHER = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),  # NO_END: an instant
        ("category", "i4"),
        ("name", "i4"),
        ("place", "i4"),
        ("args_at", "i8"),  # where its arguments lie in the text file
        ("args_size", "i4"),
    ]
)
"""Whatever has no table of its own."""

NO_END = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """Its numbers."""

    events: int
    """All of them, of whatever kind."""
    counts: Mapping[str, int]
    """Events by kind."""
    tasks: int
    """Kernels, copies, memory sets and replays of graphs."""
    tasks_joined: int
    """Those whose launching call was found."""
    operations: int
    facts: Mapping[str, Any]
    """Provenance."""
    rank: int | None = None
    """The process of a distributed run that was recorded, where the recording says it."""


class Counters:
    """Values by task; three numbers each are held in memory.

    A task is named by a number of the decoder's own, GPU_TASK `counted`. What a counter counted in
    several places of the device adds up.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Int64s, Int64s, Floats]] = []
        self._owners = self._names = np.empty(0, np.int64)
        self._values = np.empty(0, np.float64)

    def add(self, owners: Int64s, names: Int64s, values: Floats) -> None:
        """Take values: of which task, string id of the counter, value."""
        if len(owners):
            self._parts.append((owners, names, values))

    def owners(self) -> Int64s:
        """Return the numbers of all that have counters, in order."""
        self._settle()
        return np.unique(self._owners)

    def of(self, owners: Int64s, ids: Int64s) -> tuple[Int64s, Int64s, Floats]:
        """Return the counters of some tasks: (the task's id, the counter's name, value)."""
        self._settle()
        first = np.searchsorted(self._owners, owners, "left")
        count = np.searchsorted(self._owners, owners, "right") - first
        total = int(count.sum())
        before = np.cumsum(count) - count
        at = np.arange(total) - np.repeat(before, count) + np.repeat(first, count)
        return np.repeat(ids, count), self._names[at], self._values[at]

    def _settle(self) -> None:
        """Sort what came since, and add up values of one counter and task."""
        if not self._parts:
            return
        parts = [*self._parts, (self._owners, self._names, self._values)]
        owners, names, values = map(np.concatenate, zip(*parts, strict=True))
        self._parts.clear()
        order = np.lexsort((names, owners))
        owners, names, values = owners[order], names[order], values[order]
        new = np.ones(len(owners), bool)
        new[1:] = (np.diff(owners) != 0) | (np.diff(names) != 0)
        starts = np.flatnonzero(new)
        self._owners, self._names = owners[starts], names[starts]
        self._values = np.add.reduceat(values, starts)


RUN_BYTES = 4 << 20
"""Rows kept in memory before they are sorted and put away, of each kind."""

Own = TypeVar("Own", bound="Parts")


class Parts:
    """Rows of every kind, each kind in a spool, and the pools that they refer to.

    A decoder appends rows; `tables.write` reads them back. A context manager.
    """

    collectives: Collectives

    def __init__(self, sink: Sink, is_outside: Callable[[str], bool] = lambda frame: False) -> None:
        self.sink = sink
        self.names = Names(sink.strings)
        self.threads = Threads(sink.anomaly)
        self.signatures = Signatures(sink.strings)
        self.geometries = Geometries()
        self.collectives = Collectives()
        self.chains = CallChains(is_outside)
        self.counters = Counters()

        def spool(dtype: np.dtype[Any], key: str = "start") -> Spool:
            return Spool(dtype, key, run_rows=max(1, RUN_BYTES // dtype.itemsize), by_column=True)

        self.host = spool(HOST)
        self.frames = spool(FRAME)
        self.calls = spool(CALL)
        self.gpu = spool(GPU_TASK, "correlation")
        self.allocations = spool(ALLOCATION)
        self.gpu_annotations = spool(GPU_ANNOTATION)
        self.syncs = spool(SYNC)
        self.collections = spool(COLLECTION)
        self.other = spool(OTHER)
        self.new_spool = spool
        self.texts = Scratch()
        self.span: tuple[int, int] | None = None
        """First start and last end of all events, ns."""
        self.counts: dict[str, int] = defaultdict(int)
        """Events by kind."""
        self.activity: Counter[int] = Counter()
        """What each thread did on the host, by its number."""
        self.forward_threads: dict[tuple[int, int], int] = {}
        """(process, torch's id of a forward thread) -> number of the thread, where known."""
        self._communication: dict[int, bool] = {}
        self.max_correlation = 0
        self.links_to_operations = False
        """Whether `external` of a device's tasks names an operation."""
        self.memory_component = DEVICE_COMPONENT
        """Who gave out the device's memory, as MEMORY_RECORD calls it."""
        self.adds_up_allocations = False
        """Whether the memory in use has to be worked out, as no allocation says it."""
        self.devices: set[int] = set()
        self.places: dict[tuple[Any, Any], int] = {}
        """(pid, tid) of events outside the host's threads."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for value in vars(self).values():
            if isinstance(value, Spool):
                value.__exit__(kind, error, traceback)
        self.texts.close()

    @property
    def main_process(self) -> int:
        """Id of the process that did most on the host, 0 if none did anything."""
        by_process: Counter[int] = Counter()
        for thread, count in self.activity.items():
            by_process[self.threads.process_ids[thread]] += count
        return by_process.most_common(1)[0][0] if by_process else 0

    def see(self, first_ns: int, last_ns: int) -> None:
        """Take note that something happened from `first_ns` to `last_ns`."""
        if self.span is not None:
            first_ns, last_ns = min(first_ns, self.span[0]), max(last_ns, self.span[1])
        self.span = first_ns, last_ns

    def see_correlations(self, rows: Rows) -> None:
        """Take note of correlation ids, beyond which fresh ids begin."""
        if len(rows):
            self.max_correlation = max(self.max_correlation, int(rows["correlation"].max()))

    def are_communication(self, names: Int64s) -> Bools:
        """Tell which kernels, by their names, are those of collectives."""
        known = self._communication
        distinct, inverse = np.unique(names, return_inverse=True)
        new = [number for number in distinct.tolist() if number not in known]
        if new:
            texts = {number: str(name) for name, number in self.names.items()}
            known.update((number, is_communication(texts[number])) for number in new)
        return np.array([known[number] for number in distinct.tolist()], dtype=bool)[inverse]
