"""Hand-written Skyline reports and msprof databases for the tests of analysis and report."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_prof.schema.catalogue import SKYLINE_MEMORY, SKYLINE_RUN_TIME, frozen_text
from unified_prof.sqlite.writer import ReportWriter

if TYPE_CHECKING:
    from typing_extensions import Self

Frame = tuple[str, int]

UPROF_TABLES = """
    CREATE TABLE UPROF_RUN (name VARCHAR PRIMARY KEY, value VARCHAR);
    CREATE TABLE UPROF_ANOMALIES (name VARCHAR PRIMARY KEY, count INTEGER, detail VARCHAR);
    CREATE TABLE UPROF_MODULES (kind VARCHAR, entry_id INTEGER, module_path VARCHAR,
        module_class VARCHAR, PRIMARY KEY (kind, entry_id));
    CREATE TABLE UPROF_ITERATIONS (iteration INTEGER PRIMARY KEY, total_ms DOUBLE,
        forward_ms DOUBLE, backward_ms DOUBLE, peak_usage_bytes INTEGER, matched INTEGER);
"""


def run_time_report(
    path: Path,
    operations: Sequence[tuple[str, Any, Any, Sequence[Frame]]] = (
        ("linear", 1.5, 3.0, [("model.py", 12), ("model.py", 30)]),
        ("relu", 0.25, None, [("model.py", 13), ("model.py", 30)]),
        ("linear", 0.5, 1.0, [("model.py", 14), ("model.py", 30)]),
    ),
    *,
    modules: Sequence[tuple[str, str] | None] = (),
    iterations: Sequence[tuple[Any, ...]] = (),
    facts: Mapping[str, str] | None = None,
    anomalies: Sequence[tuple[str, int, str]] = (),
) -> Path:
    """Write a run time report: (name, forward_ms, backward_ms, frames innermost first) each."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(frozen_text(SKYLINE_RUN_TIME, "1"))
        for entry, (name, forward, backward, frames) in enumerate(operations, start=1):
            row = (entry, name, forward, backward)
            db.execute("INSERT INTO run_time_entries VALUES (?, ?, ?, ?)", row)
            db.executemany(
                "INSERT INTO stack_frames VALUES (?, ?, ?, ?)",
                [(order, *frame, entry) for order, frame in enumerate(frames)],
            )
        _add_uprof_tables(db, {"operation": modules}, iterations, facts, anomalies)
    return path


