"""Runs read by a Dask scheduler and workers started by command line, with S3 storage."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import ranks
from tests.cluster.simulated_run import Plan, simulate, write_database
from tests.pipeline.test_cluster_build import KILLED, tables
from tests.pipeline.test_dask_pool import dask_by_command_line, wait_until
from tests.pipeline.test_executors import command_of
from tests.pipeline.test_remote import s3
from tests.processes import uprof
from unified_prof.pipeline.remote import StorageDirectory

pytest.importorskip("distributed")
pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.fresh_interpreter,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]
__all__ = ["s3"]

WORLD = 32

SLOWLY = KILLED.replace(
    "return original(path, rank)", "import time; time.sleep(0.25); return original(path, rank)"
)
"""Each rank takes a while, and rank 2 kills the process that opens it."""


REDUCED = """
import multiprocessing, os, signal
from pathlib import Path
from unified_prof.pipeline import cluster_map

cluster_map.OPERATIONS_IN_MEMORY = 16 * 30
original = cluster_map._sum

def summed(task):
    if multiprocessing.parent_process() is not None:
        try:
            Path(os.environ["UPROF_TEST_KILLED"]).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    elif "UPROF_TEST_KILLED" in os.environ:
        raise AssertionError("the client computes sums")
    return original(task)

cluster_map._sum = summed
"""
"""Few operations fit in memory, and the first worker that sums a group is killed."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("made") / "run", WORLD)


@pytest.fixture
def deadly(tmp_path: Path) -> Iterator[None]:
    """Start workers in which rank 2 kills the process."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOWLY)
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])
        patch.setenv("PYTHONPATH", path)
        yield


def workers() -> list[int]:
    """Return the processes in which Dask workers run their tasks."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if b"spawn_main" in command_of(pid) and is_ours(pid)]


def is_ours(pid: int) -> bool:
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return False
    return b"worker" in command_of(int(parent)) and b"scheduler.json" in command_of(int(parent))


def test_killed_worker_and_deadly_rank_cost_one(run: Path, tmp_path: Path, deadly: None) -> None:
    target = tmp_path / "run.cluster"

    def kill_one() -> None:
        assert wait_until(lambda: len(list(target.glob("partials/*"))) >= 4)
        os.kill(workers()[0], signal.SIGKILL)
        killed.append(len(list(target.glob("partials/*"))))

    killed: list[int] = []
    with dask_by_command_line(tmp_path) as (file, _):
        killer = threading.Thread(target=kill_one)
        killer.start()
        result = uprof("cluster", "build", run, "-o", target, "--scheduler", file)
        killer.join()
    assert result.returncode == 0, result.stderr
    assert killed
    assert killed[0] < WORLD - 1
    assert (
        f"uprof: warning: {WORLD - 1} of {WORLD} ranks; rank 2: the process that" in result.stderr
    )
    assert "twice" in result.stderr
    assert "distributed" not in result.stderr
    assert len(list(target.glob("partials/*"))) == WORLD - 1


def test_lost_scheduler_ends_and_a_retry_continues(run: Path, tmp_path: Path, deadly: None) -> None:
    target = tmp_path / "run.cluster"
    good = Path(shutil.copytree(run, tmp_path / "good"))
    (good / "rank2.db").unlink()

    def lose() -> None:
        assert wait_until(lambda: len(list(target.glob("partials/*"))) >= 3)
        processes[0].kill()

    with dask_by_command_line(tmp_path) as (file, processes):
        loser = threading.Thread(target=lose)
        loser.start()
        begun = time.monotonic()
        result = uprof("cluster", "build", good, "-o", target, "--scheduler", file)
        loser.join()
    assert time.monotonic() - begun < 90
    assert result.returncode == 10, result.stderr
    assert "was lost" in result.stderr
    assert "run the command again to continue" in result.stderr
    kept = len(list(target.glob("partials/*")))
    assert 3 <= kept < WORLD - 1
    result = uprof("cluster", "build", good, "-o", target)
    assert result.returncode == 0, result.stderr
    assert f"recordings read: {WORLD - 1 - kept:,}" in result.stderr
    assert "missing: 2" in result.stderr


def test_worker_killed_in_the_reduce_does_not_change_the_summary(tmp_path: Path) -> None:
    plan = Plan(steps=5, slow={3: 1.3})
    simulated = simulate(plan)
    for rank in range(plan.world):
        write_database(simulated, rank, tmp_path / f"rank{rank}.db")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(REDUCED)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]])
    inputs = [tmp_path / f"rank{rank}.db" for rank in range(plan.world)]
    killed = tmp_path / "killed"
    found = []
    for name, options, more in (
        ("one", ("--jobs", "1"), {}),
        ("dask", ("--dask", "local:2"), {"UPROF_TEST_KILLED": str(killed)}),
    ):
        target = tmp_path / f"{name}.cluster"
        env = {**os.environ, "PYTHONPATH": path, **more}
        result = uprof("cluster", "build", *inputs, "-o", target, *options, env=env)
        assert result.returncode == 0, result.stderr
        found.append(tables(str(target)))
    assert killed.exists()
    for one in found:
        del one["UPROF_RUN"]
    assert found[0] == found[1]


def test_inputs_and_partials_on_s3(run: Path, tmp_path: Path, s3: str) -> None:
    for path in run.iterdir():
        StorageDirectory(f"{s3}/job").write(path.name, path.read_bytes())
    with dask_by_command_line(tmp_path) as (file, _):
        result = uprof("cluster", "build", f"{s3}/job", "-o", f"{s3}/job.run", "--scheduler", file)
    assert result.returncode == 0, result.stderr
    assert f"{s3}/job.run: {WORLD} ranks, 3 steps; recordings read: {WORLD}" in result.stderr
    assert len(StorageDirectory(f"{s3}/job.run/partials").names()) == WORLD
    again = uprof("cluster", "build", f"{s3}/job", "-o", f"{s3}/job.run")
    assert "no recording changed" in again.stderr
