"""Defines the rows of a GPU recording before they are joined, and the call chains they refer to.

Times are ns as recorded, without the base time. `MISSING` (-1) is the value of missing ids. Names
and other strings are stored as ids of the string pool.

A call chain is a frame and the call chain of its caller; backward operations have that of their
forward operation. `torch.autograd.profiler.emit_nvtx` marks operations as ranges, with NVTX on
NVIDIA devices and roctx on AMD devices.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Floats, Ints, Runs, find, positions
from unified_prof.arrays.intervals import NONE
from unified_prof.base.columns import MISSING, Cells, Sink
from unified_prof.decoders.gpu.pools import (
    Collectives,
    Geometries,
    Names,
    Signatures,
    Threads,
    is_communication,
)
from unified_prof.decoders.spool import Rows, Scratch, Spool, row_type

# Names of built-in methods contain the address of their object, which would make every call a new
# frame.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_BATCH_ROWS = 100_000


class Frames(dict[Any, int]):
    """Names of Python functions -> consecutive numbers."""

    def __init__(self, is_outside: Callable[[str], bool]) -> None:
        self.texts: list[str] = []
        # Frames of the tool that ran the program; these frames and their callers are omitted.
        self.outside: set[int] = set()
        self._is_outside = is_outside
        self._numbers: dict[str, int] = {}

    def __missing__(self, name: Any) -> int:
        text = _ADDRESS.sub("", str(name))
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
            if self._is_outside(text):
                self.outside.add(number)
        if len(text) == len(str(name)):
            self[name] = number  # a name with an address occurs once
        return number


class CallChains:
    """Tree of all distinct call chains of a recording."""

    def __init__(self, is_outside: Callable[[str], bool]) -> None:
        self.frames = Frames(is_outside)
        self._numbers: dict[int, int] = {}  # parent << 32 | frame -> number
        self._parents: list[int] = []
        self._frames: list[int] = []
        self._stacks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def links(self) -> tuple[list[int], list[int]]:
        """Caller's chain and last frame of each chain; arguments for `extend_all`."""
        return self._parents, self._frames

    def extend_all(self, parents: list[int], known: list[int], frames: list[int]) -> list[int]:
        """Add frames (numbers of `Frames`), and return the chain of each.

        `parents` are the indexes of the calling frames in these lists, or `NONE`; callers precede
        callees. `known` are the chains of frames that were added before, else `NONE`.
        """
        chains: list[int] = []
        numbers, all_parents, all_frames = self._numbers, self._parents, self._frames
        outside = self.frames.outside
        for parent, chain, frame in zip(parents, known, frames, strict=True):
            if chain == NONE and frame not in outside:
                above = chains[parent] if parent != NONE else NONE
                key = (above + 1) << 32 | frame
                found = numbers.get(key)
                if found is None:
                    found = numbers[key] = len(all_parents)
                    all_parents.append(above)
                    all_frames.append(frame)
                chain = found
            chains.append(chain)
        return chains

    def from_text(self, text: Any) -> int:
        """Parse a chain in the format of `Call stack` (`inner;outer`); return NONE if invalid."""
        if not isinstance(text, str) or not text:
            return NONE
        chain = self._stacks.get(text)
        if chain is None:
            parts = [part.strip() for part in reversed(text.split(";"))]
            chain = self._stacks[text] = self.innermost([part for part in parts if part])
        return chain

    def innermost(self, frames: list[str]) -> int:
        """Return the chain of these frames, outermost first; NONE without frames."""
        above = list(range(NONE, len(frames) - 1))
        numbers = [self.frames[frame] for frame in frames]
        return (self.extend_all(above, [NONE] * len(numbers), numbers) or [NONE])[-1]

    def write(self, sink: Sink, used: Ints) -> None:
        """Write PYTORCH_CALLCHAINS for the chains `used`: one row per frame, innermost depth 0."""
        strings = [NONE] * len(self.frames.texts)
        ids: list[int] = []
        stacks: list[int] = []
        depths: list[int] = []
        for chain in np.unique(used).tolist():
            depth, at = 0, chain
            while at != NONE:
                frame = self._frames[at]
                if strings[frame] == NONE:
                    strings[frame] = sink.strings.intern(self.frames.texts[frame])
                ids.append(chain)
                stacks.append(strings[frame])
                depths.append(depth)
                depth, at = depth + 1, self._parents[at]
            if len(ids) >= _BATCH_ROWS:
                _write_rows(sink, ids, stacks, depths)
                ids, stacks, depths = [], [], []
        _write_rows(sink, ids, stacks, depths)


