"""Dask executors: dead workers, lost schedulers, other versions."""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from unified_prof.base.signals import ended_by_signals
from unified_prof.errors import EngineError, SystemLimitError
from unified_prof.pipeline.executors import Failure, dask_pool, map_unordered, open_executor
from unified_prof.version import VERSION

pytestmark = pytest.mark.fresh_interpreter

distributed = pytest.importorskip("distributed")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

DASK = [sys.executable, "-m", "dask"]


def double(number: int) -> int:
    return 2 * number


def dies_at_7(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number


def marks_and_sleeps(task: tuple[Path, int]) -> int:
    """Record the process that runs the task, then take long enough to be killed."""
    folder, number = task
    (folder / f"{number}-{os.getpid()}").touch()
    time.sleep(0.3)
    return number


def raises_at_1(number: int) -> int:
    if number == 1:
        raise KeyError("injected")
    return number


@pytest.fixture(scope="module")
def threads() -> Iterator[Any]:
    """Yield a client of a scheduler and two workers in threads of this process."""
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def test_short_tasks_are_batched_and_results_returned(threads: Any) -> None:
    with dask_pool.DaskPool(threads, "these threads") as pool:
        assert dict(map_unordered(pool, double, range(200))) == {n: 2 * n for n in range(200)}
        assert list(pool.map(double, [1, 2])) == [2, 4]


def test_exception_in_the_function_is_raised_after_the_other_results(threads: Any) -> None:
    results = map_unordered(dask_pool.DaskPool(threads, "these threads"), raises_at_1, range(6))
    assert {next(results)[0] for _ in range(5)} == {0, 2, 3, 4, 5}
    with pytest.raises(RuntimeError, match="injected"):
        next(results)


def test_number_of_pending_tasks_is_limited(threads: Any) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100_000):
            taken.append(number)
            yield number

    pool = dask_pool.DaskPool(threads, "these threads")
    results = map_unordered(pool, double, items())
    next(results)
    results.close()
    assert len(taken) <= 8


