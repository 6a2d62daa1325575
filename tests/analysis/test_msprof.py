"""Device work attributed to framework operations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, training_step
from tests.analysis.test_skyline import breakdown_of, by_name, summary_of
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_step(tmp_path_factory.mktemp("msprof") / "msprof_1.db")


def test_a_backward_kernel_belongs_to_the_forward_operation(step: Path) -> None:
    rows = by_name(breakdown_of(step, "operation"))
    linear, relu = rows["aten::linear"], rows["aten::relu"]
    assert (linear.count, linear.forward_ns, linear.backward_ns) == (1, 100, 150)
    assert (relu.total_ns, relu.forward_ns, relu.backward_ns) == (120, 50, 70)


def test_the_optimizer_is_in_neither_pass(step: Path) -> None:
    row = by_name(breakdown_of(step, "operation"))["aten::_foreach_add_"]
    assert (row.total_ns, row.forward_ns, row.backward_ns) == (30, None, None)
    totals = summary_of(step).totals
    assert (totals.total_ns, totals.forward_ns, totals.backward_ns) == (640, 150, 220)
    assert totals.other_ns == 30


def test_collectives_and_copies_are_rows_of_their_own(step: Path) -> None:
    rows = by_name(breakdown_of(step, "operation"))
    assert (rows["hcom_allReduce_"].kind, rows["hcom_allReduce_"].total_ns) == (
        "communication",
        200,
    )
    assert (rows["memcpy host to device"].kind, rows["memcpy host to device"].total_ns) == (
        "copy",
        40,
    )


def test_backward_work_counts_for_the_forward_operations_module_and_line(step: Path) -> None:
    modules = by_name(breakdown_of(step, "module"))
    assert modules["Net_0.Linear_0"].total_ns == 250
    assert modules["Net_0.Linear_0"].detail == "Linear"
    assert modules["Net_0"].total_ns == 120
    lines = by_name(breakdown_of(step, "line"))
    assert (lines["net.py:9"].total_ns, lines["net.py:10"].total_ns) == (250, 120)


def test_kernels_are_grouped_by_name(step: Path) -> None:
    row = by_name(breakdown_of(step, "kernel"))["mm_kernel"]
    assert (row.count, row.total_ns, row.detail) == (2, 250, "MatMul")
    assert (row.forward_ns, row.backward_ns) == (100, 150)


def test_kernels_are_listed_under_their_operation(step: Path) -> None:
    with open_analyses(step) as (analysis,):
        under = {(op, row.name): row.total_ns for op, row in analysis.kernels_of_operations()}
    assert under["aten::linear", "mm_kernel"] == 250
    assert under["aten::relu", "relu_grad"] == 70
    assert sum(time or 0 for time in under.values()) == 640


def test_device_time_is_a_union_of_intervals(step: Path) -> None:
    (device,) = summary_of(step).devices
    assert device.device == "device 0 (Ascend910B)"
    assert (device.compute_ns, device.communication_ns, device.copy_ns) == (400, 200, 40)
    assert device.overlap_ns == 60
    assert device.busy_ns == 400 + 200 - 60 + 40
    assert (device.window_ns, device.idle_ns) == (3040, 3040 - 580)


def test_the_window_runs_over_work_not_over_the_profilers_marks(tmp_path: Path) -> None:
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
    assert [streams[f"stream {number}"].extra["window_ns"] for number in (0, 2, 3)] == [
        None,
        350,
        None,
    ]
    assert drawn is not None
    assert (drawn.start_ns, drawn.duration_ns) == (Device.T0 + 400, 950)
    assert sum(len(track) for track in traced) == 5, "a trace leaves nothing out"


def test_a_device_that_only_waited_has_no_window(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 20, "PROFILING_ENABLE")
        device.task(400, 900, "EVENT_WAIT")
    (found,) = summary_of(tmp_path / "msprof_1.db").devices
    assert (found.window_ns, found.idle_ns, found.tasks) == (0, 0, 2)


def test_idle_of_steps_is_told_of_the_steps(tmp_path: Path) -> None:
    """Work before the first step and between two is of no step, whatever the window holds."""
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 1000), (2, 3000)):
            device.writer.write(
                "STEP_TIME",
                {"id": [number], "startNs": device.T0 + start, "endNs": device.T0 + start + 1000},
            )
        device.task(0, 500, kernel=("a", "A"))
        device.task(1100, 1400, kernel=("a", "A"))
        device.task(1900, 2200, kernel=("late", "A"))  # begins in step 1 and outlasts it
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


def test_a_step_is_not_idle_while_another_steps_work_runs(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 0), (2, 1000)):
            at = device.T0 + start
            device.writer.write("STEP_TIME", {"id": [number], "startNs": at, "endNs": at + 1000})
            call: dict[str, Any] = {"startNs": [at + 1], "endNs": at + 2, "connectionId": number}
            device.writer.write("CANN_API", call)
        device.task(100, 1500, kernel=("a", "A"), connection=1)
        device.task(1200, 1900, kernel=("b", "B"), connection=2, stream=5)  # beside step 1
    first, second = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    assert (first.extra["compute_ns"], second.extra["compute_ns"]) == (1400, 700)
    assert (first.extra["idle_ns"], second.extra["idle_ns"]) == (100, 100)


def test_a_collective_lasts_from_its_first_task_to_its_last(tmp_path: Path) -> None:
    """Waiting for other ranks in between is part of it, as with NCCL's one kernel."""
    with Device(tmp_path / "msprof_1.db") as device:
        parts = [device.task(0, 10, "SDMA"), device.task(90, 100, "SDMA")]
        device.task(10, 90, "Notify Wait")
        device.collective(0, 100, "hcom_allReduce__1", "hcom_allReduce_")
        for part in parts:
            row: dict[str, Any] = {"opId": [1], "globalTaskId": part}
            device.writer.write("COMMUNICATION_TASK_INFO", row)
        # Another device has no collectives: their parts stand for them, everywhere alike.
        alone = device.task(0, 30, "SDMA", device=1)
        row = {"opId": [2], "globalTaskId": alone}
        device.writer.write("COMMUNICATION_TASK_INFO", row)
    path = tmp_path / "msprof_1.db"
    assert communication(path) == {"device 0": 100, "device 1": 30}
    rows = breakdown_of(path, "operation").rows
    assert {(row.name, row.kind, row.total_ns) for row in rows} == {
        ("hcom_allReduce_", "communication", 100),
        ("SDMA", "communication", 30),
    }


