"""What threads of the host were doing at moments: operations, calls of the runtime, input."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN, Labels
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.idle import is_input
from unified_prof.arrays import intervals, nesting
from unified_prof.arrays.distinct import rising
from unified_prof.arrays.runs import positions

Ints = NDArray[np.int64]

_OF_NOBODY = re.compile(r"ProfilerStep#\d+$|\.py\(\d+\): |^<built-in |^nn\.Module: ")
"""Ranges that are no operations and no marks of the program's: steps, Python frames, modules."""
_OUTSIDE = "(outside any operation)"


class HostMoments:
    """Threads of a recording's host, asked what was going on."""

    def __init__(self, recording: Recording, labels: Labels) -> None:
        self._recording, self._labels = recording, labels

    def divided(self, thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Cut stretches of threads wherever a range or a call there begins or ends."""
        calls, framework = self._recording.host_calls, self._recording.framework
        parts: list[tuple[Ints, Ints, Ints]] = []
        for one in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == one)
            edges = []
            own = calls.thread == one
            edges += [calls.start_ns[own], calls.end_ns[own]]
            if framework is not None:
                own = framework.thread == one
                edges += [framework.start_ns[own], framework.end_ns[own]]
            cuts = rising(np.concatenate(edges))
            low = np.searchsorted(cuts, start[mine], side="right")
            high = np.searchsorted(cuts, end[mine], side="left")
            many = np.maximum(high - low, 0) + 1
            of = np.repeat(mine, many)
            at = positions(many)
            before = np.append(cuts, 0)[np.repeat(low, many) + at - 1]
            after = np.append(cuts, 0)[np.minimum(np.repeat(low, many) + at, len(cuts))]
            begins = np.where(at == 0, start[of], before)
            until = np.where(at == np.repeat(many, many) - 1, end[of], after)
            parts.append((begins, until, of))
        nothing = np.zeros(0, np.int64)
        begins, until, of = (
            np.concatenate([nothing, *(part[index] for part in parts)]) for index in range(3)
        )
        return begins, until, of

    def called(
        self, thread: Ints, at_ns: Ints
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """Return what threads were doing at some times, the line of it, and whether it was input.

        That is the operation that was going on, else the call of the runtime, else whatever range.
        """
        framework, labels = self._recording.framework, self._labels
        outside = labels.number(_OUTSIDE)
        called = self._calls_at(thread, at_ns)
        nothing = np.full(len(at_ns), UNKNOWN, np.int32)
        if framework is None:
            return np.where(called >= 0, called, outside), nothing, np.zeros(len(at_ns), bool)
        place = framework.places_at(thread, at_ns)
        stacks, stack = framework.stacks(place)
        lines = labels.numbers([None if one is None else one.rpartition("\n")[2] for one in stacks])
        line = lines[stack] if len(lines) else nothing
        texts, number = framework.names(place)
        shown = [_OUTSIDE if not text or _OF_NOBODY.search(text) else text for text in texts]
        own = labels.numbers(shown)[number] if texts else nothing
        own = np.where(place >= 0, own, outside)
        operation = framework.is_operation(place)
        # Between operations a program's own line says more than the frame that was open.
        own = np.where(~operation & (line >= 0) & (own == outside), line, own)
        name = np.where(operation | (called < 0), own, called).astype(np.int32)
        fetching = framework.matching(is_input)
        inside = np.zeros(len(at_ns), bool)
        for one in np.unique(framework.thread[fetching]).tolist():
            mine = fetching[framework.thread[fetching] == one]
            waits = intervals.merge(framework.start_ns[mine], framework.end_ns[mine])
            last = np.searchsorted(waits.start_ns, at_ns, side="right") - 1
            inside |= (thread == one) & (last >= 0) & (at_ns < waits.end_ns[last])
        return name, np.where(line == name, UNKNOWN, line).astype(np.int32), inside

    def _calls_at(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return the name of the runtime's call that was open at some times, UNKNOWN without."""
        calls, strings = self._recording.host_calls, self._recording.strings
        mine = np.flatnonzero(
            np.isin(calls.thread, np.unique(thread)) & (calls.end_ns > calls.start_ns)
        )
        result = np.full(len(at_ns), UNKNOWN, np.int64)
        if not len(mine):
            return result
        order = mine[
            nesting.call_order(calls.thread[mine], calls.start_ns[mine], calls.end_ns[mine])
        ]
        start, end, own = calls.start_ns[order], calls.end_ns[order], calls.thread[order]
        found = nesting.innermost_at(
            own, start, end, nesting.parents(own, start, end), thread, at_ns
        )
        ids = np.unique(calls.name[order])
        numbers = self._labels.numbers(strings.texts(ids.tolist()))
        inside = found >= 0
        at = np.searchsorted(ids, calls.name[order[found[inside]]])
        result[inside] = numbers[at]
        return result
