"""Host stalls, and steps of different lengths."""

from __future__ import annotations

import statistics
import tracemalloc
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind, saving_ns
from tests.analysis.builders import Device
from unified_prof.explain.advice.device_context import DeviceContext, HostCode
from unified_prof.explain.advice.memory_rules import slow_steps
from unified_prof.explain.api import open_analyses
from unified_prof.explain.msprof import MsprofAnalysis


def write_collections(path: Path, *, busy: bool, takes: int = 5 * MS) -> Path:
    """Write five 20 ms steps with a garbage collection on an idle or busy device."""
    with FaultyRun(path) as run:
        for begin in run.steps(5, 20 * MS):
            run.kernel(begin, begin + 10 * MS)
            run.kernel(begin + (10 * MS if busy else 16 * MS), begin + 20 * MS)
            start = begin + 10 * MS
            run.row("GC_RECORD", startNs=start, endNs=start + takes, globalTid=1)
    return path


def test_garbage_collection_on_an_idle_device_costs_its_time(tmp_path: Path) -> None:
    finding = findings_by_kind(write_collections(tmp_path / "run.db", busy=False))[
        "garbage_collection"
    ]
    assert saving_ns(finding) == 5 * MS
    assert finding.figures["pauses"] == 4


def test_garbage_collection_on_a_busy_device_is_no_finding(tmp_path: Path) -> None:
    assert advice(write_collections(tmp_path / "run.db", busy=True)).findings == ()


def test_short_garbage_collections_are_no_finding(tmp_path: Path) -> None:
    findings = findings_by_kind(write_collections(tmp_path / "run.db", busy=False, takes=900 * US))
    assert "garbage_collection" not in findings


def write_calls(path: Path, name: str, *, busy: bool = False) -> Path:
    """Write five 20 ms steps with a 5 ms call in each."""
    with FaultyRun(path) as run:
        for begin in run.steps(5, 20 * MS):
            late = 0 if busy else 5 * MS
            run.api(begin, begin + 5 * MS, name)
            run.kernel(begin + late + US, begin + 20 * MS, launched=begin + late)
    return path


def test_allocation_on_an_idle_device_costs_its_time(tmp_path: Path) -> None:
    finding = findings_by_kind(write_calls(tmp_path / "run.db", "cudaFree"))["allocation_stalls"]
    assert saving_ns(finding) == 5 * MS
    expected = {"name": "cudaFree", "count": 4, "total_ns": 4 * 5 * MS, "start_ns": 0}
    assert dict(finding.evidence[0], start_ns=0) == expected


def test_allocation_on_a_busy_device_is_no_finding(tmp_path: Path) -> None:
    assert "allocation_stalls" not in findings_by_kind(
        write_calls(tmp_path / "run.db", "cudaFree", busy=True)
    )


