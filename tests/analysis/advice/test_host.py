"""A host that launches too slowly, and kernels that are too short."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.advice.plants import US, Plant, advice, cost_ns, found
from unified_prof.explain.advice.device_context import analyzed_steps


def launches(path: Path, *, every: int, kernel: int, count: int = 100, takes: int = 2 * US) -> Path:
    """Write launches that follow one another, each with a kernel that begins at once."""
    with Plant(path) as plant:
        for at in range(count):
            begin = at * every
            plant.kernel(begin + US, begin + US + kernel, launched=begin, takes=takes)
    return path


def test_the_gaps_before_launches_are_what_a_slow_host_costs(tmp_path: Path) -> None:
    said = found(launches(tmp_path / "run.db", every=50 * US, kernel=10 * US))
    # 99 gaps of 40 µs; in the last microsecond of each the launch reaches the device.
    assert cost_ns(said["host_bound"]) == 99 * 40 * US
    assert said["host_bound"].figures["reaching_ns"] == 99 * US
    assert said["host_bound"].figures["gaps"] == 99
    assert said["host_bound"].sure == "certain"
    assert said["host_bound"].evidence[0]["total_ns"] == 99 * 40 * US
    assert said["host_bound"].evidence[0]["count"] == 99
    assert "small_kernels" not in said


@pytest.mark.parametrize("every", [8, 7])
def test_what_launches_take_to_reach_an_idle_device_is_the_hosts_too(
    tmp_path: Path, every: int
) -> None:
    """Launches of 8 µs that take 5 more to arrive: the kernel before ends when they begin."""
    with Plant(tmp_path / "run.db") as plant:
        for at in range(400):
            begin = at * every * US
            plant.kernel(begin + 5 * US, begin + 7_500, launched=begin, takes=4 * US)
    one = found(tmp_path / "run.db")["host_bound"]
    assert cost_ns(one) == 399 * (every * US - 2_500)
    assert one.figures["gaps"] == 399
    assert "is the latency of launches to an idle device" in one.text


def test_what_is_queued_behind_other_work_waits_for_no_host(tmp_path: Path) -> None:
    """A host that is ahead, and a device that takes 4 µs from one kernel to the next."""
    with Plant(tmp_path / "run.db") as plant:
        for at in range(400):
            begin = 100 * US + at * 8 * US
            plant.kernel(begin, begin + 4 * US, launched=at * 6 * US, takes=2 * US)
    assert advice(tmp_path / "run.db").findings == ()


def test_work_that_begins_far_later_than_launches_do_is_not_the_hosts(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(200):
            begin = at * 500 * US
            plant.kernel(begin + 300 * US, begin + 490 * US, launched=begin)
    assert "host_bound" not in found(tmp_path / "run.db")


def test_a_host_that_does_something_else_is_not_told_to_launch_less(tmp_path: Path) -> None:
    """Seen on a GPU: 290 ms of collecting garbage in each step, and the advice was to fuse."""
    with Plant(tmp_path / "run.db") as plant:
        for at in range(100):
            begin = at * 50 * US + (at // 10) * 3_000 * US
            plant.kernel(begin + US, begin + 41 * US, launched=begin)
    one = found(tmp_path / "run.db")["host_bound"]
    assert (one.figures["gaps"], one.figures["long_gaps"]) == (99, 9)
    assert one.figures["long_gaps_ns"] == 9 * 3_009 * US
    assert "97 % of it in 9 gaps of 1 ms or more" in one.text
    assert "larger batch" not in one.advice
    short = found(launches(tmp_path / "short.db", every=50 * US, kernel=10 * US))["host_bound"]
    assert "larger batch" in short.advice
    assert "1 ms" not in short.text


LONG_STEP = 20_000 * US


def slow_host(
    path: Path, *, frame: str | None = None, thread: int = 1, covered: float = 1.0
) -> Path:
    """Write steps in which the host works for 9 ms before one of its launches."""
    with Plant(path) as plant:
        for step in range(6):
            begin = step * LONG_STEP
            plant.step(step, begin, begin + LONG_STEP)
            plant.kernel(begin + 10 * US, begin + 9_000 * US, launched=begin)
            launched = begin + 18_000 * US
            connection = plant.api(launched, launched + 2 * US, "cudaLaunchKernel")
            plant.call(launched - US, launched + 3 * US, "aten::to", launches=connection)
            plant.task(
                *(launched + 10 * US, begin + LONG_STEP),
                connection=connection,
                kernel=("copy_kernel", "aten::to"),
                stream=7,
            )
            if frame is not None:
                row = {"startNs": [plant.T0 + begin + 9_000 * US], "globalTid": [thread]}
                row["endNs"] = [plant.T0 + begin + 9_000 * US + round(covered * 9_000) * US]
                row["name"] = [plant.text(frame)]
                plant.writer.write("UPROF_PYTHON_FRAMES", row)
    return path


def test_the_python_function_that_keeps_the_device_idle_is_named(tmp_path: Path) -> None:
    frame = "datasets/iterable_dataset.py(2301): __iter__"
    finding = found(slow_host(tmp_path / "run.db", frame=frame))["host_bound"]
    row, *_ = finding.evidence
    assert (row["name"], row["line"]) == ("__iter__", "datasets/iterable_dataset.py:2301")
    assert row["next"] == "aten::to"
    assert "most in __iter__ at datasets/iterable_dataset.py:2301" in finding.text


@pytest.mark.parametrize(("thread", "covered"), [(2, 1.0), (1, 0.4)])
def test_other_threads_and_short_functions_are_not_named(
    tmp_path: Path, thread: int, covered: float
) -> None:
    path = slow_host(tmp_path / "run.db", frame="a.py(1): f", thread=thread, covered=covered)
    row, *_ = found(path)["host_bound"].evidence
    assert row["name"] == "before aten::to"
    assert "next" not in row


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_programs_are_not_told_to_compile(tmp_path: Path, compiled: bool) -> None:
    name = "triton_per_fused_native_layer_norm_0" if compiled else "vectorized_layer_norm_kernel"
    with Plant(tmp_path / "run.db") as plant:
        for at in range(200):
            begin = at * 50 * US
            plant.kernel(begin + US, begin + 11 * US, launched=begin, name=name)
    advised = found(tmp_path / "run.db")["host_bound"].advice
    assert ("reduce-overhead" in advised) == compiled
    assert ("fused operations" in advised) != compiled


@pytest.mark.parametrize("with_stack", [True, False])
def test_the_overhead_of_the_profiler_lowers_the_confidence(
    tmp_path: Path, with_stack: bool
) -> None:
    path = launches(tmp_path / "run.db", every=50 * US, kernel=10 * US)
    metadata = json.dumps({"with_stack": int(with_stack), "profile_memory": 0})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS UPROF_RUN (name, value)")
        db.execute("INSERT INTO UPROF_RUN VALUES ('trace_metadata', ?)", (metadata,))
    finding = found(path)["host_bound"]
    assert finding.sure == ("likely" if with_stack else "certain")
    assert ("the profiler itself slows the host (with_stack)" in finding.text) == with_stack


def test_work_of_several_types_below_one_operation_is_one_row_of_evidence(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(100):
            begin = at * 50 * US
            connection = plant.api(begin, begin + 2 * US, "cudaLaunchKernel")
            plant.call(begin, begin + 3 * US, "aten::conv2d", launches=connection)
            op_type = f"Conv{at % 4}"
            start = begin + US
            plant.task(start, start + 10 * US, connection=connection, kernel=("k", op_type))
    (row,) = found(tmp_path / "run.db")["host_bound"].evidence
    assert (row["name"], row["count"]) == ("before aten::conv2d", 99)
    assert row["total_ns"] == 99 * 40 * US


def test_a_host_that_keeps_ahead_is_no_finding(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(200):  # all launched long before they begin
            plant.kernel(1000 * US + at * 10 * US, 1000 * US + at * 10 * US + 9 * US, launched=at)
    assert advice(tmp_path / "run.db").findings == ()


def test_a_pause_between_phases_is_no_slow_host(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50_000 * US
            plant.kernel(begin + US, begin + 99 * US, launched=begin)
    assert advice(tmp_path / "run.db").findings == ()


def test_a_few_kernels_without_a_step_are_no_loop(tmp_path: Path) -> None:
    said = advice(launches(tmp_path / "run.db", every=50 * US, kernel=10 * US, count=30))
    assert said.findings == ()
    missing = {one.kind: one.why for one in said.not_judged}
    assert "fewer than 50 tasks" in missing["host_bound"]
    assert "fewer than 50 tasks" in missing["synchronising_calls"]


def test_a_step_that_warms_up_is_not_judged(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for step in range(4):
            begin = step * 1000 * US
            plant.step(step, begin, begin + 1000 * US)
            slow = 500 * US if step == 0 else 0
            plant.kernel(begin + slow + US, begin + 999 * US, launched=begin + slow)
    said = advice(tmp_path / "run.db")
    assert said.findings == ()
    assert said.steps == 3


def test_the_first_step_and_those_longer_than_three_medians_are_not_judged() -> None:
    lengths = (100, 90, 100, 100, 300, 301)
    assert analyzed_steps([("step", 0, length) for length in lengths]) == [1, 2, 3, 4]


def test_kernels_shorter_than_their_launches_are_named(tmp_path: Path) -> None:
    path = launches(tmp_path / "run.db", every=8 * US, kernel=3 * US, count=900, takes=8 * US)
    said = found(path)
    # Launches take 5 µs more than kernels; so long the device idles before each but the first.
    assert cost_ns(said["small_kernels"]) == min(900 * 5 * US, 899 * 5 * US)
    assert said["small_kernels"].figures["kernels"] == 900


def test_kernels_of_a_graph_are_not_too_many_launches(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for graph in range(2):
            begin = graph * 5000 * US
            connection = plant.api(begin, begin + 8 * US, "cudaGraphLaunch")
            for at in range(200):
                start = begin + 10 * US + at * 4 * US
                plant.task(start, start + 3 * US, connection=connection, kernel=("k", "K"))
    assert "small_kernels" not in found(tmp_path / "run.db")


def test_without_the_host_its_rules_are_not_judged(tmp_path: Path) -> None:
    with Plant(tmp_path / "run.db") as plant:
        for at in range(100):
            plant.kernel(at * 100 * US, at * 100 * US + 10 * US)
    said = advice(tmp_path / "run.db")
    missing = {one.kind: one.why for one in said.not_judged}
    assert said.findings == ()
    assert "host" in missing["host_bound"]
    assert "host" in missing["small_kernels"]
