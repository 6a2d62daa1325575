"""When a watched run captures steps, and what it writes: a program of invented steps."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.watch.runs import MS, step, write_run
from unified_prof.errors import OutputError
from unified_prof.pipeline import watch as watching
from unified_prof.pipeline import watch_captures
from unified_prof.pipeline.watch import Watch, WatchSettings
from unified_prof.pipeline.watch_captures import (
    Budget,
    CaptureRequest,
    Conversions,
    Requests,
    ask,
    common_step,
    follow,
    new_directory,
)
from unified_prof.sqlite.watch_file import RankSteps, StepRow, WatchEvent, read_folder


class Clock:
    """Time that passes only when a test says so."""

    now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of watched runs."""
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(watch_captures, "time", clock)
    return clock


class Recording:
    """Stands for `StepCapture`: its first advance begins, and `steps` further ones end it."""

    made: list[Recording] = []  # noqa: RUF012
    failure: str | None = None
    error: Exception | None = None
    spent_ns = 0

    def __init__(self, path: Path, _device: str, steps: int, details: object, _marks: object):
        if self.error is not None:
            raise self.error
        self.path, self.left, self.steps, self.is_stopped = path, steps + 1, steps, False
        self.made.append(self)

    def advance(self) -> bool:
        self.left -= 1
        return self.left == 0

    def stop(self) -> None:
        self.is_stopped = True


class Program:
    """A watched program, in place of `StepCollector`; its steps take as long as tests say."""

    def __init__(
        self, device: str, take: Callable[[StepRow], None], on_step: Callable[[int, int], None],
        _bottoms: object,
    ) -> None:  # fmt: skip
        self.device, self.event, self.steps = SimpleNamespace(kind=device), None, 0
        self._take, self._on_step = take, on_step
        self.is_measured = False

    def begin(self) -> None:
        self.is_measured = True

    def end(self) -> None:
        self.is_measured = False

    def run(self, count: int, length_ms: float = 10) -> None:
        for _ in range(count):
            length_ns = round(length_ms * MS)
            self._take(step(self.steps, length_ns=length_ns, event=self.event))
            self.steps += 1
            self._on_step(self.steps - 1, length_ns)


class Run:
    """A run under `Watch` whose writing thread acts only in `write` and at the end."""

    def __init__(self, folder: Path, clock: Clock, **options: Any) -> None:
        self.folder, self.clock = folder, clock
        settings = WatchSettings(**options.pop("settings", {}))
        self.watch = Watch(folder, options.pop("device", "cpu"), settings=settings, **options)
        self.program: Any = self.watch._collector

    def go(self, count: int, length_ms: float = 10) -> None:
        """Run steps for a minute of the clock, and write them."""
        self.program.run(count, length_ms)
        self.clock.now_s += 60
        self.watch._write()

    @property
    def steps(self) -> RankSteps:
        return read_folder(self.folder)[0]

    def events(self) -> list[tuple[str, str | None, str | None]]:
        return [(one.kind, one.status, one.finding) for one in self.steps.events]


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> Iterator[Callable[..., Run]]:
    """Return a function that starts a watched run; its captures are explained at once."""
    monkeypatch.setattr(watching, "StepCollector", Program)
    monkeypatch.setattr(watching, "StepCapture", type("Recorded", (Recording,), {"made": []}))
    monkeypatch.setattr(watching, "_INTERVAL_S", 1e6)
    done = SimpleNamespace(poll=lambda: 0, stdout=None, returncode=0)
    monkeypatch.setattr(Conversions, "_start", lambda *_: done)
    started: list[Run] = []

    def make(**options: Any) -> Run:
        run = Run(tmp_path / "out", clock, **options)
        run.watch.__enter__()
        started.append(run)
        return run

    yield make
    for run in started:
        if run.program.is_measured:
            run.watch.__exit__(None, None, None)


def recordings() -> list[Any]:
    return vars(watching)["StepCapture"].made  # type: ignore[no-any-return]


def place_of(run: Run, kind: str) -> str:
    """Return the directory of the only capture of a kind."""
    (event,) = [one for one in run.steps.events if one.kind == kind]
    return Path(str(event.capture)).name


