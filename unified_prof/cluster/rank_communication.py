"""Communication of one rank, and columns of a partial from times alone.

`RankDatabase` is the open database of a rank, `RankCommunication` its collectives, transfers and
groups. The functions compute what kernels cover, parts of steps and the marks of the timeline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, NO_VALUE, Bools, Ints, Lookup, Runs
from unified_prof.arrays.intervals import IntervalSet
from unified_prof.base.columns import NO_RANK
from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import MARK_END, MARK_START, MARK_STEP, RankGroup
from unified_prof.recording import collectives, host_calls
from unified_prof.recording.collectives import ELEMENT_BYTES
from unified_prof.recording.host_calls import ANNOTATION, MODULE_RANGE
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import possible
from unified_prof.sqlite.reader import Report

# Operations that start a collective of the host; they may wait for an earlier one.
_STARTING_COLLECTIVES = ("c10d::", "record_param_comms")


class CoveredTime:
    """A merged set of intervals with its running sums."""

    def __init__(self, merged: IntervalSet, starts: Ints | None = None) -> None:
        """Prepare the sums; `starts` are the ascending starts of the intervals before merging."""
        self.set = merged
        self._starts = merged.start_ns if starts is None else starts

    def begun(self, start: Ints, end: Ints) -> Ints:
        """Return how many intervals start in each interval."""
        return np.asarray(
            np.searchsorted(self._starts, end) - np.searchsorted(self._starts, start), np.int64
        )

    def mark_intervals(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Split the time of each interval: before the first interval, covered, after the last.

        All of an interval without covered time counts as time before the first one.
        """
        covered = intervals.covered(self.set, start, end)
        length = end - start
        if not len(self.set):
            return length, covered, np.zeros(len(start), np.int64)
        following = np.searchsorted(self.set.end_ns, start, side="right")
        begin = self.set.start_ns[np.minimum(following, len(self.set) - 1)]
        lead = np.where(following < len(self.set), np.maximum(begin - start, 0), length)
        before = np.searchsorted(self.set.start_ns, end, side="left") - 1
        finish = self.set.end_ns[np.maximum(before, 0)]
        tail = np.where(before >= 0, np.maximum(end - finish, 0), length)
        uncovered = covered == 0
        return (
            np.where(uncovered, length, np.minimum(lead, length)),
            covered,
            np.where(uncovered, 0, np.minimum(tail, length)),
        )


def is_kind(codes: Ints, kinds: list[str], kind: str) -> Bools:
    """Return a mask of the rows of `codes` (indices in `kinds`) that are of `kind`."""
    return np.equal(codes, kinds.index(kind) if kind in kinds else NO_VALUE - 1)


def message_sizes(
    columns: Mapping[str, Ints],
    result: Mapping[str, Ints],
    groups: list[RankGroup],
    kinds: list[str],
    *,
    counts_parts: bool,
) -> Ints:
    """Return the size of the larger message of each operation, bytes; NO_VALUE if unknown."""
    types, inverse = np.unique(columns["data"], return_inverse=True)
    width = np.array([ELEMENT_BYTES.get(type_text, 0) for type_text in types.tolist()], np.int64)[
        inverse
    ]
    size = np.where((width > 0) & (columns["count"] >= 0), columns["count"] * width, NO_VALUE)
    members = np.array([max(group.size, 1) for group in groups] or [1], np.int64)[result["group"]]
    # HCCL counts the elements of one rank, torch those that a rank sends.
    for kind in collectives.PARTED if counts_parts else ("all_gather", "gather"):
        parted = is_kind(result["kind"], kinds, kind) & (size >= 0)
        size[parted] *= members[parted]
    return size


def size_groups(
    groups: list[RankGroup], group: Ints, owner: Ints, parts: Mapping[str, Ints]
) -> None:
    """Set the size of groups without recorded ranks to the largest position in them plus 1."""
    for index, one in enumerate(groups):
        if one.size == NO_VALUE:
            selected = (owner >= 0) & (group[np.maximum(owner, 0)] == index)
            places = np.concatenate([parts["src"][selected], parts["dst"][selected]])
            places = places[(places >= 0) & (places < NO_RANK)]
            if len(places):
                groups[index] = replace(one, size=int(places.max()) + 1)


