"""Operations at every depth: what each did itself, and what with all that it called.

The other breakdowns by operation count an outermost operation with all below it, backward with
forward. Here each call stands for itself, `aten::mm` below `AddmmBackward0` as what it is: as
`torch.profiler`'s own tables, and TraceLens' of what launched kernels directly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import sort_rows
from unified_prof.analysis.kinds import By
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.read.framework import NONE, Framework
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.breakdowns import finish
from unified_prof.analysis.ways import Way
from unified_prof.arrays import nesting

Ints = NDArray[np.int64]

NO_OPERATION = "(launched by no operation)"


class Nested:
    """The recorded calls as a tree, with the time of each in itself and in all."""

    def __init__(self, framework: Framework, recording: Recording) -> None:
        self.framework = framework
        self.ranges = np.flatnonzero(framework.recorded)
        place = np.full(len(framework) + 1, NONE, np.int64)
        place[self.ranges] = np.arange(len(self.ranges))
        above = nesting.nearest_marked(framework.parent.whole(), framework.recorded)
        up = framework.parent[self.ranges]
        self.parent: Ints = np.where(up == NONE, NONE, place[above[up]])
        """The call around each, as an index into `ranges`."""
        start, end = framework.start_ns[self.ranges], framework.end_ns[self.ranges]
        self.host_ns: Ints = end - start
        inside = self.parent != NONE
        # Clocks round: a call may end a little after the one around it.
        within = np.minimum(end, end[self.parent])[inside] - start[inside]
        taken = np.bincount(self.parent[inside], within, minlength=len(start))
        self.self_host_ns: Ints = np.maximum(self.host_ns - taken.astype(np.int64), 0)
        self.on_device = recording.clock == "device"
        self.unknown = (0, 0)
        """Pieces of device work that no recorded call launched, and their time."""
        self.launches = self.self_device_ns = self.device_ns = np.zeros(len(start), np.int64)
        if self.on_device:
            self._add_device(recording, place)

    def _add_device(self, recording: Recording, place: Ints) -> None:
        duration = recording.work.duration_ns.whole().astype(np.int64)
        call = place[self.framework.direct(recording.work.connection.whole())]
        known = call != NONE
        size = len(self.ranges)
        self.unknown = int(len(call) - known.sum()), int(duration[~known].sum())
        self.launches = np.bincount(call[known], minlength=size)
        own = np.bincount(call[known], duration[known], minlength=size).astype(np.int64)
        self.self_device_ns, self.device_ns = own, self._summed(own)

    def _summed(self, own: Ints) -> Ints:
        """Return the values of each call and of all below it."""
        total = own.copy()
        for deep in self._by_depth()[:0:-1]:
            np.add.at(total, self.parent[deep], total[deep])
        return total

    def _by_depth(self) -> list[Ints]:
        """Return the calls of each depth, the outermost first."""
        depth = np.zeros(len(self.parent), np.int64)
        at = self.parent.copy()
        while (inside := at != NONE).any():
            depth[inside] += 1
            at[inside] = self.parent[at[inside]]
        order = np.argsort(depth, kind="stable")
        edges = np.cumsum(np.bincount(depth, minlength=1))[:-1]
        return [one.astype(np.int64) for one in np.split(order, edges)]

    def outermost(self, key: Ints) -> NDArray[np.bool_]:
        """Tell which calls are within none of the same key: those count where all is summed up."""
        result = np.ones(len(key), bool)
        at = self.parent.copy()
        while (looking := np.flatnonzero(at != NONE)).size:
            same = key[at[looking]] == key[looking]
            result[looking[same]] = False
            at[looking] = np.where(same, NONE, self.parent[at[looking]])
        return result

    def rows(self, key: Ints, names: list[str], details: list[str | None]) -> list[Row]:
        """Return one row for each key, in falling order of time in itself.

        A call within one of the same key is part of it: torch's overloads call one another.
        """
        size = len(names)
        outer = self.outermost(key)

        def total(values: Ints, chosen: NDArray[np.bool_] | slice = slice(None)) -> list[int]:
            sums = np.bincount(key[chosen], values[chosen], minlength=size)
            return [int(one) for one in sums.tolist()]

        count = np.bincount(key[outer], minlength=size).tolist()
        host, self_host = total(self.host_ns, outer), total(self.self_host_ns)
        device, self_device = total(self.device_ns, outer), total(self.self_device_ns)
        launches = total(self.launches)
        rows = []
        for number in range(size):
            on_host: dict[str, float | None] = {
                "self_host_ns": self_host[number],
                "host_ns": host[number],
            }
            on_device: dict[str, float | None] = {
                "with_callees_ns": device[number],
                "launches": launches[number],
            }
            rows.append(
                Row(
                    name=names[number],
                    kind="operation",
                    count=count[number],
                    total_ns=self_device[number] if self.on_device else self_host[number],
                    detail=details[number],
                    extra=on_device | on_host if self.on_device else {"host_ns": host[number]},
                )
            )
        return sort_rows(rows)


def _offered(recording: Recording) -> bool:
    return recording.framework is not None and bool(recording.framework.recorded.any())


def _has_shapes(recording: Recording) -> bool:
    if not _offered(recording):
        return False
    assert recording.framework is not None
    texts, _ = recording.framework.inputs(np.flatnonzero(recording.framework.recorded))
    return any(texts)


def _made(recording: Recording, by: By) -> Breakdown:
    framework = recording.framework
    assert framework is not None
    nested = Nested(framework, recording)
    texts, key = framework.names(nested.ranges)
    key = key.astype(np.int64)
    inputs: list[str] = [""]
    if by == "shape":
        inputs, of_range = framework.inputs(nested.ranges)
        key = key * len(inputs) + of_range
    distinct, number = np.unique(key, return_inverse=True)
    pairs = [divmod(one, len(inputs)) for one in distinct.tolist()]
    names = [texts[name] or "(unnamed operation)" for name, _ in pairs]
    rows = nested.rows(
        number.astype(np.int64), names, [inputs[given] or None for _, given in pairs]
    )
    pieces, time = nested.unknown
    if pieces:
        rows.append(Row(name=NO_OPERATION, kind="other", count=pieces, total_ns=time))
    return finish(by, sort_rows(rows))


WAYS = {
    "self": Way(_offered, lambda recording: _made(recording, "self")),
    "shape": Way(_has_shapes, lambda recording: _made(recording, "shape")),
}
