"""Optimized code paths give the results of simple ones, and needless work is skipped."""

from dataclasses import replace as changed
from typing import Any

import numpy as np
import pytest

from tests.cluster.simulated_run import Plan, partials_of, simulate
from unified_prof.cluster import replay
from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.rank_partial import MARK_END, MARK_START, MARK_STEP
from unified_prof.cluster.summary import summarize_run


def test_healthy_run_with_short_transfers_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(replay, "build_timeline", never)
    fast = Plan(steps=3, pp=1, tp=1, network_gb_per_s=2000.0, buckets=4, noise=0.001)
    assert summarize_run(partials_of(simulate(fast))).ranked == []
    for plan in (changed(fast, slow={2: 1.3}), Plan(steps=3)):
        with pytest.raises(AssertionError):
            summarize_run(partials_of(simulate(plan)))


def queued_one_by_one(
    marks: dict[str, Any], ops: dict[str, Any], matched: Any
) -> dict[int, tuple[int, int]]:
    """Return the last end of its queue for each mark, as `replay._queued` does.

    Kind 0 are transfers with queues of their own; kinds 1 and 2 of a group share one. If three
    quarters of the starts of a queue follow no end of it, but one of kind 2, within 5 µs, the
    latter is returned.
    """
    result = {}
    latest: dict[tuple[int, int], int] = {}
    starts: dict[tuple[int, int], list[int]] = {}
    chained: dict[int, tuple[int, int]] = {}
    last = -1
    count = len(matched)
    # Ends at the same time count, wherever they are among the marks.
    order = sorted(
        range(count), key=lambda at: (marks["time"][at], marks["what"][at] == MARK_START, at)
    )
    for mark in order:
        if marks["what"][mark] == MARK_STEP or matched[mark] < 0:
            continue
        op = marks["op"][mark]
        key = (int(ops["group"][op]), int(ops["kind"][op] == 0))
        if marks["what"][mark] == MARK_END:
            latest[key] = mark
            last = mark if ops["kind"][op] == 2 else last
            continue
        starts.setdefault(key, []).append(mark)
        after = int(marks["time"][mark] - marks["time"][last])
        if key in latest and marks["op"][latest[key]] != op:
            delay = int(marks["time"][mark] - marks["time"][latest[key]])
            result[mark] = (int(matched[latest[key]]), delay if delay <= 5_000 else -1)
        follows = last >= 0 and marks["op"][last] != op and after <= 5_000
        if follows and result.get(mark, (0, -1))[1] < 0:
            chained[mark] = int(matched[last]), after
    for key, queue in starts.items():
        follow = [mark for mark in queue if mark in chained]
        if key in latest and len(follow) >= 0.75 * len(queue):
            result |= {mark: chained[mark] for mark in follow}
    return result


@pytest.mark.parametrize("seed", range(4))
def test_vectorized_queueing_equals_that_of_single_marks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 60
    start = np.sort(rng.integers(0, 300_000, count))
    end = start + rng.integers(0, 20_000, count)
    ops = {"group": rng.integers(-1, 3, count), "kind": rng.integers(0, 3, count)}
    if seed % 2:  # One queue starts after reduce-scatters.
        mine, scatters = ops["group"] == 2, (ops["kind"] == 2) & (ops["group"] < 2)
        start[mine] = rng.choice(end[scatters], mine.sum()) + 1_000
        end[mine] = start[mine] + 500
        ops["kind"][mine] = 1
    time = np.concatenate([start, end, [0]])
    what = np.repeat([MARK_START, MARK_END, MARK_STEP], [count, count, 1])
    op = np.concatenate([np.arange(count), np.arange(count), [-1]])
    order = np.lexsort((op, what != MARK_END, time))
    marks = {"time": time[order], "what": what[order], "op": op[order]}
    event = np.where(rng.random(count) < 0.8, np.arange(count), -1)
    matched = np.where(marks["what"] == MARK_STEP, -1, event[marks["op"]])
    behind, delay = replay._queued(marks, ops, matched, [0], [2])
    found = {at: (int(behind[at]), int(delay[at])) for at in np.flatnonzero(behind >= 0).tolist()}
    assert found == queued_one_by_one(marks, ops, matched)
    assert (delay[behind < 0] == -1).all()


def test_operations_in_random_order_are_matched_like_sorted_ones() -> None:
    found = partials_of(simulate(Plan(steps=2)))
    mixed = []
    for one in found:
        order = np.random.default_rng(one.facts.rank).permutation(len(one.communication["start"]))
        table = {name: values[order] for name, values in one.communication.items()}
        mixed.append(type(one)(**{**fields(one), "communication": table}))
    expected, matched = match_collectives(found), match_collectives(mixed)
    for name in ("rank", "start", "length", "bytes", "event"):
        np.testing.assert_array_equal(
            getattr(expected.rows, name), getattr(matched.rows, name), name
        )


def fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}
