"""What was recorded of the tensors of device operators (COMPUTE_TASK_INFO), as numbers of texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read import groups
from unified_prof.analysis.read.source import Source
from unified_prof.analysis.read.strings import Strings
from unified_prof.store.integers import MISSING

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


@dataclass(frozen=True, slots=True)
class Payload:
    """What was recorded of the data of a collective."""

    elements: int | None
    """Of the input of a rank, as the recording counts; None: not recorded."""
    results: int | None
    """Of the result of a rank."""
    dtype: str
    ranks: int | None
    """How many take part."""


def payloads(source: Source, strings: Strings) -> dict[int, Payload]:
    """Return what was recorded of the data of each collective, by its operator's number."""
    sizes = {name: len(group.ranks) for name, group in groups.load(source).items()}
    columns = {"id": "opId", "count": "count", "dtype": "dataType", "group": "groupName"}
    found = source.integers("COMMUNICATION_OP", columns)
    types = {
        int(number): str(name)
        for number, name in source.rows("SELECT id, name FROM ENUM_HCCL_DATA_TYPE")
    }
    result = {}
    rows = zip(*(found[name].tolist() for name in columns), strict=True)
    for number, count, dtype, group in rows:
        ranks = sizes.get(strings.get(group) or "") or None
        known = None if count == MISSING or count < 0 else int(count)
        result[number] = Payload(known, None, types.get(dtype, ""), ranks)
    if "UPROF_COLLECTIVES" not in source.tables:
        return result
    columns = {"id": "opId", "ranks": "groupSize", "dtype": "dataType"}
    columns |= {"elements": "inElements", "results": "outElements"}
    found = source.integers("UPROF_COLLECTIVES", columns)
    more = zip(*(found[name].tolist() for name in columns), strict=True)
    for number, ranks, dtype, elements, results in more:
        before = result.get(number, Payload(None, None, "", None))
        result[number] = Payload(
            before.elements if elements == MISSING else elements,
            None if results == MISSING else results,
            strings.get(dtype) or before.dtype,
            before.ranks if ranks == MISSING else ranks,
        )
    return result


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
