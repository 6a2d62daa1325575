"""Device tasks of an msprof database: when they ran, where, what they were.

Everything here is columns over the rows of TASK, in the file's order, without the rows whose times
are impossible (they are counted as a finding).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, OTHER, UNKNOWN, Labels
from unified_prof.analysis.read.source import Findings, Source
from unified_prof.arrays.lookup import Lookup
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


class Tasks:
    """The rows of TASK as columns; each group of columns is read when it is first used."""

    def __init__(self, source: Source, strings: Strings, findings: Findings) -> None:
        self._source = source
        self._strings = strings
        columns = source.integers(
            "TASK",
            {
                "start": "startNs",
                "duration": "endNs - startNs",
                "id": "globalTaskId",
                "device": "deviceId",
                "type": "taskType",
            },
            narrow=("duration", "id", "device", "type"),
        )
        start, duration = columns.pop("start"), columns.pop("duration")
        valid = possible(start, duration)
        self._valid: NDArray[np.bool_] | None = None
        if not valid.all():
            self._valid = valid
            bad = len(valid) - int(valid.sum())
            findings.add("impossible_task_time", f"{bad} rows of TASK are left out", bad)
        self.start_ns = self._keep(start)
        self.duration_ns = self._keep(duration)
        # Two small numbers in one: string ids stay below 2**32.
        device_and_type = self._keep(_packed(columns.pop("device"), columns.pop("type")))
        self.device = _small(device_and_type >> 32)
        device_and_type &= 0xFFFFFFFF
        self._type_ids, type_codes = codes(device_and_type)
        self.type = _small(type_codes)
        del device_and_type, type_codes
        identity = self._keep(columns.pop("id"))
        self._compute = source.integers(
            "COMPUTE_TASK_INFO",
            {"id": "globalTaskId", "op_type": "opType"},
            narrow=("id", "op_type"),
        )
        self.info = Lookup(self._compute.pop("id")).rows(identity)
        self.kind = self._kinds(identity)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        """End of each task."""
        return self.start_ns + self.duration_ns

    @cached_property
    def stream(self) -> Ints:
        """Stream number of each task."""
        return self._column("streamId")

    @cached_property
    def connection(self) -> Ints:
        """Connection id of each task: what ties it to the host call that launched it."""
        return self._column("connectionId")

    @cached_property
    def identity(self) -> Ints:
        """The globalTaskId of each task."""
        return self._column("globalTaskId")

    @cached_property
    def type_texts(self) -> list[str | None]:
        """Text of each code in `type`."""
        return self._strings.texts(self._type_ids)

    @property
    def of_the_program(self) -> NDArray[np.bool_]:
        """Which tasks are the program's, not marks of the profiler itself."""
        marks = [bool(_OF_THE_PROFILER.match(text or "")) for text in self.type_texts]
        is_program = ~np.array([*marks, False])
        return is_program.take(self.type)

    @property
    def op_type(self) -> Ints:
        """String id of the operator type of each row of COMPUTE_TASK_INFO, see `info`."""
        return self._compute["op_type"]

    @cached_property
    def kernel_name(self) -> Ints:
        """String id of the kernel's name of each row of COMPUTE_TASK_INFO, see `info`."""
        columns = {"name": "name"}
        return self._source.integers("COMPUTE_TASK_INFO", columns, narrow=columns)["name"]

    def operator_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return what kind of operator each of the chosen tasks is, as numbers in `labels`.

        That is the operator type where the database has one, else the kernel's name, else the
        text of the task's type; of a copy, what it copies.
        """
        return self._labels(labels, chosen, (self.op_type, lambda: self.kernel_name))

    def kernel_labels(self, labels: Labels, chosen: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the kernel of each of the chosen tasks, as numbers in `labels`."""
        return self._labels(labels, chosen, (self.kernel_name, lambda: self.op_type))

    def _labels(
        self, labels: Labels, chosen: NDArray[np.integer], columns: tuple[Ints, Callable[[], Ints]]
    ) -> NDArray[np.int32]:
        info = self.info.take(chosen)
        of_row = np.full(1, UNKNOWN, np.int32)
        if len(columns[0]):
            ids, number = codes(columns[0])
            of_row = labels.numbers(self._strings.texts(ids)).take(number)
            unnamed = np.flatnonzero(of_row < 0)
            if len(unnamed):
                ids, number = codes(columns[1]()[unnamed])
                of_row[unnamed] = labels.numbers(self._strings.texts(ids))[number]
        result = of_row.take(info, mode="clip")
        unknown = np.flatnonzero((info < 0) | (result < 0))
        if len(unknown):
            by_type = labels.numbers([text or "(unnamed task)" for text in self.type_texts])
            result[unknown] = by_type[self.type[chosen[unknown]]]
        if len(self._copies[0]):
            copies = np.flatnonzero(self.kind[chosen] == COPY)
            row = Lookup(self._copies[0]).rows(self.identity[chosen[copies]])
            directions = labels.numbers(self._copies[1])
            result[copies[row >= 0]] = directions[row[row >= 0]]
        return result

    @cached_property
    def _copies(self) -> tuple[Ints, list[str]]:
        """The memory copies: their globalTaskId, and what they copy in words."""
        rows = self._source.rows(
            "SELECT CAST(m.globalTaskId AS INTEGER), e.name FROM MEMCPY_INFO m"
            " JOIN ENUM_MEMCPY_OPERATION e ON e.id = m.memcpyOperation"
            " WHERE m.globalTaskId IS NOT NULL AND e.name IS NOT NULL"
        )
        return np.array([row[0] for row in rows], np.int64), [f"memcpy {row[1]}" for row in rows]

    def _keep(self, column: Ints) -> Ints:
        return column if self._valid is None else column[self._valid]

    def _column(self, name: str) -> Ints:
        columns = self._source.integers("TASK", {name: name}, narrow=(name,))
        return self._keep(columns[name])

    def _identities(self, table: str) -> Ints:
        return self._source.integers(table, {"id": "globalTaskId"})["id"]

    def _kinds(self, identity: Ints) -> NDArray[np.int8]:
        """Decide what each task is: the tables that describe tasks first, the type's text last."""
        described = bool((self.info >= 0).any())
        by_type = np.array([kind_of_type(text) for text in self.type_texts] or [OTHER], np.int8)
        if described:
            # The database says which tasks are kernels; others that look like one are containers
            # (a collective's own AI_CORE task) and would be counted twice.
            by_type[by_type == KERNEL] = OTHER
        kind: NDArray[np.int8] = by_type[self.type]
        kind[self.info >= 0] = KERNEL
        for table, what in (
            ("MEMCPY_INFO", COPY),
            ("COMMUNICATION_SCHEDULE_TASK_INFO", COMMUNICATION),
            ("COMMUNICATION_TASK_INFO", COMMUNICATION),
        ):
            listed = self._identities(table)
            if len(listed):
                kind[Lookup(listed).rows(identity) >= 0] = what
        return kind


def possible(start_ns: Ints, duration_ns: Ints) -> NDArray[np.bool_]:
    """Return which intervals can have happened: known, in order, of this age, not endless."""
    result = (start_ns >= 0) & (start_ns <= MAX_TIME_NS)
    result &= duration_ns >= 0
    result &= duration_ns <= MAX_DURATION_NS
    return result


def _small(values: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return small numbers (there are few devices and types) in two bytes each, others in four."""
    limits = np.iinfo(np.int16)
    fits = limits.min <= values.min(initial=0) and values.max(initial=0) <= limits.max
    return values.astype(np.int16 if fits else np.int32)


def _packed(device: Ints, kind: Ints) -> Ints:
    """Return both numbers as one, MISSING where one of them is not known."""
    packed = device.astype(np.int64)
    packed <<= 32
    packed |= kind.astype(np.int64) & 0xFFFFFFFF
    packed[(device == MISSING) | (kind == MISSING)] = MISSING
    return packed


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