def memory_report(
    path: Path,
    weights: Sequence[tuple[str, Any, Any, Sequence[Frame]]] = (
        ("weight", 4000, 4000, [("model.py", 5)]),
        ("bias", 40, 0, [("model.py", 5)]),
    ),
    activations: Sequence[tuple[str, Any, Sequence[Frame]]] = (
        ("linear", 800, [("model.py", 12), ("model.py", 30)]),
    ),
    *,
    peak: int | None = 100_000,
    modules: Mapping[str, Sequence[tuple[str, str] | None]] | None = None,
) -> Path:
    """Write a memory report; frames are innermost first."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(frozen_text(SKYLINE_MEMORY, "1"))
        correlation = 0
        for entry_type, entries in ((1, weights), (2, activations)):
            table = "weight_entries" if entry_type == 1 else "activation_entries"
            for entry, (*values, frames) in enumerate(entries, start=1):
                marks = ", ".join("?" * (len(values) + 1))
                db.execute(f"INSERT INTO {table} VALUES ({marks})", (entry, *values))
                correlation += 1
                row = (correlation, entry, entry_type)
                db.execute("INSERT INTO stack_correlation VALUES (?, ?, ?)", row)
                db.executemany(
                    "INSERT INTO stack_frames VALUES (?, ?, ?, ?)",
                    [(correlation, order, *frame) for order, frame in enumerate(frames)],
                )
        if peak is not None:
            db.execute("INSERT INTO misc_sizes VALUES ('peak_usage_bytes', ?)", (peak,))
        _add_uprof_tables(db, modules or {}, (), None, ())
    return path


def _add_uprof_tables(
    db: sqlite3.Connection,
    modules: Mapping[str, Sequence[tuple[str, str] | None]],
    iterations: Sequence[tuple[Any, ...]],
    facts: Mapping[str, str] | None,
    anomalies: Sequence[tuple[str, int, str]],
) -> None:
    """Add the UPROF_ tables if one of them has rows."""
    if not (any(modules.values()) or iterations or facts or anomalies):
        return
    db.executescript(UPROF_TABLES)
    for kind, paths in modules.items():
        db.executemany(
            "INSERT INTO UPROF_MODULES VALUES (?, ?, ?, ?)",
            [(kind, entry, *path) for entry, path in enumerate(paths, start=1) if path],
        )
    db.executemany("INSERT INTO UPROF_ITERATIONS VALUES (?, ?, ?, ?, ?, ?)", iterations)
    db.executemany("INSERT INTO UPROF_RUN VALUES (?, ?)", list((facts or {}).items()))
    db.executemany("INSERT INTO UPROF_ANOMALIES VALUES (?, ?, ?)", anomalies)


class Device:
    """Writes an msprof database; times are in ns after T0."""

    T0 = 1_700_000_000_000_000_000

    def __init__(self, path: Path, revision: str = "documented") -> None:
        self.path = path
        self._writer = ReportWriter(path, revision=revision)
        # Rows that follow each other are written together, which takes a tenth of the time.
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._columns: dict[str, tuple[tuple[str, type], ...]] = {}
        self._tasks = 0
        self._connections = 0
        self._calls = 0

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.writer.__exit__(*exc)

    @property
    def writer(self) -> ReportWriter:
        """The writer of the database, which has all rows so far."""
        for table in [*self._rows]:
            self._write_rows(table)
        return self._writer

    def _add(self, table: str, **row: Any) -> None:
        columns = tuple((name, type(value)) for name, value in row.items())
        if self._columns.get(table) != columns:
            self._write_rows(table)
            self._columns[table] = columns
        self._rows.setdefault(table, []).append(tuple(row.values()))

    def _write_rows(self, table: str) -> None:
        if rows := self._rows.pop(table, None):
            columns = map(list, zip(*rows, strict=True))
            names = [name for name, _ in self._columns[table]]
            self._writer.write(table, dict(zip(names, columns, strict=True)))

    def text(self, value: str) -> int:
        """Return the id of a text."""
        return self._writer.strings.intern(value)

    def task(
        self,
        start: int,
        end: int,
        task_type: str = "KERNEL_AICORE",
        *,
        device: int = 0,
        stream: int = 2,
        connection: int = -1,
        kernel: tuple[str, str] | None = None,
        copy: int | None = None,
        direction: int = 1,
    ) -> int:
        """Add a task; `kernel` is (name, operator type), `copy` a number of bytes."""
        identity = self._tasks
        self._tasks += 1
        self._add(
            "TASK",
            startNs=self.T0 + start,
            endNs=self.T0 + end,
            deviceId=device,
            connectionId=connection,
            globalTaskId=identity,
            taskType=self.text(task_type),
            streamId=stream,
        )
        if kernel is not None:
            name, op_type = map(self.text, kernel)
            self._add("COMPUTE_TASK_INFO", name=name, globalTaskId=identity, opType=op_type)
        if copy is not None:
            self._add("MEMCPY_INFO", globalTaskId=identity, size=copy, memcpyOperation=direction)
        return identity

    def collective(
        self,
        start: int,
        end: int,
        name: str,
        op_type: str,
        *,
        device: int = 0,
        group: str | None = None,
    ) -> None:
        """Add a communication operator; `group` is its communicator."""
        self._connections += 1
        self._add(
            "COMMUNICATION_OP",
            opName=self.text(name),
            opType=self.text(op_type),
            startNs=self.T0 + start,
            endNs=self.T0 + end,
            connectionId=4294967295,
            opId=self._connections,
            deviceId=device,
            groupName=None if group is None else self.text(group),
        )

    def memory(self, at: int, component: str, allocated: int, *, device: int = 0) -> None:
        """Add a state of an allocator."""
        row: dict[str, Any] = {"component": self.text(component), "timestamp": self.T0 + at}
        row |= {"totalAllocated": allocated, "totalReserved": 2 * allocated, "deviceId": device}
        self._add("MEMORY_RECORD", **row)

    def groups(self, **about: Mapping[str, Any]) -> None:
        """Record the framework's description of each communicator."""
        self._add("META_DATA", name="parallel_group_info", value=json.dumps(about))

    def call(
        self,
        start: int,
        end: int,
        name: str,
        *,
        thread: int = 1,
        sequence: int = -1,
        forward_thread: int = 0,
        launches: int | None = None,
        chain: int = -1,
        kind: int = 50001,
        inputs: tuple[str, str] | None = None,
    ) -> None:
        """Add a host range; `launches` is the connection id of the tasks that it launched.

        `inputs` are the texts of the shapes and of the types of its arguments.
        """
        self._calls += 1
        self._add(
            "PYTORCH_API",
            startNs=str(self.T0 + start),
            endNs=str(self.T0 + end),
            globalTid=thread,
            connectionId=self._calls,
            name=self.text(name),
            sequenceNumber=sequence,
            fwdThreadId=forward_thread,
            callchainId=chain,
            type=kind,
            inputShapes=None if inputs is None else self.text(inputs[0]),
            inputDtypes=None if inputs is None else self.text(inputs[1]),
        )
        if launches is not None:
            self._add("CONNECTION_IDS", id=self._calls, connectionId=launches)

    def runtime(self, start: int, end: int, name: str, connection: int, *, thread: int = 1) -> None:
        """Add a runtime call on the host that launched the tasks of `connection`."""
        self._add(
            "CANN_API",
            startNs=self.T0 + start,
            endNs=self.T0 + end,
            type=5000,
            globalTid=thread,
            connectionId=connection,
            name=self.text(name),
        )

    def row(self, table: str, **columns: Any) -> None:
        """Add one row; `startNs` and `endNs` are relative to T0."""
        for name in columns.keys() & {"startNs", "endNs"}:
            columns[name] += self.T0
        self._add(table, **columns)

    def step(self, number: int, start: int, end: int) -> None:
        """Add a step of the profiler."""
        self.row("STEP_TIME", id=number, startNs=start, endNs=end)

    def steps(self, count: int, length: int) -> Iterator[int]:
        """Add steps of equal length that follow each other; yield the start of each."""
        for number in range(count):
            self.step(number, number * length, (number + 1) * length)
            yield number * length

    def chain(self, number: int, *frames: str) -> None:
        """Add a call chain, innermost frame first, such as `/home/me/train.py(12): step`."""
        for depth, frame in enumerate(frames):
            self._add("PYTORCH_CALLCHAINS", id=number, stack=self.text(frame), stackDepth=depth)


