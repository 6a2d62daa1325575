"""Device time is attributed to the operations, modules and lines that launched it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, training_step
from tests.analysis.test_skyline import breakdown_of, by_name, summary_of
from tests.sql import execute
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_step(tmp_path_factory.mktemp("msprof") / "msprof_1.db")


def test_kernels_are_listed_by_operation(step: Path) -> None:
    with open_analyses(step) as (analysis,):
        under = {(op, row.name): row.total_ns for op, row in analysis.kernels_of_operations()}
    assert under["aten::linear", "mm_kernel"] == 250
    assert under["aten::relu", "relu_grad"] == 70
    assert sum(time or 0 for time in under.values()) == 640


def test_device_window_excludes_profiler_markers_and_waits(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 20, "PROFILING_ENABLE", stream=0)
        device.task(400, 900, "EVENT_WAIT", stream=3)
        device.task(1000, 1100, kernel=("a", "MatMul"))
        device.task(1300, 1350, "MEMCPY_ASYNC", copy=4)
        device.task(9980, 10_000, "PROFILING_DISABLE", stream=0)
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        (found,) = analysis.summary.devices
        streams = by_name(analysis.breakdown("stream"))
        drawn = analysis.timeline()
        traced = [track for track in analysis.tracks() if track.group == "device 0"]
    assert (found.window_ns, found.idle_ns, found.busy_ns, found.tasks) == (350, 200, 150, 5)
    assert found.steps is None
    windows = [streams[f"stream {number}"].extra["window_ns"] for number in (0, 2, 3)]
    assert windows == [None, 350, None]
    assert drawn is not None
    assert (drawn.start_ns, drawn.duration_ns) == (Device.T0 + 400, 950)
    assert sum(len(track) for track in traced) == 5, "a trace contains every task"


def test_device_with_waits_only_has_no_window(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 20, "PROFILING_ENABLE")
        device.task(400, 900, "EVENT_WAIT")
    (found,) = summary_of(tmp_path / "msprof_1.db").devices
    assert (found.window_ns, found.idle_ns, found.tasks) == (0, 0, 2)


def test_idle_time_of_steps_excludes_time_between_steps(tmp_path: Path) -> None:
    """Tasks before the first step and between two steps belong to no step."""
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 1000), (2, 3000)):
            device.step(number, start, start + 1000)
        device.task(0, 500, kernel=("a", "A"))
        device.task(1100, 1400, kernel=("a", "A"))
        device.task(1900, 2200, kernel=("late", "A"))  # starts in step 1 and ends after it
        device.task(3000, 3100, kernel=("a", "A"))
    (found,) = summary_of(tmp_path / "msprof_1.db").devices
    assert (found.window_ns, found.compute_ns, found.idle_ns) == (3100, 1200, 1900)
    assert found.steps is not None
    assert (found.steps.window_ns, found.steps.compute_ns) == (1200 + 1000, 700)
    assert found.steps.idle_ns == 2200 - 700
    rows = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    assert [row.extra["idle_ns"] for row in rows] == [600, 900]
    assert sum(row.extra["idle_ns"] or 0 for row in rows) == found.steps.idle_ns
    assert found.share_basis is found.steps


def test_step_is_not_idle_while_tasks_of_another_step_run(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 0), (2, 1000)):
            device.step(number, start, start + 1000)
            device.row("CANN_API", startNs=start + 1, endNs=start + 2, connectionId=number)
        device.task(100, 1500, kernel=("a", "A"), connection=1)
        device.task(1200, 1900, kernel=("b", "B"), connection=2, stream=5)  # overlaps step 1
    first, second = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    # Step 2 begins at 1500 on the device: what runs before is part of step 1.
    assert (first.extra["compute_ns"], second.extra["compute_ns"]) == (1400, 400)
    assert (first.extra["idle_ns"], second.extra["idle_ns"]) == (100, 100)


@pytest.mark.parametrize(
    ("is_late", "graph"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_parts_of_steps_add_up_to_their_length(tmp_path: Path, is_late: bool, graph: bool) -> None:
    """The device runs work of earlier steps, or of a graph, whose launches were not recorded."""
    delay_ns = 2500 if is_late else 0
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 0), (2, 1000)):
            device.step(number, start, start + 1000)
            device.runtime(start + 10, start + 20, "launch", number)
            begin = start + 100 + delay_ns
            device.task(begin, begin + 500, kernel=("a", "A"), connection=number)
        if graph:
            device.runtime(1, 2, "graphLaunch", 9)
        if is_late:
            device.collective(1100, 2300, "hcom_allReduce__1", "hcom_allReduce_")
            device.task(2200, 2500, copy=64)
    first, second = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    for row in (first, second):
        figures = {name: value or 0 for name, value in row.extra.items()}
        exposed = figures["communication_ns"] - figures["overlap_ns"]
        copied = (row.total_ns or 0) - figures["compute_ns"] - exposed - figures["idle_ns"]
        has_copy = is_late and graph and row is first
        assert copied == (200 if has_copy else 0)  # the part without overlap
    assert first.extra["communication_ns"] == (1200 * graph if is_late else None)


def test_collective_lasts_from_its_first_to_its_last_task(tmp_path: Path) -> None:
    """Waits for other ranks in between count, as they do within a single NCCL kernel."""
    with Device(tmp_path / "msprof_1.db") as device:
        parts = [device.task(0, 10, "SDMA"), device.task(90, 100, "SDMA")]
        device.task(10, 90, "Notify Wait")
        device.collective(0, 100, "hcom_allReduce__1", "hcom_allReduce_")
        for part in parts:
            device.row("COMMUNICATION_TASK_INFO", opId=1, globalTaskId=part)
        # The other device has no collective rows: its communication tasks are listed instead.
        task = device.task(0, 30, "SDMA", device=1)
        device.row("COMMUNICATION_TASK_INFO", opId=2, globalTaskId=task)
    path = tmp_path / "msprof_1.db"
    assert communication_ns(path) == {"device 0": 100, "device 1": 30}
    rows = breakdown_of(path, "operation").rows
    assert {(row.name, row.kind, row.total_ns) for row in rows} == {
        ("hcom_allReduce_", "communication", 100),
        ("SDMA", "communication", 30),
    }


def test_step_without_collectives_has_zero_communication_time(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.step(1, 0, 1000)
        device.step(2, 1000, 2000)
        device.collective(100, 200, "hcom_allReduce__1", "hcom_allReduce_")
        device.task(1100, 1200, kernel=("a", "A"))
    rows = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    assert [row.extra["communication_ns"] for row in rows] == [100, 0]


def test_task_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    """The device runs one step behind the host, and its last task ends after both steps."""
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        for step in (0, 1):
            start = 1000 * step
            device.step(step, start, start + 1000)
            device.runtime(start + 10, start + 20, "launch", 7 + step)
        device.task(900, 1700, kernel=("first", "MatMul"), connection=7)
        device.task(1700, 2400, kernel=("second", "MatMul"), connection=8)
        device.task(2000, 2100, copy=64)  # without a launch: it belongs to no step that has ended
    first, second = breakdown_of(path, "step").rows
    assert (first.extra["compute_ns"], second.extra["compute_ns"]) == (800, 700)
    assert first.extra["idle_ns"] == 1700 - 800  # until its last task ends
    assert second.extra["idle_ns"] == 0  # from then on
    assert (first.total_ns, second.total_ns) == (1700, 700)  # the device is busy or idle


@pytest.mark.parametrize("revision", ["1.0.0_20240516", "1.1.1_20250620", "latest"])
def test_operator_types_replace_missing_operations(tmp_path: Path, revision: str) -> None:
    with Device(tmp_path / "msprof_1.db", revision) as device:
        device.task(0, 10, kernel=("a", "MatMul"))
        device.task(10, 30, kernel=("b", "MatMul"), device=1)
        device.task(30, 35, kernel=("c", "N/A"))
        device.task(5, 9, "EVENT_RECORD")
    breakdown = breakdown_of(tmp_path / "msprof_1.db", "operation")
    assert [(row.name, row.kind, row.count, row.total_ns) for row in breakdown.rows] == [
        ("MatMul", "kernel", 2, 30),
        ("c", "kernel", 1, 5),
    ]
    assert all(row.forward_ns is None for row in breakdown.rows)
    found = summary_of(tmp_path / "msprof_1.db")
    assert [device.compute_ns for device in found.devices] == [15, 20]
    assert [device.communication_ns for device in found.devices] == [None, None]


def test_task_type_names_the_operation_if_no_operator_was_recorded(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for index, kind in enumerate(
            ["AI_CORE", "KERNEL_AIVEC", "MEMCPY_ASYNC", "Notify Wait", "PROFILING_ENABLE"]
        ):
            device.task(index * 10, index * 10 + 10, kind)
    rows = breakdown_of(tmp_path / "msprof_1.db", "operation").rows
    assert {(row.name, row.kind) for row in rows} == {
        ("AI_CORE", "kernel"),
        ("KERNEL_AIVEC", "kernel"),
        ("MEMCPY_ASYNC", "copy"),
    }


def test_tasks_with_impossible_times_are_counted_as_anomalies(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 10, kernel=("a", "A"))
        device.task(20, 5, kernel=("a", "A"))
        device.writer.write("TASK", {"startNs": [None, 0, -5], "endNs": [7, 2**63 - 1, 6]})
    breakdown = breakdown_of(tmp_path / "msprof_1.db", "operation")
    found = summary_of(tmp_path / "msprof_1.db")
    assert [(row.name, row.total_ns) for row in breakdown.rows] == [("A", 10)]
    assert [(one.name, one.count) for one in found.anomalies] == [("impossible_task_time", 4)]


def test_operation_that_starts_at_time_zero_is_counted(tmp_path: Path) -> None:
    """Traces without `baseTimeNanoseconds` may start at 0."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(-Device.T0, 10 - Device.T0, "aten::mm", launches=1)
        device.task(20 - Device.T0, 30 - Device.T0, connection=1, kernel=("gemm", "MatMul"))
    found = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))["aten::mm"]
    assert (found.total_ns, found.forward_ns) == (10, 10)
    assert not summary_of(tmp_path / "msprof_1.db").anomalies


