"""CANN: the calls of the host, by thread, and where the arrows to devices begin."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.read import whole_tables
from unified_prof.export.mindstudio.delivery import as_json
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.timeline import events
from unified_prof.export.mindstudio.timeline.events import Blocks, Processes

_ACL, _MODEL, _NODE, _COMMUNICATION, _RUNTIME = 20000, 15000, 10000, 5500, 5000
_PREFIXES = {
    _ACL: "AscendCL",
    _MODEL: "Model",
    _NODE: "Node",
    _COMMUNICATION: "Communication",
    _RUNTIME: "Runtime",
}
_OTHER_PREFIX = "Api"
# What of a call its name is: of the three texts that a call can have, a database keeps one.
_NAME_IS = {_ACL: "id", _COMMUNICATION: "item_id"}
_NAME_IS_ELSE = "Mode"
WAITS_AND_RECORDS = ("aclrtRecordEvent", "aclrtStreamWaitEvent")
"""Calls that launch no kernel, and whose tasks have an arrow nevertheless."""


def layer(recording: Recording, processes: Processes) -> Blocks:
    """Yield the calls."""
    found = whole_tables.integers(
        recording.source,
        "CANN_API",
        ["startNs", "endNs", "type", "globalTid", "connectionId", "name"],
        narrow=["type", "name"],
    )
    keep = recording.times("CANN_API", found["startNs"], found["endNs"])
    found = {name: values[keep] for name, values in found.items()}
    if not len(found["name"]):
        return
    process = processes.number(events.CALLS[0])
    thread = found["globalTid"] & 0xFFFFFFFF
    yield [
        *processes.named(events.CALLS),
        *(
            event
            for number in np.unique(thread).tolist()
            for event in events.thread(process, number, f"Thread {number}")
        ),
    ]
    levels = whole_tables.names(recording.source, "ENUM_API_TYPE")
    has_arrow = found["type"] == _NODE
    has_arrow |= np.isin(found["name"], recording.ids(WAITS_AND_RECORDS)) & (found["type"] == _ACL)
    copies = recording.tasks.connection[recording.is_copy]
    has_arrow |= np.isin(found["connectionId"], copies[copies >= 0])
    heads: dict[tuple[int, int], tuple[str, str]] = {}
    for part in blocks(len(thread)):
        names, arguments = [], []
        for level, name, tid, connection in zip(
            found["type"][part].tolist(),
            found["name"][part].tolist(),
            thread[part].tolist(),
            events.unsigned(found["connectionId"][part]),
            strict=True,
        ):
            head = heads.get((level, name))
            if head is None:
                head = heads[level, name] = _head(recording, levels, level, name)
            names.append(head[0])
            arguments.append(f'{{"Thread Id":{tid},{head[1]},"connection_id":{connection}}}')
        start = found["startNs"][part]
        yield events.complete(
            names,
            [process] * len(names),
            thread[part].tolist(),
            start,
            found["endNs"][part] - start,
            arguments,
        )
        begins = np.flatnonzero(has_arrow[part]) + part.start
        yield events.flows(
            events.HOST_TO_DEVICE,
            events.launch_ids(found["connectionId"][begins]),
            [process] * len(begins),
            thread[begins].tolist(),
            found["startNs"][begins],
            ends=False,
        )
    recording.leave_out(
        "msprof",
        "Mode, id and item_id of host calls, but for the one that is their name",
        "not in the database",
    )


def _head(recording: Recording, levels: dict[int, str], level: int, name: int) -> tuple[str, str]:
    """Return what all calls of a name have in common: the name, and the middle of its arguments."""
    text = recording.text(name)
    title = as_json(f"{_PREFIXES.get(level, _OTHER_PREFIX)}@{text}")
    known = {_NAME_IS.get(level, _NAME_IS_ELSE): text}
    given = {"Mode": known.get("Mode"), "level": levels.get(level, ""), **known}
    shown = {key: value for key, value in given.items() if value is not None}
    return title, as_json(shown)[1:-1]
