"""What a recorder must offer to be driven over the measured iterations."""

from __future__ import annotations

from typing import Protocol


class Instrument(Protocol):
    """Something that records while iterations run, such as an operation tracker or a timeline.

    The driver calls `start` once before the first iteration that is measured, then pairs of
    `begin_iteration` and `end_iteration`, and `stop` once, whatever happened. All calls come
    from the thread that runs the workload.
    """

    def start(self) -> None:
        """Prepare and begin; the next iteration is the first measured one."""

    def begin_iteration(self, index: int) -> None:
        """Measured iteration `index`, counted from 0, begins."""

    def end_iteration(self, index: int) -> None:
        """Measured iteration `index` is complete."""

    def stop(self, complete: bool) -> None:
        """Undo everything `start` did. `complete`: all asked iterations were measured."""
