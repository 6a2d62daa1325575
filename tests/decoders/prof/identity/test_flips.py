import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.decoders.prof.task_log import Flips


@given(
    wrap=st.integers(2, 9),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    late=st.integers(0, 3),
)
def test_tasks_are_numbered_by_stream_rounds(wrap: int, counts: list[int], late: int) -> None:
    """Streams of interleaved tasks; a flip may come `late` tasks into the new round."""
    late = min(late, wrap - 1)
    tasks, flips = [], []
    for stream, count in enumerate(counts):
        for rank in range(count):
            batch, task = divmod(rank, wrap)
            tasks.append((stream, task, 10 * rank + 5, batch))
            if batch and task == late:
                flips.append((stream, task, 10 * rank + 4))
    # Rounds without a flip stay in the round before.
    rounds = {(stream, ticks) for stream, _, ticks in flips}
    columns = np.array(tasks or [(0, 0, 0, 0)], np.int64).reshape(-1, 4)
    flip_columns = np.array(flips, np.int64).reshape(-1, 3)
    found = Flips(
        flip_columns[:, 0].astype(np.uint32),
        flip_columns[:, 1].astype(np.uint32),
        flip_columns[:, 2].astype(np.uint64),
    ).batch_of(columns[:, 0], columns[:, 1], columns[:, 2], at_flip=False)
    for (stream, _, ticks, batch), number in zip(columns.tolist(), found.tolist(), strict=True):
        started = ticks // 10 // wrap * wrap * 10 + 10 * late + 4
        missing = batch > 0 and (stream, started) not in rounds
        assert number == batch - missing


@pytest.mark.parametrize(("at_flip", "expected"), [(True, 1), (False, 0)])
def test_task_at_the_tick_of_a_flip_is_on_the_chosen_side(at_flip: bool, expected: int) -> None:
    flips = Flips(np.array([3]), np.array([0]), np.array([100], np.uint64))
    stream, task = np.array([3, 4]), np.array([9, 9])
    found = flips.batch_of(stream, task, np.array([100, 100], np.uint64), at_flip=at_flip)
    assert found.tolist() == [expected, 0]


def test_tasks_do_not_move_past_a_larger_id_or_to_a_destroyed_stream() -> None:
    stream, ticks = np.zeros(4, np.int64), np.array([1, 2, 3, 4], np.uint64)
    ids = np.array([1, 50, 0, 1])
    pulling = Flips(np.array([0]), np.array([2]), np.array([5], np.uint64))
    assert pulling.batch_of(stream, ids, ticks, at_flip=False).tolist() == [0, 0, 1, 1]
    destroyed = Flips(np.array([0]), np.array([65535]), np.array([5], np.uint64))
    assert destroyed.batch_of(stream, ids, ticks, at_flip=False).tolist() == [0, 0, 0, 0]
