"""Huawei Ascend NPUs, profiled by CANN's msprof command."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from unified_prof.backends import cann, msprof_command, msprof_outcome
from unified_prof.backends.base import (
    MEMORY,
    RUN_TIME,
    TIMELINE,
    Capture,
    Recording,
    RunSpec,
    check_options,
)
from unified_prof.backends.msprof_options import BY_NAME, msprof_arguments
from unified_prof.backends.msprof_process import Ended, Feed, run_group
from unified_prof.backends.npu_launcher import RESULT_FILE
from unified_prof.backends.torch_device import DEVICE_VARIABLE
from unified_prof.errors import (
    CaptureError,
    DeviceUnavailableError,
    MeasuringError,
    UprofError,
    UsageError,
)
from unified_prof.models.catalogue import MSPROF, resolve
from unified_prof.runs.records import TrackedRun

_TOLD = (UsageError, DeviceUnavailableError, CaptureError, MeasuringError)
EXPORTERS = ("uprof", "native")
_OTHER_OPTIONS = frozenset({"preset", "exporter", "schema", "msprof_arg", "pid"})


@dataclass(frozen=True, slots=True)
class _Result:
    """What the launcher noted at the workload's end."""

    exit_code: int | None = None
    tracked: TrackedRun | None = None
    failure: str | None = None
    unmarked: str | None = None


class NpuBackend:
    """Run a workload as msprof's application.

    Options (`RunSpec.options`): those of `msprof_options`, by name; `preset`; `msprof_arg`, a
    sequence of further arguments; `pid`, a running process to attach to instead of starting a
    workload; `exporter` and `schema`, which are for those who build the database.
    """

    name = "npu"
    reports: tuple[str, ...] = (TIMELINE, RUN_TIME, MEMORY)
    default_reports: tuple[str, ...] = (TIMELINE,)

    def unavailable_reason(self) -> str | None:
        """Return why msprof cannot be run, or None when it can."""
        if cann.find_msprof() is None:
            return (
                "msprof was not found on PATH, in ASCEND_TOOLKIT_HOME, in ASCEND_HOME_PATH or in "
                "the usual folders (is CANN installed, and its set_env.sh sourced?)"
            )
        return None

    def doubt(self) -> str | None:
        """Return why `auto` should not take it: no device of its kind is to be seen."""
        return None if cann.device_files() else "no NPU is visible here (no /dev/davinci0 ...)"

    def describe(self, spec: RunSpec) -> list[str]:
        """Return the lines of `--dry-run`: the command, and what its script would become."""
        folder = Path("/tmp/uprof_XXXXXXXX")
        command = self._command(spec, _check(spec), folder)
        lines = [shlex.join(command)]
        if not spec.options.get("pid"):
            words = [spec.target, *spec.arguments]
            if spec.is_module:
                words.insert(0, "-m")
            lines.append(f"# {folder}/workload.sh runs: {shlex.join(words)}")
        return lines

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload under msprof, or attach to a running one, and find what it recorded.

        Raises:
            UsageError: an option or a path that msprof would refuse.
            DeviceUnavailableError: msprof cannot be started.
            CaptureError: the workload broke the rules of providers; that nothing was recorded is
                told in `Capture.failure`.
        """
        arguments = _check(spec)
        if reason := self.unavailable_reason():
            raise DeviceUnavailableError(reason)
        output = spec.output_dir.resolve()
        before = msprof_outcome.find(output)
        folder = msprof_command.harmless_folder()
        try:
            ended = self._record(spec, arguments, folder)
            result = _result(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        exit_code = msprof_outcome.workload_exit_code(result.exit_code, ended)
        found = sorted(msprof_outcome.find(output) - before)
        directories = [msprof_outcome.inspect(path) for path in found]
        failure = msprof_outcome.what_went_wrong(ended, exit_code, directories, output)
        reasons = filter(None, (failure, result.failure, result.unmarked))
        return Capture(
            exit_code,
            result.tracked,
            tuple(Recording("prof", item.path, native=item.native) for item in directories),
            failure="; ".join(reasons) or None,
            facts={
                "cann": cann.version(),
                "npu_chip": cann.chip(),
                "msprof": shlex.join(self._command(spec, arguments, folder)),
            },
        )

    def _command(self, spec: RunSpec, arguments: list[str], folder: Path) -> list[str]:
        if pid := spec.options.get("pid"):
            application = ["--dynamic=on", f"--pid={pid}"]
        else:
            application = msprof_command.application(folder)
        return msprof_command.command_line(
            cann.find_msprof() or Path("msprof"), arguments, spec.output_dir.resolve(), application
        )

    def _record(self, spec: RunSpec, arguments: list[str], folder: Path) -> Ended:
        command = self._command(spec, arguments, folder)
        environment = {**os.environ, DEVICE_VARIABLE: self.name}
        if spec.options.get("pid"):
            duration = spec.options.get("duration")
            return run_group(
                command,
                environment=environment,
                relay=spec.relay,
                feed=_start_and_stop(int(str(duration)) if duration else None),
            )
        streams = {1: os.dup(1), 2: os.dup(2)}
        try:
            msprof_command.write_job(folder, spec, streams=streams, tracked=_needs_tracker(spec))
            words = msprof_command.workload_words(spec, folder)
            msprof_command.write_script(folder, words, {DEVICE_VARIABLE: self.name})
            return run_group(
                command,
                environment=environment,
                inherited=tuple(streams.values()),
                relay=spec.relay,
            )
        finally:
            for descriptor in streams.values():
                os.close(descriptor)


def _check(spec: RunSpec) -> list[str]:
    """Check everything that can be checked before anything starts; return msprof's arguments."""
    check_options(NpuBackend.name, spec, {*BY_NAME, *_OTHER_OPTIONS})
    exporter = spec.options.get("exporter", EXPORTERS[0])
    if exporter not in EXPORTERS:
        raise UsageError(f"no exporter {exporter!r}", hint=f"known: {', '.join(EXPORTERS)}")
    resolve(MSPROF, str(spec.options.get("schema") or "documented"))
    msprof_command.check_path(spec.output_dir.resolve(), "the output folder")
    options = {name: spec.options[name] for name in spec.options if name not in _OTHER_OPTIONS}
    if "preset" in spec.options:
        options["preset"] = spec.options["preset"]
    if pid := spec.options.get("pid"):
        _check_pid(pid, options)
        if (duration := options.pop("duration", None)) is not None:
            msprof_arguments({"duration": duration})
    else:
        _check_target(spec)
    raw = spec.options.get("msprof_arg", ())
    assert isinstance(raw, tuple | list)
    return msprof_arguments(options, raw=raw, chip=cann.chip())


