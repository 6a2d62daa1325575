"""Decodes the host side of a text export: ranges of PyTorch, calls of CANN, process names."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import Sink
from unified_prof.decoders.ascend_pt import queue as links
from unified_prof.decoders.ascend_pt.operators import Frames, Operators, Texts, string_ids
from unified_prof.decoders.ascend_pt.queue import Intervals, Queue
from unified_prof.decoders.ascend_text.events import Event, read_events

# Returns the numbers by name of an ENUM_* table.
Enums = Callable[[str], Mapping[str, int]]
_LIMIT = 1 << 63

# Maximum absolute value of numbers in events, so that sums of ids fit into 64 bits.
_MAX_NUMBER = 2**62


class Columns:
    """Columns of 64-bit integers that grow row by row."""

    def __init__(self, names: str) -> None:
        self._columns = {name: array("q") for name in names.split()}

    def add(self, *values: int) -> None:
        """Append a row, with values in the order of the names.

        Raises ValueError if a value does not fit into 64 bits.
        """
        if any(not -_LIMIT <= value < _LIMIT for value in values):
            raise ValueError(f"a number beyond 64 bits: {values}")
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def arrays(self) -> dict[str, Ints]:
        """Return the columns as views; no rows may be added while they are in use."""
        return {
            name: np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)
            for name, column in self._columns.items()
        }


class Names:
    """Assigns indexes to distinct strings, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)

    def __getitem__(self, text: str) -> int:
        return self._numbers[text]

    @property
    def all(self) -> list[str]:
        """Strings by index."""
        return list(self._numbers)


def number(value: object, otherwise: int) -> int:
    """Convert a value of an event or cell to an integer; return `otherwise` if it is not one."""
    found = _integer(value)
    return otherwise if found is None or abs(found) > _MAX_NUMBER else found


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return None
    return None


_LEVELS = {
    "AscendCL": 20_000,
    "Model": 15_000,
    "Node": 10_000,
    "Communication": 5_500,
    "HCCL": 5_500,
    "Hccl": 5_500,
    "Runtime": 5_000,
}
_LAUNCH = "launch"
_SIDES = {"enqueue": 0, "dequeue": 1}


class Host:
    """Collects the events of the host, and writes their tables."""

    def __init__(self) -> None:
        self._texts = Names()
        self._operators = Columns("start end sequence pid tid forward_tid name type shape stack")
        self._queue = Columns("side start end tid correlation name")
        self._frames = Columns("start end tid pid name")
        self._collections = Columns("start end tid")
        self._calls = Columns("startNs endNs type globalTid name connectionId")

    def take_python(self, event: Event, start: int, end: int, process: int) -> bool:
        """Add a range of PyTorch; return False for other events.

        Raises ValueError if a value is not a number.
        """
        args = event.args or {}
        tid = number(event.tid, 0)
        if event.cat == "cpu_op":
            self._operators.add(
                start,
                end,
                number(args.get("Sequence number"), -1),
                process,
                tid,
                number(args.get("Fwd thread id"), 0),
                self._texts[event.name],
                *(
                    self._texts[value if isinstance(value := args.get(name), str) else ""]
                    for name in _OPTIONAL
                ),
            )
        elif event.cat in _SIDES:
            correlation = number(args.get("correlation_id"), -1)
            name = self._texts[event.name]
            self._queue.add(_SIDES[event.cat], start, end, tid, correlation, name)
        elif event.cat == "python_function":
            self._frames.add(start, end, tid, process, self._texts[event.name])
        else:
            return False
        return True

    def take_collection(self, event: Event, start: int, end: int) -> None:
        """Add a run of the garbage collector."""
        self._collections.add(start, end, number(event.tid, 0))

    def take_call(self, event: Event, start: int, end: int) -> bool:
        """Add a call of CANN; return False if its level is unknown."""
        level, _, name = event.name.partition("@")
        args = event.args or {}
        kind = _LEVELS.get(level)
        if kind is None or not name:
            return False
        tid = number(args.get("Thread Id"), number(event.tid, 0))
        connection = number(args.get("connection_id"), -1)
        self._calls.add(start, end, kind, tid, self._texts[name], connection)
        return True

    def write(self, process: int, sink: Sink) -> tuple[int, int]:
        """Write all tables of the host; return the number of operators and of connections."""
        texts = self._texts.all
        operators = self._recorded_operators(texts)
        names = string_ids(sink.strings, operators.names, operators.name)
        queue, shown = self._read_queue(texts)
        launches = self._write_calls(process, texts, sink)
        connections = links.operator_connections(operators, queue, launches)
        links.write_types(sink)
        used = links.write_operators(operators, names, connections, process, sink)
        for side, titles in zip((queue.enqueues, queue.dequeues), shown, strict=True):
            ids = sink.strings.intern_all(texts[index] for index in titles.tolist())
            links.write_queue_side(side, ids, process, used, sink)
            used += len(side)
        links.write_steps(operators, sink)
        frames = self._frames.arrays()
        distinct, place = np.unique(frames["name"], return_inverse=True)
        start, end, tid, pid = (frames[name] for name in ("start", "end", "tid", "pid"))
        frame_names = [texts[index] for index in distinct.tolist()]
        links.write_frames(Frames(start, end, tid, pid, place.reshape(-1), frame_names), sink)
        found = self._collections.arrays()
        links.write_collections(found["start"], found["end"], found["tid"], sink)
        return len(operators), len(connections[0])

    def _recorded_operators(self, texts: list[str]) -> Operators:
        columns = dict(self._operators.arrays())
        pools = {name: Texts() for name in ("name", "type", "shape", "stack")}
        for name, pool in pools.items():
            distinct, place = np.unique(columns[name], return_inverse=True)
            numbers = pool.numbers_of(texts[index] for index in distinct.tolist())
            columns[name] = numbers[place.reshape(-1)]
        # Operators are recorded when they end; if two end together, the inner one first.
        order = np.lexsort((-columns["start"], columns["end"]))
        columns["number"] = np.empty(len(order), np.int64)
        columns["number"][order] = np.arange(len(order))
        return Operators(columns, *pools.values())

    def _read_queue(self, texts: list[str]) -> tuple[Queue, list[Ints]]:
        """Return the task queue, and the exported names of enqueues and dequeues."""
        columns = self._queue.arrays()
        pool = Texts()
        kernels = (texts[index].partition("@")[2] for index in columns["name"].tolist())
        kernel = pool.numbers_of(kernels)
        sides, shown = [], []
        for side in _SIDES.values():
            rows = np.flatnonzero(columns["side"] == side)
            rows = rows[np.argsort(columns["end"][rows], kind="stable")]
            start, end, tid, correlation, name = (
                columns[key][rows] for key in ("start", "end", "tid", "correlation", "name")
            )
            sides.append(Intervals(start, end, tid, correlation, kernel[rows], None))
            shown.append(name)
        return Queue(pool, sides[0], sides[1]), shown

    def _write_calls(self, process: int, texts: list[str], sink: Sink) -> dict[str, Ints]:
        """Write CANN_API; return the launches in it."""
        columns = self._calls.arrays()
        names = sink.strings.intern_all(texts[index] for index in columns["name"].tolist())
        rows = {
            **columns,
            "name": names,
            "connectionId": _distinct(columns["connectionId"], sink),
            "globalTid": (process << 32) | columns["globalTid"],
        }
        if len(names):
            sink.write("CANN_API", rows)
        launch = (columns["type"] == _LEVELS["Node"]) & (names == sink.strings.intern(_LAUNCH))
        return {name: values[launch] for name, values in rows.items()}


