"""The NPU backend with a stand-in for msprof."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.backends.contract import BackendContract
from unified_prof.backends import cann, msprof_outcome
from unified_prof.backends.cann import ProcessResult
from unified_prof.backends.msprof_outcome import WorkloadWatch
from unified_prof.backends.npu import NpuBackend
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TIMELINE, Capture, RunSpec
from unified_prof.errors import DeviceUnavailableError, OutputError, UsageError

# Initializes the "NPU" and exits as requested.
WORKLOAD = """\
import sys
from pathlib import Path

from tests.backends import stand_in_acl

Path(sys.argv[1]).write_text("\\n".join(sys.argv[1:]), encoding="utf-8")
stand_in_acl.init()
print("output of the workload")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def msprof(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    command = stand_in_msprof.install(tmp_path_factory.mktemp("toolkit"))
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    return command


def spec_of(folder: Path, source: str, **changes: object) -> RunSpec:
    script = folder / "work.py"
    script.write_text(source)
    output = folder / "out"
    output.mkdir(parents=True, exist_ok=True)
    spec = RunSpec(
        target=str(script), is_module=False, arguments=(), reports=(TIMELINE,), output_dir=output,
        project_root=folder, warmup=1, iterations=2,
        relay=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def run(folder: Path, source: str, **changes: object) -> Capture:
    return NpuBackend().run(spec_of(folder, source, **changes))


INIT = "from tests.backends import stand_in_acl\nstand_in_acl.init()\n"


class TestNpuBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> NpuBackend:
        return NpuBackend()

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "work.py"
        path.write_text(WORKLOAD)
        return path


def test_missing_msprof_is_the_unavailable_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert "msprof was not found" in str(NpuBackend().unavailable_reason())


def test_toolkit_without_a_chip_is_doubtful() -> None:
    assert NpuBackend().unavailable_reason() is None
    assert "no NPU is visible" in str(NpuBackend().doubt())


@pytest.mark.slow
def test_success_returns_the_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture = run(tmp_path, INIT + "print('output of the workload')")
    assert (capture.exit_code, capture.failure) == (0, None)
    (recording,) = capture.recordings
    assert recording.kind == "prof"
    assert recording.path.parent == tmp_path / "out"
    assert recording.native is None
    assert [*recording.path.glob("*.db")] == []
    assert recording.export is not None
    assert recording.export().parent == recording.path
    out, err = capfd.readouterr()
    assert out == "output of the workload\n"
    assert "[INFO] Start profiling....\n" in err


@pytest.mark.slow
def test_workload_output_is_relayed_if_msprof_closes_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "closes_descriptors")
    assert run(tmp_path, INIT + "print('output of the workload')").exit_code == 0
    assert "output of the workload\n" in capfd.readouterr().err


def test_failure_gives_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture = run(tmp_path, INIT + "raise ValueError('injected')")
    assert capture.exit_code == 1
    assert capture.failure == "the workload exited with code 1"
    assert len(capture.recordings) == 1
    err = capfd.readouterr().err
    assert "ValueError: injected" in err
    assert "npu_launcher" not in err
    assert "runpy" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import os; os._exit(7)", 7),  # Without returning to the launcher.
        ("import os; os.kill(os.getpid(), 9)", 137),
        # msprof prints the same text for these and for codes 128 higher.
        pytest.param("import os; os._exit(9)", 9, marks=pytest.mark.slow),
        pytest.param("import os; os._exit(200)", 200, marks=pytest.mark.slow),
        pytest.param("import os; os.abort()", 134, marks=pytest.mark.slow),
        # After the launcher noted the exit code, as libraries of devices do.
        pytest.param("import atexit, os; atexit.register(os.abort)", 134, marks=pytest.mark.slow),
        pytest.param("raise SystemExit('a text')", 1, marks=pytest.mark.slow),
        pytest.param("raise SystemExit", 0, marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", 130, marks=pytest.mark.slow),
    ],
)
def test_every_way_to_exit_has_its_exit_code(
    tmp_path: Path, end: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code not in (7, 137):  # msprof's messages contain these.
        monkeypatch.setenv("STAND_IN_LOOKS_S", "1")
    assert run(tmp_path, INIT + end).exit_code == code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("raise SystemExit(9)", 9),  # Noted by the launcher.
    ],
)
def test_exit_code_is_read_from_msprofs_messages_if_unobserved(
    tmp_path: Path, end: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkloadWatch, "exit_code", None)
    assert run(tmp_path, INIT + end).exit_code == code


