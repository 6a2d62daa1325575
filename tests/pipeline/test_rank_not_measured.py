"""A rank that cannot be measured: training continues, and its report has the reason."""

import json
import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.processes import run
from tests.sql import run_facts

pytestmark = [pytest.mark.forks_of_commands, pytest.mark.usefixtures("place")]

TRAINING = """\
import os
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if {trains}:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
    for step in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
# One write: what ranks print piece by piece is mixed on the pipe they share.
sys.stdout.write(f"trained {{rank}}\\n")
"""

DISK_IS_FULL = """\
if rank == 1:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
INSTRUMENTS_RAISE = """\
if rank == 1:
    from unified_prof.tracking import operations
    def fail(*_):
        raise RuntimeError("out of order")
    operations.OperationTracker.end_iteration = fail
    operations.ActivationTracker.end_iteration = fail
"""
ASSEMBLING_RAISES = """\
if rank == 1:
    from unified_prof.tracking import session
    def fail(*_, **__):
        raise KeyError("of a bug")
    session.Session.result = fail
"""
WRITING_RAISES = """\
if rank == 1:
    from unified_prof.pipeline import reports
    def fail(*_, **__):
        raise KeyError("of a bug")
    reports._WRITERS["memory"] = fail
"""


def torchrun(*options: str, before: str = "", trains: str = "True") -> tuple[int, str, str]:
    Path("train.py").write_text(TRAINING.format(before=indent(before, "    "), trains=trains))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "--no-python", sys.executable]
    settings = ["-m", "unified_prof", "run", "--backend", "cpu", "-o", "out", "--iterations", "2"]
    result = run(*launcher, *settings, *options, "train.py", env={"OMP_NUM_THREADS": "1"})
    return result.returncode, result.stdout, result.stderr


def run_json_of_rank(rank: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path("out/run.json").read_text())["ranks"][str(rank)]
    return found


NOTHING = {"trains": "rank != 1"}
"""Rank 1 runs no operation."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "options", "words"),
    [
        (NOTHING, (), "ran no tensor operation"),
        (NOTHING, ("--report", "timeline"), "no iterations were found"),
        ({"before": INSTRUMENTS_RAISE}, (), "out of order"),
        ({"before": ASSEMBLING_RAISES}, (), "of a bug"),
        ({"before": WRITING_RAISES}, (), "of a bug"),
    ],
    ids=["nothing", "no timeline", "instruments", "assembling", "writing"],
)
def test_unmeasured_rank_does_not_fail_the_job(
    workload: dict[str, str], options: tuple[str, ...], words: str
) -> None:
    code, out, err = torchrun(*options, **workload)
    assert code == 0, err
    assert sorted(out.split("\n")) == ["", "trained 0", "trained 1"]
    assert "Traceback" not in err
    entry = run_json_of_rank(1)
    assert entry["exit_code"] == 0
    assert words in str(entry["failure"])
    for path in Path("out").glob("*rank1.sqlite"):
        found = run_facts(str(path))
        if workload == {"before": WRITING_RAISES} and path.name.startswith("run_time"):
            continue  # Complete: only the memory report could not be written.
        assert (found["complete"], found["exit_code"]) == ("false", "0")
        assert words in str(found["failure"])
    assert run_json_of_rank(0)["failure"] is None


@pytest.mark.slow
def test_full_disk_of_a_rank_does_not_fail_the_job() -> None:
    code, out, err = torchrun(before=DISK_IS_FULL)
    assert code == 0, err
    assert sorted(out.split("\n")) == ["", "trained 0", "trained 1"]
    assert "Traceback" not in err
    assert "rank 1 of 2" in err
    assert "no report" in err
    assert not list(Path("out").glob("*rank1*"))
    assert run_facts("out/run_time_rank0.sqlite")["complete"] == "true"


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", ASSEMBLING_RAISES], ids=["nothing", "assembling"])
def test_unmeasured_rank_fails_the_job_if_strict(before: str) -> None:
    code, _, err = torchrun("--strict", before=before, trains="rank != 1" if not before else "True")
    assert code != 0
    assert "uprof: error: " in err
    assert not list(Path("out").glob("*rank1*"))
    assert run_json_of_rank(1)["failure"]
