"""Quantities over time: memory in use, bandwidths, frequencies; and hardware counters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.recording.model import PmuFigure, Series
from unified_prof.recording.source import (
    MAX_TIME_NS,
    NOTHING_KNOWN,
    Source,
    Strings,
    device_name,
    recorded_facts,
    task_counters,
)

TORCH = "PTA"  # Components of MEMORY_RECORD that are torch's caching allocator on an accelerator.
# Component of host memory, as `uprof convert` writes it.
HOST = "CPU"
_TORCH_IN_WORDS = "(torch's allocator)"
_ASCEND_DECODERS = frozenset({"prof", "ascend_pt", "ascend_text"})
MAX_BYTES = 1 << 53  # Sizes above 8 PiB are invalid.


@dataclass(frozen=True, slots=True)
class _Counter:
    """A table of sampled quantities."""

    table: str
    values: tuple[tuple[str, str], ...]  # (column, name of the series).
    unit: str
    keys: tuple[str, ...] = ()  # Columns of numbers that distinguish the sources in a table.
    texts: tuple[str, ...] = ()  # Columns of string ids that distinguish the sources.
    time: str = "timestampNs"
    device: str | None = "deviceId"


# Units of the database: bytes, bytes per second, MHz.
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
    _Counter("PCIE", (("txPostAvg", "PCIe tx"), ("rxPostAvg", "PCIe rx")), "B/s"),
    _Counter("NIC", (("rxByteRate", "NIC rx"), ("txByteRate", "NIC tx")), "B/s", keys=("funcId",)),
    _Counter(
        "ROCE", (("rxByteRate", "RoCE rx"), ("txByteRate", "RoCE tx")), "B/s", keys=("funcId",)
    ),
    _Counter("AICORE_FREQ", (("freq", "AI Core frequency"),), "MHz"),
    _Counter("CPU_USAGE", (("usage", "host CPU"),), "%", keys=("cpuId",), device=None),
    _Counter("UPROF_GPU_METRICS", (("value", ""),), "", texts=("name",)),
    _Counter("HOST_MEM_USAGE", (("usage", "host memory"),), "%", device=None),
)

_MAX_MHZ = 1e5  # Larger clocks are in Hz.

_Sample = tuple[int, tuple[Any, ...]]  # Times and the values of each column.


@dataclass(frozen=True, slots=True, eq=False)
class Allocations:
    """Memory blocks allocated by framework operations."""

    names: list[str]  # Name of the operation.
    size_bytes: Ints
    at_ns: Ints


def allocations(source: Source, strings: Strings) -> Allocations:
    """Return the allocations in OP_MEMORY, without those made before the recording started."""
    columns = source.integers("OP_MEMORY", {"name": "name", "size": "size", "at": "allocationTime"})
    known = (columns["at"] > 0) & (columns["at"] <= MAX_TIME_NS)
    known &= (columns["size"] > 0) & (columns["size"] < MAX_BYTES)
    names = [strings.get(number) or "(unnamed)" for number in columns["name"][known].tolist()]
    return Allocations(names, columns["size"][known], columns["at"][known])


class LiveBlocks(NamedTuple):
    """Allocator blocks in use at one point in time."""

    chain: Ints  # Id of the call chain that allocated each block, MISSING if unknown.
    size_bytes: Ints


def blocks_at_peak(source: Source, strings: Strings) -> LiveBlocks:
    """Return the blocks of a memory snapshot in use at the peak of each device."""
    columns = {"device": "deviceId", "size": "sizeBytes", "chain": "callchainId"}
    columns |= {"from": "allocationNs", "until": "releaseNs"}
    blocks = source.integers("UPROF_MEMORY_BLOCKS", columns)
    records = source.integers(
        "MEMORY_RECORD",
        {"device": "deviceId", "at": "timestamp", "used": "totalAllocated", "of": "component"},
    )
    torch = [one for one in np.unique(records["of"]).tolist() if strings.get(one) == TORCH]
    live = np.zeros(len(blocks["size"]), bool)
    for device in np.unique(blocks["device"]).tolist():
        selected = np.flatnonzero((records["device"] == device) & np.isin(records["of"], torch))
        if len(selected):
            at_ns = records["at"][selected[records["used"][selected].argmax()]]
            begun = blocks["from"] <= at_ns  # MISSING: before the history
            ended = (blocks["until"] != MISSING) & (blocks["until"] <= at_ns)
            live |= (blocks["device"] == device) & begun & ~ended
    return LiveBlocks(blocks["chain"][live], blocks["size"][live])


def memory_series(source: Source, strings: Strings) -> tuple[Series, ...]:
    """Return memory in use over time."""
    return _series(source, strings, _MEMORY)


def counter_series(source: Source, strings: Strings) -> tuple[Series, ...]:
    """Return bandwidths, frequencies and host load over time."""
    return _series(source, strings, _COUNTERS)


def clock_samples(source: Source, device: int | None) -> tuple[Ints, NDArray[np.float64]]:
    """Return times and clocks of a device's cores, MHz, in order; each is valid until the next."""
    columns = {"at": "timestampNs", "device": "deviceId"}
    found = source.integers("AICORE_FREQ", columns | {"mhz": "CAST(freq AS INTEGER)"})
    if not len(found["at"]):
        is_clock = "(SELECT value FROM STRING_IDS WHERE id = name) LIKE 'GPC Clock Frequency%'"
        columns["mhz"] = f"CASE WHEN {is_clock} THEN CAST(value AS INTEGER) ELSE -1 END"
        found = source.integers("UPROF_GPU_METRICS", columns)
    rows = np.flatnonzero((found["mhz"] > 0) & (found["at"] > 0))
    if device is not None:
        rows = rows[found["device"][rows] == device]
    rows = rows[np.argsort(found["at"][rows], kind="stable")]
    mhz = found["mhz"][rows].astype(np.float64)
    return found["at"][rows], np.where(mhz > _MAX_MHZ, mhz / 1e6, mhz)  # some are in Hz


