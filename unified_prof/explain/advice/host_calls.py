"""Names of the host calls in which time without device work passes."""

from __future__ import annotations

import numpy as np

from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.recording.recording import Recording

MIN_BEFORE_NS = 1_000_000  # Minimum time before the first device task to be mentioned.
MOST = 0.5  # Minimum share of an interval that the calls of one name take, to name them.


def call_with_place(recording: Recording, row: int) -> str:
    """Return the name of a call in `Recording.host_calls`, and the operation and line it is in."""
    calls, framework = recording.host_calls, recording.framework
    at = np.array([row])
    text = recording.strings.get(int(calls.name[at][0])) or "(unnamed call)"
    if framework is None:
        return text
    around = framework.places_at(calls.thread[at], calls.start_ns[at])
    if around[0] < 0:
        return text
    names, number = framework.names(around)
    stacks, stack = framework.stacks(around)
    line = (stacks[int(stack[0])] or "").rpartition("\n")[2]
    return f"{text} of {names[int(number[0])]}" + (f" at {line}" if line else "")


def longest_call(recording: Recording, gaps: IntervalSet) -> str | None:
    """Return the calls of one name that take most of the longest of some gaps; None if none do.

    None, too, with steps: their gaps are long steps.
    """
    if not len(gaps) or recording.steps:
        return None
    longest = int((gaps.end_ns - gaps.start_ns).argmax())
    start_ns, end_ns = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    calls = recording.host_calls
    length_ns = np.minimum(calls.end_ns.to_array(), end_ns)
    length_ns -= np.maximum(calls.start_ns.to_array(), start_ns)
    rows = np.flatnonzero(length_ns > 0)
    if not len(rows):
        return None
    length_ns = length_ns[rows]
    _, number = np.unique(calls.name[rows], return_inverse=True)
    by_name = np.bincount(number, weights=length_ns)
    if by_name.max() < MOST * (end_ns - start_ns):
        return None
    same = number == by_name.argmax()
    return call_with_place(recording, int(rows[np.where(same, length_ns, 0).argmax()]))


def before_tasks(recording: Recording, device: str | None, analyzed_ns: int) -> IntervalSet:
    """Return the time of the host before the first task of a device, without steps.

    Empty if it is shorter than the analyzed time, or than a millisecond.
    """
    calls, framework = recording.host_calls, recording.framework
    if recording.steps or device is None or not len(calls):
        return EMPTY
    begin_ns = int(calls.start_ns.to_array().min())
    if framework is not None and len(framework):
        begin_ns = min(begin_ns, int(framework.start_ns.to_array().min()))
    until_ns = int(recording.devices[device].window.start_ns[0])
    if until_ns - begin_ns <= max(analyzed_ns, MIN_BEFORE_NS):
        return EMPTY
    return IntervalSet(np.array([begin_ns]), np.array([until_ns]))
