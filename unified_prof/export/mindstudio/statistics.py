"""Tables of duration statistics (count, total, min, average, max), and tables of tasks and marks.

* api_statistic: host calls by level and name
* communication_statistic: collective operators by type
* op_statistic: kernels by type of operator and core
* SAMPLED: sampled counters of memories, caches, PCIe and network ports of each device
* msprof_tx: mstx marks of the program, with the times at which a device reached them
* task_time: one row per device task, in order of time
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Lookup
from unified_prof.base.columns import (
    HOST_ONLY_CONNECTION,
    NO_CONTEXT,
    NOT_AVAILABLE,
    OLD_NO_CONNECTION,
)
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import (
    Delivery,
    Recording,
    Tasks,
    blocks,
    half_away,
    in_order_of_text,
    lines,
    thousandths,
    trimmed,
)
from unified_prof.recording import recording as whole_tables

_HEADER = (
    *("Device_id", "Level", "API Name"),
    *("Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
)


def write_api_statistic(recording: Recording, delivery: Delivery) -> None:
    """Write api_statistic, sorted by the bytes of the name, then by level."""
    found = whole_tables.integers(
        recording.source, "CANN_API", ["startNs", "endNs", "type", "name"], narrow=["type", "name"]
    )
    keep = recording.times("CANN_API", found["startNs"], found["endNs"])
    found = {name: values[keep] for name, values in found.items()}
    levels = whole_tables.names(recording.source, "ENUM_API_TYPE")
    duration = found["endNs"] - found["startNs"]
    order = np.lexsort((found["type"], found["name"]))  # stable: groups keep their order
    name, level, duration = found["name"][order], found["type"][order], duration[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (name[1:] != name[:-1]) | (level[1:] != level[:-1])
    starts = np.flatnonzero(new)
    rows = []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        text, number = recording.text(int(name[start])), int(level[start])
        row = (levels.get(number, ""), recording.cell(text), *_figures(duration[start:end]))
        rows.append((text.encode("utf-8", "surrogateescape"), number, ",".join(row)))
    rows.sort()
    devices = ["host"]
    if recording.python_export:  # which repeats the host's calls for each device
        found_ids = whole_tables.records(recording.source, "NPU_INFO", ["id"])
        devices = [str(number) for number in sorted(number for (number,) in found_ids)]
    lines = [f"{device},{line}" for device in devices for _, _, line in rows]
    delivery.table("api_statistic", _HEADER, len(lines), [lines])


def _figures(duration_ns: Ints) -> tuple[str, ...]:
    """Return total, count, average, minimum, maximum and variance, in microseconds.

    Sums sequentially in float64 and takes the variance around the rounded average, as msprof does,
    because this can change the third decimal.
    """
    us = registry.as_doubles(duration_ns)
    count = len(us)
    total = float(np.add.accumulate(us)[-1])
    mean = half_away(total / count)
    squares = float(np.add.accumulate((us - mean) ** 2)[-1])
    return (
        trimmed(total),
        str(count),
        *(trimmed(one) for one in (mean, float(us.min()), float(us.max()))),
        trimmed(half_away(squares / count)),
    )


PERCENT = 100


@dataclass(frozen=True, slots=True)
class Group:
    """Statistics of the durations of rows with the same key."""

    key: tuple[int, ...]
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


def groups(keys: Sequence[NDArray[np.integer]], duration_ns: Ints) -> list[Group]:
    """Return the duration statistics of rows by key, in ascending order of the keys."""
    if not len(duration_ns):
        return []
    distinct, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
    number = number.reshape(-1)
    count = distinct.shape[1]
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, number, duration_ns)
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, number, duration_ns)
    total = np.zeros(count, np.int64)
    np.add.at(total, number, duration_ns)
    return [
        Group(tuple(key), *values)
        for key, *values in zip(
            distinct.T.tolist(),
            np.bincount(number, minlength=count).tolist(),
            total.tolist(),
            smallest.tolist(),
            largest.tolist(),
            strict=True,
        )
    ]


def totals_by_device(groups: Sequence[Group]) -> dict[int, int]:
    """Return the total time per device, which is the first part of the keys."""
    result: dict[int, int] = {}
    for group in groups:
        result[group.key[0]] = result.get(group.key[0], 0) + group.total_ns
    return result


_HEADER_COMMUNICATION_STATISTIC = (
    *("Device_id", "OP Type", "Count"),
    *("Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)


def write_communication_statistic(recording: Recording, delivery: Delivery) -> None:
    """Write communication_statistic, longest total first, without devices of unknown types."""
    operators = recording.collectives
    found = groups((operators.device, operators.columns["opType"]), operators.duration_ns)
    totals = totals_by_device(found)
    named = [(group.key[0], recording.text(group.key[1]), group) for group in found]
    known = {device for device, op_type, _ in named if op_type != NOT_AVAILABLE}
    named = [one for one in named if one[0] in known]
    named.sort(key=lambda one: (-one[2].total_ns, *one[:2]))
    rows = []
    for device, op_type, group in named:
        # msprof rounds the average in SQLite and the share in C.
        mean = int(thousandths(np.array([group.total_ns / group.count / 1000]))[0]) / 1000
        share = group.total_ns * PERCENT / totals[device] if totals[device] else 0.0
        rows.append(
            ",".join(
                (
                    *(str(device), recording.cell(op_type), str(group.count)),
                    trimmed(group.total_ns / 1000),
                    trimmed(group.min_ns / 1000),
                    trimmed(mean),
                    trimmed(group.max_ns / 1000),
                    trimmed(half_away(share)),
                )
            )
        )
    delivery.table("communication_statistic", _HEADER_COMMUNICATION_STATISTIC, len(rows), [rows])


_HEADER_OP_STATISTIC = (
    *("Device_id", "OP Type", "Core Type", "Count"),
    *("Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
)
_COUNTED_ELSEWHERE = ("COMMUNICATION", "HCCL_AI_CPU")
_NOT_SHOWN = ("WRITE_BACK", "INVALID")


def write_op_statistic(recording: Recording, delivery: Delivery) -> None:
    """Write op_statistic, longest total first.

    The average is truncated to whole nanoseconds. The share is relative to all kernels of the
    device, including those without a row.
    """
    tasks, columns = recording.tasks, recording.kernels.columns
    info = recording.kernels.rows_of(tasks.id)
    task = np.flatnonzero(info >= 0)
    core = columns["taskType"][info[task]]
    task = task[~np.isin(core, recording.ids(_COUNTED_ELSEWHERE))]
    row = info[task]
    found = groups(
        (tasks.device[task], columns["opType"][row], columns["taskType"][row]),
        tasks.duration_ns[task],
    )
    totals = totals_by_device(found)
    named = []
    for group in found:
        device, op_type, core_type = group.key
        op, kind = recording.text(op_type), recording.text(core_type)
        if op != NOT_AVAILABLE and kind not in _NOT_SHOWN:
            named.append((device, op, kind, group))
    named.sort(key=lambda one: (-one[3].total_ns, *one[:3]))
    rows = []
    for device, op, kind, group in named:
        share = group.total_ns / totals[device] * PERCENT if totals[device] else 0.0
        times = (group.total_ns, group.min_ns, group.total_ns // group.count, group.max_ns)
        rows.append(
            ",".join(
                (
                    *(str(device), recording.cell(op), recording.cell(kind), str(group.count)),
                    *(trimmed(ns / 1000) for ns in times),
                    trimmed(round(share, 3)),
                )
            )
        )
    delivery.table("op_statistic", _HEADER_OP_STATISTIC, len(rows), [rows])


_MB = 1024 * 1024
_THOUSANDTH = Decimal("0.000")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A file with a few lines per device, from one query of a table of samples."""

    name: str
    table: str
    header: tuple[str, ...]  # Columns after Device_id.
    # Selects deviceId and the figures of `lines`, ordered by device; {avg} is the function that
    # combines samples: none on chips whose last sample msprof shows.
    query: str
    # Returns the cells after Device_id of each line; numbers are rounded to three decimals.
    lines: Callable[[list[Row]], Sequence[Row]]

    def write(self, recording: Recording, delivery: Delivery) -> None:
        """Write the file, ordered by device."""
        names = whole_tables.records(recording.source, "NPU_INFO", ["name"])
        shows_last = any(str(name).startswith("Ascend910B") for (name,) in names)
        found = recording.source.rows(self.query.format(avg="" if shows_last else "avg"))
        rows = [
            ",".join(_number(value) for value in (device, *line))
            for device, of_device in groupby(found, itemgetter(0))
            for line in self.lines([row[1:] for row in of_device])
        ]
        delivery.table(self.name, ("Device_id", *self.header), len(rows), [rows])


