"""Programs that mark no iterations: their timeline is of the whole run, as far as it goes."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_prof.tracking.watch.timeline import TimelineInstrument

_MOST_OPERATIONS = 20_000
"""Of a program that marks no iterations: a trace of more is too large to be of use."""


class WholeProgram:
    """Records a program from its first module call on, in case it never marks an iteration.

    It stands beside the instruments of a program's first iteration and is told of every operation
    there. Where that iteration ends with an optimizer's step its recording is thrown away: what
    comes then are the iterations to be recorded.
    """

    def __init__(self, timeline: TimelineInstrument) -> None:
        self.is_all = False
        """Whether the program has ended without marking an iteration."""
        self._timeline = timeline
        self._open = False
        self._operations = 0
        self._module_call: Any = None

    def start(self) -> None:
        """Wait for the first module call."""
        from torch.nn import Module

        self._module_call = Module._call_impl.__code__
        self._open = True

    def begin_iteration(self, index: int) -> None:
        """Nothing to do before the first module call."""

    def end_iteration(self, index: int) -> None:
        """Close the one step there is."""
        self._timeline.close_step()

    def stop(self, complete: bool) -> None:
        """Write the recording of a program that is one iteration."""
        self._open = False
        if self.is_all:
            self._timeline.end_recording(keep=True)
        else:  # kept until later iterations are recorded, or the program turns out to have none
            self._timeline.halt()
            self._timeline.skipped = 0

    def is_all_there_is(self) -> None:
        """The program has ended, and nothing later than its first iteration is to come."""
        self.is_all = True
        if not self._open:
            self._timeline.end_recording(keep=True)

    def saw(self, frame: FrameType | None) -> None:
        """Take note of an operation that is called in `frame`."""
        if not self._open:
            return
        if self._operations:
            self._operations += 1
            if self._operations > _MOST_OPERATIONS and self._timeline.is_recording:
                self._open = False
                self._timeline.close_step()
                self._timeline.halt()
            return
        while frame is not None and frame.f_code is not self._module_call:
            frame = frame.f_back
        if frame is not None:
            self._operations = 1
            self._timeline.begin_to_record()
            if self._timeline.is_recording:
                self._timeline.open_step()
            else:
                self._timeline.skipped += 1

    @property
    def remark(self) -> str | None:
        """What there is to know of the trace of a program that marked no iterations."""
        if not self.is_all or not self._timeline.written:
            return None
        held = "all of it from its first module call on"
        if self._operations > _MOST_OPERATIONS:
            held = f"its first {_MOST_OPERATIONS} operations"
        return f"the program marked no iterations (unified_prof.step()), the timeline holds {held}"