def test_allocation_in_the_first_step_is_no_finding(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        for step, begin in enumerate(run.steps(5, 20 * MS)):
            if step == 0:
                run.api(begin, begin + 15 * MS, "cudaMalloc")
            run.kernel(begin + 15 * MS, begin + 20 * MS)
    assert "allocation_stalls" not in findings_by_kind(tmp_path / "run.db")


def test_module_loading_after_the_first_steps_is_a_compile_stall(tmp_path: Path) -> None:
    finding = findings_by_kind(write_calls(tmp_path / "run.db", "cuModuleLoadData"))[
        "compile_stalls"
    ]
    assert saving_ns(finding) == 5 * MS
    assert "recompil" in finding.advice


def test_other_calls_are_no_stalls(tmp_path: Path) -> None:
    findings = findings_by_kind(write_calls(tmp_path / "run.db", "cudaFreeAsync"))
    assert not {"allocation_stalls", "compile_stalls"} & set(findings)


def write_steps(path: Path, lengths: list[int], *, ranges: dict[int, str] | None = None) -> Path:
    """Write steps of the given ms, busy except for their last 0.1 ms."""
    with FaultyRun(path) as run:
        begin = 0
        for step, length in enumerate(lengths):
            run.step(step, begin, begin + length * MS)
            run.kernel(begin, begin + length * MS - 100 * US)
            if name := (ranges or {}).get(step):
                run.call(begin + US, begin + length * MS, name)
            begin += length * MS
    return path


@pytest.mark.parametrize("seed", range(12))
def test_slow_steps_cost_the_time_above_the_median(tmp_path: Path, seed: int) -> None:
    """The first step does not count; periodic steps are slow above 1.15 medians, others 1.5."""
    random = Random(seed)
    lengths = random.choices((100, 100, 100, 100, 115, 116, 150, 151, 300), k=5 + seed % 5)
    if seed % 2:
        gap, first = random.randrange(1, 4), random.randrange(3)
        lengths = [200] + [116 if at % gap == first else 100 for at in range(3 * gap)]
    finding = findings_by_kind(write_steps(tmp_path / "run.db", lengths)).get("slow_steps")
    median, count = statistics.median(lengths[1:]), len(lengths) - 1
    longer = [at for at in range(count) if lengths[at + 1] > 1.15 * median]
    gaps = {second - first for first, second in pairwise(longer)}
    is_periodic = len(longer) > 2 and len(gaps) == 1 and min(gaps) > 1
    is_periodic = is_periodic and longer[0] < min(gaps) and longer[-1] + min(gaps) >= count
    limit = 1.15 if is_periodic else 1.5
    slow = [at + 1 for at in range(count) if lengths[at + 1] > limit * median]
    assert (finding.steps if finding else ()) == tuple(slow)
    if finding:
        excess = sum(lengths[at] - median for at in slow)
        assert saving_ns(finding) == round(excess * MS / count)
        assert finding.figures["grew"] == "computation"
        assert ("steps is slow" in finding.text) == is_periodic


def test_slow_step_with_an_evaluation_range_is_no_finding(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "run.db", [10, 10, 10, 30, 10, 10], ranges={3: "evaluate"})
    assert "slow_steps" not in findings_by_kind(path)


def test_growing_steps_cost_the_growth(tmp_path: Path) -> None:
    finding = findings_by_kind(write_steps(tmp_path / "run.db", [10] + [10] * 50 + [12] * 50))[
        "steps_grow"
    ]
    assert saving_ns(finding) == 50 * 2 * MS // 100


def test_slightly_varying_steps_are_no_finding(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "run.db", [100 + number % 5 for number in range(101)])
    assert advice(path).findings == ()


def test_allocation_stall_is_not_counted_as_host_bound_time(tmp_path: Path) -> None:
    findings = findings_by_kind(write_calls(tmp_path / "run.db", "cudaFree"))
    # The host allocates before each launch: no other finding claims that idle time.
    assert [*findings] == ["allocation_stalls"]


def test_npu_operator_compilation_is_a_compile_stall(tmp_path: Path) -> None:
    finding = findings_by_kind(write_calls(tmp_path / "run.db", "aclopCompileAndExecute"))[
        "compile_stalls"
    ]
    assert saving_ns(finding) == 5 * MS
    assert "jit_compile=False" in finding.advice


def test_evaluation_that_ends_before_its_step_on_the_device_is_known(tmp_path: Path) -> None:
    """The host is one step ahead of the device when it validates."""
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step, length in enumerate([10, 10, 10, 30, 10, 10]):
            host = step * 9 * MS
            run.step(step, host, host + 9 * MS)
            run.kernel(begin, begin + length * MS, launched=host + US)
            if length == 30:
                run.call(host + US, host + 2 * US, "validation")
            begin += length * MS
    assert "slow_steps" not in findings_by_kind(tmp_path / "run.db")


def test_steps_that_are_long_only_for_a_host_that_runs_ahead_are_analyzed(tmp_path: Path) -> None:
    """The first steps fill the launch queue; in later ones, launches wait for a free place."""
    with FaultyRun(tmp_path / "run.db") as run:
        host = device = 0
        for step, length in enumerate([1, 1, 1, 1, 16, 10]):
            run.call(host, host + length * MS, f"ProfilerStep#{step}")
            device = max(device, host + 20 * US)
            run.kernel(device, device + 10 * MS - US, launched=host, takes=length * MS - US)
            host, device = host + length * MS, device + 10 * MS
    found = advice(tmp_path / "run.db")
    assert (found.steps, found.pauses) == (5, 0)
    assert found.step_ms == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("compiles", [True, False])
def test_slow_step_that_compiles_is_explained(tmp_path: Path, compiles: bool) -> None:
    name = "_compile.compile_inner (dynamo_timed)" if compiles else "forward"
    path = write_steps(tmp_path / "run.db", [10, 10, 10, 30, 10, 10], ranges={3: name})
    finding = findings_by_kind(path)["slow_steps"]
    assert ("of it is compilation" in finding.text) == compiles
    assert ("recompiles" in finding.advice) == compiles


def test_slow_step_that_collects_garbage_is_explained(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step, length in enumerate([10, 10, 10, 40, 10, 10]):
            run.step(step, begin, begin + length * MS)
            run.kernel(begin, begin + 9 * MS)
            if length > 10:
                run.row("GC_RECORD", startNs=begin + 10 * MS, endNs=begin + 38 * MS, globalTid=1)
            begin += length * MS
    finding = findings_by_kind(tmp_path / "run.db")["slow_steps"]
    assert "28.0 ms of it is garbage collection" in finding.text
    assert "gc.freeze()" in finding.advice


@pytest.mark.parametrize(
    ("around", "named"),
    [
        (None, "save at torch/serialization.py:850"),
        ("train.py(30): save_checkpoint", "save_checkpoint at train.py:30"),
    ],
)
def test_slow_step_names_the_code_that_only_it_runs(
    tmp_path: Path, around: str | None, named: str
) -> None:
    """Functions that all steps run grow as much; one of the user's files is preferred."""
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step, length in enumerate([10, 10, 10, 40, 10, 10]):
            end = begin + length * MS
            run.call(begin, end, f"ProfilerStep#{step}")
            run.kernel(begin + 10 * US, begin + 9 * MS, launched=begin)
            frames = [("train.py(9): step", begin, end), ("model.py(5): forward", begin, 9 * MS)]
            frames.append(("<built-in method item of Tensor object>", begin + 8 * MS, end - US))
            if length > 10:
                frames.append(("torch/serialization.py(850): save", begin + 10 * MS, end))
                if around is not None:
                    frames.append((around, begin + 9 * MS, end))
            for name, start, until in frames:
                row = {"globalTid": 1, "name": run.text(name)}
                run.row("UPROF_PYTHON_FRAMES", startNs=start, endNs=max(start, until), **row)
            begin = end
    finding = findings_by_kind(tmp_path / "run.db")["slow_steps"]
    assert f"most of it in {named}" in finding.text
    assert "on average over all steps" in finding.text
    assert "these steps only" in finding.advice


@pytest.mark.parametrize(
    ("slow", "sure", "says"),
    [
        ((3,), "possible", "other programs on the same processors"),
        ((2, 5, 9), "possible", "other programs on the same processors"),
        ((2, 4, 6, 8), "certain", "one of 2 steps is slow"),
    ],
)
def test_slow_steps_of_a_host_are_certain_if_they_are_regular(
    tmp_path: Path, slow: tuple[int, ...], sure: str, says: str
) -> None:
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step in range(10):
            length = (30 if step in slow else 10) * MS
            run.call(begin, begin + length, f"ProfilerStep#{step}")
            run.call(begin + US, begin + length - US, "aten::linear")
            begin += length
    finding = findings_by_kind(tmp_path / "run.db")["slow_steps"]
    assert (finding.sure, says in finding.text) == (sure, True)


@pytest.mark.parametrize(("compiles", "share"), [(True, 56), (False, 36)])
def test_compilation_with_ranges_for_its_parts_counts_once(
    tmp_path: Path, compiles: bool, share: int
) -> None:
    """A step that compiles longer is no second finding; one that computes longer is."""
    with FaultyRun(tmp_path / "run.db") as run:
        begin = 0
        for step in range(5):
            more = 20 * MS * (step == 3)
            compiled = begin + 9 * MS + more * compiles
            run.call(begin, begin + 20 * MS + more, f"ProfilerStep#{step}")
            run.call(begin + US, compiled, "entire_frame_compile")
            run.call(begin + 2 * US, compiled - MS, "_compile.compile_inner (dynamo_timed)")
            run.call(compiled + MS, begin + 19 * MS + more, "aten::linear")
            begin += 20 * MS + more
    found = findings_by_kind(tmp_path / "run.db")
    text = found["compile_stalls"].text
    assert "code is compiled or loaded 4 times after the first step" in text
    assert f"the program waits meanwhile for {share} % of the time" in text
    assert ("slow_steps" in found) != compiles


def test_compilation_of_a_host_ahead_of_its_device_is_counted_and_placed(tmp_path: Path) -> None:
    """It begins in the second step of the host, when the device still runs the first one."""
    with FaultyRun(tmp_path / "run.db") as run:
        host = device = 0
        for step, compile_ms in enumerate((0, 30, 0, 0)):
            launch, end = host + compile_ms * MS, host + (compile_ms + 15) * MS
            run.call(host, end, f"ProfilerStep#{step}")
            if compile_ms:
                run.call(host + US, launch, "_compile.compile_inner (dynamo_timed)")
                row = {"startNs": host, "endNs": end, "globalTid": 1}
                run.row("UPROF_PYTHON_FRAMES", **row, name=run.text("train.py(9): step"))
            device = max(device, launch + 5 * US)
            run.kernel(device, device + 20 * MS, launched=launch)
            host, device = end, device + 20 * MS
    text = findings_by_kind(tmp_path / "run.db")["compile_stalls"].text
    assert "compiled or loaded once after the first step, longest in step at train.py:9;" in text


@pytest.mark.parametrize(("short_us", "listed"), [(5, False), (500, True)])
def test_evidence_of_compilation_lists_what_is_1_percent_of_its_cost(
    tmp_path: Path, short_us: int, listed: bool
) -> None:
    """Four times 8 ms are compiled after the first step; the parts take 20 µs or 2 ms."""
    parts = ("cuModuleLoadData", "cuLibraryLoadData")
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(5, 20 * MS):
            compiled = begin + 9 * MS
            run.call(begin + US, compiled, "_compile.compile_inner (dynamo_timed)")
            for at, name in enumerate(parts):
                start = compiled - (at + 2) * MS
                run.api(start, start + short_us * US, name)
            run.kernel(compiled + US, begin + 19 * MS, launched=compiled)
    rows = findings_by_kind(tmp_path / "run.db")["compile_stalls"].evidence
    assert rows[0]["name"] == "_compile.compile_inner (dynamo_timed)"
    if listed:
        assert sorted(row["name"] for row in rows[1:]) == sorted(parts)
    else:
        (others,) = rows[1:]
        assert others["name"] == "(2 shorter ones)"
        assert (others["count"], others["total_ns"]) == (4 * 2, 4 * 2 * 5 * US)


def test_operator_with_codegen_in_its_name_is_no_compilation(tmp_path: Path) -> None:
    """FBGEMM runs embedding operators with such names in every step."""
    name = "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu"
    assert "compile_stalls" not in findings_by_kind(write_calls(tmp_path / "run.db", name))


@pytest.mark.parametrize(
    ("slow", "found"),
    [
        ((2, 5, 8, 11), True),
        ((2, 8, 11), False),
        ((2, 5, 8), False),  # not in the rest of the run
        ((5, 8, 11), False),
        ((3, 4, 5, 6, 7, 8, 9, 10, 11), False),
    ],
)
def test_regular_slow_steps_are_found(tmp_path: Path, slow: tuple[int, ...], found: bool) -> None:
    """Other steps vary less."""
    lengths = [13 if step in slow else 10 for step in range(12)]
    findings = findings_by_kind(write_steps(tmp_path / "run.db", lengths))
    assert ("slow_steps" in findings) is found
    if found:
        assert "one of 3 steps is slow" in findings["slow_steps"].text


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({2: 10, 6: 10}, True),
        ({}, False),  # noise
        ({2: 10, 3: 5, 4: 2, 6: 10}, False),  # steps that differ anyway
        ({1: 10, 3: 10}, False),  # other steps
    ],
)
def test_steps_with_more_work_are_found(tmp_path: Path, extra: dict[int, int], found: bool) -> None:
    path = tmp_path / "run.db"
    with FaultyRun(path) as run:
        begin = 0
        for step in range(8):
            length = (13 if step in (2, 6) else 10) * MS
            run.step(step, begin, begin + length)
            run.kernel(begin, begin + length - 100 * US)
            for number in range(100 + extra.get(step, 0)):
                at = begin + number * 10 * US
                run.call(at, at + 5 * US, "aten::linear")
            begin += length
    findings = findings_by_kind(path)
    assert ("slow_steps" in findings) is found
    if found:
        assert "runs 10 operations more than others" in findings["slow_steps"].text
        assert "find what the program does in these steps only" in findings["slow_steps"].advice


def test_very_long_steps_are_said_to_be_left_out(tmp_path: Path) -> None:
    result = advice(write_steps(tmp_path / "run.db", [10, 10, 10, 50, 10, 10], ranges={3: "save"}))
    assert (result.steps, result.paused_ms) == (4, 50)


def test_memory_of_slow_steps_is_that_of_the_functions_that_take_long(tmp_path: Path) -> None:
    """A table of all functions and steps would take 80 MB."""
    path = write_steps(tmp_path / "run.db", [10] * 50 + [30] + [10] * 449)
    count = 20_000
    with open_analyses(path) as (analysis,):
        assert isinstance(analysis, MsprofAnalysis)
        (device,) = analysis.recording.devices
        context = DeviceContext(analysis.recording, device)
        start = Device.T0 + np.linspace(0, 5_000 * MS, count, dtype=np.int64)
        texts = [f"model.py({line}): layer" for line in range(count)]
        code = HostCode(start, start + US, np.ones(count, np.int64), np.arange(count), texts)
        vars(context).update(host_code=code, step_threads=[1])
        tracemalloc.start()
        (cause,) = slow_steps(context)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert cause.finding.steps == (50,)
    assert peak < 8_000_000
