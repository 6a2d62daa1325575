"""The timelines msprof_*.json (all layers) and msprof_tx_*.json (marks only).

Defines the layers Overlap Analysis (computing, communication, free time) and marks of the program
and of devices.
"""

from __future__ import annotations

import numpy as np

from unified_prof.base.columns import NOT_AVAILABLE
from unified_prof.export.mindstudio import timeline_device, timeline_events
from unified_prof.export.mindstudio.registry import Delivery, Recording, as_json, blocks
from unified_prof.export.mindstudio.statistics import event_names, marks
from unified_prof.export.mindstudio.timeline_events import Blocks, Layer, Processes
from unified_prof.recording import recording as whole_tables

_TABLE = "OVERLAP_ANALYSIS"
_NAMES = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the ranges of Overlap Analysis; every kind has a thread, even without ranges."""
    found = whole_tables.integers(
        recording.source, _TABLE, ["deviceId", "startNs", "endNs", "type"]
    )
    keep = recording.times(_TABLE, found["startNs"], found["endNs"])
    keep &= (found["type"] >= 0) & (found["type"] < len(_NAMES))
    found = {name: values[keep] for name, values in found.items()}
    if not len(found["type"]):
        if len(recording.tasks) and _TABLE not in recording.source.tables:
            recording.leave_out(
                "msprof", "Overlap Analysis", "databases of this revision do not have it"
            )
        return
    devices = found["deviceId"]
    yield processes.of_all_devices(timeline_events.OVERLAP, devices)
    yield [
        event
        for device in np.unique(devices).tolist()
        for number, name in enumerate(_NAMES)
        for event in timeline_events.thread(
            processes.number(timeline_events.OVERLAP[0], device), number, name
        )
    ]
    names = list(map(as_json, _NAMES))
    for part in blocks(len(devices)):
        kind = found["type"][part].tolist()
        start = found["startNs"][part]
        yield timeline_events.complete(
            [names[one] for one in kind],
            processes.of_devices(timeline_events.OVERLAP[0], devices[part]),
            kind,
            start,
            found["endNs"][part] - start,
            ["{}"] * len(kind),
        )


def layer_program(recording: Recording, processes: Processes) -> Blocks:
    """Yield the marks of the program on the host."""
    found = marks(recording)
    if not len(found):
        return
    process = processes.number(timeline_events.PROGRAM)
    name = recording.program
    if name is None:
        recording.leave_out("msprof", "name of the profiled program", "not in the database")
    named = processes.name_events((timeline_events.PROGRAM, name or ""))
    thread = found.global_tid & 0xFFFFFFFF
    yield [
        *(named if name is not None else named[1:]),
        *(
            event
            for number in np.unique(thread).tolist()
            for event in timeline_events.thread(process, number, f"Thread {number}")
        ),
    ]
    for part in blocks(len(found)):
        numbered = found.is_numbered[part]
        kinds = list(map(as_json, event_names(recording, found.event[part])))
        start = found.start_ns[part]
        yield timeline_events.complete(
            timeline_events.quoted(recording, found.message[part]),
            [process] * len(kinds),
            thread[part].tolist(),
            start,
            found.end_ns[part] - start,
            [
                f'{{"event_type":{kind},"domain":{domain}}}' if new else older
                for kind, domain, new, older in zip(
                    kinds,
                    timeline_events.quoted(recording, found.domain[part]),
                    numbered.tolist(),
                    recording.older_marks(found.connection[part], found.category[part], kinds),
                    strict=True,
                )
            ],
        )
        rows = np.flatnonzero(numbered) + part.start
        yield timeline_events.flows(
            timeline_events.MARK_TO_DEVICE,
            list(map(str, found.connection[rows].tolist())),
            [process] * len(rows),
            thread[rows].tolist(),
            found.start_ns[rows],
            ends=False,
        )


def device_layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the times at which devices reached marks, on the streams of the marks."""
    tasks = recording.mark_tasks
    if not len(tasks):
        return
    found = marks(recording)
    messages = {
        connection: message
        for connection, message, new in zip(
            found.connection.tolist(),
            timeline_events.quoted(recording, found.message),
            found.is_numbered.tolist(),
            strict=True,
        )
        if new
    }
    yield from timeline_device.name_events(processes, tasks.device, tasks.stream)
    unknown = as_json(NOT_AVAILABLE)
    for part in blocks(len(tasks)):
        process = processes.of_devices(timeline_events.HARDWARE[0], tasks.device[part])
        stream, start = tasks.stream[part].tolist(), tasks.start_ns[part]
        connection = tasks.connection[part].tolist()
        yield timeline_events.complete(
            [messages.get(one, unknown) for one in connection],
            process,
            stream,
            start,
            tasks.end_ns[part] - start,
            [
                f'{{"Physic Stream Id":{one},"Task Id":{number}}}'
                for one, number in zip(stream, tasks.number[part].tolist(), strict=True)
            ],
        )
        yield timeline_events.flows(
            timeline_events.MARK_TO_DEVICE,
            list(map(str, connection)),
            process,
            stream,
            start,
            ends=True,
        )


_MARKS: tuple[Layer, ...] = (layer_program, device_layer)
_LAYERS: tuple[Layer, ...] = (
    *(
        timeline_device.layer,
        timeline_device.layer_hardware,
        timeline_device.layer_communication,
        layer,
    ),
    *(*_MARKS, *timeline_events.layers()),
)


def write_timeline(recording: Recording, delivery: Delivery) -> None:
    """Write the whole timeline."""
    delivery.timeline("msprof", _events(recording, _LAYERS))


def write_marks(recording: Recording, delivery: Delivery) -> None:
    """Write the marks to a separate timeline."""
    delivery.timeline("msprof_tx", _events(recording, _MARKS))


def _events(recording: Recording, layers: tuple[Layer, ...]) -> Blocks:
    processes = Processes(recording)
    for layer in layers:
        yield from layer(recording, processes)
