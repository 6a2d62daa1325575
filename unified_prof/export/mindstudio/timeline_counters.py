"""Timeline layers of sampled counters, accelerator levels and system calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.export.mindstudio import registry, timeline_events
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.registry import as_json
from unified_prof.export.mindstudio.timeline_events import HOST, Blocks, Layer, Processes
from unified_prof.recording import recording as whole_tables

_MB = 1024.0 * 1024.0
_PCIE_MB = 1e6  # unit of the counters; msprof divides by 1024 * 1024
_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter of a timeline: its name and the columns of its values."""

    # May contain `{column}`, replaced by the value of that key column.
    name: str
    # Name of a value -> its column.
    series: Mapping[str, str]
    divisor: float = 1.0
    # True if values are integers.
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A table of samples and the layer that shows it."""

    table: str
    layer: tuple[int, str]
    counters: tuple[_Counter, ...]
    # Columns that appear in the names of counters.
    keys: tuple[str, ...] = ()
    # Key column of text ids -> replacements of its texts.
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Key column of numbers -> texts of some numbers.
    written: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    on_host: bool = False
    # True if rows with the same time are merged into one event per counter.
    is_joint: bool = False


def _rates(**series: str) -> dict[str, str]:
    return {f"{name}(MB/s)": column for name, column in series.items()}


_WAY = {"read": "Read", "write": "Write"}
_USAGE = "Usage(%)"

_TABLES = (
    _Sampled("CPU_USAGE", timeline_events.CPU_USAGE, (_Counter("CPU {cpuId}", {_USAGE: "usage"}),),
             keys=("cpuId",), on_host=True),
    _Sampled("HOST_MEM_USAGE", timeline_events.MEMORY_USAGE,
             (_Counter("Memory Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("HOST_NETWORK_USAGE", timeline_events.NETWORK_USAGE,
             (_Counter("Network Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("HOST_DISK_USAGE", timeline_events.DISK_USAGE,
             (_Counter("Disk Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("AICORE_FREQ", timeline_events.FREQUENCY,
             (_Counter("AI Core Freq", {"MHz": "freq"}, whole=True),)),
    _Sampled("NPU_MEM", timeline_events.NPU_MEMORY,
             (_Counter("{type}/DDR", {"KB": "ddr"}, 1024.0),
              _Counter("{type}/HBM", {"KB": "hbm"}, 1024.0)),
             keys=("type",), texts={"type": {"app": "APP", "device": "Device"}}),
    _Sampled("DDR", timeline_events.DDR,
             (_Counter("DDR/Read", _rates(Read="read"), _MB),
              _Counter("DDR/Write", _rates(Write="write"), _MB))),
    _Sampled("HCCS", timeline_events.HCCS,
             (_Counter("Rx", _rates(Rx="rxThroughput"), _MB),
              _Counter("Tx", _rates(Tx="txThroughput"), _MB))),
    _Sampled("PCIE", timeline_events.PCIE,
             (_Counter("PCIe_cpl", {"Rx": "rxCplAvg", "Tx": "txCplAvg"}, _PCIE_MB),
              _Counter("PCIe_nonpost", {"Rx": "rxNonpostAvg", "Tx": "txNonpostAvg"}, _PCIE_MB),
              _Counter("PCIe_nonpost_latency", {"Tx": "txNonpostLatencyAvg"}, _NS_PER_US),
              _Counter("PCIe_post", {"Rx": "rxPostAvg", "Tx": "txPostAvg"}, _PCIE_MB))),
    _Sampled("HBM", timeline_events.HBM,
             (_Counter("HBM {hbmId}/{type}", {"{type}(MB/s)": "bandwidth"}, _MB),),
             keys=("hbmId", "type"), texts={"type": _WAY}),
    _Sampled("SOC_BANDWIDTH_LEVEL", timeline_events.SOC,
             (_Counter("L2 Buffer Bw Level", {"L2 Buffer Bw Level": "l2BufferBwLevel"}, whole=True),
              _Counter("Mata Bw Level", {"Mata Bw Level": "mataBwLevel"}, whole=True))),
    _Sampled("LLC", timeline_events.LLC,
             (_Counter("LLC {llcId} {mode}/Hit Rate", {"Hit Rate(%)": "hitRate"}, 100.0),
              _Counter("LLC {llcId} {mode}/Throughput", _rates(Throughput="throughput"), _MB)),
             keys=("llcId", "mode"), texts={"mode": _WAY}),
    _Sampled("SIO", timeline_events.SIO,
             tuple(
                 _Counter(f"{what.lower()}_{way}", {"{name}": f"{way}{what}"}, _MB)
                 for way in ("rx", "tx") for what in ("Req", "Rsp", "Snp", "Dat")
             ),
             keys=("name",), texts={"name": {}}, is_joint=True),
    _Sampled("QOS", timeline_events.QOS,
             (_Counter("{eventName}", {"{dieId}": "bandwidth"}, _MB, whole=True),),
             keys=("eventName", "dieId"), texts={"eventName": {}},
             written={"dieId": {-1: "value", 0: "die 0", 1: "die 1"}}, is_joint=True),
)  # fmt: skip


_LEVELS = {
    "read_bandwidth": "readBwLevel",
    "read_ost": "readOstLevel",
    "write_bandwidth": "writeBwLevel",
    "write_ost": "writeOstLevel",
}


def _layer_of(sampled: _Sampled) -> Layer:
    def layer(recording: Recording, processes: Processes) -> Blocks:
        return _events(sampled, recording, processes)

    return layer


def layers() -> Iterator[Layer]:
    """Yield all layers of this module."""
    yield system_calls
    yield accelerators
    yield from map(_layer_of, _TABLES)


def _events(sampled: _Sampled, recording: Recording, processes: Processes) -> Blocks:
    source, table = recording.source, sampled.table
    if table not in source.tables:
        return
    wanted = ["timestampNs", *sampled.keys, *([] if sampled.on_host else ["deviceId"])]
    found = whole_tables.integers(source, table, wanted)
    columns = list(dict.fromkeys(c for one in sampled.counters for c in one.series.values()))
    values = whole_tables.reals(source, table, columns)
    time = found["timestampNs"]
    keep = recording.times(table, time, time)
    if table == "AICORE_FREQ":
        keep &= _is_new(found["deviceId"], time, values["freq"])
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(time[rows], kind="stable")]
    if not len(rows):
        return
    place = sampled.layer[0]
    if sampled.on_host:
        yield processes.name_events(sampled.layer)
        process = [processes.number(place, HOST)] * len(rows)
    else:
        yield processes.of_all_devices(sampled.layer, found["deviceId"][rows])
        process = processes.of_devices(place, found["deviceId"][rows])
    texts = _key_texts(sampled, recording, {key: found[key][rows] for key in sampled.keys})
    pending: dict[tuple[int, str, str], list[str]] = {}
    for part in blocks(len(rows)):
        times = registry.microseconds(time[rows[part]])
        given = [
            [
                (name, _json(values[column][rows[part]] / one.divisor, whole=one.whole))
                for name, column in one.series.items()
            ]
            for one in sampled.counters
        ]
        for at, moment in enumerate(times):
            keys = {key: of_rows[part.start + at] for key, of_rows in texts.items()}
            number = process[part.start + at]
            if pending and next(iter(pending))[1] != moment:
                yield _counted(pending)
                pending = {}
            for one, series in zip(sampled.counters, given, strict=True):
                title = one.name.format(**keys)
                # Without merging, every row has its own event, even at the same time.
                own = title if sampled.is_joint else f"{title}\0{at}"
                pending.setdefault((number, moment, own), []).extend(
                    f"{as_json(name.format(**keys))}:{of[at]}" for name, of in series
                )
    yield _counted(pending)
    if table == "NPU_MEM":
        recording.leave_out("msprof", "NPU MEM: Memory", "the database has DDR and HBM only")


def _counted(pending: Mapping[tuple[int, str, str], list[str]]) -> list[str]:
    return [
        timeline_events.counter(
            number, moment, as_json(own.partition("\0")[0]), f"{{{','.join(members)}}}"
        )
        for (number, moment, own), members in pending.items()
    ]


def _key_texts(
    sampled: _Sampled, recording: Recording, keys: Mapping[str, Ints]
) -> dict[str, list[str]]:
    result = {}
    for key, values in keys.items():
        if (texts := sampled.texts.get(key)) is not None:
            found = map(recording.text, values.tolist())
            result[key] = [texts.get(text, text) for text in found]
        else:
            known = sampled.written.get(key, {})
            result[key] = [known.get(one, str(one)) for one in values.tolist()]
    return result


def accelerators(recording: Recording, processes: Processes) -> Blocks:
    """Yield the highest accelerator level of each device at each time."""
    found = whole_tables.integers(
        recording.source, "ACC_PMU", ["timestampNs", "deviceId", *_LEVELS.values()]
    )
    keep = recording.times("ACC_PMU", found["timestampNs"], found["timestampNs"])
    found = {name: values[keep] for name, values in found.items()}
    time, device = found["timestampNs"], found["deviceId"]
    if not len(time):
        return
    yield processes.of_all_devices(timeline_events.ACCELERATORS, device)
    order = np.lexsort((time, device))
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(time[order]) != 0) | (np.diff(device[order]) != 0)
    starts = np.flatnonzero(new)
    times = registry.microseconds(time[order][starts])
    numbers_of = processes.of_devices(timeline_events.ACCELERATORS[0], device[order][starts])
    for name, column in _LEVELS.items():
        highest = np.maximum.reduceat(found[column][order], starts).tolist()
        title = as_json(name)
        yield [
            timeline_events.counter(number, moment, title, f'{{"value":{value}}}')
            for number, moment, value in zip(numbers_of, times, highest, strict=True)
        ]


def system_calls(recording: Recording, processes: Processes) -> Blocks:
    """Yield the calls of the operating system, by thread."""
    found = whole_tables.integers(
        recording.source, "OSRT_API", ["startNs", "endNs", "globalTid", "name"]
    )
    keep = recording.times("OSRT_API", found["startNs"], found["endNs"])
    found = {name: values[keep] for name, values in found.items()}
    if not len(found["name"]):
        return
    process = processes.number(timeline_events.SYSTEM_CALLS[0])
    thread = found["globalTid"] & 0xFFFFFFFF
    yield [
        *processes.name_events(timeline_events.SYSTEM_CALLS),
        *(
            timeline_events.metadata(process, number, "thread_name", name=f"Thread {number}")
            for number in np.unique(thread).tolist()
        ),
    ]
    for part in blocks(len(thread)):
        start = found["startNs"][part]
        yield timeline_events.complete(
            timeline_events.quoted(recording, found["name"][part]),
            [process] * len(start),
            thread[part].tolist(),
            start,
            found["endNs"][part] - start,
            ["{}"] * len(start),
        )


def _json(values: NDArray[np.float64], *, whole: bool) -> list[str]:
    return [
        "null" if one != one else str(int(one)) if whole else repr(one) for one in values.tolist()
    ]


def _is_new(device: Ints, time: Ints, value: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask without repeated samples, which exporters sometimes write."""
    seen: set[tuple[int, int, float]] = set()
    new = np.ones(len(time), np.bool_)
    for row, key in enumerate(zip(device.tolist(), time.tolist(), value.tolist(), strict=True)):
        new[row] = key not in seen
        seen.add(key)
    return new
