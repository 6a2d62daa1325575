"""Steps of programs that number their ranges: NVTX, record_function, mstx."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.faulty_runs import MS, FaultyRun, advice
from tests.analysis.builders import Device
from tests.decoders.kineto import builders as kineto
from tests.decoders.nsys import builders as nsys
from unified_prof.cluster.rank_map import read_partials
from unified_prof.explain.api import open_analyses
from unified_prof.pipeline.convert import convert
from unified_prof.recording.steps import is_numbered

Range = tuple[str, int, int]  # Name, start and end.
LOADER = 5  # Another thread.


@pytest.mark.parametrize(
    "name",
    [
        *("step 3", "Step 3", "step_12", "steps7", "train_step 12", "TrainStep #4", "step=3/100"),
        *("iteration3", "Iteration 7", "iteration[100,104)", "iter_0", "epoch 2 iter 40", "batch7"),
        *("BATCH 8", "[Executor] _forward_step 12: 0 ctx reqs, 1 gen reqs", "step 3 start"),
    ],
)
def test_names_with_a_word_for_a_step_and_a_number_may_be_steps(name: str) -> None:
    assert is_numbered(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "layer 3",
            "block_3",
            "step",
            "Optimizer.step#Adam.step",
            "step[DECODE bs=32]",
            "epoch 4",
        ),
        *(
            "micro_batch 3",
            "microbatch 3",
            "iteration_5_ga_step_0",
            "grad_accum_step 1",
            "stepper 3",
        ),
        *(
            "batch_size=32",
            "nn.Module: BatchNorm2d_0",
            "footstep 3",
            "step 2d",
            "train.py(3): step",
        ),
    ],
)
def test_other_names_are_not_steps(name: str) -> None:
    assert not is_numbered(name)


STEPS: list[Range] = [(f"step {7 + at}", 100 * at, 100 * at + 90) for at in range(4)]


def nsys_run(path: Path, ranges: Sequence[Range], kernels: int = 8) -> Path:
    """Write an export without operations: kernels of 20 that are launched every 50."""
    tables: dict[str, Any] = {
        nsys.KERNELS: [nsys.kernel(50 * at + 20, 50 * at + 40, at) for at in range(kernels)],
        nsys.CALLS: [nsys.call(50 * at + 10, 50 * at + 15, at) for at in range(kernels)],
        nsys.RANGES: [nsys.pushed(start, end, name) for name, start, end in ranges],
    }
    convert(nsys.write(path / "run.sqlite", nsys.small(**tables)), path / "run.db")
    return path / "run.db"


def kineto_run(path: Path, ranges: Sequence[Range], *, loader: bool = False) -> Path:
    """Write a trace of the same kernels, with operations; `loader` ranges are on another thread."""
    events = [
        *(kineto.operation("aten::mm", 50 * at + 5, 20) for at in range(8)),
        *(kineto.call(50 * at + 10, 5, at + 1) for at in range(8)),
        *(kineto.kernel(50 * at + 20, 20, at + 1) for at in range(8)),
        *(
            kineto.complete("user_annotation", name, start, end - start)
            | ({"tid": LOADER} if loader else {})
            for name, start, end in ranges
        ),
    ]
    convert(kineto.write(path / "trace.json", events), path / "run.db")
    return path / "run.db"


def step_names(path: Path) -> list[str]:
    with open_analyses(path) as (analysis,):
        return [name for name, *_ in analysis.step_spans()]


@pytest.mark.parametrize(("run", "kernel_ns"), [(nsys_run, 20), (kineto_run, 20_000)])
def test_numbered_ranges_around_the_launches_are_steps(
    run: Any, kernel_ns: int, tmp_path: Path
) -> None:
    path = run(tmp_path, [*STEPS, ("forward", 5, 40), ("layer 1", 6, 20)])
    with open_analyses(path) as (analysis,):
        assert [name for name, *_ in analysis.step_spans()] == ["7", "8", "9", "10"]
        annotated = analysis.breakdown("annotation").rows
        rows = analysis.breakdown("step").rows
    assert {row.name for row in annotated} == {"forward", "layer 1"}, "without steps, as documented"
    computing = [row.extra["compute_ns"] for row in rows]
    assert computing == [2 * kernel_ns] * 4, "two kernels in each"


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param(STEPS[:2], id="two"),
        pytest.param([("step 3", start, end) for _, start, end in STEPS], id="equal numbers"),
        pytest.param(
            [(f"step {number}", *STEPS[at][1:]) for at, number in enumerate((0, 1, 0, 1))],
            id="numbers that begin again",
        ),
        pytest.param([(name, start, end + 40) for name, start, end in STEPS], id="overlapping"),
        pytest.param([(f"layer {n}", *one[1:]) for n, one in enumerate(STEPS)], id="layers"),
        pytest.param([(f"block {n}", *one[1:]) for n, one in enumerate(STEPS)], id="blocks"),
        pytest.param([(f"batch {n}", 50 * n, 50 * n + 9) for n in range(8)], id="data loader"),
        pytest.param([(name, start // 3, end // 3) for name, start, end in STEPS], id="a third"),
    ],
)
@pytest.mark.parametrize("run", [nsys_run, kineto_run])
def test_other_numbered_ranges_are_not_steps(
    run: Any, ranges: Sequence[Range], tmp_path: Path
) -> None:
    assert not step_names(run(tmp_path, ranges))


@pytest.mark.parametrize("run", [nsys_run, kineto_run])
@pytest.mark.parametrize("inner", ["batch", "train_step"])
def test_the_outermost_ranges_are_steps(run: Any, inner: str, tmp_path: Path) -> None:
    inside = [(f"{inner} {at}", 50 * at + 2, 50 * at + 45) for at in range(8)]
    assert step_names(run(tmp_path, [*inside, *STEPS])) == ["7", "8", "9", "10"]
    alone = tmp_path / "alone"
    alone.mkdir()
    assert len(step_names(run(alone, inside))) == 8


def test_batches_of_a_loader_thread_are_not_steps(tmp_path: Path) -> None:
    """They are open while another thread launches the work."""
    ranges = [(f"batch {at}", start, end + 10) for at, (_, start, end) in enumerate(STEPS)]
    assert not step_names(kineto_run(tmp_path, ranges, loader=True))


def test_one_of_many_processes_marks_the_steps(tmp_path: Path) -> None:
    """An export of a host with a process per GPU, each with its steps."""
    pids = range(100, 112)
    tables: dict[str, Any] = {nsys.KERNELS: [], nsys.CALLS: [], nsys.RANGES: []}
    for pid in pids:
        place, thread = {"globalPid": nsys.packed(pid)}, {"globalTid": nsys.packed(pid, pid + 1)}
        for at in range(8):
            tables[nsys.KERNELS].append(nsys.kernel(50 * at + 20, 50 * at + 40, at, **place))
            tables[nsys.CALLS].append(nsys.call(50 * at + 10, 50 * at + 15, at, **thread))
        tables[nsys.RANGES] += [
            nsys.pushed(start, end, name, **thread) for name, start, end in STEPS
        ]
    convert(nsys.write(tmp_path / "run.sqlite", nsys.small(**tables)), tmp_path / "run.db")
    assert step_names(tmp_path / "run.db") == ["7", "8", "9", "10"]


def test_steps_of_the_profiler_come_first(tmp_path: Path) -> None:
    profiled = [("ProfilerStep#2", 0, 190), ("ProfilerStep#3", 200, 390)]
    path = kineto_run(tmp_path, [*profiled, *STEPS])
    assert step_names(path) == ["2", "3"]
    with open_analyses(path) as (analysis,):
        assert {row.name for row in analysis.breakdown("annotation").rows} == {
            name for name, *_ in STEPS
        }


def test_ranges_of_mstx_on_an_npu_are_steps(tmp_path: Path) -> None:
    """The thread of the task queue launches, the program marks on another."""
    path = tmp_path / "npu.db"
    with FaultyRun(path) as run:
        for name, start, end in STEPS:
            texts = {"message": run.text(name), "domainId": run.text("default")}
            run.row("MSTX_EVENTS", startNs=start, endNs=end, **texts, globalTid=9, eventType=3)
            run.kernel(start + 20, start + 60, launched=start + 10)
    assert step_names(path) == ["7", "8", "9", "10"]


def test_without_a_device_operations_are_the_work(tmp_path: Path) -> None:
    def write(path: Path, *, length: int) -> Path:
        with Device(path) as device:
            for name, start, _ in STEPS:
                texts = {"message": device.text(name), "domainId": device.text("default")}
                columns = {"globalTid": 1, "eventType": 2}
                device.row("MSTX_EVENTS", startNs=start, endNs=start + length, **texts, **columns)
                device.call(start + 5, start + 15, "aten::add")
                device.call(start + 20, start + 80, "aten::mm")
        return path

    assert step_names(write(tmp_path / "steps.db", length=90)) == ["7", "8", "9", "10"]
    assert not step_names(write(tmp_path / "parts.db", length=18))


def test_costs_are_those_of_a_step(tmp_path: Path) -> None:
    """The host launches late: the cost is that of one step, not of the recording."""
    ranges = [(f"iteration {at}", 10 * at * MS, (10 * at + 9) * MS) for at in range(5)]

    def write(path: Path, ranges: Sequence[Range]) -> Path:
        with FaultyRun(path) as run:
            for name, start, end in ranges:
                texts = {"message": run.text(name), "domainId": run.text("default")}
                run.row("MSTX_EVENTS", startNs=start, endNs=end, **texts, globalTid=1, eventType=2)
            for at in range(100):
                run.kernel(at * MS // 2 + 200_000, at * MS // 2 + 300_000, launched=at * MS // 2)
        return path

    stepped = advice(write(tmp_path / "steps.db", ranges))
    whole = advice(write(tmp_path / "whole.db", [("iteration 1", 0, 50 * MS)]))
    assert (stepped.steps, whole.steps) == (4, 0), "the first step is warm-up"
    (cost,) = (one.cost_ms_per_step for one in stepped.findings if one.kind == "host_bound")
    assert 3 < cost < 9, "of steps of 10 ms"


def test_the_ranks_of_a_cluster_have_these_steps(tmp_path: Path) -> None:
    (partial,) = read_partials(kineto_run(tmp_path, STEPS), rank=0)
    assert partial.steps["step"].tolist() == [7, 8, 9, 10]