def test_invalid_host_start_times_are_counted_as_anomalies(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::linear")
        for text in ("", "unknown", None, "-5"):
            device.writer.write(
                "PYTORCH_API", {"startNs": [text], "endNs": "10", "name": device.text("aten::mm")}
            )
    found = summary_of(tmp_path / "msprof_1.db")
    assert found.totals.total_ns == 100
    assert [(one.name, one.count) for one in found.anomalies] == [("impossible_host_time", 4)]


def test_recording_without_device_tasks_reports_host_time(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::linear")
        device.call(10, 50, "aten::addmm")
        device.call(200, 230, "aten::relu")
    found = summary_of(tmp_path / "msprof_1.db")
    assert found.clock == "host"
    assert found.totals.total_ns == 130
    assert found.devices == ()
    with pytest.raises(UsageError, match="no device work"):
        breakdown_of(tmp_path / "msprof_1.db", "kernel")


def test_empty_database_has_unknown_total_time(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db"):
        pass
    found = summary_of(tmp_path / "msprof_1.db")
    assert found.clock == "none"
    assert found.totals.total_ns is None
    assert found.available == ()


def test_launch_latency_of_more_than_two_seconds(tmp_path: Path) -> None:
    with Device(tmp_path / "a.db") as device:
        for number, start in enumerate((1_000, 4_000_000_000)):
            device.runtime(10 * number, 10 * number + 5, "cudaLaunchKernel", 100 + number)
            device.task(start, start + 10, connection=100 + number, kernel=("k", "K"))
        # A call without a task has no latency.
        device.runtime(100, 105, "cudaLaunchKernel", 999)
    with open_analyses(tmp_path / "a.db") as (analysis,):
        latency = analysis.launch_latency()
    assert latency is not None
    assert (latency.count, latency.max_ns) == (2, 4_000_000_000 - 10)


def test_launch_latency_counts_from_the_launching_call(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(150, 160, connection=9, kernel=("a", "A"))
        device.task(160, 170, connection=9, kernel=("a", "A"))
        device.task(400, 410, connection=10, kernel=("a", "A"))
        device.task(400, 410, connection=-1, kernel=("a", "A"))
        for start, connection in ((100, 9), (380, 10), (0, 4294967295)):
            device.row("CANN_API", startNs=start, endNs=start, connectionId=connection)
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        latency = analysis.launch_latency()
    assert latency is not None
    assert (latency.count, latency.max_ns, latency.total_ns) == (2, 50, 70)


def test_counters_are_reported_over_time_and_by_operator(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        task = device.task(0, 10, kernel=("a", "MatMul"))
        for name, value in (("aic_mac_ratio", 0.5), ("aic_total_cycles", 900)):
            device.row("TASK_PMU_INFO", globalTaskId=task, name=device.text(name), value=value)
        times = [device.T0 + 20, device.T0 + 10]
        columns: dict[str, Any] = {
            "type": device.text("device"),
            "hbm": [7, 5],
            "timestampNs": times,
        }
        device.writer.write("NPU_MEM", {**columns, "deviceId": 0})
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        (hbm,) = analysis.memory_series()
        ratio, cycles = analysis.pmu()
        peak = analysis.summary.totals.peak_bytes
    assert (hbm.name, hbm.unit, hbm.value.tolist()) == ("HBM device", "B", [5.0, 7.0])
    assert (ratio.counter, ratio.mean, ratio.total) == ("aic_mac_ratio", 0.5, None)
    assert (cycles.op_type, cycles.total) == ("MatMul", 900.0)
    assert peak == 7


def test_allocation_counts_for_the_operation_running_at_that_time(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::linear")
        device.call(10, 50, "aten::addmm", launches=3)
        device.call(200, 230, "aten::relu")
        device.task(60, 70, connection=3, kernel=("mm", "MatMul"))
        names = [device.text(name) for name in ("aten::addmm", "aten::relu", "aten::relu")]
        times = [device.T0 + 20, device.T0 + 210, None]
        columns: dict[str, Any] = {"name": names, "size": [512, 1024, 77], "allocationTime": times}
        device.writer.write("OP_MEMORY", columns)
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    linear, relu = rows["aten::linear"], rows["aten::relu"]
    assert (linear.count, linear.total_ns, linear.allocated_bytes) == (1, 10, 512)
    # It allocated memory but has no recorded tasks: its time is unknown, not 0.
    assert (relu.total_ns, relu.allocated_bytes) == (None, 1024)


def test_mstx_ranges_annotate_like_framework_ranges(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        marks = {"Optimizer.step#SGD.step": (300, 400), "nn.Module: Linear_0": (0, 200)}
        for name, (start, end) in marks.items():
            device.row(
                "MSTX_EVENTS", startNs=start, endNs=end, message=device.text(name), globalTid=1
            )
        device.call(10, 100, "aten::linear", launches=3)
        device.call(310, 390, "aten::add_", launches=4)
        device.task(60, 70, connection=3, kernel=("mm", "MatMul"))
        device.task(330, 350, connection=4, kernel=("add", "Add"))
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    assert (rows["aten::linear"].forward_ns, rows["aten::add_"].forward_ns) == (10, None)
    assert summary_of(tmp_path / "msprof_1.db").totals.other_ns == 20
    assert by_name(breakdown_of(tmp_path / "msprof_1.db", "module"))["Linear_0"].total_ns == 10


def test_step_that_starts_within_an_optimizer_range_is_not_optimizer_time(tmp_path: Path) -> None:
    """Hooks after an optimizer step end the iteration within the range of the optimizer."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100_000, "ProfilerStep#0")
        device.call(90_000, 110_000, "Optimizer.step#SGD.step")
        device.call(91_000, 95_000, "aten::add_", launches=3)
        device.call(100_500, 200_000, "ProfilerStep#1")
        device.call(120_000, 130_000, "aten::linear", launches=4)
        device.call(190_000, 210_000, "Optimizer.step#SGD.step")
        device.task(92_000, 92_300, connection=3, kernel=("add", "Add"))
        device.task(125_000, 125_500, connection=4, kernel=("mm", "MatMul"))
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    assert (rows["aten::linear"].forward_ns, rows["aten::add_"].forward_ns) == (500, None)
    assert summary_of(tmp_path / "msprof_1.db").totals.other_ns == 300


def test_step_ends_when_its_last_device_task_ends(tmp_path: Path) -> None:
    """The host enqueues a step in 1 us, the device takes 10 us for it."""
    with Device(tmp_path / "msprof_1.db") as device:
        for step in range(4):
            begin = 1_000 * step
            device.call(begin, begin + 1_000, f"ProfilerStep#{step}")
            device.call(begin + 100, begin + 200, "aten::linear", launches=step + 1)
            device.runtime(begin + 110, begin + 120, "cudaLaunchKernel", step + 1)
            busy = 500 + 10_000 * step
            device.task(busy, busy + 10_000, connection=step + 1, kernel=("mm", "MatMul"))
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        assert [one.total_ns for one in analysis.steps()] == [10_500, 10_000, 10_000, 10_000]
    assert summary_of(tmp_path / "msprof_1.db").totals.iteration_ns == 10_000


def test_custom_cpp_node_is_not_attributed_to_the_preceding_operation(tmp_path: Path) -> None:
    engine = "autograd::engine::evaluate_function: "
    node = "torch::autograd::CppNode<Lookup<float> >"
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 10, "aten::zero_", sequence=7, launches=1)
        device.call(20, 30, "fbgemm::lookup", launches=2)
        device.call(100, 200, engine + node, thread=2, sequence=7, forward_thread=1)
        device.call(110, 190, node, thread=2, sequence=7, forward_thread=1, launches=3)
        for connection in (1, 2, 3):
            start = 1000 * connection
            device.task(start, start + 10, connection=connection, kernel=("k", "K"))
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    assert rows["aten::zero_"].backward_ns is None
    assert (rows[node].forward_ns, rows[node].backward_ns) == (None, 10)


def collectives_without_device(path: Path, *, devices: tuple[int, ...]) -> Path:
    """Write collectives without deviceId, as old exporters did; operator 2 has no task."""
    with Device(path) as device:
        for number, where in enumerate(devices):
            device.task(100 * number, 100 * number + 10, device=where)
        parts = [
            device.task(1000, 1200, "SDMA", device=devices[-1]),
            device.task(3000, 3200, "SDMA", device=devices[0]),
        ]
        for number, start in enumerate((1000, 2000, 3000), start=1):
            device.collective(start, start + 200, f"hcom_{number}", "Reduce")
        device.row("COMMUNICATION_TASK_INFO", opId=1, globalTaskId=parts[0])
        device.row("COMMUNICATION_TASK_INFO", opId=3, globalTaskId=parts[1])
    execute(path, "UPDATE COMMUNICATION_OP SET deviceId = NULL")
    return path


def communication_ns(path: Path) -> dict[str, int | None]:
    with open_analyses(path) as (analysis,):
        return {one.device: one.communication_ns for one in analysis.summary.devices}


def test_collective_without_device_id_is_on_the_device_of_its_tasks(tmp_path: Path) -> None:
    found = communication_ns(collectives_without_device(tmp_path / "a.db", devices=(0, 1)))
    assert (found["device 0"], found["device 1"]) == (200, 200)
    assert found["unknown device"] == 200, "the collective without tasks"


def test_collective_without_device_id_is_on_the_only_device(tmp_path: Path) -> None:
    assert communication_ns(collectives_without_device(tmp_path / "a.db", devices=(3,))) == {
        "device 3": 600
    }


def test_impossible_memory_sizes_do_not_affect_the_peak(tmp_path: Path) -> None:
    def peak(sizes: list[object]) -> int | None:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        with Device(path) as device:
            device.task(0, 10)
            for table, column in (("NPU_MEM", "hbm"), ("MEMORY_RECORD", "totalAllocated")):
                times = {"timestampNs" if table == "NPU_MEM" else "timestamp": [1] * len(sizes)}
                device.writer.write(table, {column: [0] * len(sizes), **times})
        with closing(sqlite3.connect(path)) as db, db:
            for rowid, size in enumerate(sizes, start=1):
                db.execute("UPDATE NPU_MEM SET hbm = ? WHERE rowid = ?", (size, rowid))
        with open_analyses(path) as (analysis,):
            return analysis.summary.totals.peak_bytes

    assert peak([10, 4096, 20]) == 4096
    assert peak([10, 1 << 53, 20]) == 20
    assert peak([10, -5, "lots", 20]) == 20
    assert peak([(1 << 53) - 1]) == (1 << 53) - 1
    assert peak([0, -1, 1 << 62]) is None


def test_allocations_of_impossible_size_or_time_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(100, 200, "aten::linear", launches=1)
        device.task(150, 160, connection=1)
        names = device.text("aten::linear")
        for size in (512, 0, -512, 1 << 53, (1 << 53) - 1024):
            device.row("OP_MEMORY", name=names, size=size, allocationTime=device.T0 + 150)
        for at in (0, (1 << 62) + 1):
            device.row("OP_MEMORY", name=names, size=7, allocationTime=at)
    with open_analyses(path) as (analysis,):
        (row,) = [row for row in analysis.breakdown("operation").rows if row.allocated_bytes]
    assert row.allocated_bytes == 512 + (1 << 53) - 1024
