"""What was recorded of the tensors of device operators (COMPUTE_TASK_INFO), as numbers of texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.source import Source

Ints = NDArray[np.int64]

TENSORS = {
    "inputs": "inputShapes",
    "input_types": "inputDataTypes",
    "input_formats": "inputFormats",
    "outputs": "outputShapes",
    "output_types": "outputDataTypes",
    "output_formats": "outputFormats",
}


def tensors(source: Source) -> dict[str, Ints]:
    """Return the string ids of shapes, types and formats of each row of COMPUTE_TASK_INFO."""
    return source.integers("COMPUTE_TASK_INFO", TENSORS, narrow=tuple(TENSORS))


def sizes_of_copies(source: Source) -> tuple[Ints, Ints]:
    """Return the globalTaskId and the bytes of each memory copy and set."""
    found = source.integers("MEMCPY_INFO", {"task": "globalTaskId", "size": "size"})
    if "UPROF_GPU_TASKS" not in source.tables:
        return found["task"], found["size"]
    gpu = source.integers("UPROF_GPU_TASKS", {"task": "globalTaskId", "size": "sizeBytes"})
    known = gpu["size"] >= 0
    return (
        np.concatenate((found["task"], gpu["task"][known])),
        np.concatenate((found["size"], gpu["size"][known])),
    )


def highest_clock_mhz(source: Source) -> dict[int, float]:
    """Return the highest frequency of the AI cores of each device that was recorded."""
    if "AICORE_FREQ" not in source.tables:
        return {}
    rows = source.rows(
        "SELECT deviceId, max(freq) FROM AICORE_FREQ WHERE freq > 0 GROUP BY deviceId"
    )
    return {int(device): float(mhz) for device, mhz in rows if device is not None}


def gpu_properties(source: Source) -> dict[int, dict[str, str]]:
    """Return what the driver says of each GPU, by name."""
    if "UPROF_GPU_DEVICES" not in source.tables:
        return {}
    found: dict[int, dict[str, str]] = {}
    for device, name, value in source.rows("SELECT deviceId, name, value FROM UPROF_GPU_DEVICES"):
        if value is not None:
            found.setdefault(int(device), {})[str(name)] = str(value)
    return found


def shapes_recorded(source: Source) -> bool:
    """Tell whether shapes of operations or operators were recorded, by the first rows."""
    for table in ("COMPUTE_TASK_INFO", "PYTORCH_API"):
        if table in source.tables:
            rows = source.rows(
                "SELECT DISTINCT s.value FROM"
                f" (SELECT inputShapes FROM {table} LIMIT 1000) t"
                " JOIN STRING_IDS s ON s.id = t.inputShapes"
            )
            if any(any(sign.isdigit() for sign in str(text)) for (text,) in rows):
                return True
    return False