@pytest.mark.parametrize(("killed", "code"), [(False, 3), (True, 137)])
def test_exit_code_is_that_of_an_ended_process(killed: bool, code: int, tmp_path: Path) -> None:
    if not (workload := os.fork()):
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    (tmp_path / msprof_outcome.STARTED_FILE).write_text(str(workload))
    watch = WorkloadWatch(tmp_path)
    watch.look(os.getsid(0) + 1)
    assert (watch.runs(), watch.exit_code) == (False, None)
    watch.look(os.getsid(0))
    assert watch.exit_code == code
    assert not watch.runs()
    os.waitpid(workload, 0)


def test_killed_msprof_is_reported_although_it_left_a_recording(tmp_path: Path) -> None:
    directory = msprof_outcome.ProfDirectory(tmp_path / "PROF_1", None, has_device_data=True)
    ended = ProcessResult(-signal.SIGKILL, (), None)
    failure = msprof_outcome.describe_failure(ended, 0, [directory])
    assert failure is not None
    assert "msprof was killed by signal 9" in failure
    ended = ProcessResult(0, (), None)
    assert msprof_outcome.describe_failure(ended, 0, [directory]) is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"{os.strerror(7)}.", 7),
        (os.strerror(7), 7),
        (f"{os.strerror(1)}.", 1),
        (f"{os.strerror(signal.SIGKILL)}.", 137),
        (f"{os.strerror(signal.SIGSEGV)}.", 139),
        ("Unknown error 137.", 137),
        ("Unknown error 255", 255),
        ("12.", 12),
        ("No such words.", 1),
        ("", 1),
    ],
)
def test_exit_codes_in_msprofs_messages_are_parsed(words: str, code: int) -> None:
    line = f"[WARNING] An exception has occurred in process App, return code: {words}"
    ended = ProcessResult(0, ("[INFO] Start profiling....", line), None)
    assert msprof_outcome.workload_exit_code(None, None, ended) == code
    assert msprof_outcome.workload_exit_code(3, None, ended) == 3
    assert msprof_outcome.workload_exit_code(3, 4, ended) == 4
    # The system reports 0 to processes without permission.
    assert msprof_outcome.workload_exit_code(None, 0, ended) == code
    assert msprof_outcome.workload_exit_code(3, 0, ended) == 3
    assert msprof_outcome.workload_exit_code(None, 0, ProcessResult(0, (), None)) == 0


@pytest.mark.parametrize(
    ("reported", "observed", "status", "interrupted_by", "code"),
    [
        (None, 143, 0, 2, 130),  # msprof forwards Ctrl-C as SIGTERM
        (None, 143, 0, None, 143),
        (None, 139, 0, 2, 139),
        (5, None, 0, 2, 5),
        (None, None, 0, 2, 130),
        (None, None, -9, None, 137),
        (None, None, 0, None, 0),
    ],
)
def test_exit_code_of_a_workload_that_a_signal_ends(
    reported: int | None, observed: int | None, status: int, interrupted_by: int | None, code: int
) -> None:
    ended = ProcessResult(status, (), interrupted_by)
    assert msprof_outcome.workload_exit_code(reported, observed, ended) == code


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workload_is_awaited_during_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    # msprof itself does not survive SIGTERM, and ends the workload soon after SIGINT.
    source = f"""{INIT}
import pathlib, signal, sys, time
def save(*_):
    time.sleep(1.5)
    pathlib.Path({str(tmp_path / "saved")!r}).touch()
    sys.exit(4)
signal.signal({int(number)}, save)
pathlib.Path({str(tmp_path / "ready")!r}).touch()
time.sleep(60)
"""
    spec = spec_of(tmp_path, source)

    def send_signal() -> None:
        deadline = time.monotonic() + 400
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send_signal)
    sender.start()
    capture = NpuBackend().run(spec)
    sender.join()
    assert (tmp_path / "saved").exists()
    assert capture.exit_code == 4
    assert len(capture.recordings) == 1
    assert [p.name for p in (tmp_path / "out").iterdir()] == [capture.recordings[0].path.name]


@pytest.mark.slow
def test_program_in_another_language_runs_unchanged(tmp_path: Path) -> None:
    program = tmp_path / "program"
    code = shlex.quote(INIT)
    program.write_text(f"#!/bin/sh\n{shlex.quote(sys.executable)} -c {code}\nexit $1\n")
    program.chmod(0o755)
    capture = run(tmp_path, "", target=str(program), arguments=("5",))
    assert capture.exit_code == 5
    assert len(capture.recordings) == 1


