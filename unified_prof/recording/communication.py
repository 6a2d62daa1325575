"""Names of collectives with their groups, time by group, and unions of task intervals.

The union of the intervals of millions of tasks is large, and sums do not need all of it at once.
`Sweep` splits time into segments and carries unfinished tasks from one segment to the next; each
`TimeSlice` adds its part to `Sums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints, by_key
from unified_prof.arrays.intervals import EMPTY, IntervalSet
from unified_prof.arrays.packed import codes
from unified_prof.recording import collectives
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL, UNKNOWN, Labels, sort_rows
from unified_prof.recording.collectives import PARTED, Collectives, Groups, canonical
from unified_prof.recording.model import Row
from unified_prof.recording.source import Source, Strings
from unified_prof.recording.tasks import FOREVER

NO_GROUP = "(no group recorded)"
_OF_HCCL = "hcom"
_UNNAMED = "(unnamed collective)"


class CollectiveNames:
    """Names of collectives: `hcom_allReduce_ (tp)` if the group is known."""

    def __init__(self, source: Source, comms: Collectives, strings: Strings, known: Groups) -> None:
        self._source, self._comms = source, comms
        self._strings, self._known = strings, known

    def types(self, labels: Labels) -> NDArray[np.int32]:
        """Return the type and group of each collective, as numbers in `labels`.

        Without a type, the kernel says more than the name, which is then only a number.
        """
        kernels = collectives.kernel_names(self._source, self._comms.identity)
        more = [self._comms.name] if kernels is None else [kernels, self._comms.name]
        return self._numbers(labels, self._comms.op_type, *more)

    def names(self, labels: Labels) -> NDArray[np.int32]:
        """Return the operator name of each collective, as numbers in `labels`."""
        ids, number = codes(self._comms.op_type)
        is_typed = np.array([text is not None for text in self._strings.texts(ids)], bool)
        names = self._numbers(labels, self._comms.name, self._comms.op_type)
        # Without a type, the name is only a number.
        return names if is_typed.all() else np.where(is_typed[number], names, self.types(labels))

    def kernels(self, labels: Labels) -> NDArray[np.int32]:
        """Return the kernel of each collective, as numbers in `labels`; without one, `names`.

        On a GPU a collective is one kernel; HCCL runs many tasks.
        """
        kernels = collectives.kernel_names(self._source, self._comms.identity)
        if kernels is None:
            return self.names(labels)
        ids, number = codes(kernels)
        result = labels.numbers(self._strings.texts(ids))[number]
        return np.where(result == UNKNOWN, self.types(labels), result)

    def kinds(self) -> tuple[list[str | None], Ints]:
        """Return the distinct kinds of groups, and the index of each collective's kind.

        A kind is a parallelism such as `tp`, or the framework's name for the group. It is None if
        only the communicator is known, because its name differs from run to run.
        """
        texts, number = self._communicators
        result = [None if text is None else self._labels.group(text) for text in texts]
        return [
            None if one is None else one.kind if one.kind != "other" else one.title or None
            for one in result
        ], number

    def plain_types(self, labels: Labels) -> Ints:
        """Return the type of each collective without its group, as numbers in `labels`."""
        return self._plain(labels, self._comms.op_type, self._comms.name)

    @property
    def size_bytes(self) -> Ints:
        """Size of each collective's message, UNKNOWN if it was not recorded.

        For kinds where HCCL records only one rank's part, the size is that part times the number of
        ranks.
        """
        size = self._comms.size_bytes.copy()
        texts, number = self._communicators
        found = [None if text is None else self._labels.group(text) for text in texts]
        members = np.array([1 if one is None else len(one.ranks) or 1 for one in found])[number]
        labels = Labels()
        types = self.plain_types(labels)
        parted = np.array(
            [
                text.startswith(_OF_HCCL) and canonical(text) in PARTED
                for text in [*labels.texts, ""]
            ]
        )[types]
        rows = np.flatnonzero(parted & (size != UNKNOWN))
        size[rows] *= members[rows]
        return size

    @property
    def in_groups(self) -> bool:
        """True if the communicator of any collective was recorded."""
        return any(text is not None for text in self._communicators[0])

    @property
    def known_groups(self) -> dict[str, collectives.Group]:
        """The named groups of the collectives, by display name."""
        return self._labels.named_groups

    def group_rows(self, compute: Mapping[int | None, IntervalSet]) -> list[Row]:
        """Return one row for each group, with the time and exposed time of its collectives.

        `compute` has intervals of kernels by device; the key None is the only device.
        """
        texts, number = self._communicators
        types = Labels()
        kinds = self._plain(types, self._comms.op_type, self._comms.name)
        rows = []
        for group, own in by_key(number):
            name = texts[group]
            about = None if name is None else self._labels.group(name)
            busy, exposed = self._covered(own, compute)
            extra: dict[str, int | None] = {"busy_ns": busy, "exposed_ns": exposed}
            if about is not None and about.ranks:
                extra["ranks"] = len(about.ranks)
            rows.append(
                Row(
                    name=NO_GROUP if name is None else self._labels.label(name),
                    kind="group",
                    count=len(own),
                    total_ns=int(self._comms.duration_ns[own].sum()),
                    detail=_most(types, kinds[own], self._comms.duration_ns[own]),
                    extra=extra,
                )
            )
        return sort_rows(rows)

    def _covered(
        self, own: Ints, compute: Mapping[int | None, IntervalSet]
    ) -> tuple[int, int | None]:
        """Return the time of the union of collectives and its exposed part, over all devices."""
        busy = exposed = 0
        for device, rows in by_key(self._comms.device[own]):
            chosen = own[rows]
            talking = intervals.merge(self._comms.start_ns[chosen], self._comms.end_ns[chosen])
            computing = compute[None] if None in compute else compute.get(device, intervals.EMPTY)
            busy += talking.total_ns
            exposed += talking.total_ns - intervals.intersect(talking, computing).total_ns
        return busy, exposed

    def _numbers(self, labels: Labels, *columns: Ints) -> NDArray[np.int32]:
        plain = Labels()
        number = self._plain(plain, *columns)
        texts, group = self._communicators
        group_labels = [
            None if text is None else self._labels.label_if_named(text) for text in texts
        ]
        pairs, of_pair = np.unique(number * len(texts) + group, return_inverse=True)
        named = []
        for pair in pairs.tolist():
            name, where = plain.texts[pair // len(texts)], group_labels[pair % len(texts)]
            named.append(name if where is None else f"{name} ({where})")
        return labels.numbers(named)[of_pair]

    def _plain(self, labels: Labels, *columns: Ints) -> NDArray[np.int64]:
        """Return each collective's name without its group, from the first column that has one."""
        result = np.full(len(self._comms), UNKNOWN, np.int64)
        for column in columns:
            unnamed = np.flatnonzero(result == UNKNOWN)
            if len(unnamed):
                ids, number = codes(column[unnamed])
                result[unnamed] = labels.numbers(self._strings.texts(ids))[number]
        result[result == UNKNOWN] = labels.number(_UNNAMED)
        return result

    @cached_property
    def _communicators(self) -> tuple[list[str | None], NDArray[np.int64]]:
        """The distinct communicators, and the index of each collective's communicator."""
        ids, number = codes(self._comms.group)
        labels = Labels()
        of_id = labels.numbers(self._strings.texts(ids)).astype(np.int64)
        texts: list[str | None] = [*labels.texts, None]
        of_id[of_id == UNKNOWN] = len(labels.texts)
        return texts, of_id[number] if len(ids) else np.zeros(0, np.int64)

    @cached_property
    def _labels(self) -> collectives.Labels:
        texts, _ = self._communicators
        return collectives.Labels(self._known, [text for text in texts if text is not None])


