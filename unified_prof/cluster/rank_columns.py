"""Time that a set of intervals covers, asked for many stretches at once.

What a partial says of communication, steps and kernels, from columns of their times alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Runs
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.base.vocabulary import NO_RANK
from unified_prof.cluster import partial as partials
from unified_prof.cluster.partial import END, NONE, START, STEP, Group
from unified_prof.recording import collectives as kinds_of
from unified_prof.recording.collectives import ELEMENT_BYTES

Ints = NDArray[np.int64]


class Cover:
    """A merged set of intervals with the sums that questions about stretches need."""

    def __init__(self, merged: IntervalSet, starts: Ints | None = None) -> None:
        """Keep a set.

        Args:
            merged: the set.
            starts: begins of the single pieces behind it, ascending.
        """
        self.set = merged
        self._starts = merged.start_ns if starts is None else starts
        self._before = np.zeros(len(merged) + 1, np.int64)
        np.cumsum(merged.end_ns - merged.start_ns, out=self._before[1:])

    def until(self, at: Ints) -> Ints:
        """Return how much of the time before each point is covered."""
        if not len(self.set):
            return np.zeros(len(at), np.int64)
        place = np.searchsorted(self.set.start_ns, at, side="right") - 1
        inside = np.minimum(at, self.set.end_ns[np.maximum(place, 0)])
        inside = inside - self.set.start_ns[np.maximum(place, 0)]
        return np.where(place >= 0, self._before[np.maximum(place, 0)] + inside, 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Return how much of each stretch is covered."""
        return self.until(end) - self.until(start)

    def begun(self, start: Ints, end: Ints) -> Ints:
        """Return how many pieces begin in each stretch."""
        return np.asarray(
            np.searchsorted(self._starts, end) - np.searchsorted(self._starts, start), np.int64
        )

    def stretches(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Return for each stretch the time before the first piece, covered, after the last one.

        A stretch that is not covered at all lies before a first piece as a whole.
        """
        covered = self.within(start, end)
        length = end - start
        if not len(self.set):
            return length, covered, np.zeros(len(start), np.int64)
        following = np.searchsorted(self.set.end_ns, start, side="right")
        begin = self.set.start_ns[np.minimum(following, len(self.set) - 1)]
        lead = np.where(following < len(self.set), np.maximum(begin - start, 0), length)
        before = np.searchsorted(self.set.start_ns, end, side="left") - 1
        finish = self.set.end_ns[np.maximum(before, 0)]
        tail = np.where(before >= 0, np.maximum(end - finish, 0), length)
        nothing = covered == 0
        return (
            np.where(nothing, length, np.minimum(lead, length)),
            covered,
            np.where(nothing, 0, np.minimum(tail, length)),
        )


def is_kind(codes: Ints, kinds: list[str], kind: str) -> NDArray[np.bool_]:
    """Return where the code of a kind is that of `kind`."""
    return np.equal(codes, kinds.index(kind) if kind in kinds else NONE - 1)


def sizes(
    columns: Mapping[str, Ints],
    result: Mapping[str, Ints],
    groups: list[Group],
    kinds: list[str],
    *,
    counts_parts: bool,
) -> Ints:
    """Return the larger message of each operation; NONE where it is not known."""
    types, inverse = np.unique(columns["data"], return_inverse=True)
    width = np.array([ELEMENT_BYTES.get(one, 0) for one in types.tolist()], np.int64)[inverse]
    size = np.where((width > 0) & (columns["count"] >= 0), columns["count"] * width, NONE)
    if counts_parts:
        members = np.array([max(group.size, 1) for group in groups], np.int64)[result["group"]]
        for kind in kinds_of.PARTED:
            parted = is_kind(result["kind"], kinds, kind) & (size >= 0)
            size[parted] *= members[parted]
    return size


def size_groups(groups: list[Group], group: Ints, owner: Ints, parts: Mapping[str, Ints]) -> None:
    """Note how many a group without told ranks must be: places inside of it go that far."""
    for index, one in enumerate(groups):
        if one.size == NONE:
            mine = (owner >= 0) & (group[np.maximum(owner, 0)] == index)
            places = np.concatenate([parts["src"][mine], parts["dst"][mine]])
            places = places[(places >= 0) & (places < NO_RANK)]
            if len(places):
                groups[index] = replace(one, size=int(places.max()) + 1)


def fill_peers(rank: int, result: dict[str, Ints], groups: list[Group], kinds: list[str]) -> None:
    """In a group of two the other one is meant."""
    transfers = is_kind(result["kind"], kinds, kinds_of.SEND)
    transfers |= is_kind(result["kind"], kinds, kinds_of.RECEIVE)
    for index in np.flatnonzero(transfers & (result["peer"] < 0)).tolist():
        members = groups[int(result["group"][index])].ranks
        if len(members) == 2 and rank in members:
            result["peer"][index] = members[0] if members[1] == rank else members[1]


def sequences(result: Mapping[str, Ints], kinds: list[str]) -> Ints:
    """Count operations of one group and kind, transfers of one pair and direction, from 0."""
    transfer = is_kind(result["kind"], kinds, kinds_of.SEND)
    transfer |= is_kind(result["kind"], kinds, kinds_of.RECEIVE)
    # A pair's transfers are one sequence whatever group they are made in.
    group = np.where(transfer & (result["peer"] >= 0), NONE - 1 - result["peer"], result["group"])
    order = np.lexsort((np.arange(len(group)), result["kind"], group))
    number = np.empty(len(order), np.int64)
    number[order] = Runs(group[order], result["kind"][order]).rank()
    return number


def union_by_owner(owner: Ints, start: Ints, duration: Ints, owners: int) -> Ints:
    """Return how long at least one of each owner's intervals lasts; NONE where it has none."""
    result = np.full(owners, NONE, np.int64)
    if not len(owner):
        return result
    first = int(start.min())
    span = int((start + duration).max()) - first + 1
    shift = owner * span - first
    merged = intervals.merge(start + shift, start + duration + shift, keep_empty=True)
    result[np.unique(owner)] = 0
    np.add.at(result, merged.start_ns // span, merged.end_ns - merged.start_ns)
    return result


def link_parts(src: Ints, dst: Ints, size: Ints, duration: Ints) -> dict[str, Ints]:
    """Sum up parts of collectives by their two ranks: counts, bytes, times, bandwidths."""
    if not len(src):
        return partials.empty("links")
    order = np.lexsort((size / duration, dst, src))
    src, dst, size, duration = src[order], dst[order], size[order], duration[order]
    pairs = Runs(src, dst)
    heads, counts = pairs.starts, pairs.sizes
    rate = (size * 1_000_000_000) // duration
    return {
        "src": src[heads],
        "dst": dst[heads],
        "n": counts,
        "bytes": np.add.reduceat(size, heads),
        "total": np.add.reduceat(duration, heads),
        "p50": rate[heads + counts // 2],
        "p99": rate[heads + counts // 100],
    }


def step_of(at: Ints, steps: Mapping[str, Ints]) -> Ints:
    """Return the number of the step in which each time lies, NONE outside of any."""
    if not len(steps["start"]):
        return np.full(len(at), NONE, np.int64)
    place = np.searchsorted(steps["start"], at, side="right") - 1
    inside = (place >= 0) & (at < steps["end"][np.maximum(place, 0)])
    return np.where(inside, steps["step"][np.maximum(place, 0)], NONE)


def work_by_name(
    step: Ints,
    name: NDArray[np.integer],
    module: NDArray[np.integer],
    duration: NDArray[np.integer],
) -> dict[str, Ints]:
    """Sum up kernels by step, name and module."""
    inside = step >= 0
    step, duration = step[inside], duration[inside].astype(np.int64)
    name, module = name[inside].astype(np.int64), module[inside].astype(np.int64)
    if not len(step):
        return partials.empty("kernels")
    order = np.lexsort((module, name, step))
    step, name, module, duration = step[order], name[order], module[order], duration[order]
    alike = Runs(step, name, module)
    heads = alike.starts
    return {
        "step": step[heads],
        "name": name[heads],
        "module": module[heads],
        "n": alike.sizes,
        "total": np.add.reduceat(duration, heads),
        "min": np.minimum.reduceat(duration, heads),
        "max": np.maximum.reduceat(duration, heads),
    }


def step_parts(
    steps: Mapping[str, Ints],
    kernels: IntervalSet,
    operations: Mapping[str, Ints],
    busy: IntervalSet,
    loader: IntervalSet | None,
) -> dict[str, Ints]:
    """Return where the time of each step went: unions of intervals, clipped to the step."""
    communication = Cover(intervals.merge(operations["start"], operations["end"]))
    work, all_ = Cover(kernels), Cover(busy)
    start, end = steps["start"], steps["end"]
    compute, talk, any_ = (one.within(start, end) for one in (work, communication, all_))
    late = np.full(len(start), NONE, np.int64)
    if loader is not None:
        late = Cover(loader).within(start, end)
        late -= Cover(intervals.intersect(loader, busy)).within(start, end)
    return {
        "step": steps["step"],
        "start": start,
        "end": end,
        "compute": compute,
        "communication": talk,
        "exposed": any_ - compute,
        "idle": (end - start) - any_,
        "input": late,
    }


def mark_parts(
    operations: Mapping[str, Ints], steps: Mapping[str, Ints], kernels: Cover
) -> dict[str, Ints]:
    """Cut the timeline where communication or a step begins or ends; see `partial.MARKS`."""
    count = len(operations["start"])
    number = np.arange(count)
    time = np.concatenate([operations["start"], operations["end"], steps["start"]])
    what = np.repeat([START, END, STEP], [count, count, len(steps["start"])])
    op = np.concatenate([number, number, np.arange(len(steps["start"]))])
    last = kernels.set.end_ns[-1:] if len(kernels.set) else time[:0]
    first = kernels.set.start_ns[:1]
    if len(steps["end"]):
        last = np.concatenate([last, steps["end"][-1:]])
    # A step begins before what begins with it; what ends makes room for what begins then.
    order = np.lexsort((op, np.array([2, 1, 0])[what], time))
    time, what, op = time[order], what[order], op[order]
    if len(first) and (not len(time) or first[0] < time[0]):
        time, what, op = np.r_[first, time], np.r_[STEP, what], np.r_[NONE, op]
    until = time
    if len(time):
        until = np.append(time[1:], max(int(time[-1]), int(last.max(initial=0))))
    lead, work, tail = kernels.stretches(time, until)
    return {
        "time": time,
        "op": op,
        "what": what,
        "lead": lead,
        "busy": work,
        "tail": tail,
        "kernels": kernels.begun(time, until),
    }