def _write_rows(sink: Sink, ids: list[int], stacks: list[int], depths: list[int]) -> None:
    if ids:
        sink.write("PYTORCH_CALLCHAINS", {"id": ids, "stack": stacks, "stackDepth": depths})


MAX_FORWARDS = 1 << 18  # Maximum forward operations that are kept: more than any iteration has.

_AMBIGUOUS = -2  # Chain of a sequence number that several threads recorded.


class Forwards:
    """Maps autograd sequence numbers to the call chains of the forward operations.

    An operation records the sequence number of the next autograd node. If consecutive operations
    record the same number, the node belongs to the one that started last.
    """

    def __init__(self, max_forwards: int = MAX_FORWARDS) -> None:
        self._max_forwards = max_forwards
        empty = np.empty(0, dtype=np.int64)
        self._sequence, self._chain, self._thread = empty, empty, empty

    def add(self, sequence: Ints, chain: Ints, thread: Ints) -> None:
        """Add forward operations in order of their starts."""
        if not len(sequence):
            return
        sequence = np.concatenate((self._sequence, sequence))
        chain = np.concatenate((self._chain, chain))
        thread = np.concatenate((self._thread, thread))
        order = np.argsort(sequence, kind="stable")
        sequence, chain, thread = sequence[order], chain[order], thread[order]
        last = np.append(sequence[1:] != sequence[:-1], True)
        # Sequence numbers count per thread: the same one on two threads means two nodes.
        clash = np.append(False, (sequence[1:] == sequence[:-1]) & (thread[1:] != thread[:-1]))
        clashing = np.unique(sequence[clash])
        sequence, chain, thread = sequence[last], chain[last], thread[last]
        chain[np.isin(sequence, clashing)] = _AMBIGUOUS
        # Numbers only grow, so that the smallest are the oldest.
        keep = slice(max(0, len(sequence) - self._max_forwards), None)
        self._sequence, self._chain, self._thread = sequence[keep], chain[keep], thread[keep]

    def find(self, sequence: Ints) -> tuple[Ints, int]:
        """Return the forward call chain of each number, and how many numbers are ambiguous."""
        if not len(self._sequence):
            return np.full(len(sequence), NONE), 0
        at = find(self._sequence, sequence)
        chain = np.where(at != NOWHERE, self._chain[at], NONE)
        ambiguous = chain == _AMBIGUOUS
        chain[ambiguous] = NONE
        return chain, int(np.count_nonzero(ambiguous))


# Text that emit_nvtx adds to the name of an operation, in this order.
_ADDED = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?"
    r"(?:, op_id = (?P<number>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[[\d\[\], -]*\]))?"
    r"(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_FIRST_ADDED = (", seq = ", ", op_id = ", ", sizes = ")
_OPERATION = re.compile(r"aten::|autograd::engine::")
_BACKWARD = re.compile(r"(?:autograd::engine::evaluate_function: )?\w*Backward\d*$")
# `forward_thread` of a backward operation whose forward thread is not recorded.
SOME_FORWARD_THREAD = 1


def as_operation(text: str) -> tuple[str, int, int, str] | None:
    """Parse the text of an emit_nvtx range into name, sequence number, operation number and sizes.

    Missing numbers are MISSING, missing sizes are empty. Returns None for other ranges.
    """
    first = min((at for at in map(text.find, _FIRST_ADDED) if at > 0), default=-1)
    if first < 0:
        return (text, MISSING, MISSING, "") if _OPERATION.match(text) else None
    match = _ADDED.match(text, first)
    if match is None or match.end() == first:
        return None
    sequence, number, sizes = match.group("sequence", "number", "sizes")
    return (
        text[:first],
        MISSING if sequence is None else int(sequence),
        MISSING if number is None else int(number),
        sizes or "",
    )


