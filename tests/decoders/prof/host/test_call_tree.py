"""Host records belong to the calls around them, also if they are read in windows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.decoders.prof.memory_sink import MemorySink
from unified_prof.decoders.prof.host_records import (
    ACL,
    CALL,
    COMMUNICATION,
    MODEL,
    NODE,
    RUNTIME,
    CallNames,
    Intervals,
    Timeline,
    host_windows,
    read_calls,
    without_overlaps,
)
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.slices import scan
from unified_prof.decoders.spool import Spool, row_type
from unified_prof.errors import RawFormatError

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


LEVELS = (ACL, MODEL, NODE, COMMUNICATION, RUNTIME)
NAMES = CallNames(
    np.array([level << 32 | 7 for level in LEVELS], np.uint64), np.zeros(1, np.uint64)
)
RECORD = row_type("key u8")
# Level, begin and size; as in recordings, calls of the runtime do not contain others.
CALLS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300), st.integers(0, 25)), max_size=60)


def kept_calls(calls: list[tuple[int, int, int]], level: int) -> list[tuple[int, int]]:
    """Return (begin, end) of calls of a level, outer ones first; those of NODE may nest."""
    found: list[tuple[int, int]] = []
    spans = [(begin, size) for kind, begin, size in calls if kind == level and size]
    if level == LEVELS.index(NODE):
        spans.sort(key=lambda one: (one[0], -one[1]))
    else:
        spans.sort(key=lambda one: one[0])
    for begin, size in spans:
        if level == LEVELS.index(NODE) or not found or begin >= found[-1][1]:
            found.append((begin, begin + size))
    return found


@given(CALLS, st.lists(st.integers(0, 370), max_size=40), st.integers(1, 30))
def test_windows_leave_each_record_in_its_calls(
    calls: list[tuple[int, int, int]], moments: list[int], window_rows: int
) -> None:
    rows = np.zeros(len(calls), CALL)
    for place, (kind, begin, size) in enumerate(calls):
        rows[place] = (begin, begin + size, 0, 0, kind)
    records = np.zeros(len(moments), RECORD)
    records["key"] = moments
    read: list[int] = []
    connections: list[int] = []
    with Spool(CALL, "key", run_rows=9) as of_calls, Spool(RECORD, "key", run_rows=9) as others:
        for row in range(0, len(rows), 5):
            of_calls.append(rows[row : row + 5])
        for row in range(0, len(records), 5):
            others.append(records[row : row + 5])
        for window in host_windows(of_calls, [others], NAMES, window_rows):
            keys = window.others[0]["key"].astype(np.uint64)
            read += keys.tolist()
            connections += window.calls["connection_id"].tolist()
            tree = window.tree
            for level, found in enumerate((tree.acl, tree.model, tree.node, tree.communication)):
                spans = kept_calls(calls, level)
                for moment, row in zip(keys.tolist(), found.find(keys).tolist(), strict=True):
                    around = [one for one in spans if one[0] < moment <= one[1]]
                    span = None if row < 0 else (int(found.begin[row]), int(found.end[row]))
                    assert span == (around[-1] if around else None)
    assert read == sorted(moments)
    assert connections == [*range(1, len(calls) + 1)]


@given(st.integers(0, (1 << 64) - 1), st.lists(st.tuples(st.integers(1, 9), st.integers(-3, 3))))
def test_keys_keep_thread_and_time(origin: int, records: list[tuple[int, int]]) -> None:
    timeline = Timeline(origin)
    assert timeline.base == max(origin - (1 << 46), 0)
    farthest = min(timeline.base + (1 << 48), 1 << 64)

    def times(moved: int) -> NDArray[Any]:
        around = (timeline.base, origin, farthest)
        places = [
            (around[n % 3] + moved * apart) % (1 << 64) for n, (_, apart) in enumerate(records)
        ]
        return np.array(places, np.uint64)

    ticks, threads = times(1), np.array([thread for thread, _ in records], np.int64)
    fits = timeline.fits(ticks)
    assert fits.tolist() == [timeline.base <= one < farthest for one in ticks.tolist()]
    keys = timeline.pack(threads, ticks)
    nearest = np.clip(ticks, np.uint64(timeline.base), np.uint64(farthest - 1))
    assert timeline.ticks(keys).tolist() == nearest.tolist()
    assert timeline.thread_ids(keys).tolist() == threads.tolist()
    moved = timeline.move(keys, times(-1))
    assert timeline.thread_ids(moved).tolist() == threads.tolist()
    assert moved.tolist() == timeline.pack(threads, times(-1)).tolist()


def test_too_many_threads_are_refused() -> None:
    timeline, count = Timeline(0), 1 << 16
    timeline.pack(np.arange(count), np.zeros(count, np.uint64))
    with pytest.raises(RawFormatError, match="records of more than 65536 threads"):
        timeline.pack(np.array([count]), np.zeros(1, np.uint64))


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_one_record_and_of_two_events_are_read(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    none = (1 << 64) - 1
    records, expected = [], []
    for number in range(60):
        level, thread = int(rng.choice(LEVELS)), int(rng.integers(1, 4))
        begin, item = 1000 + 10 * number, int(rng.integers(1, 5))
        end = begin + int(rng.integers(0, 400))
        head = (HOST_MAGIC, level, number % 3, thread, number)
        is_named = level in (MODEL, NODE, COMMUNICATION)
        call = (begin, end, thread, level, number % 3, item if is_named else 0)
        if number % 4:
            records.append((begin, (*head, begin, end, item)))
        else:  # The events of a call are recorded when they happen.
            records += [(at, (*head, at, none, item)) for at in (begin, end)]
        expected.append(call)
    records.append((1, (HOST_MAGIC, ACL, 0, 1, 99, 1, none, 0)))  # without its second event
    records.append((1, (HOST_MAGIC, ACL, 0, 1, 99, 500, 499, 0)))  # ends before it begins
    rows = np.zeros(len(records), record_type("api_event"))
    fields = ("magic", "level", "type", "thread_id", "request_id", "begin", "end", "item_id")
    for row, (_, values) in enumerate(sorted(records)):
        for field, value in zip(fields, values, strict=True):
            rows[field][row] = value
    (tmp_path / "unaging.api_event.data.slice_0").write_bytes(rows.tobytes())
    host, sink, timeline = SimpleNamespace(data=scan(tmp_path)), MemorySink(), Timeline(1000)
    with Spool(CALL, "key") as spool:
        names = read_calls(cast(Any, host), timeline, spool, sink)
        windows = host_windows(spool, [], names, 1000)
        calls = np.concatenate([window.calls for window in windows])
    pairs = names.type_pairs()
    found = zip(
        timeline.ticks(calls["key"]).tolist(), timeline.ticks(calls["end"]).tolist(),
        timeline.thread_ids(calls["key"]).tolist(), calls["type_index"].tolist(),
        names.items[calls["item"]].tolist(), strict=True,
    )  # fmt: skip
    assert sorted((*call, *pairs[kind], item) for *call, kind, item in found) == sorted(expected)
    assert sink.anomalies == {"unpaired_event": 1, "impossible_time_api_event": 1}


def test_too_many_kinds_of_calls_are_refused(tmp_path: Path) -> None:
    sink, host = MemorySink(), cast(Any, SimpleNamespace(data=None))
    for count in (1 << 16, (1 << 16) + 1):
        rows = np.zeros(count, record_type("api_event"))
        rows["magic"], rows["type"], rows["begin"], rows["end"] = HOST_MAGIC, np.arange(count), 5, 6
        (tmp_path / "unaging.api_event.data.slice_0").write_bytes(rows.tobytes())
        host.data = scan(tmp_path)
        with Spool(CALL, "key") as spool:
            if count == 1 << 16:
                assert len(read_calls(host, Timeline(0), spool, sink).types) == count
            else:
                with pytest.raises(RawFormatError, match="more than 65536 kinds of calls"):
                    read_calls(host, Timeline(0), spool, sink)