def training_step(path: Path) -> Path:
    """Write an msprof database with the PyTorch tables: one step of a one-layer model.

    Forward 100 ns of matmul and 50 ns of relu; backward 150 ns and 70 ns; optimizer 30 ns; an
    all-reduce of 200 ns that overlaps 60 ns of compute; a copy of 40 ns; waiting on stream 3.
    """
    with Device(path) as device:
        device.chain(7, "/site-packages/torch/x.py(1): f", "/w/net.py(9): f", "/w/train.py(3): run")
        device.chain(8, "/w/net.py(10): f", "/w/train.py(3): run")
        device.call(0, 5000, "ProfilerStep#4")
        device.call(10, 2000, "nn.Module: Net_0", kind=50003)
        device.call(20, 1000, "nn.Module: Linear_0", kind=50003)
        device.call(30, 900, "aten::linear", sequence=5, chain=7)
        device.call(40, 800, "aten::addmm", sequence=5, launches=100)
        device.call(1100, 1300, "aten::relu", sequence=6, launches=101, chain=8)
        engine = "autograd::engine::evaluate_function: "
        device.call(2000, 2400, engine + "ReluBackward0", thread=2)
        device.call(2010, 2390, "ReluBackward0", thread=2, sequence=6, forward_thread=1)
        device.call(2020, 2380, "aten::threshold_backward", thread=2, launches=102)
        device.call(2500, 3000, engine + "AddmmBackward0", thread=2)
        device.call(2510, 2990, "AddmmBackward0", thread=2, sequence=5, forward_thread=1)
        device.call(2520, 2980, "aten::mm", thread=2, launches=103)
        device.call(3500, 4500, "Optimizer.step#SGD.step")
        device.call(3600, 4000, "aten::_foreach_add_", launches=104)
        device.task(1000, 1100, connection=100, kernel=("mm_kernel", "MatMul"))
        device.task(1200, 1250, connection=101, kernel=("relu_kernel", "Relu"))
        device.task(2100, 2170, connection=102, kernel=("relu_grad", "ReluGrad"))
        device.task(2600, 2750, connection=103, kernel=("mm_kernel", "MatMul"))
        device.task(3900, 3930, connection=104, kernel=("add", "Add"))
        device.task(4000, 4040, "MEMCPY_ASYNC", copy=4096)
        device.task(2100, 2700, "EVENT_WAIT", stream=3)
        device.collective(2690, 2890, "hcom_allReduce__1", "hcom_allReduce_")
        device.step(4, 0, 5000)
        device.writer.write("NPU_INFO", {"id": [0], "name": "Ascend910B"})
    return path
