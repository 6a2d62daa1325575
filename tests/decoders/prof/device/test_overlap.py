from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from unified_prof.decoders.prof.device.overlap import OverlapWriter, Spans
from unified_prof.decoders.prof.raw.workspace import Workspace

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12)


def spans(pairs: list[tuple[int, int]]) -> Spans:
    start = np.array([start for start, _ in pairs], np.int64)
    return start, start + np.array([size for _, size in pairs], np.int64)


def moments(pairs: Spans) -> set[int]:
    """Return the unit intervals that spans cover, by their start."""
    return {
        moment
        for start, end in zip(*(side.tolist() for side in pairs), strict=True)
        for moment in range(start, end)
    }


@given(SPANS, SPANS, SPANS, st.integers(1, 12))
def test_every_moment_is_what_the_device_did_then(
    other: list[tuple[int, int]],
    compute: list[tuple[int, int]],
    talk: list[tuple[int, int]],
    part: int,
) -> None:
    sink = MemorySink()
    everything = spans(other + compute + talk)
    # Tasks come by start, in parts; what they fill is put away after every single interval.
    tasks = sorted(
        [(start, size, False) for start, size in other + talk]
        + [(start, size, True) for start, size in compute]
    )
    workspace = Workspace(window_rows=1, run_bytes=1)
    with OverlapWriter(sink, workspace).device(3) as overlap:
        for first in range(0, len(tasks), part):
            some = tasks[first : first + part]
            overlap.add(
                spans([(start, size) for start, size, _ in some]),
                spans([(start, size) for start, size, computes in some if computes]),
            )
        overlap.finish(spans(talk))
    rows = sink.tables().get("OVERLAP_ANALYSIS")
    if rows is None:
        assert not compute
        assert not talk
        return
    found = {
        kind: moments((rows["startNs"][rows["type"] == kind], rows["endNs"][rows["type"] == kind]))
        for kind in range(4)
    }
    computing, talking = moments(spans(compute)), moments(spans(talk))
    bounds = range(int(everything[0].min()), int(everything[1].max()))
    assert found[0] == computing
    assert found[1] == talking
    assert found[2] == talking - computing
    assert found[3] == set(bounds) - computing - talking
    assert rows["id"].tolist() == list(range(len(rows["id"])))
    assert set(rows["deviceId"].tolist()) == {3}
