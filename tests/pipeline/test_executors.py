"""Worker pools: a dead process loses only its task, and processes end with their parent."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.kineto.builders import operation, write
from tests.processes import uprof
from tests.prof_generator import Recipe, generate
from unified_prof.errors import EngineError, SystemLimitError, UprofError, UsageError
from unified_prof.pipeline import convert as conversions
from unified_prof.pipeline import executors
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.convert import run_task as conversion_of
from unified_prof.pipeline.executors import (
    Failure,
    WorkerDied,
    WorkerPool,
    map_unordered,
    open_executor,
    processes,
)
from unified_prof.pipeline.executors.processes import InlinePool
from unified_prof.sqlite import atomic

pytestmark = pytest.mark.fresh_interpreter

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def die_after_conversion(task: Any) -> Any:
    outcome = conversion_of(task)
    target = task.place.target
    if task.found.path.name == "a.json" and not (died := target.with_name("died")).exists():
        died.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


def double(number: int) -> int:
    return 2 * number


def die_once(marker: Path) -> str:
    """Kill this process the first time, as the system's out-of-memory killer does."""
    if not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.name


def process_id(_: int) -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def return_lambda() -> Any:
    return lambda: 1


def die_at_7(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def raise_at_1(number: int) -> int:
    if number == 1:
        raise KeyError("injected")
    return number


def result(
    pool: WorkerPool, function: Callable[[Any], Any], items: Iterable[Any]
) -> dict[Any, Any]:
    return dict(map_unordered(pool, function, items))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with open_executor(jobs=2) as opened:
        yield opened


def test_results_are_paired_with_their_items(pool: WorkerPool) -> None:
    assert result(pool, double, [5, 6, 7]) == {5: 10, 6: 12, 7: 14}
    assert result(pool, double, []) == {}


def test_pool_is_an_executor(pool: WorkerPool) -> None:
    assert isinstance(pool, Executor)
    assert list(pool.map(double, range(5))) == [0, 2, 4, 6, 8]
    with pytest.raises(KeyError, match="injected") as raised:
        pool.submit(raise_at_1, 1).result()
    assert "raise_at_1" in str(raised.value.__cause__), "names the place in the other process"


def test_unpicklable_arguments_raise_at_once_and_results_in_the_future(pool: WorkerPool) -> None:
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pool.submit(lambda: 1)
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        pool.submit(return_lambda).result()
    assert pool.submit(double, 1).result() == 2


@pytest.mark.slow
def test_lost_task_is_retried(tmp_path: Path, pool: WorkerPool) -> None:
    tasks = [tmp_path / str(number) for number in range(4)]
    for task in tasks[1:]:
        task.write_text("")
    assert result(pool, die_once, tasks) == {task: task.name for task in tasks}


def test_items_are_taken_lazily(pool: WorkerPool) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_unordered(pool, double, items())
    first = [next(results) for _ in range(10)]
    assert len(taken) <= 10 + pool.max_pending()
    assert all(result == 2 * item for item, result in first)
    results.close()


def test_one_job_runs_in_this_process() -> None:
    with open_executor(jobs=1) as inline:
        assert result(inline, process_id, [1]) == {1: os.getpid()}


@pytest.mark.slow
@linux
def test_interruption_leaves_no_process() -> None:
    def interrupted() -> None:
        with open_executor(jobs=2) as pool:
            for _ in map_unordered(pool, sleep, [0.0, 60.0, 60.0]):
                started.extend(set(children(os.getpid())) - others)
                raise KeyboardInterrupt

    started: list[int] = []
    others = set(children(os.getpid()))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started
    assert not any(b"spawn_main" in command_of(process_id) for process_id in started)
    assert time.monotonic() - start < 50


@linux
def test_ctrl_c_does_not_reach_a_process_that_starts(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of all: starting the resource tracker unblocks SIGINT."""
    monkeypatch.setattr(resource_tracker._resource_tracker, "_fd", None)
    started = processes._start_process()
    assert started.process.pid is not None
    os.kill(started.process.pid, signal.SIGINT)
    started.connection.send_bytes(pickle.dumps((signal.pthread_sigmask, (0, ()), {})))
    success, blocked, _ = pickle.loads(started.connection.recv_bytes())
    hook = "__import__('sys').unraisablehook.__name__"  # as in the command
    started.connection.send_bytes(pickle.dumps((eval, (hook,), {})))
    assert pickle.loads(started.connection.recv_bytes())[1] == "send_ignored_again"
    processes._end([started])
    assert success
    assert signal.SIGINT not in blocked, "programs that it starts can be interrupted"
    assert "Traceback" not in capfd.readouterr().err


@linux
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BlockingIOError(errno.EAGAIN, "Resource unavailable"), SystemLimitError),
        (AttributeError("__spec__"), EngineError),
    ],
)
def test_failure_to_start_processes_is_an_error_of_the_system_or_engine(
    error: Exception, expected: type[UprofError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise error

    monkeypatch.setattr(processes, "_start_process", refuse)
    with open_executor(jobs=2) as pool, pytest.raises(expected, match="cannot start"):
        list(map_unordered(pool, double, range(10)))


def test_cancelled_futures_wake_waiting_threads() -> None:
    with open_executor(jobs=2) as pool:
        tasks: list[Future[Any]] = [pool.submit(sleep, 60.0)]
        tasks += [pool.submit(double, number) for number in range(9)]
        pool.shutdown(cancel_futures=True)
        assert wait(tasks, 50.0).not_done == set()


@pytest.mark.slow
def test_notebook_after_a_reset_can_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython's `%reset` removes `__spec__` of the main module, which multiprocessing reads."""
    monkeypatch.delattr(sys.modules["__main__"], "__spec__")
    with open_executor(jobs=2) as pool:
        assert dict(map_unordered(pool, double, range(3))) == {0: 0, 1: 2, 2: 4}


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is new in Python 3.11")
def test_spawned_processes_import_nothing_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "multiprocessing.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    with open_executor(jobs=2) as pool:
        assert dict(map_unordered(pool, double, range(3))) == {0: 0, 1: 2, 2: 4}
    assert not Path("imported").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_invalid_scheduler_is_refused(tmp_path: Path) -> None:
    for scheduler, words in {
        "local:0": "is not a scheduler",
        "localhost:8786": "is not a scheduler",
        "tcp://host": "is not a scheduler",
        str(tmp_path / "none.json"): "no such file",
    }.items():
        with pytest.raises(UsageError, match=words), open_executor(scheduler):
            pass


@given(
    lost=st.sets(st.integers(0, 40)),
    deadly=st.sets(st.integers(0, 40), max_size=4),
    raising=st.sets(st.integers(0, 40), max_size=3),
    count=st.integers(0, 40),
    task_s=st.sampled_from([0.0, 1e-5, 10.0]),
)
def test_every_item_has_one_result_if_processes_die(
    lost: set[int], deadly: set[int], raising: set[int], count: int, task_s: float
) -> None:
    """The pool loses chosen tasks, also whole batches of them."""
    pool = LossyPool(lost, deadly, task_s)
    results: list[tuple[int, Any]] = []
    faulty = raising - deadly

    def function(number: int) -> int:
        if number in raising:
            raise KeyError("injected")
        return 2 * number

    try:
        results.extend(map_unordered(pool, function, range(count)))
    except RuntimeError:
        pass
    else:
        assert not faulty & set(range(count))
    assert len(dict(results)) == len(results)
    got = dict(map_unordered(LossyPool(lost, deadly, task_s), double, range(count)))
    assert got == {n: Failure("ended by the test") if n in deadly else 2 * n for n in range(count)}


class LossyPool(InlinePool):
    """Loses each item of `lost` once and those of `deadly` always, with the rest of their batch."""

    def __init__(self, lost: set[int], deadly: set[int], task_s: float) -> None:
        self.lost, self.deadly, self.task_s = set(lost), deadly, task_s

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        _, batch = args
        if not (self.lost | self.deadly).isdisjoint(batch):
            self.lost -= set(batch)
            future: Future[Any] = Future()
            future.set_exception(WorkerDied("ended by the test"))
            return future
        return super().submit(fn, *args, **kwargs)


@pytest.mark.slow
def test_worker_that_dies_after_its_report_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.json", "b.json"):
        write(tmp_path / "in" / name, [operation("aten::mm", 1, 2)])
    monkeypatch.setattr(conversions, "run_task", die_after_conversion)
    outcomes = list(conversions.convert_all([tmp_path / "in"], tmp_path / "out", jobs=2))
    assert (tmp_path / "out" / "died").exists()
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.db", "b.db", "died"}


@pytest.mark.slow
def test_task_that_kills_its_process_twice_is_a_failure() -> None:
    with open_executor(jobs=3) as pool:
        results = result(pool, die_at_7, range(12))
    assert results.pop(7) == Failure("was terminated by SIGKILL")
    assert results == {number: number for number in range(12) if number != 7}


@pytest.mark.slow
def test_exception_in_the_function_is_raised_after_the_other_results(pool: WorkerPool) -> None:
    results = map_unordered(pool, raise_at_1, range(6))
    assert {next(results)[0] for _ in range(5)} == {0, 2, 3, 4, 5}
    with pytest.raises(RuntimeError, match="injected"):
        next(results)


@pytest.mark.slow
def test_exit_codes_are_described() -> None:
    assert processes._exit_text(3) == "ended with exit code 3"
    assert processes._exit_text(-signal.SIGTERM) == "was terminated by SIGTERM"


# ---- the command, with processes killed from outside


@pytest.fixture(scope="module")
def fifty_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of fifty small recordings of one rank each."""
    folder = tmp_path_factory.mktemp("fifty")
    original = generate(folder / "x", Recipe(operators=2)).path
    for rank in range(50):
        shutil.copytree(original, folder / "in" / f"rank{rank}" / original.name)
    return folder / "in"


def children(process_id: int) -> list[int]:
    text = " ".join(
        path.read_text() for path in Path(f"/proc/{process_id}/task").glob("*/children")
    )
    return [int(child) for child in text.split() if b"spawn_main" in command_of(int(child))]


def command_of(process_id: int) -> bytes:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return met


@pytest.fixture
def conversion_process(fifty_recordings: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield `uprof convert --jobs 4` after it has written its first databases."""
    arguments = [
        "build",
        str(fifty_recordings),
        "-o",
        str(tmp_path / "out"),
        "--jobs",
        "4",
        "--json",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "unified_prof", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert wait_until(lambda: len(databases(tmp_path)) >= 2)
        yield process
        process.kill()


def partials(folder: Path) -> list[Path]:
    return list((folder / "out").rglob("*.partial*"))


def databases(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*/msprof_*.db"))


def convert_again(fifty_recordings: Path, tmp_path: Path) -> str:
    result = uprof("build", str(fifty_recordings), "-o", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    return result.stderr


@linux
@pytest.mark.slow
def test_killed_worker_loses_no_recording(
    conversion_process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    os.kill(children(conversion_process.pid)[0], signal.SIGKILL)
    out, err = conversion_process.communicate(timeout=400)
    assert conversion_process.returncode == 0, err
    assert b"Traceback" not in err
    assert out.count(b'"database"') == len(databases(tmp_path)) == 50
    assert {path.parent.name.partition("_")[0] for path in databases(tmp_path)} == {
        f"rank{rank}" for rank in range(50)
    }


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command_and_the_next_call_continues(
    number: signal.Signals,
    conversion_process: subprocess.Popen[bytes],
    fifty_recordings: Path,
    tmp_path: Path,
) -> None:
    workers = children(conversion_process.pid)
    assert workers
    conversion_process.send_signal(number)
    conversion_process.communicate(timeout=400)
    assert wait_until(lambda: not any(b"spawn_main" in command_of(pid) for pid in workers), 40)
    assert conversion_process.returncode == (-9 if number is signal.SIGKILL else 128 + number)
    if number is not signal.SIGKILL:
        assert not partials(tmp_path)
        assert not [f for f in (tmp_path / "out").iterdir() if not any(f.iterdir())]
    before = {path: path.stat().st_mtime_ns for path in databases(tmp_path)}
    assert 2 <= len(before) < 50
    messages = convert_again(fifty_recordings, tmp_path)
    assert f"{len(before)} already converted" in messages
    assert len(databases(tmp_path)) == 50, "no duplicates"
    assert not partials(tmp_path)
    assert before.items() <= {p: p.stat().st_mtime_ns for p in databases(tmp_path)}.items()


@linux
@pytest.mark.slow
def test_next_conversion_removes_partial_files_of_a_killed_one(tmp_path: Path) -> None:
    """The left file belongs to an ended process and has another second in its name."""
    recording = generate(tmp_path, Recipe(operators=1)).path
    ended = subprocess.Popen(["true"])
    ended.wait()
    tag = atomic.tag().split("-")
    abandoned = recording / f"msprof_20250101000000.db.{tag[0]}-{ended.pid:x}-1.01234567.partial"
    current = recording / f"msprof_20250101000001.db.{atomic.tag()}.01234567.partial"
    for path in (abandoned, abandoned.with_name(f"{abandoned.name}-journal"), current):
        path.write_bytes(b"x")
    report = convert(recording).database
    assert sorted(p.name for p in recording.glob("msprof*")) == sorted([current.name, report.name])


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_import_leaves_no_temporary_files(number: signal.Signals, tmp_path: Path) -> None:
    """Spooled rows are in unnamed files."""
    (tmp_path / "tmp").mkdir()
    events = (operation("aten::mm", n, 1, args={"Ev Idx": n}) for n in range(150_000))
    trace = write(tmp_path / "t.json", events)
    with subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "convert", str(trace), "-o", str(tmp_path / "r.db")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        assert wait_until(lambda: has_spooled(process.pid))
        process.send_signal(number)
        process.wait(400)
    assert list((tmp_path / "tmp").iterdir()) == []
    abandoned = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("r.db"))
    assert bool(abandoned) == (number is signal.SIGKILL)
    if abandoned:
        command = [sys.executable, "-m", "unified_prof", "convert", str(trace), "-o"]
        assert subprocess.run([*command, tmp_path / "r.db"], check=False).returncode == 0
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith("r.db")] == ["r.db"]


def has_spooled(process_id: int) -> bool:
    """Return True if a process has non-empty deleted temporary files open."""
    for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
        try:
            name, size = str(descriptor.readlink()), descriptor.stat().st_size
        except OSError:
            continue
        if "/tmp/" in name and "deleted" in name and size:
            return True
    return False


@pytest.mark.slow
def test_batch_duration_is_its_cpu_time() -> None:
    """On a busy machine, wall time would be long and batches would become small."""
    results, seconds = executors._run_batch(time.sleep, [0.05] * 4)
    assert results == [None] * 4
    assert seconds < 0.1
    start = time.process_time()
    _, seconds = executors._run_batch(lambda count: sum(range(count)), [1_000_000])
    assert 0 < seconds <= time.process_time() - start
