"""Events and processes of a trace in msprof's format, and layers of sampled counters.

Times are texts, durations numbers. Other layers are accelerator levels and system calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from unified_prof.arrays.grouping import Bools, Floats, Ints, Runs
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import Recording, as_json, blocks, first_known

Blocks = Iterator[Sequence[str]]
Layer = Callable[[Recording, "Processes"], Blocks]

# (sort index of the process, name) of each layer.
CALLS = (7, "CANN")
PROGRAM = 6
CPU_USAGE = (9, "CPU Usage")
MEMORY_USAGE = (10, "Memory Usage")
NETWORK_USAGE = (11, "Network Usage")
DISK_USAGE = (12, "Disk Usage")
SYSTEM_CALLS = (13, "OS Runtime API")
HARDWARE = (14, "Ascend Hardware")
FREQUENCY = (15, "AI Core Freq")
COMMUNICATION = (16, "Communication")
NPU_MEMORY = (17, "NPU MEM")
DDR = (18, "DDR")
ACCELERATORS = (19, "Acc PMU")
HCCS = (20, "HCCS")
PCIE = (23, "PCIe")
HBM = (24, "HBM")
SOC = (25, "Stars Soc Info")
LLC = (27, "LLC")
SIO = (28, "SIO")
QOS = (29, "QoS")
OVERLAP = (31, "Overlap Analysis")

# Device number that means the host.
HOST = 31
HOST_TO_DEVICE = "HostToDevice"
MARK_TO_DEVICE = "MsTx"
_UINT32 = 0xFFFFFFFF
_UINT64 = (1 << 64) - 1


class Processes:
    """Process ids of a timeline: one per layer and device of the profiled process."""

    def __init__(self, recording: Recording) -> None:
        self._process = _process(recording)

    def number(self, place: int, device: int = HOST) -> int:
        """Return the process id of a layer on a device, as msprof computes it (32 bits)."""
        return ((self._process << 10) | (place << 5) | (device & 31)) & _UINT32

    def of_devices(self, place: int, devices: Ints) -> list[int]:
        """Return the process id of a layer for each row's device."""
        known = {device: self.number(place, device) for device in np.unique(devices).tolist()}
        return [known[device] for device in devices.tolist()]

    def name_events(self, layer: tuple[int, str], device: int = HOST) -> list[str]:
        """Return the events that name and sort the process of a layer."""
        place, name = layer
        number = self.number(place, device)
        label = "CPU" if device == HOST else f"NPU {device}"
        return [
            metadata(number, 0, "process_name", name=name),
            metadata(number, 0, "process_labels", labels=label),
            metadata(number, 0, "process_sort_index", sort_index=place),
        ]

    def of_all_devices(self, layer: tuple[int, str], devices: Ints) -> list[str]:
        """Return the events that name the processes of a layer on all its devices."""
        found = [self.name_events(layer, device) for device in np.unique(devices).tolist()]
        return [event for events in found for event in events]


def metadata(process: int, thread: int, name: str, /, **what: str | int) -> str:
    """Return a metadata event: name, label or sort index of a process or thread."""
    arguments = as_json(what)
    return f'{{"name":"{name}","pid":{process},"tid":{thread},"ph":"M","args":{arguments}}}'


def thread(process: int, number: int, name: str) -> list[str]:
    """Return the events that name a thread and sort it by its number."""
    return [
        metadata(process, number, "thread_name", name=name),
        metadata(process, number, "thread_sort_index", sort_index=number),
    ]


def threads(process: int, numbers: Ints) -> list[str]:
    """Return the events that name and sort the threads with these numbers."""
    distinct = np.unique(numbers).tolist()
    return [event for number in distinct for event in thread(process, number, f"Thread {number}")]


def complete(
    names: Iterable[str],
    processes: Iterable[int],
    threads: Iterable[int],
    start_ns: Ints,
    duration_ns: Ints,
    arguments: Iterable[str],
) -> list[str]:
    """Return complete events (`ph: X`); names and arguments are JSON texts."""
    return [
        f'{{"name":{name},"pid":{process},"tid":{number},"ts":"{start}","dur":{duration},'
        f'"ph":"X","args":{given}}}'
        for name, process, number, start, duration, given in zip(
            names,
            processes,
            threads,
            registry.microseconds(start_ns),
            decimals(duration_ns),
            arguments,
            strict=True,
        )
    ]


