"""Records the measured iterations with torch.profiler, for the timeline report."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from unified_prof.errors import CaptureError
from unified_prof.tracking.torch_internals import profiler_is_running

SHAPES, STACKS, MEMORY = DETAILS = ("shapes", "stacks", "memory")
"""What can be recorded besides times."""


class TimelineInstrument:
    """Runs torch.profiler over the iterations and leaves its trace in a file.

    Each iteration is marked as torch.profiler marks its steps. What the profiler takes for
    itself, starting and stopping, lies outside of them.

    Args:
        path: The trace; gzip if it ends in `.gz`. It appears only if an iteration was complete.
        device: A torch device type; what torch.profiler knows of it is recorded too.
        details: Of `DETAILS`; each makes the recording slower.
    """

    def __init__(self, path: Path, device: str, details: tuple[str, ...] = DETAILS) -> None:
        self.path = path
        self.iterations = 0
        """Complete ones."""
        self.written = False
        """Whether `path` holds their trace."""
        self.failure: str | None = None
        """Why there is no trace although iterations were complete, in a sentence."""
        self._device = device
        self._details = details
        self._profiler: Any = None
        self._step: Any = None

    def start(self) -> None:
        """Begin to record.

        Raises:
            CaptureError: another profiler is recording in this process.
        """
        from torch.profiler import ProfilerActivity, profile

        if profiler_is_running():
            raise CaptureError(
                "the timeline cannot be recorded: another torch.profiler is recording already",
                hint="run the workload without its own profiler",
            )
        activities = [ProfilerActivity.CPU]
        activity = getattr(ProfilerActivity, self._device.upper(), None)
        if activity not in (None, *activities):
            activities.append(activity)
        profiler = profile(
            activities=activities,
            record_shapes=SHAPES in self._details,
            profile_memory=MEMORY in self._details,
            with_stack=STACKS in self._details,
        )
        profiler.start()
        self._profiler = profiler

    def begin_iteration(self, index: int) -> None:
        """Open the mark of one step."""
        from torch.profiler import record_function

        self._step = record_function(f"ProfilerStep#{index}")
        self._step.__enter__()

    def end_iteration(self, index: int) -> None:
        """Close the mark of one step."""
        self._close_step()
        self.iterations = index + 1

    def stop(self, complete: bool) -> None:
        """Stop recording and write the trace of the complete iterations."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        try:
            profiler.stop()
            self._close_step()  # too late for the profiler, which marks the step as unfinished
            if self.iterations:
                self._export(profiler)
        except (RuntimeError, OSError) as err:
            self.failure = f"torch.profiler failed: {str(err).splitlines()[0]}"

    def _close_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _export(self, profiler: Any) -> None:
        partial = self.path.with_name(f".{self.path.name}")
        if self.path.suffix == ".gz":
            partial = partial.with_suffix(".partial.gz")
        try:
            profiler.export_chrome_trace(str(partial))
            partial.replace(self.path)
            self.written = True
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
