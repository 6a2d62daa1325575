"""Builders of snapshots of the CUDA caching allocator."""

import json
import pickle
from pathlib import Path
from typing import Any

from tests.decoders.kineto.builders import RowSink
from unified_prof.decoders import memory_snapshot

INNER = {"filename": "/usr/lib/python3/site-packages/torch/nn/linear.py", "line": 9, "name": "mm"}
OUTER = {"filename": "/home/user/train.py", "line": 12, "name": "step"}


def entry(action: str, addr: int, size: int, time_us: int, *frames: Any, **more: Any) -> Any:
    place = {"action": action, "addr": addr, "size": size, "stream": 3}
    return {**place, "time_us": time_us, "frames": list(frames), **more}


def block(address: int, size: int, state: str = "active_allocated", *frames: Any) -> Any:
    return {"address": address, "size": size, "state": state, "frames": list(frames)}


def segment(total: int, *blocks: Any, device: int = 0, address: int = 0x1000) -> Any:
    place = {"device": device, "address": address, "total_size": total, "stream": 3}
    return {**place, "blocks": list(blocks)}


def small() -> dict[str, Any]:
    """Return one earlier allocation, one that is freed, and one that is live at the end."""
    return {
        "segments": [
            segment(
                4096,
                block(0x1000, 512, "active_allocated", OUTER),
                block(0x1200, 256, "inactive"),
                block(0x1400, 1024, "active_allocated", INNER, OUTER),
            )
        ],
        "device_traces": [
            [
                entry("segment_alloc", 0x1000, 4096, 1_000),
                entry("alloc", 0x1200, 256, 1_001, INNER, OUTER),
                entry("alloc", 0x1400, 1024, 1_002, INNER, OUTER),
                entry("free_requested", 0x1200, 256, 1_005),
                entry("free_completed", 0x1200, 256, 1_009),
                entry("snapshot", 0, 0, 1_010),
            ]
        ],
        "allocator_settings": {"expandable_segments": True, "roundup_power2_divisions": {"1": 0}},
    }


def write(path: Path, snapshot: Any) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(snapshot))
    else:
        path.write_bytes(pickle.dumps(snapshot))
    return path


def decode(path: Path) -> RowSink:
    sink = RowSink()
    memory_snapshot.decode(path, sink)
    return sink


def decode_snapshot(tmp_path: Path, snapshot: Any) -> RowSink:
    return decode(write(tmp_path / "snapshot.pickle", snapshot))
