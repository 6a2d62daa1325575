"""What ran on devices, piece by piece: when, on which stream, and what launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import COMMUNICATION, UNKNOWN
from unified_prof.analysis.explain.schedule.graph import Ints
from unified_prof.analysis.read.task_kinds import WAIT
from unified_prof.analysis.recording import Recording
from unified_prof.arrays.lookup import Lookup

_SKEW_NS = 100_000
"""So far apart the clocks of host and device may be; where work began earlier, it is no launch."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Everything that ran on devices: work, then tasks that wait or record."""

    row: Ints
    """Which row of `Recording.work` each piece of work is, rising."""
    start_ns: Ints
    end_ns: Ints
    device: Ints
    stream: Ints
    """Device and stream in one number; a collective has that of its tasks."""
    call: Ints
    """The call that launched it, NOWHERE where that is not known."""
    launched_ns: Ints
    """Start of that call; its own start where it is not known."""
    skew_ns: int
    """So much earlier than the host's clock says calls began at the least: no work begins before
    the call that launches it."""
    records: NDArray[np.bool_]
    """Which of them record an event."""
    waits: NDArray[np.bool_]
    """Which of them wait for one."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def work(self) -> int:
        """So many of them, the first ones, are work."""
        return len(self.row)

    @property
    def asked_ns(self) -> Ints:
        """When each one was launched, by the device's clock."""
        return np.where(self.call >= 0, self.launched_ns - self.skew_ns, self.launched_ns)

    @property
    def moment_ns(self) -> Ints:
        """When each one begins; what only waits, when it is over."""
        is_work = np.arange(len(self)) < self.work
        return np.where(is_work, self.start_ns, self.end_ns)

    @property
    def takes_ns(self) -> Ints:
        """How long the work of each takes."""
        is_work = np.arange(len(self)) < self.work
        return np.where(is_work, self.end_ns - self.start_ns, 0)


def of_recording(recording: Recording, until_ns: int | None = None) -> Pieces:
    """Return the pieces of a recording, those that began before a time where one is given."""
    work, tasks, calls = recording.work, recording.tasks, recording.host_calls
    begun = work.start_ns.whole()
    rows = np.arange(len(work)) if until_ns is None else np.flatnonzero(begun < until_ns)
    begun = begun[rows]
    waiting = (tasks.kind == WAIT) & tasks.of_the_program
    if until_ns is not None:
        waiting &= tasks.start_ns < until_ns
    waits = np.flatnonzero(waiting)
    texts = [(text or "").lower() for text in tasks.type_texts]
    of_type = tasks.type[waits]
    connection = np.concatenate((work.connection[rows], tasks.connection[waits]))
    call = calls.launching(connection).astype(np.int64)
    start = np.concatenate((begun, tasks.start_ns[waits]))
    launched = np.append(calls.start_ns, 0)[call]
    early = (launched - start)[call >= 0]
    early = early[early <= _SKEW_NS]

    def says(word: str) -> NDArray[np.bool_]:
        found = np.array([*(word in text for text in texts), False])[of_type]
        return np.concatenate((np.zeros(len(rows), bool), found))

    return Pieces(
        row=rows,
        start_ns=start,
        end_ns=np.concatenate((begun + work.duration_ns[rows], tasks.end_ns[waits])),
        device=np.concatenate((work.device[rows], tasks.device[waits].astype(np.int64))),
        stream=np.concatenate((_streams(recording, rows), _key(tasks.device, tasks.stream)[waits])),
        call=call,
        launched_ns=np.where(call >= 0, launched, start),
        skew_ns=max(int(early.max(initial=0)), 0),
        records=says("record"),
        waits=says("wait"),
    )


def _key(device: NDArray[np.integer], stream: NDArray[np.integer]) -> Ints:
    return device.astype(np.int64) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)


def _streams(recording: Recording, rows: Ints) -> Ints:
    """Return the stream of pieces of work: of a collective, that of what its call launched."""
    work, tasks = recording.work, recording.tasks
    of_row = work.stream[rows]
    stream = _key(work.device[rows], of_row)
    whole = np.flatnonzero((work.kind[rows] == COMMUNICATION) & (of_row == UNKNOWN))
    if len(whole) and len(tasks):
        connection = work.connection[rows[whole]]
        task = Lookup(tasks.connection.astype(np.int64)).rows(connection)
        known = (task >= 0) & (connection >= 0)
        known &= tasks.device[task] == work.device[rows[whole]]
        stream[whole[known]] = _key(tasks.device, tasks.stream)[task[known]]
    return stream
