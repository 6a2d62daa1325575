"""The critical path of the steps: what each of their nanoseconds was spent on, exactly once.

From the end of a step one goes back to whatever arrived last of what that had waited for, and so on
until the step's begin. What is not on the path could take longer without delaying the step: by its
slack.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KINDS
from unified_prof.analysis.explain.path_limits import limits
from unified_prof.analysis.explain.schedule.built import Scheduled
from unified_prof.analysis.explain.stretches import (
    CLASSES,
    COPY,
    EVENT,
    GAP,
    IN_WORDS,
    LAUNCH,
    SYNCHRONISING,
    Stretches,
    names_of_work,
    stretches_of,
)
from unified_prof.analysis.explain.what_if import Selection, in_ranges_ns, schedule_of
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.tracks import Track
from unified_prof.analysis.ways import Way

Ints = NDArray[np.int64]

_OFF_PATH = 10
"""Rows for what costs most and is not on the path."""
_STEPS_SHOWN = 5
"""Up to so many steps have figures of their own; of more, the shortest and the longest are told."""


class CriticalPath:
    """The critical path of a recording's steps."""

    def __init__(self, recording: Recording, scheduled: Scheduled) -> None:
        self._recording, self._scheduled = recording, scheduled
        self._labels = recording.work.labels

    @cached_property
    def stretches(self) -> Stretches:
        """What the steps' time was spent on; the lengths of a step's stretches add up to it."""
        return stretches_of(self._recording, self._scheduled)

    def rows(self) -> list[Row]:
        """Return one row for each thing on the path; then the costliest of what is not on it."""
        found = self.stretches
        length = found.length_ns
        steps = len(self._scheduled.step_names)
        # What costs most stands for the rest of its name: its line is told.
        keys, number = np.unique(
            found.kind.astype(np.int64) << 32 | found.name, return_inverse=True
        )
        total = _sums(number, length, len(keys))
        count = np.bincount(number, minlength=len(keys))
        by_step = np.zeros((steps, len(keys)), np.int64)
        np.add.at(by_step, (found.step, number), length)
        work, slack = self._of_names()
        detail = self._details(found, number, len(keys))
        rows = []
        for key, time, many, told, each in zip(
            keys.tolist(), total.tolist(), count.tolist(), detail, by_step.T, strict=True
        ):
            kind, name = CLASSES[key >> 32], key & 0xFFFFFFFF
            extra = self._of_steps(each, time)
            if key >> 32 <= COPY:
                extra |= {
                    "off_path_ns": max(work.get(name, 0) - time, 0),
                    "slack_ns": slack.get(name),
                }
            rows.append(
                Row(
                    name=self._labels.texts[name],
                    kind=kind,
                    count=many,
                    total_ns=time,
                    detail=IN_WORDS[kind] + (f", {told}" if told else ""),
                    extra=extra,
                )
            )
        on_path = {key & 0xFFFFFFFF for key in keys.tolist() if key >> 32 <= COPY}
        rows.sort(key=lambda row: (-(row.total_ns or 0), row.name))
        beside = sorted(
            (name for name in work if name not in on_path and work[name]),
            key=lambda name: -work[name],
        )
        return rows + [self._beside(name, work, slack) for name in beside[:_OFF_PATH]]

    def on_host_ns(self, selection: Selection) -> int:
        """Return how much of the path is a thread's time in ranges and calls, all within included.

        The time of a synchronising call after its work is none of it: it is not the thread's own.
        """
        found, skew = self.stretches, self._scheduled.host.skew_ns
        own = np.flatnonzero((found.thread >= 0) & (found.kind != SYNCHRONISING))
        start, end = found.start_ns[own] + skew, found.end_ns[own] + skew
        return int(in_ranges_ns(self._recording, selection, found.thread[own], start, end).sum())

    def _beside(self, name: int, work: dict[int, int], slack: dict[int, int]) -> Row:
        rows = self._scheduled.pieces.row[self._mine]
        pieces = rows[self._names[rows] == name]
        kind = KINDS[int(self._recording.work.kind[pieces[0]])]
        return Row(
            name=self._labels.texts[name],
            kind=kind,
            count=len(pieces),
            total_ns=0,
            detail=f"{IN_WORDS[kind]}, not on the path",
            extra={"off_path_ns": work[name], "slack_ns": slack.get(name)},
        )

    def _of_steps(self, each: Ints, time: int) -> dict[str, float | None]:
        names = self._scheduled.step_names
        if len(names) == 1:
            return {}
        extra: dict[str, float | None] = {"per_step_ns": time / len(names)}
        if len(names) <= _STEPS_SHOWN:
            for name, own in zip(names, each.tolist(), strict=True):
                extra[f"step_{re.sub('[^0-9A-Za-z]', '_', name)}_ns"] = own
        else:
            extra |= {"least_ns": int(each.min()), "most_ns": int(each.max())}
        return extra

    @cached_property
    def _names(self) -> NDArray[np.int32]:
        return names_of_work(self._recording)

    @cached_property
    def _mine(self) -> Ints:
        """The pieces of work that ran within the steps."""
        pieces, scheduled = self._scheduled.pieces, self._scheduled
        start = pieces.start_ns[: pieces.work]
        step = np.searchsorted(scheduled.step_begin_ns, start, side="right") - 1
        return np.flatnonzero((step >= 0) & (start < scheduled.step_end_ns[step]))

    def _of_names(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return for each kernel its time in the steps, and the least slack of it off the path."""
        scheduled, mine = self._scheduled, self._mine
        if not len(mine):
            return {}, {}
        rows = scheduled.pieces.row[mine]
        names, number = np.unique(self._names[rows].astype(np.int64), return_inverse=True)
        total = _sums(number, self._recording.work.duration_ns[rows], len(names))
        slack = scheduled.schedule.slack_ns(scheduled.step_ends)[scheduled.of_piece[mine]]
        on_path = np.isin(rows, self.stretches.piece)
        least = np.full(len(names), np.iinfo(np.int64).max)
        np.minimum.at(least, number[~on_path], slack[~on_path])
        known = least < np.iinfo(np.int64).max
        return (
            dict(zip(names.tolist(), total.tolist(), strict=True)),
            dict(zip(names[known].tolist(), least[known].tolist(), strict=True)),
        )

    def _details(self, found: Stretches, number: Ints, count: int) -> list[str | None]:
        """Return for each row what its longest stretch belongs to."""
        order = np.lexsort((found.length_ns, number))
        longest = np.zeros(count, np.int64)
        longest[number[order]] = order
        details = []
        for at in longest.tolist():
            piece, text = int(found.piece[at]), self._labels.text(int(found.detail[at]))
            if piece >= 0:
                operation, line = self._recording.work.place(piece)
                known = [one for one in (operation, line) if one]
                text = ", ".join(one for one in known if one != self._labels.texts[found.name[at]])
            elif found.kind[at] in (LAUNCH, EVENT, GAP) and at + 1 < len(found):
                follows = int(found.name[at + 1])
                text = f"most before {self._labels.texts[follows]}"
            details.append(text or None)
        return details


def _sums(number: Ints, values: Ints, count: int) -> Ints:
    total = np.zeros(count, np.int64)
    np.add.at(total, number, values)
    return total


def of_recording(recording: Recording) -> CriticalPath | None:
    """Return the critical path of a recording; None: nothing of it has known times."""
    scheduled = schedule_of(recording)
    return None if scheduled is None else CriticalPath(recording, scheduled)


def track(recording: Recording) -> Track | None:
    """Return the critical path as one track; None: nothing of the recording has known times."""
    found = of_recording(recording)
    if found is None:
        return None
    stretches = found.stretches
    none = np.zeros(len(stretches), np.int64)
    return Track(
        group="critical path",
        name="critical path",
        labels=stretches.labels.texts,
        start_ns=stretches.start_ns,
        end_ns=stretches.end_ns,
        label=stretches.name,
        category=[CLASSES[kind] for kind in stretches.kind.tolist()],
        flow_in=none,
        flow_first=none,
        flow_count=none,
    )


def _breakdown(recording: Recording) -> Breakdown:
    scheduled = schedule_of(recording)
    assert scheduled is not None, "asked for a path that is not offered"
    for name, sentence in limits(recording, scheduled):
        recording.findings.add(name, sentence, 1)
    rows = CriticalPath(recording, scheduled).rows()
    whole = int(scheduled.steps_ns().sum())
    return Breakdown("path", tuple(rows), whole, None)


WAYS = {
    "path": Way(
        lambda one: len(one.tasks) > 0 or len(one.comms) > 0 or one.framework is not None,
        _breakdown,
    )
}
