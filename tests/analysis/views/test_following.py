"""Tasks that end gaps, and tasks launched after a wait, do not depend on the size of windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.recording.task_order import Following, OrderedTasks, awaiting

WORK = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(-1, 20)), min_size=1, max_size=30
)
"""Stream, how long after the task before it began, when it was launched."""


def _begun(work: list[tuple[int, int, int]]) -> OrderedTasks:
    stream, later, launched = np.array(work, np.int64).T
    task = np.arange(len(work), dtype=np.int32)
    kind = np.zeros(len(work), np.int8)
    # The launch stands where the connection is: the test looks nothing up.
    return OrderedTasks(task, np.cumsum(later), kind, stream, launched)


def _windows(work: OrderedTasks, size: int) -> Iterator[OrderedTasks]:
    for low in range(0, len(work.task), size):
        yield work.take(slice(low, low + size))


@given(WORK, st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 22))), st.integers(1, 7))
def test_work_behind_a_wait(
    work: list[tuple[int, int, int]], waits: list[tuple[int, int]], size: int
) -> None:
    begun = _begun(work)
    stream, at_ns = (np.array([one[which] for one in waits], np.int64) for which in (0, 1))
    found = awaiting(_windows(begun, size), lambda launched: launched, stream, at_ns)
    expected = set()
    for waiting, moment in waits:
        behind = [
            (launched, task)
            for task, (own, _, launched) in enumerate(work)
            if own == waiting and launched >= max(moment, 0)
        ]
        expected |= {min(behind)[1]} if behind else set()
    assert found.tolist() == sorted(expected)


@given(WORK, st.lists(st.integers(0, 80), min_size=1), st.integers(1, 7), st.integers(1, 5))
def test_work_that_ends_gaps(
    work: list[tuple[int, int, int]], ends: list[int], size: int, together: int
) -> None:
    begun = _begun(work)
    nothing = np.zeros(0, np.int32)
    following = Following(_windows(begun, size), lambda launched: launched, EMPTY, nothing)
    ends = sorted(ends)
    for low in range(0, len(ends), together):
        end = np.array(ends[low : low + together], np.int64)
        pieces, which = following.ending(IntervalSet(end - 1, end))
        assert pieces.start_ns.tolist() == begun.start_ns[which].tolist()
        assert pieces.launched_ns.tolist() == begun.connection[which].tolist()
        first = np.searchsorted(pieces.start_ns, end)
        told = [int(which[one]) if one < len(which) else None for one in first.tolist()]
        wanted = np.searchsorted(begun.start_ns, end).tolist()
        assert told == [one if one < len(work) else None for one in wanted]