def fill_peers(
    rank: int, result: dict[str, Ints], groups: list[RankGroup], kinds: list[str]
) -> None:
    """Set the peer of transfers in groups of two ranks."""
    transfers = is_kind(result["kind"], kinds, collectives.SEND)
    transfers |= is_kind(result["kind"], kinds, collectives.RECEIVE)
    for index in np.flatnonzero(transfers & (result["peer"] < 0)).tolist():
        members = groups[int(result["group"][index])].ranks
        if len(members) == 2 and rank in members:
            result["peer"][index] = members[0] if members[1] == rank else members[1]


def sequence_numbers(result: Mapping[str, Ints], kinds: list[str]) -> Ints:
    """Number the operations of each group and kind, and of each pair and direction, from 0."""
    transfer = is_kind(result["kind"], kinds, collectives.SEND)
    transfer |= is_kind(result["kind"], kinds, collectives.RECEIVE)
    # Transfers of a pair are one sequence, also across groups.
    group = np.where(
        transfer & (result["peer"] >= 0), NO_VALUE - 1 - result["peer"], result["group"]
    )
    order = np.lexsort((np.arange(len(group)), result["kind"], group))
    number = np.empty(len(order), np.int64)
    number[order] = Runs(group[order], result["kind"][order]).rank()
    return number


