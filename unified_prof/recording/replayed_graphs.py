"""Attribution of the device tasks of replayed graphs to operations recorded during capture.

A replay is one host call that launches hundreds of kernels; their operations are only known from
the recording of the capture. The nth launch of a capture is the nth node of its graph. CUDA records
the node of each replayed task. If nodes are missing, tasks on a single stream are matched in order,
as they start in the order of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Ints, Lookup, by_key, value_by_key
from unified_prof.arrays.nesting import NONE
from unified_prof.base.columns import NO_CONNECTION
from unified_prof.recording.calls import COMMUNICATION, COPY, KERNEL
from unified_prof.recording.framework import Framework
from unified_prof.recording.host_calls import HostCalls
from unified_prof.recording.names import (
    BEGINS_CAPTURE,
    CAPTURED_LAUNCH,
    COPIES_MEMORY,
    ENDS_CAPTURE,
    LAUNCHES_GRAPH,
    Words,
)
from unified_prof.recording.source import Findings, Source, Strings
from unified_prof.recording.tasks import Tasks


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The captured operation of each device task."""

    framework: Framework  # The operations of the capture.
    # Host range of the operation; NONE: not part of a replay, or the capture is unknown.
    call: Ints
    connection: Ints  # Connection id of the launch in the capture; NO_CONNECTION for other tasks.
    passes: NDArray[np.int8]
    replay: Ints  # Row of the call that launched the replay, -1 for other tasks.
    launched_ns: Ints  # Start of that call.


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """The launches of one capture, in order."""

    call: Ints
    connection: Ints
    passes: NDArray[np.int8]
    copies: NDArray[np.bool_]
    names: tuple[str, ...]  # Names of the operations.


class Capture:
    """The captured graphs of a recording."""

    def __init__(
        self, tasks: Tasks, calls: HostCalls, framework: Framework, strings: Strings
    ) -> None:
        self._framework = framework
        names = strings.texts(calls.name.tolist())
        order = np.argsort(calls.start_ns, kind="stable")
        launched = Lookup(tasks.connection).rows(calls.connection.to_array()) >= 0

        def matches(wanted: Words) -> NDArray[np.bool_]:
            return calls.matching(strings, wanted)[order]

        waits = order[matches(CAPTURED_LAUNCH) & ~launched[order]]
        copies = np.array([COPIES_MEMORY(names[row]) for row in waits.tolist()], bool)
        connection = calls.connection[waits]
        owners = framework.launches(connection)
        texts, number = framework.names(owners.call)
        operations = [
            texts[name] if call != NONE else ""
            for name, call in zip(number.tolist(), owners.call.tolist(), strict=True)
        ]
        self._graphs = []
        at = calls.start_ns[waits]
        begins, ends = order[matches(BEGINS_CAPTURE)], order[matches(ENDS_CAPTURE)]
        for first, behind in _sections(calls, begins, ends, at):
            own = slice(first, behind)
            self._graphs.append(
                _Graph(
                    owners.call[own],
                    connection[own],
                    owners.passes[own],
                    copies[own],
                    tuple(operations[own]),
                )
            )

    def attribute(
        self,
        source: Source,
        strings: Strings,
        calls: HostCalls,
        tasks: Tasks,
        chosen: NDArray[np.integer],
        findings: Findings,
    ) -> Captured:
        """Attribute the device tasks of a recording's replays to the captured operations.

        Args:
            source: the recording with the replays.
            strings: its texts.
            calls: its runtime calls.
            tasks: its device tasks.
            chosen: index in TASK of each device task, -1 for whole collectives.
            findings: counts replays whose capture was not found.
        """
        row = calls.launching(tasks.connection)
        names = strings.texts(calls.name.tolist())
        replays = np.array([*map(LAUNCHES_GRAPH, names), False])
        is_work = np.isin(tasks.kind, (KERNEL, COPY, COMMUNICATION))
        replay = np.where(replays[row] & is_work, row, NONE).astype(np.int64)
        call = np.full(len(replay), NONE, np.int64)
        connection = np.full(len(replay), NO_CONNECTION, np.int64)
        passes = np.full(len(replay), -1, np.int8)
        node = _nodes(source, tasks.identity)
        for launch, own in by_key(replay):
            if launch == NONE:
                continue
            of_nodes = bool((node[own] >= 0).all()) and len(np.unique(node[own])) == len(own)
            if not of_nodes and len(np.unique(tasks.stream[own])) > 1:
                findings.add(
                    "replay_without_nodes",
                    "a graph ran on several streams, but graph nodes of kernels were not recorded",
                    1,
                )
                continue
            order = node if of_nodes else tasks.start_ns
            own = own[np.argsort(order[own], kind="stable")]
            graph = self._graph_of(tasks.kind[own], findings)
            if graph is not None:
                call[own], passes[own] = graph.call, graph.passes
                connection[own] = graph.connection
        # Collectives are always separate rows.
        call[tasks.kind == COMMUNICATION] = NONE
        connection[tasks.kind == COMMUNICATION] = NO_CONNECTION
        launched = np.append(calls.start_ns, 0)[replay]
        columns = (
            np.append(column, none)[chosen]
            for column, none in (
                (call, NONE),
                (connection, NO_CONNECTION),
                (passes, -1),
                (replay, NONE),
                (launched, 0),
            )
        )
        return Captured(self._framework, *columns)

    def _graph_of(self, kind: NDArray[np.int8], findings: Findings) -> _Graph | None:
        """Return the capture that has a replay's number of launches and positions of copies."""
        copies = kind == COPY
        result = [
            graph
            for graph in self._graphs
            if len(graph.call) == len(kind) and np.array_equal(graph.copies, copies)
        ]
        if not result:
            sizes = sorted({len(graph.call) for graph in self._graphs})
            most = ", ".join(f"{size:,}" for size in sizes[:8]) or "none"
            findings.add(
                "replay_without_capture",
                f"a graph with {len(kind):,} launches was replayed; "
                f"the captured graphs have {most}",
                1,
            )
            return None
        if len({one.names for one in result}) > 1:
            findings.add(
                "replay_of_several_captures",
                f"{len(result)} different captured graphs have {len(kind):,} launches",
                1,
            )
            return None
        return result[0]


def _sections(calls: HostCalls, begins: Ints, ends: Ints, at_ns: Ints) -> list[tuple[int, int]]:
    """Return the range of launches in each capture: from its begin call to its end call, else all.

    Other threads of the captured code, such as autograd's, launch into the same graph.
    """
    result = []
    for begin in begins.tolist():
        later = ends[
            (calls.thread[ends] == calls.thread[begin])
            & (calls.start_ns[ends] >= calls.end_ns[begin])
        ]
        if len(later):
            bounds = (calls.start_ns[begin], calls.end_ns[later[0]])
            first, behind = np.searchsorted(at_ns, np.array(bounds)).tolist()
            result.append((first, behind))
    return result or [(0, len(at_ns))]


def _nodes(source: Source, identity: Ints) -> Ints:
    """Return the graph node of each task, -1 if not recorded."""
    result = np.full(len(identity), -1, np.int64)
    if "UPROF_GPU_TASKS" in source.tables:
        columns = {"id": "globalTaskId", "node": "graphNodeId"}
        found = source.integers("UPROF_GPU_TASKS", columns)
        node = value_by_key(found["id"], found["node"], identity, MISSING)
        result[node > 0] = node[node > 0]
    return result
