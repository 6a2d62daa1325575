"""`uprof run --backend npu` with a stand-in for msprof and the test device as NPU."""

import json
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.device import bench, build
from tests.processes import uprof
from unified_prof import open_report

pytestmark = pytest.mark.fresh_interpreter

PROGRAM = """
import torch
from tests.backends import stand_in_acl

stand_in_acl.init()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).relu())

model = Net().to("npu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    model(torch.ones(4, 8, device="npu")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KERNEL_NS = 7_000


@pytest.mark.slow
def test_npu_measures_time_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := build.why_not():
        pytest.skip(reason)
    build.library()
    command = stand_in_msprof.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    options = "--backend npu --json --report timeline,run-time,memory --iterations 4 -o out"
    environment = bench.environment("npu", UPROF_BENCH_KERNEL_NS=str(KERNEL_NS))
    done = uprof("run", *options.split(), "train.py", env=environment)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)["files"]
    (run_time,), (memory,) = files["run-time"], files["memory"]
    assert files["timeline"]
    with open_report(Path(run_time)) as report:
        operations = report.rows(
            "SELECT operation_name, forward_ms, backward_ms FROM run_time_entries"
        )
        facts = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
    assert [name for name, _, _ in operations] == ["linear", "relu", "linear"]
    assert {round(forward_ms * 1e6) for _, forward_ms, _ in operations} == {KERNEL_NS}
    assert [round(1e6 * ms) for _, _, ms in operations] == [n * KERNEL_NS for n in (2, 1, 3)]
    assert facts["device"] == "npu: Test Bench 1"
    with open_report(Path(memory)) as report:
        known = dict(report.rows("SELECT name, value FROM UPROF_RUN"))
        weights = report.rows("SELECT name, size_bytes FROM weight_entries")
    assert len(weights) == 4
    assert int(known["peak_reserved_bytes npu:0"]) >= int(known["peak_allocated_bytes npu:0"]) > 0