def _number(value: float | str | None) -> str:
    if value is None:
        return NOT_AVAILABLE
    return str(round(value, 3) if isinstance(value, float) else value)


def _decimal_mean(values: Sequence[float | None]) -> str | None:
    """Return the mean as msprof does: sum and mean are rounded to three decimals."""
    known = [Decimal(str(value)) for value in values if value is not None]
    if len(known) < len(values):
        return None
    return str((sum(known, Decimal()).quantize(_THOUSANDTH) / len(known)).quantize(_THOUSANDTH))


def _hbm(rows: list[Row]) -> Sequence[Row]:
    _, reads, writes = zip(*rows, strict=True)
    return [("Average", _decimal_mean(reads), _decimal_mean(writes)), *rows]


def _llc(rows: list[Row]) -> Sequence[Row]:
    mode = rows[0][1]
    caches = [(cache, round(hit, 6) * 100, round(moved, 6)) for cache, _, hit, moved in rows]
    _, hits, moved = zip(*caches, strict=True)
    mean = ("Average", sum(hits) / len(hits), sum(moved) / len(moved))
    return [(mode, *line) for line in (mean, *caches)]


# Order of the lines of pcie -> columns of PCIE without Min, Max, Avg.
_PCIE = {
    "Tx_p_avg(MB/s)": "txPost",
    "Tx_np_avg(MB/s)": "txNonpost",
    "Tx_cpl_avg(MB/s)": "txCpl",
    "Tx_latency_avg(us)": "txNonpostLatency",
    "Rx_p_avg(MB/s)": "rxPost",
    "Rx_np_avg(MB/s)": "rxNonpost",
    "Rx_cpl_avg(MB/s)": "rxCpl",
}
_NOT_MEASURED = 0xFFFFF  # Minimum of a counter that saw nothing, in bytes per microsecond or ns.


