"""Time and memory as trees, for an icicle: by module, by source line, by operation and kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.calls import SIZES, UNKNOWN, Calls, Ints, SomeCalls, sums_by
from unified_prof.analysis.model import Row
from unified_prof.analysis.views.breakdowns import NO_LINE, NO_MODULE, module_parts

Kind = Literal["module", "line", "operation"]

MEASURES = ("total_ns", "forward_ns", "backward_ns", "size_bytes")
"""What a node's values measure, in their order."""

_AS_MANY = 8
"""Calls that are looked at together for each text that they may have."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node: everything below it included."""

    name: str
    parent: int
    """Index of the parent, which comes before it; -1 is the top."""
    values: tuple[int, int, int, int]
    """See MEASURES; 0 where nothing was measured, see `Tree.measures`."""
    count: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree whose first node is everything."""

    kind: Kind
    nodes: tuple[Node, ...]
    measures: tuple[str, ...]
    """Those of MEASURES that the report has at all."""


def trees(analysis: Analysis) -> tuple[Tree, ...]:
    """Return the trees that a report can give: modules, source lines, operations and kernels."""
    builder = _Builder()
    pairs = analysis.kernels_of_operations()
    if pairs and not analysis.has_places:
        return (_of_pairs(builder, pairs, ("total_ns",)),)
    calls = analysis.held_calls
    if not len(calls):
        return ()
    measures = _measures(calls)
    texts = calls.labels.texts
    result = []
    if calls.has("module"):
        result.append(_of_calls("module", calls, lambda some: some.module, _module_path, measures))
    if calls.has("stack"):
        result.append(_of_calls("line", calls, lambda some: some.stack, _frames, measures))
    if not pairs:
        for number, values, count in _grouped(calls, lambda some: some.name):
            builder.add([texts[number]], values, count)
    result.append(_of_pairs(builder, pairs, measures))
    return tuple(result)


def _of_pairs(builder: _Builder, pairs: list[tuple[str, Row]], measures: tuple[str, ...]) -> Tree:
    """Return the tree of operations and the kernels under them."""
    for operation, row in pairs:
        times = (row.total_ns or 0, row.forward_ns or 0, row.backward_ns or 0, 0)
        path = [operation] if operation == row.name else [operation, row.name]
        builder.add(path, times, row.count)
    return builder.tree("operation", measures)


class _Builder:
    """Adds up values along paths."""

    def __init__(self) -> None:
        self._names = [""]
        self._parents = [-1]
        self._values = [[0, 0, 0, 0]]
        self._counts = [0]
        self._children: dict[tuple[int, str], int] = {}

    def add(self, path: list[str], values: tuple[int, ...], count: int) -> None:
        """Add values to every node from the top to the end of `path`."""
        node = 0
        self._sum(node, values, count)
        for name in path:
            child = self._children.setdefault((node, name), len(self._names))
            if child == len(self._names):
                self._names.append(name)
                self._parents.append(node)
                self._values.append([0, 0, 0, 0])
                self._counts.append(0)
            node = child
            self._sum(node, values, count)

    def _sum(self, node: int, values: tuple[int, ...], count: int) -> None:
        own = self._values[node]
        for index, value in enumerate(values):
            own[index] += value
        self._counts[node] += count

    def tree(self, kind: Kind, measures: tuple[str, ...]) -> Tree:
        columns = zip(self._names, self._parents, self._values, self._counts, strict=True)
        nodes = tuple(
            Node(name, parent, (values[0], values[1], values[2], values[3]), count)
            for name, parent, values, count in columns
        )
        return Tree(kind, nodes, measures)


def _of_calls(
    kind: Kind,
    calls: SomeCalls,
    label_of: Callable[[Calls], Ints | None],
    path_of: Callable[[str | None], list[str]],
    measures: tuple[str, ...],
) -> Tree:
    """Return the tree of the labels' paths, with the operations as leaves."""
    texts = calls.labels.texts
    builder = _Builder()

    def pairs(some: Calls) -> Ints:
        label = label_of(some)
        assert label is not None, "asked for calls that have it"
        return (label.astype(np.int64) + 1) * len(texts) + some.name

    for pair, values, count in _grouped(calls, pairs):
        text = calls.labels.text(pair // len(texts) - 1)
        builder.add([*path_of(text), texts[pair % len(texts)]], values, count)
    return builder.tree(kind, measures)


def _grouped(
    calls: SomeCalls, key_of: Callable[[Calls], Ints]
) -> list[tuple[int, tuple[int, ...], int]]:
    """Return (key, values, calls) for each distinct key, in order of first occurrence."""
    found: dict[int, list[int]] = {}
    for some in calls.windows(least=_AS_MANY * len(calls.labels.texts)):
        distinct, first, number = np.unique(key_of(some), return_index=True, return_inverse=True)
        # Where there are times, a memory report's entries beside them are no further calls.
        timed = some.total_ns is None or some.total_ns != UNKNOWN
        count = np.bincount(number, weights=np.broadcast_to(timed, len(number)))
        columns = [
            [value or 0 for value in sums_by(number, len(distinct), getattr(some, measure))]
            for measure in MEASURES[:3]
        ]
        sizes = np.zeros(len(distinct), np.int64)
        for column in SIZES:
            known = [value or 0 for value in sums_by(number, len(distinct), getattr(some, column))]
            sizes += np.array(known, np.int64)
        columns += [sizes.tolist(), [int(one) for one in count]]
        for index in np.argsort(first).tolist():
            sums = found.setdefault(int(distinct[index]), [0] * len(columns))
            for place, values in enumerate(columns):
                sums[place] += values[index]
    return [(key, tuple(values), count) for key, (*values, count) in found.items()]


def _measures(calls: SomeCalls) -> tuple[str, ...]:
    sums = calls.sums()
    has_size = any(sums[column] is not None for column in SIZES)
    return tuple(
        measure
        for measure in MEASURES
        if (has_size if measure == "size_bytes" else sums[measure] is not None)
    )


def _module_path(path: str | None) -> list[str]:
    return [NO_MODULE] if path is None else module_parts(path)


def _frames(stack: str | None) -> list[str]:
    return [NO_LINE] if stack is None else stack.split("\n")
