"""Device tasks of an msprof database (TASK) as packed columns of about 15 bytes per task.

Rows are in the file's order; rows with invalid times are left out and counted as a finding.
`TaskRows` are windows of rows with columns computed on access, `TaskNames` the names of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Ints, Lookup
from unified_prof.arrays.packed import BLOCK, Packed, PackedLookup, Packing, recoded
from unified_prof.recording import names
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, OTHER, UNKNOWN, Labels
from unified_prof.recording.source import NOTHING_KNOWN, Findings, Source, Strings, possible

# Kind of waits, event records and notifications, which do not count as work (after `calls.KINDS`).
WAIT = 6


def kind_of_type(text: str | None) -> int:
    """Return the kind of a task from the text of its type."""
    if text in NOTHING_KNOWN:
        return OTHER
    if names.COLLECTIVE_TASK(text):
        return COMMUNICATION
    if names.COPY_TASK(text):
        return COPY
    if names.WAIT_TASK(text):
        return WAIT
    return KERNEL if names.KERNEL_TASK(text) else OTHER


FOREVER = 2**63 - 1


class TaskColumn:
    """A column of `TaskColumns`, unpacked on access from the packed column of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removesuffix("_ns")

    def __get__(self, tasks: TaskColumns, owner: type) -> NDArray[Any]:
        return tasks.column(self._name)


class TaskColumns:
    """Columns of device tasks."""

    start_ns, duration_ns, device, stream, kind = (TaskColumn() for _ in range(5))
    type = TaskColumn()  # Index in `Tasks.type_texts`.
    info = TaskColumn()  # Row in COMPUTE_TASK_INFO, or NOWHERE.
    connection = TaskColumn()  # Connection id, which the launching host call shares.
    identity = TaskColumn()  # globalTaskId

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        result: Ints = self.start_ns + self.duration_ns
        return result

    def column(self, name: str) -> NDArray[Any]:
        """Return a column by the name in `Tasks.packed`."""
        raise NotImplementedError


class TaskRows(TaskColumns):
    """A window of rows of TASK; columns are unpacked on first access."""

    def __init__(
        self, tasks: Tasks, rows: slice | NDArray[np.integer], until_ns: int = FOREVER
    ) -> None:
        self._tasks, self._rows = tasks, rows
        self._unpacked: dict[str, NDArray[Any]] = {}
        # For windows in order of time: no task of a later window starts before this.
        self.until_ns = until_ns

    def __len__(self) -> int:
        if isinstance(self._rows, slice):
            return len(range(*self._rows.indices(len(self._tasks))))
        return len(self._rows)

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """Indexes of the rows."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(len(self._tasks)))
        return self._rows

    def where(self, chosen: Bools) -> TaskRows:
        """Return the rows selected by a mask."""
        return _SelectedRows(self, np.flatnonzero(chosen))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column by the name in `Tasks.packed`."""
        if name not in self._unpacked:
            self._unpacked[name] = self._read(name)
        return self._unpacked[name]

    def _read(self, name: str) -> NDArray[Any]:
        column = self._tasks.packed[name]
        return column[self._rows] if isinstance(self._rows, slice) else column.at(self._rows)


class _SelectedRows(TaskRows):
    """Selected rows of a window, which share its unpacked columns."""

    def __init__(self, window: TaskRows, inside: NDArray[np.intp]) -> None:
        super().__init__(window._tasks, inside, window.until_ns)
        self._window, self._inside = window, inside

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        return self._window.rows[self._inside]

    def _read(self, name: str) -> NDArray[Any]:
        return self._window.column(name)[self._inside]


_DENSE = 1 << 22