def test_all_steps_and_facts_of_a_run_are_written(start: Callable[..., Run]) -> None:
    run = start(facts={"workload": "train.py"}, settings={"share": 0.0})
    run.go(100)
    assert run.steps.columns["step"].tolist() == [*range(100)]
    assert run.steps.is_running
    run.program.run(3, 20)
    run.watch.__exit__(None, None, None)
    found = run.steps
    assert found.columns["length_ns"].tolist() == [10 * MS] * 100 + [20 * MS] * 3
    facts = {"rank": "0", "world_size": "1", "device": "cpu", "workload": "train.py"}
    assert facts.items() <= found.facts.items()
    assert found.facts["exit_code"] == "0"
    assert int(found.facts["ended_ns"]) - int(found.facts["began_ns"]) == 60 * 10**9
    assert not found.is_running
    assert not run.program.is_measured
    assert found.events == []


@pytest.mark.parametrize(
    ("error", "code"),
    [(SystemExit(3), "3"), (SystemExit("no data"), "1"), (SystemExit(), "0"), (ValueError(), "1")],
)
def test_exit_code_is_that_of_the_program(
    start: Callable[..., Run], error: BaseException, code: str
) -> None:
    run = start()
    run.watch.__exit__(type(error), error, None)
    assert run.steps.facts["exit_code"] == code


def test_usual_steps_are_captured_once_after_50(start: Callable[..., Run]) -> None:
    run = start(settings={"steps": 4})
    run.go(49)
    run.go(1)
    assert recordings() == []
    run.go(1)  # the capture begins after this step
    run.go(3)
    assert [one.left for one in recordings()] == [1]
    run.go(1)
    run.go(100)
    assert [one.steps for one in recordings()] == [4]
    assert run.events() == [("healthy", "ready", None)]
    assert place_of(run, "healthy") == "rank0_step51_healthy"
    captured = [row.step for row in run.steps.rows() if row.event is not None]
    assert captured == [51, 52, 53, 54]


def test_slow_step_is_named_and_the_next_steps_are_captured(start: Callable[..., Run]) -> None:
    run = start(settings={"steps": 2, "slow_factor": 3.0})
    run.go(101)
    run.go(100)
    run.go(1, 29)
    assert len(recordings()) == 1, "of usual steps only"
    run.go(1, 31)
    run.go(3)
    run.go(1)
    assert place_of(run, "slow_step") == "rank0_step203_slow_step"
    assert [one.path.parent.name for one in recordings()][1:] == ["rank0_step203_slow_step"]
    event = run.steps.events[-1]
    assert (event.step, event.status) == (202, "ready")
    assert "step 202 took 31.0 ms, 3.1 times the median of 10.0 ms" in event.text


def test_slow_step_during_a_capture_or_beyond_the_share_is_not_captured(
    start: Callable[..., Run],
) -> None:
    run = start(settings={"steps": 2, "share": 0.001})
    run.go(101)
    run.go(100)
    recordings()[0].spent_ns = 10**12  # captures of usual steps do not count
    run.go(3)
    run.go(1, 40)
    assert len(recordings()) == 2
    recordings()[1].spent_ns = 10**9
    run.program.run(1, 90)  # within the capture
    run.go(1)
    run.go(500)
    run.go(1, 90)
    run.go(5)
    assert len(recordings()) == 2, "a capture of a second is more than the share of minutes"
    assert [one.capture is None for one in run.steps.events if one.kind == "slow_step"] == [
        False,
        True,
    ]


def test_drift_is_captured(start: Callable[..., Run]) -> None:
    run = start(settings={"steps": 1})
    run.go(1000)
    run.go(2)
    run.go(400, 13)
    run.go(3)
    run.go(1)
    assert [kind for kind, *_ in run.events()] == ["healthy", "drift"]
    assert len(recordings()) == 2


