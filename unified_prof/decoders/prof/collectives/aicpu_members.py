"""Which tasks belong to the operators that AI CPU kernels ran, on which plane of their group."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof.collectives.aicpu_operators import Bounds, Ground, Operator
from unified_prof.decoders.prof.device.task_log import C_CORE, type_name
from unified_prof.decoders.prof.host.launches import MISSING


@dataclass(slots=True)
class Members:
    """Tasks of operators; columns of one length, in the order of their ends for each group."""

    operator: NDArray[np.int64]
    row: NDArray[np.int64]
    """In `TaskRows`."""
    record: NDArray[np.int64]
    """In `AicpuRecords.tasks`, MISSING where no task at all is described."""
    master: NDArray[np.bool_]
    plane: NDArray[np.int64]


def members_of(
    ground: Ground, operators: list[Operator], record_row: NDArray[np.int64], bounds: Bounds
) -> Members:
    """Place the tasks of each group in its operators."""
    rows = ground.rows
    record = np.flatnonzero(record_row != MISSING)
    row = record_row[record]
    of_tasks = ground.streams.of_tasks
    if not len(record_row):  # the lowest trace level: every task of the streams is one
        row = np.flatnonzero(np.isin(rows.stream_id, list(of_tasks)))
        record = np.full(len(row), MISSING, np.int64)
    order = np.argsort(rows.end[row], kind="stable")
    record, row = record[order], row[order]
    streams_of_group: dict[int, list[int]] = defaultdict(list)
    for stream, groups in of_tasks.items():
        for group in groups:
            streams_of_group[group].append(stream)
    parts = []
    for group, streams in streams_of_group.items():
        chosen = np.flatnonzero(np.isin(rows.stream_id[row], streams))
        mine = [index for index, item in enumerate(operators) if item.group == group]
        operator, place = placed([operators[index] for index in mine], rows.end[row[chosen]])
        parts.append(
            _Group(ground, operators, bounds).members(
                np.array(mine, np.int64)[operator], row[chosen[place]], record[chosen[place]]
            )
        )
    none = np.zeros(0, np.int64)
    return Members(
        *(
            np.concatenate([none.astype(kind), *(getattr(part, name) for part in parts)])
            for name, kind in (
                ("operator", np.int64),
                ("row", np.int64),
                ("record", np.int64),
                ("master", np.bool_),
                ("plane", np.int64),
            )
        )
    )


def placed(
    operators: list[Operator], ends: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the operator of each task that has one, and the task.

    Args:
        operators: of one group, by start.
        ends: when the tasks of the group ended, ascending.
    """
    times = ends.tolist()
    of_task: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    place: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    following = 0
    for index, operator in enumerate(operators):
        begin = max(following, bisect_left(times, operator.start))
        following = max(begin, bisect_right(times, operator.end))
        of_task.append(np.full(following - begin, index, np.int64))
        place.append(np.arange(begin, following))
    return np.concatenate(of_task), np.concatenate(place)


@dataclass(slots=True)
class _Group:
    """Tells which tasks of one group are on its master stream, and numbers its streams."""

    ground: Ground
    operators: list[Operator]
    bounds: Bounds
    of_host: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.of_host = np.array([item.of_host for item in self.operators], bool)

    def members(
        self, operator: NDArray[np.int64], row: NDArray[np.int64], record: NDArray[np.int64]
    ) -> Members:
        """Return the tasks of the group, given in the order of their ends."""
        of_host = self.of_host[operator] if len(operator) else np.zeros(0, bool)
        first = np.isin(row, self.bounds.first_rows)
        master = self._masters(row, first, of_host)
        plane = self._planes(row, master | first, of_host)
        plane[record == MISSING] = -1
        return Members(operator, row, record, master, plane)

    def _masters(
        self, row: NDArray[np.int64], first: NDArray[np.bool_], of_host: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Tell which tasks are on the master stream.

        That is the stream of the last task before them that shows it: one of the control core, or
        the first of an operator. These two may have waited since before the operator, so they do
        not count as its own where the host has the operator.
        """
        rows = self.ground.rows
        shows = first | (rows.type_code[row] == self._control_core())
        place = np.maximum.accumulate(np.where(shows, np.arange(len(row)), -1))
        stream = rows.stream_id[row]
        on_master = (place >= 0) & (stream == stream[place])
        return np.where(shows, ~of_host, on_master)

    def _planes(
        self, row: NDArray[np.int64], main: NDArray[np.bool_], of_host: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Number the streams in the order in which the group used them, from 1.

        The master stream has 0. The host's collectives have that for what the host launched, so
        that there all numbers are one higher.
        """
        result = of_host.astype(np.int64)
        streams = self.ground.rows.stream_id[row[~main]]
        distinct, first, inverse = np.unique(streams, return_index=True, return_inverse=True)
        number = np.empty(len(distinct), np.int64)
        number[np.argsort(first)] = np.arange(1, len(distinct) + 1)
        result[~main] += number[inverse]
        return result

    def _control_core(self) -> int:
        """Return the code of the control core's tasks; none where the chip names no such task."""
        return C_CORE if type_name(C_CORE, self.ground.device.platform) == "C_CORE_SQE" else -1
