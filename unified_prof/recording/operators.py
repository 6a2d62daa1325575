"""Tensor shapes and types of framework operations, device operators and collectives.

Shapes and types are string ids. The module also reads device properties.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints, distinct, find
from unified_prof.recording import collectives
from unified_prof.recording.framework import Framework
from unified_prof.recording.source import Source, Strings

_PLACE = ("start", "thread", "name")
# Rows per batch.
_AT_A_TIME = 1 << 17
_MANY = 8


def input_ids(source: Source, framework: Framework, ranges: Ints) -> dict[str, Ints]:
    """Return the string ids of `shapes`, `types`, `strides` and `values` of host ranges.

    MISSING means not recorded. torch_npu records neither strides nor values.
    """
    wanted = (framework.start_ns[ranges], framework.thread[ranges], framework.name_ids(ranges))
    result = _matched(
        source,
        "PYTORCH_API",
        {"start": "CAST(startNs AS INTEGER)", "thread": "globalTid", "name": "name"},
        {"shapes": "inputShapes", "types": "inputDtypes"},
        wanted,
    )
    result |= _matched(
        source,
        "UPROF_OPERATION_INPUTS",
        {"start": "startNs", "thread": "globalTid", "name": "name"},
        {"strides": "inputStrides", "values": "concreteInputs"},
        wanted,
    )
    return result


def _matched(
    source: Source,
    table: str,
    place: dict[str, str],
    columns: dict[str, str],
    wanted: tuple[Ints, Ints, Ints],
) -> dict[str, Ints]:
    """Return columns of a table for calls given by start, thread and name."""
    result = {name: np.full(len(wanted[0]), MISSING, np.int64) for name in columns}
    if table not in source.tables or not len(wanted[0]):
        return result
    # The rows are (nearly) in order of time: each call is searched for near its time.
    order = np.argsort(wanted[0], kind="stable")
    in_time = wanted[0][order]
    open_ones = np.ones(len(order), bool)
    limit = [_AT_A_TIME]
    for found in _batches(source.batches(table, {**place, **columns}), limit):
        moments = found["start"][found["start"] != MISSING]
        if not len(moments):
            continue
        first = np.searchsorted(in_time, moments.min(), side="left")
        behind = np.searchsorted(in_time, moments.max(), side="right")
        some = order[first:behind]
        some = some[open_ones[some]]
        if len(some) > _MANY * len(moments):
            # Unordered rows are searched in larger batches.
            limit[0] *= 2
        row = _rows(found, tuple(one[some] for one in wanted))
        there = row >= 0
        at, row = some[there], row[there]
        open_ones[at] = False
        for name in columns:
            result[name][at] = found[name][row]
    return result


def _batches(pieces: Iterator[dict[str, Ints]], limit: list[int]) -> Iterator[dict[str, Ints]]:
    """Yield batches of at least `limit` rows; the caller may raise the limit while iterating."""
    waiting: list[dict[str, Ints]] = []
    rows = 0
    for batch in pieces:
        waiting.append(batch)
        rows += len(batch["start"])
        if rows >= limit[0]:
            yield {name: np.concatenate([one[name] for one in waiting]) for name in batch}
            waiting, rows = [], 0
    if waiting:
        yield {name: np.concatenate([one[name] for one in waiting]) for name in waiting[0]}


def _rows(found: dict[str, Ints], wanted: tuple[Ints, ...]) -> Ints:
    """Return the first row of each wanted call, or -1."""
    # Few calls begin at the same time: compare the time first, then thread and name.
    keys = [np.concatenate((found[name], one)) for name, one in zip(_PLACE, wanted, strict=True)]
    number = numbered(*keys)
    rows = len(found["start"])
    order = np.argsort(number[:rows], kind="stable")
    row = find(number[:rows][order], number[rows:])
    return np.where(row >= 0, order[row], -1)


def numbered(*columns: NDArray[np.integer]) -> Ints:
    """Return one number per row; rows with equal values in all columns have equal numbers."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, own = distinct(column.astype(np.int64, copy=False))
        # Both are below the number of rows, whose square is below 2**63.
        number = distinct(number * len(values) + own)[1]
    return number


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
    """Return the globalTaskId and the size in bytes of each copy and memset."""
    result = source.integers("MEMCPY_INFO", {"task": "globalTaskId", "size": "size"})
    if "UPROF_GPU_TASKS" not in source.tables:
        return result["task"], result["size"]
    gpu = source.integers("UPROF_GPU_TASKS", {"task": "globalTaskId", "size": "sizeBytes"})
    known = gpu["size"] >= 0
    return (
        np.concatenate((result["task"], gpu["task"][known])),
        np.concatenate((result["size"], gpu["size"][known])),
    )


class Payload(Struct, frozen=True):
    """Recorded message sizes of a collective."""

    elements: int | None  # Number of elements in one rank's input; None: not recorded.
    results: int | None  # Number of elements in one rank's result; None: not recorded.
    dtype: str
    ranks: int | None  # Number of ranks.


def payloads(source: Source, strings: Strings) -> dict[int, Payload]:
    """Return the message sizes of each collective, by the operator's opId."""
    sizes = {name: len(group.ranks) for name, group in collectives.load_groups(source).items()}
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
    """Return the highest recorded frequency of the AI cores of each device, MHz."""
    if "AICORE_FREQ" not in source.tables:
        return {}
    rows = source.rows(
        "SELECT deviceId, max(freq) FROM AICORE_FREQ WHERE freq > 0 GROUP BY deviceId"
    )
    return {int(device): float(mhz) for device, mhz in rows if device is not None}


def grids_of_cores(source: Source) -> tuple[set[int], set[int]]:
    """Return the numbers of blocks of operators on cube cores, and of those on vector cores."""
    found = source.integers("COMPUTE_TASK_INFO", {"core": "taskType", "blocks": "blockNum"})
    texts = source.rows("SELECT id, value FROM STRING_IDS WHERE value LIKE 'AI%_CORE'")
    cores = {str(text): number for number, text in texts}
    cube, vector = (
        set(np.unique(found["blocks"][found["core"] == cores.get(name, -1)]).tolist())
        for name in ("AI_CORE", "AI_VECTOR_CORE")
    )
    return cube, vector


def gpu_properties(source: Source) -> dict[int, dict[str, str]]:
    """Return the properties of each GPU as reported by the driver, by name."""
    if "UPROF_GPU_DEVICES" not in source.tables:
        return {}
    result: dict[int, dict[str, str]] = {}
    for device, name, value in source.rows("SELECT deviceId, name, value FROM UPROF_GPU_DEVICES"):
        if value is not None:
            result.setdefault(int(device), {})[str(name)] = str(value)
    return result


def shapes_recorded(source: Source) -> bool:
    """Return True if shapes of operations or operators were recorded, judging by the first rows."""
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