def flows(
    category: str,
    ids: Iterable[str],
    processes: Iterable[int],
    threads: Iterable[int],
    time_ns: Ints,
    *,
    ends: bool,
) -> list[str]:
    """Return the start or end events of arrows."""
    joint = "_" if category == MARK_TO_DEVICE else ""
    phase, point = ("f", ',"bp":"e"') if ends else ("s", "")
    return [
        f'{{"name":"{category}{joint}{one}","pid":{process},"tid":{number},"ph":"{phase}",'
        f'"cat":"{category}","id":"{one}","ts":"{time}"{point}}}'
        for one, process, number, time in zip(
            ids, processes, threads, registry.microseconds(time_ns), strict=True
        )
    ]


def counter(process: int, time_us: str, name: str, values: str) -> str:
    """Return a counter event; `values` is JSON."""
    return f'{{"name":{name},"pid":{process},"tid":0,"ts":"{time_us}","ph":"C","args":{values}}}'


def launch_ids(connections: Ints) -> list[str]:
    """Return the ids of arrows of host calls."""
    return [str((one << 32) & _UINT64) for one in connections.tolist()]


def unsigned(values: Ints) -> list[str]:
    """Return connection ids as unsigned 64-bit numbers; unknown ones become the maximum."""
    return [str(one & _UINT64) for one in values.tolist()]


def decimals(ns: Ints) -> list[str]:
    """Return durations in microseconds as JSON numbers: `20.0`, `6.84`."""
    return registry.by_value(ns, registry.of_thousandths)


def quoted(recording: Recording, text_ids: Ints) -> list[str]:
    """Return the JSON strings of texts, by their ids."""
    return registry.by_value(text_ids, lambda number: as_json(recording.text(number)))


def _process(recording: Recording) -> int:
    """Return the id of the profiled process, or 0 if it was not recorded."""
    if len(recording.tasks) and (known := first_known(recording.tasks.process)) is not None:
        return known
    for table in ("CANN_API", "MSTX_EVENTS", "OSRT_API"):
        if table in recording.source.tables:
            found = f"SELECT globalTid FROM {table} WHERE typeof(globalTid) = 'integer' LIMIT 1"
            for (thread,) in recording.source.rows(found):
                if thread >= 0:
                    return int(thread) >> 32
    return 0


_MB = 1024.0 * 1024.0
_PCIE_MB = 1e6  # unit of the counters; msprof divides by 1024 * 1024
_NS_PER_US = 1e3


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter of a timeline: its name and the columns of its values."""

    name: str  # May contain `{column}`, replaced by the value of that key column.
    # Name of a value -> its column.
    series: Mapping[str, str]
    divisor: float = 1.0
    whole: bool = False  # True if values are integers.


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A table of samples and the layer that shows it."""

    table: str
    layer: tuple[int, str]
    counters: tuple[_Counter, ...]
    keys: tuple[str, ...] = ()  # Columns that appear in the names of counters.
    # Key column of text ids -> replacements of its texts.
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Key column of numbers -> texts of some numbers.
    written: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    on_host: bool = False
    is_joint: bool = False  # True if rows with the same time are merged into one event per counter.


def _rates(**series: str) -> dict[str, str]:
    return {f"{name}(MB/s)": column for name, column in series.items()}


_WAY = {"read": "Read", "write": "Write"}
_USAGE = "Usage(%)"

