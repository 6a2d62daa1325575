"""`uprof run --backend cpu`: the examples, and failures of the workload."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sql import execute
from unified_prof import open_report
from unified_prof.cli.app import main

pytestmark = pytest.mark.usefixtures("place")

# A provider script with replaceable parts.
PROVIDERS = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        {forward}


def uprof_model_provider():
    {model}


def uprof_input_provider(batch_size=3):
    {inputs}


def uprof_iteration_provider(model):
    def iteration(*inputs):
        {iteration}

    return iteration
"""
VALID_PARTS = {
    "forward": "return self.linear(x).relu()",
    "model": "return Net()",
    "inputs": "return (torch.ones(batch_size, 4),)",
    "iteration": "model(*inputs).sum().backward()",
}


def providers(**changes: str) -> str:
    return PROVIDERS.format(**{**VALID_PARTS, **changes})


def uprof(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--backend", "cpu", "-o", "out", "--iterations", "2", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "train"])
def test_every_example_runs_unchanged(name: str, place: Path) -> None:
    project = ("--project-root", str(ROOT / "examples"))
    assert uprof("-q", "--warmup", "1", *project, str(ROOT / "examples" / f"{name}.py")) == 0
    found = execute(
        place / "out" / "run_time.sqlite", "SELECT operation_name FROM run_time_entries"
    )
    assert ("linear",) in found
    paths = execute(
        place / "out" / "run_time.sqlite", "SELECT DISTINCT file_path FROM stack_frames"
    )
    assert paths == [(f"{name}.py",)]
    assert execute(place / "out" / "memory.sqlite", "SELECT count(*) > 0 FROM weight_entries") == [
        (1,)
    ]


@pytest.mark.slow
def test_reports_are_readable_through_the_public_interface(place: Path) -> None:
    (place / "model.py").write_text(providers())
    assert uprof("-q", "model.py") == 0
    with open_report(place / "out" / "run_time.sqlite") as report:
        found = report.rows("SELECT operation_name FROM run_time_entries ORDER BY id")
        assert found == [("linear",), ("relu",)]
    with open_report(place / "out" / "memory.sqlite") as report:
        found = report.rows("SELECT name, size_bytes FROM weight_entries")
        assert found == [("weight", 32), ("bias", 8)]


def test_every_file_name_contains_the_rank(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    (place / "model.py").write_text(providers())
    assert uprof("-q", "model.py") == 0
    names = sorted(p.name for p in (place / "out").iterdir())
    assert names == ["memory_rank3.sqlite", "run_time_rank3.sqlite"]


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def broken(:\n", 1, ["model.py", "SyntaxError"]),
        ("raise RuntimeError('at import')\n", 1, ["RuntimeError: at import"]),
        (providers(model="raise RuntimeError('no model')"), 1, ["RuntimeError: no model"]),
        (providers(forward="raise RuntimeError('bad forward')"), 1, ["bad forward", "line 10"]),
        (providers(iteration="model(*inputs).backward()"), 1, ["grad can be implicitly created"]),
        (providers(iteration="raise SystemExit(9)"), 9, []),
        (providers(iteration="raise SystemExit(-1)"), 255, []),
        (providers(iteration="pass"), 5, ["ran no tensor operation"]),
        (providers(model="return 3"), 5, ["uprof_model_provider", "int"]),
        (providers(inputs="return 3"), 5, ["uprof_input_provider", "int"]),
        (providers().replace("batch_size=3", "size=3"), 5, ["uprof_input_provider", "batch_size"]),
        ("print('never steps, calls nothing')\n", 5, []),
        (providers(model="return Net().to('meta')"), 5, ["meta", "cpu"]),
    ],
)
def test_failures_print_one_message_and_leave_no_file(
    source: str, code: int, words: list[str], place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "model.py").write_text(source)
    assert uprof("model.py") == code
    err = capfd.readouterr().err
    for word in words:
        assert word in err
    assert "unified_prof" not in err  # no frames of uprof in the traceback
    assert [p.name for p in place.iterdir() if p.name != "__pycache__"] == ["model.py"]


@pytest.mark.slow
def test_nan_loss_does_not_stop_profiling(place: Path) -> None:
    (place / "model.py").write_text(providers(forward="return self.linear(x) * float('nan')"))
    assert uprof("-q", "model.py") == 0
    assert (place / "out" / "run_time.sqlite").exists()


def test_failure_leaves_partial_reports(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    failing = "model(*inputs).sum().backward(); COUNT.append(1); assert len(COUNT) < 4"
    (place / "model.py").write_text("COUNT = []\n" + providers(iteration=failing))
    assert uprof("--warmup", "1", "--iterations", "5", "--report", "run-time", "model.py") == 1
    facts = dict(execute(place / "out" / "run_time.sqlite", "SELECT name, value FROM UPROF_RUN"))
    assert facts["complete"] == "false"
    assert "AssertionError" in capfd.readouterr().err


def test_changed_directory_is_reported(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    changing = "import os, sys\nos.chdir('/')\nsys.stdout = sys.stderr = None\n"
    (place / "model.py").write_text(changing + providers())
    assert uprof("model.py") == 0
    assert "linear" in capfd.readouterr().err
    assert (place / "out" / "run_time.sqlite").exists()


FORKING = """\
import os, sys, torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
child = os.fork() if "early" in sys.argv else None
for _ in range(12):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if child is None:
    child = os.fork()
if not child:
    sys.exit(int(sys.argv[1]))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [(("3",), 4), (("0", "early"), 1)])
def test_only_the_started_process_writes_the_report(
    place: Path, arguments: tuple[str, ...], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "train.py").write_text(FORKING)
    assert uprof("-q", "--scope", "project", "train.py", *arguments) == code
    assert (place / "out" / "run_time.sqlite").exists()
    assert "no iterations" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("iterations", "noted"), [("1", False), ("100", True)])
def test_exit_without_cleanup_during_the_measurement_is_noted(
    place: Path, iterations: str, noted: bool
) -> None:
    ending = FORKING.replace("sys.exit(os.wait", "os._exit(4 + os.wait")
    (place / "train.py").write_text(ending)
    command = [sys.executable, "-m", "unified_prof", "run", "--backend", "cpu", "-o", "out"]
    options = ["--warmup", "1", "--iterations", iterations, "--report", "run-time"]
    done = subprocess.run(
        [*command, *options, "train.py", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 5
    assert ("called os._exit during the measurement" in done.stderr) == noted
    assert (place / "out" / "run_time.sqlite").exists() != noted


SLOW_TRAINING = """\
import time, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10_000):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if i == 5:
        open("up", "w").close()
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_interruption_keeps_iterations(number: signal.Signals, code: int, place: Path) -> None:
    (place / "train.py").write_text(SLOW_TRAINING)
    command = [sys.executable, "-m", "unified_prof", "run", "--backend", "cpu", "-o", "out"]
    options = ["--warmup", "1", "--iterations", "10000", "--scope", "project", "--json"]
    process = subprocess.Popen(
        [*command, *options, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not (place / "up").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=400)
    assert process.returncode == code, err
    assert "Traceback" not in err
    answer = json.loads(out)
    assert answer["summary"]["complete"] is False
    assert answer["summary"]["iterations"] >= 1
    names = sorted(p.name for p in (place / "out").iterdir())
    assert names == ["memory.sqlite", "run_time.sqlite"]