_OPTIONAL = ("Input type", "Input Dims", "Call stack")


def _distinct(numbers: Ints, sink: Sink) -> Ints:
    """Return unique connection ids; repeated and negative ids are replaced by new ids."""
    result = numbers.copy()
    _, first = np.unique(numbers, return_index=True)
    again = np.ones(len(numbers), bool)
    again[first] = False
    again |= numbers < 0
    if again.any():
        detail = f"connection_id {numbers[again][0]} of a call of CANN"
        sink.anomaly("repeated_connection", int(again.sum()), detail)
        free = max(int(numbers.max()), 0) + 1
        result[again] = np.arange(free, free + int(again.sum()))
    return result


PYTHON, COLLECTIONS, CANN = "Python", "Python GC", "CANN"
HARDWARE, OVERLAP = "Ascend Hardware", "Overlap Analysis"
COMMUNICATION = ("Communication", "HCCL")
_LABEL = re.compile(r"NPU (\d{1,4})")
_DEVICE_BITS = 0x1F
_PROCESS_SHIFT = 10


class Layer(Struct, frozen=True):
    """A process of the trace, which contains one part of the recording."""

    name: str
    device: int  # Device number from its label or process id; only valid for layers of devices.
    process: int  # Id of the recorded process.


class Layers(Struct):
    """Names of processes and threads of the trace."""

    by_pid: dict[int | str, Layer] = field(default_factory=dict)
    threads: dict[tuple[int | str, int | str], str] = field(default_factory=dict)

    def process(self) -> int | None:
        """Return the process id of PyTorch, otherwise the one in the ids of the layers."""
        found = [layer for layer in self.by_pid.values() if layer.name == PYTHON]
        return next((layer.process for layer in found or self.by_pid.values()), None)


def read_layers(path: Path, sink: Sink) -> Layers:
    """Read the names of processes and threads from the entire file."""
    layers = Layers()
    names: dict[int | str, str] = {}
    labels: dict[int | str, str] = {}
    for events in read_events(path, sink.anomaly):
        for event in events:
            if event.ph != "M" or not event.args:
                continue
            if event.name == "process_name":
                names[event.pid] = str(event.args.get("name"))
            elif event.name == "process_labels":
                labels[event.pid] = str(event.args.get("labels"))
            elif event.name == "thread_name":
                layers.threads[event.pid, event.tid] = str(event.args.get("name"))
    for pid, name in names.items():
        label = _LABEL.fullmatch(labels.get(pid, ""))
        shown = number(pid, 0)
        layers.by_pid[pid] = Layer(
            name,
            int(label[1]) if label else shown & _DEVICE_BITS,
            shown if name == PYTHON else shown >> _PROCESS_SHIFT,
        )
    return layers
