"""Results for host ranges do not depend on the size of windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import Device
from unified_prof.arrays import nesting, packed
from unified_prof.compare import runs
from unified_prof.compare.device_diff import of_devices
from unified_prof.explain.advice import device_context
from unified_prof.explain.api import open_reports
from unified_prof.explain.skyline import trees
from unified_prof.recording import calls, framework, host_calls, idle_time
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


def _small_windows(patch: pytest.MonkeyPatch, shift: int, window: int) -> None:
    """Let everything be worked out some dozen rows at a time."""
    patch.setattr(packed, "_SHIFT", shift)
    for module in (packed, host_calls):
        patch.setattr(module, "BLOCK", 1 << shift)
    for module in (read_tasks, nesting, framework, idle_time, calls, device_context):
        patch.setattr(module, "WINDOW", window)
    patch.setattr(host_calls, "_WINDOW", window)
    patch.setattr(read_tasks, "_KEPT_ROWS", 10)


def _ranges(rng: np.random.Generator, count: int) -> list[tuple[int, int, int]]:
    """Return threads, starts and ends of ranges that nest, but for some."""
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        thread, begin = int(rng.integers(1, 4)), int(rng.integers(0, 20_000))
        end = begin + int(rng.integers(10, 4000 if rng.random() < 0.3 else 200))
        found.append((thread, begin, end))
        for _ in range(int(rng.integers(6))):
            low = int(rng.integers(begin, end + 1))
            high = int(rng.integers(low, end + 1))
            if rng.random() < 0.02:
                high += 30
            found.append((thread, low, high))
            begin, end = (low, high) if rng.random() < 0.5 else (high, max(high, end))
    return found


def _recording(path: Path, seed: int, *, in_order: bool, steps: bool, launches: str) -> Path:
    """Write some hundred ranges, calls and tasks, many of them joined and some odd."""
    rng = np.random.default_rng(seed)
    ranges = _ranges(rng, 400)
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
                what = CALLS[0] if rng.random() < 0.8 else CALLS[int(rng.integers(3))]
                at = int(rng.integers(begin, end + 1))
                db.runtime(at, at + int(rng.integers(20)), what, number + 1000, thread=thread)
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
            begins = np.arange(4) * 5000 + db.T0
            columns = {"id": np.arange(4), "startNs": begins, "endNs": begins + 4500}
            db.writer.write("STEP_TIME", columns)
        rows: dict[str, Any] = {
            "startNs": [db.T0 + 5],
            "endNs": db.T0 + 9000,
            "globalTid": 1,
            "domainId": 65535,
        }
        rows |= {"message": db.text("marked"), "eventType": 2}
        db.writer.write("MSTX_EVENTS", rows)
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


def _figures(path: Path) -> list[Any]:
    with open_reports(path) as opened:
        document = figures.figures_document(
            figures.gather_figures(opened, ReportRequest(), everything=True)
        )
        (analysis,) = opened.analyses
        told: list[Any] = [
            document,
            repr(analysis.advice()),
            analysis.kernels_of_operations(),
            sorted(analysis.statistics("operation").items()),
            sorted(analysis.statistics("kernel").items()),
            analysis.launch_delay(),
            repr(analysis.path_track()),
        ]
        drawn = trees(analysis)
    run = runs.load([path])
    told += [drawn, repr(run.operations.places), run.outside_steps_ns]
    told += [repr(one.tolist()) for one in (run.operations.total_ns, run.operations.backward_ns)]
    compared = of_devices([path], [path])
    assert compared is not None
    leaves = compared.base.leaves
    columns = (leaves.calls, leaves.runs, leaves.total_ns)
    return [*told, sorted(zip(*(one.tolist() for one in columns), strict=True))]


@pytest.mark.parametrize(
    ("seed", "in_order", "steps", "launches", "most"),
    [
        (1, True, True, "ids", 200),
        *(
            pytest.param(seed, order, steps, launches, most, marks=pytest.mark.slow)
            for seed, order, steps, launches, most in (
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
def test_windows_of_any_size_tell_the_same(
    seed: int,
    in_order: bool,
    steps: bool,
    launches: str,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = _recording(
        tmp_path / "msprof_1.db", seed, in_order=in_order, steps=steps, launches=launches
    )
    monkeypatch.setattr(runs, "_MAX_CALLS", most)
    whole = _figures(path)
    for shift, window in ((5, 40), (6, 200)):
        _small_windows(monkeypatch, shift, window)
        for mine, theirs in zip(_figures(path), whole, strict=True):
            assert mine == theirs


RANGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40
)


@given(RANGES, st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_a_tree_in_windows_is_the_tree(
    ranges: list[tuple[int, int, int]], marks: list[bool], window: int
) -> None:
    thread, one, other = np.array(ranges, np.int64).T
    start, end = 1_000 * np.minimum(one, other), 1_000 * np.maximum(one, other)  # some cross
    order = nesting.call_order(thread, start, end)
    thread, start, end = thread[order], start[order], end[order]
    marked = np.array(marks[: len(order)])
    parent = nesting.around(thread, start, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "WINDOW", window)
        columns = (packed.pack(column) for column in (thread, start, end - start))
        tree = nesting.Nest(*columns)
        assert tree.parent.to_array().tolist() == parent.tolist()
        nearest = tree.nearest(lambda some: marked[some.rows])
        assert nearest.to_array().tolist() == nesting.nearest_marked(parent, marked).tolist()
        below, top = nesting.Below(), []
        for some in tree.windows():
            top += below.next_window(some, marked[some.rows]).tolist()
        assert top == nesting.climb(parent, marked).tolist()