def _most(types: Labels, kinds: Ints, duration_ns: Ints) -> str:
    """Return the names of the collectives with most of a group's time."""
    time = np.bincount(kinds, weights=duration_ns + 1, minlength=len(types.texts))
    count = np.bincount(kinds, minlength=len(types.texts)).tolist()
    top = np.argsort(-time, kind="stable")[:3].tolist()
    return ", ".join(f"{types.texts[kind]} x{count[kind]:,}" for kind in top if count[kind])


@dataclass(frozen=True, slots=True, eq=False)
class TimeSlice:
    """Intervals of device tasks in a segment of time, clipped to the segment."""

    begin_ns: int
    until_ns: int
    compute: IntervalSet
    communication: IntervalSet
    copies: IntervalSet
    busy: IntervalSet  # Union of all three.


class Sweep:
    """Splits tasks, given in order of start, into consecutive time segments."""

    def __init__(self, communication: IntervalSet = EMPTY, *, parts: bool) -> None:
        """Start before all tasks.

        `communication` are intervals of whole collectives; if `parts`, their tasks count as
        communication too.
        """
        self._communication = communication
        self._kinds = (KERNEL, COPY, COMMUNICATION) if parts else (KERNEL, COPY)
        self._carried = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        self._begin_ns = 0

    def take(
        self, kind: NDArray[np.int8], start_ns: Ints, end_ns: Ints, until_ns: int = FOREVER
    ) -> TimeSlice:
        """Add tasks, and return the segment up to `until_ns`; later tasks start after it."""
        begin_ns, self._begin_ns = self._begin_ns, until_ns
        now = dict.fromkeys((KERNEL, COPY, COMMUNICATION), EMPTY)
        for what in self._kinds:
            chosen = kind == what
            found = intervals.union(
                self._carried[what], intervals.merge(start_ns[chosen], end_ns[chosen])
            )
            now[what] = intervals.part(found, begin_ns, until_ns)
            self._carried[what] = intervals.part(found, until_ns, FOREVER)
        communication = intervals.part(self._communication, begin_ns, until_ns)
        communication = intervals.union(communication, now[COMMUNICATION])
        busy = intervals.union(now[KERNEL], communication, now[COPY])
        return TimeSlice(begin_ns, until_ns, now[KERNEL], communication, now[COPY], busy)

    def rest(self) -> TimeSlice:
        """Return the last segment."""
        nothing = np.zeros(0, np.int64)
        return self.take(nothing.astype(np.int8), nothing, nothing)


