"""Backward time counts for the forward operation, and totals are preserved."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_skyline import breakdown_of, by_name, summary_of
from tests.decoders.kineto import builders
from unified_prof.explain.api import open_analyses
from unified_prof.pipeline.convert import convert

TASK_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
COMPLETE_BREAKDOWNS = (
    "operation",
    "module",
    "line",
    "kernel",
    "class",
    "self",
    "shape",
    "sequence",
)
ENGINE = "autograd::engine::evaluate_function: "


def convert_events(tmp_path: Path, *events: builders.Event) -> Path:
    convert(builders.write(tmp_path / "trace.json", events), tmp_path / "trace.db")
    return tmp_path / "trace.db"


def operation(
    name: str, thread: int, start_us: float, length_us: float, sequence: int, forward: int = 0
) -> builders.Event:
    args = {"Sequence number": sequence, "Fwd thread id": forward}
    return builders.operation(name, start_us, length_us, tid=thread, args=args)


def with_kernel(event: builders.Event, length_us: float) -> tuple[builders.Event, ...]:
    correlation = event["ts"] + 1_000
    start_us, thread = event["ts"] + 1, event["tid"]
    return (
        event,
        builders.call(start_us, 1, correlation, tid=thread),
        builders.kernel(start_us + 1, length_us, correlation),
    )


def flow(number: int, source: builders.Event, target: builders.Event) -> tuple[builders.Event, ...]:
    ends = (("s", source), ("f", target))
    return tuple(
        {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": number}
        | {key: event[key] for key in ("pid", "tid", "ts")}
        for phase, event in ends
    )


def backward_ns(report: Path) -> dict[str, int | None]:
    return {row.name: row.backward_ns for row in breakdown_of(report, "operation").rows}


@pytest.mark.parametrize("flows", [True, False])
def test_equal_sequence_numbers_on_two_threads_are_two_nodes(tmp_path: Path, flows: bool) -> None:
    # Without flows nothing relates the backward threads to the forward threads.
    forward = (operation("aten::conv2d", 11, 0, 10, 0), operation("aten::linear", 12, 20, 10, 0))
    backward = (
        operation(ENGINE + "ConvolutionBackward0", 21, 100, 20, 0, forward=1),
        operation(ENGINE + "AddmmBackward0", 22, 130, 10, 0, forward=2),
    )
    events: list[builders.Event] = []
    for event, length_us in zip((*forward, *backward), (5, 5, 15, 5), strict=True):
        events += with_kernel(event, length_us)
    if flows:
        events += [*flow(1, forward[0], backward[0]), *flow(2, forward[1], backward[1])]
        expected = {"aten::conv2d": 15_000, "aten::linear": 5_000}
    else:
        expected = {"ConvolutionBackward0": 15_000, "AddmmBackward0": 5_000}
        expected |= {"aten::conv2d": None, "aten::linear": None}  # type: ignore[dict-item]
    assert backward_ns(convert_events(tmp_path, *events)) == expected


def test_gradients_are_accumulated_in_the_backward_pass(tmp_path: Path) -> None:
    """Traces of torch 1 have no range of the engine around the nodes of its thread."""
    name = "torch::autograd::AccumulateGrad"
    accumulate = builders.operation(name, 100, 10, tid=21)
    sum_of_branches = builders.operation("aten::add", 120, 10, tid=21)
    forward = operation("aten::mm", 11, 0, 10, 0)
    events = (with_kernel(one, 4) for one in (forward, accumulate, sum_of_branches))
    report = convert_events(tmp_path, *(event for group in events for event in group))
    assert backward_ns(report) == {"aten::mm": None, name: 4_000, "aten::add": 4_000}


def test_operation_names_identify_the_forward_thread_if_there_are_no_flows(tmp_path: Path) -> None:
    events: list[builders.Event] = []
    for thread, name, node in ((11, "mm", "Mm"), (12, "relu", "Relu")):
        events += with_kernel(operation(f"aten::{name}", thread, 10 * thread, 5, 0), 1)
        events += with_kernel(operation("aten::add", thread, 10 * thread + 5, 5, 1), 1)
        start_us, forward = 10 * thread + 200, thread - 10
        events += with_kernel(
            operation(f"{node}Backward0", thread + 10, start_us, 5, 0, forward), thread
        )
        events += with_kernel(
            operation("SumBackward0", thread + 10, start_us + 5, 5, 1, forward), 2 * thread
        )
    expected = {"aten::mm": 11_000, "aten::relu": 12_000, "aten::add": 46_000}
    assert backward_ns(convert_events(tmp_path, *events)) == expected


@pytest.mark.parametrize("recorded", [True, False])
def test_node_of_a_custom_function_keeps_its_name(tmp_path: Path, recorded: bool) -> None:
    forward = [operation("aten::zero_", 11, 0, 10, 0)]
    if recorded:
        forward.append(operation("CompiledFunction", 11, 20, 10, 0))
    node = operation(ENGINE + "CompiledFunctionBackward", 21, 100, 20, 0, forward=1)
    events = [*with_kernel(forward[0], 5), *forward[1:], *with_kernel(node, 15)]
    expected = {"aten::zero_": None, "CompiledFunctionBackward": 15_000}
    assert backward_ns(convert_events(tmp_path, *events)) == expected


def test_work_in_an_annotation_within_a_node_counts_for_the_node(tmp_path: Path) -> None:
    forward = operation("aten::pow", 11, 0, 10, 3)
    report = convert_events(
        tmp_path,
        *with_kernel(forward, 5),
        operation("torch::jit::DifferentiableGraphBackward", 21, 100, 50, 3, forward=1),
        operation("<backward op>", 21, 105, 40, -1),
        *with_kernel(operation("aten::matmul", 21, 110, 20, -1), 15),
    )
    expected = {"aten::pow": None, "torch::jit::DifferentiableGraphBackward": 15_000}
    assert backward_ns(report) == expected


@pytest.mark.parametrize("kernels_have_id", [True, False])
@pytest.mark.parametrize(("thread", "start_us"), [(11, 115), (11, 160), (12, 115)])
def test_graph_launch_belongs_to_the_operation_with_its_external_id(
    tmp_path: Path, thread: int, start_us: float, kernels_have_id: bool
) -> None:
    # HIP records launches after the end of the operation, and on other threads.
    events: list[builders.Event] = [operation("aten::mm", 11, 0, 10, 3)]
    regions = (("Torch-Compiled Region: 0/0", 4, 0), ("MmBackward0", 3, 1))
    for number, (name, sequence, forward) in enumerate(regions, start=1):
        external, shift = 5650 + number, 100 * (number - 1)
        region = operation(name, 11, 110 + shift, 40, sequence, forward)
        events.append(region | {"args": region["args"] | {"External id": external}})
        args = {"External id": external, "correlation": number}
        launch = builders.call(start_us + shift, 5, number, tid=thread, args=args)
        events.append(launch | {"name": "hipGraphLaunch"})
        for at in (170, 180):
            kernel = builders.kernel(at + shift, number, number)
            kernel["args"]["External id"] = external
            if not kernels_have_id:
                del kernel["args"]["External id"]
            events.append(kernel)
    report = convert_events(tmp_path, *events)
    by_self = by_name(breakdown_of(report, "self"))
    found = {name: (row.extra["launches"], row.total_ns) for name, row in by_self.items()}
    assert found == {
        "Torch-Compiled Region: 0/0": (2, 2_000),
        "MmBackward0": (2, 4_000),
        "aten::mm": (0, 0),
    }
    by_operation = by_name(breakdown_of(report, "operation"))
    assert {name: (row.forward_ns, row.backward_ns) for name, row in by_operation.items()} == {
        "Torch-Compiled Region: 0/0": (2_000, None),
        "aten::mm": (None, 4_000),
    }


def test_host_only_recording_has_backward_time_by_operation(tmp_path: Path) -> None:
    report = convert_events(
        tmp_path,
        operation("aten::conv2d", 11, 0, 50, 0),
        operation("aten::convolution", 11, 10, 30, 0),
        operation("Compiled Region: 0/0", 11, 60, 20, 1),
        operation("aten::relu", 11, 65, 5, 1),
        operation(ENGINE + "ReluBackward0", 11, 100, 20, 1, forward=1),
        operation("ReluBackward0", 11, 105, 10, 1, forward=1),
        operation(ENGINE + "ConvolutionBackward0", 11, 120, 80, 0, forward=1),
        operation("ConvolutionBackward0", 11, 125, 70, 0, forward=1),
        operation("aten::convolution_backward", 11, 130, 60, -1),
        operation(ENGINE + "torch::autograd::AccumulateGrad", 11, 200, 10, -1),
        operation("torch::autograd::AccumulateGrad", 11, 202, 6, -1),
    )
    rows = by_name(breakdown_of(report, "operation"))
    assert {name: (row.count, row.forward_ns, row.backward_ns) for name, row in rows.items()} == {
        "aten::conv2d": (1, 50_000, 80_000),
        "Compiled Region: 0/0": (1, 15_000, None),
        "aten::relu": (1, 5_000, 20_000),
        "torch::autograd::AccumulateGrad": (1, None, 10_000),
    }
    totals = summary_of(report).totals
    assert (totals.total_ns, totals.backward_ns) == (180_000, 110_000)


def outermost_ns(trace: Path) -> int:
    """Return the total time of the outermost operations of each thread."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()), strict=False)[
        "traceEvents"
    ]
    spans = sorted(
        (str(event["tid"]), event["pid"], float(event["ts"]), -float(event["dur"]))
        for event in events
        if event.get("ph") == "X" and event["cat"] in ("cpu_op", "Operator")
        if not event["name"].startswith("ProfilerStep")
    )
    total, open_until, thread = 0.0, 0.0, ("", 0)
    for tid, pid, start, minus_duration in spans:
        if (tid, pid) != thread or start >= open_until:
            total += -minus_duration
            open_until, thread = start - minus_duration, (tid, pid)
    return round(total * 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "rank_non_gpu__rank_non_gpu",
        "nccl_parser_config__nccl_data",
        "mi300_resnet_act_checkpoint",
        "timeline_analysis__sampled_rank-0",
        "critical_path__simple_add",
    ],
)
def test_host_times_add_up_to_the_operations(shared: Path, tmp_path: Path, name: str) -> None:
    """Kernels are removed so that times are host times."""
    trace = shared / "samples" / "kineto" / f"{name}.json.gz"
    document = json.loads(gzip.decompress(trace.read_bytes()), strict=False)
    host = [
        event
        for event in document["traceEvents"]
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync")
    ]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(document | {"traceEvents": host}))
    convert(path, tmp_path / "host.db")
    found = breakdown_of(tmp_path / "host.db", "operation")
    assert found.total_ns == pytest.approx(outermost_ns(trace), rel=1e-6)