_TABLES = (
    _Sampled("CPU_USAGE", CPU_USAGE, (_Counter("CPU {cpuId}", {_USAGE: "usage"}),),
             keys=("cpuId",), on_host=True),
    _Sampled("HOST_MEM_USAGE", MEMORY_USAGE,
             (_Counter("Memory Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("HOST_NETWORK_USAGE", NETWORK_USAGE,
             (_Counter("Network Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("HOST_DISK_USAGE", DISK_USAGE,
             (_Counter("Disk Usage", {_USAGE: "usage"}),), on_host=True),
    _Sampled("AICORE_FREQ", FREQUENCY,
             (_Counter("AI Core Freq", {"MHz": "freq"}, whole=True),)),
    _Sampled("NPU_MEM", NPU_MEMORY,
             (_Counter("{type}/DDR", {"KB": "ddr"}, 1024.0),
              _Counter("{type}/HBM", {"KB": "hbm"}, 1024.0)),
             keys=("type",), texts={"type": {"app": "APP", "device": "Device"}}),
    _Sampled("DDR", DDR,
             (_Counter("DDR/Read", _rates(Read="read"), _MB),
              _Counter("DDR/Write", _rates(Write="write"), _MB))),
    _Sampled("HCCS", HCCS,
             (_Counter("Rx", _rates(Rx="rxThroughput"), _MB),
              _Counter("Tx", _rates(Tx="txThroughput"), _MB))),
    _Sampled("PCIE", PCIE,
             (_Counter("PCIe_cpl", {"Rx": "rxCplAvg", "Tx": "txCplAvg"}, _PCIE_MB),
              _Counter("PCIe_nonpost", {"Rx": "rxNonpostAvg", "Tx": "txNonpostAvg"}, _PCIE_MB),
              _Counter("PCIe_nonpost_latency", {"Tx": "txNonpostLatencyAvg"}, _NS_PER_US),
              _Counter("PCIe_post", {"Rx": "rxPostAvg", "Tx": "txPostAvg"}, _PCIE_MB))),
    _Sampled("HBM", HBM,
             (_Counter("HBM {hbmId}/{type}", {"{type}(MB/s)": "bandwidth"}, _MB),),
             keys=("hbmId", "type"), texts={"type": _WAY}),
    _Sampled("SOC_BANDWIDTH_LEVEL", SOC,
             (_Counter("L2 Buffer Bw Level", {"L2 Buffer Bw Level": "l2BufferBwLevel"}, whole=True),
              _Counter("Mata Bw Level", {"Mata Bw Level": "mataBwLevel"}, whole=True))),
    _Sampled("LLC", LLC,
             (_Counter("LLC {llcId} {mode}/Hit Rate", {"Hit Rate(%)": "hitRate"}, 100.0),
              _Counter("LLC {llcId} {mode}/Throughput", _rates(Throughput="throughput"), _MB)),
             keys=("llcId", "mode"), texts={"mode": _WAY}),
    _Sampled("SIO", SIO,
             tuple(
                 _Counter(f"{what.lower()}_{way}", {"{name}": f"{way}{what}"}, _MB)
                 for way in ("rx", "tx") for what in ("Req", "Rsp", "Snp", "Dat")
             ),
             keys=("name",), texts={"name": {}}, is_joint=True),
    _Sampled("QOS", QOS,
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


def layers() -> Iterator[Layer]:
    """Yield all layers of this module."""
    yield system_calls
    yield accelerators
    yield from (partial(_events, sampled) for sampled in _TABLES)


def _events(sampled: _Sampled, recording: Recording, processes: Processes) -> Blocks:
    table = sampled.table
    if table not in recording.source.tables:
        return
    wanted = ["timestampNs", *sampled.keys, *([] if sampled.on_host else ["deviceId"])]
    found = recording.integers(table, wanted)
    columns = list(dict.fromkeys(c for one in sampled.counters for c in one.series.values()))
    values = recording.reals(table, columns)
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
        counter(number, moment, as_json(own.partition("\0")[0]), f"{{{','.join(members)}}}")
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
    found = recording.timed("ACC_PMU", ["timestampNs", "deviceId", *_LEVELS.values()])
    time, device = found["timestampNs"], found["deviceId"]
    if not len(time):
        return
    yield processes.of_all_devices(ACCELERATORS, device)
    order = np.lexsort((time, device))
    starts = Runs(time[order], device[order]).starts
    times = registry.microseconds(time[order][starts])
    numbers_of = processes.of_devices(ACCELERATORS[0], device[order][starts])
    for name, column in _LEVELS.items():
        highest = np.maximum.reduceat(found[column][order], starts).tolist()
        title = as_json(name)
        yield [
            counter(number, moment, title, f'{{"value":{value}}}')
            for number, moment, value in zip(numbers_of, times, highest, strict=True)
        ]


def system_calls(recording: Recording, processes: Processes) -> Blocks:
    """Yield the calls of the operating system, by thread."""
    found = recording.timed("OSRT_API", ["startNs", "endNs", "globalTid", "name"])
    if not len(found["name"]):
        return
    process = processes.number(SYSTEM_CALLS[0])
    thread = found["globalTid"] & 0xFFFFFFFF
    yield [
        *processes.name_events(SYSTEM_CALLS),
        *(
            metadata(process, number, "thread_name", name=f"Thread {number}")
            for number in np.unique(thread).tolist()
        ),
    ]
    for part in blocks(len(thread)):
        start = found["startNs"][part]
        yield complete(
            quoted(recording, found["name"][part]),
            [process] * len(start),
            thread[part].tolist(),
            start,
            found["endNs"][part] - start,
            ["{}"] * len(start),
        )


def _json(values: Floats, *, whole: bool) -> list[str]:
    return [
        "null" if one != one else str(int(one)) if whole else repr(one) for one in values.tolist()
    ]


def _is_new(device: Ints, time: Ints, value: Floats) -> Bools:
    """Return a mask without repeated samples, which exporters sometimes write."""
    order = np.lexsort((value, time, device))
    new = np.zeros(len(time), np.bool_)
    new[order[Runs(device[order], time[order], value[order]).starts]] = True
    return new
