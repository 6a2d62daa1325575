"""Records the measured iterations with torch.profiler, for the timeline report.

There is one profiler in a process, and the program comes first: where it records itself, its
recording is left alone and what it covers is missing from ours.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

from unified_prof.tracking.patches import Patches
from unified_prof.tracking.watch.device_records import look_at
from unified_prof.tracking.watch.other_profilers import (
    another_is_at_work,
    program_marks_steps,
    watch_for_others,
)
from unified_prof.tracking.watch.torch_profiler import STACKS, USUAL_DETAILS, is_beyond_stacks, made
from unified_prof.tracking.watch.whole_program import WholeProgram


class TimelineInstrument:
    """Runs torch.profiler over the iterations and leaves its trace in a file.

    Each iteration is marked as torch.profiler marks its steps. What the profiler takes for
    itself, starting and stopping, lies outside of them. On a device it is made ready one iteration
    before (`lead_in`): the first one that it records there is longer than others.

    Args:
        path: The trace; gzip if it ends in `.gz`. It appears only if an iteration was complete,
            and under another name where another process has written one of that name meanwhile.
        device: A torch device type; what torch.profiler knows of it is recorded too.
        details: Of `torch_profiler.DETAILS`; each makes the recording slower.
    """

    def __init__(self, path: Path, device: str, details: tuple[str, ...] = USUAL_DETAILS) -> None:
        self.path = path
        self.lead_in = 0 if device == "cpu" else 1
        """Iterations that it must see before those that it records."""
        self.facts: dict[str, str] = {}
        """What was on, and how whole the recording is."""
        self.iterations = 0
        """Complete ones."""
        self.skipped = 0
        """Iterations, or parts of them, that the program recorded itself."""
        self.written = False
        """Whether `path` holds their trace."""
        self.failure: str | None = None
        """Why there is no trace although iterations were complete, in a sentence."""
        self.whole_program = WholeProgram(self)
        """Records a program that may mark no iterations."""
        self._notes: list[str] = []
        self._made_ns = time.time_ns()
        self._device = device
        self._details = details
        self._profiler: Any = None
        self._prepared: Any = None
        """A profiler that is ready to record."""
        self._step: Any = None
        self._in_step = False
        self._marks_steps = True
        self._halted = False
        self._thread = 0
        self._patches = Patches()

    @property
    def remarks(self) -> str | None:
        """What has to be said about the trace, in a sentence; None where there is nothing."""
        notes = [*filter(None, (self.whole_program.remark, self.failure)), *self._notes]
        if self.skipped:
            left = "the timeline lacks" if self.written else "there is no timeline:"
            notes.append(
                f"{left} {self.skipped} iterations that the program recorded with torch.profiler "
                "itself"
            )
        return "; ".join(notes) or None

    def start(self) -> None:
        """Make ready; recording begins with the first iteration that the program leaves to us."""

    def begin_iteration(self, index: int) -> None:
        """Open the mark of one step, and begin to record if that was not possible before."""
        if index < self.lead_in:
            self._make_ready()
            return
        if not self.is_recording and not self.written:
            self.begin_to_record()
        if self.is_recording:
            self.open_step()
        else:
            self.skipped += 1

    def end_iteration(self, index: int) -> None:
        """Close the mark of one step."""
        self.close_step()

    def stop(self, complete: bool) -> None:
        """Stop recording and write the trace of the complete iterations."""
        self.end_recording(keep=True)

    def begin_to_record(self) -> None:
        """Start torch.profiler, unless the program uses it now."""
        if self._prepared is None:
            self._make_ready()
        self._patches.restore()
        profiler, self._prepared = self._prepared, None
        if profiler is not None:
            self._profiler = self._told("start_trace", profiler)
        if self._profiler is not None:
            watch_for_others(self._patches, self._thread, self._give_way)

    def _make_ready(self) -> None:
        """Prepare torch.profiler, unless the program uses it now."""
        if self._halted:
            self.end_recording(keep=False)
        if another_is_at_work():
            return
        self._thread = get_ident()
        self._marks_steps = not program_marks_steps()
        details = self._details
        if STACKS in details and is_beyond_stacks():
            details = tuple(detail for detail in details if detail != STACKS)
            self._notes = ["the timeline has no stacks: torch takes only names of files in UTF-8"]
        self.facts["timeline_details"] = ", ".join(details) or "none"
        if details:
            self.facts["timeline_overhead"] = (
                "details take time of the host's, more so stacks and memory: idle time of a device "
                "is longer than without"
            )
        self._prepared = self._told("prepare_trace", made(self._device, details))
        if self._prepared is not None:
            watch_for_others(self._patches, self._thread, self._give_way)

    def open_step(self) -> None:
        """Mark the beginning of a step, unless the program marks its steps itself."""
        from torch.profiler import record_function

        self._in_step = True
        if self._marks_steps:
            self._step = record_function(f"ProfilerStep#{self.iterations}")
            self._step.__enter__()

    def close_step(self) -> None:
        """Mark the end of a step, which is complete."""
        if self._in_step:
            self._close_mark()
            self.iterations += 1

    def end_recording(self, *, keep: bool) -> None:
        """Stop, and write the trace of the complete iterations if it is to be kept."""
        self.halt()
        self._drop_prepared()
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None and self.iterations and keep:
                self._export(profiler)
        except (RuntimeError, OSError) as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
        self._halted = False
        if not keep:
            self.iterations = 0

    def halt(self) -> None:
        """Stop recording; what was recorded stays until `end_recording`."""
        self._patches.restore()
        if self._profiler is None or self._halted:
            return
        self._halted = True
        try:
            self._profiler.stop()
        except RuntimeError as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
            self._profiler = None
        self._close_mark()  # too late for the profiler, which marks the step as unfinished

    @property
    def is_recording(self) -> bool:
        """Whether torch.profiler runs for us now."""
        return self._profiler is not None and not self._halted

    def _told(self, action: str, profiler: Any) -> Any:
        """Return `profiler` once it was told to do something, None where it could not."""
        try:
            getattr(profiler, action)()
        except RuntimeError as err:
            self.failure = f"torch.profiler failed: {_first_line(err)}"
            return None
        return profiler

    def _drop_prepared(self) -> None:
        """End what was made ready and never recorded."""
        profiler, self._prepared = self._prepared, None
        if profiler is not None:
            self._patches.restore()
            with suppress(RuntimeError):
                profiler.start_trace()
                profiler.stop_trace()

    def _give_way(self) -> None:
        if self._profiler is not None or self._prepared is not None:
            self.skipped += self._in_step
            self.end_recording(keep=True)

    def _close_mark(self) -> None:
        step, self._step, self._in_step = self._step, None, False
        if step is not None:
            step.__exit__(None, None, None)

    def _export(self, profiler: Any) -> None:
        # Another process may have been told the same folder, and be at it in this moment.
        partial = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        if self.path.suffix == ".gz":
            partial = partial.with_suffix(".partial.gz")
        if self._device != "cpu":
            facts, note = look_at(profiler.profiler.kineto_results.events())
            self.facts |= facts
            self._notes += [note] if note else []
        try:
            profiler.export_chrome_trace(str(partial))
            if _changed_since(self._made_ns, self.path):
                stem, _, suffix = self.path.name.partition(".")
                mark = f"{platform.node() or 'host'}_{os.getpid()}"
                self.path = self.path.with_name(f"{stem}_{mark}.{suffix}")
            partial.replace(self.path)
            self._made_ns = time.time_ns()
            self.written = True
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _changed_since(moment_ns: int, path: Path) -> bool:
    """Return whether another process has written `path` since then."""
    try:
        return path.stat().st_mtime_ns >= moment_ns
    except OSError:
        return False


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
