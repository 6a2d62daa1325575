"""What a recorder must offer to be driven over the measured iterations.

Take a program's iterations through stages, each with its own instruments.

How often what was measured so far is saved: at first at once, then at little cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from unified_prof.tracking.interference import collection_held_off


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


@dataclass(frozen=True, slots=True)
class Stage:
    """Some consecutive iterations and what records them."""

    name: str
    """What goes on, in a few words for the user."""
    instruments: tuple[Instrument, ...]
    iterations: int


class Driver:
    """Moves from iteration to iteration and from stage to stage.

    Whoever knows where iterations end (a provider loop, optimizer steps, `step()`) calls `begin`
    once, `boundary` at each end, and `close` when no more will come.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        progress: Callable[[str], None],
        on_finished: Callable[[], None] = lambda: None,
        on_failure: Callable[[Stage, Exception], None] = lambda _stage, _error: None,
        on_iteration: Callable[[Sequence[Instrument]], None] = lambda _: None,
    ) -> None:
        """Take the stages in their order.

        Args:
            stages: What is measured, and how often.
            progress: Told what begins.
            on_finished: Called once all stages are complete.
            on_failure: Told what an instrument raised, and in which stage.
            on_iteration: Called when an iteration is complete and the next has not begun, but not
                after the last one; told the instruments that are not stopped.
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
        """What an instrument raised first; the rest of its stage was not measured."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will be measured."""
        return self.finished or self._closed

    @property
    def finished(self) -> bool:
        """Whether all stages are complete."""
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
            if self._done < self._stages[self._at].iterations:
                self._on_iteration(self._open)
                self._begin_iteration()
                return
            self._leave_stage(complete=True)
            self._at += 1
            if not self.finished:
                self._on_iteration(())
            self._enter_stage()

    def restart(self, stage: int) -> None:
        """Give up what was begun and go back to the first iteration of `stage`."""
        if not self._closed:
            self._give_up_stage()
            self._at = stage
            with self._guarded():
                self._enter_stage()

    def close(self) -> None:
        """End for good; an iteration under way does not count."""
        self._closed = True
        self._give_up_stage()

    def abandon(self) -> None:
        """End without touching any instrument."""
        self._closed = True
        self._open.clear()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let no failure of an instrument reach the program, nor the stages that follow."""
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

    def _leave_stage(self, *, complete: bool) -> None:
        while self._open:
            self._open.pop().stop(complete)


SHARE = 0.02
"""Part of the time since the beginning that saving may take."""


class Saving:
    """Keeps the cost of saving to a share of the time.

    The first time is free of this rule: after it there is something rather than nothing.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent = self._last = 0.0
        self._saved: object = None

    @contextmanager
    def of(self, measured: object) -> Iterator[bool]:
        """Yield whether to save now; the time of a block that does counts.

        Args:
            measured: What there is; it is saved only where it differs from the last time.
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
