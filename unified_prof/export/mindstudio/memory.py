"""Memory tables of the text export.

* memory_record: memory that operators hold after each allocation and release
* npu_module_mem: memory that software components reserve on a device
* operator_memory: one row per allocation of an operator, with its release
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import MISSING, Ints
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import Delivery, Recording, blocks, lines
from unified_prof.recording import recording as whole_tables

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
    """Return the allocations of a recording; rows with invalid times are dropped and counted."""
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
    """Return the names of devices, for example `NPU:0`."""
    return [f"NPU:{device}" for device in devices.tolist()]


_HEADER = (
    *("Device_id", "Component", "Timestamp(us)"),
    *("Total Allocated(KB)", "Total Reserved(KB)", "Device"),
)


def write_memory_record(recording: Recording, delivery: Delivery) -> None:
    """Write memory_record, in order of time."""
    found = allocations(recording)
    delivery.table(
        "memory_record",
        _HEADER,
        len(found),
        (
            lines(
                registry.integers(found.device[part]),
                recording.cells(found.component[part]),
                registry.tabbed(registry.microseconds(found.time_ns[part])),
                registry.kilobytes(found.allocated_bytes[part]),
                registry.kilobytes(found.reserved_bytes[part]),
                npu(found.device[part]),
            )
            for part in blocks(len(found))
        ),
    )


_TABLE = "NPU_MODULE_MEM"
_HEADER_NPU_MODULE_MEM = ("Device_id", "Component", "Timestamp(us)", "Total Reserved(KB)", "Device")
_UNKNOWN = "Unknown"


def write_npu_module_mem(recording: Recording, delivery: Delivery) -> None:
    """Write npu_module_mem by component and time; sizes are truncated to whole KB."""
    found = whole_tables.integers(
        recording.source, _TABLE, ["moduleId", "timestampNs", "totalReserved", "deviceId"]
    )
    order = np.lexsort((found["timestampNs"], found["moduleId"]))
    order = order[recording.times(_TABLE, *[found["timestampNs"][order]] * 2)]
    names = whole_tables.names(recording.source, "ENUM_MODULE")
    size = found["totalReserved"]
    # Round towards zero, but keep -1: the profiler has seen releases only.
    kilobytes = np.where(size == MISSING, MISSING, np.sign(size) * (np.abs(size) // 1024))
    kilobytes[size == -1] = -1

    def block(part: slice) -> list[str]:
        rows = order[part]
        return lines(
            registry.integers(found["deviceId"][rows]),
            [recording.cell(names.get(one, _UNKNOWN)) for one in found["moduleId"][rows].tolist()],
            registry.tabbed(registry.microseconds(found["timestampNs"][rows])),
            registry.integers(kilobytes[rows]),
            npu(found["deviceId"][rows]),
        )

    delivery.table(
        "npu_module_mem", _HEADER_NPU_MODULE_MEM, len(order), map(block, blocks(len(order)))
    )


_HEADER_OPERATOR_MEMORY = (
    *("Device_id", "Name", "Size(KB)", "Allocation Time(us)", "Duration(us)"),
    *("Allocation Total Allocated(KB)", "Allocation Total Reserved(KB)"),
    *("Release Total Allocated(KB)", "Release Total Reserved(KB)", "Device"),
)
_RELEASE = "release"
_NEVER = -1


def write_operator_memory(recording: Recording, delivery: Delivery) -> None:
    """Write operator_memory in order of release; allocations that were never released come last."""
    found = allocations(recording)
    taken, released = _pairs(recording, found)
    delivery.table(
        "operator_memory",
        _HEADER_OPERATOR_MEMORY,
        len(taken),
        (_block(recording, found, taken[part], released[part]) for part in blocks(len(taken))),
    )


def _pairs(recording: Recording, found: Allocations) -> tuple[Ints, Ints]:
    """Return the row of each allocation, and the row of its release or -1.

    An allocation ends with the next release of the same operator, address and device. If another
    allocation with this key comes first, the earlier one is dropped, as by msprof.
    """
    is_release = np.isin(found.type, recording.ids([_RELEASE]))
    held: dict[tuple[int, int, int], int] = {}
    pairs: list[tuple[int, int]] = []
    keys = zip(found.operator.tolist(), found.address.tolist(), found.device.tolist(), strict=True)
    overwritten = 0
    for row, (key, releases) in enumerate(zip(keys, is_release.tolist(), strict=True)):
        if not releases:
            overwritten += key in held
            held[key] = row
        elif (taken := held.pop(key, None)) is not None:
            pairs.append((taken, row))
    if overwritten:
        recording.findings.add(
            "allocated_twice",
            f"{overwritten} allocations have no release before the next one of the same operator",
            overwritten,
        )
    pairs += [(taken, _NEVER) for taken in held.values()]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _block(recording: Recording, found: Allocations, taken: Ints, released: Ints) -> list[str]:
    was_released = released != _NEVER
    duration = np.where(was_released, found.time_ns[released] - found.time_ns[taken], 0)
    return lines(
        registry.integers(found.device[taken]),
        # Empty if only the hash of a name was recorded.
        ["" if name.isdecimal() else name for name in recording.cells(found.operator[taken])],
        registry.kilobytes(found.size_bytes[taken]),
        registry.tabbed(registry.microseconds(found.time_ns[taken])),
        [str(round(ns / 1000, 3)) for ns in duration.tolist()],
        registry.kilobytes(found.allocated_bytes[taken]),
        registry.kilobytes(found.reserved_bytes[taken]),
        registry.kilobytes(np.where(was_released, found.allocated_bytes[released], 0)),
        registry.kilobytes(np.where(was_released, found.reserved_bytes[released], 0)),
        npu(found.device[taken]),
    )
