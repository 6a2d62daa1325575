"""NIC and ROCE: traffic of the device's network interfaces, nic.data and roce.data (text)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unified_prof.columns import Column, Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory

_TABLES = {"nic": "NIC", "roce": "ROCE"}
_BYTES_PER_MB = 1 << 20

# Time and bandwidth (MB/s), then these.
_COLUMNS = (
    "rxPacketRate",
    "rxByteRate",
    "rxPackets",
    "rxBytes",
    "rxErrors",
    "rxDropped",
    "txPacketRate",
    "txByteRate",
    "txPackets",
    "txBytes",
    "txErrors",
    "txDropped",
    "funcId",
)
_FIELDS = 2 + len(_COLUMNS)
_HEADER = "rxPacket/s"


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write NIC and ROCE: one row a line."""
    for kind, table in _TABLES.items():
        file = device.data.get(kind)
        if file is None:
            continue
        clock = sampling.device_monotonic_clock(device, f"{kind}.data")
        for lines in sampling.text_lines(file):
            rows = _parse(lines)
            found = sum(_HEADER not in line for line in lines)
            sampling.count_damaged(sink, device, f"{kind}.data", found - len(rows))
            if not rows:
                continue
            values = np.array(rows, np.float64)
            columns: dict[str, Column] = {
                "deviceId": device.device_id,
                "timestampNs": clock.to_ns(np.array([row[0] for row in rows], np.int64)),
                "bandwidth": values[:, 1] * _BYTES_PER_MB,
            }
            for place, name in enumerate(_COLUMNS, start=2):
                columns[name] = values[:, place]
            sampling.write_samples(sink, table, device, columns)


def _parse(lines: Sequence[str]) -> list[list[float]]:
    rows = []
    for line in lines:
        time, *fields = line.replace(":", " ", 1).split()
        time_ns = sampling.integer(time)
        if time_ns is None or time_ns < 0 or len(fields) < _FIELDS - 1:
            continue
        try:
            # Rates may be written with decimals; a type id may follow the function id.
            rows.append([time_ns, *(float(field) for field in fields[: _FIELDS - 1])])
        except ValueError:
            continue
    return rows