def is_backward(name: str) -> bool:
    """Return True if an operation with this name is a backward node of autograd."""
    return _BACKWARD.match(name) is not None


def missing(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return `count` empty rows: ids are MISSING, measurements are NaN."""
    row = np.zeros(1, dtype)
    for name in dtype.names or ():
        row[name] = np.nan if dtype[name].kind == "f" else MISSING
    # As bytes: NumPy fills structured rows field by field.
    as_bytes = f"V{dtype.itemsize}"
    rows = np.empty(count, as_bytes)
    rows[:] = row.view(as_bytes)
    return rows.view(dtype)


INTERVAL = row_type("start i8, end i8")  # Start and end only.

# Framework operations; user annotations have is_operation 0. `finished` is 0 if the recording ended
# first. `signature` is of Signatures, `inputs` (concrete inputs) and `module` (hierarchy) are
# string ids, `collective` is of Collectives, `stack` (the event's own call stack) of CallChains.
HOST = row_type(
    "start i8, end i8, thread i4, is_operation i1, finished i1, name i4, external i8, sequence i8,"
    "forward_thread i8, signature i4, inputs i4, module i4, collective i4, stack i4"
)

# Python functions; `frame` is of CallChains.frames.
FRAME = row_type("start i8, end i8, thread i4, frame i4")

# CUDA and HIP runtime and driver calls. HIP records `size` in bytes, `geometry` (of Geometries) and
# `shared_memory` with the call. From `operation` (number of a PYTORCH_API row) on, the fields of
# the operation around the call, determined by nesting.
CALL = row_type(
    "start i8, end i8, thread i4, name i4, correlation i8, external i8, size i8, geometry i4,"
    "shared_memory i8, operation i8, operation_name i4, signature i4, collective i4"
)

# Values of GPU_TASK `kind`; GRAPH is a graph replay that was recorded as one task.
KERNEL, COPY, SET, COMMUNICATION, GRAPH = range(5)

# Kernels, copies, memory sets and graph replays. `process` is the process id in the device's
# record, `counted` a number of Counters. From `connection` on, the fields of the launching call,
# joined by correlation, and of the operation around it; `thread` is the launching thread.
GPU_TASK = row_type(
    "start i8, end i8, kind i1, name i4, device i4, stream i8, context i8, correlation i8,"
    "external i8, geometry i4, queued i8, registers i8, shared_memory i8, blocks_per_sm f8,"
    "warps_per_sm f8, occupancy f8, size i8, bandwidth f8, graph i8, graph_node i8, process i4,"
    "counted i8, connection i8, thread i4, operation_name i4, signature i4, collective i4"
)

# Allocator events. `size` is negative for a free; `owner` is a process with separate addresses,
# MISSING if there is one process only.
ALLOCATION = row_type(
    "start i8, thread i4, device i4, address i8, owner i4, size i8, total_allocated i8,"
    "total_reserved i8"
)

# User annotations on the device's timeline.
GPU_ANNOTATION = row_type("start i8, end i8, name i4, device i4, stream i8, external i8")

# Synchronizations on the device's timeline.
SYNC = row_type(
    "start i8, end i8, kind i4, device i4, stream i8, context i8, correlation i8, wait_stream i8,"
    "wait_event i8, wait_record i8"
)

COLLECTION = row_type("start i8, end i8, thread i4")  # Runs of Python's garbage collector.

# Events without another table: `end` of an instant is NO_END; `args_at` and `args_size` are
# the position of the arguments in `Parts.texts`.
OTHER = row_type("start i8, end i8, category i4, name i4, place i4, args_at i8, args_size i4")

# `end` of an instant in OTHER, and a missing time or id in tables where -1 can be a value.
NO_END = NO_TIME = -(2**63)
_MAX_NS = 2**62  # Times beyond this are damaged.
# MEMORY_RECORD.component that readers expect for PyTorch's caching allocator on an accelerator.
DEVICE_COMPONENT = "PTA"


def null_values(times: str, ids: str = "", **others: int) -> dict[str, int]:
    """Return columns to read with their values for NULL: NO_TIME, MISSING, or those given.

    `times` and `ids` are names separated by spaces.
    """
    none = dict.fromkeys(times.split(), NO_TIME) | dict.fromkeys(ids.split(), MISSING)
    return none | others


class GpuRecording(Struct, frozen=True):
    """Counts and facts of a decoded recording."""

    events: int  # Events of all kinds.
    counts: Mapping[str, int]  # Events by kind.
    tasks: int  # Kernels, copies, memory sets and graph replays.
    tasks_joined: int  # Tasks matched to their launch.
    operations: int
    facts: Mapping[str, Any]  # Rows of UPROF_RUN.
    rank: int | None = None  # Rank of the recorded process, None if it was not recorded.


class Counters:
    """Hardware counters of tasks, collected until the tasks have ids.

    The field `counted` of GPU_TASK identifies a task. Values of the same counter and task, which
    come from several parts of the device, are summed.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Floats]] = []
        self._owners = self._names = np.empty(0, np.int64)
        self._values = np.empty(0, np.float64)

    def add(self, owners: Ints, names: Ints, values: Floats) -> None:
        """Add values of counters, with `counted` of their tasks and string ids of their names."""
        if len(owners):
            self._parts.append((owners, names, values))

    def lookup(self, owners: Ints, ids: Ints) -> tuple[Ints, Ints, Floats]:
        """Return task ids, counter names and values of the tasks with these `counted` and ids."""
        self._merge()
        first = np.searchsorted(self._owners, owners, "left")
        count = np.searchsorted(self._owners, owners, "right") - first
        at = positions(count) + np.repeat(first, count)
        return np.repeat(ids, count), self._names[at], self._values[at]

    def _merge(self) -> None:
        """Sort the values, and sum values of the same counter and task."""
        if not self._parts:
            return
        parts = [*self._parts, (self._owners, self._names, self._values)]
        owners, names, values = map(np.concatenate, zip(*parts, strict=True))
        self._parts.clear()
        order = np.lexsort((names, owners))
        owners, names, values = owners[order], names[order], values[order]
        starts = Runs(owners, names).starts
        self._owners, self._names = owners[starts], names[starts]
        self._values = np.add.reduceat(values, starts)


