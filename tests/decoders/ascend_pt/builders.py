"""Writer of synthetic `*_ascend_pt` directories; times are ns of the monotonic clock."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 1_700_000_000_000_000_000
"""ns since 1970 when the monotonic clock is 0."""
PID = 700

Fields = Sequence[tuple[int, bytes]]


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("<HI", kind, len(value)) + value


def record(kind: int, fixed: bytes, fields: Fields = ()) -> bytes:
    return tlv(kind, fixed + b"".join(tlv(*field) for field in fields))


@dataclass
class Framework:
    """The files of FRAMEWORK/, in the order in which records are added."""

    files: dict[str, bytearray] = field(default_factory=dict)

    def put(self, name: str, data: bytes) -> None:
        self.files.setdefault(name, bytearray()).extend(data)

    def operator(
        self,
        name: str | bytes,
        start: int,
        end: int,
        tid: int = 1,
        *,
        sequence: int = -1,
        forward: int = 0,
        fields: Fields = (),
        scope: bool = True,
    ) -> None:
        fixed = struct.pack("<3q4Q", start, end, sequence, PID, tid, tid, forward)
        raw = name if isinstance(name, bytes) else name.encode()
        tail = b"\0\0" if scope else b"\0"
        self.put("torch.op_range", record(1, fixed + tail, [(2, raw), *fields]))

    def mark(self, time: int, category: int, correlation: int, tid: int, name: str) -> None:
        fixed = struct.pack("<q4Q", time, category, correlation, tid, PID)
        self.put("torch.op_mark", record(2, fixed, [(1, name.encode())]))

    def enqueue(self, start: int, end: int, correlation: int, tid: int, name: str = "k") -> None:
        self.mark(start, 0, correlation, tid, name)
        self.mark(end, 1, correlation, tid, name)

    def dequeue(self, start: int, end: int, correlation: int, tid: int, name: str = "k") -> None:
        self.mark(start, 2, correlation, tid, name)
        self.mark(end, 3, correlation, tid, name)

    def memory(
        self,
        time: int,
        ptr: int,
        size: int,
        kind: int = 0,
        *,
        tid: int = 1,
        totals: tuple[int, int, int] = (10, 20, 30),
        stream: int = 5,
        device_type: int = 20,
        device: int = 0,
        component: int = 0,
        allocator: int = 0,
        layout: int = 77,
    ) -> None:
        fixed = struct.pack("<7q2b", ptr, time, size, *totals, stream, device_type, device)
        tail = {77: (component, kind, allocator), 76: (kind, allocator), 75: (kind,)}[layout]
        self.put("torch.memory_usage", tlv(3, fixed + bytes(tail) + struct.pack("<2Q", tid, PID)))

    def call(self, time: int, key: int, tag: int = 0, tid: int = 1) -> None:
        self.put("torch.python_tracer_func", struct.pack("<4QB", time, tid, PID, key, tag))

    def text(self, key: int, text: str) -> None:
        self.put(
            "torch.python_tracer_hash", record(4, struct.pack("<Q", key), [(1, text.encode())])
        )

    def collection(self, start: int, end: int) -> None:
        self.put("torch.gc_record", struct.pack("<3Q", PID, start, end))

    def write(
        self,
        folder: Path,
        *,
        rank: int | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        start_info: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the directory: FRAMEWORK/ if it has files, profiler_info and metadata."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.files:
            (folder / "FRAMEWORK").mkdir(exist_ok=True)
        for name, data in self.files.items():
            (folder / "FRAMEWORK" / name).write_bytes(data)
        info: dict[str, Any] = {
            "config": {"experimental_config": {"_profiler_level": "Level1"}},
            "start_info": {"syscnt_enable": False, **(start_info or {})},
            "end_info": {"collectionTimeEnd": EPOCH + 77, "MonotonicTimeEnd": 77},
        }
        if rank is not None:
            info["rank_id"] = rank
        name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
        (folder / name).write_text(json.dumps(info))
        if metadata is not None:
            (folder / "profiler_metadata.json").write_text(json.dumps(metadata))
        return folder