def test_a_step_without_collectives_has_none_not_nothing_known(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        for number, start in ((1, 0), (2, 1000)):
            at = device.T0 + start
            device.writer.write("STEP_TIME", {"id": [number], "startNs": at, "endNs": at + 1000})
        device.collective(100, 200, "hcom_allReduce__1", "hcom_allReduce_")
        device.task(1100, 1200, kernel=("a", "A"))
    rows = breakdown_of(tmp_path / "msprof_1.db", "step").rows
    assert [row.extra["communication_ns"] for row in rows] == [100, 0]


def test_waiting_is_not_work(step: Path) -> None:
    rows = by_name(breakdown_of(step, "stream"))
    assert rows["stream 3"].total_ns == 0
    assert rows["stream 3"].extra["wait_ns"] == 600
    assert rows["stream 2"].extra["compute_ns"] == 400
    assert rows["stream 2"].extra["copy_ns"] == 40


def test_steps_hold_what_ran_between_their_ends(step: Path) -> None:
    (row,) = breakdown_of(step, "step").rows
    assert (row.name, row.total_ns) == ("4", 5000)
    assert row.extra["compute_ns"] == 400
    assert row.extra["idle_ns"] == 5000 - 580


def test_work_is_of_the_step_that_launched_it_whenever_it_runs(tmp_path: Path) -> None:
    """The device runs a step behind the host; the last of its work ends after both."""
    path = tmp_path / "msprof_1.db"
    with Device(path) as device:
        for step in (0, 1):
            start = device.T0 + 1000 * step
            device.writer.write(
                "STEP_TIME", {"id": [step], "startNs": start, "endNs": start + 1000}
            )
            device.writer.write(
                "CANN_API",
                {
                    "startNs": [start + 10],
                    "endNs": start + 20,
                    "connectionId": 7 + step,
                    "name": device.text("launch"),
                },
            )
        device.task(900, 1700, kernel=("first", "MatMul"), connection=7)
        device.task(1700, 2400, kernel=("second", "MatMul"), connection=8)
        device.task(2000, 2100, copy=64)  # of no call: it belongs to no step that is over
    first, second = breakdown_of(path, "step").rows
    assert (first.extra["compute_ns"], second.extra["compute_ns"]) == (800, 700)
    assert first.extra["idle_ns"] == 1700 - 800  # until the last of its work is done
    assert second.extra["idle_ns"] == 0  # from there on
    assert (first.total_ns, second.total_ns) == (1000, 1000)


@pytest.mark.parametrize("revision", ["1.0.0_20240516", "1.1.1_20250620", "latest"])
def test_without_framework_tables_operators_are_the_operations(
    tmp_path: Path, revision: str
) -> None:
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


def test_task_types_decide_where_no_operator_was_recorded(tmp_path: Path) -> None:
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


def test_impossible_times_are_counted_not_added(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(0, 10, kernel=("a", "A"))
        device.task(20, 5, kernel=("a", "A"))
        device.writer.write("TASK", {"startNs": [None, 0, -5], "endNs": [7, 2**63 - 1, 6]})
    (breakdown, found) = (
        breakdown_of(tmp_path / "msprof_1.db", "operation"),
        summary_of(tmp_path / "msprof_1.db"),
    )
    assert [(row.name, row.total_ns) for row in breakdown.rows] == [("A", 10)]
    assert [(one.name, one.count) for one in found.anomalies] == [("impossible_task_time", 4)]


def test_an_operation_at_the_moment_zero_is_one(tmp_path: Path) -> None:
    """Traces without `baseTimeNanoseconds` may count from their own begin."""
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(-Device.T0, 10 - Device.T0, "aten::mm", launches=1)
        device.task(20 - Device.T0, 30 - Device.T0, connection=1, kernel=("gemm", "MatMul"))
    found = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))["aten::mm"]
    assert (found.total_ns, found.forward_ns) == (10, 10)
    assert not summary_of(tmp_path / "msprof_1.db").anomalies


