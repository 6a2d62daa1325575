"""The profiled program: its marks, by thread, and those that a device has reached."""

from __future__ import annotations

import numpy as np

from unified_prof.export.mindstudio.delivery import as_json
from unified_prof.export.mindstudio.marks import event_names, marks
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.timeline import events, hardware
from unified_prof.export.mindstudio.timeline.events import Blocks, Processes
from unified_prof.vocabulary import NOT_AVAILABLE


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the marks of the host."""
    found = marks(recording)
    if not len(found):
        return
    process = processes.number(events.PROGRAM)
    name = recording.program
    if name is None:
        recording.leave_out("msprof", "name of the profiled program", "not in the database")
    named = processes.named((events.PROGRAM, name or ""))
    thread = found.global_tid & 0xFFFFFFFF
    yield [
        *(named if name is not None else named[1:]),
        *(
            event
            for number in np.unique(thread).tolist()
            for event in events.thread(process, number, f"Thread {number}")
        ),
    ]
    for part in blocks(len(found)):
        numbered = found.is_numbered[part]
        kinds = list(map(as_json, event_names(recording, found.event[part])))
        start = found.start_ns[part]
        yield events.complete(
            events.quoted(recording, found.message[part]),
            [process] * len(kinds),
            thread[part].tolist(),
            start,
            found.end_ns[part] - start,
            [
                f'{{"event_type":{kind},"domain":{domain}}}' if new else older
                for kind, domain, new, older in zip(
                    kinds,
                    events.quoted(recording, found.domain[part]),
                    numbered.tolist(),
                    recording.older_marks(found.connection[part], found.category[part], kinds),
                    strict=True,
                )
            ],
        )
        rows = np.flatnonzero(numbered) + part.start
        yield events.flows(
            events.MARK_TO_DEVICE,
            list(map(str, found.connection[rows].tolist())),
            [process] * len(rows),
            thread[rows].tolist(),
            found.start_ns[rows],
            ends=False,
        )


def device_layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the moments at which devices reached marks, on the streams that they were set on."""
    tasks = recording.mark_tasks
    if not len(tasks):
        return
    found = marks(recording)
    messages = {
        connection: message
        for connection, message, new in zip(
            found.connection.tolist(),
            events.quoted(recording, found.message),
            found.is_numbered.tolist(),
            strict=True,
        )
        if new
    }
    yield from hardware.named(processes, tasks.device, tasks.stream)
    unknown = as_json(NOT_AVAILABLE)
    for part in blocks(len(tasks)):
        process = processes.of_devices(events.HARDWARE[0], tasks.device[part])
        stream, start = tasks.stream[part].tolist(), tasks.start_ns[part]
        connection = tasks.connection[part].tolist()
        yield events.complete(
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
        yield events.flows(
            events.MARK_TO_DEVICE,
            list(map(str, connection)),
            process,
            stream,
            start,
            ends=True,
        )
