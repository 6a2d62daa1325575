"""Finds host records that a recording lacks, although the files are complete.

Several kinds of records describe a call. If a call has one kind and lacks another one that always
comes with it, a record was lost. Launches outside NODE calls have one kind of record only, so their
loss cannot be distinguished from a recording in which nothing was launched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Runs, find
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof.collective_records import CommunicationRecords
from unified_prof.decoders.prof.host_calls import CallTree
from unified_prof.decoders.prof.host_records import Keys
from unified_prof.decoders.prof.launches import HostTasks
from unified_prof.decoders.prof.operators import Descriptions

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MANY = 1 << 32
# Minimum operators of a type with the same number of tensors: fewer may be equal by chance.
_MIN_EQUAL = 4


class LostRecords:
    """Counts lost records window by window."""

    def __init__(self, elsewhere: Keys) -> None:
        """`elsewhere` are the launches on other processors than NPUs."""
        self._elsewhere = elsewhere
        self._launches = self._launched = self._descriptions = 0
        # By operator type: calls without and with tensors, smallest and largest number of tensors.
        self._types = _empty_types(0)
        # By place in collectives with the same tasks: key, calls, calls with a record.
        self._places: list[tuple[NDArray[np.uint64], Ints, Ints]] = []

    def add(
        self, tasks: HostTasks, tree: CallTree, about: Descriptions, records: CommunicationRecords
    ) -> None:
        """Add the calls of one window with their records."""
        has_details = (about.tensors > 0) | (about.attribute > 0)
        has_details |= _mask(len(tree.node), records.operator_node)
        self._descriptions += int((has_details & ~about.described).sum())
        in_node = tree.node.find(tree.communication.end)
        has_record = _mask(len(tree.communication), (records.task_key >> np.uint64(32)))
        launching = np.concatenate([tasks.node, tree.node.find(self._elsewhere)])
        launches = _mask(len(tree.node), launching)
        is_operator = has_details | about.described
        self._launches += int((is_operator & ~launches).sum())
        self._launched += int((is_operator & launches).sum())
        launches = _mask(len(tree.communication), tasks.communication)
        self._launches += int((has_record & ~launches & (in_node != NOWHERE)).sum())
        self._add_operators(about)
        self._add_collectives(tree, in_node, has_record)

    def report(self, sink: Sink) -> None:
        """Count all lost records as anomalies."""
        without, with_tensors, least, largest = self._types
        lost = (least == largest) & (with_tensors >= np.maximum(without, _MIN_EQUAL))
        # If most operators launch nothing, they may run in graphs.
        launches = self._launches * (self._launches <= self._launched)
        found = {
            "task_track": (launches, "calls with a description but without a launch"),
            "node_basic_info": (
                self._descriptions,
                "calls with tensors, attributes or a collective, but without an operator",
            ),
            "tensor_info": (
                int(without[lost].sum()),
                "operators without tensors, although the others of their type have some",
            ),
            "hccl_info": (self._lost_places(), "tasks that equal collectives describe"),
        }
        for kind, (count, detail) in found.items():
            if count:
                sink.anomaly(f"lost_{kind}", count, detail)

    def _add_operators(self, about: Descriptions) -> None:
        size = len(about.hashes)
        if size > self._types.shape[1]:
            more = _empty_types(size - self._types.shape[1])
            self._types = np.concatenate([self._types, more], axis=1)
        kind, lists = about.op_type[about.described], about.tensors[about.described]
        distinct, row = np.unique(lists, return_inverse=True)
        number = about.tensor_texts.numbers(distinct)[row]
        has = number > 0
        without, with_tensors, least, largest = self._types
        without += np.bincount(kind[~has], minlength=len(without))
        with_tensors += np.bincount(kind[has], minlength=len(without))
        np.minimum.at(least, kind[has], number[has])
        np.maximum.at(largest, kind[has], number[has])

    def _add_collectives(self, tree: CallTree, in_node: Ints, has_record: Bools) -> None:
        inside = np.flatnonzero(in_node != NOWHERE)
        if not len(inside):
            return
        inside = inside[np.argsort(in_node[inside], kind="stable")]
        calls = tree.communication.take(inside)
        steps = Runs(in_node[inside])
        place = (steps.rank().astype(np.uint64) + np.uint64(1)) * _MIX
        # The names and kinds of all tasks of the collective, in order.
        step = (calls.item.astype(np.uint64) << np.uint64(16) | calls.type_index) + np.uint64(1)
        step = (step * _MIX ^ place) * _MIX
        key = steps.spread(np.add.reduceat(step ^ step >> np.uint64(29), steps.starts)) ^ place
        self._places.append(_summed(key, np.ones(len(key), np.int64), has_record[inside] * 1))

    def _lost_places(self) -> int:
        if not self._places:
            return 0
        columns = map(np.concatenate, zip(*self._places, strict=True))
        _, calls, described = _summed(*columns)
        lost = calls - described
        return int(lost[described > lost].sum())


def _empty_types(count: int) -> Ints:
    result = np.zeros((4, count), np.int64)
    result[2] = _MANY
    return result


def _mask(count: int, rows: NDArray[np.integer]) -> Bools:
    result = np.zeros(count + 1, bool)  # the last is NOWHERE
    result[rows.astype(np.int64)] = True
    return result[:-1]


def _summed(
    key: NDArray[np.uint64], calls: Ints, described: Ints
) -> tuple[NDArray[np.uint64], Ints, Ints]:
    """Return the distinct keys and the sums of the other columns."""
    keys = np.unique(key)
    row = find(keys, key)
    return (
        keys,
        np.bincount(row, calls, len(keys)).astype(np.int64),
        np.bincount(row, described, len(keys)).astype(np.int64),
    )
