"""npu_module_mem: what components of the software reserved on a device."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.read import whole_tables
from unified_prof.analysis.read.whole_tables import MISSING
from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, cell, lines
from unified_prof.export.mindstudio.operator_allocations import npu
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.registry import deliverable

_TABLE = "NPU_MODULE_MEM"
_HEADER = ("Device_id", "Component", "Timestamp(us)", "Total Reserved(KB)", "Device")
_UNKNOWN = "Unknown"


@deliverable("npu_module_mem", tables=(_TABLE,))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, component by component in order of time; whole KB, cut."""
    found = whole_tables.integers(
        recording.source, _TABLE, ["moduleId", "timestampNs", "totalReserved", "deviceId"]
    )
    order = np.lexsort((found["timestampNs"], found["moduleId"]))
    order = order[recording.times(_TABLE, *[found["timestampNs"][order]] * 2)]
    names = whole_tables.names(recording.source, "ENUM_MODULE")
    size = found["totalReserved"]
    # Towards zero, and -1, which says that only releases were seen, stays.
    kilobytes = np.where(size == MISSING, MISSING, np.sign(size) * (np.abs(size) // 1024))
    kilobytes[size == -1] = -1

    def block(part: slice) -> list[str]:
        rows = order[part]
        return lines(
            numbers.integers(found["deviceId"][rows]),
            [cell(names.get(one, _UNKNOWN)) for one in found["moduleId"][rows].tolist()],
            numbers.tabbed(numbers.microseconds(found["timestampNs"][rows])),
            numbers.integers(kilobytes[rows]),
            npu(found["deviceId"][rows]),
        )

    delivery.table("npu_module_mem", _HEADER, len(order), map(block, blocks(len(order))))