def _pcie(rows: list[Row]) -> Sequence[Row]:
    (sample,) = rows
    lines = []
    for place, name in enumerate(_PCIE):
        unit, per = (1, 1000) if name.endswith("(us)") else (1_000_000, _MB)
        values = sample[3 * place : 3 * place + 3]
        least = 0 if values[0] == _NOT_MEASURED * unit else values[0]
        figures = (least, *values[1:])
        lines.append((name, *(None if value is None else value / per for value in figures)))
    return lines


_PORT_HEADER = (
    *("Timestamp(us)", "Bandwidth(MB/s)", "Rx Bandwidth efficiency(%)", "rxPacket/s"),
    *("rxError rate(%)", "rxDropped rate(%)", "Tx Bandwidth efficiency(%)", "txPacket/s"),
    *("txError rate(%)", "txDropped rate(%)", "funcId"),
)


def _port(rows: list[Row]) -> Sequence[Row]:
    """Return the lines of ports: the rates of msprof's timeline, as means over the recording."""
    return [
        (*registry.tabbed(registry.microseconds(np.array([time]))), *figures)
        for time, *figures in rows
    ]


def _port_query(table: str) -> str:
    """Return the query of a table of network ports, whose totals count from the driver's start."""
    figures = ["max(timestampNs)", f"min(bandwidth) / {_MB}.0"]
    for way in ("rx", "tx"):
        figures += [
            f"100.0 * 8 * avg({way}ByteRate) / nullif(min(bandwidth), 0)",
            f"1.0 * avg({way}PacketRate)",
        ]
        for total in ("Errors", "Dropped"):
            lost, of = (
                f"iif(count(*) = 1, max({one}), max({one}) - min({one}))"
                for one in (f"{way}{total}", f"{way}Packets")
            )
            figures.append(f"ifnull(100.0 * {lost} / nullif({of}, 0), 0.0)")
    chosen = ", ".join(figures)
    return f"SELECT deviceId, {chosen}, funcId FROM {table} GROUP BY deviceId, funcId"


