"""How fast the tasks of collective operators moved their data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.runs import Runs, positions

FINE_PARTS = 1024
"""Bandwidths come from times with this resolution below a nanosecond, as the exporter's do."""

_CLOSING_TASKS = 4
_CLOSING_TASKS_ONE_WAY = 2
_ONE_WAY = ("send", "receive")

_PASSED_OVER = -1e9
"""The exporter's bandwidth, -1 GB/s, of payloads that it never came to."""


def closing_tasks(operator_names: list[str]) -> NDArray[np.int64]:
    """Return how many tasks close an RDMA transfer of each operator.

    A notify and its acknowledgement; twice, but for operators that go one way.
    """
    return np.array(
        [
            _CLOSING_TASKS_ONE_WAY if any(word in name for word in _ONE_WAY) else _CLOSING_TASKS
            for name in operator_names
        ],
        np.int64,
    )


def bandwidth(
    operator: NDArray[np.int64],
    plane: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    payload: NDArray[np.bool_],
    closing: NDArray[np.int64],
    *,
    one_by_one: bool = False,
) -> NDArray[np.float64]:
    """Return bytes per second of every task; the payloads of one RDMA transfer share theirs.

    A transfer is a run of payloads, in time order on one plane of one operator, and the tasks
    that close it. Where it is not closed, each payload is a transfer of its own.

    Args:
        operator: number of each task's operator.
        plane: its plane.
        start: when it started, in 1 / FINE_PARTS ns.
        end: when it ended.
        size: bytes, -1 when unknown.
        payload: whether it is an RDMA payload.
        closing: of `closing_tasks`, for its operator.
        one_by_one: whether the exporter goes from transfer to transfer, so that payloads among
            the tasks that close one have no bandwidth (`_PASSED_OVER`). Else each run of payloads
            is closed by what follows it, whatever else that closes.
    """
    duration_ns = (end - start) / FINE_PARTS
    moved = size / np.where(duration_ns > 0, duration_ns, np.inf) * 1e9
    order = np.lexsort((start, plane, operator))
    lanes = Runs(operator[order], plane[order])
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    first, last = runs.starts, runs.last
    chosen = payload[order][first]
    first, last = first[chosen], last[chosen]
    if one_by_one:
        first, last, passed_over = _one_by_one(first, last, closing[order], lane_end)
        moved[order[passed_over]] = _PASSED_OVER
    end_of_transfer = last + closing[order][first]
    whole = end_of_transfer <= lane_end[first]
    first, last, end_of_transfer = first[whole], last[whole], end_of_transfer[whole]
    sent = np.cumsum(size[order])
    sent_in_run = sent[last] - sent[first] + size[order][first]
    time_ns = (end[order[end_of_transfer]] - start[order[first]]) / FINE_PARTS
    shared = sent_in_run / np.where(time_ns > 0, time_ns, np.inf) * 1e9
    length = last - first + 1
    members = order[np.repeat(first, length) + positions(length)]
    moved[members] = np.repeat(shared, length)
    return np.asarray(moved, np.float64)


def bandwidth_in_order(
    lane: tuple[NDArray[Any], ...],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    size: NDArray[np.int64],
    payload: NDArray[np.bool_],
    closing: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return bytes per second of tasks that transfers take in the order of the rows.

    Transfers are as in `bandwidth`, one by one, but payloads among the tasks that close one have
    0. Rows need not be in the order of time, and where they are not a bandwidth is negative: that
    of the exporter, which does not sort what AI CPUs record.

    Args:
        lane: columns whose equal rows share a lane.
        start: when each task started, in 1 / FINE_PARTS ns.
        end: when it ended.
        size: bytes, -1 when unknown.
        payload: whether it is an RDMA payload.
        closing: how many tasks close a transfer, of the lane of each row.
    """
    duration_ns = (end - start) / FINE_PARTS
    moved = size / np.where(duration_ns != 0, duration_ns, np.inf) * 1e9
    order = np.lexsort(lane)
    lanes = Runs(*(column[order] for column in lane))
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    chosen = payload[order][runs.starts]
    first, last, passed_over = _one_by_one(
        runs.starts[chosen], runs.last[chosen], closing[order], lane_end
    )
    moved[order[passed_over]] = 0.0
    closed = last + closing[order][first]
    whole = closed <= lane_end[first]
    for begin, until, closer in zip(
        first[whole].tolist(), last[whole].tolist(), closed[whole].tolist(), strict=True
    ):
        members = order[begin : until + 1]
        time_ns = (int(end[order[closer]]) - int(start[members[0]])) / FINE_PARTS
        moved[members] = int(size[members].sum()) / time_ns * 1e9 if time_ns else 0.0
    return np.asarray(moved, np.float64)


def _one_by_one(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    closing: NDArray[np.int64],
    lane_end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Take runs of payloads in their order, each beyond the tasks that close the one before.

    Returns:
        First and last task of what is left of the runs, and the payloads passed over.
    """
    runs: list[tuple[int, int]] = []
    passed_over: list[int] = []
    covered = -1
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        passed_over += range(begin, min(covered, end) + 1)
        begin = max(begin, covered + 1)
        if begin > end:
            continue
        runs.append((begin, end))
        closed = end + int(closing[begin])
        if closed <= lane_end[begin]:
            covered = closed
    left = np.array(runs, np.int64).reshape(-1, 2)
    return left[:, 0], left[:, 1], np.array(passed_over, np.int64)
