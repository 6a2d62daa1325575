"""Reads captured streams (capture_stream_info) and operators of captured graphs (capture_op_info).

Tasks of a captured graph (NPUGraph, torch.compile) are launched outside NODE calls and described
only by these records, which are identified by device, stream and task. Files of kind `additional`
contain records of 256 bytes with up to three tensors, files of kind `variable` records of any
length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Runs, find
from unified_prof.base.columns import NO_MODEL, Sink
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.host_records import Keys, Timeline, host_records, read_sorted
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.tensors import TensorTexts
from unified_prof.decoders.spool import Rows

_BEGUN = 0


@dataclass(frozen=True, slots=True)
class Captures:
    """Captured streams, sorted by device, stream and batch; columns of equal length."""

    key: NDArray[np.uint64]
    """Device << 48 | stream << 32 | batch; each capture of a stream increments the batch."""
    start: NDArray[np.uint64]
    """Time in ticks of the host counter."""
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
    records, _ = read_sorted(host, "compact", "capture_stream_info", timeline, sink)
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
# Bytes of the head that the length field of a record includes.
_LENGTH_OF_HEAD = 64


@dataclass(frozen=True, slots=True)
class CapturedOperators:
    """Operators of captured graphs, sorted by device, stream and task; columns of equal length."""

    key: NDArray[np.uint64]
    """Keys of `_pack_task`, ascending."""
    name: NDArray[np.uint64]
    """Hash."""
    op_type: NDArray[np.uint64]
    """Hash."""
    attribute: NDArray[np.uint64]
    """Hash; 0 without attributes."""
    task_type: Ints
    block_dim: NDArray[np.uint32]
    """Number of blocks in the low 16 bits, mix factor in the high 16 bits."""
    hf32: Bools
    static: Bools
    tensors: NDArray[np.uint32]
    """Index of the tensor list in `TensorTexts`."""

    def find(self, device_id: NDArray[Any], stream_id: NDArray[Any], task_id: NDArray[Any]) -> Ints:
        """Return the row of each task, -1 if it has no description."""
        if not len(self.key):
            return np.full(len(task_id), NOWHERE, np.int64)
        return find(self.key, _pack_task(device_id, stream_id, task_id))


def read_captured(host: HostDirectory, texts: TensorTexts, sink: Sink) -> CapturedOperators:
    """Read captured operators; if a task has several records, the last one is used."""
    parts: list[tuple[Rows, NDArray[np.uint32], bool]] = []
    if host.platform in PLATFORMS:
        for prefix in ("unaging", "aging"):
            static = prefix == "unaging"
            parts += [
                (records, _fixed_tensors(records, texts), static)
                for records in host_records(host, "additional", _KIND, sink, prefix=prefix)
            ]
            parts.append((*_variable_records(host, prefix, texts, sink), static))

    def column(name: str, kind: Any) -> NDArray[Any]:
        return np.concatenate(
            [np.zeros(0, kind), *(records[name].astype(kind) for records, _, _ in parts)]
        )

    key = _pack_task(column("device_id", "u8"), column("stream_id", "u8"), column("task_id", "u8"))
    order = np.argsort(key, kind="stable")
    last = order[Runs(key[order]).last] if len(order) else order
    lists = np.concatenate([np.zeros(0, np.uint32), *(lists for _, lists, _ in parts)])
    static_ops = np.concatenate(
        [np.zeros(0, bool), *(np.full(len(records), kind) for records, _, kind in parts)]
    )
    return CapturedOperators(
        key[last],
        column("op_name", "u8")[last],
        column("op_type", "u8")[last],
        column("attribute", "u8")[last],
        column("task_type", "i8")[last],
        column("block_dim", "u4")[last],
        column("op_flag", "u4")[last] != 0,
        static_ops[last],
        lists[last],
    )


def _pack_task(
    device_id: NDArray[Any], stream_id: NDArray[Any], task_id: NDArray[Any]
) -> NDArray[np.uint64]:
    device, stream, task = (
        np.asarray(part).astype(np.uint64) for part in (device_id, stream_id, task_id)
    )
    low = np.uint64(0xFFFF)
    return np.asarray(device << np.uint64(48) | (stream & low) << np.uint64(16) | task & low)


def _fixed_tensors(records: Rows, texts: TensorTexts) -> NDArray[np.uint32]:
    words = np.zeros((len(records), texts.WORDS_PER_RECORD), np.uint32)
    words[:, : records["tensors"].shape[1]] = records["tensors"]
    most = records["tensors"].shape[1] * 4 // _TENSOR_BYTES
    return texts.signatures(words, np.minimum(records["tensor_num"], most))


def _variable_records(
    host: HostDirectory, prefix: str, texts: TensorTexts, sink: Sink
) -> tuple[Rows, NDArray[np.uint32]]:
    """Return the fixed parts of variable-length records, and the tensor list of each record."""
    head = record_type(_HEAD)
    file = host.data.get(f"{prefix}.variable.{_KIND}")
    heads: list[bytes] = []
    lists: list[int] = []
    skipped = 0
    for part in file.by_slice() if file is not None else ():
        raw = part.read_bytes()
        for at, end in _spans(raw):
            record = np.frombuffer(raw, head, 1, at)[0]
            stop = at + _HEAD_BYTES + int(record["tensor_num"]) * _TENSOR_BYTES
            if int(record["magic"]) != HOST_MAGIC or stop != end or end > len(raw):
                skipped += 1
                continue
            heads.append(raw[at : at + _HEAD_BYTES])
            lists.append(texts.intern(raw[at + _HEAD_BYTES : stop]))
    if skipped:
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
