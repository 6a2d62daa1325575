"""Quantities over time: memory in use, bandwidths, frequencies; and hardware counters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.model import PmuFigure, Series
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.tasks import MAX_TIME_NS, NOTHING_KNOWN, Strings

MAX_BYTES = 1 << 53
"""No memory has that many: 8 PiB."""


@dataclass(frozen=True, slots=True)
class _Counter:
    """Columns of one table that are sampled quantities."""

    table: str
    values: tuple[tuple[str, str], ...]
    """(column, what it is called)."""
    unit: str
    keys: tuple[str, ...] = ()
    """Columns that tell several sources of one table apart: numbers."""
    texts: tuple[str, ...] = ()
    """The same, as string ids."""
    time: str = "timestampNs"
    device: str | None = "deviceId"


# Units as the database documents them: memory in bytes, bandwidth in bytes a second, MHz.
_MEMORY = (
    _Counter(
        "MEMORY_RECORD",
        (("totalAllocated", "allocated"), ("totalReserved", "reserved"), ("totalActive", "active")),
        "B",
        texts=("component",),
        time="timestamp",
    ),
    _Counter("NPU_MEM", (("hbm", "HBM"), ("ddr", "DDR")), "B", texts=("type",)),
)
_COUNTERS = (
    _Counter("HBM", (("bandwidth", "HBM"),), "B/s", keys=("hbmId",), texts=("type",)),
    _Counter("DDR", (("read", "DDR read"), ("write", "DDR write")), "B/s"),
    _Counter("LLC", (("throughput", "LLC"),), "B/s", keys=("llcId",), texts=("mode",)),
    _Counter("HCCS", (("txThroughput", "HCCS tx"), ("rxThroughput", "HCCS rx")), "B/s"),
    _Counter("QOS", (("bandwidth", "QoS"),), "B/s", texts=("eventName",)),
    _Counter(
        "PCIE",
        (("txPostAvg", "PCIe tx"), ("rxPostAvg", "PCIe rx")),
        "B/s",
    ),
    _Counter("NIC", (("rxByteRate", "NIC rx"), ("txByteRate", "NIC tx")), "B/s", keys=("funcId",)),
    _Counter(
        "ROCE", (("rxByteRate", "RoCE rx"), ("txByteRate", "RoCE tx")), "B/s", keys=("funcId",)
    ),
    _Counter("AICORE_FREQ", (("freq", "AI Core frequency"),), "MHz"),
    _Counter("CPU_USAGE", (("usage", "host CPU"),), "%", keys=("cpuId",), device=None),
    _Counter("UPROF_GPU_METRICS", (("value", ""),), "", texts=("name",)),
    _Counter("HOST_MEM_USAGE", (("usage", "host memory"),), "%", device=None),
)


_Sample = tuple[int, tuple[Any, ...]]
"""A time and the values of each column at it."""


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Blocks that the framework's operations asked of the allocator."""

    names: list[str]
    """The operation that was running."""
    size_bytes: NDArray[np.int64]
    at_ns: NDArray[np.int64]


def allocations(source: Source, strings: Strings) -> Allocations:
    """Return the allocations of OP_MEMORY; those from before the recording have no time there."""
    columns = source.integers("OP_MEMORY", {"name": "name", "size": "size", "at": "allocationTime"})
    known = (columns["at"] > 0) & (columns["at"] <= MAX_TIME_NS)
    known &= (columns["size"] > 0) & (columns["size"] < MAX_BYTES)
    names = [strings.get(number) or "(unnamed)" for number in columns["name"][known].tolist()]
    return Allocations(names, columns["size"][known], columns["at"][known])


def memory_series(source: Source, strings: Strings) -> tuple[Series, ...]:
    """Return the memory in use over time."""
    return _series(source, strings, _MEMORY)


def counter_series(source: Source, strings: Strings) -> tuple[Series, ...]:
    """Return bandwidths, frequencies and the host's load over time."""
    return _series(source, strings, _COUNTERS)


