"""Processes that may die: nothing else is lost with them, and they never outlive their parent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.made import operation, write
from tests.prof_generator import Recipe, generate
from unified_prof.pipeline import convert as pipeline
from unified_prof.pipeline import workers
from unified_prof.pipeline.convert import _outcome as conversion_of
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.workers import Died
from unified_prof.store import ownership

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def dies_when_all_is_done(task: Any) -> Any:
    outcome = conversion_of(task)
    target = task.place.target
    if task.found.path.name == "a.json" and not (died := target.with_name("died")).exists():
        died.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


def double(number: int) -> int:
    return 2 * number


def dies_once(marker: Path) -> str:
    """End this process as the system's out-of-memory killer does, the first time."""
    if not marker.exists():
        marker.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.name


def dies_at_7(number: int) -> int:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def raises_at_1(number: int) -> int:
    if number == 1:
        raise KeyError("a fault of ours")
    return number


def test_results_come_with_the_numbers_of_their_tasks() -> None:
    assert sorted(workers.each(double, [5, 6, 7], 2)) == [(0, 10), (1, 12), (2, 14)]
    assert list(workers.each(double, [], 2)) == []


def test_a_lost_task_is_tried_again(tmp_path: Path) -> None:
    tasks = [tmp_path / str(number) for number in range(4)]
    for task in tasks[1:]:
        task.write_text("")
    assert sorted(workers.each(dies_once, tasks, 2)) == [(n, str(n)) for n in range(4)]


def test_a_worker_that_died_when_its_report_was_there_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.json", "b.json"):
        write(tmp_path / "in" / name, [operation("aten::mm", 1, 2)])
    monkeypatch.setattr(pipeline, "_outcome", dies_when_all_is_done)
    outcomes = list(pipeline.convert_all([tmp_path / "in"], tmp_path / "out", jobs=2))
    assert (tmp_path / "out" / "died").exists()
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.db", "b.db", "died"}


@pytest.mark.slow
def test_a_task_that_ends_its_process_twice_is_named_and_costs_no_other() -> None:
    results = dict(workers.each(dies_at_7, list(range(12)), 3))
    died = results.pop(7)
    assert isinstance(died, Died)
    assert str(died) == "was ended by SIGKILL"
    assert results == {number: number for number in range(12) if number != 7}


def test_a_fault_in_the_function_is_raised_when_all_others_are_done() -> None:
    results = workers.each(raises_at_1, list(range(6)), 2)
    assert {next(results)[0] for _ in range(5)} == {0, 2, 3, 4, 5}
    with pytest.raises(RuntimeError, match="a fault of ours"):
        next(results)


def test_how_a_process_ended_is_told_in_words() -> None:
    assert str(Died(3)) == "ended with exit code 3"
    assert str(Died(-signal.SIGTERM)) == "was ended by SIGTERM"


# ---- the command, with processes ended from outside


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty small recordings, of one rank each."""
    folder = tmp_path_factory.mktemp("fifty")
    original = generate(folder / "x", Recipe(operators=2)).path
    for rank in range(50):
        shutil.copytree(original, folder / "in" / f"rank{rank}" / original.name)
    return folder / "in"


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split() if b"spawn_main" in command_of(int(child))]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return met


@pytest.fixture
def building(fifty: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`uprof build --jobs 4` that has written its first databases."""
    arguments = ["build", str(fifty), "-o", str(tmp_path / "out"), "--jobs", "4", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "unified_prof", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert until(lambda: len(databases(tmp_path)) >= 2)
        yield process
        process.kill()


def partials(folder: Path) -> list[Path]:
    return list((folder / "out").rglob("*.partial*"))


def databases(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*/msprof_*.db"))


def again(fifty: Path, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "build", str(fifty), "-o", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@linux
@pytest.mark.slow
def test_a_killed_worker_costs_no_recording(
    building: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    os.kill(children(building.pid)[0], signal.SIGKILL)
    out, err = building.communicate(timeout=120)
    assert building.returncode == 0, err
    assert b"Traceback" not in err
    assert out.count(b'"database"') == len(databases(tmp_path)) == 50
    assert {path.parent.name.partition("_")[0] for path in databases(tmp_path)} == {
        f"rank{rank}" for rank in range(50)
    }


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_workers_end_with_the_command_and_the_next_one_goes_on(
    number: signal.Signals, building: subprocess.Popen[bytes], fifty: Path, tmp_path: Path
) -> None:
    workers_ = children(building.pid)
    assert workers_
    building.send_signal(number)
    building.communicate(timeout=60)
    assert until(lambda: not any(b"spawn_main" in command_of(pid) for pid in workers_), 15)
    assert building.returncode == (-9 if number is signal.SIGKILL else 128 + number)
    if number is not signal.SIGKILL:
        assert not partials(tmp_path)
        assert not [f for f in (tmp_path / "out").iterdir() if not any(f.iterdir())]
    before = {path: path.stat().st_mtime_ns for path in databases(tmp_path)}
    assert 2 <= len(before) < 50
    told = again(fifty, tmp_path)
    assert told.count("converted already") == len(before)
    assert len(databases(tmp_path)) == 50, "no second names"
    assert not partials(tmp_path)
    assert before.items() <= {p: p.stat().st_mtime_ns for p in databases(tmp_path)}.items()


@linux
def test_what_a_killed_conversion_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """A single one in this folder, under the name of another second."""
    recording = generate(tmp_path, Recipe(operators=1)).path
    ended = subprocess.Popen(["true"])
    ended.wait()
    tag = ownership.tag().split("-")
    left = recording / f"msprof_20250101000000.db.{tag[0]}-{ended.pid:x}-1.01234567.partial"
    mine = recording / f"msprof_20250101000001.db.{ownership.tag()}.01234567.partial"
    for path in (left, left.with_name(f"{left.name}-journal"), mine):
        path.write_bytes(b"x")
    made = convert(recording).database
    assert sorted(p.name for p in recording.glob("msprof*")) == sorted([mine.name, made.name])


@linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_import_that_is_ended_leaves_nothing_in_the_temporary_folder(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Rows put away outside memory lie in files that have no name."""
    (tmp_path / "tmp").mkdir()
    events = (operation("aten::mm", n, 1, args={"Ev Idx": n}) for n in range(150_000))
    trace = write(tmp_path / "t.json", events)
    with subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "import", str(trace), "-o", str(tmp_path / "r.db")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    ) as process:
        assert until(lambda: has_spooled(process.pid), 60)
        process.send_signal(number)
        process.wait(60)
    assert list((tmp_path / "tmp").iterdir()) == []
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("r.db"))
    assert bool(left) == (number is signal.SIGKILL)
    if left:
        assert (
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "unified_prof",
                    "import",
                    str(trace),
                    "-o",
                    tmp_path / "r.db",
                ],
                check=False,
            ).returncode
            == 0
        )
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith("r.db")] == ["r.db"]


def has_spooled(pid: int) -> bool:
    """Tell whether a process has temporary files open in which there is something."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name, size = str(descriptor.readlink()), descriptor.stat().st_size
        except OSError:
            continue
        if "/tmp/" in name and "deleted" in name and size:
            return True
    return False
