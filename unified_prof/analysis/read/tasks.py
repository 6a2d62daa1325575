"""Device tasks of an msprof database: when they ran, where, what they were.

Everything here is columns over the rows of TASK, in the file's order, without the rows whose times
are impossible (they are counted as a finding). They are held packed, at some 15 bytes a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, OTHER, UNKNOWN, Labels
from unified_prof.analysis.read.source import Findings, Source
from unified_prof.arrays.lookup import Lookup
from unified_prof.arrays.packed import BLOCK, Packed, PackedLookup, Packing
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import NOT_AVAILABLE

Ints = NDArray[np.int64]

WAIT = 6
"""A task that only waits, records or notifies: no work (continues the numbers of `calls.KINDS`)."""

NOTHING_KNOWN = frozenset({"", NOT_AVAILABLE, "NULL", "UNKNOWN", None})
"""Texts that say that msprof does not know."""

# Nothing runs on a device for two weeks, and Unix times stay below 2**62 ns until 2116.
MAX_DURATION_NS = 1 << 50
MAX_TIME_NS = 1 << 62

# What a profiler sets on a device when it begins and ends: no part of what the program did there.
_OF_THE_PROFILER = re.compile(r"profiling[ _](?:en|dis)able$", re.IGNORECASE)
# What the text of a task's type says about it. Decides only where no table knows the task.
_WAITS = re.compile(
    r"wait|record|event|notify|(?<!a)sync|barrier|profiling|maintenance|write[ _]?value|capture|"
    r"label|switch|nop\b|mstx|place_?holder|model_(?:execute|end|exit)",
    re.IGNORECASE,
)
_COPIES = re.compile(r"mem ?cpy|mem ?set|sdma|pcie|copy|async_?dma", re.IGNORECASE)
_KERNELS = re.compile(
    r"kernel|ai_?core|ai_?cpu|ai_?vec|vector|cube|mix_ai|dsa|dvpp|stars_common|ffts|fusion",
    re.IGNORECASE,
)
_COLLECTIVES = re.compile(r"hccl|nccl|rccl|communication|rdma|\bccu", re.IGNORECASE)


def kind_of_type(text: str | None) -> int:
    """Return what a task is, judged by the text of its type alone."""
    if text in NOTHING_KNOWN:
        return OTHER
    assert text is not None
    if _COLLECTIVES.search(text):
        return COMMUNICATION
    if _COPIES.search(text):
        return COPY
    if _WAITS.search(text):
        return WAIT
    return KERNEL if _KERNELS.search(text) else OTHER


class Strings:
    """The texts of STRING_IDS."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @cached_property
    def _texts(self) -> dict[int, str]:
        return dict(self._source.rows("SELECT id, value FROM STRING_IDS"))

    def get(self, number: int) -> str | None:
        """Return the text of an id, None if there is none or it says "not available"."""
        text = self._texts.get(number)
        return None if text in NOTHING_KNOWN else str(text)

    def texts(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the texts of many ids."""
        return [self.get(number) for number in numbers]


_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_NO_DEVICE = -(2**31)
_DENSE = 1 << 22
_KEPT_ROWS = 1 << 20
"""Columns of so many rows are unpacked once; longer ones whenever they are asked for."""
WINDOW = 2 * BLOCK
"""Rows of a window: what is worked out about them stays some megabytes."""
FOREVER = 2**63 - 1
_COLUMNS = {
    "start": "startNs",
    "duration": "endNs - startNs",
    "identity": "globalTaskId",
    "device": "deviceId",
    "type": "taskType",
    "stream": "streamId",
    "connection": "connectionId",
}


class TaskRows:
    """Some tasks, with their columns as they are asked for."""

    def __init__(
        self, tasks: Tasks, rows: slice | NDArray[np.integer], until_ns: int = FOREVER
    ) -> None:
        self._tasks, self._rows = tasks, rows
        self.until_ns = until_ns
        """Of a window in order of time: no later window has a task that starts before."""

    def __len__(self) -> int:
        if isinstance(self._rows, slice):
            return len(range(*self._rows.indices(len(self._tasks))))
        return len(self._rows)

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        """Which of all tasks these are."""
        if isinstance(self._rows, slice):
            return np.arange(*self._rows.indices(len(self._tasks)))
        return self._rows

    @cached_property
    def start_ns(self) -> Ints:
        """Start of each task."""
        return self._of("start")

    @cached_property
    def duration_ns(self) -> Ints:
        """Duration of each task, in as many bytes as that of any needs."""
        return self._of("duration")

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.duration_ns

    @cached_property
    def device(self) -> NDArray[np.integer]:
        """Device number of each task."""
        return self._of("device")

    @cached_property
    def type(self) -> NDArray[np.integer]:
        """Number in `Tasks.type_texts` of the type of each task."""
        return self._of("type")

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """What each task is."""
        return self._of("kind")

    @cached_property
    def info(self) -> NDArray[np.int32]:
        """Row of each task in COMPUTE_TASK_INFO, NOWHERE where there is none."""
        return self._of("info")

    @cached_property
    def stream(self) -> Ints:
        """Stream number of each task."""
        return self._of("stream")

    @cached_property
    def connection(self) -> Ints:
        """Connection id of each task."""
        return self._of("connection")

    @cached_property
    def identity(self) -> Ints:
        """The globalTaskId of each task."""
        return self._of("identity")

    def where(self, chosen: NDArray[np.bool_]) -> TaskRows:
        """Return those that are chosen."""
        return _Chosen(self, np.flatnonzero(chosen))

    def _of(self, name: str) -> NDArray[Any]:
        column = self._tasks.packed[name]
        return column[self._rows] if isinstance(self._rows, slice) else column.at(self._rows)


class _Chosen(TaskRows):
    """Some rows of a window: what that has unpacked serves them too."""

    def __init__(self, window: TaskRows, inside: NDArray[np.intp]) -> None:
        super().__init__(window._tasks, inside, window.until_ns)
        self._window, self._inside = window, inside

    @cached_property
    def rows(self) -> NDArray[np.integer]:
        return self._window.rows[self._inside]

    def _of(self, name: str) -> NDArray[Any]:
        attribute = f"{name}_ns" if name in ("start", "duration") else name
        values: NDArray[Any] = getattr(self._window, attribute)[self._inside]
        return values


class Tasks:
    """The rows of TASK as columns, packed: a whole column is unpacked for whoever asks for it.

    `windows` and `in_time` give some rows at a time, for what need not be held at once.
    """

    def __init__(self, source: Source, strings: Strings, findings: Findings) -> None:
        self._source = source
        self._strings = strings
        self._kept: dict[str, NDArray[Any]] = {}
        read = _read(source, findings)
        self.is_in_order: bool = read.is_in_order
        """Whether the file has them in order of their starts."""
        self.packed: dict[str, Packed] = read.columns
        """The columns; `type` has codes of `type_texts`."""
        self._type_ids = self.packed["type"].distinct().tolist()
        self.packed["type"] = recoded(self.packed["type"], self._type_ids)
        compute = {name: Packing(_INT32, hole=MISSING) for name in ("id", "op_type", "name")}
        columns = {"id": "globalTaskId", "op_type": "opType", "name": "name"}
        for piece in source.pieces("COMPUTE_TASK_INFO", columns):
            for name, values in piece.items():
                compute[name].add(values)
        self.of_compute = {name: packing.done() for name, packing in compute.items()}
        """The columns of COMPUTE_TASK_INFO: `op_type` and `name`."""
        self.packed["info"] = self._joined(PackedLookup(self.of_compute.pop("id")))
        self.packed["kind"] = self._kinds()

    def __len__(self) -> int:
        return len(self.packed["start"])

    @property
    def start_ns(self) -> Ints:
        """Start of each task."""
        return self._whole("start")

    @property
    def duration_ns(self) -> Ints:
        """Duration of each task."""
        return self._whole("duration")

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.duration_ns

    @property
    def device(self) -> NDArray[np.integer]:
        """Device number of each task."""
        return self._whole("device")

    @property
    def type(self) -> NDArray[np.integer]:
        """Number in `type_texts` of the type of each task."""
        return self._whole("type")

    @property
    def kind(self) -> NDArray[np.int8]:
        """What each task is: a number of `calls.KINDS`, or WAIT."""
        return self._whole("kind")

    @property
    def info(self) -> NDArray[np.int32]:
        """Row of each task in COMPUTE_TASK_INFO, NOWHERE where there is none."""
        return self._whole("info")

    @property
    def stream(self) -> Ints:
        """Stream number of each task."""
        return self._whole("stream")

    @property
    def connection(self) -> Ints:
        """Connection id of each task: what ties it to the host call that launched it."""
        return self._whole("connection")

    @property
    def identity(self) -> Ints:
        """The globalTaskId of each task."""
        return self._whole("identity")

    @cached_property
    def devices(self) -> list[int]:
        """The numbers of the devices, in rising order."""
        return [int(number) for number in self.packed["device"].distinct()]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many tasks there are of each kind."""
        count = np.zeros(WAIT + 1, np.int64)
        for kind in self.packed["kind"].blocks():
            count += np.bincount(kind, minlength=len(count))
        return count

    @cached_property
    def type_texts(self) -> list[str | None]:
        """Text of each code in `type`."""
        return self._strings.texts(self._type_ids)

    @property
    def of_the_program(self) -> NDArray[np.bool_]:
        """Which tasks are the program's, not marks of the profiler itself."""
        return self.program_types.take(self.type)

    @cached_property
    def program_types(self) -> NDArray[np.bool_]:
        """Which codes in `type` are those of the program's tasks."""
        marks = [bool(_OF_THE_PROFILER.match(text or "")) for text in self.type_texts]
        return ~np.array([*marks, False])

    @property
    def op_type(self) -> Ints:
        """String id of the operator type of each row of COMPUTE_TASK_INFO, see `info`."""
        return self.of_compute["op_type"].whole()

    @property
    def kernel_name(self) -> Ints:
        """String id of the kernel's name of each row of COMPUTE_TASK_INFO, see `info`."""
        return self.of_compute["name"].whole()

    def windows(self, size: int = 0) -> Iterator[TaskRows]:
        """Yield all tasks in the file's order, `size` (WINDOW) at a time."""
        size = size or WINDOW
        for low in range(0, len(self), size):
            yield TaskRows(self, slice(low, low + size))

    def in_time(self, device: int | None = None) -> Iterator[TaskRows]:
        """Yield all tasks, or those of a device, in order of their starts, WINDOW at a time.

        Of tasks that start together the file's order counts.
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
        """Return any tasks."""
        return TaskRows(self, rows)

    def operator_names(
        self, labels: Labels, among: Callable[[TaskRows], NDArray[np.bool_]]
    ) -> TaskNames:
        """Return how to tell what kind of operator a task is, as numbers in `labels`.

        That is the operator type where the database has one, else the kernel's name, else the
        text of the task's type; of a copy, what it copies.

        Args:
            labels: what gets the texts.
            among: tells of a window of which tasks will be asked.
        """
        windows = (window.where(among(window)) for window in self.windows())
        return self._names(labels, ("op_type", "name"), windows)

    def kernel_names(
        self, labels: Labels, among: Callable[[TaskRows], NDArray[np.bool_]]
    ) -> TaskNames:
        """Return how to tell which kernel a task is; see `operator_names`."""
        windows = (window.where(among(window)) for window in self.windows())
        return self._names(labels, ("name", "op_type"), windows)

    def operator_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return what kind of operator each of the chosen tasks is, see `operator_names`."""
        return self._labels(labels, ("op_type", "name"), chosen)

    def kernel_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the kernel of each of the chosen tasks, as numbers in `labels`."""
        return self._labels(labels, ("name", "op_type"), chosen)

    @cached_property
    def copies(self) -> tuple[Ints, list[str]]:
        """The memory copies: their globalTaskId, and what they copy in words."""
        rows = self._source.rows(
            "SELECT CAST(m.globalTaskId AS INTEGER), e.name FROM MEMCPY_INFO m"
            " JOIN ENUM_MEMCPY_OPERATION e ON e.id = m.memcpyOperation"
            " WHERE m.globalTaskId IS NOT NULL AND e.name IS NOT NULL"
        )
        return np.array([row[0] for row in rows], np.int64), [f"memcpy {row[1]}" for row in rows]

    @cached_property
    def _order(self) -> NDArray[np.int32]:
        return np.argsort(self.packed["start"].whole(), kind="stable").astype(np.int32)

    def _on(self, window: TaskRows, device: int | None) -> TaskRows:
        return window if device is None else window.where(window.device == device)

    def _whole(self, name: str) -> NDArray[Any]:
        if (kept := self._kept.get(name)) is not None:
            return kept
        values = self.packed[name].whole()
        if len(values) <= _KEPT_ROWS:
            self._kept[name] = values
        return values

    def _labels(
        self, labels: Labels, order: tuple[str, str], chosen: NDArray[np.integer]
    ) -> NDArray[np.int32]:
        parts = [self.rows_at(chosen[low : low + WINDOW]) for low in range(0, len(chosen), WINDOW)]
        names = self._names(labels, order, iter(parts))
        return np.concatenate([np.zeros(0, np.int32), *(names.of(part) for part in parts)])

    def _names(
        self, labels: Labels, order: tuple[str, str], asked: Iterator[TaskRows]
    ) -> TaskNames:
        first, second = (self.of_compute[name] for name in order)
        by_type = [text or "(unnamed task)" for text in self.type_texts]
        return TaskNames(labels, self._strings, (first, second), by_type, self.copies, asked)

    def _joined(self, described: PackedLookup) -> Packed:
        info = Packing(_INT32)
        for identity in self.packed["identity"].blocks():
            info.add(described.rows(identity))
        return info.done()

    def _identities(self, table: str) -> Ints:
        return self._source.integers(table, {"id": "globalTaskId"})["id"]

    def _kinds(self) -> Packed:
        """Decide what each task is: the tables that describe tasks first, the type's text last."""
        described = self.packed["info"].most >= 0 and len(self.packed["info"]) > 0
        by_type = np.array([kind_of_type(text) for text in self.type_texts] or [OTHER], np.int8)
        if described:
            # The database says which tasks are kernels; others that look like one are containers
            # (a collective's own AI_CORE task) and would be counted twice.
            by_type[by_type == KERNEL] = OTHER
        listed = [
            (Lookup(ids), what)
            for table, what in (
                ("MEMCPY_INFO", COPY),
                ("COMMUNICATION_SCHEDULE_TASK_INFO", COMMUNICATION),
                ("COMMUNICATION_TASK_INFO", COMMUNICATION),
            )
            if len(ids := self._identities(table))
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


class TaskNames:
    """Tells what tasks are called, as numbers of labels."""

    def __init__(
        self,
        labels: Labels,
        strings: Strings,
        columns: tuple[Packed, Packed],
        by_type: list[str],
        copies: tuple[Ints, list[str]],
        asked: Iterator[TaskRows],
    ) -> None:
        """Give numbers to all names that will be used.

        Args:
            labels: what numbers them.
            strings: the texts of the columns.
            columns: of COMPUTE_TASK_INFO: the one that names a task, and the one that does so
                where that says nothing.
            by_type: what tasks are called by their type, where neither knows.
            copies: identities of copies, and what they are called.
            asked: the tasks that will be asked for, for what is numbered only where it is needed.
        """
        self._columns = columns
        self._numbers = [_Numbers.of(columns[0], labels, strings)]
        if (self._numbers[0].numbers < 0).any():
            self._numbers.append(self._second(labels, strings))
        self._by_type = np.full(len(by_type) + 1, UNKNOWN, np.int32)
        if any((self._told(rows.info) < 0).any() for rows in asked):
            self._by_type = labels.numbers(by_type)
        self._copies = Lookup(copies[0]) if len(copies[0]) else None
        self._directions = labels.numbers(copies[1])

    def of(self, rows: TaskRows) -> NDArray[np.int32]:
        """Return the number of each task's name."""
        result = self._told(rows.info)
        unknown = np.flatnonzero(result < 0)
        if len(unknown):
            result[unknown] = self._by_type[rows.type[unknown]]
        if self._copies is not None:
            copies = np.flatnonzero(rows.kind == COPY)
            row = self._copies.rows(rows.identity[copies])
            result[copies[row >= 0]] = self._directions[row[row >= 0]]
        return result

    def _second(self, labels: Labels, strings: Strings) -> _Numbers:
        """Number the names of the rows of which the first column says nothing."""
        first, second = self._columns
        used = [
            np.unique(others[self._numbers[0].at(names) < 0])
            for names, others in zip(first.blocks(), second.blocks(), strict=True)
        ]
        ids = np.unique(np.concatenate(used))
        return _Numbers(ids, labels.numbers(strings.texts(ids.tolist())))

    def _told(self, info: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the numbers that COMPUTE_TASK_INFO tells, UNKNOWN where it does not."""
        result = np.full(len(info), UNKNOWN, np.int32)
        left = slice(None) if info.min(initial=0) >= 0 else np.flatnonzero(info >= 0)
        for column, numbers in zip(self._columns, self._numbers, strict=False):
            result[left] = numbers.at(column.at(info[left]))
            if len(self._numbers) == 1:
                break
            left = np.flatnonzero((info >= 0) & (result < 0))
        return result


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Numbers of labels by string id."""

    ids: Ints
    """In rising order."""
    numbers: NDArray[np.int32]

    @classmethod
    def of(cls, column: Packed, labels: Labels, strings: Strings) -> _Numbers:
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


@dataclass(frozen=True, slots=True)
class _Read:
    columns: dict[str, Packed]
    is_in_order: bool


def _read(source: Source, findings: Findings) -> _Read:
    """Read TASK, without the rows whose times are impossible."""
    packings = {
        "start": Packing(),
        "duration": Packing(_INT32),
        "device": Packing(_INT16, _INT32),
        "type": Packing(_INT16, _INT32),
    }
    for name in ("identity", "stream", "connection"):
        packings[name] = Packing(_INT32, hole=MISSING)
    bad, last, in_order = 0, -1, True
    for piece in source.pieces("TASK", _COLUMNS):
        valid = possible(piece["start"], piece["duration"])
        count = int(valid.sum())
        if count < len(valid):
            bad += len(valid) - count
            piece = {name: values[valid] for name, values in piece.items()}
        start = piece["start"]
        if count:
            in_order &= int(start[0]) >= last and not (start[1:] < start[:-1]).any()
            last = int(start[-1])
        piece["device"], piece["type"] = _known(piece["device"], piece["type"])
        for name, values in piece.items():
            packings[name].add(values)
    if bad:
        findings.add("impossible_task_time", f"{bad} rows of TASK are left out", bad)
    return _Read({name: packing.done() for name, packing in packings.items()}, in_order)


def recoded(column: Packed, values: Sequence[int] | Ints) -> Packed:
    """Return a column with the place among `values` (in rising order) of each of its values."""
    ordered = np.array(values, np.int64)
    packing = Packing(_INT16, _INT32)
    for block in column.blocks():
        packing.add(np.searchsorted(ordered, block))
    return packing.done()


def possible(start_ns: Ints, duration_ns: Ints) -> NDArray[np.bool_]:
    """Return which intervals can have happened: known, in order, of this age, not endless."""
    result = (start_ns >= 0) & (start_ns <= MAX_TIME_NS)
    result &= duration_ns >= 0
    result &= duration_ns <= MAX_DURATION_NS
    return result


def _known(device: Ints, kind: Ints) -> tuple[Ints, Ints]:
    """Return both, as 32 bits each, without a row of which only one is known."""
    unknown = (device == MISSING) | (kind == MISSING)
    if unknown.any():
        device, kind = np.where(unknown, _NO_DEVICE, device), np.where(unknown, 0, kind)
    return device, kind & 0xFFFFFFFF


def codes(values: Ints) -> tuple[list[int], NDArray[np.int32]]:
    """Number the distinct values; few and small ones (string ids) without sorting them all."""
    if not len(values):
        return [], np.empty(0, np.int32)
    if values.min() >= 0 and values.max() < 1 << 20:
        used = np.flatnonzero(np.bincount(values))
        table = np.empty(int(used[-1]) + 1, np.int32)
        table[used] = np.arange(len(used), dtype=np.int32)
        return used.tolist(), table[values]
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct.tolist(), codes.astype(np.int32)
