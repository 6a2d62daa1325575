"""Multi-rank runs: processes of torchrun that train together over gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run
from tests.sql import run_facts
from unified_prof.sqlite import run_folder

pytestmark = pytest.mark.forks_of_commands

SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu()

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(14):
    if step == 9 and rank == int(sys.argv[1]):
        os._exit(3)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launched = ["--nproc-per-node", str(ranks), "--no-python", sys.executable]
    settings = ["-m", "unified_prof", "run", "--backend", "cpu", "-o", "out"]
    return run(*launcher, *launched, *settings, *arguments, env={"OMP_NUM_THREADS": "1"})


def report_names() -> list[str]:
    return sorted(path.name for path in Path("out").glob("*.sqlite"))


@pytest.mark.slow
def test_reports_of_the_other_ranks_are_kept_if_one_rank_dies() -> None:
    result = torchrun(3, "train.py", "1")
    assert result.returncode != 0
    expected = {"memory_rank0.sqlite", "memory_rank2.sqlite"}
    expected |= {"run_time_rank0.sqlite", "run_time_rank2.sqlite"}
    assert set(report_names()) == expected, result.stderr
    assert not list(Path("out").glob("*.partial"))
    assert run_facts("out/run_time_rank2.sqlite")["complete"] == "false"
    found = run_folder.read("out")
    assert found is not None
    assert found.world_size == 3
    assert found.without_reports[1].startswith("it started on")


@pytest.mark.slow
def test_each_rank_prints_one_line_and_rank_0_the_summary() -> None:
    result = torchrun(2, "--iterations", "3", "train.py", "-1")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("uprof: rank ")]
    assert sorted(line.split(" on ")[0] for line in lines) == [
        "uprof: rank 0 of 2",
        "uprof: rank 1 of 2",
    ]
    assert result.stderr.count("run-time report") == 1
    assert result.stderr.count("measurement complete") == 2
    document = json.loads(Path("out/run.json").read_text())
    assert document["expected_ranks"] == [0, 1]
    assert [document["ranks"][rank]["exit_code"] for rank in ("0", "1")] == [0, 0]
    assert document["ranks"]["1"]["files"] == {
        "run-time": ["run_time_rank1.sqlite"],
        "memory": ["memory_rank1.sqlite"],
    }


@pytest.mark.slow
def test_excluded_ranks_run_without_uprof() -> None:
    Path("train.py").write_text(
        SCRIPT
        + "profiled = any(name.startswith('unified_prof') for name in sys.modules)\n"
        + "sys.stdout.write(f'{rank} {profiled}\\n')  # One write, because ranks share the pipe.\n"
        # PyTorch aborts now and then if the interpreter ends right after a collective: threads of
        # gloo still release tensors (pytorch/pytorch#179291). The rank without uprof does so.
        + "if not profiled:\n    sys.stdout.flush()\n    os._exit(0)\n"
    )
    result = torchrun(2, "--ranks", "1", "--iterations", "3", "train.py", "-1")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n")) == ["", "0 False", "1 True"]
    assert report_names() == ["memory_rank1.sqlite", "run_time_rank1.sqlite"]
    found = run_folder.read("out")
    assert found is not None
    assert (found.expected_ranks, found.without_reports) == ((1,), {})