@pytest.mark.slow
def test_every_breakdown_adds_up_to_the_device_time(shared: Path, tmp_path: Path) -> None:
    wrong = []
    for trace in sorted((shared / "samples" / "kineto").glob("*.json.gz")):
        events = json.loads(gzip.decompress(trace.read_bytes()), strict=False)["traceEvents"]
        expected = sum(
            round(float(event["dur"]) * 1000)
            for event in events
            if event.get("ph") == "X" and str(event.get("cat")).lower() in TASK_CATEGORIES
        )
        convert(trace, tmp_path / f"{trace.name}.db")
        with open_analyses(tmp_path / f"{trace.name}.db") as (analysis,):
            for by in analysis.summary.available:
                if expected and by in COMPLETE_BREAKDOWNS:
                    total = analysis.breakdown(by).total_ns
                    if total != expected:
                        wrong.append((trace.name, by, total, expected))
    assert not wrong


@pytest.mark.slow
def test_collectives_are_grouped_by_kernel(shared: Path, tmp_path: Path) -> None:
    trace = shared / "samples" / "kineto" / "nccl_parser_config__nccl_data.json.gz"
    convert(trace, tmp_path / "trace.db")
    rows = by_name(breakdown_of(tmp_path / "trace.db", "kernel"))
    events = json.loads(gzip.decompress(trace.read_bytes()), strict=False)["traceEvents"]
    expected = [
        event["dur"] for event in events if event["name"].startswith("ncclKernel_AllReduce")
    ]
    (found,) = (row for name, row in rows.items() if name.startswith("ncclKernel_AllReduce"))
    assert (found.count, found.total_ns) == (len(expected), round(1000 * sum(expected)))
