"""memory_record: how much the operators of a graph held after each allocation and release."""

from __future__ import annotations

from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, lines
from unified_prof.export.mindstudio.operator_allocations import TABLE, allocations, npu
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.registry import deliverable

_HEADER = (
    *("Device_id", "Component", "Timestamp(us)"),
    *("Total Allocated(KB)", "Total Reserved(KB)", "Device"),
)


@deliverable("memory_record", tables=(TABLE,))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, in order of time."""
    found = allocations(recording)
    delivery.table(
        "memory_record",
        _HEADER,
        len(found),
        (
            lines(
                numbers.integers(found.device[part]),
                recording.cells(found.component[part]),
                numbers.tabbed(numbers.microseconds(found.time_ns[part])),
                numbers.kilobytes(found.allocated_bytes[part]),
                numbers.kilobytes(found.reserved_bytes[part]),
                npu(found.device[part]),
            )
            for part in blocks(len(found))
        ),
    )