# Rows of each kind that are kept in memory before they are sorted and written to a file.
RUN_BYTES = 4 << 20
Own = TypeVar("Own", bound="Parts")


class Parts:
    """Spools of rows, one for each kind, and the pools that the rows refer to.

    A decoder appends rows; `task_tables.write` reads them back. Use as a context manager.
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
        self.span: tuple[int, int] | None = None  # First start and last end of all events, in ns.
        self.counts: dict[str, int] = defaultdict(int)  # Events by kind.
        self.skipped: Counter[str] = Counter()  # Damaged events by kind.
        self.activity: Counter[int] = Counter()  # Number of host events by thread.
        # (process, forward thread id of torch) -> thread number, if known.
        self.forward_threads: dict[tuple[int, int], int] = {}
        self._communication: dict[int, bool] = {}
        self.max_correlation = 0
        # True if the field `external` of device tasks contains operation ids.
        self.links_to_operations = False
        # Name of the device memory allocator in MEMORY_RECORD.
        self.memory_component = DEVICE_COMPONENT
        # True if the memory in use is computed because the recording does not contain it.
        self.adds_up_allocations = False
        self.devices: set[int] = set()
        self.base_ns = 0  # Added to times to get Unix times.
        # (pid, tid) -> number, for events that are not on host threads.
        self.places: dict[tuple[Any, Any], int] = {}

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *exception: object) -> None:
        for value in vars(self).values():
            if isinstance(value, Spool):
                value.__exit__(*exception)
        self.texts.close()

    @property
    def main_process(self) -> int:
        """Id of the process with the most host events, 0 if there are none."""
        by_process: Counter[int] = Counter()
        for thread, count in self.activity.items():
            by_process[self.threads.process_ids[thread]] += count
        return by_process.most_common(1)[0][0] if by_process else 0

    def new_rows(self, cells: Cells, dtype: np.dtype[Any], what: str) -> tuple[Rows, Bools]:
        """Return rows with only start and end (ns) set, and a mask of the valid rows.

        Rows without a time (NO_TIME) or with a negative duration are counted as anomalies, with
        the kind of event `what`.
        """
        start, end = cells["start"], cells["end"]
        rows = missing(dtype, len(start))
        rows["start"], rows["end"] = start, end
        has_times = (np.abs(start) < _MAX_NS) & (np.abs(end) < _MAX_NS)
        has_times &= (start != NO_TIME) & (end != NO_TIME)
        negative = has_times & (end < start)
        self.count_skipped("event_without_time", ~has_times, what)
        self.count_skipped("negative_duration", negative, what)
        valid = has_times & ~negative
        if valid.any():
            self.extend_span(int(start[valid].min()), int(end[valid].max()))
        self.counts[what] += len(rows)
        self.skipped[what] += int(np.count_nonzero(~valid))
        return rows, valid

    def count_skipped(self, anomaly: str, rows: Bools, what: str) -> None:
        """Count skipped rows as an anomaly."""
        if rows.any():
            self.sink.anomaly(anomaly, int(np.count_nonzero(rows)), f"{what}, skipped")

    def add_gpu_tasks(self, rows: Rows) -> None:
        """Add kernels, copies, memory sets or graph replays."""
        self.note_correlations(rows)
        self.devices.update(np.unique(rows["device"]).tolist())
        self.gpu.append(rows)

    def add_marked_operations(
        self, rows: Rows, valid: Bools, operations: Sequence[tuple[str, int, int, str]]
    ) -> None:
        """Add operations marked by `emit_nvtx` (see `as_operation`) to HOST rows."""
        rows["is_operation"] = rows["finished"] = 1
        for at, (name, sequence, number, sizes) in enumerate(operations):
            rows["name"][at] = self.names[name]
            rows["sequence"][at], rows["external"][at] = sequence, number
            is_backward_node = sequence >= 0 and is_backward(name)
            rows["forward_thread"][at] = SOME_FORWARD_THREAD if is_backward_node else 0
            if sizes:
                rows["signature"][at] = self.signatures[b"", sizes.encode(), b""]
        self.host.append(rows[valid])

    def recording(self, joined: int, operations: int, facts: Mapping[str, Any]) -> GpuRecording:
        """Return the counts of all events with `facts` about the recording.

        `joined` is the number of tasks matched to their launch, `operations` that of operations.
        """
        return GpuRecording(
            events=sum(self.counts.values()),
            counts=dict(self.counts),
            tasks=self.gpu.rows,
            tasks_joined=joined,
            operations=operations,
            rank=facts.get("rank"),
            facts={**facts, "events": dict(sorted(self.counts.items()))},
        )

    def extend_span(self, first_ns: int, last_ns: int) -> None:
        """Extend the span of all events to include `first_ns` and `last_ns`."""
        if self.span is not None:
            first_ns, last_ns = min(first_ns, self.span[0]), max(last_ns, self.span[1])
        self.span = first_ns, last_ns

    def replace(self, name: str, batches: Iterable[Rows]) -> None:
        """Replace the rows of one of the spools; `batches` may read the old ones."""
        old: Spool = getattr(self, name)
        new = self.new_spool(old.dtype, old.key)
        for rows in batches:
            new.append(rows)
        setattr(self, name, new)
        old.__exit__(None, None, None)

    def note_correlations(self, rows: Rows) -> None:
        """Update the largest correlation id; new ids are larger."""
        if len(rows):
            self.max_correlation = max(self.max_correlation, int(rows["correlation"].max()))

    def are_communication(self, names: Ints) -> Bools:
        """Return a mask of the names that are communication kernels."""
        known = self._communication
        distinct, inverse = np.unique(names, return_inverse=True)
        new = [number for number in distinct.tolist() if number not in known]
        if new:
            texts = {number: str(name) for name, number in self.names.items()}
            known.update((number, is_communication(texts[number])) for number in new)
        return np.array([known[number] for number in distinct.tolist()], dtype=bool)[inverse]