class TaskNames:
    """Names of tasks, as numbers in labels."""

    def __init__(
        self,
        labels: Labels,
        strings: Strings,
        columns: tuple[Packed, Packed],
        by_type: list[str],
        named: Sequence[tuple[int, Ints, list[str]]],
        used: Iterator[TaskRows],
    ) -> None:
        """Number all names that will be looked up.

        `columns` are two of COMPUTE_TASK_INFO: the name of a task, and the name used if the first
        is unknown; `by_type` has names by task type, for tasks without either. `named` are kinds of
        tasks with names elsewhere: globalTaskIds and names. `used` yields the tasks that will be
        looked up, so that only their names are numbered.
        """
        self._columns = columns
        self._numbers = [_Numbers.from_ids(columns[0], labels, strings)]
        if (self._numbers[0].numbers < 0).any():
            self._numbers.append(self._second_names(labels, strings))
        self._by_type = np.full(len(by_type) + 1, UNKNOWN, np.int32)
        if any((self._from_compute_info(rows.info) < 0).any() for rows in used):
            self._by_type = labels.numbers(by_type)
        self._named = [
            (kind, Lookup(ids), labels.numbers(texts)) for kind, ids, texts in named if len(ids)
        ]

    def find(self, rows: TaskRows) -> NDArray[np.int32]:
        """Return the label of each task's name."""
        result = self._from_compute_info(rows.info)
        unknown = np.flatnonzero(result < 0)
        if len(unknown):
            result[unknown] = self._by_type[rows.type[unknown]]
        for kind, lookup, numbers in self._named:
            of_kind = np.flatnonzero(rows.kind == kind)
            row = lookup.rows(rows.identity[of_kind])
            result[of_kind[row >= 0]] = numbers[row[row >= 0]]
        return result

    def _second_names(self, labels: Labels, strings: Strings) -> _Numbers:
        """Number the names of rows without a name in the first column."""
        first, second = self._columns
        used = [
            np.unique(others[self._numbers[0].at(names) < 0])
            for names, others in zip(first.blocks(), second.blocks(), strict=True)
        ]
        ids = np.unique(np.concatenate(used))
        return _Numbers(ids, labels.numbers(strings.texts(ids.tolist())))

    def _from_compute_info(self, info: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the labels from COMPUTE_TASK_INFO, UNKNOWN without a name there."""
        result = np.full(len(info), UNKNOWN, np.int32)
        left = slice(None) if info.min(initial=0) >= 0 else np.flatnonzero(info >= 0)
        for column, numbers in zip(self._columns, self._numbers, strict=False):
            result[left] = numbers.at(column.at(info[left]))
            if len(self._numbers) == 1:
                break
            left = np.flatnonzero((info >= 0) & (result < 0))
        return result


class _Numbers(Struct, frozen=True, eq=False):
    """Labels by string id."""

    ids: Ints  # String ids in ascending order.
    numbers: NDArray[np.int32]

    @classmethod
    def from_ids(cls, column: Packed, labels: Labels, strings: Strings) -> _Numbers:
        ids = column.distinct()
        return cls(ids, labels.numbers(strings.texts(ids.tolist())))

    def at(self, ids: NDArray[np.integer]) -> NDArray[np.int32]:
        if not len(self.ids):
            return np.full(len(ids), UNKNOWN, np.int32)
        first = int(self.ids[0])
        if int(self.ids[-1]) - first < _DENSE:
            table = np.full(int(self.ids[-1]) - first + 1, UNKNOWN, np.int32)
            table[self.ids - first] = self.numbers
            return table.take(ids - first, mode="clip")
        return self.numbers[np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)]


_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_NO_DEVICE = -(2**31)
# Maximum number of rows for which unpacked columns are kept; longer ones are unpacked on each
# access.
_KEPT_ROWS = 1 << 20
WINDOW = 2 * BLOCK  # Rows per window, for temporary columns of some megabytes.
_COLUMNS = {
    "start": "startNs",
    "duration": "endNs - startNs",
    "identity": "globalTaskId",
    "device": "deviceId",
    "type": "taskType",
    "stream": "streamId",
    "connection": "connectionId",
}


class Tasks(TaskColumns):
    """The rows of TASK as packed columns; properties unpack a whole column.

    `windows` and `in_time` yield the rows in windows.
    """

    def __init__(self, source: Source, strings: Strings, findings: Findings) -> None:
        self._source, self._strings = source, strings
        self._kept: dict[str, NDArray[Any]] = {}
        # The columns, of which `type` has codes of `type_texts`; True if the starts ascend.
        self.packed, self.is_in_order = _read(source, findings)
        self._type_ids = self.packed["type"].distinct().tolist()
        self.packed["type"] = recoded(self.packed["type"], self._type_ids)
        compute = {name: Packing(_INT32, hole=MISSING) for name in ("id", "op_type", "name")}
        columns = {"id": "globalTaskId", "op_type": "opType", "name": "name"}
        for batch in source.batches("COMPUTE_TASK_INFO", columns):
            for name, values in batch.items():
                compute[name].add(values)
        # The columns of COMPUTE_TASK_INFO: `op_type` and `name`.
        self.of_compute = {name: packing.done() for name, packing in compute.items()}
        described = PackedLookup(self.of_compute.pop("id"))
        info = Packing(_INT32)
        for identity in self.packed["identity"].blocks():
            info.add(described.rows(identity))
        self.packed["info"] = info.done()
        self.packed["kind"] = self._kinds()

    def __len__(self) -> int:
        return len(self.packed["start"])

    @cached_property
    def devices(self) -> list[int]:
        """The numbers of the devices, in ascending order."""
        return [int(number) for number in self.packed["device"].distinct()]

    @cached_property
    def counts(self) -> Ints:
        """Number of tasks of each kind."""
        count = np.zeros(WAIT + 1, np.int64)
        for kind in self.packed["kind"].blocks():
            count += np.bincount(kind, minlength=len(count))
        return count

    @cached_property
    def type_texts(self) -> list[str | None]:
        """Text of each code in `type`."""
        return self._strings.texts(self._type_ids)

    @property
    def is_program_task(self) -> Bools:
        """Mask of the program's tasks, False for the profiler's marks."""
        return self.program_types.take(self.type)

    @cached_property
    def program_types(self) -> Bools:
        """Mask of the codes in `type` that are not the profiler's marks."""
        marks = [names.PROFILER_MARK(text) for text in self.type_texts]
        return ~np.array([*marks, False])

    @property
    def op_type(self) -> Ints:
        """String id of the operator type in each row of COMPUTE_TASK_INFO; see `info`."""
        return self.of_compute["op_type"].to_array()

    @property
    def kernel_name(self) -> Ints:
        """String id of the kernel name in each row of COMPUTE_TASK_INFO; see `info`."""
        return self.of_compute["name"].to_array()

    def windows(self, size: int = 0) -> Iterator[TaskRows]:
        """Yield all tasks in the file's order, `size` rows at a time."""
        size = size or WINDOW
        for low in range(0, len(self), size):
            yield TaskRows(self, slice(low, low + size))

    def in_time(self, device: int | None = None) -> Iterator[TaskRows]:
        """Yield all tasks, or those of a device, in order of start, WINDOW rows at a time.

        Tasks with equal starts keep the file's order.
        """
        if self.is_in_order:
            for low in range(0, len(self), WINDOW):
                behind = low + WINDOW
                until = (
                    int(self.packed["start"][behind : behind + 1][0])
                    if (behind < len(self))
                    else FOREVER
                )
                yield self._on(TaskRows(self, slice(low, behind), until), device)
            return
        order = self._order
        for low in range(0, len(self), WINDOW):
            rows, following = order[low : low + WINDOW], order[low + WINDOW : low + WINDOW + 1]
            until = int(self.packed["start"].at(following)[0]) if len(following) else FOREVER
            yield self._on(TaskRows(self, rows, until), device)

    def rows_at(self, rows: NDArray[np.integer]) -> TaskRows:
        """Return tasks by index."""
        return TaskRows(self, rows)

    def operator_names(self, labels: Labels, among: Callable[[TaskRows], Bools]) -> TaskNames:
        """Return the operator types of tasks, as numbers in `labels`.

        The result is the operator type if the database has one, else the name of the kernel, else
        the text of the task type; for a copy, it is the direction. `among` returns a mask of the
        tasks of a window that will be looked up.
        """
        windows = (window.where(among(window)) for window in self.windows())
        return self._names(labels, ("op_type", "name"), windows)

    def kernel_names(self, labels: Labels, among: Callable[[TaskRows], Bools]) -> TaskNames:
        """Return the kernel names of tasks; see `operator_names`."""
        windows = (window.where(among(window)) for window in self.windows())
        return self._names(labels, ("name", "op_type"), windows)

    def operator_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the operator type of each chosen task; see `operator_names`."""
        return self._labels(labels, ("op_type", "name"), chosen)

    def kernel_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the kernel of each chosen task, as numbers in `labels`."""
        return self._labels(labels, ("name", "op_type"), chosen)

    @cached_property
    def copies(self) -> tuple[Ints, list[str]]:
        """GlobalTaskId and direction (as text) of each copy."""
        rows = self._source.rows(
            "SELECT CAST(m.globalTaskId AS INTEGER), e.name FROM MEMCPY_INFO m"
            " JOIN ENUM_MEMCPY_OPERATION e ON e.id = m.memcpyOperation"
            " WHERE m.globalTaskId IS NOT NULL AND e.name IS NOT NULL"
        )
        return np.array([row[0] for row in rows], np.int64), [f"memcpy {row[1]}" for row in rows]

    @cached_property
    def _collective_kernels(self) -> tuple[Ints, list[str]]:
        """GlobalTaskId and name of each kernel of a collective on GPUs; NPUs run no kernels."""
        if "UPROF_GPU_TASKS" not in self._source.tables:
            return np.zeros(0, np.int64), []
        columns = {"id": "globalTaskId", "name": "name"}
        result = self._source.integers("COMMUNICATION_TASK_INFO", columns)
        texts = self._strings.texts(result["name"].tolist())
        return result["id"], [text or "communication" for text in texts]

    @cached_property
    def _order(self) -> NDArray[np.int32]:
        return np.argsort(self.packed["start"].to_array(), kind="stable").astype(np.int32)

    def _on(self, window: TaskRows, device: int | None) -> TaskRows:
        return window if device is None else window.where(window.device == device)

    def column(self, name: str) -> NDArray[Any]:
        """Return a whole column by its name in `packed`."""
        if (kept := self._kept.get(name)) is not None:
            return kept
        values = self.packed[name].to_array()
        if len(values) <= _KEPT_ROWS:
            self._kept[name] = values
        return values

    def _labels(
        self, labels: Labels, order: tuple[str, str], chosen: NDArray[np.integer]
    ) -> NDArray[np.int32]:
        parts = [self.rows_at(chosen[low : low + WINDOW]) for low in range(0, len(chosen), WINDOW)]
        names = self._names(labels, order, iter(parts))
        return np.concatenate([np.zeros(0, np.int32), *(names.find(part) for part in parts)])

    def _names(
        self, labels: Labels, order: tuple[str, str], wanted: Iterator[TaskRows]
    ) -> TaskNames:
        first, second = (self.of_compute[name] for name in order)
        by_type = [text or "(unnamed task)" for text in self.type_texts]
        named = [(COPY, *self.copies), (COMMUNICATION, *self._collective_kernels)]
        return TaskNames(labels, self._strings, (first, second), by_type, named, wanted)

    def _kinds(self) -> Packed:
        """Return the kind of each task, from the tables that describe it, else from its type."""
        described = self.packed["info"].most >= 0 and len(self.packed["info"]) > 0
        by_type = np.array([kind_of_type(text) for text in self.type_texts] or [OTHER], np.int8)
        if described:
            # The database records which tasks are kernels. Other tasks of a kernel's type are
            # containers (such as the AI_CORE task of a collective), which would be counted twice.
            by_type[by_type == KERNEL] = OTHER
        listed = [
            (Lookup(ids), what)
            for table, what in (
                ("MEMCPY_INFO", COPY),
                ("COMMUNICATION_SCHEDULE_TASK_INFO", COMMUNICATION),
                ("COMMUNICATION_TASK_INFO", COMMUNICATION),
            )
            if len(ids := self._source.integers(table, {"id": "globalTaskId"})["id"])
        ]
        kinds = Packing(np.int8)
        columns = (self.packed[name].blocks() for name in ("type", "info", "identity"))
        for kind_type, info, identity in zip(*columns, strict=True):
            kind = by_type[kind_type]
            kind[info >= 0] = KERNEL
            for lookup, what in listed:
                kind[lookup.rows(identity) >= 0] = what
            kinds.add(kind)
        return kinds.done()


def _read(source: Source, findings: Findings) -> tuple[dict[str, Packed], bool]:
    """Read TASK without rows with invalid times; return the columns, and if starts ascend."""
    packings = {
        "start": Packing(),
        "duration": Packing(_INT32),
        "device": Packing(_INT16, _INT32),
        "type": Packing(_INT16, _INT32),
    }
    for name in ("identity", "stream", "connection"):
        packings[name] = Packing(_INT32, hole=MISSING)
    bad, last, in_order = 0, -1, True
    for batch in source.batches("TASK", _COLUMNS):
        valid = possible(batch["start"], batch["duration"])
        count = int(valid.sum())
        if count < len(valid):
            bad += len(valid) - count
            batch = {name: values[valid] for name, values in batch.items()}
        start = batch["start"]
        if count:
            in_order &= int(start[0]) >= last and not (start[1:] < start[:-1]).any()
            last = int(start[-1])
        # Both columns in 32 bits each, UNKNOWN unless both are known.
        device = batch["device"]
        kind = batch["type"]
        unknown = (device == MISSING) | (kind == MISSING)
        if unknown.any():
            device, kind = np.where(unknown, _NO_DEVICE, device), np.where(unknown, 0, kind)
        batch["device"], batch["type"] = device, kind & 0xFFFFFFFF
        for name, values in batch.items():
            packings[name].add(values)
    if bad:
        findings.add("impossible_task_time", f"{bad} rows of TASK are left out", bad)
    return {name: packing.done() for name, packing in packings.items()}, in_order
