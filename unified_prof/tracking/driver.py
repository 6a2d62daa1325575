"""Divide a program's iterations into stages, and run the instruments of each stage."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from unified_prof.tracking.device import collection_held_off

# Measurements whose method `abandon` is called in forked children, where records would be lost.
MEASURING: weakref.WeakSet[Any] = weakref.WeakSet()


def _abandon() -> None:
    for measurement in list(MEASURING):
        measurement.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


class Instrument:
    """Records while iterations run, such as an operation tracker or a timeline.

    The driver calls `start` once before the first measured iteration, `begin_iteration` and
    `end_iteration` for each measured iteration, and finally `stop`, also after errors. All calls
    are made in the thread that runs the workload.
    """

    def start(self) -> None:
        """Prepare and start; the next iteration is the first measured one."""

    def begin_iteration(self, index: int) -> None:
        """Begin measured iteration `index`, counted from 0."""

    def end_iteration(self, index: int) -> None:
        """End measured iteration `index`."""

    def stop(self, complete: bool) -> None:
        """Undo `start`; `complete` is True if all requested iterations were measured."""


class Stage(Struct, frozen=True):
    """Consecutive iterations and their instruments."""

    name: str
    """Description for progress messages."""
    instruments: tuple[Instrument, ...]
    iterations: int
    is_over: Callable[[], bool] = lambda: False
    """Returns True if the stage ends before that number of iterations."""


class Driver:
    """Runs the stages over the iterations of a program.

    The code that knows where iterations end (a provider loop, optimizer steps, `step()`) calls
    `begin` once, `boundary` at the end of each iteration, and `close` at the end of the program.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        progress: Callable[[str], None],
        on_finished: Callable[[], None] = lambda: None,
        on_failure: Callable[[Stage, Exception], None] = lambda _stage, _error: None,
        on_iteration: Callable[[Sequence[Instrument]], None] = lambda _: None,
    ) -> None:
        """Set up the stages.

        Args:
            stages: Stages in order; those without iterations are skipped.
            progress: Called with the description of a stage when it begins.
            on_finished: Called once all stages are complete.
            on_failure: Called with the stage and the exception of an instrument.
            on_iteration: Called between two iterations, but not after the last one, with the
                running instruments.
        """
        self._stages = tuple(stage for stage in stages if stage.iterations > 0)
        self._progress = progress
        self._on_finished = on_finished
        self._on_failure = on_failure
        self._on_iteration = on_iteration
        self._at = 0
        self._done = 0
        self._open: list[Instrument] = []
        self._closed = False
        self.error: Exception | None = None
        """First exception of an instrument; the rest of its stage was not measured."""

    @property
    def ended(self) -> bool:
        """True if nothing more will be measured."""
        return self.finished or self._closed

    @property
    def finished(self) -> bool:
        """True if all stages are complete."""
        return self._at >= len(self._stages)

    def begin(self) -> None:
        """Begin the first iteration."""
        with self._guarded():
            self._enter_stage()

    def boundary(self) -> None:
        """End the current iteration and begin the next."""
        if self.finished or self._closed:
            return
        with self._guarded():
            for instrument in reversed(self._open):
                instrument.end_iteration(self._done)
            self._done += 1
            stage = self._stages[self._at]
            if self._done < stage.iterations and not stage.is_over():
                self._on_iteration(self._open)
                self._begin_iteration()
                return
            while self._open:
                self._open.pop().stop(complete=True)
            self._at += 1
            if not self.finished:
                self._on_iteration(())
            self._enter_stage()

    def restart(self, stage: int) -> None:
        """Stop the current stage and go back to the first iteration of `stage`."""
        if not self._closed:
            self._give_up_stage()
            self._at = stage
            with self._guarded():
                self._enter_stage()

    def close(self) -> None:
        """Stop the current stage; discard an unfinished iteration."""
        self._closed = True
        self._give_up_stage()

    def abandon(self) -> None:
        """End the measurement without calling any instrument."""
        self._closed = True
        self._open.clear()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Catch failures of instruments, so that the program and later stages continue."""
        try:
            yield
        except Exception as error:
            self._failed(error)
            self._give_up_stage()
            if not self.ended:
                self._at += 1
                with self._guarded():
                    self._enter_stage()

    def _give_up_stage(self) -> None:
        while self._open:
            try:
                self._open.pop().stop(complete=False)
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.error = self.error or error
        if not self.finished:
            self._on_failure(self._stages[self._at], error)

    def _enter_stage(self) -> None:
        self._done = 0
        if self.finished:
            self._on_finished()
            return
        stage = self._stages[self._at]
        self._progress(f"{stage.name} ({stage.iterations})")
        for instrument in stage.instruments:
            self._open.append(instrument)
            instrument.start()
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        for instrument in self._open:
            instrument.begin_iteration(self._done)


SHARE = 0.02  # Maximum share of the elapsed time for saving.


class Saving:
    """Limits the time spent on saving to a share of the elapsed time; the first save is free."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent = self._last = 0.0
        self._saved: object = None

    @contextmanager
    def when_due(self, measured: object) -> Iterator[bool]:
        """Context manager that yields True if the block should save, and times the block.

        Nothing is saved if `measured`, the state of the measurement, equals the last one.
        """
        if measured == self._saved or not self._can_be_afforded():
            yield False
            return
        begin = time.perf_counter()
        self._saved = measured
        try:
            with collection_held_off():
                yield True
        finally:
            self._last = time.perf_counter() - begin
            self._spent += self._last

    def _can_be_afforded(self) -> bool:
        elapsed = time.perf_counter() - self._began
        return self._last == 0 or self._spent + self._last <= SHARE * elapsed