def union_by_owner(owner: Ints, start: Ints, duration: Ints, owners: int) -> Ints:
    """Return the length of the union of the intervals of each owner; NO_VALUE without any."""
    result = np.full(owners, NO_VALUE, np.int64)
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
    """Aggregate parts of collectives by source and target: counts, bytes, times and rates."""
    if not len(src):
        return partials.empty_columns("links")
    order = np.lexsort((size / duration, dst, src))
    src, dst, size, duration = src[order], dst[order], size[order], duration[order]
    pairs = Runs(src, dst)
    heads, counts = pairs.starts, pairs.sizes
    rate = (size * 1_000_000_000) // duration
    sums = (np.add.reduceat(one, heads) for one in (size, duration))
    rates = (rate[heads + counts // 2], rate[heads + counts // 100])
    return partials.named_columns("links", src[heads], dst[heads], counts, *sums, *rates)


def step_at(at: Ints, steps: Mapping[str, Ints]) -> Ints:
    """Return the step that contains each time; NO_VALUE outside of all steps."""
    step = intervals.holding(IntervalSet(steps["start"], steps["end"]), at)
    return np.append(steps["step"], NO_VALUE)[step]


def work_by_name(
    step: Ints,
    name: NDArray[np.integer],
    module: NDArray[np.integer],
    duration: NDArray[np.integer],
) -> dict[str, Ints]:
    """Aggregate kernels by step, name and module: counts and times."""
    inside = step >= 0
    step, duration = step[inside], duration[inside].astype(np.int64)
    name, module = name[inside].astype(np.int64), module[inside].astype(np.int64)
    if not len(step):
        return partials.empty_columns("kernels")
    order = np.lexsort((module, name, step))
    step, name, module, duration = step[order], name[order], module[order], duration[order]
    alike = Runs(step, name, module)
    heads = alike.starts
    times = (one.reduceat(duration, heads) for one in (np.add, np.minimum, np.maximum))
    keys = (one[heads] for one in (step, name, module))
    return partials.named_columns("kernels", *keys, alike.sizes, *times)


def step_time_parts(
    steps: Mapping[str, Ints],
    kernels: IntervalSet,
    operations: Mapping[str, Ints],
    busy: IntervalSet,
    loader: IntervalSet | None,
) -> dict[str, Ints]:
    """Return the parts of each step: unions of intervals, clipped to the step.

    Exposed communication is the time in which communication runs and no kernel does.
    """
    communication = intervals.merge(operations["start"], operations["end"])
    start, end = steps["start"], steps["end"]
    compute_ns, communication_ns, busy_ns = (
        intervals.covered(one, start, end) for one in (kernels, communication, busy)
    )
    late = np.full(len(start), NO_VALUE, np.int64)
    if loader is not None:
        late = intervals.covered(intervals.subtract(loader, busy), start, end)
    exposed_ns, idle_ns = busy_ns - compute_ns, (end - start) - busy_ns
    times = (compute_ns, communication_ns, exposed_ns, idle_ns, late)
    return partials.named_columns("steps", steps["step"], start, end, *times)


def cut_at_marks(
    operations: Mapping[str, Ints], steps: Mapping[str, Ints], kernels: CoveredTime
) -> dict[str, Ints]:
    """Cut the timeline where communication or a step starts or ends; see `MARK_COLUMNS`."""
    count = len(operations["start"])
    number = np.arange(count)
    time = np.concatenate([operations["start"], operations["end"], steps["start"]])
    what = np.repeat([MARK_START, MARK_END, MARK_STEP], [count, count, len(steps["start"])])
    op = np.concatenate([number, number, np.arange(len(steps["start"]))])
    last = kernels.set.end_ns[-1:] if len(kernels.set) else time[:0]
    first = kernels.set.start_ns[:1]
    if len(steps["end"]):
        last = np.concatenate([last, steps["end"][-1:]])
    # At equal times, ends come first, then the start of a step, then other starts.
    order = np.lexsort((op, np.array([2, 0, 1])[what], time))
    time, what, op = time[order], what[order], op[order]
    if len(first) and (not len(time) or first[0] < time[0]):
        time, what, op = np.r_[first, time], np.r_[MARK_STEP, what], np.r_[NO_VALUE, op]
    until = time
    if len(time):
        until = np.append(time[1:], max(int(time[-1]), int(last.max(initial=0))))
    lead, work, tail = kernels.mark_intervals(time, until)
    begun = kernels.begun(time, until)
    return partials.named_columns("marks", time, op, what, lead, work, tail, begun)


class RankDatabase:
    """An open msprof database of any revision, with cached copies of frequently read parts."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.recording = Recording(report)
        self.strings, self.findings = self.recording.strings, self.recording.findings
        self.run = self.texts("UPROF_RUN")
        self.is_gpu = self.run.get("device_kind") == "gpu" or "UPROF_GPU_TASKS" in report.tables
        self.groups = collectives.load_groups(report)
        self.tasks = self.recording.tasks
        # True if no device was recorded, and processes communicate with gloo.
        self.is_host_only = not len(self.tasks) and not report.rows(
            "SELECT 1 FROM COMMUNICATION_OP LIMIT 1"
        )

    @property
    def gloo_ranks(self) -> tuple[int, ...]:
        """The ranks of the only process group of a run without devices; else empty."""
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            (group,) = json.loads(self.run["trace_metadata"])["distributedInfo"]["pg_config"]
            return _rank_list(json.dumps(group["ranks"])) if self.is_host_only else ()
        return ()

    def host_operations(self) -> tuple[Ints, Ints, Ints]:
        """Return start, duration and name (string id) of the outermost operations, by start.

        Calls that start collectives are left out, because they may wait.
        """
        found = host_calls.read(self.report, self.strings, self.findings)
        columns = {
            name: found[name].to_array().astype(np.int64)
            for name in ("start", "duration", "thread", "name", "type")
        }
        rows = np.flatnonzero(~np.isin(columns["type"], [ANNOTATION, MODULE_RANGE]))
        start, duration, thread, name = (
            columns[one][rows] for one in ("start", "duration", "thread", "name")
        )
        ids = np.unique(name)
        starting = [
            one
            for one, text in zip(ids.tolist(), self.strings.texts(ids), strict=True)
            if str(text).startswith(_STARTING_COLLECTIVES)
        ]
        outermost = intervals.parents(thread, start, start + duration) == intervals.NONE
        chosen = np.flatnonzero(outermost & ~np.isin(name, starting))
        chosen = chosen[np.argsort(start[chosen], kind="stable")]
        return start[chosen], duration[chosen], name[chosen]

    def texts(self, table: str) -> dict[str, str]:
        """Return a table of names and values; empty if missing."""
        if table not in self.report.tables:
            return {}
        rows = self.report.rows(f"SELECT name, value FROM {table}")
        return {str(name): str(value) for name, value in rows if value is not None}


class RankCommunication:
    """Communication operations of a rank, their groups and kinds, and data by link.

    `only` is true if the database has no other rank.
    """

    def __init__(
        self, database: RankDatabase, rank: int, device: int | None, *, only: bool
    ) -> None:
        self.groups: list[RankGroup] = []
        self.kinds: list[str] = []
        self._database = database
        self._rank = rank
        columns = self._rows(device, only=only)
        size = len(columns["start"])
        self.operations = {
            name: np.full(size, NO_VALUE, np.int64) for name in partials.COMMUNICATION_COLUMNS
        }
        self.operations["start"] = columns["start"]
        self.operations["end"] = columns["start"] + columns["duration"]
        self.links = partials.empty_columns("links")
        if size:
            self._describe(columns)

    def _rows(self, device: int | None, *, only: bool) -> dict[str, Ints]:
        """Return the operations, sorted by start."""
        if self._database.is_host_only:
            return self._gloo_ranges()
        columns = self._database.report.integers(
            "COMMUNICATION_OP",
            {
                "start": "startNs",
                "duration": "endNs - startNs",
                "id": "opId",
                "name": "opName",
                "type": f"coalesce(opType, {MISSING + 1} - 1)",
                "group": "coalesce(groupName, -1)",
                "count": "coalesce(count, -1)",
                "data": "coalesce(dataType, -1)",
                "device": "coalesce(deviceId, -1)",
                "size": "coalesce(rankSize, -1)",
            },
        )
        valid = possible(columns["start"], columns["duration"])
        if not only:
            valid &= (columns["device"] == device) | (columns["device"] < 0)
        self._database.findings.add(
            "impossible_communication_time",
            f"{len(valid) - int(valid.sum())} operators ignored",
            int(len(valid) - valid.sum()) if only else 0,
        )
        order = np.flatnonzero(valid)
        order = order[np.argsort(columns["start"][order], kind="stable")]
        return {name: values[order] for name, values in columns.items()}

    def _gloo_ranges(self) -> dict[str, Ints]:
        """Return the ranges `gloo:all_reduce`, ... in which torch records collectives of a host."""
        rows = self._database.report.rows(
            "SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER) - CAST(startNs AS INTEGER),"
            " message FROM MSTX_EVENTS WHERE message IN"
            " (SELECT id FROM STRING_IDS WHERE value LIKE 'gloo:%') ORDER BY 1, 2"
        )
        table = np.array(rows, np.int64).reshape(-1, 3)
        unknown = np.full(len(table), NO_VALUE, np.int64)
        size = unknown
        if len(ranks := self._database.gloo_ranks) > 1:
            size = np.full(len(table), len(ranks), np.int64)
        columns = dict.fromkeys(("group", "count", "data", "device"), unknown)
        columns |= {"start": table[:, 0], "duration": table[:, 1], "type": table[:, 2]}
        return columns | {"name": table[:, 2], "id": np.arange(len(table)), "size": size}

    def _describe(self, columns: Mapping[str, Ints]) -> None:
        """Set kinds, groups, sizes, links, peers and sequence numbers, in this order."""
        found, is_gpu = self.operations, self._database.is_gpu
        # The kind index of each operation, from its recorded type or else its name.
        by_type = columns["type"] != MISSING
        ids, inverse = np.unique(
            np.where(by_type, columns["type"], columns["name"]), return_inverse=True
        )
        texts = [
            collectives.canonical(text or "") for text in self._database.strings.texts(ids.tolist())
        ]
        self.kinds += sorted(set(texts))
        number = {text: index for index, text in enumerate(self.kinds)}
        found["kind"] = np.array([number[text] for text in texts], np.int64)[inverse]
        found["group"] = self._numbered_groups(columns)
        found["bytes"] = message_sizes(
            columns, found, self.groups, self.kinds, counts_parts=not is_gpu
        )
        self.links = self._parts(columns)
        fill_peers(self._rank, found, self.groups, self.kinds)
        found["seq"] = sequence_numbers(found, self.kinds)

    def _numbered_groups(self, columns: Mapping[str, Ints]) -> Ints:
        """Return the group index of each operation, from recorded ranks or else the name."""
        ranks = self._recorded_ranks(columns["id"])
        pairs, first, inverse = np.unique(
            np.stack([columns["group"], ranks], 1), axis=0, return_index=True, return_inverse=True
        )
        for (name_id, ranks_id), at in zip(pairs.tolist(), first.tolist(), strict=True):
            name = self._database.strings.get(name_id) or (str(name_id) if name_id >= 0 else "")
            known = self._database.groups.get(name)
            ranks_of_group = _rank_list(self._database.strings.get(ranks_id)) or (
                known.ranks if known else self._database.gloo_ranks
            )
            size = int(columns["size"][at])
            self.groups.append(
                RankGroup(
                    name=name,
                    kind=known.kind if known else "other",
                    title=known.title if known else "",
                    ranks=ranks_of_group,
                    size=len(ranks_of_group) or (size if 0 < size < NO_RANK else NO_VALUE),
                )
            )
        return inverse.reshape(-1).astype(np.int64)

    def _recorded_ranks(self, ids: Ints) -> Ints:
        """Return the string id of the recorded ranks of each operation's group; -1 without any."""
        result = np.full(len(ids), NO_VALUE, np.int64)
        if "UPROF_COLLECTIVES" not in self._database.report.tables:
            return result
        recorded = self._database.report.integers(
            "UPROF_COLLECTIVES", {"id": "opId", "ranks": "coalesce(groupRanks, -1)"}
        )
        row = Lookup(recorded["id"]).rows(ids)
        result[row >= 0] = recorded["ranks"][row[row >= 0]]
        return result

    def _parts(self, columns: Mapping[str, Ints]) -> dict[str, Ints]:
        """Return data by link, and set peers and transfer times from the parts of operations."""
        operations = self.operations
        parts = self._database.report.integers(
            "COMMUNICATION_TASK_INFO",
            {
                "op": "coalesce(opId, -1)",
                "name": "name",
                "task": "globalTaskId",
                "src": f"coalesce(srcRank, {NO_RANK})",
                "dst": f"coalesce(dstRank, {NO_RANK})",
                "size": "coalesce(size, 0)",
                "transport": "coalesce(transportType, -1)",
            },
        )
        by_id = len(np.unique(columns["id"])) == len(columns["id"])
        keys = ("id", "op") if by_id else ("name", "name")
        owner = Lookup(columns[keys[0]]).rows(parts[keys[1]]).astype(np.int64)
        size_groups(self.groups, operations["group"], owner, parts)
        moves = (owner >= 0) & (parts["size"] > 0)
        parts = {name: values[moves] for name, values in parts.items()}
        owner = owner[moves]
        if not len(owner):
            return partials.empty_columns("links")
        src, dst = self._ends(parts, operations["group"][owner])
        sends = is_kind(operations["kind"][owner], self.kinds, collectives.SEND)
        receives = is_kind(operations["kind"][owner], self.kinds, collectives.RECEIVE)
        for selected, peer in ((sends, dst), (receives, src)):
            known = np.flatnonzero(selected & (peer >= 0) & (peer != self._rank))[::-1]
            operations["peer"][owner[known]] = peer[known]
        if self._database.is_gpu:
            return partials.empty_columns("links")  # each row is a whole kernel, including the wait
        row = Lookup(self._database.tasks.identity).rows(parts["task"])
        timed = row >= 0
        owner, row = owner[timed], row[timed]
        start = self._database.tasks.start_ns[row]
        duration = self._database.tasks.duration_ns[row].astype(np.int64)
        # A task of RDMA only posts its transfer, which the rest of the operation waits for.
        is_rdma = parts["transport"][timed] == collectives.RDMA
        until_end = np.where(is_rdma, operations["end"][owner] - start, duration).clip(duration)
        operations["move"] = union_by_owner(owner, start, until_end, len(operations["start"]))
        src, dst, size = src[timed], dst[timed], parts["size"][timed]
        usable = (src >= 0) & (dst >= 0) & (src != dst) & (duration > 0) & ~is_rdma
        usable &= ~(sends | receives)[timed]
        return link_parts(src[usable], dst[usable], size[usable], duration[usable])

    def _ends(self, parts: Mapping[str, Ints], group: Ints) -> tuple[Ints, Ints]:
        """Convert source and target from positions in the group to global ranks.

        Databases of older versions of uprof contain only one end, as a global rank.
        """
        known = [parts[end] < NO_RANK for end in ("src", "dst")]
        is_global = np.not_equal(known[0], known[1])
        if not self._database.is_gpu:
            is_global[:] = False
        width = max((len(group.ranks) for group in self.groups), default=0) + 1
        table = np.full((len(self.groups), width), NO_VALUE, np.int64)
        for index, one in enumerate(self.groups):
            table[index, : len(one.ranks)] = one.ranks
        ends = []
        for end in ("src", "dst"):
            place = np.where((parts[end] >= 0) & (parts[end] < width - 1), parts[end], width - 1)
            inside = table[group, place]
            recorded = np.where(parts[end] < NO_RANK, parts[end], NO_VALUE)
            ends.append(np.where(is_global, recorded, inside))
        return ends[0], ends[1]


def _rank_list(text: str | None) -> tuple[int, ...]:
    with suppress(ValueError, RecursionError, TypeError):
        ranks = json.loads(text or "")
        if isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks):
            return tuple(ranks)
    return ()
