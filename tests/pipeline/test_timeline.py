"""`uprof run --report timeline` in this process, on the CPU."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sql import execute
from unified_prof import open_report
from unified_prof.backends.torch_device import CpuBackend
from unified_prof.base.run_spec import RUN_TIME, TIMELINE, RunSpec
from unified_prof.errors import CaptureError, OutputError, UsageError
from unified_prof.pipeline.live import RunResult, run
from unified_prof.tracking import timeline

SCRIPT = """\
import sys
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).relu()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


for _ in range(int(sys.argv[1])):
    train()
"""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return RunSpec(
        target=str(script), is_module=False, arguments=("9",), reports=(TIMELINE,),
        output_dir=tmp_path / "out", project_root=tmp_path, warmup=2, iterations=3,
    )  # fmt: skip


def rows(result: RunResult, sql: str) -> list[tuple[Any, ...]]:
    (report,) = result.files[TIMELINE]
    with open_report(report) as opened:
        return opened.rows(sql)


@pytest.mark.slow
def test_measured_iterations_become_a_report(spec: RunSpec) -> None:
    result = run(CpuBackend(), spec)
    assert (result.exit_code, result.failure) == (0, None)
    assert [step for (step,) in rows(result, "SELECT id FROM STEP_TIME ORDER BY 1")] == [0, 1, 2]
    query = "SELECT value, count(*) FROM PYTORCH_API JOIN STRING_IDS ON id = name GROUP BY 1"
    operations = dict(rows(result, query))
    assert operations["aten::linear"] == 3
    facts = dict(rows(result, "SELECT name, value FROM UPROF_RUN"))
    assert facts["device_kind"] == "cpu"
    assert facts["exit_code"] == "0"


@pytest.mark.slow
def test_backward_operations_lead_to_the_line_of_their_forward_operation(spec: RunSpec) -> None:
    # In a separate process, because torch keeps frames of earlier runs.
    line = [sys.executable, "-m", "unified_prof", "run", "--backend", "cpu", "-q"]
    line += ["-o", str(spec.output_dir), "--report", "timeline"]
    line += ["--timeline-detail", "shapes,stacks", "--iterations", str(spec.iterations)]
    line += ["--warmup", str(spec.warmup), str(spec.target), *spec.arguments]
    subprocess.run(line, check=True)
    chains = execute(
        spec.output_dir / "timeline.db",
        "SELECT DISTINCT f.value, c.stackDepth FROM PYTORCH_API p"
        " JOIN STRING_IDS s ON s.id = p.name AND s.value = 'AddmmBackward0'"
        " JOIN PYTORCH_CALLCHAINS c ON c.id = p.callchainId"
        " JOIN STRING_IDS f ON f.id = c.stack ORDER BY 2",
    )
    frames = [frame for frame, _ in chains]
    assert any("linear" in frame for frame in frames)
    assert any(frame.endswith(": forward") and "train.py(" in frame for frame in frames)
    assert not any("unified_prof/" in frame for frame in frames)
    assert "train.py" in frames[-1]


def test_omitted_details_are_not_recorded(spec: RunSpec) -> None:
    result = run(CpuBackend(), replace(spec, options={"timeline_detail": ("shapes",)}))
    with open_report(result.files[TIMELINE][0]) as report:
        assert "PYTORCH_CALLCHAINS" not in report.tables
        assert "MEMORY_RECORD" not in report.tables
        shapes = report.rows(
            "SELECT DISTINCT s.value FROM PYTORCH_API JOIN STRING_IDS s ON s.id = inputShapes"
        )
    assert any("2,4" in shape for (shape,) in shapes)


def test_unknown_detail_is_a_usage_error(spec: RunSpec) -> None:
    with pytest.raises(UsageError, match="unknown timeline detail 'colour'"):
        run(CpuBackend(), replace(spec, options={"timeline_detail": ("colour",)}))
    assert not spec.output_dir.exists()


@pytest.mark.parametrize(("option", "flag"), [("timeline_detail", "timeline-detail"),
                                              ("schema", "schema")])  # fmt: skip
def test_option_of_the_timeline_without_the_report_is_a_usage_error(
    spec: RunSpec, option: str, flag: str
) -> None:
    with pytest.raises(UsageError) as caught:
        run(CpuBackend(), replace(spec, reports=(RUN_TIME,), options={option: "latest"}))
    assert str(caught.value).startswith(f"--{flag} applies to timelines")
    assert caught.value.hint == "add --report timeline"


@pytest.mark.slow
def test_other_reports_come_beside_it(spec: RunSpec) -> None:
    timeline_is_combined_with_other_reports = replace(
        spec, reports=(RUN_TIME, TIMELINE), arguments=("12",)
    )
    result = run(CpuBackend(), timeline_is_combined_with_other_reports)
    assert result.failure is None
    assert set(result.files) == {RUN_TIME, TIMELINE}


@pytest.mark.slow
def test_early_end_of_the_program_keeps_complete_iterations(spec: RunSpec) -> None:
    result = run(CpuBackend(), replace(spec, arguments=("4",)))
    assert result.exit_code == 0
    assert result.failure is not None
    assert rows(result, "SELECT id FROM STEP_TIME ORDER BY 1") == [(0,), (1,)]


@pytest.mark.slow
def test_end_before_the_first_iteration_is_an_error(spec: RunSpec) -> None:
    with pytest.raises(CaptureError):
        run(CpuBackend(), replace(spec, arguments=("1",)))
    assert not spec.output_dir.exists()


@pytest.mark.slow
def test_existing_report_is_kept_without_force(spec: RunSpec) -> None:
    spec.output_dir.mkdir()
    report = spec.output_dir / "timeline.db"
    report.write_text("existing")
    with pytest.raises(OutputError):
        run(CpuBackend(), spec)
    assert report.read_text() == "existing"
    assert rows(run(CpuBackend(), spec, force=True), "SELECT count(*) FROM STEP_TIME") == [(3,)]


LOOP = """\
for _ in range(int(sys.argv[1])):
    train()
