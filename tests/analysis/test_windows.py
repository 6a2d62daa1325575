"""Figures do not depend on how many rows are processed at a time."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device
from unified_prof.arrays import intervals, packed
from unified_prof.compare import runs
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.explain.advice import device_context
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.skyline import trees
from unified_prof.recording import (
    breakdowns,
    calls,
    framework,
    host_calls,
    idle_time,
    python_frames,
)
from unified_prof.recording import tasks as read_tasks
from unified_prof.report import figures
from unified_prof.report.formats import ReportRequest

NAMES = (
    "aten::linear",
    "aten::addmm",
    "my step",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "AddmmBackward0",
    "torch::autograd::CppNode<Own>",
    "Optimizer.step#SGD.step",
    "aten::_foreach_add_",
    "ProfilerStep#7",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "nn.Module: Net_0",
    "nn.Module: Linear_1",
    "/home/me/train.py(12): run",
)
CALLS = ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync")


def use_small_windows(patch: pytest.MonkeyPatch, shift: int, window: int) -> None:
    """Process `window` rows at a time, in blocks of 2**shift; look up by binary search."""
    patch.setattr(packed, "_SHIFT", shift)
    for module in (packed, host_calls):
        patch.setattr(module, "BLOCK", 1 << shift)
    windowed = (read_tasks, intervals, framework, python_frames, idle_time, calls, device_context)
    for module in windowed:
        patch.setattr(module, "WINDOW", window)
    patch.setattr(python_frames, "SPARSE", -1024)
    patch.setattr(breakdowns, "_SPARSE", 0)
    patch.setattr(host_calls, "_WINDOW", window)
    patch.setattr(read_tasks, "_KEPT_ROWS", 10)


def random_ranges(rng: np.random.Generator, count: int) -> list[tuple[int, int, int]]:
    """Return (thread, start, end) of ranges, most of which nest."""
    ranges: list[tuple[int, int, int]] = []
    while len(ranges) < count:
        thread, begin = int(rng.integers(1, 4)), int(rng.integers(0, 20_000))
        end = begin + int(rng.integers(10, 4000 if rng.random() < 0.3 else 200))
        ranges.append((thread, begin, end))
        for _ in range(int(rng.integers(6))):
            low = int(rng.integers(begin, end + 1))
            high = int(rng.integers(low, end + 1))
            if rng.random() < 0.02:
                high += 30
            ranges.append((thread, low, high))
            begin, end = (low, high) if rng.random() < 0.5 else (high, max(high, end))
    return ranges


def device_recording(path: Path, *, devices: int, steps: bool, in_order: bool) -> Path:
    """Write 700 overlapping kernels, copies and waits, and 20 collectives."""
    rng = np.random.default_rng(devices)
    start = np.cumsum(rng.integers(0, 40, 700))
    if not in_order:
        start = rng.permutation(start)
    with Device(path) as db:
        for at in start.tolist():
            place: dict[str, Any] = {
                "device": int(rng.integers(devices)),
                "stream": int(rng.integers(3)),
            }
            end = at + int(rng.integers(0, 90 if rng.random() < 0.98 else 9000))
            kind = rng.integers(10)
            if kind < 6:
                number = int(rng.integers(12))
                db.task(at, end, kernel=(f"kernel_{number}", f"Type{number % 5}"), **place)
            elif kind < 8:
                db.task(at, end, "MEMCPY_ASYNC", copy=64, **place)
            else:
                db.task(at, end, "EVENT_WAIT" if kind == 8 else "PROFILING_ENABLE", **place)
        for number in range(20):
            at = int(rng.integers(30_000))
            db.collective(at, at + 300, f"c{number}", "hcom_allReduce_", group=f"g{number % 2}")
        if steps:
            for number in range(4):
                db.step(number, 7000 * number, 7000 * number + 6000)
    return path


def host_recording(path: Path, seed: int, *, in_order: bool, steps: bool, launches: str) -> Path:
    """Write 400 ranges with calls and 500 tasks, most of them with a launch, and some invalid."""
    rng = np.random.default_rng(seed)
    ranges = random_ranges(rng, 400)
    if in_order:
        ranges.sort(key=lambda one: (one[1], -one[2]))
    with Device(path) as db:
        for number in range(6):
            frames = [f"/w/net_{number % 4}.py({number}): f", "nn.Module: Net_0"]
            db.chain(number, *frames[: 1 + number % 2], "/w/train.py(3): run")
        for number, (thread, begin, end) in enumerate(ranges):
            name = NAMES[int(rng.integers(len(NAMES)))]
            db.call(
                begin,
                end,
                name,
                thread=thread,
                sequence=int(rng.integers(-1, 60)),
                forward_thread=int(rng.integers(2)) if "Backward0" in name else 0,
                launches=number + 1000 if launches == "ids" and rng.random() < 0.7 else None,
                chain=int(rng.integers(-1, 8)),
                kind=50003 if name.startswith(("nn.Module", "/home")) else 50001,
                inputs=("2,3;4", "float;float") if rng.random() < 0.5 else None,
            )
            if rng.random() < 0.8:
                name = CALLS[0] if rng.random() < 0.8 else CALLS[int(rng.integers(3))]
                at = int(rng.integers(begin, end + 1))
                db.runtime(at, at + int(rng.integers(20)), name, number + 1000, thread=thread)
        tasks = np.sort(rng.integers(0, 22_000, 500)) if in_order else rng.integers(0, 22_000, 500)
        for at in tasks.tolist():
            connection = int(rng.integers(1000, 1000 + len(ranges) + 20))
            kernel = int(rng.integers(9))
            db.task(
                at,
                at + int(rng.integers(0, 60)),
                "EVENT_WAIT" if kernel == 8 else "KERNEL",
                device=int(rng.integers(2)) if seed % 2 else 0,
                stream=int(rng.integers(3)),
                connection=connection if rng.random() < 0.95 else -1,
                kernel=None if kernel == 8 else (f"kernel_{kernel}", f"aten::type_{kernel % 4}"),
            )
        for number in range(6):
            at = int(rng.integers(20_000))
            db.collective(at, at + 300, f"c{number}", "hcom_allReduce_", group=f"g{number % 2}")
        if steps:
            for number in range(4):
                db.step(number, 5000 * number, 5000 * number + 4500)
        marked = {"message": db.text("marked"), "eventType": 2, "domainId": 65535}
        db.row("MSTX_EVENTS", startNs=5, endNs=9000, globalTid=1, **marked)
        db.writer.write(
            "UPROF_GPU_SYNCS",
            {
                "startNs": np.sort(rng.integers(0, 22_000, 40)) + db.T0,
                "endNs": db.T0 + 22_000,
                "kind": db.text("Stream Wait Event"),
                "deviceId": rng.integers(0, 2, 40) if seed % 2 else 0,
                "streamId": rng.integers(0, 3, 40),
            },
        )
    return path


def all_figures(path: Path) -> list[Any]:
    """Return everything that reports and comparisons compute from a recording."""
    with open_reports(path) as opened:
        document = figures.figures_document(
            figures.gather_figures(opened, ReportRequest(), everything=True)
        )
        (analysis,) = opened.analyses
        timeline = analysis.timeline(limit=120)
        assert timeline is not None
        found: list[Any] = [
            document,
            [[np.asarray(one).tolist() for one in astuple(lane)] for lane in timeline.lanes],
            (timeline.start_ns, timeline.merged_below_ns, timeline.whole_ns, timeline.labels),
            repr(analysis.advice()),
            analysis.kernels_of_operations(),
            sorted(analysis.statistics("operation").items()),
            sorted(analysis.statistics("kernel").items()),
            analysis.launch_latency(),
            repr(analysis.path_track()),
            trees(analysis),
        ]
    run = runs.load([path])
    found += [repr(run.operations.places), run.outside_steps_ns]
    found += [repr(one.tolist()) for one in (run.operations.total_ns, run.operations.backward_ns)]
    compared = diff_recordings([path], [path])
    assert compared is not None
    leaves = compared.base.leaves
    # The number of a text depends on when it was read first, and so does the order of rows.
    columns = (leaves.calls, leaves.runs, leaves.total_ns)
    return [*found, sorted(zip(*(one.tolist() for one in columns), strict=True))]


def check_windows(path: Path, patch: pytest.MonkeyPatch, most_calls: int) -> None:
    """Compare the figures computed in small windows with those computed in default windows."""
    patch.setattr(runs, "_MAX_CALLS", most_calls)
    expected = all_figures(path)
    for shift, window in ((5, 40), (6, 200)):
        use_small_windows(patch, shift, window)
        for found, figure in zip(all_figures(path), expected, strict=True):
            assert found == figure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "steps", "in_order"),
    [
        (2, True, False),
        pytest.param(1, False, True, marks=pytest.mark.slow),
        pytest.param(1, True, False, marks=pytest.mark.slow),
        pytest.param(2, False, False, marks=pytest.mark.slow),
    ],
)
def test_device_figures_do_not_depend_on_window_size(
    devices: int, steps: bool, in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "msprof_1.db"
    device_recording(path, devices=devices, steps=steps, in_order=in_order)
    check_windows(path, monkeypatch, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "in_order", "steps", "launches", "most_calls"),
    [
        (1, True, True, "ids", 200),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                (2, False, True, "ids", 20),
                (3, True, False, "times", 100),
                (4, False, False, "times", 20_000),
                (5, False, True, "times", 200),
                (6, True, True, "ids", 20),
            )
        ),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_host_figures_do_not_depend_on_window_size(
    seed: int,
    in_order: bool,
    steps: bool,
    launches: str,
    most_calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "msprof_1.db"
    host_recording(path, seed, in_order=in_order, steps=steps, launches=launches)
    check_windows(path, monkeypatch, most_calls)


def test_long_gaps_equal_the_long_ones_among_all_gaps(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as db:
        begin = 0
        for pause in (10, 2000, 30, 7000, 50):
            db.task(begin, begin + 100, kernel=("a", "b"))
            begin += 100 + pause
        db.task(begin, begin + 100, kernel=("a", "b"))
    with open_reports(tmp_path / "msprof_1.db") as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        idle = analysis.recording.idle_time
        (name,) = analysis.recording.devices

        def long_gaps() -> list[int]:
            parts = idle.long_segments(name, 0.1)
            lengths = np.concatenate([one.end_ns - one.start_ns for one in parts])
            return [one for one in lengths.tolist() if one > 0.1 * (begin + 100)]

        assert long_gaps() == [2000, 7000]
        assert sum(len(one.start_ns) for one in idle.parts(name)) == 5
        assert long_gaps() == [2000, 7000]
        assert sum(len(one.start_ns) for one in idle.long_segments(name, 0.1)) == 2
        assert sum(len(one.start_ns) for one in idle.long_segments(name, 0.001)) == 5


RANGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40
)


@given(RANGES, st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_nesting_does_not_depend_on_window_size(
    ranges: list[tuple[int, int, int]], marks: list[bool], window: int
) -> None:
    thread, one, other = np.array(ranges, np.int64).T
    start, end = 1_000 * np.minimum(one, other), 1_000 * np.maximum(one, other)  # some cross
    order = intervals.call_order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    marked = np.array(marks[: len(order)])
    parent = intervals.around(thread, start, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "WINDOW", window)
        columns = (packed.pack(column) for column in (thread, start, end - start))
        tree = intervals.Nest(*columns)
        assert tree.parent.to_array().tolist() == parent.tolist()
        nearest = tree.nearest(lambda some: marked[some.rows])
        assert nearest.to_array().tolist() == intervals.nearest_marked(parent, marked).tolist()
        below, top = intervals.Below(), []
        for some in tree.windows():
            top += below.next_window(some, marked[some.rows]).tolist()
        expected: list[int] = []
        for index, above in enumerate(parent.tolist()):
            is_top = above == intervals.NONE or marked[above]
            expected.append(-1 if marked[index] else index if is_top else expected[above])
        assert top == expected


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=30
    ),
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 3),
)
@settings(max_examples=300)
def test_order_of_calls_does_not_depend_on_window_size(
    ranges: list[tuple[int, int, int]], by_start: bool, window: int, shift: int
) -> None:
    if by_start:  # as most recordings are
        ranges.sort(key=lambda one: one[1])
    thread, start, duration = np.array(ranges, np.int64).T
    with pytest.MonkeyPatch.context() as patch:
        use_small_windows(patch, shift, window)
        found = host_calls._call_order(*map(packed.pack, (thread, start, duration)))
    order = np.arange(len(ranges)) if found is None else found
    assert order.tolist() == np.lexsort((-duration, start, thread)).tolist()


@pytest.mark.parametrize("window", [2, 1000])
def test_device_time_by_operator_does_not_depend_on_window_size(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_windows(monkeypatch, 1, window)
    tasks = [(700, 5, "Mul"), (100, 9, "Add"), (300, 4, "Mul"), (100, 2, "Cast"), (900, 1, "Add")]
    with Device(tmp_path / "msprof_1.db") as device:
        for start, length, operator in tasks:
            device.task(start, start + length, kernel=(f"{operator}_kernel", operator))
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        assert isinstance(analysis, MsprofAnalysis)
        assert analysis.summed_calls(above=len(tasks)) is None
        found = analysis.summed_calls(above=len(tasks) - 1)
    assert found is not None
    assert found.start_ns is not None
    assert found.total_ns is not None
    rows = zip(found.name.tolist(), found.total_ns, found.start_ns, strict=True)
    assert [(found.labels.texts[row], total, start - Device.T0) for row, total, start in rows] == [
        ("Add", 10, 100), ("Cast", 2, 100), ("Mul", 9, 300)
    ]  # fmt: skip
