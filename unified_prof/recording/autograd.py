"""Find the forward operation that created the autograd node of a backward range.

PyTorch numbers the nodes of each thread (sequence numbers). A backward range has the number of its
node and the id of the forward thread; if `fwdbwd` flows connect the two, `uprof convert` replaces
that id by the system's thread id. An operation records the number that the next node will get: if
several ranges of a thread have the same number, the last one to start created the node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, find
from unified_prof.arrays.nesting import NONE
from unified_prof.arrays.packed import Packed
from unified_prof.recording.python_frames import SPARSE, last_of_each, values_at

ENGINE_PREFIX = "autograd::engine::evaluate_function: "

# Thread ids above this are `process << 32 | thread`, those below are PyTorch's own thread ids.
_MAX_TORCH_THREAD = 0xFFFFFFFF

_FITS = 1 << 40  # Greater than any number of votes, so that a matching name outweighs all votes.

_NODE_SUFFIX = re.compile(r"Backwards?\d*$")
_CPP_NODE = re.compile(r"CppNode<(?:.*::)?(\w+)>")
_CUSTOM_NODE = re.compile(r"CppNode<|Backward$")


class AutogradColumns(NamedTuple):
    """Columns over all host ranges."""

    thread: Packed
    start_ns: Packed
    # Sequence number of the node that the range runs or may have created; negative: none.
    sequence: Packed
    forward_thread: Packed
    name_code: Packed  # Index of the range's name in the distinct names.


class ForwardOperations:
    """The operation that created each autograd node.

    Args:
        columns: the columns of all host ranges.
        names: the distinct names of ranges.
        threads: the threads with operations that may have created nodes, in ascending order.
        nodes: the ranges that run a node.
    """

    def __init__(
        self, columns: AutogradColumns, names: Sequence[str], threads: Ints, nodes: Ints
    ) -> None:
        self._columns, self._names, self._threads, self._nodes = columns, names, threads, nodes
        self._sequences = max(columns.sequence.most, 0) + 1
        self._dense: NDArray[np.int32] | None = None
        self._parts = [np.zeros((3, 0), np.int64)]
        size = len(threads) * self._sequences
        if size < SPARSE * len(columns.sequence) + 1024:
            self._dense = np.full(size, NONE, np.int32)

    def add(self, ranges: Ints) -> None:
        """Add operations that have a sequence number; they must follow those added before."""
        columns = self._columns
        number = np.searchsorted(self._threads, columns.thread[ranges])
        key = number * self._sequences + columns.sequence[ranges]
        found = last_of_each(np.array([key, columns.start_ns[ranges], ranges], np.int64))
        if self._dense is None:
            self._parts = [last_of_each(np.concatenate((*self._parts, found), axis=1))]
            return
        key, start_ns, ranges = found
        before = self._dense[key]
        later = (before == NONE) | (start_ns >= columns.start_ns[np.maximum(before, 0)])
        self._dense[key[later]] = ranges[later]

    def find(self, nodes: Ints) -> Ints:
        """Return the operation that created the node of each range, NONE if unknown."""
        result = np.full(len(nodes), NONE, np.int64)
        known = np.flatnonzero(nodes != NONE)
        if not len(known) or not len(self._threads):
            return result
        ranges = nodes[known]
        found = self._likeliest_operation(ranges)
        # An ATen operation does not create the nodes of a user's autograd function. Such a
        # function may have no range, and any operation before it has its number.
        node = self._columns.name_code[ranges]
        operation = self._columns.name_code[np.maximum(found, 0)]
        wrong = self._is_custom_node[node] & self._is_aten[operation]
        found[wrong & ~self._match_names(node, operation)] = NONE
        result[known] = found
        return result

    def _likeliest_operation(self, nodes: Ints) -> Ints:
        """Return the operation on the recorded forward thread, else the most likely one."""
        columns = self._columns
        forward = columns.forward_thread[nodes]
        stated = find(self._threads, forward)
        sequence, node = columns.sequence[nodes].astype(np.int64), columns.name_code[nodes]
        process = columns.thread[nodes] >> 32
        inferred = forward <= _MAX_TORCH_THREAD
        result = np.full(len(nodes), NONE, np.int64)
        best = np.full(len(nodes), -1, np.int64)
        tied = np.zeros(len(nodes), bool)
        for number, thread in enumerate(self._threads.tolist()):
            chosen = np.where(inferred, process == thread >> 32, stated == number)
            found = self._created(number, np.where(chosen, sequence, NONE))
            fits = self._match_names(node, columns.name_code[np.maximum(found, 0)])
            score = np.where(found == NONE, -1, fits * _FITS + self._votes_for(nodes, number))
            tied = np.where(score > best, False, tied | ((score == best) & (score >= 0)))
            result = np.where(score > best, found, result)
            best = np.maximum(best, score)
        return np.where(tied, NONE, result)

    def _votes_for(self, nodes: Ints, number: int) -> Ints:
        """For each node, count the nodes of its forward thread that match a thread's operations."""
        if not self._votes:
            return np.zeros(len(nodes), np.int64)
        columns = self._columns
        pairs = np.stack((columns.thread[nodes] >> 32, columns.forward_thread[nodes]))
        distinct, which = np.unique(pairs, axis=1, return_inverse=True)
        votes = [self._votes.get((*pair, number), 0) for pair in distinct.T.tolist()]
        return np.array(votes, np.int64)[which.reshape(-1)]

    @cached_property
    def _votes(self) -> dict[tuple[int, int, int], int]:
        """Number of nodes with a matching operation, by (process, forward thread, thread index).

        Empty if no process has several forward threads.
        """
        columns = self._columns
        processes = self._threads >> 32
        if len(np.unique(processes)) == len(processes):
            return {}
        process = columns.thread[self._nodes] >> 32
        forward = columns.forward_thread[self._nodes]
        sequence = columns.sequence[self._nodes].astype(np.int64)
        node = columns.name_code[self._nodes]
        votes: dict[tuple[int, int, int], int] = {}
        for number, own in enumerate(processes.tolist()):
            found = self._created(number, np.where(process == own, sequence, NONE))
            fits = (found != NONE) & self._match_names(
                node, columns.name_code[np.maximum(found, 0)]
            )
            threads, count = np.unique(forward[fits], return_counts=True)
            for thread, many in zip(threads.tolist(), count.tolist(), strict=True):
                votes[own, thread, number] = many
        return votes

    def _created(self, number: int, sequence: Ints) -> Ints:
        """Return the operation of a thread with each sequence number, NONE if there is none."""
        key = number * self._sequences + sequence
        if self._dense is not None:
            result: Ints = self._dense.take(np.maximum(key, 0)).astype(np.int64)
        else:
            result = values_at(self._parts[0][2], find(self._parts[0][0], key))
        return np.where(sequence < 0, NONE, result)

    def _match_names(
        self, node: NDArray[np.integer], operation: NDArray[np.integer]
    ) -> NDArray[np.bool_]:
        """Return a mask of the nodes whose names match their operations."""
        result: NDArray[np.bool_] = self._node_name[node] == self._operation_name[operation]
        return result

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {}

    @cached_property
    def _node_name(self) -> Ints:
        """Number of the operation name in each node's name, -1 for other names."""
        return np.array([self._number(_name_of_node(name), -1) for name in self._names], np.int64)

    @cached_property
    def _operation_name(self) -> Ints:
        """Number of each operation's name as it appears in node names, -2 if it does not."""
        texts = [_bare(name.rpartition("::")[2].partition(".")[0]) for name in self._names]
        return np.array([self._number(text, -2) for text in texts], np.int64)

    def _number(self, text: str, absent: int) -> int:
        return self._numbers.setdefault(text, len(self._numbers)) if text else absent

    @cached_property
    def _is_custom_node(self) -> NDArray[np.bool_]:
        return np.array([bool(_CUSTOM_NODE.search(name)) for name in self._names], bool)

    @cached_property
    def _is_aten(self) -> NDArray[np.bool_]:
        return np.array([name.startswith("aten::") for name in self._names], bool)


def _name_of_node(name: str) -> str:
    """Return `nllloss` for `NllLossBackward0`; empty if `name` is not the name of a node."""
    name = name.removeprefix(ENGINE_PREFIX)
    if (match := _CPP_NODE.search(name)) is not None:
        return _bare(match[1].removesuffix("Function"))
    bare, count = _NODE_SUFFIX.subn("", name)
    return _bare(bare.rpartition("::")[2]) if count else ""


def _bare(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("forward")
