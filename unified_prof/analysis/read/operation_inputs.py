"""What was recorded of the inputs of framework operations, as numbers of texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.framework import Framework
from unified_prof.analysis.read.source import Source
from unified_prof.arrays.lookup import find
from unified_prof.store.integers import MISSING

Ints = NDArray[np.int64]

_PLACE = ("start", "thread", "name")
_AT_A_TIME = 1 << 17
"""Rows that are looked at together."""
_MANY = 8


def of_ranges(source: Source, framework: Framework, ranges: Ints) -> dict[str, Ints]:
    """Return the string ids of `shapes`, `types`, `strides` and `values` of host ranges.

    MISSING is what was not recorded. torch_npu records no strides and no values.
    """
    wanted = (
        framework.start_ns[ranges],
        framework.thread[ranges],
        framework.name_ids(ranges),
    )
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
    """Return columns of a table for places: start, thread and name of a call."""
    result = {name: np.full(len(wanted[0]), MISSING, np.int64) for name in columns}
    if table not in source.tables or not len(wanted[0]):
        return result
    # The table's rows come in order of time, or nearly so: each is looked for where it can be.
    order = np.argsort(wanted[0], kind="stable")
    in_time = wanted[0][order]
    open_ones = np.ones(len(order), bool)
    limit = [_AT_A_TIME]
    for found in _batches(source.pieces(table, {**place, **columns}), limit):
        moments = found["start"][found["start"] != MISSING]
        if not len(moments):
            continue
        first = np.searchsorted(in_time, moments.min(), side="left")
        behind = np.searchsorted(in_time, moments.max(), side="right")
        some = order[first:behind]
        some = some[open_ones[some]]
        if len(some) > _MANY * len(moments):
            # Rows that are in no order are better looked at together.
            limit[0] *= 2
        row = _rows(found, tuple(one[some] for one in wanted))
        there = row >= 0
        at, row = some[there], row[there]
        open_ones[at] = False
        for name in columns:
            result[name][at] = found[name][row]
    return result


def _batches(pieces: Iterator[dict[str, Ints]], limit: list[int]) -> Iterator[dict[str, Ints]]:
    """Yield pieces joined to as many rows as the limit says, which may be raised meanwhile."""
    waiting: list[dict[str, Ints]] = []
    rows = 0
    for piece in pieces:
        waiting.append(piece)
        rows += len(piece["start"])
        if rows >= limit[0]:
            yield {name: np.concatenate([one[name] for one in waiting]) for name in piece}
            waiting, rows = [], 0
    if waiting:
        yield {name: np.concatenate([one[name] for one in waiting]) for name in waiting[0]}


def _rows(found: dict[str, Ints], wanted: tuple[Ints, ...]) -> Ints:
    """Return the first row with each place, -1 where there is none."""
    # Few begin at the same moment: the number of a moment, then thread and name within it.
    keys = [np.concatenate((found[name], one)) for name, one in zip(_PLACE, wanted, strict=True)]
    number = numbered(*keys)
    rows = len(found["start"])
    order = np.argsort(number[:rows], kind="stable")
    row = find(number[:rows][order], number[rows:])
    return np.where(row >= 0, order[row], -1)


def numbered(*columns: NDArray[np.integer]) -> Ints:
    """Return one number for each combination of values of columns, equal for equal ones."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if len(column) and (column == column[0]).all():
            continue
        own, many = _dense(column)
        # Both are below the number of rows, whose square stays below 2**63.
        number, _ = _dense(number * many + own)
    return number


def _dense(values: NDArray[np.integer]) -> tuple[Ints, int]:
    """Return the values by their rank among the distinct ones, and how many these are."""
    if not len(values):
        return np.zeros(0, np.int64), 0
    known = values[values != MISSING]
    least, most = int(known.min(initial=0)), int(known.max(initial=0))
    if most - least < max(1 << 16, 4 * len(values)):
        # Small numbers, as ids of strings are, need no sorting; 0 is what is not known.
        least, shifted = least - 1, np.where(values != MISSING, values - (least - 1), 0)
        used = np.zeros(most - least + 1, bool)
        used[shifted] = True
        ranks = np.cumsum(used, dtype=np.int64) - 1
        return ranks[shifted], int(ranks[-1]) + 1
    distinct, number = np.unique(values, return_inverse=True)
    return number.astype(np.int64), len(distinct)