_PCIE_COLUMNS = ", ".join(
    f"{{avg}}({name}{figure})" for name in _PCIE.values() for figure in ("Min", "Max", "Avg")
)
SAMPLED = (
    Sampled(
        "hbm",
        "HBM",
        ("Metric", "Read(MB/s)", "Write(MB/s)"),
        f"SELECT deviceId, hbmId, avg(iif(value = 'read', bandwidth, NULL)) / {_MB},"
        f" avg(iif(value = 'write', bandwidth, NULL)) / {_MB}"
        " FROM HBM LEFT JOIN STRING_IDS ON STRING_IDS.id = type GROUP BY deviceId, hbmId",
        _hbm,
    ),
    Sampled(
        "ddr",
        "DDR",
        ("Metric", "Read(MB/s)", "Write(MB/s)"),
        f"SELECT deviceId, 'Average', avg(read) / {_MB}, avg(write) / {_MB} FROM DDR"
        " GROUP BY deviceId",
        list,
    ),
    Sampled(
        "llc_read_write",
        "LLC",
        ("Mode", "Task", "Hit Rate(%)", "Throughput(MB/s)"),
        f"SELECT deviceId, llcId, value, avg(hitRate / 100), avg(throughput) / {_MB}"
        " FROM LLC LEFT JOIN STRING_IDS ON STRING_IDS.id = mode"
        " WHERE hitRate IS NOT NULL AND throughput IS NOT NULL GROUP BY deviceId, llcId",
        _llc,
    ),
    Sampled(
        "pcie",
        "PCIE",
        ("Mode", "Min", "Max", "Avg"),
        # Without {avg}, max() makes SQLite take the values of the last sample.
        f"SELECT deviceId, {_PCIE_COLUMNS}, max(timestampNs) FROM PCIE GROUP BY deviceId",
        _pcie,
    ),
    Sampled("nic", "NIC", _PORT_HEADER, _port_query("NIC"), _port),
    Sampled("roce", "ROCE", _PORT_HEADER, _port_query("ROCE"), _port),
)

TABLE = "MSTX_EVENTS"
# Connection ids of marks of the older interface, which does not number marks.
_UNNUMBERED = (HOST_ONLY_CONNECTION, OLD_NO_CONNECTION)


@dataclass(frozen=True, slots=True)
class Marks:
    """Rows of MSTX_EVENTS as columns, in order of time."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    category: Ints
    message: Ints
    global_tid: Ints
    domain: Ints
    connection: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def is_numbered(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Mask of the marks that have numbers: those of the newer interface."""
        return ~np.isin(self.connection, _UNNUMBERED)


def marks(recording: Recording) -> Marks:
    """Return the marks of a recording; rows with invalid times are dropped and counted."""
    found = whole_tables.integers(
        recording.source,
        TABLE,
        (
            *("startNs", "endNs", "eventType", "category"),
            *("message", "globalTid", "domainId", "connectionId"),
        ),
    )
    order = np.argsort(in_order_of_text(found["startNs"]), kind="stable")
    order = order[recording.times(TABLE, found["startNs"][order], found["endNs"][order])]
    return Marks(*(values[order] for values in found.values()))


def event_names(recording: Recording, events: Ints) -> list[str]:
    """Return the names of mark types."""
    names = whole_tables.names(recording.source, "ENUM_MSTX_EVENT_TYPE")
    return [names.get(event, "") for event in events.tolist()]


_HEADER_MSPROF_TX = (
    *("Device_id", "pid", "tid", "category", "event_type", "payload_type", "payload_value"),
    *("Start_time(us)", "End_time(us)", "message_type", "message", "domain"),
    *("Device Start_time(us)", "Device End_time(us)"),
)
_NO_DOMAIN = ""


def write_msprof_tx(recording: Recording, delivery: Delivery) -> None:
    """Write msprof_tx, in order of time."""
    found = marks(recording)
    delivery.table(
        "msprof_tx",
        _HEADER_MSPROF_TX,
        len(found),
        (_block(recording, found, p) for p in blocks(len(found))),
    )
    if len(found) and not found.is_numbered.all():
        recording.leave_out(
            "msprof_tx",
            "payload and message type of marks of the older interface",
            "not in the database",
        )