@dataclass(slots=True)
class Sums:
    """Busy, compute, communication and copy time summed over segments."""

    compute_ns: int = 0
    communication_ns: int = 0
    overlap_ns: int = 0  # Communication that ran while a compute kernel did.
    copy_ns: int = 0
    busy_ns: int = 0
    communicates: bool = False
    # From the start of the first task to the end of the last; None: no task.
    span_ns: tuple[int, int] | None = field(default=None)

    def add(self, one: TimeSlice, within: IntervalSet | None = None) -> None:
        """Add a segment, or the part of it within `within`."""
        compute, communication, copies, busy = one.compute, one.communication, one.copies, one.busy
        if within is not None:
            here = intervals.part(within, one.begin_ns, one.until_ns)
            compute, communication = (
                intervals.intersect(here, each) for each in (compute, communication)
            )
            copies, busy = (intervals.intersect(here, each) for each in (copies, busy))
        self.compute_ns += compute.total_ns
        self.copy_ns += copies.total_ns
        self.busy_ns += compute.total_ns if busy is compute else busy.total_ns
        if len(one.communication):
            self.communicates = True
            self.communication_ns += communication.total_ns
            self.overlap_ns += intervals.intersect(compute, communication).total_ns
        if len(busy):
            first = int(busy.start_ns[0]) if self.span_ns is None else self.span_ns[0]
            self.span_ns = first, int(busy.end_ns[-1])

    @property
    def span(self) -> IntervalSet:
        """The span as a set of intervals."""
        ends = [] if self.span_ns is None else [self.span_ns]
        return IntervalSet(*(np.array([end[at] for end in ends], np.int64) for at in (0, 1)))
