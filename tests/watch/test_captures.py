"""When a watched run captures steps, and what it writes: a program of invented steps."""

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
from unified_prof.pipeline import watch_captures as captures
from unified_prof.pipeline.watch_captures import CaptureRequest
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


class Program:
    """A watched program, in place of `StepCollector`; its steps take as long as tests say."""

    def __init__(self, device: str, take: Any, on_step: Any, _bottoms: object) -> None:
        self.device, self.event, self.steps = SimpleNamespace(kind=device), None, 0
        self._take, self._on_step = take, on_step
        self.is_measured = False

    def begin(self) -> None:
        self.is_measured = True

    def end(self) -> None:
        self.is_measured = False

    def run(self, count: int, length_ms: int = 10) -> None:
        for _ in range(count):
            self._take(step(self.steps, length_ns=length_ms * MS, event=self.event))
            self.steps += 1
            self._on_step(self.steps - 1, length_ms * MS)


class Run:
    """A run under `Watch` whose writing thread acts only in `go` and at the end."""

    def __init__(self, folder: Path, clock: Clock, device: str = "cpu", **options: Any) -> None:
        self.folder, self.clock = folder, clock
        self.recordings: list[Any] = []
        self.msprofs: list[Any] = []
        settings = watching.WatchSettings(**options.pop("settings", {}))
        self.watch = watching.Watch(folder, device, settings=settings, **options)
        self.program: Any = self.watch._collector
        self.error: Exception | None = None  # of the next capture
        self.watch.__enter__()

    def go(self, *counts: int, ms: int = 10) -> None:
        """Run numbers of steps, each for a minute of the clock, and write them."""
        for count in counts:
            self.program.run(count, ms)
            self.clock.now_s += 60
            self.watch._write()

    def ask(self, name: str, *fields: Any) -> None:
        captures.ask(self.folder, CaptureRequest(name, *fields))

    def end(self, error: BaseException | None = None) -> None:
        if self.program.is_measured:
            self.watch.__exit__(type(error), error, None)

    @property
    def steps(self) -> RankSteps:
        return read_folder(self.folder)[0]

    def events(self) -> list[tuple[str, str | None, str | None]]:
        return [(one.kind, one.status, one.finding) for one in self.steps.events]

    def record(self, path: Path, _device: str, steps: int, *_: object) -> Any:
        """Stand for `StepCapture`: its first advance begins, and `steps` further ones end it."""
        if self.error is not None:
            raise self.error
        left = iter([*[False] * steps, True])
        recording: Any = SimpleNamespace(
            place=path.parent, steps=steps, spent_ns=0, failure=None, is_stopped=False,
            advance=left.__next__, stop=lambda: setattr(recording, "is_stopped", True),
        )  # fmt: skip
        self.recordings.append(recording)
        return recording

    def attach(self, place: Path) -> Any:
        """Stand for `DynamicRecording`: msprof starts, fails and ends when a test says so."""
        msprof: Any = SimpleNamespace(
            place=place, failure=None, has_started=False, is_over=False, calls=[],
            has_stopped=lambda: msprof.calls.append("stop") or msprof.is_over,
            kill=lambda: msprof.calls.append("kill"),
        )  # fmt: skip
        self.msprofs.append(msprof)
        return msprof


