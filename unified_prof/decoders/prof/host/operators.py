"""What the host says about operators: descriptions, tensors, attributes, contexts of NODE calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.lookup import find
from unified_prof.arrays.pool import Pool
from unified_prof.arrays.runs import Runs, positions
from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.call_tree import NOWHERE, Intervals
from unified_prof.decoders.prof.host.tensors import TensorTexts
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.host_records import collect, host_records, timed
from unified_prof.decoders.prof.raw.timeline import Keys, Timeline

_RANGE_LEVEL = 5500
_CONTEXTS = 1 << 16


@dataclass(slots=True)
class Descriptions:
    """The last description of every NODE call, by its row in the call tree."""

    described: NDArray[np.bool_]
    name: NDArray[np.uint32]
    """Index into `hashes`."""
    op_type: NDArray[np.uint32]
    task_type: NDArray[np.uint8]
    block_dim: NDArray[np.uint32]
    """Blocks in the low, the mix factor in the high 16 bits."""
    hf32: NDArray[np.bool_]
    static: NDArray[np.bool_]
    attribute: NDArray[np.uint32]
    """Index into `hashes`; 0 without attributes."""
    tensors: NDArray[np.uint32]
    """Index into `tensor_texts`; 0 without tensors."""
    hashes: NDArray[np.uint64]
    tensor_texts: TensorTexts


@dataclass(frozen=True, slots=True)
class Contexts:
    """FFTS+ contexts that calls were told to have: sorted call rows, and a range of ids each."""

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    ids: NDArray[np.uint32]

    def expand(self, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return a pair (position in `rows`, context id) for every context of every row."""
        place = find(self.row, rows)
        have = np.flatnonzero(place != NOWHERE)
        start = self.start[place[have]]
        count = self.stop[place[have]] - start
        return np.repeat(have, count), self.ids[np.repeat(start, count) + positions(count)]


def read_descriptions(
    host: HostDirectory, nodes: Intervals, timeline: Timeline, sink: Sink
) -> Descriptions:
    """Read what describes NODE calls; of several descriptions of one call the last counts."""
    count = len(nodes)
    hashes = Pool()
    hashes.index_of(np.zeros(1, np.uint64))  # index 0: none
    found = Descriptions(
        np.zeros(count, bool),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint32),
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros(0, np.uint64),
        TensorTexts(),
    )
    latest = np.zeros(count, np.uint64)
    for prefix in ("unaging", "aging"):
        for records in host_records(host, "compact", "node_basic_info", sink, prefix=prefix):
            rows, key = timed(records, "node_basic_info", timeline, sink)
            node, pick = _newest(nodes, key, latest, sink, "node_basic_info")
            rows = rows[pick]
            found.described[node] = True
            found.name[node] = hashes.index_of(rows["op_name"])
            found.op_type[node] = hashes.index_of(rows["op_type"])
            found.task_type[node] = np.minimum(rows["task_type"], 255)
            found.block_dim[node] = rows["block_dim"]
            found.hf32[node] = rows["op_flag"] == 1
            found.static[node] = prefix == "unaging"
    latest[:] = 0
    for records in host_records(host, "compact", "node_attr_info", sink):
        rows, key = timed(records, "node_attr_info", timeline, sink)
        node, pick = _newest(nodes, key, latest, sink, "node_attr_info")
        found.attribute[node] = hashes.index_of(rows["hash_id"][pick])
    del latest
    found.hashes = hashes.values
    found.tensors = _read_tensors(host, nodes, timeline, sink, found.tensor_texts)
    return found


def read_contexts(
    host: HostDirectory, nodes: Intervals, communication: Intervals, timeline: Timeline, sink: Sink
) -> tuple[Contexts, Contexts]:
    """Read the contexts of NODE calls (lists) and of communication calls (ranges)."""
    records, key = collect(host, "additional", "context_id_info", timeline, sink)
    ranged = records["level"] == _RANGE_LEVEL
    number = np.minimum(records["context_num"], records["context_ids"].shape[1]).astype(np.int64)
    lists = np.flatnonzero(~ranged)
    used = np.arange(records["context_ids"].shape[1]) < number[lists, None]
    spans = np.flatnonzero(ranged & (number == 2))
    return (
        _contexts(nodes, key[lists], records["context_ids"][lists][used], number[lists]),
        _contexts(communication, key[spans], *unrolled(records["context_ids"][spans, :2], sink)),
    )


