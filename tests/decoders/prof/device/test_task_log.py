from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays.grouping import NOWHERE, find
from unified_prof.base.columns import NO_CONTEXT
from unified_prof.decoders.prof.task_join import DeviceTasks, _match_in_order
from unified_prof.decoders.prof.task_log import (
    Flips,
    IdCounter,
    TaskStreams,
    decode_words,
    first_to_first,
    mark_order,
    pack_keys,
    type_name,
)

MARKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), min_size=0, max_size=60
)


@given(MARKS)
def test_each_end_mark_closes_the_oldest_open_start(marks: list[tuple[int, int, bool]]) -> None:
    expected = []
    open_starts: dict[int, deque[int]] = {}
    for task, moment, ends in sorted(marks, key=lambda mark: mark[:2]):
        waiting = open_starts.setdefault(task, deque())
        if not ends:
            waiting.append(moment)
        elif waiting:
            expected.append((task, waiting.popleft(), moment))
    identity = np.array([mark[0] for mark in marks], np.uint64)
    ticks = np.array([mark[1] for mark in marks], np.uint64)
    is_end = np.array([mark[2] for mark in marks], bool)
    order = mark_order(identity, ticks)
    start, end = first_to_first(identity[order], is_end[order])
    found = zip(
        identity[order][start].tolist(),
        ticks[order[start]].tolist(),
        ticks[order[end]].tolist(),
        strict=True,
    )
    assert sorted(found) == sorted(expected)


@given(
    stream=st.integers(0, 2047), task=st.integers(0, 0xFFFF), notation=st.sampled_from([0, 1, 2])
)
def test_stream_and_task_are_equal_in_all_notations(stream: int, task: int, notation: int) -> None:
    words = (
        (stream, task),
        (stream | 0x1000 | task & 0xE000, task & 0x1FFF),
        (task & 0x0FFF | 0x2000, stream | task & 0xF000),
    )[notation]
    found = decode_words(np.array([words[0]]), np.array([words[1]]), expanded=False)
    assert (int(found[0][0]), int(found[1][0])) == (stream, task)


@given(stream=st.integers(0, 0x7FFF), task=st.integers(0, 0xFFFF), swapped=st.booleans())
def test_expanded_notation_has_15_bit_streams(stream: int, task: int, swapped: bool) -> None:
    words = (0x8000 | task & 0x7FFF, stream | task & 0x8000) if swapped else (stream, task)
    found = decode_words(np.array([words[0]]), np.array([words[1]]), expanded=True, sqe_type=0)
    assert (int(found[0][0]), int(found[1][0])) == (stream, task)


def test_placeholders_and_event_records_are_not_expanded() -> None:
    found = decode_words(
        np.array([0x8001, 0x8001]), np.array([7, 7]), expanded=True, sqe_type=np.array([3, 0])
    )
    assert found[0].tolist() == [1, 7]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 0xFFFF),
            st.integers(0, 0xFFFF),
            st.integers(0, 0xFFFF),
            st.sampled_from([0, 1, 54, NO_CONTEXT]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_keys_are_equal_exactly_for_equal_tasks(tasks: list[tuple[int, int, int, int]]) -> None:
    columns = [np.array(column) for column in zip(*tasks, strict=True)]
    keys = pack_keys(*columns, wide_task_ids=False).tolist()
    assert len(set(keys)) == len(set(tasks)) == len(set(zip(tasks, keys, strict=True)))


def test_tasks_without_id_get_a_permanent_one() -> None:
    none = np.zeros(3, np.uint32)
    identity, ids = np.arange(3, dtype=np.uint64), np.array([-1, 7, -1])
    tasks = DeviceTasks(
        IdCounter(), Flips.none(), False, False, identity, ids, none, none, None, TaskStreams.none()
    )
    tasks.ids.take(8)
    assert tasks.ids_of(np.array([2, 1, 2, 0])).tolist() == [9, 7, 9, 8]
    assert tasks.ids_of(np.array([0, 2])).tolist() == [8, 9]


def test_wide_task_ids_have_32_bits() -> None:
    tasks = np.array([5, 65_541])
    zeros = np.zeros(2, np.int64)
    keys = pack_keys(zeros, tasks, zeros, np.full(2, NO_CONTEXT), wide_task_ids=True)
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("code", "platform", "name"),
    [
        (0, 5, "AI_CORE"),
        (2, 5, "AIV_SQE"),
        (2, 15, "FUSION"),
        (11, 15, "SDMA_SQE"),
        (3, 4, "PLACE_HOLDER_SQE"),
        (9, 4, "SDMA_SQE"),
        (11, 4, "Other"),
        (0, 1, "Other"),
        (70, 5, "MIX_AIC"),
        (63, 5, None),
        (64, 5, "AIC"),
    ],
)
def test_task_types_are_named_by_platform(code: int, platform: int, name: str | None) -> None:
    assert type_name(code, platform) == name


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=9))
def test_tasks_and_launches_of_a_key_are_ordered(launched: list[int], ran: list[int]) -> None:
    launched.sort()
    ran.sort()
    expected = []
    for task, key in enumerate(ran):
        launches = [launch for launch, other in enumerate(launched) if other == key]
        turn = ran[:task].count(key)
        expected.append(launches[min(turn, len(launches) - 1)] if launches else NOWHERE)
    columns = np.array(launched, np.uint64), np.array(ran, np.uint64)
    assert _match_in_order(find(*columns), *columns).tolist() == expected
