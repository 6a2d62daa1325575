"""Tasks after gaps and after stream waits are found for any window size."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.recording.task_order import GapEnds, OrderedTasks, tasks_after_waits

TASKS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(-1, 20)), min_size=1, max_size=30
)
"""Stream, start after the previous start, launch time."""


def _ordered(tasks: list[tuple[int, int, int]]) -> OrderedTasks:
    stream, offset, launched = np.array(tasks, np.int64).T
    task = np.arange(len(tasks), dtype=np.int32)
    kind = np.zeros(len(tasks), np.int8)
    # The connection column holds the launch time, so that the lookup is the identity.
    return OrderedTasks(task, np.cumsum(offset), kind, stream, launched)


def _windows(ordered: OrderedTasks, size: int) -> Iterator[OrderedTasks]:
    for low in range(0, len(ordered.task), size):
        yield ordered.take(slice(low, low + size))


@given(TASKS, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 22))), st.integers(1, 7))
def test_first_task_launched_after_a_stream_wait_is_found(
    tasks: list[tuple[int, int, int]], waits: list[tuple[int, int]], size: int
) -> None:
    ordered = _ordered(tasks)
    stream, at_ns = (np.array([wait[column] for wait in waits], np.int64) for column in (0, 1))
    found = tasks_after_waits(_windows(ordered, size), lambda launched: launched, stream, at_ns)
    expected = set()
    for wait_stream, wait_ns in waits:
        after = [
            (launched, task)
            for task, (task_stream, _, launched) in enumerate(tasks)
            if task_stream == wait_stream and launched >= max(wait_ns, 0)
        ]
        expected |= {min(after)[1]} if after else set()
    assert found.tolist() == sorted(expected)


@given(TASKS, st.lists(st.integers(0, 80), min_size=1), st.integers(1, 7), st.integers(1, 5))
def test_first_task_after_a_gap_is_found(
    tasks: list[tuple[int, int, int]], ends: list[int], size: int, batch: int
) -> None:
    ordered = _ordered(tasks)
    nothing = np.zeros(0, np.int32)
    following = GapEnds(_windows(ordered, size), lambda launched: launched, EMPTY, nothing)
    ends = sorted(ends)
    for low in range(0, len(ends), batch):
        end = np.array(ends[low : low + batch], np.int64)
        pieces, task = following.at(IntervalSet(end - 1, end))
        assert pieces.start_ns.tolist() == ordered.start_ns[task].tolist()
        assert pieces.launched_ns.tolist() == ordered.connection[task].tolist()
        first = np.searchsorted(pieces.start_ns, end)
        found = [int(task[one]) if one < len(task) else None for one in first.tolist()]
        expected = np.searchsorted(ordered.start_ns, end).tolist()
        assert found == [one if one < len(tasks) else None for one in expected]