def peak_memory(source: Source, strings: Strings) -> int | None:
    """Return the peak memory of PyTorch's allocator on a device, None if not recorded.

    This is the value of `torch.cuda.max_memory_allocated`. Totals that include the graph engine
    (`PTA+GE`) are not used, because they add values of different times. If PyTorch's allocator was
    not recorded, the peak is that of the other components, on devices if possible, else on the
    host.
    """
    by_component = {
        strings.get(component) if isinstance(component, int) else None: int(peak)
        for component, peak in source.rows(
            "SELECT component, max(totalAllocated) FROM MEMORY_RECORD"
            f" WHERE {_possible_size('totalAllocated')} GROUP BY component"
        )
    }
    if TORCH in by_component:
        return by_component[TORCH]
    on_host = by_component.pop(HOST, None)
    if by_component:
        return max(by_component.values())
    ((peak,),) = source.rows(f"SELECT max(hbm) FROM NPU_MEM WHERE {_possible_size('hbm')}")
    return on_host if peak is None else int(peak)


def _possible_size(column: str) -> str:
    return f"typeof({column}) IN ('integer', 'real') AND {column} > 0 AND {column} < {MAX_BYTES}"


def _series(source: Source, strings: Strings, counters: tuple[_Counter, ...]) -> tuple[Series, ...]:
    result: list[Series] = []
    for counter in counters:
        if counter.table in source.tables:
            decoders = {value for name, value in recorded_facts(source) if name == "decoder"}
            result += _series_of_table(
                source, strings, counter, in_words=bool(decoders - _ASCEND_DECODERS)
            )
    return tuple(result)


def _series_of_table(
    source: Source, strings: Strings, counter: _Counter, *, in_words: bool
) -> list[Series]:
    groups = sorted(_samples(source, counter).items(), key=lambda item: repr(item[0]))
    return [
        one
        for (where, *parts), samples in groups
        for one in _series_of_source(
            counter,
            _place(where, on_host=in_words),
            _suffix(counter, parts, strings, in_words=in_words),
            samples,
        )
    ]


def _place(device: object, *, on_host: bool) -> str:
    """Return the device name; a negative number is the host."""
    if device is None or (on_host and isinstance(device, int) and device < 0):
        return "host"
    return device_name(device) if isinstance(device, int) else f"device {device}"


def _samples(source: Source, counter: _Counter) -> dict[tuple[object, ...], list[_Sample]]:
    """Return the samples of a table with valid times, by device and source."""
    keys = [*counter.keys, *counter.texts]
    values = [column for column, _ in counter.values]
    columns = ", ".join([counter.time, counter.device or "NULL", *keys, *values])
    first = 2 + len(keys)
    result: dict[tuple[object, ...], list[_Sample]] = {}
    for row in source.rows(f'SELECT {columns} FROM "{counter.table}"'):
        time_ns = row[0]
        if isinstance(time_ns, int | float) and 0 <= time_ns <= MAX_TIME_NS:
            result.setdefault(row[1:first], []).append((int(time_ns), row[first:]))
    return result


def _suffix(counter: _Counter, parts: list[Any], strings: Strings, *, in_words: bool) -> str:
    """Return the suffix that distinguishes a source: its numbers, then its texts."""
    numbers = [f"{part}" for part in parts[: len(counter.keys)]]
    words = [strings.get(part) for part in parts[len(counter.keys) :] if isinstance(part, int)]
    known = [word for word in words if word not in NOTHING_KNOWN and word]
    if in_words and counter.table == "MEMORY_RECORD":
        known = [_TORCH_IN_WORDS if word in (TORCH, HOST) else word for word in known]
    return " ".join([*numbers, *known])


def _series_of_source(
    counter: _Counter, where: str, suffix: str, samples: list[_Sample]
) -> Iterator[Series]:
    """Yield the series of one source, one for each column with numbers."""
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
                device=where,
                time_ns=np.array([point[0] for point in points], np.int64),
                value=np.array([point[1] for point in points], np.float64),
            )


def pmu_figures(source: Source) -> tuple[PmuFigure, ...]:
    """Return the hardware counters of tasks by operator type."""
    if (table := task_counters(source)) not in source.tables:
        return ()
    # Grouped by id inside SQLite; names are looked up for the few groups only.
    rows = source.rows(
        f"""
        SELECT o.value, n.value, g.tasks, g.mean, g.total FROM (
            SELECT c.opType AS op, p.name AS counter, count(*) AS tasks,
                   avg(p.value) AS mean, total(p.value) AS total
            FROM {table} p JOIN COMPUTE_TASK_INFO c ON c.globalTaskId = p.globalTaskId
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
    """Return True if a counter is a ratio or rate, whose values must not be summed."""
    return any(word in counter.lower() for word in ("ratio", "rate", "bw", "(gb/s)", "usage", "%"))
