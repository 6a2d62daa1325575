"""Reads operators (names, tensors, attributes, contexts) of NODE calls and of captured graphs.

Recordings have millions of operators but only hundreds of distinct strings, so each string is
interned once.

Tasks of a captured graph (NPUGraph, torch.compile) are launched outside NODE calls and described
only by records of captured streams (capture_stream_info) and operators (capture_op_info), which are
identified by device, stream and task. Files of kind `additional` contain records of 256 bytes with
up to three tensors, files of kind `variable` records of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Pool, Runs, find, positions
from unified_prof.base.columns import NO_MODEL, Sink, Strings
from unified_prof.decoders.prof.directory import Dictionaries, HostDirectory
from unified_prof.decoders.prof.host_records import (
    Contexts,
    Intervals,
    Keys,
    Timeline,
    host_records,
    in_calls,
    last_in_calls,
    sorted_by_call,
    with_keys,
)
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.tensors import TensorTexts
from unified_prof.decoders.spool import Rows, Spool, row_type, selected, stacked

_RANGE_LEVEL = 5500
_CONTEXTS = 1 << 16
_OUTSIDE = "every NODE call"  # Where records are that describe no call.


class Descriptions(Struct):
    """Last description of each NODE call, by row in the call tree."""

    described: Bools
    name: NDArray[np.uint32]  # Index into `hashes`.
    op_type: NDArray[np.uint32]
    task_type: NDArray[np.uint8]
    # Number of blocks in the low 16 bits, mix factor in the high 16 bits.
    block_dim: NDArray[np.uint32]
    hf32: Bools
    static: Bools
    attribute: NDArray[np.uint32]  # Index into `hashes`; 0 without attributes.
    tensors: NDArray[np.uint32]  # Index into `tensor_texts`; 0 without tensors.
    hashes: NDArray[np.uint64]
    tensor_texts: TensorTexts


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
    node, basic = last_in_calls(nodes, described, "node_basic_info", sink, _OUTSIDE)
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
    node, last = last_in_calls(nodes, attributes, "node_attr_info", sink, _OUTSIDE)
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
    sink.anomaly("bad_context_range", int((~good).sum()), "inverted or beyond 65535")
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


def _tensors(nodes: Intervals, rows: Rows, texts: TensorTexts, sink: Sink) -> NDArray[np.uint32]:
    """Return the tensor list of each NODE call, from all records of its last operator."""
    result = np.zeros(len(nodes), np.uint32)
    node, rows = in_calls(nodes, rows, "tensor_info", sink, _OUTSIDE)
    if not len(node):
        return result
    node, rows = sorted_by_call(node, rows)
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


_BEGUN = 0


class Captures(Struct, frozen=True):
    """Captured streams, sorted by device, stream and batch; columns of equal length."""

    # Device << 48 | stream << 32 | batch; each capture of a stream increments the batch.
    key: NDArray[np.uint64]
    start: NDArray[np.uint64]  # Time in ticks of the host counter.
    model_id: NDArray[np.uint32]
    timeline: Timeline

    def models(
        self, device_id: int, stream_id: NDArray[Any], batch_id: NDArray[Any], launched: Keys
    ) -> NDArray[np.uint32]:
        """Return the model of each task launched after its capture began, else NO_MODEL."""
        if not len(self.key):
            return np.full(len(stream_id), NO_MODEL, np.uint32)
        key = _pack(np.uint64(device_id), stream_id, batch_id)
        row = find(self.key, key)
        captured = (row != NOWHERE) & (self.timeline.ticks(launched) >= self.start[row])
        return np.where(captured, self.model_id[row], np.uint32(NO_MODEL))


def read_captures(host: HostDirectory, timeline: Timeline, sink: Sink) -> Captures:
    """Read the captures of streams; as in the exporter, their ends are ignored."""
    kind = "capture_stream_info"
    pieces = [np.zeros(0, record_type(kind)), *host_records(host, "compact", kind, sink)]
    records, _ = with_keys(stacked(pieces), kind, timeline, sink)
    records = records[records["status"] == _BEGUN]
    device, stream = records["device_id"], records["model_stream_id"]
    order = np.lexsort((records["timestamp"], stream, device))
    records, device, stream = records[order], device[order], stream[order]
    return Captures(
        _pack(device, stream, Runs(device, stream).rank()),
        records["timestamp"].copy(),
        records["model_id"].astype(np.uint32),
        timeline,
    )


def _pack(device: Any, stream: NDArray[Any], batch: NDArray[Any]) -> NDArray[np.uint64]:
    return np.asarray(
        np.asarray(device).astype(np.uint64) << np.uint64(48)
        | stream.astype(np.uint64) << np.uint64(32)
        | batch.astype(np.uint64)
    )


# Platforms whose captured operators the exporter reads.
PLATFORMS = (2, 3, 4, 5, 15, 16)
_KIND = "capture_op_info"
_HEAD = "capture_op_head"
_HEAD_BYTES, _TENSOR_BYTES = 88, 44
_LENGTH_OF_HEAD = 64  # Bytes of the head that the length field of a record includes.


# An operator of a captured graph: key of its task (`_pack_task`), hashes (`attribute` is 0 without
# attributes), blocks as in `Descriptions`, and the index of its tensor list in `TensorTexts`.
CAPTURED = row_type(
    "key u8, name u8, op_type u8, attribute u8, task_type i8, block_dim u4, hf32 ?, static ?,"
    " tensors u4"
)


def find_captured(
    captured: Rows, device_id: NDArray[Any], stream_id: NDArray[Any], task_id: NDArray[Any]
) -> Ints:
    """Return the row of each task in `read_captured`, -1 if it has no description."""
    if not len(captured):
        return np.full(len(task_id), NOWHERE, np.int64)
    return find(captured["key"], _pack_task(device_id, stream_id, task_id))


def read_captured(host: HostDirectory, texts: TensorTexts, sink: Sink) -> Rows:
    """Read captured operators (`CAPTURED` rows), sorted by device, stream and task.

    If a task has several records, the last one is used.
    """
    parts = [np.zeros(0, CAPTURED)]

    def add(records: Rows, lists: NDArray[np.uint32]) -> None:
        rows = np.zeros(len(records), CAPTURED)
        rows["key"] = _pack_task(records["device_id"], records["stream_id"], records["task_id"])
        for name in ("op_type", "attribute", "task_type", "block_dim"):
            rows[name] = records[name]
        rows["name"], rows["hf32"] = records["op_name"], records["op_flag"] != 0
        rows["static"], rows["tensors"] = prefix == "unaging", lists
        parts.append(rows)

    for prefix in ("unaging", "aging") if host.platform in PLATFORMS else ():
        for records in host_records(host, "additional", _KIND, sink, prefix=prefix):
            words = np.zeros((len(records), texts.WORDS_PER_RECORD), np.uint32)
            most = records["tensors"].shape[1]
            words[:, :most] = records["tensors"]
            number = np.minimum(records["tensor_num"], most * 4 // _TENSOR_BYTES)
            add(records, texts.signatures(words, number))
        add(*_variable_records(host, prefix, texts, sink))
    captured = stacked(parts)
    order = np.argsort(captured["key"], kind="stable")
    return selected(captured, order[Runs(captured["key"][order]).last])


def _pack_task(
    device_id: NDArray[Any], stream_id: NDArray[Any], task_id: NDArray[Any]
) -> NDArray[np.uint64]:
    device, stream, task = (
        np.asarray(part).astype(np.uint64) for part in (device_id, stream_id, task_id)
    )
    low = np.uint64(0xFFFF)
    return np.asarray(device << np.uint64(48) | (stream & low) << np.uint64(16) | task & low)


def _variable_records(
    host: HostDirectory, prefix: str, texts: TensorTexts, sink: Sink
) -> tuple[Rows, NDArray[np.uint32]]:
    """Return the fixed parts of variable-length records, and the tensor list of each record."""
    head = record_type(_HEAD)
    heads: list[bytes] = []
    lists: list[int] = []
    skipped = 0
    for part in host.data.get(f"{prefix}.variable.{_KIND}").by_slice():
        raw = part.read_bytes()
        for at, end in _spans(raw):
            record = np.frombuffer(raw, head, 1, at)[0]
            stop = at + _HEAD_BYTES + int(record["tensor_num"]) * _TENSOR_BYTES
            if int(record["magic"]) != HOST_MAGIC or stop != end or end > len(raw):
                skipped += 1
                continue
            heads.append(raw[at : at + _HEAD_BYTES])
            lists.append(texts.intern(raw[at + _HEAD_BYTES : stop]))
    sink.anomaly(f"bad_record_{_KIND}", skipped, f"{_KIND} records of another length")
    return np.frombuffer(b"".join(heads), head), np.array(lists, np.uint32)


def _spans(raw: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end offset of each record, according to its length field."""
    at = 0
    while at + _HEAD_BYTES <= len(raw):  # the rest is not a complete record
        length = int.from_bytes(raw[at + 12 : at + 16], "little")
        end = at + _HEAD_BYTES + max(length - _LENGTH_OF_HEAD, 0)
        yield at, end
        at = end
