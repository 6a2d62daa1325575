"""Reads operator descriptions: names, tensors, attributes and contexts of NODE calls.

Recordings have millions of operators but only hundreds of distinct strings, so each string is
interned once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import (
    NOWHERE,
    Bools,
    Ints,
    Pool,
    Runs,
    find,
    order_of_keys,
    positions,
)
from unified_prof.base.columns import Sink, Strings
from unified_prof.decoders.prof.directory import Dictionaries, HostDirectory
from unified_prof.decoders.prof.host_calls import Intervals
from unified_prof.decoders.prof.host_records import Keys, Timeline, host_records, with_keys
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.tensors import TensorTexts
from unified_prof.decoders.spool import Rows, Spool, row_type, selected

_RANGE_LEVEL = 5500
_CONTEXTS = 1 << 16


@dataclass(slots=True)
class Descriptions:
    """Last description of each NODE call, by row in the call tree."""

    described: Bools
    name: NDArray[np.uint32]
    """Index into `hashes`."""
    op_type: NDArray[np.uint32]
    task_type: NDArray[np.uint8]
    block_dim: NDArray[np.uint32]
    """Number of blocks in the low 16 bits, mix factor in the high 16 bits."""
    hf32: Bools
    static: Bools
    attribute: NDArray[np.uint32]
    """Index into `hashes`; 0 without attributes."""
    tensors: NDArray[np.uint32]
    """Index into `tensor_texts`; 0 without tensors."""
    hashes: NDArray[np.uint64]
    tensor_texts: TensorTexts


@dataclass(frozen=True, slots=True)
class Contexts:
    """FFTS+ contexts of calls: sorted call rows, and a range in `ids` for each call."""

    row: Ints
    start: Ints
    stop: Ints
    ids: NDArray[np.uint32]

    def expand(self, rows: NDArray[Any]) -> tuple[Ints, NDArray[np.uint32]]:
        """Return all pairs (position in `rows`, context id) for the contexts of the given rows."""
        place = find(self.row, rows)
        have = np.flatnonzero(place != NOWHERE)
        start = self.start[place[have]]
        count = self.stop[place[have]] - start
        return np.repeat(have, count), self.ids[np.repeat(start, count) + positions(count)]


# A node_basic_info record; `Descriptions` explains the fields.
DESCRIBED = row_type("key u8, name u4, op_type u4, block_dim u4, task_type u1, hf32 ?, static ?")
ATTRIBUTES = row_type("key u8, attribute u4")
TENSORS = row_type("key u8, name u8, signature u4")
CONTEXTS = row_type(
    "key u8, record context_id_info", context_id_info=record_type("context_id_info")
)


def read_descriptions(
    host: HostDirectory,
    timeline: Timeline,
    described: Spool,
    attributes: Spool,
    tensors: Spool,
    sink: Sink,
) -> tuple[NDArray[np.uint64], TensorTexts]:
    """Append the descriptions of NODE calls to spools; return their hashes and tensors."""
    hashes, texts = Pool(), TensorTexts()
    hashes.index_of(np.zeros(1, np.uint64))  # index 0: none
    for prefix in ("unaging", "aging"):
        for records in host_records(host, "compact", "node_basic_info", sink, prefix=prefix):
            rows, key = with_keys(records, "node_basic_info", timeline, sink)
            found = np.empty(len(rows), DESCRIBED)
            found["key"] = key
            found["name"] = hashes.index_of(rows["op_name"])
            found["op_type"] = hashes.index_of(rows["op_type"])
            found["task_type"] = np.minimum(rows["task_type"], 255)
            found["block_dim"] = rows["block_dim"]
            found["hf32"] = rows["op_flag"] == 1
            found["static"] = prefix == "unaging"
            described.append(found)
    for records in host_records(host, "compact", "node_attr_info", sink):
        rows, key = with_keys(records, "node_attr_info", timeline, sink)
        found = np.empty(len(rows), ATTRIBUTES)
        found["key"], found["attribute"] = key, hashes.index_of(rows["hash_id"])
        attributes.append(found)
    for records in host_records(host, "additional", "tensor_info", sink):
        rows, key = with_keys(records, "tensor_info", timeline, sink)
        found = np.empty(len(rows), TENSORS)
        found["key"], found["name"] = key, rows["op_name"]
        found["signature"] = texts.signatures(rows["tensors"], rows["tensor_num"])
        tensors.append(found)
    return hashes.values, texts


def describe(
    nodes: Intervals,
    described: Rows,
    attributes: Rows,
    tensors: Rows,
    hashes: NDArray[np.uint64],
    texts: TensorTexts,
    sink: Sink,
) -> Descriptions:
    """Return the descriptions of NODE calls; if a call has several, the last one is used.

    The rows have the types `DESCRIBED`, `ATTRIBUTES` and `TENSORS` and are sorted by key; `hashes`
    and `texts` are results of `read_descriptions`.
    """
    count = len(nodes)
    node, basic = _last_of_each(nodes, described, "node_basic_info", sink)
    found = Descriptions(
        np.zeros(count, bool),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint32),
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.zeros(count, np.uint32),
        _tensors(nodes, tensors, texts, sink),
        hashes,
        texts,
    )
    found.described[node] = True
    for name in ("name", "op_type", "task_type", "block_dim", "hf32", "static"):
        getattr(found, name)[node] = basic[name]
    node, last = _last_of_each(nodes, attributes, "node_attr_info", sink)
    found.attribute[node] = last["attribute"]
    return found


def contexts_of(
    rows: Rows, nodes: Intervals, communication: Intervals, sink: Sink
) -> tuple[Contexts, Contexts]:
    """Return the contexts of NODE calls (lists) and of communication calls (ranges)."""
    records, key = rows["record"], rows["key"]
    ranged = records["level"] == _RANGE_LEVEL
    number = np.minimum(records["context_num"], records["context_ids"].shape[1]).astype(np.int64)
    lists = np.flatnonzero(~ranged)
    used = np.arange(records["context_ids"].shape[1]) < number[lists, None]
    spans = np.flatnonzero(ranged & (number == 2))
    return (
        _contexts(nodes, key[lists], records["context_ids"][lists][used], number[lists]),
        _contexts(
            communication, key[spans], *unroll_ranges(records["context_ids"][spans, :2], sink)
        ),
    )


def unroll_ranges(bounds: NDArray[np.uint32], sink: Sink) -> tuple[NDArray[np.uint32], Ints]:
    """Return the concatenated ids of [first, last] ranges, and the number of ids in each range.

    Ranges that are inverted or exceed 65535 are treated as empty and counted.
    """
    first, last = bounds[:, 0].astype(np.int64), bounds[:, 1].astype(np.int64)
    good = (first <= last) & (last < _CONTEXTS)
    if lost := int((~good).sum()):
        sink.anomaly("bad_context_range", lost, "inverted or beyond 65535")
    size = np.where(good, last - first + 1, 0)
    return (np.repeat(first, size) + positions(size)).astype(np.uint32), size


def _contexts(calls: Intervals, key: Keys, ids: NDArray[np.uint32], number: Ints) -> Contexts:
    """Return the contexts in the last record of each call; `ids` contains those of all records."""
    row = calls.find(key)
    order = np.argsort(row, kind="stable")
    last = order[Runs(row[order]).last]
    last = last[row[last] != NOWHERE]
    stop = np.cumsum(number)[last]
    return Contexts(row[last], stop - number[last], stop, ids)


def _last_of_each(nodes: Intervals, rows: Rows, kind: str, sink: Sink) -> tuple[Ints, Rows]:
    """Return the calls with records, and the last record of each call."""
    node, rows = _sorted_by_call(*_in_calls(nodes, rows, kind, sink))
    last = Runs(node).last
    return (node, rows) if len(last) == len(node) else (node[last], selected(rows, last))


def _in_calls(nodes: Intervals, rows: Rows, kind: str, sink: Sink) -> tuple[Ints, Rows]:
    """Return the enclosing calls of records, and the records that have one."""
    node = nodes.find(rows["key"])
    inside = node != NOWHERE
    if inside.all():
        return node, rows
    sink.anomaly(
        f"unplaced_{kind}", int((~inside).sum()), f"{kind} records outside every NODE call"
    )
    return node[inside], selected(rows, inside)


def _sorted_by_call(node: Ints, rows: Rows) -> tuple[Ints, Rows]:
    """Return both arrays, sorted by call."""
    order = order_of_keys(node)
    return (node, rows) if order is None else (node[order], selected(rows, order))


def _tensors(nodes: Intervals, rows: Rows, texts: TensorTexts, sink: Sink) -> NDArray[np.uint32]:
    """Return the tensor list of each NODE call, from all records of its last operator."""
    result = np.zeros(len(nodes), np.uint32)
    node, rows = _in_calls(nodes, rows, "tensor_info", sink)
    if not len(node):
        return result
    node, rows = _sorted_by_call(node, rows)
    # The records of a call with the name and time of its last one belong to the same operator.
    of_call = Runs(node)
    last = of_call.spread(of_call.last)
    same = (rows["key"] == rows["key"][last]) & (rows["name"] == rows["name"][last])
    node, signature = node[same], rows["signature"][same]
    of_call = Runs(node)
    rank, number = of_call.rank(), of_call.number()
    lists = signature[of_call.starts].astype(np.uint32)
    for position in range(1, int(of_call.sizes.max())):  # operators have few records
        more = np.flatnonzero(rank == position)
        lists[number[more]] = texts.concatenate(lists[number[more]], signature[more])
    result[node[of_call.starts]] = lists
    return result


_SCHEDULE_SUFFIX = "AicpuKernel"
_COMMUNICATION_SUFFIX = "AivKernel"
_SIDES = ("formats", "data_types", "shapes")
_UNKNOWN = -1


class HashTexts:
    """Interns the strings of hashes on first use; recognizes names of communication kernels."""

    def __init__(self, dictionaries: Dictionaries, strings: Strings) -> None:
        self._dictionaries, self._strings = dictionaries, strings
        self._pool = Pool()
        self._ids = np.zeros(0, np.int64)
        self._schedules, self._communicates = np.zeros(0, bool), np.zeros(0, bool)
        self._has_text = np.zeros(0, bool)

    def has_text(self, hashes: NDArray[np.uint64]) -> Bools:
        """Return a mask of the hashes with a known string."""
        place = self._places(hashes)  # may extend `self._has_text`
        return self._has_text[place]

    def ids(self, hashes: NDArray[np.uint64]) -> Ints:
        """Return string ids."""
        place = self._intern(hashes)  # may extend `self._ids`
        return self._ids[place]

    def names(self, hashes: NDArray[np.uint64]) -> tuple[Ints, Bools, Bools]:
        """Return string ids, and masks of schedulers and of communication kernels by name."""
        place = self._intern(hashes)
        return self._ids[place], self._schedules[place], self._communicates[place]

    def _intern(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        place = self._places(hashes)
        new = hashes[self._ids[place] == _UNKNOWN]
        if len(new):
            distinct = np.unique(new)
            texts = [self._dictionaries.text(value) for value in distinct.tolist()]
            row = self._pool.index_of(distinct)
            self._ids[row] = self._strings.intern_all(texts)
            self._schedules[row] = [text.endswith(_SCHEDULE_SUFFIX) for text in texts]
            self._communicates[row] = [text.endswith(_COMMUNICATION_SUFFIX) for text in texts]
        return place

    def _places(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        place = self._pool.index_of(hashes)
        if new := self._pool.values[len(self._ids) :].tolist():
            knows = [self._dictionaries.knows(value) for value in new]
            no = np.zeros(len(new), bool)
            self._ids = np.concatenate([self._ids, np.full(len(new), _UNKNOWN)])
            self._has_text = np.concatenate([self._has_text, np.array(knows)])
            self._schedules = np.concatenate([self._schedules, no])
            self._communicates = np.concatenate([self._communicates, no])
        return place


class ListTexts:
    """Interns the strings of tensor lists: three for the inputs, three for the outputs."""

    COLUMNS = 2 * len(_SIDES)

    def __init__(self, texts: TensorTexts, strings: Strings, *, captured: bool) -> None:
        self._texts, self._strings, self._captured = texts, strings, captured
        self._ids = np.zeros((0, self.COLUMNS), np.int32)

    def ids(self, lists: NDArray[Any]) -> NDArray[np.int32]:
        """Return one row of string ids for each list."""
        if len(self._ids) < len(self._texts):
            more = np.full((len(self._texts) - len(self._ids), self.COLUMNS), _UNKNOWN, np.int32)
            self._ids = np.concatenate([self._ids, more])
        new = np.unique(lists[self._ids[lists, 0] == _UNKNOWN])
        if len(new):
            both = [self._texts.texts(index, captured=self._captured) for index in new.tolist()]
            for column in range(self.COLUMNS):
                side, part = divmod(column, len(_SIDES))
                self._ids[new, column] = self._strings.intern_all(
                    getattr(sides[side], _SIDES[part]) for sides in both
                )
        found: NDArray[np.int32] = self._ids[lists]
        return found
