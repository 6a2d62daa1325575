"""operator_memory: one row for each allocation of an operator, and its release."""

from __future__ import annotations

import numpy as np

from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, lines
from unified_prof.export.mindstudio.operator_allocations import (
    TABLE,
    Allocations,
    allocations,
    npu,
)
from unified_prof.export.mindstudio.recording import Ints, Recording, blocks
from unified_prof.export.mindstudio.registry import deliverable

_HEADER = (
    *("Device_id", "Name", "Size(KB)", "Allocation Time(us)", "Duration(us)"),
    *("Allocation Total Allocated(KB)", "Allocation Total Reserved(KB)"),
    *("Release Total Allocated(KB)", "Release Total Reserved(KB)", "Device"),
)
_RELEASE = "release"
_NEVER = -1


@deliverable("operator_memory", tables=(TABLE,))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table: in order of release, then what was never released, with zeros for it."""
    found = allocations(recording)
    taken, released = _pairs(recording, found)
    delivery.table(
        "operator_memory",
        _HEADER,
        len(taken),
        (_block(recording, found, taken[part], released[part]) for part in blocks(len(taken))),
    )


def _pairs(recording: Recording, found: Allocations) -> tuple[Ints, Ints]:
    """Return the rows of allocations, and of their releases or -1.

    An allocation ends with the next release of its operator, address and device. Another one of
    the same in between takes its place: the vendor knows nothing of the first then.
    """
    is_release = np.isin(found.type, recording.ids([_RELEASE]))
    held: dict[tuple[int, int, int], int] = {}
    pairs: list[tuple[int, int]] = []
    keys = zip(
        found.operator.tolist(),
        found.address.tolist(),
        found.device.tolist(),
        strict=True,
    )
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
            f"{overwritten} allocations were not released before the next of their kind",
            overwritten,
        )
    pairs += [(taken, _NEVER) for taken in held.values()]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _block(recording: Recording, found: Allocations, taken: Ints, released: Ints) -> list[str]:
    was_released = released != _NEVER
    duration = np.where(was_released, found.time_ns[released] - found.time_ns[taken], 0)
    return lines(
        numbers.integers(found.device[taken]),
        [_known(name) for name in recording.cells(found.operator[taken])],
        numbers.kilobytes(found.size_bytes[taken]),
        numbers.tabbed(numbers.microseconds(found.time_ns[taken])),
        [str(round(ns / 1000, 3)) for ns in duration.tolist()],
        numbers.kilobytes(found.allocated_bytes[taken]),
        numbers.kilobytes(found.reserved_bytes[taken]),
        numbers.kilobytes(np.where(was_released, found.allocated_bytes[released], 0)),
        numbers.kilobytes(np.where(was_released, found.reserved_bytes[released], 0)),
        npu(found.device[taken]),
    )


def _known(name: str) -> str:
    """Return a name, nothing for one that only its hash is known of."""
    return "" if name.isdecimal() else name
