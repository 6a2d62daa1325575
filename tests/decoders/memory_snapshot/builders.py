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


NET = {"filename": "/home/user/net.py", "line": 7, "name": "forward"}


def fragmented() -> dict[str, Any]:
    """Return a snapshot with a small segment, and a large one whose free memory is in two parts."""
    small_pool = segment(4096, block(0x1000, 3840, "active_allocated", OUTER))
    large_pool = segment(
        8192,
        block(0x9000, 1024, "active_allocated", NET),
        block(0x9400, 3072, "inactive"),
        block(0xA000, 512, "active_awaiting_free"),
        block(0xA200, 2560, "inactive"),
        block(0xAC00, 1024, "active_allocated", NET, OUTER),
        address=0x9000,
    )
    small_pool |= {"segment_type": "small"}
    large_pool |= {"segment_type": "large", "is_expandable": True}
    return {
        "segments": [small_pool, large_pool, segment(32, device=1)],
        "device_traces": [[entry("oom", 0, 9_999, 7, device_free=5)], [entry("alloc", 1, 16, 6)]],
        "external_annotations": [{"stage": "START", "name": "forward", "device": 0, "time_us": 6}],
    }


def grown() -> dict[str, Any]:
    """Return the small snapshot with more blocks, and short-lived ones before its peak."""
    snapshot = small()
    snapshot["segments"][0]["blocks"] += [
        block(0x1800, 96, "active_allocated", NET),
        block(0x1900, 128, "active_allocated", {**NET, "line": 30}),
        block(0x1A00, 32, "active_allocated"),
        block(0x1B00, 128, "active_allocated", OUTER),
    ]
    trace = snapshot["device_traces"][0]
    trace[2:2] = [entry("alloc", 0x1D00, 64, 1_001, NET, OUTER)]
    trace[4:4] = [
        entry(action, address, size, time_us, *frames)
        for action, address, size, time_us, *frames in (
            ("free_requested", 0x1D00, 64, 1_003),
            ("free_completed", 0x1D00, 64, 1_003),
            ("alloc", 0x1E00, 32, 1_004, INNER),
            ("free_requested", 0x1E00, 32, 1_004),
            ("free_completed", 0x1E00, 32, 1_004),
        )
    ]
    return snapshot


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
