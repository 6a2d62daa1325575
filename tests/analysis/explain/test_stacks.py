"""Call stacks: each nanosecond is in exactly one stack."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import Device, memory_report, run_time_report
from tests.analysis.explain.test_replayed import ADD, MM, write_capture, write_replay
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_reports
from unified_prof.explain.report_questions import Analysis
from unified_prof.recording.breakdowns import Frame, Stacks, path_samples
from unified_prof.recording.model import Place


def stacks(
    path: Path, measure: str, by: Place | None = None, capture: Path | None = None
) -> Stacks:
    with open_reports(path, capture=capture) as opened:
        return opened.analyses[0].stacks(measure, by)


def weight_by_stack(found: Stacks) -> dict[str, int]:
    return {";".join(one.name for one in each.frames): each.weight for each in found.samples}


def query(path: Path, question: Callable[[Analysis], object]) -> object:
    with open_reports(path) as opened:
        return question(opened.analyses[0])


@given(
    tree=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3)), min_size=1, max_size=6),
    ranges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 2)), max_size=9),
)
def test_paths_of_nested_ranges_are_summed(
    tree: list[tuple[int, int]], ranges: list[tuple[int, int, int]]
) -> None:
    """Compare with paths that are followed one by one; a path is above those after it."""
    above = [min(up, at - 1) for at, (up, _) in enumerate(tree)]
    labels = [label for _, label in tree]
    columns = [(number % len(tree), weight, group) for number, weight, group in ranges]
    number, weight, group = np.array(columns, np.int64).reshape(-1, 3).T
    expected: dict[tuple[int, int], list[int]] = {}
    for node, own, begin in columns:
        if own:
            expected.setdefault((begin, node), []).append(own)
    found = path_samples(
        *(number, np.array(above), np.array(labels), weight),
        frame=lambda label: Frame(str(label), "line"),
        begin=lambda group: (Frame(f"thread {group}", "thread"),),
        beginning=group,
    )
    for sample, ((begin, node), weights) in zip(found, sorted(expected.items()), strict=True):
        names = []
        while node >= 0:
            names.append(str(labels[node]))
            node = above[node]
        assert [one.name for one in sample.frames] == [f"thread {begin}", *reversed(names)]
        assert (sample.weight, sample.count) == (sum(weights), len(weights))


def test_host_stack_has_the_self_time_of_each_call(tmp_path: Path) -> None:
    with Device(tmp_path / "step.db") as device:
        device.call(0, 1000, "ProfilerStep#4")
        device.call(1000, 1500, "ProfilerStep#5")
        device.call(100, 500, "/w/train.py(12): step", kind=50001 + 2)
        device.call(200, 400, "aten::mm")
        device.runtime(210, 240, "aclnnMm", 7)
        device.runtime(10, 60, "aclrtSync", 8, thread=(3 << 32) | 9)
    found = weight_by_stack(stacks(tmp_path / "step.db", "host"))
    assert sum(found.values()) == 1550
    assert found["thread 9;aclrtSync"] == 50
    assert found["thread 1;ProfilerStep"] == 1100, "both steps are one frame"
    assert [weight for text, weight in found.items() if text.endswith("aten::mm")] == [170]
    assert [weight for text, weight in found.items() if text.endswith("aclnnMm")] == [30]


def test_single_thread_has_no_thread_frame(tmp_path: Path) -> None:
    with Device(tmp_path / "one.db") as device:
        device.runtime(10, 60, "cudaLaunchKernel", 7)
        device.runtime(10, 60, "cuLaunchKernel", 8)
    found = stacks(tmp_path / "one.db", "host")
    assert sorted(weight_by_stack(found).values()) == [50]
    assert found.samples[0].frames[0].name.endswith("LaunchKernel")


def test_kernels_without_launch_are_stacked_under_their_operator_type(tmp_path: Path) -> None:
    with Device(tmp_path / "plain.db") as device:
        device.task(0, 10, kernel=("mm_1", "MatMul"))
        device.task(20, 25, kernel=("mm_2", "MatMul"))
        device.task(30, 31, kernel=("Add", "Add"))
    assert weight_by_stack(stacks(tmp_path / "plain.db", "device")) == {
        "MatMul;mm_1": 10,
        "MatMul;mm_2": 5,
        "Add": 1,
    }
    with pytest.raises(UsageError, match="no stacks by module"):
        stacks(tmp_path / "plain.db", "device", "module")


def test_replayed_kernels_are_stacked_under_their_captured_operation(tmp_path: Path) -> None:
    kernels = [(30, None), (5, None), (40, None)]
    replayed = write_replay(tmp_path / "replay.db", kernels, kernels)
    captured = write_capture(tmp_path / "capture.db", [MM, ADD, MM])
    assert weight_by_stack(stacks(replayed, "device", capture=captured)) == {
        "train.py:3;net.py:9;aten::mm;k0": 60,
        "train.py:3;net.py:9;aten::add;k1": 10,
        "train.py:3;net.py:9;aten::mm;k2": 80,
        "(no source line);aten::relu;relu": 7,
    }
    assert stacks(replayed, "device").total == 157


def test_tracked_operations_are_stacked_under_lines_or_modules(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "run_time.sqlite")
    assert weight_by_stack(stacks(path, "time")) == {
        "model.py:30;model.py:12;linear": 4_500_000,
        "model.py:30;model.py:14;linear": 1_500_000,
        "model.py:30;model.py:13;relu": 250_000,
    }
    assert stacks(path, "forward").total == 2_250_000
    assert weight_by_stack(stacks(path, "backward")).keys() == {
        "model.py:30;model.py:12;linear",
        "model.py:30;model.py:14;linear",
    }
    modules = [("net.one", "Linear"), ("net", "Net"), ("", "Model")]
    path = run_time_report(tmp_path / "modules.sqlite", modules=modules)
    assert set(weight_by_stack(stacks(path, "time"))) == {
        "net;one;linear",
        "net;relu",
        "(root);linear",
    }
    assert "model.py:30;model.py:13;relu" in weight_by_stack(stacks(path, "time", "line"))


def test_memory_stacks_have_weights_and_activations(tmp_path: Path) -> None:
    path = memory_report(tmp_path / "memory.sqlite")
    assert query(path, lambda one: one.measures) == ("memory",)
    assert weight_by_stack(stacks(path, "memory")) == {
        "model.py:5;weight": 8000,
        "model.py:30;model.py:12;linear": 800,
        "model.py:5;bias": 40,
    }
