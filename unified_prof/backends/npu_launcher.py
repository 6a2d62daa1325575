"""Launcher that msprof starts as its application: runs the workload in this process.

The workload must run in this process, because msprof samples the process by its id. The script of
`npu` starts the launcher with a JSON file that specifies what to run and where to write the result.
Measurements are saved periodically and when they are complete, because the workload may run for
hours and be killed; the parent process writes the reports. Measured iterations are marked
for msprof (MSTX_EVENTS).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from msgspec import Struct, structs

from unified_prof.base.run_spec import Capture, RunSpec, TrackedRun
from unified_prof.base.text import storable_in
from unified_prof.errors import (
    CaptureError,
    DeviceUnavailableError,
    MeasuringError,
    UprofError,
    UsageError,
)
from unified_prof.tracking.driver import Instrument

RESULT_FILE = "result.msgpack"  # How the workload ended, and what was measured.
MEASURED_FILE = "measured.msgpack"  # Complete measurements, while the workload is still running.
PARTIAL_FILE = "partial.msgpack"  # Measurements so far.


def main(job_file: str) -> None:
    """Run the job in `job_file` and end the process with the workload's exit code."""
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    _restore_streams(job["streams"])
    spec = RunSpec.of_data(job["spec"])
    owner = os.getpid()
    result: dict[str, Any]
    try:
        result = _run_tracked(spec, folder) if job["tracked"] else _run_plain(spec)
    except UprofError as err:
        # Printed by the parent.
        told = {"kind": type(err).__name__, "message": str(err), "hint": err.hint, "slug": err.slug}
        result = {"exit_code": err.exit_code, "error": told}
    if os.getpid() == owner:  # not in a child that the workload forked
        _write_atomic(folder / RESULT_FILE, result)
    sys.exit(result["exit_code"])


def _restore_streams(streams: Mapping[str, Any]) -> None:
    """Redirect the workload's output to uprof's own streams, if they were inherited.

    msprof merges the output of its application into its own. A descriptor is used only if it still
    refers to the file that uprof passed, because the number may have been reused.
    """
    for number, stream in streams.items():
        with suppress(OSError):
            inherited = stream["fd"]
            status = os.fstat(inherited)
            if [status.st_dev, status.st_ino] == stream["file"]:
                os.dup2(inherited, int(number))
                os.close(inherited)


