"""What the launcher leaves behind: how the workload ended, and what was measured of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unified_prof.backends.base import Capture, RunSpec
from unified_prof.backends.npu_launcher import MEASURED_FILE, PARTIAL_FILE, RESULT_FILE
from unified_prof.errors import (
    CaptureError,
    DeviceUnavailableError,
    MeasuringError,
    UprofError,
    UsageError,
)
from unified_prof.runs.records import TrackedRun

_TOLD = (UsageError, DeviceUnavailableError, CaptureError, MeasuringError)


@dataclass(frozen=True, slots=True)
class Result:
    """What the launcher noted at the workload's end."""

    exit_code: int | None = None
    tracked: TrackedRun | None = None
    failure: str | None = None
    unmarked: str | None = None


class MeasuredSoFar:
    """What the launcher leaves of measurements while the workload runs, handed on at once.

    Args:
        folder: Where it leaves them.
        spec: Whom to tell.
    """

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self._folder, self._spec = folder, spec
        self._measured: Result | None = None
        self._partial_ns = 0
        self.error: Exception | None = None
        """What went wrong when it was told that all is measured."""

    def look(self) -> None:
        """Tell what is new."""
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
            with suppress(OSError):  # it cannot be saved; the reports are still to come
                changed_ns = (self._folder / PARTIAL_FILE).stat().st_mtime_ns
                if changed_ns != self._partial_ns:
                    self._partial_ns = changed_ns
                    found = _read(self._folder / PARTIAL_FILE)
                    if found is not None and found.tracked is not None:
                        self._spec.on_partial(found.tracked)

    def completed(self, result: Result) -> Result:
        """Return `result` with what was measured before a workload that came to no end."""
        self.look()
        if result.tracked is not None:
            return result
        if self._measured is not None:
            return replace(result, tracked=self._measured.tracked, unmarked=self._measured.unmarked)
        if result.exit_code is None and (found := _read(self._folder / PARTIAL_FILE)) is not None:
            failure = "the workload ended before all was measured"
            return replace(result, tracked=found.tracked, failure=failure)
        return result


def _read(path: Path) -> Result | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    import msgspec

    return msgspec.msgpack.decode(raw, type=Result)


def result_in(folder: Path) -> Result:
    """Read what the launcher noted at the workload's end; empty when it came to no end.

    Raises:
        UprofError: the one that ended the run there.
    """
    try:
        raw = (folder / RESULT_FILE).read_bytes()
    except OSError:
        return Result()
    import msgspec

    result: dict[str, Any] = msgspec.msgpack.decode(raw)
    if error := result.pop("error", None):
        kinds = {kind.__name__: kind for kind in _TOLD}
        kind = kinds.get(error["kind"], UprofError)
        raise kind(error["message"], hint=error["hint"], slug=error["slug"])
    return msgspec.convert(result, Result)
