"""Intervals of OVERLAP_ANALYSIS, compared with sets of unit intervals and worked examples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from unified_prof.decoders.overlap import OverlapWriter, Spans
from unified_prof.decoders.prof.slices import Workspace

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
def test_every_moment_is_compute_communication_exposed_or_free(
    other: list[tuple[int, int]],
    compute: list[tuple[int, int]],
    collectives: list[tuple[int, int]],
    part: int,
) -> None:
    sink = MemorySink()
    everything = spans(other + compute + collectives)
    # Tasks come by start, in parts; the spool is flushed after every interval.
    tasks = sorted(
        [(start, size, False) for start, size in other + collectives]
        + [(start, size, True) for start, size in compute]
    )
    workspace = Workspace(window_rows=1, run_bytes=1)
    with OverlapWriter(sink, workspace.spool, workspace.window_rows).device(3) as overlap:
        for first in range(0, len(tasks), part):
            some = tasks[first : first + part]
            overlap.add(
                spans([(start, size) for start, size, _ in some]),
                spans([(start, size) for start, size, computes in some if computes]),
            )
        overlap.finish(spans(collectives))
    rows = sink.tables().get("OVERLAP_ANALYSIS")
    if rows is None:
        assert not compute
        assert not collectives
        return
    found = {
        kind: moments((rows["startNs"][rows["type"] == kind], rows["endNs"][rows["type"] == kind]))
        for kind in range(4)
    }
    computing, talking = moments(spans(compute)), moments(spans(collectives))
    bounds = range(int(everything[0].min()), int(everything[1].max()))
    assert found[0] == computing
    assert found[1] == talking
    assert found[2] == talking - computing
    assert found[3] == set(bounds) - computing - talking
    assert rows["id"].tolist() == list(range(len(rows["id"])))
    assert set(rows["deviceId"].tolist()) == {3}


@pytest.mark.parametrize(
    ("tasks", "compute", "collectives", "expected"),
    [
        # No collectives: a zero-length interval where the device was first in use.
        ([(0, 5), (10, 5)], [(10, 5)], [], {0: [(10, 15)], 2: [(0, 0)], 3: [(0, 10)]}),
        ([(3, 5)], [], [(3, 5)], {0: [(3, 3)], 1: [(3, 8)], 2: [(3, 8)], 3: [(3, 3)]}),
        ([(3, 5)], [(3, 5)], [], {0: [(3, 8)], 2: [(3, 3)], 3: [(3, 3)]}),
        ([(3, 5)], [], [], {0: [(3, 3)], 2: [(3, 3)], 3: [(3, 8)]}),
        ([], [], [], {}),
    ],
)
def test_whole_session_has_a_row_of_every_kind(
    tasks: list[tuple[int, int]],
    compute: list[tuple[int, int]],
    collectives: list[tuple[int, int]],
    expected: dict[int, list[tuple[int, int]]],
) -> None:
    sink, workspace = MemorySink(), Workspace()
    writer = OverlapWriter(sink, workspace.spool, with_empty=True)
    with writer.device(3) as overlap:
        overlap.add(spans(tasks), spans(compute))
        overlap.finish(spans(collectives))
    rows = sink.tables().get("OVERLAP_ANALYSIS", {})
    found: dict[int, list[tuple[int, int]]] = {}
    for kind, start, end in zip(
        *(rows.get(n, ()) for n in ("type", "startNs", "endNs")), strict=True
    ):
        found.setdefault(int(kind), []).append((int(start), int(end)))
    assert found == expected


def test_exposed_communication_ends_with_the_last_collective() -> None:
    """The vendor's exporter forgets that end; see docs/validation.md."""
    sink, workspace = MemorySink(), Workspace()
    with OverlapWriter(sink, workspace.spool).device(0) as overlap:
        overlap.add(spans([(0, 10), (2, 3), (8, 6)]), spans([(0, 10)]))
        overlap.finish(spans([(2, 3), (8, 6)]))
    rows = sink.tables()["OVERLAP_ANALYSIS"]
    exposed = rows["type"] == 2
    assert rows["startNs"][exposed].tolist() == [10]
    assert rows["endNs"][exposed].tolist() == [14]