def test_missing_workers_are_an_error(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed.LocalCluster(
        n_workers=0, processes=False, dashboard_address="127.0.0.1:0"
    ) as none:
        messages: list[str] = []
        opened = dask_pool.remote_pool(none.scheduler_address, messages.append, patience_s=1.5)
        with pytest.raises(EngineError, match=r"has no worker|had no worker"), opened:
            pass
    assert "has no workers yet; waiting up to" in messages[0]


def test_unresponsive_scheduler_is_an_error() -> None:
    opened = dask_pool.remote_pool("tcp://127.0.0.1:1", print, connect_s=1)
    with pytest.raises(
        EngineError, match=r"the scheduler at tcp://127\.0\.0\.1:1 does not respond"
    ):
        opened.__enter__()


class VersionsClient:
    """A client whose workers report the given package versions."""

    def __init__(self, **workers: dict[str, str | None]) -> None:
        self.workers = workers

    def get_versions(self, packages: list[str]) -> dict[str, Any]:
        assert packages == ["unified_prof"]

        def facts(changes: dict[str, str | None]) -> dict[str, Any]:
            python = ".".join(map(str, sys.version_info[:5]))
            tools = {"dask": "2026.8.0", "distributed": "2026.8.0", "msgpack": "1.2.4"}
            packages = {"python": python, "unified_prof": VERSION, "cloudpickle": "3.1.2", **tools}
            return {"host": {"python": python}, "packages": {**packages, **changes}}

        return {
            "client": facts({}),
            "scheduler": facts({"unified_prof": None}),
            "workers": {name: facts(changes) for name, changes in self.workers.items()},
        }


def test_differing_versions_are_reported() -> None:
    same: dict[str, str | None] = {}
    assert dask_pool.check_versions(VersionsClient(a=same, b=same), "the scheduler") == []
    other: dict[str, str | None] = {"msgpack": "1.0.0"}
    assert dask_pool.check_versions(VersionsClient(a=same, b=other, c=other), "the scheduler") == [
        "worker b and 1 more: msgpack 1.0.0 instead of 1.2.4 here"
    ]
    refused: dict[str, dict[str, str | None]] = {
        "worker a has uprof 0.0.1, expected": {"unified_prof": "0.0.1"},
        "worker a has no uprof": {"unified_prof": None},
        "worker a runs Python 2.7.18, expected 3": {"python": "2.7.18.final.0"},
    }
    for words, changes in refused.items():
        with pytest.raises(EngineError, match=words):
            dask_pool.check_versions(VersionsClient(a=changes), "the scheduler")


def test_late_worker_of_another_build_is_refused_by_its_task() -> None:
    assert dask_pool._call(VERSION, double, (4,), {}) == 8
    with pytest.raises(EngineError, match=f"a worker has uprof {VERSION}, expected 0.0.1"):
        dask_pool._call("0.0.1", double, (4,), {})


@linux
def test_signal_waits_until_dask_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    class Cluster:
        def __init__(self, **_: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            seen.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

        def close(self, timeout: float) -> None:
            seen.append("closed")

    monkeypatch.setattr(distributed, "LocalCluster", Cluster)
    with ended_by_signals(), pytest.raises(SystemExit), dask_pool.local_pool(1):
        pass
    assert seen == [True, "closed"]


def test_signal_waits_until_workers_have_ended() -> None:
    ended = []

    def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        ended.append(True)

    with ended_by_signals(), pytest.raises(SystemExit):
        dask_pool._cleanup(end)
    assert ended


def test_missing_dask_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EngineError, match="distributed is not installed") as raised:
        dask_pool.local_pool(2).__enter__()
    assert raised.value.hint == "run `pip install 'unified-prof[cluster]'`"
    assert raised.value.exit_code == 10


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits")
def test_local_pool_refuses_a_low_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask hangs if they run out while its processes start."""
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (95, 4096))
    with pytest.raises(SystemLimitError, match="needs 96 file descriptors, 95 are allowed"):
        dask_pool.local_pool(2).__enter__()


# ---- processes: Dask on this machine, and by command line


@pytest.mark.slow
def test_local_pool_reports_a_kill_and_keeps_the_rest(capfd: pytest.CaptureFixture[str]) -> None:
    with open_executor("local:2") as pool:
        results = dict(map_unordered(pool, dies_at_7, range(30)))
    died = results.pop(7)
    assert isinstance(died, Failure)
    assert str(died).startswith("ended without a result (tcp://127.0.0.1:")
    assert results == {number: number for number in range(30) if number != 7}
    assert capfd.readouterr() == ("", ""), "Dask must not log"
    assert not list(Path(importlib.import_module("tempfile").gettempdir()).glob("uprof-dask-*"))


@contextmanager
def dask_by_command_line(
    folder: Path, workers: int = 2, *options: str
) -> Iterator[tuple[Path, Any]]:
    """Yield the file of a scheduler that `dask scheduler` runs, and the processes."""
    file = folder / "scheduler.json"
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> None:
        log = (folder / f"{len(started)}.log").open("wb")
        with log:
            started.append(
                subprocess.Popen(
                    [*DASK, *words], stdout=log, stderr=log, cwd=folder, start_new_session=True
                )
            )

    try:
        start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
            "--scheduler-file", str(file),
        )  # fmt: skip
        assert wait_until(file.is_file)
        for _ in range(workers):
            start(
                "worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard",
                "--host", "127.0.0.1", "--local-directory", str(folder / "scratch"), *options,
            )  # fmt: skip
        yield file, started
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(400)


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


@linux
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--no-nanny",)], ids=["nanny", "no nanny"])
def test_killed_worker_loses_no_task_and_a_deadly_one_is_a_failure(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def kill_one() -> None:
        assert wait_until(lambda: len(list(marks.iterdir())) >= 3)
        first = min(marks.iterdir(), key=lambda mark: mark.stat().st_mtime)
        os.kill(int(first.name.partition("-")[2]), signal.SIGKILL)
        killed.append(first.name)

    killed: list[str] = []
    tasks = [(marks, number) for number in range(20)]
    with dask_by_command_line(tmp_path, 2, *options) as (file, _), open_executor(str(file)) as pool:
        killer = threading.Thread(target=kill_one)
        killer.start()
        results = dict(map_unordered(pool, marks_and_sleeps, tasks))
        killer.join()
        assert killed
        assert results == {task: task[1] for task in tasks}
        if not options:  # a nanny replaces the workers that it kills
            survived = dict(map_unordered(pool, dies_at_7, range(40)))
            assert isinstance(survived.pop(7), Failure)
            assert survived == {number: number for number in range(40) if number != 7}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_scheduler_ends_with_an_error(tmp_path: Path, number: signal.Signals) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    tasks = [(marks, task) for task in range(200)]
    got: list[int] = []

    def work(file: Path, scheduler: int) -> None:
        with dask_pool.remote_pool(str(file), print, patience_s=5) as pool:
            for _, result in map_unordered(pool, marks_and_sleeps, tasks):
                assert isinstance(result, int)
                got.append(result)
                if len(got) == 3:
                    os.kill(scheduler, number)

    begun = time.monotonic()
    with (
        dask_by_command_line(tmp_path) as (file, processes),
        pytest.raises(EngineError, match=r"was lost|does not respond") as raised,
    ):
        work(file, processes[0].pid)
    assert time.monotonic() - begun < 90
    assert raised.value.exit_code == 10
    assert "run the command again" in str(raised.value.hint)
    assert len(got) >= 3


INTERRUPTED = """
import sys, time
from unified_prof.pipeline.executors import map_unordered, open_executor

if __name__ == "__main__":
    try:
        with open_executor("local:2") as pool:
            print("open", flush=True)
            for _ in map_unordered(pool, time.sleep, [60] * 4):
                pass
    except KeyboardInterrupt:
        sys.exit(130)
"""


@linux
@pytest.mark.slow
def test_ctrl_c_ends_a_local_pool_with_all_its_processes(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)  # To the whole group, as a terminal does.
        _, messages = process.communicate(timeout=400)
    assert (process.returncode, messages) == (130, b"")
    assert wait_until(lambda: not processes_of_session(process.pid), 40)


def processes_of_session(session: int) -> list[int]:
    def is_of(pid: int) -> bool:
        try:
            return os.getsid(pid) == session
        except OSError:
            return False

    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if is_of(int(path.name))]
