"""`uprof db recover`: data of killed runs is not lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_report import uprof
from tests.conftest import ROOT
from tests.records import tracked_run
from tests.sql import execute, run_facts
from unified_prof.sqlite import atomic, run_spool
from unified_prof.sqlite.run_spool import Spooled

pytestmark = pytest.mark.usefixtures("place")

TRAINING = """\
import os, sys, time, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps, pause=0.0):
    for step in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
"""
NAMES = {"run-time": "run_time", "memory": "memory"}
REPORTS = ["memory.sqlite", "run_time.sqlite"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def start(source: str, *options: str, **more: str) -> subprocess.Popen[str]:
    Path("train.py").write_text(TRAINING + source)
    settings = ["--backend", "cpu", "-o", "out", "--scope", "project"]
    return subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "run", *settings, *options, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )


def end(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=400)[1]


def files() -> list[str]:
    return sorted(path.name for path in Path("out").iterdir())


def write_spool(suffix: str = "", tag: str = "0badc0de-7-7", **changes: object) -> Path:
    """Write a spool as a process on another host leaves it."""
    fields: dict[str, object] = {
        "reports": ("run-time", "memory"),
        "rank": int(suffix.removeprefix("_rank")) if suffix else None,
        "iterations": 10,
        "saved": "2026-01-02T03:04:05+00:00",
        "facts": {"started": "2026-01-02T03:00:00+00:00", "host": "node7"},
        "run": tracked_run(complete=False),
        **changes,
    }
    path = Path("out", f".uprof{suffix}.{tag}.spool")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(run_spool.encode(Spooled(**fields)))  # type: ignore[arg-type]
    return path


def tag_of_ended_process() -> str:
    """Return the tag of a process of this machine that has ended."""
    process = subprocess.run([sys.executable, "-c", PRINT_TAG], stdout=subprocess.PIPE, check=True)
    return process.stdout.decode().strip()


PRINT_TAG = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from unified_prof.sqlite import atomic
print(atomic.tag())
"""


@pytest.mark.slow
def test_run_killed_midway_can_be_recovered() -> None:
    process = start("train(7, 0.3)\nos.kill(os.getpid(), 9)\n", "--iterations", "99")
    assert end(process) is not None
    assert process.returncode == -signal.SIGKILL
    (name,) = files()
    assert name.endswith(".spool")

    done = uprof("recover", "out")
    assert done.returncode == 0, done.stderr
    assert "of 99 iterations" in done.stderr
    assert "later ones are lost" in done.stderr
    assert files() == REPORTS
    found = run_facts("out/run_time.sqlite")
    assert found["complete"] == "false"
    assert "the process ended before it wrote its reports" in str(found["failure"])
    assert (found["exit_code"], found["finished"]) == (None, None)
    assert found["target"] == "train.py"
    shown = uprof("report", "out")
    assert shown.returncode == 0, shown.stderr
    assert "linear" in shown.stdout


@pytest.mark.slow
def test_nothing_is_recovered_before_the_first_iteration() -> None:
    process = start("os._exit(3)\n")
    end(process)
    done = uprof("recover", "out")
    assert done.returncode == 1
    assert "nothing to recover" in done.stderr
    assert files() == []


@pytest.mark.slow
def test_run_killed_at_any_moment_leaves_reports_or_a_recoverable_spool() -> None:
    process = start("print('go', flush=True)\ntrain(400, 0.01)\n", "--iterations", "200")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.uniform(0.0, 4.0))
    process.kill()
    end(process)
    had_spool = any(name.endswith(".spool") for name in files())
    done = uprof("recover", "out")
    assert done.returncode == (0 if had_spool else 1), done.stderr
    whole = [name for name in files() if not name.endswith(".partial")]
    assert whole in ([], REPORTS)


@pytest.mark.slow
def test_spool_of_a_running_process_is_not_recovered() -> None:
    process = start("train(2)\nprint('up', flush=True)\ntime.sleep(600)\n")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        before = files()
        assert len(before) == 1
        done = uprof("recover", "out", "--force")
        assert done.returncode == 1
        assert "its process is still running" in done.stderr
        assert files() == before
        assert "recover" not in uprof("report", "out").stderr
    finally:
        process.kill()
        end(process)
    assert uprof("recover", "out").returncode == 0


@pytest.mark.slow
def test_each_rank_gets_its_reports_and_is_listed_as_recovered() -> None:
    ranks = [
        start(
            "train(5)\nif os.environ['RANK'] == '1':\n    os._exit(9)\n",
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
        )
        for rank in range(2)
    ]
    for process in ranks:
        end(process)
    done = uprof("report", "out")
    assert done.returncode == 7
    assert "`uprof db recover out`" in done.stderr
    done = uprof("recover", "out", "--json")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert record["rank"] == 1
    assert record["files"]["memory"] == "out/memory_rank1.sqlite"
    entry = json.loads(Path("out/run.json").read_text())["ranks"]["1"]
    files = {name: [f"{file}_rank1.sqlite"] for name, file in NAMES.items()}
    assert entry["files"] == files
    assert "the process ended before it wrote its reports" in entry["failure"]
    assert uprof("report", "out").returncode == 0


