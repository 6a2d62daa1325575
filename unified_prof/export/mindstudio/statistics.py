"""Tables of duration statistics (count, total, min, average, max), and tables of tasks and marks.

* api_statistic: host calls by level and name
* communication_statistic: collective operators by type
* op_statistic: kernels by type of operator and core
* SAMPLED: sampled counters of memories, caches, PCIe and network ports of each device
* msprof_tx: mstx marks of the program, with the times at which a device reached them
* task_time: one row per device task, in order of time
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Frame, Ints, Lookup, Runs
from unified_prof.base.columns import (
    HOST_ONLY_CONNECTION,
    NO_CONTEXT,
    NOT_AVAILABLE,
    OLD_NO_CONNECTION,
)
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import (
    Cells,
    Delivery,
    Recording,
    Tasks,
    half_away,
    in_order_of_text,
    thousandths,
    trimmed,
)

_HEADER = (
    *("Device_id", "Level", "API Name"),
    *("Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
)


def write_api_statistic(recording: Recording, delivery: Delivery) -> None:
    """Write api_statistic, sorted by the bytes of the name, then by level."""
    found = recording.timed("CANN_API", ["startNs", "endNs", "type", "name"], ["type", "name"])
    levels = recording.enum("ENUM_API_TYPE")
    order = np.lexsort((found["type"], found["name"]))  # stable: groups keep their order
    name, level = found["name"][order], found["type"][order]
    duration = (found["endNs"] - found["startNs"])[order]
    starts = Runs(name, level).starts
    rows = []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        text, number = recording.text(int(name[start])), int(level[start])
        row = (levels.get(number, ""), recording.cell(text), *_figures(duration[start:end]))
        rows.append((text.encode("utf-8", "surrogateescape"), number, ",".join(row)))
    rows.sort()
    devices = ["host"]
    if recording.python_export:  # which repeats the host's calls for each device
        found_ids = recording.source.rows("SELECT id FROM NPU_INFO")
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
    """Statistics of the durations of rows with the same key, which begins with the device."""

    key: tuple[int, ...]
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


def groups(keys: Sequence[NDArray[np.integer]], duration_ns: Ints) -> list[Group]:
    """Return the duration statistics of rows by key, in ascending order of the keys."""
    if not len(duration_ns):
        return []
    order = np.lexsort(keys[::-1])
    ordered, duration = [key[order] for key in keys], duration_ns[order]
    runs = Runs(*ordered)
    figures = (how.reduceat(duration, runs.starts) for how in (np.add, np.minimum, np.maximum))
    distinct = zip(*(key[runs.starts].tolist() for key in ordered), strict=True)
    columns = (runs.sizes.tolist(), *(one.tolist() for one in figures))
    return list(map(Group, distinct, *columns))


def write_communication_statistic(recording: Recording, delivery: Delivery) -> None:
    """Write communication_statistic, longest total first, without devices of unknown types."""
    operators = recording.collectives
    found = groups((operators.device, operators.columns["opType"]), operators.duration_ns)
    known = {one.key[0] for one in found if recording.text(one.key[1]) != NOT_AVAILABLE}
    _write_shares(
        recording,
        delivery,
        ("communication_statistic", "OP Type"),
        found,
        lambda group, _: group.key[0] in known,
        # msprof rounds the average in SQLite and the share in C.
        lambda group: thousandths(np.array([group.total_ns / group.count / 1000]))[0] / 1000,
        lambda part, whole: half_away(part * PERCENT / whole),
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
    _write_shares(
        recording,
        delivery,
        ("op_statistic", "OP Type", "Core Type"),
        groups(
            (tasks.device[task], columns["opType"][row], columns["taskType"][row]),
            tasks.duration_ns[task],
        ),
        lambda _, texts: texts[0] != NOT_AVAILABLE and texts[1] not in _NOT_SHOWN,
        lambda group: group.total_ns // group.count / 1000,
        lambda part, whole: round(part / whole * PERCENT, 3),
    )


def _write_shares(
    recording: Recording,
    delivery: Delivery,
    titles: tuple[str, ...],
    found: Sequence[Group],
    is_shown: Callable[[Group, Sequence[str]], bool],
    mean_us: Callable[[Group], float],
    percent: Callable[[int, int], float],
) -> None:
    """Write a row per group, longest total first, with its share of the time of its device.

    `titles` are the kind of table and the titles of the keys after the device.
    """
    totals: Counter[int] = Counter()
    named = []
    for group in found:
        totals[group.key[0]] += group.total_ns
        texts = [recording.text(number) for number in group.key[1:]]
        if is_shown(group, texts):
            named.append((-group.total_ns, group.key[0], texts, group))
    named.sort(key=lambda one: one[:3])
    rows = []
    for _, device, texts, group in named:
        share = percent(group.total_ns, totals[device]) if totals[device] else 0.0
        figures = (
            *(group.total_ns / 1000, group.min_ns / 1000),
            *(mean_us(group), group.max_ns / 1000, share),
        )
        names = map(recording.cell, texts)
        rows.append(",".join((str(device), *names, str(group.count), *map(trimmed, figures))))
    header = (
        *("Device_id", *titles[1:], "Count"),
        *("Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
    )
    delivery.table(titles[0], header, len(rows), [rows])


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
        shows_last = recording.has_chip("Ascend910B")
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
    return [(*registry.tabbed_us(np.array([time])), *figures) for time, *figures in rows]


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


@dataclass(frozen=True)
class Marks(Frame):
    """Rows of MSTX_EVENTS as columns, in order of time."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    category: Ints
    message: Ints
    global_tid: Ints
    domain: Ints
    connection: Ints

    @property
    def is_numbered(self) -> Bools:
        """Mask of the marks that have numbers: those of the newer interface."""
        return np.isin(self.connection, _UNNUMBERED, invert=True)


