"""`uprof run --report timeline` in this process, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unified_prof import open_report
from unified_prof.backends.base import RUN_TIME, TIMELINE, RunSpec
from unified_prof.backends.cpu import CpuBackend
from unified_prof.errors import CaptureError, OutputError, UsageError
from unified_prof.pipeline.run import RunResult, run

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
        target=str(script),
        is_module=False,
        arguments=("9",),
        reports=(TIMELINE,),
        output_dir=tmp_path / "out",
        project_root=tmp_path,
        warmup=2,
        iterations=3,
    )


def rows(result: RunResult, sql: str) -> list[tuple[Any, ...]]:
    (report,) = result.files[TIMELINE]
    with open_report(report) as opened:
        return opened.rows(sql)


def test_the_measured_iterations_become_a_report(spec: RunSpec) -> None:
    result = run(CpuBackend(), spec)
    assert (result.exit_code, result.failure) == (0, None)
    assert [step for (step,) in rows(result, "SELECT id FROM STEP_TIME ORDER BY 1")] == [0, 1, 2]
    operations = dict(
        rows(
            result,
            "SELECT value, count(*) FROM PYTORCH_API JOIN STRING_IDS ON id = name GROUP BY 1",
        )
    )
    assert operations["aten::linear"] == 3
    facts = dict(rows(result, "SELECT name, value FROM UPROF_RUN"))
    assert facts["device_kind"] == "cpu"
    assert facts["exit_code"] == "0"


def test_backward_operations_lead_to_the_line_of_their_forward_operation(spec: RunSpec) -> None:
    result = run(CpuBackend(), spec)
    chains = rows(
        result,
        "SELECT DISTINCT f.value, c.stackDepth FROM PYTORCH_API p"
        " JOIN STRING_IDS s ON s.id = p.name AND s.value = 'AddmmBackward0'"
        " JOIN PYTORCH_CALLCHAINS c ON c.id = p.callchainId"
        " JOIN STRING_IDS f ON f.id = c.stack ORDER BY 2",
    )
    frames = [frame for frame, _ in chains]
    assert any("linear" in frame for frame in frames)
    assert any(frame.endswith(": forward") and "train.py(" in frame for frame in frames)
    assert not any("unified_prof/" in frame for frame in frames), "ours are not the program's"
    assert "train.py" in frames[-1]


def test_details_can_be_left_out(spec: RunSpec) -> None:
    result = run(CpuBackend(), replace(spec, options={"timeline_detail": ("shapes",)}))
    with open_report(result.files[TIMELINE][0]) as report:
        assert "PYTORCH_CALLCHAINS" not in report.tables
        assert "MEMORY_RECORD" not in report.tables
        shapes = report.rows(
            "SELECT DISTINCT s.value FROM PYTORCH_API JOIN STRING_IDS s ON s.id = inputShapes"
        )
    assert any("2,4" in shape for (shape,) in shapes)


def test_an_unknown_detail_is_wrong_use(spec: RunSpec) -> None:
    with pytest.raises(UsageError, match="no timeline detail 'colour'"):
        run(CpuBackend(), replace(spec, options={"timeline_detail": ("colour",)}))
    assert not spec.output_dir.exists()


def test_other_reports_come_beside_it(spec: RunSpec) -> None:
    longer = replace(spec, reports=(RUN_TIME, TIMELINE), arguments=("12",))
    result = run(CpuBackend(), longer)
    assert result.failure is None
    assert set(result.files) == {RUN_TIME, TIMELINE}


def test_a_program_that_ends_early_leaves_its_complete_iterations(spec: RunSpec) -> None:
    result = run(CpuBackend(), replace(spec, arguments=("4",)))
    assert result.exit_code == 0
    assert result.failure is not None
    assert rows(result, "SELECT id FROM STEP_TIME ORDER BY 1") == [(0,), (1,)]


def test_a_program_that_ends_before_the_first_one_leaves_nothing(spec: RunSpec) -> None:
    with pytest.raises(CaptureError):
        run(CpuBackend(), replace(spec, arguments=("1",)))
    assert not spec.output_dir.exists()


def test_an_earlier_report_is_kept_without_force(spec: RunSpec) -> None:
    spec.output_dir.mkdir()
    report = spec.output_dir / "timeline.db"
    report.write_text("mine")
    with pytest.raises(OutputError):
        run(CpuBackend(), spec)
    assert report.read_text() == "mine"
    assert rows(run(CpuBackend(), spec, force=True), "SELECT count(*) FROM STEP_TIME") == [(3,)]


def test_a_program_that_profiles_itself_is_told_so(spec: RunSpec) -> None:
    script = Path(spec.target)
    script.write_text(
        SCRIPT.replace("for _", "p = torch.profiler.profile()\np.start()\nfor _") + "p.stop()\n"
    )
    with pytest.raises(CaptureError, match=r"another torch\.profiler is recording"):
        run(CpuBackend(), spec)