@pytest.mark.slow
def test_other_commands_on_the_directory_suggest_recover() -> None:
    write_spool(tag=tag_of_ended_process())
    done = uprof("report", "out")
    assert done.returncode == 7
    assert "recover them with `uprof db recover out`" in done.stderr
    process = start("train(5)\n")
    assert "recover them with `uprof db recover out`" in end(process)
    assert len(files()) == 3, "the spool is kept"
    process = start("train(5)\n", "--force")
    assert "recover" not in end(process)
    assert files() == REPORTS, "--force replaces files of earlier runs"


def test_reports_of_another_run_are_not_replaced_without_force() -> None:
    path = write_spool()
    Path("out/memory.sqlite").write_bytes(b"other")
    done = uprof("recover", "out")
    assert done.returncode == 9
    assert "memory.sqlite already exists" in done.stderr
    assert files() == [path.name, "memory.sqlite"]
    assert uprof("recover", "out", "--force").returncode == 0
    assert files() == REPORTS


def test_spool_of_a_process_on_another_host_is_recovered_with_a_note() -> None:
    write_spool()
    done = uprof("recover", "out")
    assert done.returncode == 0
    assert "process 7 of node7 may still be running" in done.stderr


def test_newer_of_two_attempts_gets_the_usual_names() -> None:
    older = write_spool(tag="0badc0de-10-1", facts={"started": "1", "host": "a"})
    os.utime(older, (1, 1))
    write_spool(tag="0badc0de-11-1", facts={"started": "2", "host": "a"})
    assert uprof("recover", "out").returncode == 0
    assert files() == ["memory.sqlite", "memory_16.sqlite", "run_time.sqlite", "run_time_16.sqlite"]
    assert run_facts("out/run_time.sqlite")["started"] == "2"


def test_run_killed_between_two_reports_keeps_the_first() -> None:
    path = write_spool()
    content = path.read_bytes()
    assert uprof("recover", "out").returncode == 0
    Path("out/run_time.sqlite").unlink()
    written = Path("out/memory.sqlite").stat().st_ino
    path.write_bytes(content)
    assert uprof("recover", "out").returncode == 0
    assert files() == REPORTS
    assert Path("out/memory.sqlite").stat().st_ino == written


def test_damaged_spool_is_named_and_the_others_are_recovered() -> None:
    whole = write_spool("_rank1")
    cut = Path("out", ".uprof_rank0.0badc0de-8-8.spool")
    cut.write_bytes(whole.read_bytes()[:-1])
    done = uprof("recover", "out")
    assert done.returncode == 6
    assert f"{cut}: truncated" in done.stderr
    assert files() == [cut.name, "memory_rank1.sqlite", "run_time_rank1.sqlite"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_with_the_name_of_a_spool_does_not_block() -> None:
    Path("out").mkdir()
    os.mkfifo("out/.uprof.0badc0de-8-8.spool")
    done = uprof("recover", "out")
    assert done.returncode == 6
    assert "is not a regular file" in done.stderr


def test_path_that_is_no_directory_is_a_usage_error() -> None:
    done = uprof("recover", "nowhere")
    assert done.returncode == 2
    assert "nowhere is not an existing directory" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_full_disk_adds_an_anomaly_and_does_not_stop_the_program() -> None:
    """The size limit prevents the spool and is lifted before the reports are written."""
    process = start(
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))\n"
        "train(5)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "sys.exit(6)\n"
    )
    err = end(process)
    assert process.returncode == 6, err
    assert files() == REPORTS
    found = dict(execute("out/run_time.sqlite", "SELECT name, detail FROM UPROF_ANOMALIES"))
    assert "File too large" in found["not_saved_meanwhile"]


@pytest.mark.slow
def test_profiled_block_can_be_recovered() -> None:
    Path("train.py").write_text(
        TRAINING
        + "import unified_prof\n"
        + "with unified_prof.profile('out', scope='project', iterations=99):\n"
        + "    train(5)\n    os._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "train.py"], env=environment(), check=False)
    assert done.returncode == 3
    assert uprof("recover", "out").returncode == 0
    assert files() == REPORTS


@pytest.mark.slow
def test_file_names_that_are_not_utf_8_are_recovered() -> None:
    folder = os.fsdecode(b"caf\xe9")
    Path(folder).mkdir()
    Path(folder, "train.py").write_text(TRAINING + "train(5)\nos._exit(3)\n")
    settings = ["--backend", "cpu", "-o", "out", "--scope", "project"]
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "run", *settings, f"{folder}/train.py"],
        env=environment(),
        check=False,
    )
    assert done.returncode == 3
    assert uprof("recover", "out").returncode == 0
    (name,) = execute("out/run_time.sqlite", "SELECT DISTINCT file_path FROM stack_frames")[0]
    assert name == "caf\\xe9/train.py"


@pytest.mark.slow
def test_recovery_does_not_import_torch() -> None:
    write_spool()
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from unified_prof.cli.app import main\nmain(['recover', 'out'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(), check=False)
    assert done.returncode == 0


def test_hint_names_only_measurements_of_processes_that_ended() -> None:
    running = write_spool(tag=atomic.tag())
    assert run_spool.recovery_hint(running.parent) is None
    write_spool("_rank1")
    assert "`uprof db recover out`" in str(run_spool.recovery_hint(running.parent))


def test_tag_identifies_processes_of_this_machine() -> None:
    assert atomic.is_of_here(atomic.tag())
    assert not atomic.is_of_here("0badc0de-7-7")
