"""Self time of operations at every depth, and the innermost range or call of a host thread.

Other breakdowns by operation attribute all time to the outermost operation, including backward.
Here each call has its own row, as in the tables of `torch.profiler` and TraceLens. Operations of a
graph capture have the device time of each replay and no host time.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Bools, Ints, positions, rising
from unified_prof.recording import names
from unified_prof.recording.breakdowns import finish
from unified_prof.recording.calls import UNKNOWN, Labels, sort_rows
from unified_prof.recording.framework import NONE, Framework
from unified_prof.recording.model import Breakdown, BreakdownSpec, By, Row
from unified_prof.recording.recording import Recording

# Ranges that are neither operations nor annotations: Python frames, modules.
_UNNAMED_CODE = re.compile(r"\.py\(\d+\): |^<built-in |^nn\.Module: ")
_OUTSIDE = "(outside any operation)"


class HostTimeline:
    """Looks up the innermost range or call of host threads."""

    def __init__(self, recording: Recording, labels: Labels) -> None:
        self._recording, self._labels = recording, labels

    def split(self, thread: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Divide intervals of threads at every begin and end of a range or call.

        Returns begins, ends, and the index of the interval that each part belongs to.
        """
        calls, framework = self._recording.host_calls, self._recording.framework
        parts: list[tuple[Ints, Ints, Ints]] = []
        for number in np.unique(thread).tolist():
            selected = np.flatnonzero(thread == number)
            edges = []
            for table in (calls, framework):
                if table is not None:
                    rows = table.thread == number
                    edges += [table.start_ns[rows], table.end_ns[rows]]
            cuts = rising(np.concatenate(edges))
            low = np.searchsorted(cuts, start[selected], side="right")
            high = np.searchsorted(cuts, end[selected], side="left")
            many = np.maximum(high - low, 0) + 1
            of = np.repeat(selected, many)
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

    def innermost(
        self, thread: Ints, at_ns: Ints
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], Bools]:
        """Return the innermost code of threads at some times, its line, and a mask of data loading.

        That is the operation, else the runtime call, else any range.
        """
        framework, labels = self._recording.framework, self._labels
        outside = labels.number(_OUTSIDE)
        called = self._calls_at(thread, at_ns)
        nothing = np.full(len(at_ns), UNKNOWN, np.int32)
        if framework is None:
            return np.where(called >= 0, called, outside), nothing, np.zeros(len(at_ns), bool)
        place = framework.places_at(thread, at_ns)
        stacks, stack = framework.stacks(place)
        lines = labels.numbers(
            [None if stack is None else stack.rpartition("\n")[2] for stack in stacks]
        )
        line = lines[stack] if len(lines) else nothing
        texts, number = framework.names(place)
        is_step = self._recording.is_step_range
        shown = [
            _OUTSIDE if not text or _UNNAMED_CODE.search(text) or is_step(text) else text
            for text in texts
        ]
        own = labels.numbers(shown)[number] if texts else nothing
        own = np.where(place >= 0, own, outside)
        operation = framework.is_operation(place)
        # Between operations the line of the program is more precise than the frame around it.
        own = np.where(~operation & (line >= 0) & (own == outside), line, own)
        name = np.where(operation | (called < 0), own, called).astype(np.int32)
        fetching = framework.matching(names.FETCHES_INPUT)
        inside = np.zeros(len(at_ns), bool)
        for one in np.unique(framework.thread[fetching]).tolist():
            rows = fetching[framework.thread[fetching] == one]
            waits = intervals.merge(framework.start_ns[rows], framework.end_ns[rows])
            inside |= (thread == one) & (intervals.holding(waits, at_ns) >= 0)
        return name, np.where(line == name, UNKNOWN, line).astype(np.int32), inside

    def _calls_at(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return the name of the runtime call at some times, or UNKNOWN."""
        calls, strings = self._recording.host_calls, self._recording.strings
        is_known = np.isin(calls.thread, np.unique(thread)) & (calls.end_ns > calls.start_ns)
        rows = np.flatnonzero(is_known)
        result = np.full(len(at_ns), UNKNOWN, np.int64)
        if not len(rows):
            return result
        own, start, end = calls.thread[rows], calls.start_ns[rows], calls.end_ns[rows]
        order = intervals.call_order(own, start, end)
        rows, own, start, end = rows[order], own[order], start[order], end[order]
        parent = intervals.parents(own, start, end)
        found = intervals.innermost_at(own, start, end, parent, thread, at_ns)
        ids = np.unique(calls.name[rows])
        numbers = self._labels.numbers(strings.texts(ids.tolist()))
        inside = found >= 0
        at = np.searchsorted(ids, calls.name[rows[found[inside]]])
        result[inside] = numbers[at]
        return result


NO_OPERATION = "(launched by no operation)"


class CallTree:
    """Recorded calls as a tree, with self and total times.

    Attributes:
        ranges: Rows of the framework, one per call.
        parent: Calling call, as an index into `ranges`.
        recomputed: Mask of calls that activation checkpointing repeats.
        count: Number of executions: 1, or the number of replays of a captured call.
    """

    def __init__(
        self, framework: Framework, connection: Ints, duration_ns: Ints, replay: Ints | None = None
    ) -> None:
        """Attribute device tasks by connection; `replay` numbers the replays of a capture."""
        self.framework = framework
        self.ranges = np.flatnonzero(framework.recorded)
        place = np.full(len(framework) + 1, NONE, np.int64)
        place[self.ranges] = np.arange(len(self.ranges))
        above = intervals.nearest_marked(framework.parent.to_array(), framework.recorded)
        up = framework.parent[self.ranges]
        self.parent: Ints = np.where(up == NONE, NONE, place[above[up]])
        start, end = framework.start_ns[self.ranges], framework.end_ns[self.ranges]
        self.host_ns: Ints = end - start
        inside = self.parent != NONE
        # Due to rounding, a call may end slightly after the one around it.
        within = np.minimum(end, end[self.parent])[inside] - start[inside]
        taken = np.bincount(self.parent[inside], within, minlength=len(start))
        self.self_host_ns: Ints = np.maximum(self.host_ns - taken.astype(np.int64), 0)
        call = place[framework.direct(connection)]
        known = call != NONE
        size = len(self.ranges)
        self.launches: Ints = np.bincount(call[known], minlength=size)
        own = np.bincount(call[known], duration_ns[known], minlength=size).astype(np.int64)
        self.self_device_ns, self.device_ns = own, self._summed(own)
        self.recomputed, _ = recomputed(framework, self.ranges)
        self.replayed = replay is not None
        self.count: Ints = np.ones(size, np.int64)
        if replay is not None:
            self.count = self._replay_count(call[known], replay[known])

    def _replay_count(self, call: Ints, replay: Ints) -> Ints:
        """Return the number of replays in which each call, or a call below it, launched tasks."""
        found = []
        while len(call):
            pairs = np.unique(np.stack((call, replay)), axis=1)
            found.append(pairs)
            call, replay = self.parent[pairs[0]], pairs[1]
            call, replay = call[call != NONE], replay[call != NONE]
        if not found:
            return np.zeros(len(self.ranges), np.int64)
        all_of_them = np.unique(np.concatenate(found, axis=1), axis=1)
        return np.bincount(all_of_them[0], minlength=len(self.ranges))

    def _summed(self, own: Ints) -> Ints:
        """Return the sum over each call and all below it."""
        total = own.copy()
        for deep in self._by_depth()[:0:-1]:
            np.add.at(total, self.parent[deep], total[deep])
        return total

    def _by_depth(self) -> list[Ints]:
        """Return the calls of each nesting depth, outermost first."""
        depth = np.zeros(len(self.parent), np.int64)
        at = self.parent.copy()
        while (inside := at != NONE).any():
            depth[inside] += 1
            at[inside] = self.parent[at[inside]]
        order = np.argsort(depth, kind="stable")
        edges = np.cumsum(np.bincount(depth, minlength=1))[:-1]
        return [one.astype(np.int64) for one in np.split(order, edges)]

    def outermost(self, key: Ints) -> Bools:
        """Return a mask of the calls that are not within a call with the same key."""
        result = np.ones(len(key), bool)
        at = self.parent.copy()
        while (looking := np.flatnonzero(at != NONE)).size:
            same = key[at[looking]] == key[looking]
            result[looking[same]] = False
            at[looking] = np.where(same, NONE, self.parent[at[looking]])
        return result

    def _repeats_parent(self, key: Ints) -> Bools:
        """Return a mask of the calls that are the only child of a call with the same key."""
        inside = np.flatnonzero(self.parent != NONE)
        above = self.parent[inside]
        children = np.bincount(above, minlength=len(key))
        result = np.zeros(len(key), bool)
        result[inside] = (key[above] == key[inside]) & (children[above] == 1)
        return result

    def rows(
        self, key: Ints, names: list[str], details: list[str | None], *, on_device: bool
    ) -> list[Row]:
        """Return a row with the self time of each key.

        Total times leave out calls inside one with the same key, whose time is part of it. An only
        child with the key of its parent is not counted, as in `torch.profiler.key_averages()`:
        torch's overloads call one another.
        """
        size = len(names)
        outer = self.outermost(key)

        def total(values: Ints, chosen: Bools | slice = slice(None)) -> list[int]:
            sums = np.bincount(key[chosen], values[chosen], minlength=size)
            return [int(one) for one in sums.tolist()]

        count = total(self.count, ~self._repeats_parent(key))
        host, self_host = total(self.host_ns, outer), total(self.self_host_ns)
        device, self_device = total(self.device_ns, outer), total(self.self_device_ns)
        launches = total(self.launches)
        again = total(self.self_device_ns, self.recomputed) if self.recomputed.any() else None
        rows = []
        for number in range(size):
            if not count[number]:
                continue  # a captured call that launched nothing
            host_times: dict[str, float | None] = {
                "self_host_ns": None if self.replayed else self_host[number],
                "host_ns": None if self.replayed else host[number],
            }
            device_times: dict[str, float | None] = {
                "with_callees_ns": device[number],
                "launches": launches[number],
            }
            if again is not None:
                device_times["recomputed_ns"] = again[number]
            rows.append(
                Row(
                    name=names[number],
                    kind="operation",
                    count=count[number],
                    total_ns=self_device[number] if on_device else self_host[number],
                    detail=details[number],
                    extra=device_times | host_times if on_device else {"host_ns": host[number]},
                )
            )
        return rows


_REENTRANT = "CheckpointFunctionBackward"
_NODE = re.compile(r"autograd::engine::evaluate_function|.*(?:Backward\d*|AccumulateGrad)$")
_RECOMPUTE = "torch/utils/checkpoint.py({}): recompute_fn"


def recomputed(framework: Framework, ranges: Ints) -> tuple[Bools, Bools]:
    """Return a mask of calls that activation checkpointing repeats, and of those recorded as such.

    Reentrant checkpoints are an operation, which also runs a backward pass; others are a Python
    function. Without Python functions, layers that run within the node of another operation, and
    what precedes them there, are repeated.
    """
    again = np.zeros(len(framework), bool)
    again[framework.called_through("%" + _RECOMPUTE.format("%"))] = True
    frame = re.compile(re.escape(_RECOMPUTE).replace(r"\{\}", r"\d+") + "$")
    marked, among, layers = np.zeros((3, len(framework)), bool)
    marked[framework.matching(lambda text: text == _REENTRANT or bool(frame.search(text)))] = True
    among[framework.matching(lambda text: _NODE.match(text) is not None)] = True
    nearest = framework.around(ranges, marked | among)
    inside = nearest != NONE
    recorded: Bools = again[ranges] | inside & marked[nearest]
    layers[framework.matching(names.LAYER)] = True
    layer = inside & layers[ranges]
    layers[framework.matching(names.PRODUCT)] = True
    layer = layers[ranges] & np.isin(nearest, nearest[layer])
    until = np.zeros(len(framework), np.int64)
    np.maximum.at(until, nearest[layer], framework.end_ns[ranges[layer]])
    inferred = inside & (framework.start_ns[ranges] < until[nearest])
    return recorded | inferred, recorded


def _frameworks(recording: Recording) -> list[Framework]:
    """Return the frameworks with recorded calls: of the recording, and of its graph capture."""
    recordings = (recording, recording.captured_in)
    result = [one.framework for one in recordings if one is not None]
    return [one for one in result if one is not None and bool(one.recorded.any())]


def _has_shapes(recording: Recording) -> bool:
    return any(
        any(framework.inputs(np.flatnonzero(framework.recorded))[0])
        for framework in _frameworks(recording)
    )


def _trees(recording: Recording) -> list[CallTree]:
    """Return the calls of the recording and of its graph capture, with their device tasks."""
    work, result = recording.work, []
    connection = work.connection.to_array().astype(np.int64)
    duration = work.duration_ns.to_array().astype(np.int64)
    captured = work.captured
    rest = np.ones(len(work), bool)
    if captured is not None:
        replayed = captured.framework.direct(captured.connection) != NONE
        rest &= ~replayed
        rows = np.flatnonzero(replayed)
        result.append(
            CallTree(
                captured.framework, captured.connection[rows], duration[rows], captured.replay[rows]
            )
        )
    if recording.framework is not None:
        result.append(CallTree(recording.framework, connection[rest], duration[rest]))
    return result


def _breakdown(recording: Recording, by: By) -> Breakdown:
    on_device = recording.clock == "device"
    trees = _trees(recording)
    rows: dict[tuple[str, str | None], Row] = {}
    for tree in trees:
        for row in _rows_of(tree, by, on_device=on_device):
            key = row.name, row.detail
            rows[key] = _add_rows(rows[key], row) if key in rows else row
    result = list(rows.values())
    pieces = len(recording.work) - sum(int(tree.launches.sum()) for tree in trees)
    if pieces:
        time = recording.work.total_ns - sum(int(tree.self_device_ns.sum()) for tree in trees)
        result.append(Row(name=NO_OPERATION, kind="other", count=pieces, total_ns=time))
    return finish(by, sort_rows(result))


def _rows_of(tree: CallTree, by: By, *, on_device: bool) -> list[Row]:
    texts, key = tree.framework.names(tree.ranges)
    key = key.astype(np.int64)
    inputs: list[str] = [""]
    if by == "shape":
        inputs, of_range = tree.framework.inputs(tree.ranges)
        key = key * len(inputs) + of_range
    distinct, number = np.unique(key, return_inverse=True)
    pairs = [divmod(one, len(inputs)) for one in distinct.tolist()]
    names = [texts[name] or "(unnamed operation)" for name, _ in pairs]
    details = [inputs[given] or None for _, given in pairs]
    return tree.rows(number.astype(np.int64), names, details, on_device=on_device)


def _add_rows(one: Row, other: Row) -> Row:
    """Return the sum of two rows: directly launched tasks and replayed ones."""
    extra = dict(one.extra)
    for name, value in other.extra.items():
        before = extra.get(name)
        extra[name] = value if before is None else before + (value or 0)
    total = (one.total_ns or 0) + (other.total_ns or 0)
    return replace(one, count=one.count + other.count, total_ns=total, extra=extra)


BREAKDOWNS = {
    "self": BreakdownSpec(
        lambda recording: bool(_frameworks(recording)),
        lambda recording: _breakdown(recording, "self"),
    ),
    "shape": BreakdownSpec(_has_shapes, lambda recording: _breakdown(recording, "shape")),
}
