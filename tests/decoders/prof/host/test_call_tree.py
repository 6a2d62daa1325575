import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.decoders.prof.host_records import Intervals, without_overlaps

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=40)


def intervals(spans: list[tuple[int, int]]) -> Intervals:
    ordered = sorted((begin, -size) for begin, size in spans)
    begin = np.array([begin for begin, _ in ordered], np.uint64)
    end = np.array([begin - size for begin, size in ordered], np.uint64)
    rows = np.arange(len(begin))
    return Intervals(begin, end, rows, rows.astype(np.uint32), rows.astype(np.uint16))


@given(SPANS, st.lists(st.integers(0, 95), min_size=1, max_size=30))
def test_moment_belongs_to_the_last_call(spans: list[tuple[int, int]], moments: list[int]) -> None:
    calls = intervals(spans)
    expected = []
    for moment in moments:
        around = [
            row
            for row, (begin, end) in enumerate(
                zip(calls.begin.tolist(), calls.end.tolist(), strict=True)
            )
            if begin < moment <= end
        ]
        expected.append(max(around, default=-1))
    assert calls.find(np.array(moments, np.uint64)).tolist() == expected


@given(SPANS)
def test_call_that_begins_inside_the_last_kept_one_is_dropped(spans: list[tuple[int, int]]) -> None:
    calls = intervals(spans)
    kept: list[int] = []
    for row, begin in enumerate(calls.begin.tolist()):
        if not kept or begin >= calls.end[kept[-1]]:
            kept.append(row)
    assert without_overlaps(calls).connection_id.tolist() == kept


def test_long_call_is_found_behind_many_short_calls_inside_it() -> None:
    short = [(10 * n + 1, 5) for n in range(5_000)]
    calls = intervals([(0, 60_000), *short])
    moments = np.array([10 * n + 8 for n in range(5_000)], np.uint64)
    assert set(calls.find(moments).tolist()) == {0}
