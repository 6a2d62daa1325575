"""The time of a device, by events in its streams.

What lies between two events on a device is what the device did there, only as long as the device
is behind the host: one that waits for work waits within the interval too, and it then holds the
time that the host took, ours included. So before a call that is to be timed the device is given
something to do (`lag.Lag`), long enough for the host to put the whole call behind it. What the
events themselves take is known from a trial (`lag.Lag.event_ns`) and taken off. Whether the lag
was enough is looked at where it is not certain: a call whose first event the device had passed
before the last one was there is doubtful.

Nothing here may raise in the midst of a program, touch a device that the program has not touched
(a fork would then be impossible), or leave anything in a graph that the program captures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.tracking.device import NO_MARK, DeviceFault, Mark, Marks, Milliseconds, Moment
from unified_prof.tracking.launch_delay import Lag, Place
from unified_prof.tracking.torch_names import Anomalies, in_one_line

_LISTS = (list, tuple)


class EventClock:
    """A device's own time: events recorded where the work of a call goes, known by their numbers.

    Args:
        kind: The type of the device.
        module: torch's module of it.
        anomalies: Told of events that could not be taken or read.
        used: The devices of the kind that the program uses; the clock adds those it sees.
    """

    def __init__(self, kind: str, module: Any, anomalies: Anomalies, used: set[int]) -> None:
        import torch

        self._torch = torch
        self._kind = kind
        self._module = module
        self._anomalies = anomalies
        self.used = used
        self.lag: Lag | None = None
        """Keeps the device behind the host; None: it is as the program has it."""
        self.event_ms = 0.0
        """What lies between two events besides the work, once the device was held back."""
        self.in_capture = 0
        """Calls that were captured into a graph, and so not timed."""
        self._untouched = True
        self._several = int(module.device_count()) > 1
        self.is_capturing: Callable[[], bool] = getattr(
            module, "is_current_stream_capturing", _never
        )
        """Whether what is called now goes into a graph of the program's."""
        self._current, self._stream_of = _places(torch, module)
        self._numbers = itertools.count()
        self._events: dict[Mark, tuple[Any, int]] = {}
        self._pool: dict[int, list[Any]] = {}
        """Events by device, to be recorded again."""
        self._calls: dict[Mark, tuple[Place, Any, int]] = {}
        """For each call under way: where it runs, what it is, and when the host began it."""
        self._before: dict[Mark, Mark] = {}
        """For each call that was made to wait: the event before that."""
        self._doubtful: set[Mark] = set()
        self.timed = 0
        """Calls and nodes that were timed..."""
        self.caught_up = 0
        """...and those among them within which the device had caught up with the host."""

    def mark(self) -> Mark:
        """Record an event in the current stream of the current device."""
        return NO_MARK if self._is_closed() else self._record(self._current())

    def moment(self) -> Moment:
        """Record an event on every device that the program uses."""
        if self._is_closed():
            return {}
        if not self._several:
            here = self._current()
            return {here: self._record(here)}
        return {device: self._record(device) for device in sorted(self.used | {self._current()})}

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any], what: Any) -> Mark:
        """Begin to time a call with these arguments; `what` tells calls of a kind."""
        if self._is_closed():
            self.in_capture += not self._untouched
            return NO_MARK
        device = self._device_of(args, kwargs) if self._several else self._current()
        return self._begin(device, what)

    def follow(self, previous: Mark, what: Any) -> tuple[Mark, Mark]:
        """End what began with the mark `previous` where something else begins; return both marks.

        The thread has the device and stream of both, as those of the autograd engine have.
        """
        if self._is_closed():
            return NO_MARK, NO_MARK
        start = self._begin(self._current(), what, previous)
        return self._before.get(start, start), start

    def after(self, start: Mark) -> Mark:
        """End what was begun with the mark `start`."""
        if start not in self._calls:
            return NO_MARK
        if self.is_capturing():  # it was begun before: its end would become a part of the graph
            del self._calls[start]
            return NO_MARK
        end = self._record(self._calls[start][0][0])
        self._finish(start)
        return end

    def _finish(self, start: Mark) -> None:
        """See, once its last event is recorded, whether the device was behind all the time."""
        if start not in self._calls:
            return
        place, what, began_ns = self._calls.pop(start)
        now_ns = perf_counter_ns()
        lag = self.lag
        if lag is not None:
            lag.took(what, now_ns - began_ns)
        if lag is None or not lag.covers(place, now_ns):
            try:
                caught_up = bool(self._events[start][0].query())
            except Exception as error:
                caught_up = True
                self._note("event_not_read", error)
            if caught_up:
                self._doubtful.add(start)
                self.caught_up += 1

    def is_doubtful(self, starts: Marks) -> NDArray[np.bool_]:
        """Whether the device may have waited for the host within what began at each of `starts`."""
        return np.array([int(start) in self._doubtful for start in starts], np.bool_)

    def before_wait(self, starts: Marks) -> Marks:
        """Return, for each call, the mark where it came up: before it was made to wait."""
        return [self._before.get(int(start), int(start)) for start in starts]

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        """Return the device time between two events in milliseconds; NaN where it is not known."""
        if start == NO_MARK or end == NO_MARK:
            return float("nan")
        (first, here), (last, there) = self._events[start], self._events[end]
        if here != there:  # devices have no common time
            return float("nan")
        try:
            return float(first.elapsed_time(last))
        except Exception as error:  # of what failed
            self._note("event_not_read", error)
            return float("nan")

    def all_elapsed_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return the device time between each of `starts` and its end in milliseconds."""
        pairs = zip(starts, ends, strict=True)
        return np.array([self.elapsed_ms(int(a), int(b)) for a, b in pairs], np.float64)

    def work_ms(self, starts: Marks, ends: Marks) -> Milliseconds:
        """Return what the work between marks adds to the time of a device that has enough to do.

        That is its kernels and the gaps behind them, without what the two events take.
        """
        found: Milliseconds = np.maximum(self.all_elapsed_ms(starts, ends) - self.event_ms, 0.0)
        return found

    def elapsed_between_ms(self, start: Moment, end: Moment) -> float:
        """Return the time between two moments: that of the device where it is longest."""
        spans = [self.elapsed_ms(start[one], end[one]) for one in start if one in end]
        return max(spans, default=float("nan"))

    def synchronize(self) -> None:
        """Wait for all devices that were used.

        Raises:
            DeviceFault: An operation failed; it is told to whoever waits first.
        """
        if self._untouched:
            return
        try:
            for device in sorted(self.used | {self._current()}) if self._several else (None,):
                self._module.synchronize(device)
            if self.lag is not None and not self.lag.held():
                self._doubtful.update(self._events)
        except Exception as error:
            raise DeviceFault(in_one_line(error)) from error

    def get_ahead_no_more(self) -> None:
        """Let the device catch up, so that what comes is as if nobody had held it back."""
        if self.lag is not None:
            self.synchronize()
            self.lag.forget()

    def forget(self) -> None:
        """Keep all events for other marks; nobody asks for these any more."""
        for event, device in self._events.values():
            self._pool.setdefault(device, []).append(event)
        self._events.clear()
        self._calls.clear()
        self._before.clear()
        self._doubtful.clear()

    def _begin(self, device: int, what: Any, previous: Mark = NO_MARK) -> Mark:
        """Begin to time something, and end `previous` before the device is held back for it."""
        place = self._place(device)
        lag, before = self.lag, NO_MARK
        began_ns = perf_counter_ns()
        if lag is not None and lag.is_needed(place, what, began_ns):
            before = self._record(device)
            self._finish(previous)
            try:
                lag.hold_back(place, what)
            except Exception as error:  # the program is told of it by its own next call
                self.lag = None
                self._anomalies.add("device_not_held_back", in_one_line(error))
            began_ns = perf_counter_ns()
            start = self._record(device)
        else:
            start = self._record(device)
            self._finish(previous)
        if start != NO_MARK:
            self.timed += 1
            self._calls[start] = (place, what, began_ns)
            if before != NO_MARK:
                self._before[start] = before
        return start

    def _place(self, device: int) -> Place:
        return device, int(self._stream_of(device).stream_id)

    def _is_closed(self) -> bool:
        """Whether no event may be recorded now."""
        if self._untouched:
            if not getattr(self._module, "is_initialized", _always)():
                return True
            self._untouched = False
        return self.is_capturing()

    def _record(self, device: int) -> Mark:
        """Record an event in the current stream of a device."""
        try:
            here = device == self._current()
            event = self._pooled(device)
            if here:
                event.record()
            else:
                event.record(self._stream_of(device))
        except Exception as error:  # the program is told of it by its own next call
            self._note("event_not_recorded", error)
            return NO_MARK
        number = next(self._numbers)  # of whichever thread of the autograd engine asks
        self._events[number] = (event, device)
        self.used.add(device)
        return number

    def _pooled(self, device: int) -> Any:
        try:
            return self._pool[device].pop()
        except (KeyError, IndexError):
            pass
        # torch.Event serves every accelerator from torch 2.6 on; each has its own before that.
        if hasattr(self._torch, "accelerator"):
            return self._torch.Event(f"{self._kind}:{device}", enable_timing=True)
        return self._module.Event(enable_timing=True)

    def _device_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the device of the first tensor among the arguments, else the one asked for."""
        for one in (*args, *kwargs.values()):
            found = one
            if type(one) in _LISTS:
                found = next((each for each in one if isinstance(each, self._torch.Tensor)), None)
            if isinstance(found, self._torch.Tensor):
                try:
                    place = found.device
                except Exception:  # of a subclass that has none
                    continue
                if place.type == self._kind and place.index is not None:
                    return int(place.index)
        asked = kwargs.get("device")
        if isinstance(asked, int):
            return asked
        if asked is not None:
            try:
                place = self._torch.device(asked)
            except Exception:  # the call itself will say so
                return self._current()
            if place.type == self._kind and place.index is not None:
                return int(place.index)
        return self._current()

    def _note(self, name: str, error: Exception) -> None:
        self._anomalies.add(name, f"an operation is not timed: {in_one_line(error)}")


def _places(torch: Any, module: Any) -> tuple[Callable[[], int], Callable[[int], Any]]:
    """Return what tells the current device, and the current stream of one, as this torch has it."""
    accelerator = getattr(torch, "accelerator", None)
    for name in ("current_device_index", "current_device_idx"):  # the latter up to torch 2.7
        current = getattr(accelerator, name, None)
        if current is not None:
            break
    return (
        current or module.current_device,
        getattr(accelerator, "current_stream", None) or module.current_stream,
    )


def _never() -> bool:
    return False


def _always() -> bool:
    return True