@pytest.mark.parametrize(("share", "every_s", "count"), [(0.02, 330.0, 2), (0.0, 330.0, 0)])
def test_captures_at_intervals(
    start: Callable[..., Run], share: float, every_s: float, count: int
) -> None:
    run = start(settings={"steps": 1, "share": share, "every_s": every_s})
    for _ in range(17):  # minutes
        run.go(10)
    assert [kind for kind, *_ in run.events() if kind == "interval"] == ["interval"] * count


def test_requests_and_signals_are_captured_even_without_a_share(start: Callable[..., Run]) -> None:
    run = start(settings={"share": 0.0, "steps": 7})
    run.go(60)
    ask(run.folder, CaptureRequest("first", 70, 3, None))
    ask(run.folder, CaptureRequest("other", 0, 3, (1, 2)))
    run.go(9)
    run.program.run(1)  # step 69
    assert [one.steps for one in recordings()] == [3]
    run.go(3)
    assert place_of(run, "request") == "rank0_step70_request"
    signal.raise_signal(signal.SIGUSR2)
    run.go(20)
    run.go(1)
    assert [one.steps for one in recordings()] == [3, 7]
    assert run.events() == [("request", "ready", None), ("signal", "ready", None)]
    assert "first" in run.steps.events[0].text
    run.watch.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_failed_capture_is_reported_and_does_not_disturb_the_program(
    start: Callable[..., Run],
) -> None:
    run = start(settings={"share": 0.0, "steps": 2})
    states = (OSError("full"), None), (None, "no step"), (None, None)
    for number, (error, failure) in enumerate(states):
        kind: Any = vars(watching)["StepCapture"]
        kind.error, kind.failure = error, failure
        ask(run.folder, CaptureRequest(f"request{number}", 0, 2, None))
        run.go(1)
        run.go(5)
        run.go(5)
    assert run.events() == [
        ("request", None, "OSError: full"),
        ("request", "failed", "no step"),
        ("request", "ready", None),
    ]
    assert len(run.steps) == 33


def test_capture_that_the_end_of_the_run_interrupts_is_stopped_and_explained(
    start: Callable[..., Run],
) -> None:
    run = start(settings={"share": 0.0})
    ask(run.folder, CaptureRequest("last", 0, 100, None))
    run.go(1)
    run.go(5)
    run.watch.__exit__(None, None, None)
    assert recordings()[0].is_stopped
    assert run.events() == [("request", "ready", None)]


