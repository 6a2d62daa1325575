"""Processes and attempts that share an output directory: no report is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from unified_prof.pipeline.outputs import attempt_directory, default_directory, rank_of

TRAINING = """\
import os, sys, time, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
open("ready" + sys.argv[1], "w").close()
while sum(name.startswith("ready") for name in os.listdir()) < 2:
    time.sleep(0.05)
for _ in range(8):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def start_run(name: str, reports: str) -> subprocess.Popen[str]:
    settings = ["--backend", "cpu", "-o", "out", "--iterations", "2", "--report", reports]
    return subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "run", *settings, "train.py", name],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reports", "kinds"),
    [("run-time", ["run_time*.sqlite"]), ("timeline", ["timeline*.db", "timeline*.json.gz"])],
)
def test_processes_that_share_a_directory_keep_both_reports(reports: str, kinds: list[str]) -> None:
    both = [start_run("a", reports), start_run("b", reports)]
    messages = [process.communicate(timeout=400)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], messages
    for kind in kinds:
        assert len(list(Path("out").glob(kind))) == 2, messages


@pytest.mark.parametrize(
    "job",
    [
        {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"},
        {"TORCHELASTIC_RUN_ID": "night", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "LSB_JOBID": "9"},
    ],
    ids=["slurm", "torchrun", "openmpi"],
)
def test_job_has_one_directory_on_all_hosts(job: dict[str, str]) -> None:
    name = {"SLURM_NTASKS": "SLURM_PROCID", "WORLD_SIZE": "RANK"}
    variable = next((name[key] for key in name if key in job), "OMPI_COMM_WORLD_RANK")
    ranks = [rank_of({**job, variable: str(number)}) for number in range(4)]
    assert [rank.number for rank in ranks] == [0, 1, 2, 3]
    folders = {default_directory("train.py", False, rank) for rank in ranks}
    assert len(folders) == 1, folders


def test_restarted_job_writes_into_a_separate_directory() -> None:
    started = {"RANK": "0", "WORLD_SIZE": "2"}
    first = rank_of({**started, "TORCHELASTIC_RESTART_COUNT": "0"})
    third = rank_of({**started, "TORCHELASTIC_RESTART_COUNT": "2"})
    assert attempt_directory(Path("out"), first) == Path("out")
    assert attempt_directory(Path("out"), third) == Path("out/restart2")