def peak_memory(source: Source) -> int | None:
    """Return the highest memory that the framework's allocator had in use, if it was recorded.

    Without the framework's records it is the highest use of device memory.
    """
    for table, column in (("MEMORY_RECORD", "totalAllocated"), ("NPU_MEM", "hbm")):
        ((peak,),) = source.rows(
            f"SELECT max({column}) FROM {table} WHERE typeof({column}) IN ('integer', 'real')"
            f" AND {column} > 0 AND {column} < {MAX_BYTES}"
        )
        if peak is not None:
            return int(peak)
    return None


def _series(source: Source, strings: Strings, counters: tuple[_Counter, ...]) -> tuple[Series, ...]:
    result: list[Series] = []
    for counter in counters:
        if counter.table in source.tables:
            result += _of_table(source, strings, counter)
    return tuple(result)


def _of_table(source: Source, strings: Strings, counter: _Counter) -> list[Series]:
    groups = sorted(_samples(source, counter).items(), key=lambda item: repr(item[0]))
    return [
        one
        for (where, *parts), samples in groups
        for one in _of_group(counter, where, _suffix(counter, parts, strings), samples)
    ]


def _samples(source: Source, counter: _Counter) -> dict[tuple[object, ...], list[_Sample]]:
    """Return the samples of a table at possible times, by device and what tells sources apart."""
    keys = [*counter.keys, *counter.texts]
    values = [column for column, _ in counter.values]
    columns = ", ".join([counter.time, counter.device or "NULL", *keys, *values])
    first = 2 + len(keys)
    found: dict[tuple[object, ...], list[_Sample]] = {}
    for row in source.rows(f'SELECT {columns} FROM "{counter.table}"'):
        time_ns = row[0]
        if isinstance(time_ns, int | float) and 0 <= time_ns <= MAX_TIME_NS:
            found.setdefault(row[1:first], []).append((int(time_ns), row[first:]))
    return found


def _suffix(counter: _Counter, parts: list[Any], strings: Strings) -> str:
    """Return what tells one source of a table from its others: numbers, then words."""
    numbers = [f"{part}" for part in parts[: len(counter.keys)]]
    words = [strings.get(part) for part in parts[len(counter.keys) :] if isinstance(part, int)]
    return " ".join([*numbers, *(word for word in words if word not in NOTHING_KNOWN and word)])


def _of_group(
    counter: _Counter, where: object, suffix: str, samples: list[_Sample]
) -> Iterator[Series]:
    """Yield the series of one source: one for each column that has a number."""
    samples.sort(key=lambda sample: sample[0])
    for index, (_, name) in enumerate(counter.values):
        points = [
            (time_ns, float(values[index]))
            for time_ns, values in samples
            if isinstance(values[index], int | float) and math.isfinite(values[index])
        ]
        if points:
            yield Series(
                name=f"{name} {suffix}".strip(),
                unit=counter.unit,
                device="host" if where is None else f"device {where}",
                time_ns=np.array([point[0] for point in points], np.int64),
                value=np.array([point[1] for point in points], np.float64),
            )


def pmu_figures(source: Source) -> tuple[PmuFigure, ...]:
    """Return the hardware counters of the tasks, by operator type."""
    if "TASK_PMU_INFO" not in source.tables:
        return ()
    # Grouped by id inside SQLite; names are looked up for the few groups only.
    rows = source.rows(
        """
        SELECT o.value, n.value, g.tasks, g.mean, g.total FROM (
            SELECT c.opType AS op, p.name AS counter, count(*) AS tasks,
                   avg(p.value) AS mean, total(p.value) AS total
            FROM TASK_PMU_INFO p JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = p.globalTaskId
            WHERE p.value BETWEEN -1e300 AND 1e300 GROUP BY c.opType, p.name
        ) g LEFT JOIN STRING_IDS o ON o.id = g.op LEFT JOIN STRING_IDS n ON n.id = g.counter
        ORDER BY o.value, n.value
        """
    )
    return tuple(
        PmuFigure(
            op_type=str(op_type or "(no operator type)"),
            counter=str(counter or "(unnamed)"),
            tasks=int(tasks),
            mean=float(mean),
            total=None if _is_ratio(str(counter)) else float(total),
        )
        for op_type, counter, tasks, mean, total in rows
    )


def _is_ratio(counter: str) -> bool:
    """Whether adding up a counter's values makes no sense."""
    return any(word in counter.lower() for word in ("ratio", "rate", "bw", "(gb/s)", "usage", "%"))