class Msprof:
    """Stands for `DynamicRecording`: msprof starts, fails and ends when a test says so."""

    made: list[Msprof] = []  # noqa: RUF012
    failure: str | None = None
    has_started = is_asked_to_stop = is_over = is_killed = False

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made.append(self)

    def has_stopped(self) -> bool:
        self.is_asked_to_stop = True
        return self.is_over

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize("failure", [None, "msprof was not found"])
def test_capture_of_an_npu_begins_with_msprof_and_ends_with_it(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    monkeypatch.setattr(watching, "DynamicRecording", type("Made", (Msprof,), {"made": []}))
    run = start(device="npu", settings={"share": 0.0, "steps": 2})
    ask(run.folder, CaptureRequest("first", 0, 2, None))
    run.go(5)
    run.go(5)
    (msprof,) = watching.DynamicRecording.made  # type: ignore[attr-defined]
    assert recordings() == [], "msprof has not started"
    msprof.has_started, msprof.failure = True, failure
    run.go(1)
    ask(run.folder, CaptureRequest("second", 0, 2, None))
    run.go(3)
    assert recordings()[0].path.parent == msprof.place
    assert recordings()[0].left == 0
    assert msprof.is_asked_to_stop
    assert run.events() == [("request", "recording", None)]
    msprof.is_over = True
    run.go(1)
    assert len(watching.DynamicRecording.made) == 2  # type: ignore[attr-defined]
    run.go(1)
    run.watch.__exit__(None, None, None)
    assert run.events()[:1] == [("request", "ready", None)]
    text = f"; the capture contains the host only ({failure})" if failure else ""
    assert run.steps.events[0].text == f"capture first was requested{text}"
    assert watching.DynamicRecording.made[-1].is_killed  # type: ignore[attr-defined]


class Exporter:
    """Collects what it receives; fails from a number of steps on."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.steps: list[int] = []
        self.kinds: list[str] = []
        self.limit, self.is_closed = limit, False

    def export(self, rows: Sequence[StepRow], events: Sequence[WatchEvent]) -> None:
        self.steps += [row.step for row in rows]
        self.kinds += [event.kind for event in events]
        if len(self.steps) > self.limit:
            raise ConnectionError("gone")

    def close(self) -> None:
        self.is_closed = True


def test_failing_exporter_is_removed_and_others_go_on(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    failing, working = Exporter(20), Exporter()
    run = start(exporters=(failing, working))
    for _ in range(7):
        run.go(10)
    run.watch.__exit__(None, None, None)
    assert failing.steps == [*range(30)]
    assert working.steps == [*range(70)]
    assert set(working.kinds) == {"healthy"}
    assert working.is_closed
    assert capsys.readouterr().err.count("an exporter failed and is off: ConnectionError") == 1


def test_rows_beyond_the_limit_are_counted_as_lost(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_MAX_ROWS", 10)
    run = start()
    run.go(12)
    run.go(5)
    assert len(run.steps) == 15
    assert [event.text.partition(" steps")[0] for event in run.steps.events] == ["2"]


def test_file_that_cannot_be_written_ends_watching_but_not_the_program(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start()
    run.go(5)

    def full(*_: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(run.watch._file, "append", full)
    run.program.run(5)
    run.watch.__exit__(None, None, None)
    run.program.run(5)
    assert "uprof: watching ended: no space left" in capsys.readouterr().err
    assert len(run.steps) == 5


def test_budget_keeps_the_share_of_triggered_captures(clock: Clock) -> None:
    budget = Budget(0.1)
    assert budget.allows()
    clock.sleep(100)
    budget.spend(4 * 10**9, is_free=False)
    clock.sleep(9.9)
    assert not budget.allows(), "10 s between captures"
    clock.sleep(0.2)
    assert budget.allows(), "another 4 s make 8 of 110"
    budget.spend(10**12, is_free=True)
    clock.sleep(10)
    assert budget.allows(), "free captures cost nothing"
    budget.spend(5 * 10**9, is_free=False)
    clock.sleep(15)
    assert not budget.allows(), "9 s of 135, and another 5 would be more than a tenth"
    clock.sleep(10)
    assert budget.allows()
    assert not Budget(0.0).allows()


def child(code: int | None, output: str = "") -> Any:
    stdout = SimpleNamespace(read=lambda: output)
    killed: list[str] = []
    return SimpleNamespace(
        poll=lambda: code, returncode=code, stdout=stdout, killed=killed,
        kill=lambda: killed.append("kill"), wait=lambda: killed.append("wait"),
    )  # fmt: skip


def test_captures_are_explained_one_after_another_and_compared_with_usual_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    children: list[Any] = [child(0, " finding \n"), child(0), child(1, "damaged")]
    children += [OSError("no memory"), child(None)]

    def popen(command: list[str], **options: Any) -> Any:
        assert "LD_PRELOAD" not in options["env"]
        assert options["cwd"] == tmp_path / "captures"
        commands.append(command[3:])
        one = children[len(commands) - 1]
        if isinstance(one, OSError):
            raise one
        return one

    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr(subprocess, "Popen", popen)
    conversions = Conversions(tmp_path)
    was_idle = conversions.is_idle
    kinds = ["healthy", "slow_step", "drift", "signal", "request"]
    events = [
        WatchEvent(number, 0, number, kind, "", f"captures/{kind}", "converting")
        for number, kind in enumerate(kinds)
    ]
    for event in events:
        conversions.add(event)
    assert [[one.kind for one in conversions.poll()] for _ in range(5)] == [
        [], ["healthy"], ["slow_step"], ["drift", "signal"], [],
    ]  # fmt: skip
    assert (was_idle, conversions.is_idle) == (True, False)
    assert [(event.status, event.finding) for event in events] == [
        *(("ready", "finding"), ("ready", None), ("failed", "damaged"), ("failed", "no memory")),
        ("converting", None),
    ]
    assert commands[0] == [str(tmp_path / "captures/healthy")]
    assert commands[4] == [str(tmp_path / f"captures/{name}") for name in ("request", "healthy")]
    conversions.stop()
    assert children[4].killed == ["kill", "wait"]


def test_directories_of_captures_are_never_shared(tmp_path: Path) -> None:
    made = [new_directory(tmp_path / "captures", "rank0_step1_drift").name for _ in range(3)]
    assert made == [f"rank0_step1_drift{suffix}" for suffix in ("", "_2", "_3")]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        new_directory(tmp_path / "file", "capture")


def test_requests_are_read_once_and_only_if_they_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    valid = {"from_step": 5, "steps": 3, "ranks": [0, 2]}
    (folder / "earlier.json").write_text(json.dumps(valid))
    requests = {rank: Requests(tmp_path, rank) for rank in (0, 1)}
    assert folder.stat().st_mode & 0o777 == 0o700
    ask(tmp_path, CaptureRequest("a", 5, 3, (0, 2)))
    ask(tmp_path, CaptureRequest("b", 7, 0, None))
    ask(tmp_path, CaptureRequest("c", 7, 10**6, None))
    text = json.dumps(valid)
    for name, content in {
        "d.json": "{", "e.json": "[]", "f.json": "{}", "g.partial": text,
        "h.json": text + " " * (1 << 20), "i.json": json.dumps({**valid, "steps": "x"}),
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    b, c = CaptureRequest("b", 7, 1, None), CaptureRequest("c", 7, 1_000, None)
    assert [*requests[0].new()] == [CaptureRequest("a", 5, 3, (0, 2)), b, c]
    assert [*requests[1].new()] == [b, c]
    assert [*requests[0].new()] == []
    with pytest.raises(OutputError):
        ask(tmp_path / "elsewhere", CaptureRequest("a", 5, 3, None))


def test_ranks_capture_a_step_that_none_of_them_has_begun(tmp_path: Path) -> None:
    """Requests are noticed within two seconds, and msprof takes three to start."""
    for rank, (count, device) in enumerate([(300, "cpu"), (310, "cpu"), (290, "npu"), (0, "npu")]):
        write_run(tmp_path, count, rank=rank, device=device, is_over=False)
    known = read_folder(tmp_path)
    assert common_step(known, [0]) == 299 + 1 + 200
    assert common_step(known, [0, 1, 3]) == 309 + 1 + 200
    assert common_step(known, [0, 1, 2]) == 309 + 1 + 500
    assert common_step(known, [3]) == 1 + 2, "steps of a second, if their length is not known"


def test_request_is_followed_until_all_ranks_have_captured_failed_or_ended(
    tmp_path: Path, clock: Clock
) -> None:
    def event(kind: str, text: str, **fields: Any) -> WatchEvent:
        return WatchEvent(len(events), 1, 1, kind, text, **fields)

    text, events = "capture 12_3 was requested", list[WatchEvent]()
    ready = event("request", text, capture="captures/a", status="ready")
    cases: list[tuple[WatchEvent | None, bool]] = [
        (ready, False), (event("request", text, finding="no space"), False), (None, True),
        (event("request", text, capture="captures/a", status="converting"), False),
        (event("request", "capture 99 was requested", capture="a", status="ready"), False),
        (event("signal", text, capture="a", status="ready"), False),
    ]  # fmt: skip
    for rank, (one, is_over) in enumerate(cases):
        write_run(tmp_path, 9, rank=rank, events=(one,) if one else (), is_over=is_over)
    request = CaptureRequest("12_3", 0, 1, None)
    found = [*follow(tmp_path, read_folder(tmp_path), request, 3.0)]
    assert [(rank, one and one.finding) for rank, one in found] == [
        (0, None), (1, "no space"), (2, None),
    ]  # fmt: skip
    assert found[2][1] is None
    assert clock.now_s == pytest.approx(1003, abs=0.3)
    only = CaptureRequest("12_3", 0, 1, (0,))
    assert [rank for rank, _ in follow(tmp_path, read_folder(tmp_path), only, 3.0)] == [0]
