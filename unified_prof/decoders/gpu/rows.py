"""The rows that travel from collecting events to joining them: one dtype per kind.

Times are ns as in the trace, before its base time is added. `MISSING` (-1) stands for an id that
an event does not have; names and other texts are ids of the string pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.gpu.numbers import MISSING


def missing(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return rows of which nothing is known: ids are MISSING, measurements NaN."""
    row = np.zeros(1, dtype)
    for name in dtype.names or ():
        row[name] = np.nan if dtype[name].kind == "f" else MISSING
    # As bytes: NumPy fills structured rows field by field.
    as_bytes = f"V{dtype.itemsize}"
    rows = np.empty(count, as_bytes)
    rows[:] = row.view(as_bytes)
    return rows.view(dtype)


HOST = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("thread", "i4"),
        ("is_operation", "i1"),  # 0: a user annotation
        ("finished", "i1"),  # 0: it was under way when the recording ended
        ("name", "i4"),
        ("external", "i8"),
        ("sequence", "i8"),
        ("forward_thread", "i8"),
        ("signature", "i4"),  # of Signatures
        ("inputs", "i4"),  # concrete inputs, a string id
        ("module", "i4"),  # module hierarchy, a string id
        ("collective", "i4"),  # of Collectives
        ("stack", "i4"),  # of CallChains, where the event carries its own call stack
    ]
)
"""Framework operations and user annotations."""

FRAME = np.dtype([("start", "i8"), ("end", "i8"), ("thread", "i4"), ("frame", "i4")])
"""Python functions; `frame` is an id of CallChains."""

CALL = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("thread", "i4"),
        ("name", "i4"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("size", "i8"),  # bytes, where HIP says it
        ("geometry", "i4"),  # of Geometries, where HIP says it
        ("shared_memory", "i8"),
        # Found by nesting: the operation that made the call.
        ("operation", "i8"),  # number of the PYTORCH_API row
        ("operation_name", "i4"),
        ("signature", "i4"),
        ("collective", "i4"),
    ]
)
"""CUDA and HIP runtime and driver calls."""

KERNEL, COPY, SET, COMMUNICATION, GRAPH = range(5)
"""Values of GPU_TASK `kind`; a graph of which only the whole was recorded is one task."""

GPU_TASK = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "i1"),
        ("name", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("context", "i8"),
        ("correlation", "i8"),
        ("external", "i8"),
        ("geometry", "i4"),
        ("queued", "i8"),
        ("registers", "i8"),
        ("shared_memory", "i8"),
        ("blocks_per_sm", "f8"),
        ("warps_per_sm", "f8"),
        ("occupancy", "f8"),
        ("size", "i8"),
        ("bandwidth", "f8"),
        ("graph", "i8"),
        ("graph_node", "i8"),
        ("process", "i4"),  # id, where the device's record says it
        ("counted", "i8"),  # of Counters, MISSING: no counter is of it
        # Found by correlation, and through the call by nesting.
        ("connection", "i8"),
        ("thread", "i4"),  # that launched it
        ("operation_name", "i4"),
        ("signature", "i4"),
        ("collective", "i4"),
    ]
)
"""Kernels, copies and memory sets on a device."""

ALLOCATION = np.dtype(
    [
        ("start", "i8"),
        ("thread", "i4"),
        ("device", "i4"),
        ("address", "i8"),
        ("owner", "i4"),  # a process whose addresses are its own, MISSING: the only one
        ("size", "i8"),  # bytes; negative: freed
        ("total_allocated", "i8"),
        ("total_reserved", "i8"),
    ]
)
"""Allocator events."""

GPU_ANNOTATION = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("name", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("external", "i8"),
    ]
)
"""User annotations as the device saw them."""

SYNC = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "i4"),
        ("device", "i4"),
        ("stream", "i8"),
        ("context", "i8"),
        ("correlation", "i8"),
        ("wait_stream", "i8"),
        ("wait_event", "i8"),
        ("wait_record", "i8"),
    ]
)
"""Synchronisations as the device saw them."""

COLLECTION = np.dtype([("start", "i8"), ("end", "i8"), ("thread", "i4")])
"""Runs of Python's garbage collector."""

OTHER = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),  # NO_END: an instant
        ("category", "i4"),
        ("name", "i4"),
        ("place", "i4"),
        ("args_at", "i8"),  # where its arguments lie in the text file
        ("args_size", "i4"),
    ]
)
"""Whatever has no table of its own."""

NO_END = np.iinfo(np.int64).min
