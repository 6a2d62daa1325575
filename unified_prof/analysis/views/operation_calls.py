"""Calls of the framework's operations: their names, modules, lines, and what they allocated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis import held_calls
from unified_prof.analysis.calls import OPERATION, UNKNOWN, Labels
from unified_prof.analysis.held_calls import Columns, HeldCalls
from unified_prof.analysis.read.counters import Allocations
from unified_prof.analysis.read.framework import NONE, NOT_ATTRIBUTED, Framework, module_class
from unified_prof.arrays.packed import Packed, Values


def allocated(framework: Framework, labels: Labels, allocations: Allocations) -> Columns:
    """Return one row per allocation, under the operation that asked for it."""
    call = framework.calls_at(allocations.names, allocations.at_ns)
    owners = np.where(
        call != NONE, names_of(framework, labels, call), labels.numbers(allocations.names)
    )
    columns = {
        "when": allocations.at_ns,
        "name": owners,
        "kind": np.full(len(call), OPERATION, np.int8),
        "allocated_bytes": allocations.size_bytes,
    }
    return held_calls.packed(columns) | origin_of(framework, labels, call)


def host_calls(framework: Framework) -> HeldCalls:
    """Return one row per framework operation, timed on the host: there is no device work."""
    labels = Labels()
    chosen = framework.calls
    columns = {
        "when": framework.start_ns[chosen],
        "name": names_of(framework, labels, chosen),
        "kind": np.full(len(chosen), OPERATION, np.int8),
        "total_ns": framework.end_ns[chosen] - framework.start_ns[chosen],
    }
    return joined_calls(labels, [held_calls.packed(columns) | origin_of(framework, labels, chosen)])


def names_of(
    framework: Framework, labels: Labels, chosen: NDArray[np.integer]
) -> NDArray[np.int32]:
    """Return what operations are called, as numbers in `labels`."""
    names, number = framework.names(chosen)
    return labels.numbers(names)[number]


def origin_of(framework: Framework, labels: Labels, ranges: Values) -> Columns:
    """Return module, line and stack of host ranges; -1 is a range that is not known."""
    columns: Columns = {}
    modules, number = framework.modules(ranges)
    columns["module"] = _of_numbers("module", labels.numbers(modules), number)
    stacks, number = framework.stacks(ranges)
    innermost = [None if stack is None else stack.rpartition("\n")[2] for stack in stacks]
    columns["line"] = _of_numbers("line", labels.numbers(innermost), number)
    columns["stack"] = _of_numbers("stack", labels.numbers(stacks), number)
    return columns


def _of_numbers(column: str, labels: NDArray[np.int32], number: NDArray[np.int32]) -> Packed:
    packing = held_calls.making(column)
    for low in range(0, len(number), held_calls.WINDOW):
        packing.add(labels[number[low : low + held_calls.WINDOW]])
    return packing.done()


def joined_calls(labels: Labels, parts: list[Columns]) -> HeldCalls:
    """Join parts that have different columns, in the order of time."""
    columns = held_calls.joined(parts, by="when")
    columns["start_ns"] = columns.pop("when")
    if "module" in columns:
        # Where no module is known at all, there is nothing to tell what is not recorded from.
        in_none = {UNKNOWN, labels.number(NOT_ATTRIBUTED)}
        if in_none.issuperset(columns["module"].distinct().tolist()):
            del columns["module"]
    for name in ("total_ns", "forward_ns", "backward_ns", "line", "stack"):
        if name in columns and not columns[name].knows_any:
            del columns[name]
    classes = {}
    if "module" in columns:
        used = columns["module"].distinct().tolist()
        paths = {labels.texts[number] for number in used if number != UNKNOWN}
        classes = {path: module_class(path) for path in paths - {NOT_ATTRIBUTED}}
    return HeldCalls(labels, columns, classes)