def _block(recording: Recording, found: Marks, part: slice) -> list[str]:
    device = recording.mark_tasks
    numbered = found.is_numbered[part]
    row = Lookup(device.connection).rows(found.connection[part])
    row[~numbered] = -1
    has_device = (row >= 0).tolist()

    def of_device(cells: list[str], without: str) -> list[str]:
        return [one if has else without for one, has in zip(cells, has_device, strict=True)]

    devices = registry.integers(device.device[row]) if len(device) else ["host"] * len(row)
    begins = (
        registry.tabbed(registry.microseconds(device.start_ns[row])) if len(device) else devices
    )
    ends = registry.tabbed(registry.microseconds(device.end_ns[row])) if len(device) else devices
    nothing = [NOT_AVAILABLE] * len(row)
    category = registry.integers(found.category[part])
    domain = recording.cells(found.domain[part])
    return lines(
        of_device(devices, "host"),
        registry.integers(found.global_tid[part] >> 32),
        registry.integers(found.global_tid[part] & 0xFFFFFFFF),
        [NOT_AVAILABLE if new else c for c, new in zip(category, numbered.tolist(), strict=True)],
        event_names(recording, found.event[part]),
        nothing,
        nothing,
        registry.tabbed(registry.microseconds(found.start_ns[part])),
        registry.tabbed(registry.microseconds(found.end_ns[part])),
        nothing,
        recording.cells(found.message[part]),
        [
            name if new and name != _NO_DOMAIN else NOT_AVAILABLE
            for name, new in zip(domain, numbered.tolist(), strict=True)
        ],
        of_device(begins, NOT_AVAILABLE),
        of_device(ends, NOT_AVAILABLE),
    )


_HEADER_TASK_TIME = (
    *("Device_id", "kernel_name", "kernel_type", "stream_id", "task_id"),
    *("task_time(us)", "task_start(us)", "task_stop(us)"),
)


def write_task_time(recording: Recording, delivery: Delivery) -> None:
    """Write task_time, with all devices in order of start."""
    tasks = recording.tasks
    row = np.flatnonzero(_is_shown(tasks))
    keys = (tasks.number, tasks.stream, tasks.device, in_order_of_text(tasks.start_ns))
    row = row[np.lexsort([key[row] for key in keys])]
    delivery.table("task_time", _HEADER_TASK_TIME, len(row), _blocks(recording, row))
    if len(row) and not recording.knows_launches:
        recording.leave_out(
            "task_time",
            "kernel_name of the launch",
            "the database has operator names only, which are written instead",
        )


def _blocks(recording: Recording, rows: Ints) -> Iterator[Sequence[str]]:
    tasks, columns = recording.tasks, recording.kernels.columns
    unknown = recording.ids([NOT_AVAILABLE])
    for part in blocks(len(rows)):
        task = rows[part]
        info = recording.kernels.rows_of(tasks.id[task])
        has_info = info >= 0
        kind = tasks.type[task].astype(np.int64)
        if len(recording.kernels):
            own = columns["taskType"][info]
            kind = np.where(has_info & ~np.isin(own, unknown), own, kind)
        start, end = tasks.start_ns[task], tasks.end_ns[task]
        yield lines(
            registry.integers(tasks.device[task]),
            recording.cells(recording.kernel_name(task, info)),
            recording.cells(kind),
            registry.integers(tasks.stream[task]),
            registry.integers(tasks.number[task]),
            registry.microseconds(end - start),
            registry.tabbed(registry.microseconds(start)),
            registry.tabbed(registry.microseconds(end)),
        )


def _is_shown(tasks: Tasks) -> Bools:
    """Return which rows are shown: all, but only context 0 of a kernel on two kinds of cores."""
    _, launch, size = np.unique(tasks.launch, return_inverse=True, return_counts=True)
    launch = launch.reshape(-1)
    is_first = tasks.context == 0
    is_later = (tasks.context != NO_CONTEXT) & ~is_first
    has_first = np.bincount(launch, weights=is_first, minlength=len(size)) > 0
    # msprof reads the rows of a launch in the order of the file and decides at the first context
    # other than 0.
    later = np.full(len(size), len(tasks), np.int64)
    rows = np.arange(len(tasks))
    np.minimum.at(later, launch[is_later], rows[is_later])
    first = np.full(len(size), len(tasks), np.int64)
    np.minimum.at(first, launch[is_first], rows[is_first])
    is_mix = has_first & (first < later)
    shown = np.where(is_mix[launch], is_first, True)
    return np.asarray(shown | (size[launch] == 1))