def _check_pid(pid: object, options: Mapping[str, object]) -> None:
    text = str(pid)
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise UsageError(f"--pid: {text!r} found, the id of a process expected")
    if not Path(f"/proc/{text}").is_dir() and Path("/proc").is_dir():
        raise UsageError(f"--pid {text}: there is no such process")
    if "delay" in options:
        raise UsageError("--delay is for a workload that uprof starts, not with --pid")


def _check_target(spec: RunSpec) -> None:
    if spec.is_module:
        return
    path = Path(spec.target)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{spec.target} {found}, a script to run is expected")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{spec.target} cannot be read by this user")
    if spec.asks_for_operations and msprof_command.is_program(spec):
        raise UsageError(
            f"{spec.target} is no Python script, its operations cannot be tracked",
            hint="leave out --report",
        )


def _needs_tracker(spec: RunSpec) -> bool:
    """Return whether the tracker drives the workload; otherwise it runs as it would alone."""
    return spec.asks_for_operations or msprof_command.has_providers(spec)


def _start_and_stop(duration_s: int | None) -> Feed:
    """Return what tells msprof, attached to a process, to record for a while."""

    def feed(stdin: IO[bytes], asked_to_end: threading.Event) -> None:
        try:
            for word, wait in (("start", True), ("stop", False), ("quit", False)):
                stdin.write(f"{word}\n".encode())
                stdin.flush()
                if wait:
                    asked_to_end.wait(duration_s)
        except OSError:
            pass  # msprof has ended; what it said is shown anyway

    return feed


def _result(folder: Path) -> _Result:
    """Read what the launcher noted at the workload's end; empty when it came to no end.

    Raises:
        UprofError: the one that ended the run there.
    """
    try:
        raw = (folder / RESULT_FILE).read_bytes()
    except OSError:
        return _Result()
    import msgspec

    result: dict[str, Any] = msgspec.msgpack.decode(raw)
    if error := result.pop("error", None):
        kinds = {kind.__name__: kind for kind in _TOLD}
        kind = kinds.get(error["kind"], UprofError)
        raise kind(error["message"], hint=error["hint"])
    return msgspec.convert(result, _Result)