def test_run_without_an_npu_has_a_failure_message(tmp_path: Path) -> None:
    capture = run(tmp_path, "print('no NPU here')")
    assert capture.exit_code == 0
    assert capture.recordings == ()
    assert "never initialized an NPU (no aclInit)" in str(capture.failure)


@pytest.mark.slow
def test_recording_without_device_data_has_a_failure_message(tmp_path: Path) -> None:
    capture = run(
        tmp_path, "from tests.backends import stand_in_acl\nstand_in_acl.init(device=False)"
    )
    assert "has no device data" in str(capture.failure)
    assert len(capture.recordings) == 1


def test_virtual_npu_is_reported_although_msprof_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "vnpu")
    capture = run(tmp_path, INIT)
    assert capture.exit_code == 0
    assert "virtual NPU (vNPU)" in str(capture.failure)
    assert all(recording.native is None for recording in capture.recordings)


@pytest.mark.slow
def test_full_disk_is_an_error_although_msprof_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_MSPROF", "full_while_recording")
    capture = run(tmp_path, INIT)
    assert capture.exit_code == 0
    assert isinstance(capture.error, OutputError)
    assert "is full" in str(capture.error)


def test_killed_workload_is_explained() -> None:
    failure = msprof_outcome.describe_failure(ProcessResult(0, (), None), 137, [])
    assert "exited with code 137 (SIGKILL, often out of memory)" in str(failure)


def test_unknown_msprof_argument_is_reported_with_its_message(tmp_path: Path) -> None:
    capture = run(tmp_path, INIT, options={"msprof_arg": ["--bogus=1"]})
    assert "unrecognized option '--bogus=1'" in str(capture.failure)


@pytest.mark.slow
def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert run(tmp_path, INIT).exit_code == 0
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_only_new_recordings_are_found(tmp_path: Path) -> None:
    old = tmp_path / "out" / "PROF_000001_20200101000000000_00000001ABCDEFGH"
    old.mkdir(parents=True)
    capture = run(tmp_path, INIT + "stand_in_acl.init(index=2)")
    names = [recording.path.name[:11] for recording in capture.recordings]
    assert names == ["PROF_000001", "PROF_000002"]
    assert old not in [recording.path for recording in capture.recordings]


@pytest.mark.slow
def test_spaces_in_paths_and_arguments_are_preserved(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    received = folder / "received"
    arguments = (str(received), "0", "two words", "a'quote", "$HOME")
    capture = run(folder, WORKLOAD, arguments=arguments)
    assert (capture.exit_code, capture.failure) == (0, None)
    assert received.read_text().split("\n") == [*arguments]
    assert capture.recordings[0].path.parent == folder / "out"


def test_path_that_msprof_rejects_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="characters that msprof rejects: '&'"):
        run(tmp_path, INIT, output_dir=tmp_path / "this & that")