def unrolled(
    bounds: NDArray[np.uint32], sink: Sink
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Turn [first, last] pairs into the ids of all, one range after another, and their numbers.

    A range ends below 65536, as contexts have 16 bits; others are counted and are empty.
    """
    first, last = bounds[:, 0].astype(np.int64), bounds[:, 1].astype(np.int64)
    good = (first <= last) & (last < _CONTEXTS)
    if not good.all():
        sink.anomaly("bad_context_range", int((~good).sum()), "contexts from one to a lower one")
    size = np.where(good, last - first + 1, 0)
    return (np.repeat(first, size) + positions(size)).astype(np.uint32), size


def _contexts(
    calls: Intervals, key: Keys, ids: NDArray[np.uint32], number: NDArray[np.int64]
) -> Contexts:
    """Keep the last contexts told of every call; `ids` has those of one record after another."""
    row = calls.find(key)
    order = np.argsort(row, kind="stable")
    last = order[Runs(row[order]).last]
    last = last[row[last] != NOWHERE]
    stop = np.cumsum(number)[last]
    return Contexts(row[last], stop - number[last], stop, ids)


def _newest(
    nodes: Intervals, key: Keys, latest: NDArray[np.uint64], sink: Sink, kind: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the calls that records describe, once each, and the record of each that counts."""
    node = nodes.find(key)
    pick = np.flatnonzero(node != NOWHERE)
    if lost := len(node) - len(pick):
        sink.anomaly(f"unplaced_{kind}", lost, f"{kind} records outside every NODE call")
    node = node[pick]
    order = np.lexsort((key[pick], node))
    node, pick = node[order], pick[order]
    last = Runs(node).last
    node, pick = node[last], pick[last]
    newer = key[pick] >= latest[node]
    node, pick = node[newer], pick[newer]
    latest[node] = key[pick]
    return node, pick


def _read_tensors(
    host: HostDirectory, nodes: Intervals, timeline: Timeline, sink: Sink, texts: TensorTexts
) -> NDArray[np.uint32]:
    """Return the tensor list of every NODE call: of its last operator, over several records."""
    nodes_of, keys, names, signatures = [], [], [], []
    for records in host_records(host, "additional", "tensor_info", sink):
        rows, key = timed(records, "tensor_info", timeline, sink)
        node = nodes.find(key)
        inside = node != NOWHERE
        if not inside.all():
            sink.anomaly(
                "unplaced_tensor_info",
                int((~inside).sum()),
                "tensor_info records outside every NODE call",
            )
            rows, key, node = rows[inside], key[inside], node[inside]
        nodes_of.append(node.astype(np.uint32))
        keys.append(key)
        names.append(rows["op_name"].copy())
        signatures.append(texts.signatures(rows["tensors"], rows["tensor_num"]))
    result = np.zeros(len(nodes), np.uint32)
    if not nodes_of:
        return result
    node, key = np.concatenate(nodes_of), np.concatenate(keys)
    name, signature = np.concatenate(names), np.concatenate(signatures)
    order = np.lexsort((key, node))
    node, key, name, signature = node[order], key[order], name[order], signature[order]
    if not len(node):
        return result
    # Every record of a call that has the name and the time of its last one belongs to it.
    of_call = Runs(node)
    last = of_call.spread(of_call.last)
    same = (key == key[last]) & (name == name[last])
    node, signature = node[same], signature[same]
    of_call = Runs(node)
    rank, number = of_call.rank(), of_call.number()
    lists = signature[of_call.starts].astype(np.uint32)
    for position in range(1, int(of_call.sizes.max())):  # records of one operator: a handful
        more = np.flatnonzero(rank == position)
        lists[number[more]] = texts.joined(lists[number[more]], signature[more])
    result[node[of_call.starts]] = lists
    return result
