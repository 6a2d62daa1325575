"""Columns of partials, compared with counting every nanosecond and every operation."""

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.cluster import rank_communication as columns_of
from unified_prof.cluster.rank_communication import CoveredTime
from unified_prof.cluster.rank_partial import MarkFigures, figures_of, named_columns
from unified_prof.cluster.sequences import sequences_of

Spans = list[tuple[int, int]]  # Starts and ends, ns.
spans = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 5)).map(lambda one: (one[0], sum(one))),
    max_size=5,
).map(sorted)


def cells(found: Spans) -> set[int]:
    return {at for start, end in found for at in range(start, end)}


def columns(found: Spans) -> tuple[Ints, Ints]:
    start, end = np.array(found, np.int64).reshape(-1, 2).T
    return start, end


@given(spans, spans, st.lists(st.integers(0, 20), max_size=6), st.none() | spans)
def test_steps_and_marks(kernels: Spans, operations: Spans, edges: list[int], data: Spans) -> None:
    steps = [*pairwise(sorted(set(edges)))][::2] + [*pairwise(sorted(set(edges)))][-1:]
    steps = sorted(set(steps))
    tables = [dict(zip(("start", "end"), columns(one), strict=True)) for one in (operations, steps)]
    tables[1]["step"] = np.arange(len(steps)) + 7
    cover = CoveredTime(intervals.merge(*columns(kernels)), columns(kernels)[0])
    busy, loader = (
        None if one is None else intervals.merge(*columns(one))
        for one in (kernels + operations, data)
    )
    assert busy is not None
    work, sent, fetched = cells(kernels), cells(operations), cells(data or [])
    inside = [cells([step]) for step in steps]
    found = columns_of.step_time_parts(tables[1], cover.set, tables[0], busy, loader)
    assert found["compute"].tolist() == [len(one & work) for one in inside]
    assert found["communication"].tolist() == [len(one & sent) for one in inside]
    assert found["exposed"].tolist() == [len(one & sent - work) for one in inside]
    assert found["idle"].tolist() == [len(one - sent - work) for one in inside]
    late = [-1 if data is None else len(one & fetched - sent - work) for one in inside]
    assert found["input"].tolist() == late
    at = columns_of.step_at(np.arange(-1, 25), tables[1])
    own = {time: 7 + place for place, one in enumerate(inside) for time in one}
    assert at.tolist() == [own.get(time, -1) for time in range(-1, 25)]

    # At equal times, ends of operations come first, then steps, then starts.
    events = [(end, 0, op) for op, (_, end) in enumerate(operations)]
    events += [(start, 1, step) for step, (start, _) in enumerate(steps)]
    events += [(start, 2, op) for op, (start, _) in enumerate(operations)]
    events.sort()
    if work and (not events or min(work) < events[0][0]):
        events.insert(0, (min(work), 1, -1))
    last = max([*work, *(end - 1 for _, end in steps[-1:]), *(e[0] - 1 for e in events)], default=0)
    marks = columns_of.cut_at_marks(tables[0], tables[1], cover)
    rows = zip(*(marks[name].tolist() for name in marks), strict=True)
    starts = [start for start, _ in kernels]
    gaps = []
    for row, (event, following) in zip(rows, pairwise([*events, (last + 1, 0, 0)]), strict=True):
        time, what, op = event
        part = [one in work for one in range(time, following[0])]
        lead = part.index(True) if any(part) else len(part)
        tail = part[::-1].index(True) if any(part) else 0
        begun = sum(time <= start < following[0] for start in starts)
        assert row == (time, op, (1, 2, 0)[what], lead, sum(part), tail, begun)
        gaps += [(len(part) - lead - tail - sum(part), begun - bool(lead))] * any(part)
    gaps = gaps[: len(gaps) - any(part)] if events else []  # behind the last mark
    each = sorted(idle / count for idle, count in gaps for _ in range(count))
    expected = MarkFigures(events[0][0], events[-1][0]) if events else MarkFigures()
    if each:
        mean = sum(idle for idle, count in gaps if count > 0) / len(each)
        expected = expected._replace(gap=mean, median_gap=each[(len(each) - 1) // 2])
    assert figures_of(marks) == pytest.approx(expected)


@given(st.lists(st.tuples(*[st.integers(-1, 2)] * 3, st.integers(0, 9)), max_size=12))
def test_sums_by_key(rows: list[tuple[int, int, int, int]]) -> None:
    step, name, module, takes = np.array(rows, np.int64).reshape(-1, 4).T
    by_key = defaultdict[tuple[int, ...], list[int]](list)
    for *key, length in rows:
        by_key[tuple(key)].append(length)
    found = columns_of.work_by_name(step, name, module, takes)
    assert [*zip(*(one.tolist() for one in found.values()), strict=True)] == [
        (*key, len(own), sum(own), min(own), max(own))
        for key, own in sorted(by_key.items())
        if key[0] >= 0
    ]
    owned = [(owner, at, at + length) for owner, at, _, length in rows if owner >= 0]
    own, begin, end = np.array(owned, np.int64).reshape(-1, 3).T
    of_owner = [[(a, b) for number, a, b in owned if number == owner] for owner in range(4)]
    union = columns_of.union_by_owner(own, begin, end - begin, 4)
    assert union.tolist() == [len(cells(one)) if one else -1 for one in of_owner]
    # Positive sizes and times: rates are in order of their values.
    sizes, times = (
        np.array([(3 * length + 2, length % 3 + 1) for *_, length in rows]).reshape(-1, 2).T
    )
    links = columns_of.link_parts(step, name, sizes, times)
    of_link = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for src, dst, size, length in zip(
        step.tolist(), name.tolist(), sizes.tolist(), times.tolist(), strict=True
    ):
        of_link[src, dst].append((size, length))
    assert [*zip(*(one.tolist() for one in links.values()), strict=True)] == [
        (*key, len(parts), *map(sum, zip(*parts, strict=True)), rates[len(rates) // 2], rates[0])
        for key, parts in sorted(of_link.items())
        for rates in [sorted(size * 10**9 // length for size, length in parts)]
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 2)), max_size=12))
def test_sequences(rows: list[tuple[int, int, int]]) -> None:
    """Collectives of a group and kind, and transfers with a peer, are numbered as they come."""
    kinds = ["all_reduce", "send", "receive", "broadcast"]
    kind, group, peer = np.array(rows, np.int64).reshape(-1, 3).T
    seen, numbers, members = Counter[object](), [], defaultdict[object, list[int]](list)
    for place, (of_kind, of_group, other) in enumerate(rows):
        is_transfer = of_kind in (1, 2)
        key = of_kind, ("peer", other) if is_transfer and other >= 0 else ("group", of_group)
        numbers.append(seen[key])
        seen[key] += 1
        members[of_kind, other if is_transfer else of_group].append(place)
    found = {"kind": kind, "group": group, "peer": peer}
    seq = columns_of.sequence_numbers(found, kinds)
    assert seq.tolist() == numbers
    count = len(rows)
    table = named_columns("communication", *[np.arange(count)] * 10) | found | {"seq": seq}
    table["end"] = table["start"] + 3
    one = sequences_of(table, kinds).whole
    keys = zip(one.kind.tolist(), one.other.tolist(), strict=True)
    for place, pair in enumerate(keys):
        own = sorted(members.pop(pair), key=lambda row: (numbers[row], row))
        low, high = one.edges[place : place + 2]
        assert one.columns["op"][low:high].tolist() == own
        assert one.numbers(place).tolist() == [numbers[row] for row in own]
        assert one.columns["length"][low:high].tolist() == [3] * len(own)
        assert one.only([place]).columns["op"].tolist() == own
    assert not members