def marks(recording: Recording) -> Marks:
    """Return the marks of a recording; rows with invalid times are dropped and counted."""
    found = recording.timed(
        TABLE,
        (
            *("startNs", "endNs", "eventType", "category"),
            *("message", "globalTid", "domainId", "connectionId"),
        ),
    )
    order = np.argsort(in_order_of_text(found["startNs"]), kind="stable")
    return Marks(*found.values()).take(order)


def event_names(recording: Recording, events: Ints) -> list[str]:
    """Return the names of mark types."""
    names = recording.enum("ENUM_MSTX_EVENT_TYPE")
    return [names.get(event, "") for event in events.tolist()]


def write_msprof_tx(recording: Recording, delivery: Delivery) -> None:
    """Write msprof_tx, in order of time."""
    found = marks(recording)

    def block(part: slice) -> Cells:
        return _mark_columns(recording, found.take(part))

    delivery.columns("msprof_tx", len(found), block)
    if len(found) and not found.is_numbered.all():
        recording.leave_out(
            "msprof_tx",
            "payload and message type of marks of the older interface",
            "not in the database",
        )


def _mark_columns(recording: Recording, found: Marks) -> Cells:
    device = recording.mark_tasks
    numbered = found.is_numbered
    row = Lookup(device.connection).rows(found.connection)
    row[~numbered] = -1
    nothing = [NOT_AVAILABLE] * len(row)

    def chosen(mask: Bools, cells: Sequence[str], others: Sequence[str]) -> list[str]:
        pairs = zip(mask.tolist(), cells, others, strict=True)
        return [cell if is_known else other for is_known, cell, other in pairs]

    def of_device(cells: Callable[[Ints], list[str]], values: Ints, without: str) -> list[str]:
        others = [without] * len(row)
        return chosen(row >= 0, cells(values[row]), others) if len(device) else others

    domain = recording.cells(found.domain)
    has_domain = numbered & np.array([name != "" for name in domain], np.bool_)
    return [
        ("Device_id", of_device(registry.integers, device.device, "host")),
        ("pid", registry.integers(found.global_tid >> 32)),
        ("tid", registry.integers(found.global_tid & 0xFFFFFFFF)),
        ("category", chosen(~numbered, registry.integers(found.category), nothing)),
        ("event_type", event_names(recording, found.event)),
        ("payload_type", nothing),
        ("payload_value", nothing),
        ("Start_time(us)", registry.tabbed_us(found.start_ns)),
        ("End_time(us)", registry.tabbed_us(found.end_ns)),
        ("message_type", nothing),
        ("message", recording.cells(found.message)),
        ("domain", chosen(has_domain, domain, nothing)),
        ("Device Start_time(us)", of_device(registry.tabbed_us, device.start_ns, NOT_AVAILABLE)),
        ("Device End_time(us)", of_device(registry.tabbed_us, device.end_ns, NOT_AVAILABLE)),
    ]


def write_task_time(recording: Recording, delivery: Delivery) -> None:
    """Write task_time, with all devices in order of start."""
    tasks, columns = recording.tasks, recording.kernels.columns
    row = np.flatnonzero(_is_shown(tasks))
    keys = (tasks.number, tasks.stream, tasks.device, in_order_of_text(tasks.start_ns))
    row = row[np.lexsort([key[row] for key in keys])]
    unknown = recording.ids([NOT_AVAILABLE])

    def block(part: slice) -> Cells:
        task = row[part]
        info = recording.kernels.rows_of(tasks.id[task])
        kind = tasks.type[task].astype(np.int64)
        if len(recording.kernels):
            own = columns["taskType"][info]
            kind = np.where((info >= 0) & ~np.isin(own, unknown), own, kind)
        start, end = tasks.start_ns[task], tasks.end_ns[task]
        return [
            ("Device_id", registry.integers(tasks.device[task])),
            ("kernel_name", recording.cells(recording.kernel_name(task, info))),
            ("kernel_type", recording.cells(kind)),
            ("stream_id", registry.integers(tasks.stream[task])),
            ("task_id", registry.integers(tasks.number[task])),
            ("task_time(us)", registry.microseconds(end - start)),
            ("task_start(us)", registry.tabbed_us(start)),
            ("task_stop(us)", registry.tabbed_us(end)),
        ]

    delivery.columns("task_time", len(row), block)
    if len(row):
        recording.leave_out(
            "task_time",
            "kernel_name of the launch",
            "the database has operator names only, which are written instead",
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