def test_a_start_that_is_no_number_is_not_the_moment_zero(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::linear")
        for text in ("", "unknown", None, "-5"):
            row: dict[str, Any] = {"startNs": [text], "endNs": "10"}
            row |= {"name": device.text("aten::mm")}
            device.writer.write("PYTORCH_API", row)
    found = summary_of(tmp_path / "msprof_1.db")
    assert found.totals.total_ns == 100
    assert [(one.name, one.count) for one in found.anomalies] == [("impossible_host_time", 4)]


def test_a_database_without_device_work_reports_host_ranges(tmp_path: Path) -> None:
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


def test_an_empty_database_has_no_zero(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db"):
        pass
    found = summary_of(tmp_path / "msprof_1.db")
    assert found.clock == "none"
    assert found.totals.total_ns is None
    assert found.available == ()


def test_launch_delay_counts_from_the_launching_call(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.task(150, 160, connection=9, kernel=("a", "A"))
        device.task(160, 170, connection=9, kernel=("a", "A"))
        device.task(400, 410, connection=10, kernel=("a", "A"))
        device.task(400, 410, connection=-1, kernel=("a", "A"))
        start = [device.T0 + 100, device.T0 + 380, device.T0]
        row: dict[str, Any] = {
            "connectionId": [9, 10, 4294967295],
            "startNs": start,
            "endNs": start,
        }
        device.writer.write("CANN_API", row)
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        delay = analysis.launch_delay()
    assert delay is not None
    assert (delay.count, delay.max_ns, delay.total_ns) == (2, 50, 70)


def test_counters_over_time_and_by_operator(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        task = device.task(0, 10, kernel=("a", "MatMul"))
        for name, value in (("aic_mac_ratio", 0.5), ("aic_total_cycles", 900)):
            row: dict[str, Any] = {
                "globalTaskId": [task],
                "name": device.text(name),
                "value": value,
            }
            device.writer.write("TASK_PMU_INFO", row)
        times = [device.T0 + 20, device.T0 + 10]
        row = {"type": device.text("device"), "hbm": [7, 5], "timestampNs": times, "deviceId": 0}
        device.writer.write("NPU_MEM", row)
    with open_analyses(tmp_path / "msprof_1.db") as (analysis,):
        (hbm,) = analysis.memory_series()
        ratio, cycles = analysis.pmu()
        peak = analysis.summary.totals.peak_bytes
    assert (hbm.name, hbm.unit, hbm.value.tolist()) == ("HBM device", "B", [5.0, 7.0])
    assert (ratio.counter, ratio.mean, ratio.total) == ("aic_mac_ratio", 0.5, None)
    assert (cycles.op_type, cycles.total) == ("MatMul", 900.0)
    assert peak == 7


def test_allocations_count_for_the_operation_that_was_running(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        device.call(0, 100, "aten::linear")
        device.call(10, 50, "aten::addmm", launches=3)
        device.call(200, 230, "aten::relu")
        device.task(60, 70, connection=3, kernel=("mm", "MatMul"))
        names = [device.text(name) for name in ("aten::addmm", "aten::relu", "aten::relu")]
        times = [device.T0 + 20, device.T0 + 210, None]
        row: dict[str, Any] = {"name": names, "size": [512, 1024, 77], "allocationTime": times}
        device.writer.write("OP_MEMORY", row)
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    linear, relu = rows["aten::linear"], rows["aten::relu"]
    assert (linear.count, linear.total_ns, linear.allocated_bytes) == (1, 10, 512)
    # It allocated memory, but has no recorded device work: its time is unknown, not 0.
    assert (relu.total_ns, relu.allocated_bytes) == (None, 1024)


def test_marks_of_other_tools_annotate_like_the_frameworks_own(tmp_path: Path) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        marks = {"Optimizer.step#SGD.step": (300, 400), "nn.Module: Linear_0": (0, 200)}
        for name, (start, end) in marks.items():
            row: dict[str, Any] = {"message": [device.text(name)], "globalTid": 1}
            row |= {"startNs": device.T0 + start, "endNs": device.T0 + end}
            device.writer.write("MSTX_EVENTS", row)
        device.call(10, 100, "aten::linear", launches=3)
        device.call(310, 390, "aten::add_", launches=4)
        device.task(60, 70, connection=3, kernel=("mm", "MatMul"))
        device.task(330, 350, connection=4, kernel=("add", "Add"))
    rows = by_name(breakdown_of(tmp_path / "msprof_1.db", "operation"))
    assert (rows["aten::linear"].forward_ns, rows["aten::add_"].forward_ns) == (10, None)
    assert summary_of(tmp_path / "msprof_1.db").totals.other_ns == 20
    assert by_name(breakdown_of(tmp_path / "msprof_1.db", "module"))["Linear_0"].total_ns == 10


def test_a_step_that_begins_in_the_last_ones_optimizer_is_not_of_it(tmp_path: Path) -> None:
    """Hooks that run after an optimizer's step end an iteration within its range."""
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


def test_a_step_lasts_until_its_device_is_done(tmp_path: Path) -> None:
    """A host that runs ahead is done with each step in a microsecond, the device in ten."""
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


def test_a_node_written_in_cpp_is_not_pinned_on_the_aten_operation_before_it(
    tmp_path: Path,
) -> None:
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


def old_collectives(path: Path, *, devices: tuple[int, ...]) -> Path:
    """Write collectives as exporters did before they named the device: operator 2 has no task."""
    with Device(path) as device:
        for number, where in enumerate(devices):
            device.task(100 * number, 100 * number + 10, device=where)
        parts = [
            device.task(1000, 1200, "SDMA", device=devices[-1]),
            device.task(3000, 3200, "SDMA", device=devices[0]),
        ]
        for number, start in enumerate((1000, 2000, 3000), start=1):
            device.collective(start, start + 200, f"hcom_{number}", "Reduce")
        for number, task in ((1, parts[0]), (3, parts[1])):
            row: dict[str, Any] = {"opId": [number], "globalTaskId": task}
            device.writer.write("COMMUNICATION_TASK_INFO", row)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE COMMUNICATION_OP SET deviceId = NULL")
    return path


def communication(path: Path) -> dict[str, int | None]:
    with open_analyses(path) as (analysis,):
        return {one.device: one.communication_ns for one in analysis.summary.devices}


def test_a_collective_without_a_device_is_on_that_of_its_tasks(tmp_path: Path) -> None:
    found = communication(old_collectives(tmp_path / "a.db", devices=(0, 1)))
    assert (found["device 0"], found["device 1"]) == (200, 200)
    assert found["unknown device"] == 200, (
        "with two devices, collectives without tasks have no known device"
    )


def test_a_collective_without_a_device_is_on_the_only_one_there_is(tmp_path: Path) -> None:
    assert communication(old_collectives(tmp_path / "a.db", devices=(3,))) == {"device 3": 600}


def test_memory_of_an_impossible_size_is_no_peak_and_hides_none(tmp_path: Path) -> None:
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


def test_an_allocation_of_an_impossible_size_or_time_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Device(path) as device:
        device.call(100, 200, "aten::linear", launches=1)
        device.task(150, 160, connection=1)
        sizes = [512, 0, -512, 1 << 53, (1 << 53) - 1024]
        device.writer.write(
            "OP_MEMORY",
            {
                "name": [device.text("aten::linear")] * len(sizes),
                "size": sizes,
                "allocationTime": [device.T0 + 150] * len(sizes),
            },
        )
        device.writer.write(
            "OP_MEMORY",
            {
                "name": [device.text("aten::linear")] * 2,
                "size": 7,
                "allocationTime": [0, (1 << 62) + 1],
            },
        )
    with open_analyses(path) as (analysis,):
        (row,) = [row for row in analysis.breakdown("operation").rows if row.allocated_bytes]
    assert row.allocated_bytes == 512 + (1 << 53) - 1024
