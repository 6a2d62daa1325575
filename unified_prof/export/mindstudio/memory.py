"""Memory tables of the text export.

* memory_record: memory that operators hold after each allocation and release
* npu_module_mem: memory that software components reserve on a device
* operator_memory: one row per allocation of an operator, with its release
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.arrays.grouping import MISSING, Frame, Ints
from unified_prof.export.mindstudio import registry
from unified_prof.export.mindstudio.registry import Cells, Delivery, Recording

TABLE = "NPU_OP_MEM"


@dataclass(frozen=True)
class Allocations(Frame):
    """Rows of NPU_OP_MEM as columns, in order of time."""

    time_ns: Ints
    operator: Ints
    address: Ints
    type: Ints
    size_bytes: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    component: Ints
    device: Ints


def allocations(recording: Recording) -> Allocations:
    """Return the allocations of a recording; rows with invalid times are dropped and counted."""
    found = recording.timed(
        TABLE,
        (
            *("timestampNs", "operatorName", "addr", "type", "size"),
            *("totalAllocate", "totalReserve", "component", "deviceId"),
        ),
    )
    return Allocations(*found.values()).take(found["timestampNs"].argsort(kind="stable"))


def npu(devices: Ints) -> list[str]:
    """Return the names of devices, for example `NPU:0`."""
    return [f"NPU:{device}" for device in devices.tolist()]


def write_memory_record(recording: Recording, delivery: Delivery) -> None:
    """Write memory_record, in order of time."""
    found = allocations(recording)

    def block(part: slice) -> Cells:
        rows = found.take(part)
        return [
            ("Device_id", registry.integers(rows.device)),
            ("Component", recording.cells(rows.component)),
            ("Timestamp(us)", registry.tabbed_us(rows.time_ns)),
            ("Total Allocated(KB)", registry.kilobytes(rows.allocated_bytes)),
            ("Total Reserved(KB)", registry.kilobytes(rows.reserved_bytes)),
            ("Device", npu(rows.device)),
        ]

    delivery.columns("memory_record", len(found), block)


_TABLE = "NPU_MODULE_MEM"


def write_npu_module_mem(recording: Recording, delivery: Delivery) -> None:
    """Write npu_module_mem by component and time; sizes are truncated to whole KB."""
    found = recording.timed(_TABLE, ["timestampNs", "moduleId", "totalReserved", "deviceId"])
    order = np.lexsort((found["timestampNs"], found["moduleId"]))
    names = recording.enum("ENUM_MODULE")
    size = found["totalReserved"]
    # Round toward zero, but keep -1: the profiler has seen releases only.
    kilobytes = np.where(size == MISSING, MISSING, np.sign(size) * (np.abs(size) // 1024))
    kilobytes[size == -1] = -1

    def block(part: slice) -> Cells:
        rows = order[part]
        modules = found["moduleId"][rows].tolist()
        return [
            ("Device_id", registry.integers(found["deviceId"][rows])),
            ("Component", [recording.cell(names.get(one, "Unknown")) for one in modules]),
            ("Timestamp(us)", registry.tabbed_us(found["timestampNs"][rows])),
            ("Total Reserved(KB)", registry.integers(kilobytes[rows])),
            ("Device", npu(found["deviceId"][rows])),
        ]

    delivery.columns("npu_module_mem", len(order), block)


_NEVER = -1  # Row of the release of an allocation without one.


def write_operator_memory(recording: Recording, delivery: Delivery) -> None:
    """Write operator_memory in order of release; allocations that were never released come last."""
    found = allocations(recording)
    pairs = _pairs(recording, found)

    def block(part: slice) -> Cells:
        taken, rows = (found.take(side[part]) for side in pairs)
        was_released = pairs[1][part] != _NEVER
        duration = np.where(was_released, rows.time_ns - taken.time_ns, 0)
        allocated = np.where(was_released, rows.allocated_bytes, 0)
        reserved = np.where(was_released, rows.reserved_bytes, 0)
        names = recording.cells(taken.operator)
        return [
            ("Device_id", registry.integers(taken.device)),
            # Empty if only the hash of a name was recorded.
            ("Name", ["" if name.isdecimal() else name for name in names]),
            ("Size(KB)", registry.kilobytes(taken.size_bytes)),
            ("Allocation Time(us)", registry.tabbed_us(taken.time_ns)),
            ("Duration(us)", [str(round(ns / 1000, 3)) for ns in duration.tolist()]),
            ("Allocation Total Allocated(KB)", registry.kilobytes(taken.allocated_bytes)),
            ("Allocation Total Reserved(KB)", registry.kilobytes(taken.reserved_bytes)),
            ("Release Total Allocated(KB)", registry.kilobytes(allocated)),
            ("Release Total Reserved(KB)", registry.kilobytes(reserved)),
            ("Device", npu(taken.device)),
        ]

    delivery.columns("operator_memory", len(pairs[0]), block)


def _pairs(recording: Recording, found: Allocations) -> tuple[Ints, Ints]:
    """Return the row of each allocation, and the row of its release or -1.

    An allocation ends with the next release of the same operator, address and device. If another
    allocation with this key comes first, the earlier one is dropped, as by msprof.
    """
    is_release = np.isin(found.type, recording.ids(["release"]))
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
