"""Events and processes of a trace in msprof's format: times as text, durations as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.recording import Recording, first_known
from unified_prof.export.mindstudio.registry import as_json
from unified_prof.recording import recording as whole_tables

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


def complete(
    names: Iterable[str],
    processes: Iterable[int],
    threads: Iterable[int],
    start_ns: Ints,
    duration_ns: Ints,
    arguments: Iterable[str],
    category: str | None = None,
) -> list[str]:
    """Return complete events (`ph: X`); names and arguments are JSON texts."""
    kind = "" if category is None else f',"cat":"{category}"'
    return [
        f'{{"name":{name},"pid":{process},"tid":{number},"ts":"{start}","dur":{duration},'
        f'"ph":"X"{kind},"args":{given}}}'
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
    distinct, places = np.unique(ns, return_inverse=True)
    texts = [f"{one // 1000}.{f'{one % 1000:03d}'.rstrip('0') or '0'}" for one in distinct.tolist()]
    return [texts[place] for place in places.reshape(-1).tolist()]


def quoted(recording: Recording, text_ids: Ints) -> list[str]:
    """Return the JSON strings of texts, by their ids."""
    distinct, places = np.unique(text_ids, return_inverse=True)
    texts = [as_json(recording.text(one)) for one in distinct.tolist()]
    return [texts[place] for place in places.reshape(-1).tolist()]


def _process(recording: Recording) -> int:
    """Return the id of the profiled process, or 0 if it was not recorded."""
    if len(recording.tasks) and (known := first_known(recording.tasks.process)) is not None:
        return known
    for table in ("CANN_API", "MSTX_EVENTS", "OSRT_API"):
        column = whole_tables.first(recording.source, table, "globalTid")
        if column is not None and column >= 0:
            return column >> 32
    return 0