@pytest.mark.slow
def test_script_runs_in_the_same_environment_as_without_uprof(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    script = f"""{INIT}
import __main__, sys, helper, os
assert __name__ == "__main__"
assert __main__.__file__ == sys.argv[0] == {str(tmp_path / "work.py")!r}
assert sys.path[0] == {str(tmp_path)!r}
assert "" not in sys.path
assert os.environ["UPROF_DEVICE"] == "npu"
"""
    assert run(tmp_path, script).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_signals_reach_the_workload_and_all_is_kept(number: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    spec = spec_of(
        tmp_path, f"{INIT}import time\nopen({str(ready)!r}, 'w').close()\ntime.sleep(60)\n"
    )

    def send_signal() -> None:
        deadline = time.monotonic() + 400
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send_signal)
    sender.start()
    capture = NpuBackend().run(spec)
    sender.join()
    assert capture.exit_code == 128 + number
    assert capture.failure == "the run was interrupted"
    assert len(capture.recordings) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task_time": "foo"}, "--task-time"),
        ({"exporter": "vendor"}, "unknown exporter 'vendor'"),
        ({"schema": "0.0.0"}, "no revision '0.0.0'"),
        ({"pid": "0"}, "expected a process id"),
        ({"pid": "99999999"}, "no such process"),
        ({"pid": str(os.getpid()), "delay": "3"}, "cannot be combined with --pid"),
    ],
)
def test_options_are_checked_before_the_run(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        run(tmp_path, "open('started', 'w')", options=options)
    assert not Path("started").exists()


@pytest.mark.slow
def test_workload_starts_in_this_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(tmp_path, INIT + "open('here', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAND_IN_MSPROF", "changes_folder")
    assert NpuBackend().run(replace(spec, target="work.py")).exit_code == 0
    assert (tmp_path / "here").exists()


def test_msprof_removed_before_the_run_is_an_error(tmp_path: Path, msprof: Path) -> None:
    spec = spec_of(tmp_path, INIT)
    msprof.unlink()
    with pytest.raises(DeviceUnavailableError, match="msprof was not found"):
        NpuBackend().run(spec)


def test_dry_run_shows_the_exact_command(tmp_path: Path, msprof: Path) -> None:
    options = {"preset": "minimal", "aic_metrics": "Memory", "msprof_arg": ("--dvpp=on",)}
    spec = spec_of(tmp_path, "", arguments=("--epochs", "two words"), options=options)
    command, comment = NpuBackend().describe(spec)
    settings = "--type=db --task-time=l0 --ascendcl=off --ai-core=on --aic-metrics=Memory --dvpp=on"
    output = ["--python-path=/bin/true", f"--output={tmp_path / 'out'}"]
    workload = ["bash", "/tmp/uprof_XXXXXXXX/workload.sh"]
    assert command == shlex.join([str(msprof), *output, *settings.split(), *workload])
    assert comment.endswith("work.py --epochs 'two words'")


@pytest.mark.slow
def test_running_process_is_recorded_for_a_duration(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            options = {"pid": str(process.pid), "duration": "1"}
            capture = run(tmp_path, "", target="", options=options)
        finally:
            process.kill()
    assert (capture.exit_code, capture.failure) == (0, None)
    assert len(capture.recordings) == 1
    assert 0.3 < float((tmp_path / "out" / "recorded_seconds").read_text()) < 20


# Providers that also initialize the "NPU".
PROVIDERS = """\
import torch
from tests.backends import stand_in_acl


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x)


def uprof_model_provider():
    stand_in_acl.init()
    return Net()


def uprof_input_provider(batch_size=3):
    return (torch.ones(batch_size, 4),)


def uprof_iteration_provider(model):
    return lambda x: model(x).sum().backward()
"""

# Makes the launcher's process track the CPU instead of the NPU.
CPU_FOR_NPU = """\
from unified_prof.tracking import workload

real = workload.run_workload
workload.run_workload = lambda device, *rest, **options: real("cpu", *rest, **options)
"""

MSTX = """\
def range_start(message, stream=None):
    print("begin", message)
    return 7


def range_end(number):
    print("end", number)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory whose modules the workload imports before all others."""
    folder = tmp_path / "world"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return folder


@pytest.mark.slow
def test_providers_are_tracked_and_their_iterations_marked(
    tmp_path: Path, modules: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    (modules / "mstx.py").write_text(MSTX)
    capture = run(tmp_path, PROVIDERS, reports=(RUN_TIME, MEMORY, TIMELINE))
    assert (capture.exit_code, capture.failure) == (0, None)
    assert len(capture.recordings) == 1
    assert capture.tracked is not None
    assert [operation.name for operation in capture.tracked.operations] == ["linear"]
    assert [weight.name for weight in capture.tracked.weights] == ["weight", "bias"]
    lines = capfd.readouterr().out.split("\n")
    assert lines[:4] == ["begin uprof iteration 0", "end 7", "begin uprof iteration 1", "end 7"]


@pytest.mark.slow
def test_providers_are_run_for_the_timeline_only(tmp_path: Path, modules: Path) -> None:
    (modules / "sitecustomize.py").write_text(CPU_FOR_NPU)
    capture = run(tmp_path, PROVIDERS)
    assert capture.exit_code == 0
    assert capture.tracked is None
    assert len(capture.recordings) == 1
    assert "iterations are not marked" in str(capture.failure)


@pytest.mark.slow
def test_missing_npu_is_an_error_of_the_tracker(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="npu"):
        run(tmp_path, PROVIDERS)


def test_program_in_another_language_cannot_be_tracked(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="not a Python script"):
        run(tmp_path, "", target=str(program), reports=(RUN_TIME,))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_of_a_group_are_found_without_its_leader() -> None:
    with contextlib.ExitStack() as stack:
        group, found = 0, []
        for _ in range(3):
            child = stack.enter_context(
                subprocess.Popen(["sleep", "60"], preexec_fn=partial(os.setpgid, 0, group))
            )
            stack.callback(child.kill)
            group = group or child.pid
            found.append(child.pid)
        assert sorted(cann._others_of(group)) == found[1:]
