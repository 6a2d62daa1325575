"""Host-bound programs and kernels shorter than their launches."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns


def launches(path: Path, *, every: int, kernel: int, count: int = 100, takes: int = 2 * US) -> Path:
    """Write consecutive launches, each with a kernel that starts at once."""
    with FaultyRun(path) as run:
        for at in range(count):
            begin = at * every
            run.kernel(begin + US, begin + US + kernel, launched=begin, takes=takes)
    return path


def test_host_bound_program_costs_the_idle_time_before_launches(tmp_path: Path) -> None:
    findings = findings_by_kind(launches(tmp_path / "run.db", every=50 * US, kernel=10 * US))
    # 99 gaps of 40 µs; the last microsecond of each is launch latency.
    assert saving_ns(findings["host_bound"]) == 99 * 40 * US
    assert findings["host_bound"].figures["reaching_ns"] == 99 * US
    assert findings["host_bound"].figures["gaps"] == 99
    assert findings["host_bound"].sure == "certain"
    assert findings["host_bound"].evidence[0]["total_ns"] == 99 * 40 * US
    assert findings["host_bound"].evidence[0]["count"] == 99
    assert "launches one every" not in findings["host_bound"].text


@pytest.mark.parametrize(
    ("resumed", "says"),
    [
        ("torch_dynamo_resume_in_forward_at_72", "with 2 graph breaks per step in compiled code"),
        ("<resume in forward>", "in compiled code, most in forward at model.py:72"),
        ("resume_from_checkpoint", ""),
    ],
)
def test_graph_breaks_of_a_host_bound_run_named(tmp_path: Path, resumed: str, says: str) -> None:
    """torch.compile makes a function of the code after a graph break."""
    with FaultyRun(tmp_path / "run.db") as run:
        name = run.text(f"model.py(72): {resumed}")
        for at in range(100):
            begin = at * 50 * US
            if at % 20 == 0:
                run.step(at // 20, begin, begin + 1_000 * US)
            run.kernel(begin + US, begin + 11 * US, launched=begin)
            if at % 10 == 0:
                times = {"startNs": begin + 5 * US, "endNs": begin + 200 * US}
                run.row("UPROF_PYTHON_FRAMES", globalTid=1, name=name, **times)
    one = findings_by_kind(tmp_path / "run.db")["host_bound"]
    assert says in one.text
    assert ("graph breaks" in one.text) == ("graph breaks" in one.advice) == bool(says)


@pytest.mark.parametrize("every", [8, 7])
def test_launch_latency_on_an_idle_device_is_host_bound_time(tmp_path: Path, every: int) -> None:
    """Launches every 8 µs with 5 µs latency: each kernel ends before the next one arrives."""
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(400):
            begin = at * every * US
            run.kernel(begin + 5 * US, begin + 7_500, launched=begin, takes=4 * US)
    one = findings_by_kind(tmp_path / "run.db")["host_bound"]
    assert saving_ns(one) == pytest.approx(399 * (every * US - 2_500), rel=0.002)
    assert one.figures["gaps"] == 399
    mixed = "idle 69 % of the time: 6.2 % because nothing is enqueued, 62 % launch latency (399"
    assert {8: mixed, 7: "idle 64 % of the time in the latency of launches (399"}[every] in one.text


def test_kernels_queued_behind_others_are_no_finding(tmp_path: Path) -> None:
    """The host is ahead, and the device needs 4 µs from one kernel to the next."""
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(400):
            begin = 100 * US + at * 8 * US
            run.kernel(begin, begin + 4 * US, launched=at * 6 * US, takes=2 * US)
    assert advice(tmp_path / "run.db").findings == ()


def test_kernels_far_later_than_the_usual_latency_are_not_host_bound(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(200):
            begin = at * 500 * US
            run.kernel(begin + 300 * US, begin + 490 * US, launched=begin)
    assert "host_bound" not in findings_by_kind(tmp_path / "run.db")


def test_long_gaps_are_reported_without_advice_on_launches(tmp_path: Path) -> None:
    """For example 290 ms of garbage collection per step, where fusion does not help."""
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(100):
            begin = at * 50 * US + (at // 10) * 3_000 * US
            run.kernel(begin + US, begin + 41 * US, launched=begin)
    one = findings_by_kind(tmp_path / "run.db")["host_bound"]
    assert (one.figures["gaps"], one.figures["long_gaps"]) == (99, 9)
    assert one.figures["long_gaps_ns"] == 9 * 3_009 * US
    assert "97 % of it in 9 gaps of 1 ms or more" in one.text
    assert "larger batch" not in one.advice
    short = findings_by_kind(launches(tmp_path / "short.db", every=50 * US, kernel=10 * US))[
        "host_bound"
    ]
    assert "larger batch" in short.advice
    assert "1 ms" not in short.text


@pytest.mark.parametrize(("call", "steps"), [("cudaMalloc", 0), ("cudaMalloc", 1), ("other", 0)])
def test_calls_of_the_first_iteration_are_no_certain_fault(
    tmp_path: Path, call: str, steps: int
) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(60):
            begin = at * 10_000 * US
            run.api(begin + 500 * US, begin + 9_990 * US, call)
            run.kernel(begin + 9_999 * US, begin + 10_400 * US, launched=begin + 9_995 * US)
        for step in range(steps):
            run.step(step, 0, 600_000 * US)
    one = findings_by_kind(tmp_path / "run.db").get("host_bound")
    if one is None:  # allocation_stalls has the time
        assert steps
        return
    says = call == "cudaMalloc"
    assert ("of it in calls that allocate memory or load code" in one.text) == says
    assert ("record later iterations" in one.advice) == says
    assert one.sure == "possible"


LONG_STEP = 20_000 * US


def write_slow_host(
    path: Path,
    *,
    frame: str | None = None,
    thread: int = 1,
    covered: float = 1.0,
    step_thread: int | None = None,
    in_steps: int = 6,
) -> Path:
    """Write six steps in which the host works for 9 ms before a launch, first in a function."""
    with FaultyRun(path) as run:
        for step, begin in enumerate(run.steps(6, LONG_STEP)):
            if step_thread is not None:
                name = f"ProfilerStep#{step}"
                run.call(begin, begin + LONG_STEP, name, thread=step_thread)
            run.kernel(begin + 10 * US, begin + 9_000 * US, launched=begin)
            launched = begin + 18_000 * US
            connection = run.api(launched, launched + 2 * US, "cudaLaunchKernel")
            run.call(launched - US, launched + 3 * US, "aten::to", launches=connection)
            run.task(
                *(launched + 10 * US, begin + LONG_STEP),
                connection=connection,
                kernel=("copy_kernel", "aten::to"),
                stream=7,
            )
            if frame is not None and step < in_steps:
                work = begin + 9_000 * US
                end = work + round(covered * 9_000) * US
                row = {"globalTid": thread, "name": run.text(frame)}
                run.row("UPROF_PYTHON_FRAMES", startNs=work, endNs=end, **row)
    return path


def test_python_function_that_delays_the_launch_is_named(tmp_path: Path) -> None:
    frame = "datasets/iterable_dataset.py(2301): __iter__"
    finding = findings_by_kind(write_slow_host(tmp_path / "run.db", frame=frame))["host_bound"]
    row, *_ = finding.evidence
    assert (row["name"], row["line"]) == ("__iter__", "datasets/iterable_dataset.py:2301")
    assert row["next"] == "aten::to"
    assert "most in __iter__ at datasets/iterable_dataset.py:2301" in finding.text


def test_gaps_of_other_code_are_not_counted_for_a_function(tmp_path: Path) -> None:
    path = write_slow_host(tmp_path / "run.db", frame="a.py(1): f", in_steps=4)
    rows = findings_by_kind(path)["host_bound"].evidence
    found = {row["name"]: (row["count"], row["total_ns"]) for row in rows}
    # The first of six steps is not analyzed.
    assert found["f"] == (3, 3 * 9_010 * US)
    assert found["before aten::to"] == (2, 2 * 9_010 * US)


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("<built-in method to of Tensor object>", "Tensor.to"),
        ("<built-in method conv2d of type object>", "conv2d"),
        ("<built-in function linear>", "linear"),
    ],
)
def test_c_function_that_delays_the_launch_is_named(tmp_path: Path, frame: str, name: str) -> None:
    finding = findings_by_kind(write_slow_host(tmp_path / "run.db", frame=frame))["host_bound"]
    assert finding.text.count(f"most in {name}") == 1
    assert finding.evidence[0]["name"] == name
    assert ("pin_memory=True" in finding.advice) == (name == "Tensor.to")


@pytest.mark.parametrize(("thread", "covered"), [(2, 1.0), (1, 0.4)])
def test_other_and_short_functions_not_named(tmp_path: Path, thread: int, covered: float) -> None:
    path = write_slow_host(tmp_path / "run.db", frame="a.py(1): f", thread=thread, covered=covered)
    row, *_ = findings_by_kind(path)["host_bound"].evidence
    assert row["name"] == "before aten::to"
    assert "next" not in row


def test_function_of_the_thread_that_runs_the_steps_is_named(tmp_path: Path) -> None:
    """For example work between the forward pass and the backward pass of another thread."""
    path = write_slow_host(tmp_path / "run.db", frame="a.py(1): f", thread=2, step_thread=2)
    row, *_ = findings_by_kind(path)["host_bound"].evidence
    assert (row["name"], row["line"]) == ("f", "a.py:1")


@pytest.mark.parametrize(
    ("frame", "sure"),
    [("queue.py(171): get", None), ("server.py(9): detokenize", "certain"), (None, "possible")],
)
def test_gaps_in_which_a_server_waits(tmp_path: Path, frame: str | None, sure: str | None) -> None:
    """The gaps of 4 ms are too short for a pause unless the program waits in a queue."""
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(20):
            begin = at * 10 * MS
            for number in range(6):
                run.kernel(
                    *(begin + number * MS + 5 * US, begin + (number + 1) * MS),
                    launched=begin + number * 10 * US,
                )
            if frame is not None:
                row = {"globalTid": 1, "name": run.text(frame)}
                times = {"startNs": begin + 5 * MS, "endNs": begin + 10 * MS - US}
                run.row("UPROF_PYTHON_FRAMES", **times, **row)
    finding = findings_by_kind(tmp_path / "run.db").get("host_bound")
    assert (None if finding is None else finding.sure) == sure


@pytest.mark.parametrize("compiled", [True, False])
def test_compiled_programs_are_advised_to_use_cuda_graphs(tmp_path: Path, compiled: bool) -> None:
    name = "triton_per_fused_native_layer_norm_0" if compiled else "vectorized_layer_norm_kernel"
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(200):
            begin = at * 50 * US
            run.kernel(begin + US, begin + 11 * US, launched=begin, name=name)
    text = findings_by_kind(tmp_path / "run.db")["host_bound"].advice
    assert ("reduce-overhead" in text) == compiled
    assert ("fused operations" in text) != compiled


@pytest.mark.parametrize("with_stack", [True, False])
def test_profiler_overhead_lowers_the_confidence(tmp_path: Path, with_stack: bool) -> None:
    path = launches(tmp_path / "run.db", every=50 * US, kernel=10 * US)
    metadata = json.dumps({"with_stack": int(with_stack), "profile_memory": 0})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS UPROF_RUN (name, value)")
        db.execute("INSERT INTO UPROF_RUN VALUES ('trace_metadata', ?)", (metadata,))
    finding = findings_by_kind(path)["host_bound"]
    assert finding.sure == ("likely" if with_stack else "certain")
    assert ("the profiler itself slows the host (with_stack)" in finding.text) == with_stack


def test_kernels_of_one_operation_are_one_row_of_evidence(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(100):
            begin = at * 50 * US
            connection = run.api(begin, begin + 2 * US, "cudaLaunchKernel")
            run.call(begin, begin + 3 * US, "aten::conv2d", launches=connection)
            op_type = f"Conv{at % 4}"
            start = begin + US
            run.task(start, start + 10 * US, connection=connection, kernel=("k", op_type))
    (row,) = findings_by_kind(tmp_path / "run.db")["host_bound"].evidence
    assert (row["name"], row["count"]) == ("before aten::conv2d", 99)
    assert row["total_ns"] == 99 * 40 * US


def test_host_ahead_of_the_device_is_no_finding(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(200):  # all launched long before they start
            run.kernel(1000 * US + at * 10 * US, 1000 * US + at * 10 * US + 9 * US, launched=at)
    assert advice(tmp_path / "run.db").findings == ()


def test_pause_between_phases_is_no_finding(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50_000 * US
            run.kernel(begin + US, begin + 99 * US, launched=begin)
    assert advice(tmp_path / "run.db").findings == ()


def test_host_rules_are_skipped_if_there_are_no_steps_and_few_tasks(tmp_path: Path) -> None:
    result = advice(launches(tmp_path / "run.db", every=50 * US, kernel=10 * US, count=30))
    assert result.findings == ()
    missing = {one.kind: one.why for one in result.not_judged}
    assert "fewer than 50 tasks" in missing["host_bound"]
    assert "fewer than 50 tasks" in missing["synchronising_calls"]


def test_warm_up_step_is_not_analyzed(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(4, 1000 * US)):
            slow = 500 * US if step == 0 else 0
            run.kernel(begin + slow + US, begin + 999 * US, launched=begin + slow)
    result = advice(tmp_path / "run.db")
    assert result.findings == ()
    assert result.steps == 3


@pytest.mark.parametrize(("waits", "analyzed"), [(False, 3), (True, 4)])
def test_long_steps_are_left_out_unless_waiting(waits: bool, analyzed: int, tmp_path: Path) -> None:
    """Workers deliver several batches at once: the step that waits for them is no exception."""
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step, length in enumerate((100 * US, 90 * US, 100 * US, 310 * US, 100 * US)):
            end = begin + length
            run.step(step, begin, end)
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            run.call(begin, end - 80 * US, name if waits else "aten::add")
            run.kernel(step * 150 * US, (step + 1) * 150 * US, launched=end - 80 * US)
            begin = end
    assert advice(tmp_path / "run.db").steps == analyzed


def test_kernels_too_short_to_keep_the_host_ahead_are_named(tmp_path: Path) -> None:
    path = launches(tmp_path / "run.db", every=8 * US, kernel=3 * US, count=900, takes=7 * US)
    (finding,) = advice(path).findings
    assert finding.kind == "host_bound"
    assert "900 kernels of 3.00 µs, and the host launches one every 7.99 µs" in finding.text


@pytest.mark.parametrize("singles", [0, 100])
def test_kernels_of_a_cuda_graph_are_not_called_short(singles: int, tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for graph in range(2):
            begin = graph * 5000 * US
            for at in range(singles):
                start = begin + (1000 + at * 30) * US
                run.kernel(start + US, start + 2 * US, launched=start)
            connection = run.api(begin, begin + 8 * US, "cudaGraphLaunch")
            for at in range(200):
                start = begin + 10 * US + at * 4 * US
                run.task(start, start + 3 * US, connection=connection, kernel=("k", "K"))
    findings = findings_by_kind(tmp_path / "run.db")
    assert ("host_bound" in findings) == (singles > 0)
    assert not any("launches one every" in finding.text for finding in findings.values())


def test_host_rules_are_skipped_without_host_calls(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for at in range(100):
            run.kernel(at * 100 * US, at * 100 * US + 10 * US)
    result = advice(tmp_path / "run.db")
    missing = {one.kind: one.why for one in result.not_judged}
    assert result.findings == ()
    assert "host" in missing["host_bound"]


def test_host_bound_time_costs_at_most_the_idle_time(tmp_path: Path) -> None:
    """With a faster host, kernels of two streams would also overlap, but that is a guess."""
    with FaultyRun(tmp_path / "run.db") as run:
        for number in range(100):
            begin, stream = number * 100 * US, 2 + number % 2
            # Most kernels overlap with the next one, which is launched late.
            run.kernel(
                begin + US, begin + (60 + 50 * (number % 2)) * US, launched=begin, stream=stream
            )
    found = advice(tmp_path / "run.db")
    (finding,) = (one for one in found.findings if one.kind == "host_bound")
    assert saving_ns(finding) == finding.figures["idle_ns"]
    assert found.together_ms == pytest.approx(sum(one.cost_ms_per_step for one in found.findings))


def test_text_names_all_the_idle_time_in_the_cost(tmp_path: Path) -> None:
    """A host that is ahead also hides the latency of launches to a busy device."""
    with FaultyRun(tmp_path / "run.db") as run:
        for number in range(100):
            begin = number * 200 * US
            run.kernel(begin + 5 * US, begin + 25 * US, launched=begin)
            run.kernel(begin + 60 * US, begin + 80 * US, launched=begin + 10 * US)
    found = advice(tmp_path / "run.db")
    (finding,) = (one for one in found.findings if one.kind == "host_bound")
    first, _ = finding.text.split("; ", 1)
    shares = [float(share) for share in re.findall(r"([\d.]+) %", first)]
    assert found.step_ms is not None
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(100 * finding.cost_ms_per_step / found.step_ms, abs=1)