"""


def run_with_loop(spec: RunSpec, loop: str, **changes: Any) -> RunResult:
    """Run the script with another loop."""
    script = Path(spec.target)
    script.write_text(SCRIPT.replace(LOOP, loop))
    return run(CpuBackend(), replace(spec, **changes))


def operation_names(trace: Path) -> list[str]:
    """Return the names of all operations and steps in a trace that the program wrote."""
    events = json.loads(trace.read_text())["traceEvents"]
    kept = ("cpu_op", "user_annotation")
    return sorted(event["name"] for event in events if event.get("cat") in kept)


USER_PROFILER = """\
import os
with torch.profiler.profile({settings}) as own:
    for _ in range(9):
        train()
        own.step()
own.export_chrome_trace("own.json")
"""
SCHEDULE = (
    "schedule=torch.profiler.schedule(wait=3, warmup=1, active=2, repeat=1),"
    "on_trace_ready=lambda p: p.export_chrome_trace('cycle.json')"
)
LATE_USER_PROFILER = """\
for i in range(9):
    if i == 4:
        own = {made}
        own.__enter__()
    train()
    if i == 6:
        own.__exit__(None, None, None)
own.export_chrome_trace("own.json")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "trace", "steps"),
    [
        (USER_PROFILER.format(settings=""), "own.json", 0),
        (USER_PROFILER.format(settings=SCHEDULE).replace("own.export", "# "), "cycle.json", 1),
        (LATE_USER_PROFILER.format(made="torch.profiler.profile()"), "own.json", 2),
        (LATE_USER_PROFILER.format(made="torch.autograd.profiler.profile()"), "own.json", 2),
    ],
    ids=["during all iterations", "with a schedule", "later", "of autograd"],
)
def test_profiler_of_the_program_takes_precedence(
    spec: RunSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loop: str,
    trace: str,
    steps: int,
) -> None:
    for folder in ("plain", "profiled"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    script = Path(spec.target)
    script.write_text(SCRIPT.replace(LOOP, loop))
    completed = subprocess.run([sys.executable, script, "9"], capture_output=True, check=False)
    assert completed.returncode == 0, completed.stderr
    monkeypatch.chdir(tmp_path / "profiled")
    spec = replace(spec, iterations=4)
    if steps:
        result = run(CpuBackend(), spec)
        assert (result.exit_code, rows(result, "SELECT count(*) FROM STEP_TIME")) == (0, [(steps,)])
        assert "the program itself used torch.profiler" in str(result.failure)
    else:
        with pytest.raises(CaptureError, match=r"itself used torch\.profiler"):
            run(CpuBackend(), spec)
    profiled, plain = operation_names(Path(trace)), operation_names(tmp_path / "plain" / trace)
    if not steps:  # The first iteration is tracked, which inspects the backward graph.
        profiled, plain = (
            [name for name in names if name == "aten::linear"] for names in (profiled, plain)
        )
    assert profiled == plain


@pytest.mark.slow
def test_program_without_an_optimizer_is_one_iteration(spec: RunSpec) -> None:
    result = run_with_loop(spec, "with torch.no_grad():\n    model(torch.ones(2, 4))\n")
    assert result.exit_code == 0
    assert "marked no iterations (unified_prof.step())" in str(result.failure)
    assert rows(result, "SELECT count(*) FROM STEP_TIME") == [(1,)]
    names = {name for (name,) in rows(result, "SELECT value FROM STRING_IDS")}
    assert "aten::addmm" in names


@pytest.mark.slow
def test_events_before_the_first_step_are_not_in_the_timeline(spec: RunSpec) -> None:
    result = run_with_loop(spec, "torch.special.erf(torch.ones(2, 4))\n" + LOOP)
    assert result.failure is None
    names = {name for (name,) in rows(result, "SELECT value FROM STRING_IDS")}
    assert "aten::addmm" in names
    assert "aten::special_erf" not in names


def test_program_without_modules_and_steps_gets_a_hint(spec: RunSpec) -> None:
    script = Path(spec.target)
    script.write_text("import torch\ntorch.ones(2) + 1\n")
    with pytest.raises(CaptureError) as raised:
        run(CpuBackend(), spec)
    assert "unified_prof.step()" in str(raised.value.hint)


@pytest.mark.slow
def test_long_program_loses_its_beginning(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_MAX_OPERATIONS", 30)
    loop = "with torch.no_grad():\n    for _ in range(100):\n        model(torch.ones(2, 4))\n"
    result = run_with_loop(spec, loop)
    assert "its first 30 operations" in str(result.failure)
    query = "SELECT count(*) FROM PYTORCH_API JOIN STRING_IDS ON id = name"
    ((calls,),) = rows(result, f"{query} WHERE value = 'aten::addmm'")
    assert 5 < calls < 30