Start = Callable[..., Run]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of watched runs."""
    clock = Clock()
    for module in (watching, captures):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Start]:
    """Return a function that starts a watched run; its captures are explained at once."""
    started: list[Run] = []

    def make(**options: Any) -> Run:
        started.append(Run(tmp_path / "out", clock, **options))
        return started[0]

    monkeypatch.setattr(watching, "StepCollector", Program)
    monkeypatch.setattr(watching, "StepCapture", lambda *given: started[0].record(*given))
    monkeypatch.setattr(watching, "DynamicRecording", lambda place: started[0].attach(place))
    monkeypatch.setattr(watching, "_INTERVAL_S", 1e6)
    done = SimpleNamespace(poll=lambda: 0, stdout=None, returncode=0)
    monkeypatch.setattr(captures.Conversions, "_start", lambda *_: done)
    yield make
    for run in started:
        run.end()


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, "0"), (SystemExit(3), "3"), (SystemExit("no"), "1"), (SystemExit(), "0"),
     (ValueError(), "1"), (KeyboardInterrupt(), "130")],
)  # fmt: skip
def test_all_steps_are_written(start: Start, error: BaseException | None, code: str) -> None:
    run = start(facts={"workload": "train.py"}, settings={"share": 0.0})
    run.go(100)
    assert (len(run.steps), run.steps.is_running) == (100, True)
    run.program.run(3, 20)
    run.end(error)
    found = run.steps
    assert found.columns["step"].tolist() == [*range(103)]
    assert found.columns["length_ns"].tolist() == [10 * MS] * 100 + [20 * MS] * 3
    facts = {"rank": "0", "world_size": "1", "device": "cpu", "workload": "train.py"}
    assert (facts | {"exit_code": code}).items() <= found.facts.items()
    assert int(found.facts["ended_ns"]) - int(found.facts["began_ns"]) == 60 * 10**9
    assert (found.is_running, found.events) == (False, [])


MINUTES = ((10, 10),) * 17


@pytest.mark.parametrize(
    ("settings", "parts", "captured"),
    [
        # Usual steps, once after 50.
        ({"steps": 4}, [(49, 10), (1, 10)], []),
        ({"steps": 4}, [(50, 10), (1, 10), (100, 10)], ["51_healthy"]),
        # A slow step is three times as long as usual here.
        ({"slow_factor": 3.0}, [(101, 10), (100, 10), (9, 10), (1, 29)], ["102_healthy"]),
        (
            {"slow_factor": 3.0},
            [(101, 10), (100, 10), (9, 10), (1, 31)],
            ["102_healthy", "211_slow_step"],
        ),
        # Steps drift.
        ({}, [(1000, 10), (20, 10), (400, 13), (20, 13)], ["1001_healthy", "1421_drift"]),
        # At intervals of more than five minutes.
        ({"every_s": 330.0}, MINUTES, ["51_healthy", "61_interval", "121_interval"]),
        ({"every_s": 330.0, "share": 0.0}, MINUTES, []),
    ],
)
def test_steps_are_captured_for_a_reason(
    start: Start, settings: dict[str, Any], parts: Sequence[tuple[int, int]], captured: list[str]
) -> None:
    run = start(settings={"steps": 2, **settings})
    for count, ms in parts:
        run.go(count, ms=ms)
    places = [one.place.name.removeprefix("rank0_step") for one in run.recordings]
    assert places == captured
    run.go(9, 9, 9)
    found = [(kind, status) for kind, status, _ in run.events() if status]
    assert found[: len(captured)] == [(name.partition("_")[2], "ready") for name in captured]
    steps = [row.step for row in run.steps.rows() if row.event is not None]
    for name in captured:
        first = int(name.partition("_")[0])
        assert {*range(first, first + run.watch.settings.steps)} <= {*steps}


def test_slow_step_in_a_capture_or_beyond_the_share_is_not_captured(start: Start) -> None:
    run = start(settings={"steps": 2, "share": 0.001})
    run.go(101, 100)
    run.recordings[0].spent_ns = 10**12  # captures of usual steps do not count
    run.go(3)
    run.go(1, ms=40)
    run.recordings[1].spent_ns = 10**9
    run.program.run(1, 90)  # within the capture
    run.go(1, 500)
    run.go(1, 5, ms=90)
    assert len(run.recordings) == 2, "a capture of a second is more than the share of minutes"
    slow = [one for one in run.steps.events if one.kind == "slow_step"]
    assert [one.capture is None for one in slow] == [False, True]
    assert "step 204 took 40.0 ms, 4.0 times the median of 10.0 ms" in slow[0].text


def test_requests_and_signals_are_captured_even_without_a_share(start: Start) -> None:
    run = start(settings={"share": 0.0, "steps": 7})
    run.go(60)
    run.ask("first", 70, 3, None)
    run.ask("other", 0, 3, (1, 2))
    run.go(9)
    run.program.run(1)  # step 69
    assert [one.steps for one in run.recordings] == [3]
    run.go(3)
    signal.raise_signal(signal.SIGUSR2)
    run.go(20, 1)
    assert [(one.place.name, one.steps) for one in run.recordings] == [
        *(("rank0_step70_request", 3), ("rank0_step74_signal", 7))
    ]
    assert run.events() == [("request", "ready", None), ("signal", "ready", None)]
    assert "first" in run.steps.events[0].text
    run.end()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_failed_capture_is_reported_and_does_not_disturb_the_program(start: Start) -> None:
    run = start(settings={"share": 0.0, "steps": 2})
    run.error = OSError("full")
    run.ask("refused", 0, 2, None)
    run.go(1, 5)
    run.error = None
    run.ask("failed", 0, 2, None)
    run.go(1, 1)
    run.recordings[0].failure = "no step"
    run.go(5)
    run.ask("raises", 0, 2, None)
    run.go(1, 1)
    run.recordings[1].advance = iter(()).__next__
    run.go(5)
    run.ask("interrupted", 0, 100, None)
    run.go(1, 5)
    run.end()
    assert [one.is_stopped for one in run.recordings] == [False, False, True]
    failed = [(None, "OSError: full"), ("failed", "no step"), ("failed", "StopIteration: ")]
    assert run.events() == [("request", *one) for one in [*failed, ("ready", None)]]
    assert len(run.steps) == 26


@pytest.mark.parametrize("failure", [None, "msprof was not found"])
def test_capture_of_an_npu_begins_and_ends_with_msprof(start: Start, failure: str | None) -> None:
    run = start(device="npu", settings={"share": 0.0})
    run.ask("first", 0, 2, None)
    run.go(5, 5)
    (msprof,) = run.msprofs
    assert run.recordings == [], "msprof has not started"
    msprof.has_started, msprof.failure = True, failure
    run.go(1)
    run.ask("second", 0, 2, None)
    run.go(3)
    assert [one.place for one in run.recordings] == [msprof.place]
    assert "stop" in msprof.calls
    assert run.events() == [("request", "recording", None)]
    msprof.is_over = True
    run.go(1, 1)
    assert len(run.msprofs) == 2
    run.end()
    assert run.events()[0] == ("request", "ready", None)
    text = f"; the capture contains the host only ({failure})" if failure else ""
    assert run.steps.events[0].text == f"capture first was requested{text}"
    assert "kill" in run.msprofs[1].calls


def test_failing_exporter_is_removed(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    received: dict[bool, list[int | str]] = {True: [], False: []}

    def exporter(fails: bool) -> Any:
        def export(rows: Sequence[StepRow], events: Sequence[WatchEvent]) -> None:
            received[fails] += [row.step for row in rows] + [event.kind for event in events]
            if fails and len(rows) > 5:
                raise ConnectionError("gone")

        return SimpleNamespace(export=export, close=lambda: received[fails].append("closed"))

    run = start(exporters=[exporter(True), exporter(False)])
    run.go(5, 10, 10)
    run.end()
    assert received == {True: [*range(15)], False: [*range(25), "closed"]}
    assert capsys.readouterr().err.count("an exporter failed and is off: ConnectionError") == 1


def test_steps_that_cannot_be_written_are_lost_and_the_program_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "_MAX_ROWS", 10)
    run = start()
    run.go(12, 5)
    assert [event.text.partition(" steps")[0] for event in run.steps.events] == ["2"]

    def full(*_: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(run.watch._file, "append", full)
    run.program.run(5)
    run.end()
    run.program.run(5)
    assert "uprof: watching ended: no space left" in capsys.readouterr().err
    assert len(run.steps) == 15


def test_budget_keeps_the_share_of_triggered_captures(clock: Clock) -> None:
    budget = captures.Budget(0.1)
    allowed = []
    for wait_s, spent_s, is_free in [
        *((0, None, False), (100, 4, False), (9.9, None, False), (0.2, 1000, True)),
        *((10, 5, False), (15, None, False), (10, None, False)),
    ]:
        clock.sleep(wait_s)
        allowed.append(budget.allows())
        if spent_s is not None:
            budget.spend(spent_s * 10**9, is_free=is_free)
    # Not within 10 s after a capture; not if 4 + 5 s, and another 5, are more than a tenth.
    assert allowed == [True, True, False, True, True, False, True]
    assert not captures.Budget(0.0).allows()


def test_captures_are_explained_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []

    def child(code: int | None, output: str = "") -> Any:
        return SimpleNamespace(
            poll=lambda: code, returncode=code, stdout=SimpleNamespace(read=lambda: output),
            kill=lambda: killed.append("kill"), wait=lambda: killed.append("wait"),
        )  # fmt: skip

    commands: list[list[str]] = []
    children: list[Any] = [child(0, " finding \n"), child(0), child(1, "damaged")]
    children += [OSError("no memory"), child(None)]

    def popen(command: list[str], **options: Any) -> Any:
        assert ("LD_PRELOAD" in options["env"], options["cwd"]) == (False, tmp_path / "captures")
        commands.append([str(Path(one).relative_to(tmp_path)) for one in command[3:]])
        if isinstance(one := children[len(commands) - 1], OSError):
            raise one
        return one

    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setattr(subprocess, "Popen", popen)
    conversions = captures.Conversions(tmp_path)
    idle = [conversions.is_idle]
    kinds = ["healthy", "slow_step", "drift", "signal", "request"]
    events = [WatchEvent(0, 0, 0, kind, "", f"captures/{kind}", "converting") for kind in kinds]
    for event in events:
        conversions.add(event)
    assert [[one.kind for one in conversions.poll()] for _ in range(5)] == [
        [], ["healthy"], ["slow_step"], ["drift", "signal"], [],
    ]  # fmt: skip
    assert [*idle, conversions.is_idle] == [True, False]
    assert [(event.status, event.finding) for event in events] == [
        *(("ready", "finding"), ("ready", None), ("failed", "damaged"), ("failed", "no memory")),
        ("converting", None),
    ]
    assert commands[0] == ["captures/healthy"]
    assert commands[4] == ["captures/request", "captures/healthy"]
    conversions.stop()
    assert killed == ["kill", "wait"]


def test_directories_of_captures_are_never_shared(tmp_path: Path) -> None:
    made = [captures.new_directory(tmp_path / "captures", "drift").name for _ in range(3)]
    assert made == ["drift", "drift_2", "drift_3"]


def test_requests_are_read_once_and_only_if_they_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    valid = json.dumps({"from_step": 5, "steps": 3, "ranks": [0, 2]})
    (folder / "earlier.json").write_text(valid)
    requests = {rank: captures.Requests(tmp_path, rank) for rank in (0, 1)}
    assert folder.stat().st_mode & 0o777 == 0o700
    for fields in (("a", 5, 3, (0, 2)), ("b", 7, 0, None), ("c", 7, 10**6, None)):
        captures.ask(tmp_path, CaptureRequest(*fields))
    for name, content in {
        "d.json": "{", "e.json": "[]", "f.json": "{}", "g.partial": valid,
        "h.json": valid + " " * (1 << 20), "i.json": valid.replace("3", '"x"'),
    }.items():  # fmt: skip
        (folder / name).write_text(content)
    b, c = CaptureRequest("b", 7, 1, None), CaptureRequest("c", 7, 1_000, None)
    assert [*requests[0].new()] == [CaptureRequest("a", 5, 3, (0, 2)), b, c]
    assert [*requests[1].new()] == [b, c]
    assert [*requests[0].new()] == []
    with pytest.raises(OutputError):
        captures.ask(tmp_path / "elsewhere", CaptureRequest("a", 5, 3, None))


def test_ranks_capture_a_step_that_none_of_them_has_begun(tmp_path: Path) -> None:
    """Requests are noticed within two seconds, and msprof takes three to start."""
    for rank, (count, device) in enumerate([(300, "cpu"), (310, "cpu"), (290, "npu"), (0, "npu")]):
        write_run(tmp_path, count, rank=rank, device=device, is_over=False)
    known = read_folder(tmp_path)
    assert captures.common_step(known, [0]) == 299 + 1 + 200
    assert captures.common_step(known, [0, 1, 3]) == 309 + 1 + 200
    assert captures.common_step(known, [0, 1, 2]) == 309 + 1 + 500
    assert captures.common_step(known, [3]) == 1 + 2, "steps of a second if none is known"


def test_request_is_followed_until_all_ranks_are_done(tmp_path: Path, clock: Clock) -> None:
    text, other = "capture 12_3 was requested", "capture 99 was requested"
    cases: list[tuple[Any, ...] | None] = [
        ("request", text, "captures/a", "ready"), ("request", text, None, None, "no space"), None,
        ("request", text, "captures/a", "converting"), ("request", other, "captures/a", "ready"),
        ("signal", text, "captures/a", "ready"),
    ]  # fmt: skip
    for rank, case in enumerate(cases):
        events = () if case is None else (WatchEvent(0, 1, 1, *case),)
        write_run(tmp_path, 9, rank=rank, events=events, is_over=case is None)
    known = read_folder(tmp_path)
    found = [*captures.follow(tmp_path, known, CaptureRequest("12_3", 0, 1, None), 3.0)]
    assert [(rank, one and one.status, one and one.finding) for rank, one in found] == [
        *((0, "ready", None), (1, None, "no space"), (2, None, None))
    ]
    assert clock.now_s == pytest.approx(1003, abs=0.3)
    only = CaptureRequest("12_3", 0, 1, (0,))
    assert [rank for rank, _ in captures.follow(tmp_path, known, only, 3.0)] == [0]
