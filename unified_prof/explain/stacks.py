"""Call stacks of a recording: device time by launching operation, host time by thread."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Ints
from unified_prof.recording.breakdowns import (
    Frame,
    Stacks,
    StackSums,
    frames_of_place,
    path_samples,
    place_of,
    stacks_of_calls,
)
from unified_prof.recording.calls import SIZES
from unified_prof.recording.framework import BACKWARD, NONE, Framework
from unified_prof.recording.model import Place
from unified_prof.recording.python_frames import ADDRESS
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import possible

# Between an operation and the operations of its backward pass.
BACKWARD_PASS = Frame("(backward)", "pass")
_NO_NAME = "(unnamed)"
_NUMBERED_STEP = re.compile(r"(ProfilerStep)\s*[#*]\s*\d+$")
_PYTHON = re.compile(r"(?P<file>[^\n]+?)\((?P<line>\d+)\)(?:: (?P<name>.+))?$")


def measures(recording: Recording) -> tuple[str, ...]:
    """Return the available weights of stacks."""
    has_framework = recording.framework is not None
    has_host = has_framework or len(recording.host_calls) or len(_marks(recording)[0])
    known = {
        "device": recording.clock == "device",
        "host": has_host,
        "memory": has_framework and any(map(recording.packed_calls.count_measured, SIZES)),
    }
    return tuple(name for name, is_known in known.items() if is_known)


def stacks(recording: Recording, measure: str, by: Place | None) -> Stacks:
    """Return the stacks weighted with one of `measures`.

    `by` selects the frames above operations: modules or lines; None: what was recorded. Host time
    ignores it: its stacks contain all recorded ranges.

    Raises:
        UsageError: The selected frames were not recorded.
    """
    if measure == "host":
        return host_stacks(recording)
    path = str(recording.source.path)
    if measure == "memory":
        return stacks_of_calls(recording.calls, measure, place_of(recording.calls, by, path))
    if not recording.has_operations:
        if by is not None:
            place_of(recording.calls, by, path)
        # Stacks of kernels by operator, for recordings without framework operations.
        work, gathering = recording.work, StackSums()
        _ = work.operator_numbers, work.kernel_numbers
        texts = work.labels.texts
        frames = _operator_frames(texts)
        for window in work.windows():
            operator, kernel = window.operator.astype(np.int64), window.kernel
            _add_kernels(gathering, operator, kernel, window.duration_ns, texts, frames)
        return gathering.stacks("device")
    return _device_stacks(recording, place_of(recording.calls, by, path))


class _Operations:
    """The operations of a framework as frames above kernels."""

    def __init__(self, framework: Framework, place: Place | None) -> None:
        self._framework, self._place = framework, place
        ranges = np.arange(len(framework), dtype=np.int64)
        operation = framework.is_operation(ranges)
        inside = operation & (framework.parent != NONE)
        inside[inside] = operation[framework.parent[inside]]
        parent = np.where(inside, framework.parent, NONE)
        self._names, self._codes = framework.names(ranges)
        self._path, self._up, self._last = intervals.paths(parent, self._codes)

    def above(
        self, calls: Ints, named: Ints, backward: Bools, innermost: Ints
    ) -> tuple[Ints, Callable[[int], tuple[Frame, ...]]]:
        """Return a key for the frames above each device task, and a function from key to frames.

        The module or line of `calls` comes first, followed by the operation `named` (NONE if it
        contains `innermost`, the operation that launched the task). `backward` marks tasks of its
        backward pass.
        """
        places, place = self._places(calls)
        codes, paths = np.append(self._codes, NONE), np.append(self._path, NONE)
        name_sizes, path_sizes = len(self._names) + 1, len(self._up) + 1
        key = place * name_sizes + codes[named] + 1
        key = (key * 2 + backward) * path_sizes + paths[innermost] + 1

        def frames(number: int) -> tuple[Frame, ...]:
            number, path = divmod(number, path_sizes)
            number, again = divmod(number, 2)
            at, name = divmod(number, name_sizes)
            first = (self._frame(name - 1),) if name else ()
            return (*places[at], *first, *(BACKWARD_PASS,) * again, *self._frames_to(path - 1))

        return key, frames

    def _places(self, calls: Ints) -> tuple[list[tuple[Frame, ...]], Ints]:
        if self._place is None:
            return [()], np.zeros(len(calls), np.int64)
        of = self._framework.modules if self._place == "module" else self._framework.stacks
        texts, number = of(calls)
        return [frames_of_place(self._place, text) for text in texts], number.astype(np.int64)

    def _frame(self, code: int) -> Frame:
        return Frame(self._names[code] or _NO_NAME, "operation")

    def _frames_to(self, path: int) -> tuple[Frame, ...]:
        result = []
        while path != NONE:
            result.append(self._frame(int(self._last[path])))
            path = int(self._up[path])
        return tuple(result[::-1])


def _device_stacks(recording: Recording, place: Place | None) -> Stacks:
    """Return device time by launching operations, down to the kernel.

    Backward tasks are below the forward operation of their autograd node, as in other breakdowns,
    and there below the operations of the backward pass.
    """
    work, framework, captured = recording.work, recording.framework, recording.work.captured
    gathering = StackSums()
    kernel, operator = work.kernel.to_array(), work.operator.to_array()
    duration = work.duration_ns.to_array()
    texts = work.labels.texts
    rest = np.ones(len(work), bool)
    if captured is not None:
        replayed = captured.call != NONE
        rest &= ~replayed
        calls = captured.call[replayed]
        key, frames = _Operations(captured.framework, place).above(
            calls, calls, captured.passes[replayed] == BACKWARD, np.full(len(calls), NONE)
        )
        _add_kernels(gathering, key, kernel[replayed], duration[replayed], texts, frames)
    if framework is None:
        key, frames = operator.astype(np.int64), _operator_frames(texts)
    else:
        call, passes = (column.to_array().astype(np.int64) for column in work.launches)
        connection = work.connection.to_array()
        # The outermost range may be the one that launched the task.
        apart = np.where(framework.outermost(connection) == call, NONE, call)
        key, frames = _Operations(framework, place).above(
            call, apart, (passes == BACKWARD) & (apart != NONE), framework.innermost(connection)
        )
    _add_kernels(gathering, key[rest], kernel[rest], duration[rest], texts, frames)
    return gathering.stacks("device")


def _operator_frames(texts: list[str]) -> Callable[[int], tuple[Frame, ...]]:
    """Return a function from the number of an operator to its frame."""
    return lambda number: (Frame(texts[number], "operation"),)


def _add_kernels(
    gathering: StackSums,
    key: Ints,
    kernel: NDArray[np.integer],
    duration_ns: NDArray[np.integer],
    texts: list[str],
    frames: Callable[[int], tuple[Frame, ...]],
) -> None:
    """Add device tasks below the frames that their keys identify."""
    outer, which = np.unique(key, return_inverse=True)
    pairs, at = np.unique(which * len(texts) + kernel, return_inverse=True)
    sums = np.bincount(at, duration_ns, minlength=len(pairs)).astype(np.int64).tolist()
    counts = np.bincount(at, minlength=len(pairs)).tolist()
    above = [frames(number) for number in outer.tolist()]
    for pair, weight, count in zip(pairs.tolist(), sums, counts, strict=True):
        before, name = above[pair // len(texts)], texts[pair % len(texts)]
        if before and before[-1].name == name:
            before = before[:-1]  # collectives, and kernels with the name of their operator
        gathering.add((*before, Frame(name, "kernel")), weight, count)


def host_stacks(recording: Recording) -> Stacks:
    """Return the self time of recorded ranges and calls of each host thread."""
    parts = [_ranges(recording), _host_calls(recording)]
    thread, start, end, name, kind = (np.concatenate(one) for one in zip(*parts, strict=True))
    rank = np.repeat([0, 1], [len(part[0]) for part in parts])
    order = intervals.call_order(thread, start, end, rank)
    thread, start, end, name, kind = (one[order] for one in (thread, start, end, name, kind))
    parent = intervals.parents(thread, start, end)
    inside = parent != NONE
    # Due to rounding, a call may end slightly after the one around it.
    within = np.minimum(end, end[parent])[inside] - start[inside]
    taken = np.bincount(parent[inside], within, minlength=len(start)).astype(np.int64)
    own = np.maximum(end - start - taken, 0)
    codes, label = np.unique(name * 2 + (kind == _IN_PYTHON), return_inverse=True)
    frames = [
        _host_frame(recording.strings.get(code // 2), python=bool(code % 2))
        for code in codes.tolist()
    ]
    # Steps that differ only in their number are one frame.
    distinct = list(dict.fromkeys(frames))
    of = {frame: number for number, frame in enumerate(distinct)}
    label = np.array([of[frame] for frame in frames], np.int64)[label]
    threads, number = np.unique(thread, return_inverse=True)
    names = [(Frame(f"thread {thread & 0xFFFFFFFF}", "thread"),) for thread in threads.tolist()]
    gathering = StackSums()
    for one in path_samples(
        *intervals.paths(parent, label),
        own,
        distinct.__getitem__,
        begin=names.__getitem__ if len(threads) > 1 else lambda _: (),
        beginning=number,
    ):
        gathering.add(one.frames, one.weight, one.count)
    return gathering.stacks("host")


_IN_PYTHON, _OTHER = 1, 0

# Thread, start, end, id of the name, _IN_PYTHON or _OTHER.
_Columns = tuple[Ints, Ints, Ints, Ints, Ints]


def _ranges(recording: Recording) -> _Columns:
    framework = recording.framework
    if framework is None:
        return _marks(recording)
    python = np.where(framework.is_python, _IN_PYTHON, _OTHER)
    return (
        framework.thread.to_array(),
        framework.start_ns.to_array(),
        framework.end_ns.to_array(),
        framework.name_ids(np.arange(len(framework))),
        python,
    )


def _marks(recording: Recording) -> _Columns:
    columns = {"thread": "globalTid", "start": "startNs", "end": "endNs", "name": "message"}
    return _usable(**recording.source.integers("MSTX_EVENTS", columns))


def _host_calls(recording: Recording) -> _Columns:
    calls = recording.host_calls
    columns = (calls.thread, calls.start_ns, calls.end_ns, calls.name)
    return _usable(*(column.to_array() for column in columns))


def _usable(thread: Ints, start: Ints, end: Ints, name: Ints) -> _Columns:
    with np.errstate(over="ignore"):
        good = possible(start, end - start)
    good &= (start > 0) & (end > start)
    thread, start, end, name = (
        column[good].astype(np.int64) for column in (thread, start, end, name)
    )
    return thread, start, end, name, np.full(len(thread), _OTHER, np.int64)


def _host_frame(text: str | None, *, python: bool) -> Frame:
    """Return the frame of a host range by its recorded name."""
    if text is None:
        return Frame(_NO_NAME, "range")
    if (step := _NUMBERED_STEP.match(text)) is not None:
        return Frame(step[1], "range")
    if python and (match := _PYTHON.match(text)) is not None:
        file = match["file"].replace("\\", "/")
        name = match["name"] or posixpath.basename(file)
        return Frame(name, "function", file, int(match["line"]))
    return Frame(ADDRESS.sub("", text), "range")
