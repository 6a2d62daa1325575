"""Timelines of the device: recorded work, its steps and missing records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.device import bench
from tests.device.backend import BenchBackend
from tests.device.on_bench.workloads import LAYERS, PROVIDERS
from tests.tracking.workloads import Workload
from unified_prof import open_report
from unified_prof.base.run_spec import RUN_TIME, TIMELINE, RunSpec
from unified_prof.explain.api import open_analyses
from unified_prof.pipeline.live import RunResult, run

MS = 1_000_000


@pytest.fixture
def spec(workload: Workload) -> RunSpec:
    workload.write("main.py", LAYERS + PROVIDERS)
    return RunSpec(
        target="main.py",
        is_module=False,
        arguments=(),
        reports=(TIMELINE,),
        output_dir=Path("out").absolute(),
        project_root=workload.folder,
        warmup=1,
        iterations=3,
    )


def rows(result: RunResult, sql: str) -> list[tuple[Any, ...]]:
    (report,) = result.files[TIMELINE]
    with open_report(report) as opened:
        return opened.rows(sql)


def facts(result: RunResult) -> dict[str, str]:
    return dict(rows(result, "SELECT name, value FROM UPROF_RUN"))


def test_kernel_duration_in_the_report_is_exact(spec: RunSpec) -> None:
    bench.set_duration(3 * MS, "addmm")
    result = run(BenchBackend(), spec)
    assert (result.exit_code, result.failure) == (0, None)
    kernels = rows(
        result,
        "SELECT t.endNs - t.startNs FROM TASK t JOIN COMPUTE_TASK_INFO c USING (globalTaskId)"
        " JOIN STRING_IDS s ON s.id = c.name AND s.value = 'addmm'",
    )
    assert kernels == [(3 * MS,)] * 5 * 3  # five layers, three iterations; the warm-up has none
    known = facts(result)
    assert known["timeline_details"] == "shapes"
    assert "idle" in known["timeline_overhead"]
    assert known["timeline_launches_without_record"] == "0"


def test_one_iteration_separates_preparation_and_recording(spec: RunSpec) -> None:
    result = run(BenchBackend(), spec)
    assert [step for (step,) in rows(result, "SELECT id FROM STEP_TIME ORDER BY 1")] == [0, 1, 2]


def test_device_work_belongs_to_the_step_that_launched_it(spec: RunSpec) -> None:
    """Five kernels of 20 ms per step make the device lag far behind the host."""
    bench.set_duration(20 * MS, "addmm")
    result = run(BenchBackend(), spec)
    (report,) = result.files[TIMELINE]
    with open_analyses(report) as (analysis,):
        steps = analysis.breakdown("step").rows
    others = {(row.extra["compute_ns"] or 0) - 5 * 20 * MS for row in steps}
    assert len(steps) == 3
    assert len(others) == 1  # every step has the same small kernels otherwise
    assert 0 < others.pop() < MS


def test_timeline_without_device_records_has_a_failure_message(spec: RunSpec) -> None:
    bench.lose_kernels(1.0)
    result = run(BenchBackend(), spec)
    assert "no device work" in str(result.failure)
    assert "NVreg_RestrictProfilingToAdminUsers" in str(result.failure)


def test_lost_records_are_counted(spec: RunSpec) -> None:
    bench.lose_kernels(0.1)
    result = run(BenchBackend(), spec)
    launches, lost = (
        int(facts(result)[name])
        for name in ("timeline_launches", "timeline_launches_without_record")
    )
    assert launches > 60
    assert launches / 10 - 1 <= lost <= launches / 10 + 1
    assert f"lacks {lost} of {launches} device tasks" in str(result.failure)


def test_work_on_other_streams_is_reported_by_call(spec: RunSpec, workload: Workload) -> None:
    gather = "torch.ops.bench.busy_beside(x.detach(), 4_000_000, 'all_gather')"
    beside = LAYERS.replace("        return x\n", f"        {gather}\n        return x\n")
    workload.write("main.py", beside + PROVIDERS)
    result = run(BenchBackend(), replace(spec, reports=(TIMELINE, RUN_TIME)))
    fact = facts(result)["timeline_work_beside_main_streams"]
    assert fact.endswith(": 12.000 ms")  # three iterations
    (report,) = result.files[RUN_TIME]
    with open_report(report) as opened:
        found = dict(opened.rows("SELECT name, detail FROM UPROF_ANOMALIES"))
    assert "12.000 ms" in found["work_beside_main_streams"]


def test_own_profiler_during_warm_up_keeps_its_events(spec: RunSpec, workload: Workload) -> None:
    workload.write(
        "main.py",
        LAYERS
        + """
from torch.profiler import profile
model = Net().to("bench")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(2, 8, device="bench")).sum().backward()
    optimizer.step()
step(); step()
with profile() as own:
    step()
assert any(one.name == "aten::addmm" for one in own.events())
for _ in range(4): step()
""",
    )
    result = run(BenchBackend(), replace(spec, warmup=1))
    assert result.exit_code == 0
