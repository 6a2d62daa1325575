"""Communication operators of an msprof database, with the device each ran on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN
from unified_prof.analysis.read.messages import ELEMENT_BYTES
from unified_prof.analysis.read.possible import possible
from unified_prof.analysis.read.source import Findings, Source
from unified_prof.analysis.read.tasks import Tasks
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING

Ints = NDArray[np.int64]

UNKNOWN_DEVICE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """The rows of COMMUNICATION_OP as columns, without those whose times are impossible."""

    start_ns: Ints
    duration_ns: Ints
    device: Ints
    name: Ints
    """String id of the operator's own name."""
    op_type: Ints
    """String id of what it does; MISSING before msprof recorded it."""
    connection: Ints
    group: Ints
    """String id of the communicator; MISSING: not recorded."""
    identity: Ints
    """The opId of each."""
    elements: Ints
    """How many elements its message has; -1: not recorded."""
    data_type: Ints
    """Number of their type; -1: not recorded."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def size_bytes(self) -> Ints:
        """Size of each operator's message as recorded, UNKNOWN where it was not."""
        types, number = np.unique(self.data_type, return_inverse=True)
        width = np.array([ELEMENT_BYTES.get(one, 0) for one in types.tolist()], np.int64)
        known = (width[number] > 0) & (self.elements >= 0) if len(self) else np.zeros(0, bool)
        return (
            np.where(known, self.elements * width[number], UNKNOWN) if len(self) else self.elements
        )

    @property
    def end_ns(self) -> Ints:
        """End of each operator."""
        return self.start_ns + self.duration_ns

    def in_parts(self, device: int | None = None) -> bool:
        """Tell whether parts of collectives count for themselves: no whole one is known of there.

        Args:
            device: where; None: on all devices together.
        """
        if device is None or (self.device == UNKNOWN_DEVICE).any():
            return not len(self)
        return not (self.device == device).any()


def device_name(number: int) -> str:
    """Return what a device is called by its number."""
    return "unknown device" if number < 0 else f"device {number}"


def load(source: Source, tasks: Tasks, findings: Findings) -> Collectives:
    """Read the communication operators; older files name no device, their tasks do."""
    columns = source.integers(
        "COMMUNICATION_OP",
        {
            "start": "startNs",
            "duration": "endNs - startNs",
            "id": "opId",
            "name": "opName",
            "type": f"coalesce(opType, {MISSING + 1} - 1)",
            "connection": "coalesce(connectionId, -1)",
            "device": "coalesce(deviceId, -1)",
            "group": f"coalesce(groupName, {MISSING + 1} - 1)",
            "elements": "coalesce(count, -1)",
            "data_type": "coalesce(dataType, -1)",
        },
    )
    valid = possible(columns["start"], columns["duration"])
    bad = int(len(valid) - valid.sum())
    findings.add("impossible_communication_time", f"{bad} operators are left out", bad)
    columns = {name: values[valid] for name, values in columns.items()}
    device = columns["device"]
    unknown = device < 0
    if unknown.any():
        device = device.copy()
        device[unknown] = _device_of_tasks(source, tasks, columns["id"][unknown])
    return Collectives(
        start_ns=columns["start"],
        duration_ns=columns["duration"],
        device=device,
        name=columns["name"],
        op_type=columns["type"],
        connection=columns["connection"],
        group=columns["group"],
        identity=columns["id"],
        elements=columns["elements"],
        data_type=columns["data_type"],
    )


def _device_of_tasks(source: Source, tasks: Tasks, op_ids: Ints) -> Ints:
    """Return the device of each operator's tasks; without any, the only device of the file."""
    devices = np.unique(tasks.device)
    only = int(devices[0]) if len(devices) == 1 else UNKNOWN_DEVICE
    parts = source.integers("COMMUNICATION_TASK_INFO", {"op": "opId", "task": "globalTaskId"})
    row = Lookup(parts["op"]).rows(op_ids)
    if not len(parts["op"]):
        return np.full(len(op_ids), only, np.int64)
    task = Lookup(tasks.identity).rows(parts["task"][row])
    known = (row >= 0) & (task >= 0)
    return np.where(known, tasks.device[task] if len(tasks) else only, only).astype(np.int64)