def _run_tracked(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Run providers, or a script whose operations are tracked, on the NPU."""
    from unified_prof.tracking.workload import run_workload

    marks = MarkIterations()
    owner = os.getpid()

    def measured(capture: Capture) -> None:
        if capture.tracked is not None and os.getpid() == owner:
            found = {"tracked": capture.tracked, "unmarked": marks.missing}
            _write_atomic(folder / MEASURED_FILE, found)

    def partial(run: TrackedRun) -> None:
        if os.getpid() == owner:
            _write_atomic(folder / PARTIAL_FILE, {"tracked": run})

    if spec.asks_for_operations:
        spec = replace(spec, on_measured=measured, on_partial=partial)
    capture = run_workload("npu", spec, instruments=[marks])
    return {
        "exit_code": capture.exit_code,
        "tracked": capture.tracked if spec.asks_for_operations else None,
        "failure": capture.failure,
        "unmarked": marks.missing,
    }


def _run_plain(spec: RunSpec) -> dict[str, Any]:
    """Run a script or module as `python` does."""
    from unified_prof.tracking.program import execute, exit_code_of, find_program, running_as

    try:
        program = find_program(spec)
        code = program.compile()
        with running_as(program, "__main__") as module:
            execute(code, vars(module))
    except UprofError:
        raise
    except BaseException as error:
        own_frame = error.__traceback__
        return {"exit_code": exit_code_of(error.with_traceback(own_frame and own_frame.tb_next))}
    return {"exit_code": 0}


def _write_atomic(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` atomically: readers see all of it or the previous content."""
    import msgspec

    try:
        data = msgspec.msgpack.encode(content)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        data = msgspec.msgpack.encode(storable_in(msgspec.to_builtins(content)))
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


# Packages with range_start(message, stream) and range_end(id): CANN's own and torch_npu's.
_SOURCES = ("mstx", "torch_npu.npu.mstx")


class MarkIterations(Instrument):
    """Instrument that opens an mstx range for each measured iteration.

    Without CANN's mstx package it does nothing, and `missing` contains the reason.
    """

    def __init__(self) -> None:
        self.missing: str | None = None  # Reason why iterations are not marked, None if they are.
        self._range: Any = None
        self._start: Callable[..., Any] | None = None
        self._end: Callable[[Any], Any] | None = None

    def start(self) -> None:
        """Import the mstx package, or set `missing`."""
        for name in _SOURCES:
            try:
                source = resolve_name(name)
                self._start, self._end = source.range_start, source.range_end
            except (ImportError, AttributeError):
                continue
            return
        self.missing = "iterations are not marked: CANN's Python package mstx is not installed"

    def begin_iteration(self, index: int) -> None:
        """Open the range of iteration `index`."""
        if self._start:
            self._range = self._start(f"uprof iteration {index}")

    def end_iteration(self, index: int) -> None:
        """Close the range of iteration `index`."""
        if self._end and self._range is not None:
            self._end(self._range)
            self._range = None

    def stop(self, complete: bool) -> None:
        """Close the open range, if an error left one open."""
        self.end_iteration(-1)


_REPORTED_ERRORS = (UsageError, DeviceUnavailableError, CaptureError, MeasuringError)


class Result(Struct, frozen=True):
    """Result that the launcher wrote at the end of the workload."""

    exit_code: int | None = None
    tracked: TrackedRun | None = None
    failure: str | None = None
    unmarked: str | None = None


class MeasurementRelay:
    """Passes measurements that the launcher saves during the run to the callbacks of `spec`.

    The launcher saves them in `folder`.
    """

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self._folder, self._spec = folder, spec
        self._measured: Result | None = None
        self._partial_ns = 0
        self.error: Exception | None = None  # Exception of `RunSpec.on_measured`.

    def look(self) -> None:
        """Call the callbacks if there are new measurements."""
        if self._measured is not None:
            return
        if (found := _read(self._folder / MEASURED_FILE)) is not None:
            self._measured = found
            try:
                capture = Capture(0, found.tracked, failure=found.unmarked)
                self._spec.on_measured(capture)
            except Exception as error:
                self.error = error
        elif self._spec.on_partial is not None:
            with suppress(OSError):  # it cannot be saved; the reports follow later
                changed_ns = (self._folder / PARTIAL_FILE).stat().st_mtime_ns
                if changed_ns != self._partial_ns:
                    self._partial_ns = changed_ns
                    found = _read(self._folder / PARTIAL_FILE)
                    if found is not None and found.tracked is not None:
                        self._spec.on_partial(found.tracked)

    def completed(self, result: Result) -> Result:
        """Return `result`, with the last saved measurements if the workload was killed."""
        self.look()
        if result.tracked is not None:
            return result
        if self._measured is not None:
            return structs.replace(
                result, tracked=self._measured.tracked, unmarked=self._measured.unmarked
            )
        if result.exit_code is None and (found := _read(self._folder / PARTIAL_FILE)) is not None:
            failure = "the workload ended before the measurement was complete"
            return structs.replace(result, tracked=found.tracked, failure=failure)
        return result


def _read(path: Path) -> Result | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    import msgspec

    return msgspec.msgpack.decode(raw, type=Result)


def read_result(folder: Path) -> Result:
    """Read the result of the launcher; it is empty if the launcher wrote none.

    Raises UprofError if the run failed with this error in the launcher.
    """
    try:
        raw = (folder / RESULT_FILE).read_bytes()
    except OSError:
        return Result()
    import msgspec

    result: dict[str, Any] = msgspec.msgpack.decode(raw)
    if error := result.pop("error", None):
        kinds = {kind.__name__: kind for kind in _REPORTED_ERRORS}
        kind = kinds.get(error["kind"], UprofError)
        raise kind(error["message"], hint=error["hint"], slug=error["slug"])
    return msgspec.convert(result, Result)
