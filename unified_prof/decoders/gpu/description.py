"""Writes the tables that describe a recording: its span, host, devices and rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unified_prof.columns import Sink

UNKNOWN_NAME = "UNKNOWN"
NO_DEVICE = -1
NO_RANK = -1
_NO_HOST_UID = "0"


def write(
    sink: Sink,
    *,
    start_ns: int,
    end_ns: int,
    host_name: str | None,
    device_names: Mapping[int, str | None],
    rank: int | None,
) -> None:
    """Write SESSION_TIME_INFO, HOST_INFO, NPU_INFO and RANK_DEVICE_MAP.

    Args:
        sink: Takes the rows.
        start_ns: Unix time of the first event, or of the session's start.
        end_ns: Unix time of the last event, or of the session's end.
        host_name: None: not recorded.
        device_names: By device; those that something ran on.
        rank: The process of a distributed run, where it is known.
    """
    devices = sorted(device_names) or [NO_DEVICE]
    sink.write("SESSION_TIME_INFO", {"startTimeNs": start_ns, "endTimeNs": end_ns})
    sink.write("HOST_INFO", {"hostUid": _NO_HOST_UID, "hostName": host_name or UNKNOWN_NAME})
    names = [device_names.get(device) or UNKNOWN_NAME for device in devices]
    sink.write("NPU_INFO", {"id": devices, "name": names})
    ranks = [NO_RANK if rank is None else rank] * len(devices)
    sink.write("RANK_DEVICE_MAP", {"rankId": ranks, "deviceId": devices})


def write_device_properties(sink: Sink, properties: Mapping[int, Mapping[str, Any]]) -> None:
    """Write UPROF_GPU_DEVICES: what is known of each device, by name."""
    rows = [
        (device, name, value if isinstance(value, str) else json.dumps(value))
        for device, values in sorted(properties.items())
        for name, value in values.items()
    ]
    if rows:
        columns = zip(*rows, strict=True)
        sink.write(
            "UPROF_GPU_DEVICES", dict(zip(("deviceId", "name", "value"), columns, strict=True))
        )
