"""Which call of the host launched which work of a device, and how long that work had to wait.

Work is what computes, communicates or copies; tasks that only wait or notify are none. A call that
launched several tasks, as the replay of a graph, counts once on each stream, with the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL
from unified_prof.analysis.read.host_calls import HostCalls
from unified_prof.analysis.read.tasks import Tasks

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """One row for each call and stream that it launched work on, by call."""

    call: Ints
    """Row of CANN_API."""
    called_ns: Ints
    """Start of the call."""
    returned_ns: Ints
    """Its end."""
    device: Ints
    stream: Ints
    started_ns: Ints
    """Start of the first task."""
    work_ns: Ints
    """Time of all tasks together."""
    unknown: int
    """Tasks of which no call is known."""

    def __len__(self) -> int:
        return len(self.call)

    @property
    def of_calls(self) -> Launched:
        """The same with one row for each call, whatever streams it launched work on."""
        first = np.flatnonzero(np.append(True, self.call[1:] != self.call[:-1])[: len(self)])
        return self if len(first) == len(self) else self._joined(first)

    def _joined(self, first: Ints) -> Launched:
        return Launched(
            call=self.call[first],
            called_ns=self.called_ns[first],
            returned_ns=self.returned_ns[first],
            device=self.device[first],
            stream=self.stream[first],
            started_ns=np.minimum.reduceat(self.started_ns, first),
            work_ns=np.add.reduceat(self.work_ns, first),
            unknown=self.unknown,
        )


def launched(tasks: Tasks, calls: HostCalls) -> Launched:
    """Join the work of all devices with the calls that launched it."""
    work = np.flatnonzero(
        (tasks.kind == KERNEL) | (tasks.kind == COPY) | (tasks.kind == COMMUNICATION)
    )
    call = calls.launching(tasks.connection[work]).astype(np.int64)
    good = (call >= 0) & np.append(calls.happened, False)[call]
    unknown = int(len(work) - good.sum())
    work, call = work[good], call[good]
    device = tasks.device[work].astype(np.int64)
    stream = tasks.stream[work].astype(np.int64)
    order = np.lexsort((stream, device, call))
    work, call, device, stream = work[order], call[order], device[order], stream[order]
    columns = (call, device, stream)
    head = np.append(True, np.logical_or.reduce([one[1:] != one[:-1] for one in columns]))
    first = np.flatnonzero(head[: len(call)])
    started, lasted = tasks.start_ns[work], tasks.duration_ns[work].astype(np.int64)
    if len(first) < len(call):
        started, lasted = np.minimum.reduceat(started, first), np.add.reduceat(lasted, first)
        call, device, stream = call[first], device[first], stream[first]
    return Launched(
        call=call,
        called_ns=calls.start_ns[call],
        returned_ns=calls.end_ns[call],
        device=device,
        stream=stream,
        started_ns=started,
        work_ns=lasted,
        unknown=unknown,
    )
