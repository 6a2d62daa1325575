"""What the operators of a graph allocated and released, for memory_record and operator_memory."""

from __future__ import annotations

from dataclasses import dataclass

from unified_prof.analysis.read import whole_tables
from unified_prof.export.mindstudio.recording import Ints, Recording

TABLE = "NPU_OP_MEM"


@dataclass(frozen=True, slots=True)
class Allocations:
    """Rows of NPU_OP_MEM as columns, in order of time."""

    operator: Ints
    address: Ints
    type: Ints
    size_bytes: Ints
    time_ns: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    component: Ints
    device: Ints

    def __len__(self) -> int:
        return len(self.time_ns)


def allocations(recording: Recording) -> Allocations:
    """Return the allocations of a recording; those at impossible times are counted."""
    found = whole_tables.integers(
        recording.source,
        TABLE,
        (
            *("operatorName", "addr", "type", "size", "timestampNs"),
            *("totalAllocate", "totalReserve", "component", "deviceId"),
        ),
    )
    order = found["timestampNs"].argsort(kind="stable")
    time = found["timestampNs"][order]
    order = order[recording.times(TABLE, time, time)]
    return Allocations(*(values[order] for values in found.values()))


def npu(devices: Ints) -> list[str]:
    """Return what devices are called: `NPU:0`."""
    return [f"NPU:{device}" for device in devices.tolist()]
